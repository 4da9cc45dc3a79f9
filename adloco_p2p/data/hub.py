"""Reads a data set of the hub as files of its own repository, and nothing else.

Its card, which anybody may have written, names files by patterns. The library `datasets` follows absolute paths and URLs among
them, so it would read this machine's disk and network into the training data. Therefore patterns are checked here and resolved
below the repository, and the resulting names are checked again; the library then gets a list of files.
"""

import glob
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from adloco_p2p.config.run_config import DataConfig
from adloco_p2p.errors import ConfigError

CARD = "README.md"
MAX_CARD_BYTES = 1 << 20
"""The most bytes of a card that are read."""
MAX_FILES = 100_000
"""The most files of one split."""

_FRONT_MATTER = re.compile(r"\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", re.DOTALL)
_FORMATS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".txt": "text",
}
_COMPRESSED = (".gz", ".zst", ".xz", ".bz2")


def repository_files(data: DataConfig, *, split: str) -> tuple[str, list[str]]:
    """Return format and files of one split of `data.path`: a hub id, or a directory that the user allowed.

    Raises ConfigError where the data set names anything outside of its own repository, or nothing that can be read; also the
    OSError and ValueError of `datasets`, and `client_errors`.
    """
    assert data.path is not None
    root = _root(data)
    chosen = _chosen_config(_configs(_card(root)), data)
    base = root
    if "data_dir" in chosen:
        base = f"{root}/{_within(data, chosen['data_dir'])}"
    patterns = [_within(data, pattern) for pattern in _patterns(chosen, base, split)]
    files = _resolved(data, patterns, root=root, base=base)
    return _of_one_format(data, files, split)


def download_bytes(files: Sequence[str]) -> int:
    """Return the total size of those files that are on the hub, by its listing; 0 for the files of a directory."""
    from fsspec.core import url_to_fs

    remote = [file for file in files if file.startswith("hf://")]
    if not remote:
        return 0
    system, _ = url_to_fs(remote[0])
    return sum(system.info(file, expand_info=False)["size"] or 0 for file in remote)


def client_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the hub's client for a failing network; they depend on its version, which uses one or another HTTP
    library."""
    import huggingface_hub

    library = sys.modules[type(huggingface_hub.get_session()).__module__.partition(".")[0]]
    return (library.HTTPError,)


def _root(data: DataConfig) -> str:
    """Return where all files of the data set lie, without a slash at the end."""
    assert data.path is not None
    if Path(data.path).is_dir():
        return str(Path(data.path).resolve())
    return f"hf://datasets/{data.path}@{data.revision or 'main'}"


def _card(root: str) -> str:
    # imported only when needed; it comes with `datasets`
    from fsspec.core import url_to_fs

    system, path = url_to_fs(f"{root}/{CARD}")
    try:
        with system.open(path, "rb") as file:
            return bytes(file.read(MAX_CARD_BYTES)).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _configs(card: str) -> list[dict[str, Any]]:
    """Return the configurations that the card describes. Raises ValueError where it cannot be read."""
    front = _FRONT_MATTER.match(card)
    try:
        described = yaml.safe_load(front[1]) if front else None
    except yaml.YAMLError as error:
        raise ValueError(f"its {CARD} is not well formed: {str(error).splitlines()[0]}") from None
    configs = described.get("configs") if isinstance(described, dict) else None
    return [config for config in configs if isinstance(config, dict)] if isinstance(configs, list) else []


def _chosen_config(configs: list[dict[str, Any]], data: DataConfig) -> dict[str, Any]:
    """Return the configuration that `data.name` names, or the default one; empty where the card describes none."""
    if not configs and data.name in (None, "default"):
        return {}
    wanted = [config for config in configs if config.get("config_name") == (data.name or "default")]
    if not wanted and data.name is None:
        wanted = [config for config in configs if config.get("default") is True] or (configs if len(configs) == 1 else [])
    if not wanted:
        names = ", ".join(sorted(str(config.get("config_name"))[:100] for config in configs)[:20]) or "none"
        raise ValueError(f"there is no configuration {data.name or 'default'!r}; it has {names}")
    return wanted[0]


def _patterns(config: dict[str, Any], base: str, split: str) -> list[object]:
    """Return the patterns of the split's files, from the card, or else from the names of the files. Raises ValueError."""
    described = config.get("data_files")
    if described is None:
        from datasets.data_files import get_data_patterns

        by_split: dict[str, list[object]] = {str(name): list(found) for name, found in get_data_patterns(base).items()}
    elif isinstance(described, list) and any(isinstance(item, dict) for item in described):
        by_split = {}
        for item in described:
            if isinstance(item, dict):
                by_split.setdefault(str(item.get("split")), []).extend(_as_list(item.get("path")))
    else:
        by_split = {"train": _as_list(described)}
    if split not in by_split:
        raise ValueError(f"there is no split {split!r}; it has {', '.join(sorted(by_split))[:200]}")
    return by_split[split]


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _within(data: DataConfig, pattern: object) -> str:
    """Return the pattern, if it can only match files of the repository. Raises ConfigError."""
    if not isinstance(pattern, str) or not pattern or any(mark in pattern for mark in ("\\", ":", "\0")):
        raise _foreign(data, pattern)
    if pattern.startswith(("/", "~")) or ".." in PurePosixPath(pattern).parts:
        raise _foreign(data, pattern)
    return pattern.removeprefix("./").rstrip("/")


