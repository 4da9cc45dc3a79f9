"""The download of a run's model and text before the node is built: what it costs of the day's budget."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import DataConfig, ModelConfig, RunConfig
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import StateTransferFailed
from adloco_p2p.runtime.adapters import shared_inputs
from adloco_p2p.runtime.adapters.daily_schedule import DAY_BOOK
from adloco_p2p.runtime.adapters.shared_inputs import get_shared_inputs
from adloco_p2p.swarm.transport.endpoint import Endpoint

RUN = RunConfig(
    model=ModelConfig(pretrained="/author/base", share=True, files="a" * 64),
    data=DataConfig(source="text", path="/author/text", share=True, files="b" * 64),
)


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_download_counts_towards_the_budget_of_the_day(
    is_complete: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def known(*_: object, **__: object) -> Any:
        return SimpleNamespace(connected=[PeerId("donor")])

    async def nobody() -> list[PeerId]:
        return []

    async def fetch(endpoint: Endpoint, *_: object, **__: object) -> None:
        endpoint.meter.note_received(PeerId("donor"), 600)
        endpoint.meter.sent_bytes += 7
        if not is_complete:
            raise StateTransferFailed("no donor is left")

    monkeypatch.setattr(shared_inputs, "connect_to_run", known)
    monkeypatch.setattr(shared_inputs, "fetch_files", fetch)
    swarm_node: Any = SimpleNamespace(p2p=None, peers_connected=nobody)
    discovery: Any = None
    embedding: Any = SimpleNamespace(
        config=PeerConfig(daily_budget_bytes=10_000),
        workdir=SimpleNamespace(path=tmp_path, enter=lambda _: None),
        say=lambda _: None,
    )
    with suppress(StateTransferFailed):
        asyncio.run(get_shared_inputs(swarm_node, discovery, RUN, embedding, digest=Digest("c" * 64)))
    kept = json.loads((tmp_path / DAY_BOOK).read_bytes())
    assert kept["bytes"] == (2 * 607 if is_complete else 607), "the node's own book begins with these"
