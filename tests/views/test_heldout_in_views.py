"""Of an instance's hosts one evaluates after a round: every peer's views show its figure, not only its own turns."""

from dataclasses import replace

from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.model.telemetry import HeldOut, Log, Round, Stamped
from adloco_p2p.runtime.adapters.run_history import with_newest_rounds
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import apply, fold
from tests.views.synthetic import Made, events, stamped


def event_of(made: Made) -> Log:
    return stamped(made).event


OWN = next(each for each in map(event_of, events()) if isinstance(each, Round) and each.heldout_loss is not None)
WITHOUT = replace(OWN, heldout_loss=None, heldout_losses=())
KEY = OWN.round, OWN.instance


def claim(loss: float) -> HeldOut:
    return HeldOut(round=OWN.round, instance=InstanceId(OWN.instance), peer=PeerId("QmOther"), heldout_loss=loss)


def at_once(event: Log) -> Stamped:
    return Stamped(time=0.0, event=event)


def test_a_round_gets_what_another_host_measured_before_or_after_its_end_here() -> None:
    for order in ((WITHOUT, claim(2.5)), (claim(2.5), WITHOUT)):
        status = Status()
        for event in order:
            status = fold(event, status)
        assert status.results[KEY].heldout_loss == 2.5


def test_what_this_peer_measured_stands() -> None:
    status = fold(claim(0.1), fold(OWN, fold(claim(0.2), Status())))
    assert status.results[KEY].heldout_loss == OWN.heldout_loss


def test_the_peers_of_a_run_draw_the_same_points() -> None:
    """One has evaluated the round, the other has its report; the plan was made without it."""
    from_ledger = apply(Status(), at_once(WITHOUT))
    own = with_newest_rounds(from_ledger, [at_once(OWN)])
    others = with_newest_rounds(from_ledger, [at_once(WITHOUT), at_once(claim(OWN.heldout_loss or 0.0))])
    assert own.results[KEY].heldout_loss == others.results[KEY].heldout_loss == OWN.heldout_loss
