"""What can go wrong inside a process, arranged from within it: it dies at an exact place, or its disk fills up."""

import importlib
import os
import resource
import signal
from typing import Any


def die_at(place: str, call: str, when: str) -> None:
    """`kill -9` oneself `before` or `after` the given call (counted from 1) of the function `module:Class.name`."""
    module, _, path = place.partition(":")
    owner = importlib.import_module(module)
    *parts, name = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    original, left = getattr(owner, name), int(call)

    def replacement(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, replacement)


def limit_files(size_bytes: str) -> None:
    """No file grows beyond this: to the writer, much like a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size_bytes), resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
