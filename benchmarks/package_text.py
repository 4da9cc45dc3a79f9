"""Text that needs no download, in tokens of a vocabulary trained on it, and the losses of tables of counts on it.

It consists of the sources of the standard library, and sources and documentation of the installed packages that
`package_text.txt` names. Other packages are another text: its digest is part of the key of every record.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

import numpy as np

from adloco_p2p.data.corpus import Document, documents
from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.data.indexing import IndexedRows
from adloco_p2p.data.packing import pack, smallest_dtype
from adloco_p2p.data.source import is_heldout
from benchmarks.kneser_ney import KneserNeyTable
from benchmarks.method.run import CACHE, HELDOUT_ROWS, HELDOUT_SEED
from benchmarks.ngram import NgramTable, Row, drawn, rows_of

PACKAGES = Path(__file__).with_name("package_text.txt")
"""The packages, with the versions that made the text of the kept records. They stay when `constraints.txt` changes."""
KEPT_PYTHON = "3.11.7"
"""The Python whose standard library is in the text of the kept records."""
PACKAGE_CHARACTERS, FILE_CHARACTERS = 300_000, 60_000
"""The most characters of one package, so that none dominates the text; and of one file, which tables of constants exceed."""
SUFFIXES = frozenset({".py", ".pyi", ".md", ".rst", ".txt"})
HELDOUT_FRACTION = 0.05
LENGTH = 256
"""Tokens of a row."""


Prepared = tuple[IndexedRows, str, float]
"""The rows, the digest of the text, and how many bytes of held-out text a token stands for."""


def texts(package_characters: int = PACKAGE_CHARACTERS) -> Iterator[Document]:
    """Yield each text once, in an order that depends only on the installed packages."""
    seen: set[str] = set()
    for document in (*documents(), *_packages(package_characters)):
        if document.text not in seen:
            seen.add(document.text)
            yield document


def named_files() -> Iterator[tuple[str, Path, str]]:
    """Yield the files of every package that is named and installed, without tests: the package, the path, and a name that does
    not depend on where it is installed. Sorted by package and file."""
    found = {_plain(package.metadata["Name"]): package.files or [] for package in distributions()}
    for name in sorted(_versions().keys() & found.keys()):
        for file in sorted(found[name], key=str):
            if "test" not in str(file) and ".dist-info" not in str(file):
                yield name, Path(str(file.locate())), f"{name}/{file}"


def _packages(package_characters: int) -> Iterator[Document]:
    """Yield the first files of every package that is named and installed, without tests."""
    left: dict[str, int] = {}
    for name, path, identity in named_files():
        if path.suffix not in SUFFIXES:
            continue
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if 0 < len(text) <= min(left.setdefault(name, package_characters), FILE_CHARACTERS):
            left[name] -= len(text)
            yield Document(identity=identity, text=text)


def unlike_kept() -> list[str]:
    """Return the packages whose versions here are not those of the kept records."""
    return [f"{name}=={pinned}" for name, pinned in sorted(_versions().items()) if _installed(name) != pinned]


def _installed(name: str) -> str | None:
    """Return the version without the name of the build, such as +cpu."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None


def _versions() -> dict[str, str]:
    """Return the versions of the packages by name."""
    lines = PACKAGES.read_text("utf-8").splitlines()
    pins = (line.split("==") for line in lines if not line.startswith("#"))
    return {_plain(name): pinned for name, pinned in pins}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def prepared(vocab_size: int, package_characters: int = PACKAGE_CHARACTERS) -> Prepared:
    """Return the text of this machine. Takes minutes the first time."""
    if unlike := unlike_kept():
        print(f"another text than that of the kept records, which needs {', '.join(unlike)} and Python {KEPT_PYTHON}")
    sides = sides_of(texts(package_characters), HELDOUT_FRACTION)
    digest = hashlib.sha256(json.dumps(sides).encode()).hexdigest()
    path = CACHE / f"sizes-{digest[:16]}-{vocab_size}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, *tokenized(sides, vocab_size))
    lines = np.load(path)
    training, heldout = (lines[name] for name in lines.files)
    size = sum(len(text.encode(errors="replace")) for text in sides[1]) / len(heldout)
    return packed(training, heldout, vocab_size), digest, size


def sides_of(found: Iterable[Document], heldout_fraction: float) -> tuple[list[str], list[str]]:
    """Return the texts to train on, and those that are held out."""
    sides: tuple[list[str], list[str]] = ([], [])
    for document in found:
        sides[is_heldout(document.identity, heldout_fraction)].append(document.text)
    return sides


def keep_prepared(path: Path, text: Prepared) -> None:
    """Keep the text in a file, for machines that lack the packages."""
    rows, digest, size = text
    training, heldout = (
        np.concatenate(rows_of(side.gather(np.arange(side.num_rows))))[:-1].astype(np.uint16)  # packing adds the end again
        for side in (rows.training, rows.heldout)
    )
    np.savez_compressed(path, digest=np.array(digest), size=np.array(size), training=training, heldout=heldout)


@cache
def kept_prepared(path: Path, vocab_size: int) -> Prepared:
    """Return what `keep_prepared` wrote."""
    kept = np.load(path)
    return packed(kept["training"], kept["heldout"], vocab_size), str(kept["digest"]), float(kept["size"])


def packed(training: np.ndarray, heldout: np.ndarray, vocab_size: int, *, length: int = LENGTH) -> IndexedRows:
    """Return the tokens of each side, which are in one line, as rows."""
    dtype = smallest_dtype(vocab_size)
    sides = [pack([line], sequence_length=length, end_of_document=0, dtype=dtype) for line in (training, heldout)]
    return IndexedRows(training=sides[0], heldout=sides[1])


def tokenized(sides: Sequence[Sequence[str]], vocab_size: int) -> list[np.ndarray]:
    """Return the tokens of each side in one line, with 0 between documents. The vocabulary is trained on the first side."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sides[0], trainer)
    encoded = [[encoding.ids for encoding in tokenizer.encode_batch(list(side))] for side in sides]
    dtype = smallest_dtype(vocab_size)
    return [np.concatenate([np.array([*ids, 0], dtype=dtype) for ids in side])[:-1] for side in encoded]


def ngram_losses(rows: IndexedRows, vocab_size: int, samples: int, order: int) -> dict[str, float]:
    """Return the nats per token of tables of 1 to `order` tokens, counted in as many rows as a run reads, on the runs' held-out
    rows."""
    counted, heldout = counted_and_heldout(rows, vocab_size, samples)
    table = NgramTable(counted, order=order, vocab_size=vocab_size)
    return {str(of): round(loss, 5) for of, loss in enumerate(table.losses(heldout), start=1)}


def kneser_ney_losses(rows: IndexedRows, vocab_size: int, samples: int, orders: Sequence[int]) -> dict[str, float]:
    """Return the nats per token of tables of these orders that are smoothed by Kneser and Ney."""
    counted, heldout = counted_and_heldout(rows, vocab_size, samples)
    tables = {order: KneserNeyTable(counted, order=order, vocab_size=vocab_size) for order in orders}
    return {str(order): round(table.losses(heldout)[-1], 5) for order, table in tables.items()}


def counted_and_heldout(rows: IndexedRows, vocab_size: int, samples: int) -> tuple[list[Row], list[Row]]:
    """Return as many training rows as a run reads, and the runs' held-out rows."""
    heldout = IndexedFeed(rows, vocab_size=vocab_size, seed=HELDOUT_SEED).heldout(HELDOUT_ROWS)
    return drawn(rows.training, samples, np.random.default_rng(0)), rows_of(heldout)
