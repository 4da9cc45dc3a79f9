"""Reads the user's input as plain values: a YAML or TOML file, a shipped configuration, or a `--set key=value`."""

import contextlib
import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from adloco_p2p.config.presets import most_rounds
from adloco_p2p.core.model.words import plural
from adloco_p2p.errors import ConfigError

MAX_FILE_BYTES = 1 << 20
"""The largest configuration that is read, so that a wrong path to a huge file is refused."""

DEFAULT_CONFIG = "default"
"""The shipped configuration that needs no network: the embedded default."""


class _Loader(yaml.SafeLoader):
    """Reads YAML as most people expect it: doubled keys are refused, `3e-4` is a number and `2024-01-01` is text."""

    # a copy without the resolver of dates, because SafeLoader's own table must stay as it is
    yaml_implicit_resolvers = {  # noqa: RUF012 (the library's interface)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(problem="a key must be a name", problem_mark=key_node.start_mark)
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key_node.value!r} appears twice", problem_mark=key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 requires a dot and a sign, as in 3.0e-4; without this resolver 3e-4 would be text.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789"))


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: {error.problem or error.context}", code="E202") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not readable as YAML: {error}", code="E202") from None
    except ValueError as error:  # text that looks like a number and is none, such as 0o9 or a very long integer
        raise ConfigError(f"{where}: {error}", code="E202") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply", code="E202") from None


def _parse_toml(text: str, where: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: {error}", code="E202") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply", code="E202") from None


def shipped() -> dict[str, Traversable]:
    """Return the configurations that come with the package, by name, from the wheel or the checkout."""
    package = resources.files("adloco_p2p")
    inside = package / "configs"
    beside = Path(str(package)).parent / "configs"
    folder: Traversable = inside if inside.is_dir() else beside
    if not folder.is_dir():
        return {}
    return {entry.name.removesuffix(".yaml"): entry for entry in folder.iterdir() if entry.name.endswith(".yaml")}


def is_bare_name(path: Path) -> bool:
    """Return whether the path is the name of a shipped configuration."""
    return path.suffix == "" and path.name == str(path)


def is_shipped(path: Path | None, document: dict[str, Any]) -> bool:
    """Return whether it is a shipped configuration, by its name or as an unchanged file."""
    if path is None or is_bare_name(path):
        return True
    entry = shipped().get(path.stem)
    return entry is not None and document == _as_sections(_parse_yaml(entry.read_text("utf-8"), str(path)), str(path))


def read_run_document(path: Path | None) -> tuple[dict[str, Any], str]:
    """Return the document and the name of its origin. None or a bare name means a shipped configuration.

    Raises ConfigError.
    """
    if path is not None and not is_bare_name(path):
        return read_document(path), str(path)
    name = DEFAULT_CONFIG if path is None else path.name
    known = shipped()
    if name not in known and path is not None and path.is_dir():
        raise ConfigError(_is_directory(path), code="E202")
    if name not in known:
        names = ", ".join(sorted(known)) or "none in this installation"
        raise ConfigError(
            f"{name}: no shipped configuration has this name (there are: {names}); a file of your own ends in .yaml or .toml"
        )
    origin = f"configs/{name}.yaml"
    return _as_sections(_parse_yaml(known[name].read_text("utf-8"), origin), origin), origin


def shortened(document: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a shipped configuration adapted to a run of fewer rounds (`--set work.rounds=2`, or `work.samples` for so few),
    and the changes in words. Forks and merges that would never come are moved forward in proportion, or dropped where there is
    no room. The user's own settings stay as they are."""
    given: dict[str, Any] = {}
    for text in overrides:
        with contextlib.suppress(ConfigError):  # `load_run` reads them again and reports what is wrong
            key, value = parse_override(text)
            given[key] = value
    rounds = given.get("work.rounds")
    full, wanted = document.get("work", {}).get("rounds"), rounds if rounds is not None else _rounds_of_samples(document, given)
    instances, merge = dict(document.get("instances", {})), dict(document.get("merge", {}))
    is_settled = any(key.startswith(("instances", "merge")) for key in given)
    if type(wanted) is not int or type(full) is not int or not 0 < wanted < full or is_settled:
        return document, []
    fork, first = instances.get("fork_round"), merge.get("first_round")
    if fork is None or first is None or (fork < wanted and first <= wanted):
        return document, []
    length = plural(wanted, "round") if rounds is not None else f"at most {plural(wanted, 'round')}"
    new_fork, new_first, new_period = (max(1, number * wanted // full) for number in (fork, first, merge["period_rounds"]))
    if new_fork >= wanted:
        words = f"a run of {length} is too short to fork instances and merge them: it trains one"
        return {**document, "instances": {**instances, "count": 1}}, [words]
    words = (
        f"a run of {length} instead of {full}: instances fork before round {new_fork}, not {fork}, and may merge from"
        f" round {new_first} on, not {first}"
    )
    merge |= {"first_round": new_first, "period_rounds": new_period}
    return {**document, "instances": {**instances, "fork_round": new_fork}, "merge": merge}, [words]


def _rounds_of_samples(document: dict[str, Any], given: dict[str, Any]) -> int | None:
    """Return the most rounds that a run of the given samples can have; None where samples are not given."""
    batch = given.get("batch.initial_batch", document.get("batch", {}).get("initial_batch"))
    steps = given.get("work.inner_steps", document.get("work", {}).get("inner_steps"))
    return most_rounds(given.get("work.samples"), batch, steps)


def _is_directory(path: Path) -> str:
    return f"{path}: is a directory; a configuration is one file, whose name ends in .yaml or .toml"


def read_document(path: Path) -> dict[str, Any]:
    """Return the sections of a YAML or TOML file, by its suffix; an empty file has none. Raises ConfigError."""
    where = str(path)
    if path.is_dir():
        raise ConfigError(_is_directory(path), code="E202")
    parse = {".yaml": _parse_yaml, ".yml": _parse_yaml, ".toml": _parse_toml}.get(path.suffix)
    if parse is None:
        raise ConfigError(f"{where}: the name of a configuration file ends in .yaml, .yml or .toml", code="E202")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no such file", code="E202") from None
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}", code="E202") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 text (byte {error.start})", code="E202") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{where}: longer than {MAX_FILE_BYTES} bytes, which no configuration is", code="E202")
    return _as_sections(parse(text, where), where)


def _as_sections(document: Any, where: str) -> dict[str, Any]:
    if document is None:
        return {}
    if not isinstance(document, dict):
        kind = "a list" if isinstance(document, list) else f"the single value {document!r}"
        raise ConfigError(
            f"{where}: holds {kind}; a configuration is lines `name: value` and sections of such lines", code="E202"
        )
    return document


def parse_override(text: str, *, option: str = "--set", example: str = "work.inner_steps=64") -> tuple[str, Any]:
    """Return key and value of an option's text `key.sub=value`; the value is read as YAML. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{option} {text}: write it as key=value, such as {example}", code="E200")
    return key.strip(), _parse_yaml(value, f"{option} {text}")
