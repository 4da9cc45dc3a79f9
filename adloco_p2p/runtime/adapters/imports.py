"""Imports that take seconds. This module itself imports nothing heavy."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """For imports. Those of torch and transformers make half a million objects that stay: looking for garbage among them takes
    a quarter of the imports' time, and every full collection afterwards would look at all of them again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_training() -> None:
    """Import what builds and trains a model: `transformers` and the parts of torch that it needs, half of a node's imports. A
    thread does it while the network is asked for the run, and nothing else may import a part of it meanwhile: two threads in
    modules that import each other see unfinished ones. To import this same module waits for the end. What fails here fails
    again, and is reported, where it is needed."""
    with collecting_nothing(), suppress(Exception):
        import adloco_p2p.training.hosting  # noqa: F401
