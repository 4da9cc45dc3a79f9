"""adloco-peer: a peer-to-peer node for leaderless, low-communication training of language models (AdLoCo, arXiv 2508.18182).

For programs: `Run` reads a run, `frame` makes a data frame of its rows. See docs/library.md. The names
are loaded when they are first used, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adloco_p2p.library.reading import Run, frame

__all__ = ["Run", "frame"]

_HOMES = {"Run": "reading", "frame": "reading"}
"""The module of `adloco_p2p.library` that each name comes from."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.library.{_HOMES[name]}"), name)
