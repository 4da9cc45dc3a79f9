"""A configuration as a flat list of settings: dotted key, type, accepted values, and the text under the field."""

import ast
import dataclasses
import inspect
import json
import textwrap
import types
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, Predicate

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.words import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a configuration, such as `work.inner_steps` for the field `inner_steps` of the section `work`."""

    key: str
    annotation: Any
    doc: str

    @property
    def is_table(self) -> bool:
        """Whether the value is itself a mapping with free names, such as the model's architecture."""
        return get_origin(self.annotation) is dict


def settings_of(kind: type) -> dict[str, Setting]:
    """Return every setting of a configuration class by its dotted key, in the order of the source."""
    return _settings(kind)


@cache
def _settings(kind: Any) -> dict[str, Setting]:
    return dict(_walk(kind, ""))


def setting_of(kind: type, key: str) -> Setting:
    """Return the setting that a key of `flatten_fully` names, or whose entry it names."""
    return next(known for known in settings_of(kind).values() if key == known.key or key.startswith(known.key + "."))


def sections_of(kind: type) -> tuple[str, ...]:
    """Return the dotted keys that hold other settings."""
    hints = get_type_hints(kind)
    found: list[str] = []
    for name, inner in hints.items():
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            found += [name, *(f"{name}.{below}" for below in sections_of(inner))]
    return tuple(found)


def _walk(kind: type, prefix: str) -> list[tuple[str, Setting]]:
    found: list[tuple[str, Setting]] = []
    docs = _docs_under_fields(kind)
    for name, annotation in get_type_hints(kind, include_extras=True).items():
        key = prefix + name
        if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
            found += _walk(annotation, key + ".")
        else:
            found.append((key, Setting(key=key, annotation=annotation, doc=docs.get(name, ""))))
    return found


def _docs_under_fields(kind: type) -> dict[str, str]:
    """Return the string literal that follows each field in the source of the class, by field name; empty where there is no
    source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except OSError:
        return {}
    (class_node,) = tree.body
    assert isinstance(class_node, ast.ClassDef)
    docs = {}
    for statement, after in zip(class_node.body, class_node.body[1:], strict=False):
        match statement, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = " ".join(text.split())
    return docs


def flatten(value: Any) -> dict[str, Any]:
    """Return the plain value of every setting by its dotted key. Tables with free names stay whole."""
    return {key: canonical.to_plain(attrgetter(key)(value)) for key in settings_of(type(value))}


def flatten_fully(value: Any) -> dict[str, Any]:
    """Return the same as `flatten`, with one key per entry of a table: `model.architecture.hidden_size`."""
    settings = settings_of(type(value))
    flat = {}
    for key, found in flatten(value).items():
        if settings[key].is_table and found:
            flat.update({f"{key}.{name}": entry for name, entry in found.items()})
        else:
            flat[key] = found
    return flat


def differences(here: Any, there: Any) -> list[str]:
    """Return the differences of two configurations of one class, setting by setting: `work.inner_steps: 32 here, 64 there`."""
    ours, theirs = flatten_fully(here), flatten_fully(there)
    keys = [*ours, *(key for key in theirs if key not in ours)]
    return [
        f"{key}: {_shown(ours, key)} here, {_shown(theirs, key)} there"
        for key in keys
        # compared as bytes, because 1, 1.0 and True are equal in Python but not in the digest
        if key not in ours or key not in theirs or canonical.encode(ours[key]) != canonical.encode(theirs[key])
    ]


def _shown(flat: dict[str, Any], key: str) -> str:
    return shown(flat[key]) if key in flat else "nothing"


def shown(value: Any) -> str:
    """Return a value as one line of text."""
    return json.dumps(value, default=str)


def accepted(annotation: Any) -> str:
    """Describe in words what a setting of this type accepts."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        base, constraints = arguments[0], arguments[1:]
        if get_origin(base) is tuple:  # behind the words for its entries its limits would read as theirs
            return f"{', '.join(['a list', *_limits(constraints, 'entry', 'entries')])}, each {accepted(get_args(base)[0])}"
        return ", ".join([accepted(base), *_limits(constraints, "character", "characters")])
    if origin is Literal:
        return "one of " + ", ".join(arguments)
    if origin in (Union, types.UnionType):
        words = [accepted(argument) for argument in arguments]
        return (", or " if any("," in word for word in words[:-1]) else " or ").join(words)
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"a list, each {accepted(arguments[0])}"
    if origin is tuple:
        return f"a list of {len(arguments)}: " + "; ".join(accepted(argument) for argument in arguments)
    if origin is dict:
        return "a section, each value " + accepted(arguments[1])
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}[annotation]


def _limits(constraints: tuple[Any, ...], noun: str, nouns: str) -> list[str]:
    """Describe constraints in words; the nouns are those of what a length counts."""
    words = []
    for constraint in constraints:
        match constraint:
            case Ge(ge=limit):
                words.append(f"at least {limit}")
            case Gt(gt=limit):
                words.append(f"above {limit}")
            case Le(le=limit):
                words.append(f"at most {limit}")
            case Lt(lt=limit):
                words.append(f"below {limit}")
            case MinLen(min_length=limit):
                words.append(f"at least {plural(limit, noun, nouns)}")
            case MaxLen(max_length=limit):
                words.append(f"at most {plural(limit, noun, nouns)}")
            case Predicate(func=accepts):
                words.append(accepts.__doc__ or "")  # their docstrings are written for this
            case _:
                raise AssertionError(f"no words for the constraint {constraint!r}")
    return words
