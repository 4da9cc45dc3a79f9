"""Memoization by identity for immutable objects: to hash a plan of a thousand peers, as a dict would, takes longer than most of
the computations."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")


class PerObject(Generic[Result]):
    """One result per object, forgotten with the object. The objects must allow weak references."""

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
    """Decorate a function of one immutable object so that it is computed once per object. Its result must not be None."""
    results = PerObject[Result]()

    @wraps(function)
    def remembered(value: Value) -> Result:
        known = results.get(value)
        return results.put(value, function(value)) if known is None else known

    return remembered
