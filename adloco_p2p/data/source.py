"""The documents of a run's configured source, and which of them are held out."""

import glob
import hashlib
import json
import logging
import platform
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from adloco_p2p.config.download_size import check_download
from adloco_p2p.config.plugins import load_plugin, one_line
from adloco_p2p.config.run_config import DataConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.words import plural
from adloco_p2p.data import corpus
from adloco_p2p.data.corpus import Document
from adloco_p2p.data.hub import client_errors, download_bytes, repository_files
from adloco_p2p.errors import ConfigError

logger = logging.getLogger(__name__)

READ_BATCH = 1000
"""Documents that are read at once from an indexed data set."""

MAX_NAMED = 3
"""The most files that an error names."""


def check_settings(data: DataConfig) -> None:
    """Raise ConfigError for settings that this source would silently ignore. Other mistakes show when the configuration is
    read."""
    problems: list[str] = []
    if data.source == "python" and data.streaming:
        problems.append(
            "data.streaming: true, but the embedded text is indexed in a second; leave it off for data.source python"
        )
    if data.source != "hub" and data.split != "train":
        problems.append(
            f"data.split: {data.split}, but only hub data sets have splits; leave it out and choose files by data.path"
        )
    if problems:
        raise ConfigError(*problems)


def is_heldout(identity: str, fraction: float) -> bool:
    """Return whether a document is for evaluation only. That depends on nothing but its identity: not on seed, order or
    machine."""
    # a lone surrogate is hashed as it is, so that no document makes this fail
    digest = hashlib.sha256(identity.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < int(fraction * (1 << 64))


def load_split(data: DataConfig, *, split: str, cache_dir: Path | None, setting: str = "data.path") -> Any:
    """Return one split as a `datasets.Dataset`, or an `IterableDataset` where `data.streaming`, with the configured columns
    only.

    `cache_dir` is where `datasets` keeps converted data; None: its own place. `setting`: the name that errors give to
    `data.path`. Raises ConfigError where the data are missing, unreachable or without the text column.
    """
    # takes seconds to import, and the embedded default never needs it
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    cache = str(cache_dir / "datasets") if cache_dir is not None else None
    try:
        is_hub = data.source == "hub"
        kind, files = (
            repository_files(data, split=split) if is_hub else (data.source, _as_patterns(_local_files(data, setting)))
        )
        arguments: dict[str, Any] = {"path": kind, "data_files": files, "split": "train"}
        if data.source == "text":
            arguments["sample_by"] = "paragraph"  # by line the newlines would be lost, and by file the held-out split
        if kind == "text":
            arguments["encoding"] = "utf-8-sig"  # a byte order mark at the beginning of a file is not text
        if data.source == "hub" and not data.streaming:
            place = Path(cache or datasets.config.HF_DATASETS_CACHE)
            check_download("data.path", str(data.path), download_bytes(files), place, code="E207")
        dataset = datasets.load_dataset(**arguments, streaming=data.streaming, cache_dir=cache)
        columns = dataset.column_names or list(
            next(iter(dataset), {})
        )  # a stream may learn its columns from its first row only
    except (OSError, ValueError, StopIteration, RecursionError, datasets.exceptions.DatasetsError, *client_errors()) as error:
        raise ConfigError(_unreadable(data, split, error, setting), code="E207") from error
    wanted = list(columns_of(data))
    if columns and (missing := [column for column in wanted if column not in columns]):
        raise ConfigError(
            f"{_column_setting(data, missing[0])}: no column {missing[0]!r} in {data.path};"
            f" it has {', '.join(sorted(columns))}",
            code="E207",
        )
    return dataset.select_columns(wanted) if columns else dataset


def files_digest(data: DataConfig) -> str:
    """Return the digest of all local files that are read, in reading order, or of the texts of a plugin or of this Python;
    empty for a hub data set. Raises ConfigError where files are missing."""
    if data.source == "python":
        return _texts_digest(document.text for document in corpus.documents())
    if data.source == "plugin":
        return _texts_digest(plugin_texts(data))
    if data.source == "hub" or not data.paths:
        return ""
    try:
        return canonical.digest([[_content_digest(Path(name)) for name in files] for files in local_files(data)])
    except OSError as error:
        raise ConfigError(f"data.path: cannot be read: {error}", code="E207") from error


def local_files(data: DataConfig) -> list[list[str]]:
    """The files of each of `data.paths`. Raises ConfigError where one has none."""
    return [_local_files(replace(data, path=path), setting) for setting, path in _named_paths(data)]


def heldout_overlap(data: DataConfig) -> str | None:
    """Return the problem where files for evaluation are also trained on, under their own name or another one; None where they
    are not. Raises ConfigError where files are missing."""
    if data.heldout_path is None:
        return None
    *trained, heldout = ({Path(name).resolve() for name in files} for files in local_files(data))
    both = _with_content_of(set[Path]().union(*trained), heldout)
    if not both:
        return None
    more = f" and {len(both) - MAX_NAMED} more" if len(both) > MAX_NAMED else ""
    return (
        f"data.heldout_path: {', '.join(both[:MAX_NAMED])}{more} would also be trained on, by"
        f" {'data.mixture' if data.mixture else 'data.path'}; name files with other content, or leave data.heldout_path out, so"
        " that data.heldout_fraction of the documents is held out"
    )


def _with_content_of(known: Collection[Path], files: Collection[Path]) -> list[str]:
    """Return the names of the files that are among the known ones, or copies of one. Raises ConfigError."""
    try:
        sizes = {path: path.stat().st_size for path in {*known, *files}}
        wanted = {sizes[path] for path in files} - {0}
        contents = {_content_digest(path) for path in known if sizes[path] in wanted}  # few files have one size
        return sorted(str(path) for path in files if path in known or (contents and _content_digest(path) in contents))
    except OSError as error:
        raise ConfigError(f"data.heldout_path: cannot be read: {error}", code="E207") from error


def _named_paths(data: DataConfig) -> list[tuple[str, str]]:
    """Return `data.paths`, each with the setting that names it."""
    return [
        *([("data.path", data.path)] if data.path is not None else []),
        *(("data.mixture", path) for path in data.data_sets),
        *([("data.heldout_path", data.heldout_path)] if data.heldout_path is not None else []),
    ]


def plugin_texts(data: DataConfig) -> Iterator[str]:
    """Yield the texts of the run's data plugin, in its order. Raises ConfigError where it fails, or gives something else."""
    name = data.plugin
    try:
        for text in load_plugin("data.plugin", name)(**data.arguments):
            if not isinstance(text, str):
                raise ConfigError(f"data.plugin: {name!r} gives {type(text).__name__}, not text", code="E232")
            yield text
    except ConfigError:
        raise
    except Exception as error:  # other people's code, which may fail in any way
        raise ConfigError(f"data.plugin: {name!r} failed: {one_line(error)}", code="E232") from error


def _texts_digest(texts: Iterable[str]) -> str:
    """Return the digest of texts with their borders."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def _content_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(data: DataConfig) -> None:
    """Raise ConfigError where the local files are not those with which the run was started. The embedded text may be another
    one (`other_embedded_text`)."""
    if data.source != "python" and data.digest and (found := files_digest(data)) != data.digest:
        setting, what = ("data.plugin", "texts") if data.source == "plugin" else ("data.path", "files")
        raise ConfigError(
            f"{setting}: the {what} have digest {found} here, and the run was started with {data.digest};"
            f" get the {what} that the run's author has",
            code="E218",
        )


def other_embedded_text(data: DataConfig) -> str | None:
    """Return a warning where the embedded text of this Python is not that of the run; None where it is, or is not read."""
    if data.source != "python" or not data.digest or files_digest(data) == data.digest:
        return None
    return (
        f"warning: the embedded text of Python {platform.python_version()} here is not the one with which the run was started;"
        " held-out losses that this peer measures differ from those of others"
    )


def columns_of(data: DataConfig) -> tuple[str, ...]:
    """Return the columns that are read: of texts, of conversations, or of prompts and completions."""
    if data.messages_column is not None:
        return (data.messages_column,)
    if data.prompt_column is not None and data.completion_column is not None:
        return (data.prompt_column, data.completion_column)
    return (data.text_column,)


def _column_setting(data: DataConfig, column: str) -> str:
    names = ("messages_column", "prompt_column", "completion_column")
    return f"data.{next((name for name in names if getattr(data, name) == column), 'text_column')}"


def texts_of(dataset: Any, column: str) -> Iterator[list[str]]:
    """Yield batches of texts of an indexed data set, in order, without rows that have no text, and count those without a value
    in the log. Raises ConfigError, with the number of the row, for a cell of another kind."""
    num_rows = num_missing = 0
    for batch in dataset.iter(batch_size=READ_BATCH):
        texts = []
        for value in batch[column]:
            num_rows += 1
            num_missing += value is None
            try:
                texts.append(text_of(value, column))
            except ConfigError as error:
                raise ConfigError(f"{error} (row {num_rows})", code=error.code) from error
        yield [text for text in texts if text]
    if num_missing:
        logger.warning("%d of %s have no %r and are skipped", num_missing, plural(num_rows, "row"), column)


def text_of(value: object, column: str, *, setting: str = "data.text_column") -> str:
    """Return the text in a cell; empty where there is none. Raises ConfigError for a column that holds something else;
    `setting` names the column."""
    if value is None or isinstance(value, str):
        return value or ""
    found = f"{type(value).__name__} {str(value)[:60]!r}"
    raise ConfigError(f"{setting}: {column!r} holds {found}, not text; name a column of strings, or mend this row", code="E207")


def anonymous(texts: Iterable[str]) -> list[Document]:
    """Return documents whose identity is their text, so that copies of one text lie on the same side of the split."""
    return [Document(identity=text, text=text) for text in texts]


def _local_files(data: DataConfig, setting: str) -> list[str]:
    """Return the files of the glob, sorted, so that every peer numbers shards and documents alike. `setting` names it."""
    assert data.path is not None
    names = glob.glob(data.path, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute patterns
    files = sorted(name for name in names if Path(name).is_file())
    if not files and Path(data.path).is_dir():
        suffix = {"text": "txt", "json": "jsonl"}.get(data.source, data.source)
        pattern = str(Path(data.path) / f"*.{suffix}")
        raise ConfigError(f"{setting}: {data.path!r} is a directory; name the files in it, such as {pattern!r}", code="E207")
    if not files:
        raise ConfigError(
            f"{setting}: no file matches {data.path!r}, seen from {Path.cwd()}; give the path or glob of {data.source} files",
            code="E207",
        )
    return files


def _as_patterns(files: Iterable[str]) -> list[str]:
    """Return what `datasets`, which takes every name for a glob, reads as these files."""
    return [glob.escape(name) for name in files]


def _unreadable(data: DataConfig, split: str, error: Exception, setting: str) -> str:
    """Return a message with the configured source, the failure and a remedy. `setting` names `data.path`."""
    from datasets.arrow_writer import SchemaInferenceError

    # datasets wraps the errors of converting files; the cause is more precise
    cause = error.__cause__ or error
    reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    if isinstance(cause, UnicodeDecodeError) and data.source in ("text", "json") and (places := _not_utf8(data, setting)):
        return f"{setting}: not UTF-8: {places}; convert such files, as by `iconv -f LATIN1 -t UTF-8 FILE > NEW`"
    if isinstance(cause, StopIteration | SchemaInferenceError):
        reason = "its files are empty"
    elif data.source == "json" and data.path is not None:
        reason = _damaged_line(data, setting) or reason  # the library counts rows from 0 within a block, and names no file
    if data.source != "hub":
        return f"{setting}: {data.path!r} cannot be read as {data.source}: {reason}; give such files, or change data.source"
    wanted = f"data.path: {data.path!r} (name {data.name!r}, revision {data.revision!r}, split {split!r})"
    return (
        f"{wanted} cannot be loaded from the hub: {reason}; check the names and the network, "
        "or use local files, or data.source python, which needs no download"
    )


@contextmanager
def bad_bytes_named(data: DataConfig) -> Iterator[None]:
    """Raise ConfigError where a text that is read inside is not UTF-8. Texts of JSON come from the library as they are in the
    file, and the error comes with the first look at them."""
    try:
        yield
    except UnicodeDecodeError as error:
        named = [(replace(data, path=path), setting) for setting, path in _named_paths(data)]
        bad = next((one for one in named if data.source in ("text", "json") and _not_utf8(*one)), (data, "data.path"))
        raise ConfigError(_unreadable(bad[0], data.split, error, bad[1]), code="E207") from error


def _damaged_line(data: DataConfig, setting: str) -> str:
    """Return the first line that is no JSON, of files with one value a line; empty where there is none."""
    for name in _local_files(data, setting):
        with Path(name).open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if number == 1 and not line.lstrip().startswith(b"{"):
                    break  # a list of rows, or a compressed file
                try:
                    json.loads(line.rstrip())
                except ValueError as error:
                    return f"{name}, line {number}: {str(error).partition(': line ')[0]}"
                except RecursionError:
                    return f"{name}, line {number}: nested too deeply"
    return ""


def _not_utf8(data: DataConfig, setting: str) -> str:
    """Return the first bad line of each file of the glob that is not UTF-8: `notes.txt, line 3; more.txt, line 1`."""
    found = []
    for name in _local_files(data, setting) if data.path is not None else []:
        with Path(name).open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError:
                    found.append(f"{name}, line {number}")
                    break
    others = len(found) - MAX_NAMED
    more = [f"and {others} more file{'s' if others > 1 else ''}"] if others > 0 else []
    return "; ".join([*found[:MAX_NAMED], *more])
