"""Text of three kinds that needs no download - code, prose, tables - in tokens of one vocabulary that is trained on all of it.

All of it comes from the packages that `package_text.txt` names, and from Python. Code is sources of packages. Prose is the
language reference, documentation of packages, and documentation strings of sources that are not in the code. Tables are CSV,
JSON, YAML and XML files of packages. Other packages are another text: its digest is part of the key of every record.
"""

import ast
import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from adloco_p2p.data.corpus import Document, documents
from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.data.indexing import IndexedRows
from adloco_p2p.data.source import is_heldout
from adloco_p2p.numerics.batch import Batch
from benchmarks.kneser_ney import table_losses
from benchmarks.method.run import HELDOUT_SEED
from benchmarks.ngram import drawn, rows_of
from benchmarks.package_text import named_files, packed, tokenized

KINDS = ("code", "prose", "tables")
"""Sorted, as the product numbers data sets."""
TABLES, DOCUMENTATION = frozenset({".csv", ".json", ".yaml", ".xml", ".tsv"}), frozenset({".md", ".rst", ".txt"})
KIND_CHARACTERS, PACKAGE_CHARACTERS, FILE_CHARACTERS, PIECE_CHARACTERS = 8_000_000, 1_000_000, 300_000, 4_096
"""Characters: the most of each kind; of a kind in one package and in one file, so that none is a kind of its own; and of the
pieces that are held out or not."""
HELDOUT_ROWS, HELDOUT_FRACTION = 96, 0.05
"""Held-out rows of each kind, the same for every run."""


def texts(kind: str) -> Iterator[Document]:
    """Yield the documents of a kind, in an order that depends only on the named packages."""
    if kind == "prose":
        yield from (document for document in documents() if document.identity.startswith("topics/"))
    taken: dict[str, int] = {}
    for package, path, identity in named_files():
        left = PACKAGE_CHARACTERS - taken.get(package, 0)
        if left > 0 and (text := _text_of(kind, path, identity)[: min(left, FILE_CHARACTERS)]):
            taken[package] = taken.get(package, 0) + len(text)
            yield Document(identity=identity, text=text)


def _text_of(kind: str, path: Path, identity: str) -> str:
    """Return what a file adds to a kind; empty where it adds nothing."""
    wanted = {"code": {".py"}, "prose": {".py", *DOCUMENTATION}, "tables": TABLES}[kind]
    is_source = path.suffix == ".py"
    is_for_prose = is_source and is_heldout(f"prose {identity}", 0.5)  # a draw by name, so that no source is in both kinds
    if path.suffix not in wanted or (is_source and is_for_prose != (kind == "prose")):
        return ""
    try:
        text = path.read_text("utf-8")
        return _documentation(text) if is_for_prose else text
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
        return ""


def _documentation(source: str) -> str:
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, nodes))
    return "\n\n".join(text for text in found if text)


@cache
def rows_of_kinds(vocab_size: int) -> tuple[tuple[IndexedRows, ...], str]:
    """Return the rows of each kind, and the digest of the text. Takes a minute or two."""
    sides = [_sides(kind) for kind in KINDS]
    digest = hashlib.sha256(json.dumps(sides).encode()).hexdigest()
    # the vocabulary is trained on the training sides of all kinds
    training = [text for of_kind in sides for text in of_kind[0]]
    lines = tokenized([training, *(side for of_kind in sides for side in of_kind)], vocab_size)[1:]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return tuple(packed(*pair, vocab_size) for pair in pairs), digest


def _sides(kind: str) -> tuple[list[str], list[str]]:
    sides: tuple[list[str], list[str]] = ([], [])
    left = KIND_CHARACTERS
    for document in texts(kind):
        for start in range(0, min(len(document.text), left), PIECE_CHARACTERS):
            piece = document.text[start : start + PIECE_CHARACTERS]
            sides[is_heldout(f"{document.identity}#{start}", HELDOUT_FRACTION)].append(piece)
            left -= len(piece)
    return sides


def heldout_rows(parts: Sequence[IndexedRows], vocab_size: int) -> tuple[Batch, ...]:
    """Return the held-out rows of each kind."""
    return tuple(IndexedFeed(part, vocab_size=vocab_size, seed=HELDOUT_SEED).heldout(HELDOUT_ROWS) for part in parts)


def count_losses(vocab_size: int, samples: int, orders: Sequence[int], kneser_ney: Sequence[int]) -> dict[str, list[float]]:
    """Return the losses of tables of counts on each kind, by name. They count as many rows of all kinds as a run reads."""
    parts, _ = rows_of_kinds(vocab_size)
    chance = np.random.default_rng(0)
    counted = [row for part in parts for row in drawn(part.training, samples // len(parts), chance)]
    heldout = [rows_of(rows) for rows in heldout_rows(parts, vocab_size)]
    return table_losses(counted, heldout, vocab_size=vocab_size, orders=orders, kneser_ney=kneser_ney)
