"""Every text, list and number in a message of another peer has a limit, however deep it lies, and so has every record."""

import dataclasses
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MaxLen

from adloco_p2p.core.model.messages import MESSAGE_KINDS, RECORD_KINDS


def unlimited(kind: Any, where: str, seen: set[Any]) -> Iterator[str]:
    """Places below `where` that may be arbitrarily long."""
    limits: list[Any] = []
    while isinstance(kind, NewType) or get_origin(kind) is Annotated:
        if isinstance(kind, NewType):
            kind = kind.__supertype__
        else:
            kind, *more = get_args(kind)
            limits += more
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if kind not in seen:
            seen.add(kind)
            for name, field in get_type_hints(kind, include_extras=True).items():
                yield from unlimited(field, f"{kind.__name__}.{name}", seen)
    elif origin in (Union, types.UnionType):
        for each in inner:
            yield from unlimited(each, where, seen)
    elif origin is tuple:
        if inner[-1] is Ellipsis and not any(isinstance(limit, MaxLen) for limit in limits):
            yield f"{where}: a list"
        for each in inner:
            yield from unlimited(each, where, seen) if each is not Ellipsis else ()
    elif kind is str and not any(isinstance(limit, MaxLen) for limit in limits):
        yield f"{where}: a text"
    elif kind is int:
        if not {Le, Lt} & set(map(type, limits)) or not {Ge, Gt} & set(map(type, limits)):
            yield f"{where}: a whole number"
    else:
        assert kind in (str, float, bool, type(None)) or origin is Literal, f"{where}: {kind}"


def test_every_text_list_and_whole_number_has_a_limit() -> None:
    found = [place for name, kind in {**MESSAGE_KINDS, **RECORD_KINDS}.items() for place in unlimited(kind, name, set())]
    assert sorted(set(found)) == []