def _resolved(data: DataConfig, patterns: Iterable[str], *, root: str, base: str) -> list[str]:
    """Return the files below `root` that match, each once. Raises ConfigError where one lies elsewhere, and FileNotFoundError
    where a name without wildcards is missing or nothing matches."""
    from datasets.data_files import resolve_pattern

    files: dict[str, None] = {}
    for pattern in patterns:
        try:
            files |= dict.fromkeys(str(file) for file in resolve_pattern(pattern, base))
        except FileNotFoundError:
            if not glob.has_magic(pattern):
                raise
    if not files:
        raise FileNotFoundError("none of the files that its card describes is there")
    for file in files:
        if not _is_below(file, data, root):
            raise _foreign(data, file)
    if len(files) > MAX_FILES:
        raise ValueError(f"{len(files)} files, at most {MAX_FILES} are read")
    return list(files)


def _is_below(file: str, data: DataConfig, root: str) -> bool:
    """Return whether the file belongs to the data set's own repository, however the file system spells the revision."""
    if not root.startswith("hf://"):
        return Path(file).resolve().is_relative_to(root)
    own = f"hf://datasets/{data.path}"
    return file.startswith((f"{own}/", f"{own}@")) and ".." not in PurePosixPath(file).parts


def _of_one_format(data: DataConfig, files: list[str], split: str) -> tuple[str, list[str]]:
    """Return the format that most of the files have, and those files. Raises ConfigError."""
    by_format: dict[str, list[str]] = {}
    for file in files:
        suffixes = [suffix for suffix in PurePosixPath(file).suffixes if suffix not in _COMPRESSED]
        if suffixes and suffixes[-1] in _FORMATS:
            by_format.setdefault(_FORMATS[suffixes[-1]], []).append(file)
    if not by_format:
        raise ConfigError(
            f"data.path: split {split!r} of {data.path!r} has no files that can be read;"
            f" accepted: {', '.join(_FORMATS)}, also compressed",
            code="E207",
        )
    return max(by_format.items(), key=lambda item: len(item[1]))


def _foreign(data: DataConfig, name: object) -> ConfigError:
    return ConfigError(
        f"data.path: the data set {data.path!r} names {str(name)[:200]!r}, which is no file of its own repository;"
        " what lies on this machine or in its network is not read for it. Choose another data set",
        code="E216",
    )
