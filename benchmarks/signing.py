"""Real keys for the peers of a benchmark: what signatures cost is part of what is measured."""

import tempfile
from pathlib import Path
from typing import Any


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
