"""Measures the memory that an object of the core keeps alive: itself and what it refers to, shared values in full, without
code."""

import gc
import sys
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, partial, Enum)
"""Kinds beyond which nothing is followed: a bound method leads to its whole surroundings."""


def reachable_bytes(*roots: object) -> int:
    """Return the bytes of all of them together, each object once."""
    seen: set[int] = set()
    pending, total = list(roots), 0
    while pending:
        item = pending.pop()
        if id(item) in seen or isinstance(item, CODE):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        pending += gc.get_referents(item)
    return total
