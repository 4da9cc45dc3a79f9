"""A network daemon with a real key, and an averager on it, so that the measurements include the cost of signatures."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.nodes import LOOPBACK

if TYPE_CHECKING:
    from hivemind.p2p import P2P

    from adloco_p2p.swarm.allreduce.averager import Averager
    from adloco_p2p.swarm.transport.traffic import Meter


class BenchmarkIdentity:
    """A new identity, as a file for the network daemon and as arguments for an averager."""

    def __init__(self) -> None:
        from adloco_p2p.swarm.p2p.identity import Identity, is_signed, signature

        self._folder = tempfile.TemporaryDirectory(prefix="adloco-benchmark-")
        self.path = str(Path(self._folder.name) / "identity.key")
        identity = Identity.load_or_create(Path(self.path))

        def on_evidence(evidence: object) -> None:
            raise AssertionError(f"peers of a benchmark are honest: {evidence}")

        self.signing: dict[str, Any] = {
            "sign": lambda payload: signature(identity, payload),
            "verify": is_signed,
            "on_evidence": on_evidence,
        }


async def begin_averager(
    identity: BenchmarkIdentity, *, listen: Sequence[str] = (LOOPBACK,), meter: "Meter | None" = None, **settings: Any
) -> tuple["P2P", "Averager"]:
    """Start both. `settings`: those of the averager."""
    from hivemind.p2p import P2P

    from adloco_p2p.swarm.allreduce.averager import Averager
    from adloco_p2p.swarm.transport.endpoint import Endpoint
    from adloco_p2p.swarm.transport.traffic import Meter

    p2p = await P2P.create(host_maddrs=listen, identity_path=identity.path)
    averager = Averager(Endpoint(p2p, meter=meter or Meter()), **settings, **identity.signing)
    await averager.start()
    return p2p, averager
