"""The words of a peer that the run does not let in."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.errors import ConfigError
from adloco_p2p.runtime.adapters import admission


@pytest.mark.parametrize(
    ("bans", "said", "remedy"),
    [
        ((), "for a reason; ", "a link that `adloco-peer invite` prints"),
        (("me",), "for a reason: sends noise; ", "`adloco-peer unban`"),
    ],
)
def test_a_refused_peer_is_pointed_at_what_lets_it_in(
    bans: tuple[str, ...], said: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new link lets in no banned peer, which reads the reason of its ban."""
    monkeypatch.setattr(admission, "PERIOD_SECONDS", 0.0)
    monkeypatch.setattr(admission, "REFUSED_SECONDS", 0.0)
    ban = SimpleNamespace(statement=SimpleNamespace(reason="sends noise"))
    ledger = SimpleNamespace(admissions=SimpleNamespace(bans=lambda: dict.fromkeys(bans, ban)))
    agreement = SimpleNamespace(me="me", ledger=ledger, refusal=lambda: "for a reason")
    with pytest.raises(ConfigError, match=said) as caught:
        asyncio.run(admission.watch_admission(cast(GossipAgreement, agreement)))
    assert remedy in str(caught.value)
