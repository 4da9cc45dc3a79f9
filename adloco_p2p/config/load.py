"""Reads the user's settings into one validated value, with the origin of each.

There are four layers, each a difference from the one before: the defaults of the dataclasses, the presets that the run names
(`presets.py`), the file, and `--set key=value`. Nothing is half accepted: all problems are collected and raised together as one
ConfigError.
"""

import difflib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from adloco_p2p.config.combinations import combinations
from adloco_p2p.config.documents import is_shipped, parse_override, read_document, read_run_document, shortened
from adloco_p2p.config.fields import accepted, differences, flatten, flatten_fully, sections_of, setting_of, settings_of, shown
from adloco_p2p.config.ignored import ignored
from adloco_p2p.config.machine_combinations import peer_combinations
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.presets import preset_of
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.errors import ConfigError

__all__ = ["Loaded", "combinations", "differences", "load_peer", "load_run", "show"]

T = TypeVar("T")

MAX_DEPTH = 8
"""The deepest nesting of one setting's value."""
MAX_INTEGER = 2**63
"""The bound of whole numbers in a configuration, in both directions."""
LONGEST_QUOTED = 10**40
"""Whole numbers from this size on are not quoted in an error."""
_ALTERNATIVES = (
    ("work.rounds", "work.samples"),
    ("averaging.preset", "averaging.codec"),
    ("inner.warmup_steps", "inner.warmup_samples"),
)
"""Pairs of settings of which a run has only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[T]):
    """A validated configuration, with the origin of the value of every dotted key (entries of a table too): `default`, `preset
    adloco`, `averaging.preset sign`, `file PATH`, `--set` or, for the machine, `--peer-set`."""

    value: T
    origins: dict[str, str]
    notices: tuple[str, ...] = ()
    """Changes made to suit the user's input, and settings that do nothing, one sentence each."""


def load_run(path: Path | None, overrides: Sequence[str] = ()) -> Loaded[RunConfig]:
    """Load the configuration of a run. None or a bare name means a shipped one (`documents.shipped`).

    `overrides` are texts `key.sub=value`, with the value in YAML. Raises ConfigError with every problem.
    """
    document, where = read_run_document(path)
    notices: list[str] = []
    if is_shipped(path, document):
        document, notices = shortened(document, overrides)
    loaded = _load(RunConfig, document, f"file {where}", overrides, preset=preset_of, impossible=combinations)
    return replace(loaded, notices=(*notices, *ignored(loaded.value)))


def load_run_settings(document: dict[str, Any]) -> Loaded[RunConfig]:
    """Load the configuration of a run from sections and settings as in a file, or from dotted keys. Raises ConfigError with
    every problem."""
    plain = {key: value for key, value in document.items() if "." not in key}
    dotted = [f"{key}={json.dumps(value)}" for key, value in document.items() if "." in key]
    return _load(RunConfig, plain, "settings of the program", dotted, preset=preset_of, impossible=combinations)


def load_peer(path: Path | None, overrides: Sequence[str] = ()) -> Loaded[PeerConfig]:
    """Load the configuration of one machine like `load_run`, without presets; None means the defaults. Raises ConfigError."""
    document = {} if path is None else read_document(path)
    return _load(PeerConfig, document, f"file {path}", overrides, preset=lambda _: {}, impossible=peer_combinations)


# --- layers ----------------------------------------------------------------------------------------------------------


def _load(
    kind: type[T],
    document: dict[str, Any],
    where: str,
    overrides: Sequence[str],
    *,
    preset: Callable[[dict[str, Any]], dict[str, tuple[str, Any]]],
    impossible: Callable[[T], list[str]],
) -> Loaded[T]:
    problems: list[str] = []
    defaults = flatten(kind())
    from_file = _place(kind, document, "", problems)
    values, from_set = _override(kind, {**defaults, **from_file}, overrides, problems)
    for place in (from_file, values):
        if place.get("data.source") == "jsonl":  # users write the names of such files
            place["data.source"] = "json"
    for key in _replaced(from_set):
        if key in from_file:
            values[key] = defaults[key]
            del from_file[key]
    written = {key: values[key] for key in (*from_file, *from_set) if key in settings_of(kind)}
    from_preset = preset(written)
    values = {**values, **{key: value for key, (_, value) in from_preset.items() if key not in written}}

    def origin(key: str) -> str:
        setting = setting_of(kind, key).key
        if key in from_set or setting in from_set:
            return _option(kind)
        if setting in from_file:
            return where
        return from_preset[setting][0] if setting in from_preset else "default"

    value, wrong = _validate(kind, values, origin)
    problems += wrong
    if value is not None and not problems:
        problems += impossible(value)
    if value is None or problems:
        raise ConfigError(*problems)
    return Loaded(value=value, origins={key: origin(key) for key in flatten_fully(value)})


