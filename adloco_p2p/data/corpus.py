"""The embedded text, which every Python installation carries, so that a run needs no download and no account.

Documents are the standard library's source files and the language reference's topics. The text differs a little between Python
versions; peers of one run that are to read exactly the same rows use the same version.
"""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_CORPUS_BYTES = 16 << 20
"""The most bytes of the text. CPython 3.11 has about 10 MiB; the limit keeps the start fast where a distribution adds
modules."""

SKIPPED_DIRECTORIES = frozenset(
    {
        "site-packages",
        "dist-packages",
        "__pycache__",
        "test",
        "tests",
        "idle_test",
        "encodings",  # tables of code points
        "pydoc_data",  # its topics are documents of their own, below
    }
)
"""Directories that are not the standard library, or not text that teaches a model anything."""

MACHINE_PREFIXES = ("config-", "_sysconfigdata")
"""Prefixes of files that are written when Python is built, and differ from machine to machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text that is trained on, or held out, as a whole."""

    identity: str
    """The key that decides its side of the held-out split: its name, or its text where it has no name."""
    text: str


def documents(*, max_bytes: int = MAX_CORPUS_BYTES, library: Path | None = None) -> Iterator[Document]:
    """Yield the embedded documents, each text once, in an order that every machine shares: topics, then modules, by name.

    Ends before the first document that would exceed `max_bytes` of UTF-8. `library` is the directory of the standard library's
    sources; None: this Python's.
    """
    root = library if library is not None else Path(sysconfig.get_path("stdlib"))
    seen: set[bytes] = set()
    total = 0
    for document in (*_topics(), *_modules(root)):
        data = document.text.encode()
        digest = hashlib.sha256(data).digest()
        if not data or digest in seen:
            continue
        total += len(data)
        if total > max_bytes:
            return
        seen.add(digest)
        yield document


def _topics() -> Iterator[Document]:
    """Yield the language reference, as `help()` shows it; nothing where a distribution ships Python without it."""
    try:
        from pydoc_data.topics import topics  # 0.5 MB of text, read only when the corpus is used
    except ImportError:
        return
    for name in sorted(topics):
        yield Document(identity=f"topics/{name}", text=topics[name])


def _modules(root: Path) -> Iterator[Document]:
    """Yield every readable UTF-8 source file below `root` that is not skipped."""
    paths: list[Path] = []
    for directory, subdirectories, files in os.walk(root):
        # in place, so that os.walk never enters site-packages, which may hold a hundred thousand files
        subdirectories[:] = [name for name in subdirectories if name not in SKIPPED_DIRECTORIES and not _is_machine_made(name)]
        paths += [Path(directory, name) for name in files if name.endswith(".py") and not _is_machine_made(name)]
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in paths):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        yield Document(identity=f"modules/{name}", text=text)


def _is_machine_made(name: str) -> bool:
    return name.startswith(MACHINE_PREFIXES)
