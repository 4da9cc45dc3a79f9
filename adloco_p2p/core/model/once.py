"""Results about single objects that nothing can change, found by identity: to hash a plan of a thousand peers, as a dict would,
takes longer than to compute most of them."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")


class PerObject(Generic[Result]):
    """A result for each of some objects, forgotten with it. The objects must allow weak references."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Result]] = {}

    def get(self, value: Any) -> Result | None:
        found = self._known.get(id(value))
        return found[1] if found is not None and found[0]() is value else None

    def put(self, value: Any, result: Result) -> Result:
        known, key = self._known, id(value)
        known[key] = weakref.ref(value, lambda _: known.pop(key, None)), result
        return result


def once(function: Callable[[Value], Result]) -> Callable[[Value], Result]:
    """The function, computed once per object, however often it is asked. Its result is never None."""
    results = PerObject[Result]()

    @wraps(function)
    def remembered(value: Value) -> Result:
        known = results.get(value)
        return results.put(value, function(value)) if known is None else known

    return remembered