def _replaced(from_set: set[str]) -> list[str]:
    """Return the settings of the file that the command line overrides by another name."""
    return [key for names in _ALTERNATIVES for key in names if key not in from_set and from_set & set(names)]


def _place(kind: type, document: dict[str, Any], prefix: str, problems: list[str]) -> dict[str, Any]:
    """Return the document's settings by dotted key. Every unknown key becomes a problem."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        key = prefix + name
        if key in settings_of(kind):
            found[key] = value
        elif key not in sections_of(kind):
            problems.append(_unknown(kind, key, value))
        elif isinstance(value, dict):
            found |= _place(kind, value, key + ".", problems)
        elif value is not None:  # a section whose every line is a comment is empty, not wrong
            problems.append(f"{key}: is a section of settings, not the value {shown(value)}")
    return found


def _override(
    kind: type, values: dict[str, Any], overrides: Sequence[str], problems: list[str]
) -> tuple[dict[str, Any], set[str]]:
    """Return the values with every `key=value` laid over them in order, and the keys that were set."""
    values = dict(values)
    keys: set[str] = set()
    example = "nickname=ann" if kind is PeerConfig else "work.inner_steps=64"
    for text in overrides:
        try:
            key, value = parse_override(text, option=_option(kind), example=example)
        except ConfigError as error:
            problems += error.problems
            continue
        table, _, entry = key.rpartition(".")
        if key in settings_of(kind):
            values[key] = value
            keys = {known for known in keys if not known.startswith(key + ".")} | {key}
        elif table in settings_of(kind) and settings_of(kind)[table].is_table and entry:
            if isinstance(values[table], dict):  # any other value is a mistake of the file, which validation reports
                values[table] = {**values[table], entry: value}
            keys.add(key)
        elif key in sections_of(kind):
            inside = _first_inside(kind, key)
            problems.append(f"{_option(kind)} {text}: {key} is a section; set one of its settings, such as {inside}")
        else:
            problems.append(_unknown(kind, key, value))
    return values, keys


def _option(kind: type) -> str:
    """Return the option of the command line that changes a setting."""
    return "--peer-set" if kind is PeerConfig else "--set"


def _first_inside(kind: type, section: str) -> str:
    return next(key for key in settings_of(kind) if key.startswith(section + "."))


def _unknown(kind: type, key: str, value: Any) -> str:
    """Describe an unknown key, with the likeliest correction: a setting of the other configuration, a near spelling, or the
    same name in another section; otherwise list the settings of the section."""
    if kind is RunConfig and _is_in(PeerConfig, key):
        other = f"--peer-set {_assignment(key, value)}, or a file for --peer-config"
        return f"{key}: belongs to the machine, not to the run: {other}"
    if kind is PeerConfig and _is_in(RunConfig, key):
        other = f"--set {_assignment(key, value)}, or the file of the run, which its author starts"
        return f"{key}: belongs to the run, not to the machine: {other}"
    known = [*settings_of(kind), *sections_of(kind)]
    section, _, name = key.rpartition(".")
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    same_name = [other for other in known if other.rpartition(".")[2] == name]
    close_name = difflib.get_close_matches(name, [other.rpartition(".")[2] for other in known], n=1, cutoff=0.75)
    near_name = [other for other in known if [other.rpartition(".")[2]] == close_name]
    meant = (same_name or near or near_name)[:1]
    if meant:
        return f"{key}: unknown setting; did you mean {meant[0]}?"
    inside = [other.rpartition(".")[2] for other in settings_of(kind) if other.rpartition(".")[0] == section]
    return f"{key}: unknown setting" + (f"; the section {section} has {', '.join(inside)}" if section and inside else "")


def _is_in(kind: type, key: str) -> bool:
    """Return whether the configuration has the key: a setting, a section, or an entry of a table."""
    table = settings_of(kind).get(key.rpartition(".")[0])
    return key in settings_of(kind) or key in sections_of(kind) or (table is not None and table.is_table)


def _assignment(key: str, value: Any) -> str:
    """Return `key=value` as a command line takes it, without a value that would fill lines."""
    return f"{key}={value if isinstance(value, str) else shown(value)}" if not isinstance(value, dict) else f"{key}.NAME=VALUE"


# --- validation ------------------------------------------------------------------------------------------------------


def _validate(kind: type[T], values: dict[str, Any], origin: Callable[[str], str]) -> tuple[T | None, list[str]]:
    """Return the value, or None and the problem of each setting."""
    problems = []
    nested: dict[str, Any] = {}
    for key, value in values.items():
        if (trouble := _not_plain(value)) is not None:
            problems.append(f"{key}: {trouble}")
            continue
        *sections, name = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    try:
        value = TypeAdapter(kind).validate_json(json.dumps(nested), strict=True)
    except ValidationError as error:
        # one sentence per setting, because a union reports one error for each of its members
        wrong = {_place_of(kind, values, found["loc"]): None for found in error.errors(include_url=False, include_input=False)}
        return None, problems + [_refusal(kind, values, key, origin(key)) for key in wrong]
    return (None if problems else value), problems


def _place_of(kind: type, values: dict[str, Any], location: tuple[int | str, ...]) -> str:
    """Return the setting, or the entry of a table, that contains an error's location; what follows the key is inside the
    value."""
    for end in range(1, len(location) + 1):
        key = ".".join(str(part) for part in location[:end])
        if key in settings_of(kind):
            in_entry = isinstance(values[key], dict) and settings_of(kind)[key].is_table
            return f"{key}.{location[end]}" if in_entry else key
    raise AssertionError(f"no setting at {location}")


def _refusal(kind: type, values: dict[str, Any], key: str, origin: str) -> str:
    setting = setting_of(kind, key)
    value, annotation = values[setting.key], setting.annotation
    if key != setting.key:
        value, annotation = value[key.removeprefix(setting.key + ".")], get_args(annotation)[1]
    return f"{key}: {shown(value)} ({origin}) is not accepted{_hint(annotation, value)}; accepted: {accepted(annotation)}"


def _not_plain(value: Any, depth: int = 0) -> str | None:
    """Return why a value has no place in a configuration, whatever the setting; None where it has one."""
    if depth > MAX_DEPTH:
        return "nested too deeply"
    match value:
        case float() if not math.isfinite(value):
            return f"{value} is not a finite number"
        case int() if not -MAX_INTEGER < value < MAX_INTEGER:
            quoted = f"{value} is " if abs(value) < LONGEST_QUOTED else ""  # Python writes no number of thousands of digits
            return f"{quoted}a whole number of more than 63 bits"
        case str() if any("\ud800" <= letter <= "\udfff" for letter in value):
            return "not valid text (half of a surrogate pair)"
        case None | bool() | int() | float() | str():
            return None
        case list():
            return next(filter(None, (_not_plain(item, depth + 1) for item in value)), None)
        case dict():
            return next(filter(None, (_not_plain(item, depth + 1) for item in (*value, *value.values()))), None)
        case _:
            return f"{value} is a {type(value).__name__}; write it in quotes if it is meant as text"


_BOOLEANS = ("true", "false", "yes", "no", "on", "off")
"""Words that are no text without quotes."""


def _hint(annotation: Any, value: Any) -> str:
    words = accepted(annotation)
    if isinstance(value, str) and words.startswith(("a number", "a whole number", "true or false")):
        if value.count(",") == 1 and value.replace(",", "", 1).lstrip("+-").isdecimal():
            return ", because it is text; decimals have a point, as 0.5"
        if value.lower().lstrip("+-.") in ("nan", "inf", "infinity"):
            return ", because it is not finite"
        is_quoted = value.lower() in _BOOLEANS or value[:1].isdecimal() or value.startswith(("+", "-", "."))
        return ", because it is text" + (" (perhaps only the quotes are too many)" if is_quoted else "")
    if isinstance(value, (int, float)) and words.startswith("text"):
        return ", because it is not text (quotes are missing)"
    return ""


# --- showing ---------------------------------------------------------------------------------------------------------


def show(loaded: Loaded[Any], as_json: bool) -> str:
    """Show every setting with value, origin and meaning, for people, or without the meaning as one JSON document.

    A run's digest is shown too; a machine's configuration has none.
    """
    value = loaded.value
    values = flatten_fully(value)
    digest = value.digest if isinstance(value, RunConfig) else None
    if as_json:
        return json.dumps({"digest": digest, "values": values, "origins": loaded.origins}, indent=2)
    lines = [] if digest is None else [f"# run {digest}", ""]
    explained = ""
    for key, found in values.items():
        lines.append(f"{key} = {shown(found)}    [{loaded.origins[key]}]")
        setting = setting_of(type(value), key)
        if setting.doc and setting.key != explained:
            lines.append(f"    {setting.doc}")
        explained = setting.key
    return "\n".join(lines)
