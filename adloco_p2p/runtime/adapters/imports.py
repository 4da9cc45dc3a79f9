"""Imports that take seconds. This module itself imports nothing heavy."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class _Collector:
    """The state of the garbage collector before the first of the concurrent imports."""

    lock = threading.Lock()
    num_users = 0
    was_enabled = False


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """Turn garbage collection off during imports, and freeze all objects afterwards.

    The imports of torch and transformers make half a million objects that stay. Looking for garbage among them takes a quarter
    of the imports' time, and every full collection afterwards would look at all of them again. Threads may overlap here: the
    last one to leave restores the collector. The library must not use it, because frozen objects are never collected, and these
    would include a program's own garbage.
    """
    with _Collector.lock:
        if _Collector.num_users == 0:
            _Collector.was_enabled = gc.isenabled()
            gc.disable()
        _Collector.num_users += 1
    try:
        yield
    finally:
        with _Collector.lock:
            _Collector.num_users -= 1
            if _Collector.num_users == 0:
                gc.freeze()
                if _Collector.was_enabled:
                    gc.enable()


def import_training() -> None:
    """Import the modules that build and train a model: `transformers` and the parts of torch that it needs.

    These are half of a node's imports. A thread runs this while the node looks for the run, and nothing else may import a part
    of them meanwhile, because two threads in modules that import each other see unfinished ones. Importing the same module
    waits for its end. An import that fails here fails again, and is reported, where it is needed.
    """
    with collecting_nothing(), suppress(Exception):
        import adloco_p2p.training.hosting  # noqa: F401
