"""adloco-peer: a peer-to-peer node for leaderless, low-communication training of language models (AdLoCo, arXiv 2508.18182).

For programs: `Swarm` makes a training loop a peer, `peer_id` returns the id of the peer of a directory, `Run` reads a run,
`frame` makes a data frame of its rows, and errors are `AdlocoError`s. See docs/library.md. The names are loaded when they are
first used, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adloco_p2p.errors import AdlocoError
    from adloco_p2p.library.reading import Run, frame
    from adloco_p2p.library.swarm import Swarm, peer_id

__all__ = ["AdlocoError", "Run", "Swarm", "frame", "peer_id"]

_HOMES = {
    "AdlocoError": "errors",
    "Run": "library.reading",
    "frame": "library.reading",
    "Swarm": "library.swarm",
    "peer_id": "library.swarm",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Include names that were not used yet, for completion in a shell."""
    return sorted({*globals(), *__all__})
