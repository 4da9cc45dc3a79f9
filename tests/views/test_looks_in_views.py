"""What looks at a peer's work found, in all views."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.model.telemetry import LookedAt
from adloco_p2p.views import node_status, plain, table_rows
from adloco_p2p.views.metrics import measures
from adloco_p2p.views.status import Status
from tests.views.golden import screen
from tests.views.synthetic import THIS, events, replay

HOSTS = (PeerId(THIS), *(PeerId(f"host-{number}") for number in range(4)))
IDLE = HOSTS[-1]


def looked_at(**scores: tuple[int, ...]) -> Status:
    """One instance whose hosts have these scores, in tenths; by default those of honest hosts."""
    status = replay(events(6))
    plan = status.current_plan
    assert plan is not None
    (item, *_) = plan.instances
    share = replace(item.hosts[0], place_before=None)
    hosts: tuple[HostShare, ...] = tuple(
        replace(share, peer=peer, scores=scores.get(peer.replace("-", "_"), (50, 60, 52, 58))) for peer in HOSTS
    )
    roster = tuple(replace(plan.roster[0], peer=peer, is_leaving=False, probation=0) for peer in HOSTS)
    shown = replace(plan, roster=roster, instances=(replace(item, hosts=hosts),))
    return replace(status, plans=tuple(shown if old is plan else old for old in status.plans))


def roles(status: Status) -> dict[str, str]:
    return {row.peer: row.role for row in table_rows.peer_rows(status) if row.peer in HOSTS}


def test_each_host_reads_what_the_last_looks_at_its_work_found() -> None:
    found = roles(looked_at(host_3=(0, 5, -4, 3)))
    assert found[HOSTS[1]] == "work checked 4 times: trained on its rows (score 5.5)"
    idle = "work checked 4 times: no sign of training on its rows, so fewer rows (score 0.1)"
    assert found[IDLE] == idle and len(idle) <= 80
    assert roles(looked_at(host_3=()))[IDLE] == "", "nobody has looked"
    assert "work checked 4 times: trained on its rows (score 5.5)" in screen(looked_at(), width=80, height=40)
    lines = node_status.lines(node_status.summary(looked_at(host_3=(0, 5, -4, 3))))
    assert [line for line in lines if idle in line]


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ((0,), "work checked once: too few checks to tell (score 0.0)"),
        ((0, 4, 2), "work checked 3 times: too few checks to tell (score 0.2)"),
        ((40, 44), "work checked twice: trained on its rows (score 4.2)"),
        ((14, 15, 13, 15), "work checked 4 times: not clear whether it trained on its rows (score 1.4)"),
    ],
)
def test_a_host_that_is_not_idle_has_not_shown_training_for_that(scores: tuple[int, ...], words: str) -> None:
    assert roles(looked_at(**{peer.replace("-", "_"): scores for peer in HOSTS}))[IDLE] == words


def test_the_mean_score_of_each_host_is_a_metric() -> None:
    (measure,) = [one for one in measures(looked_at(host_3=())) if one.name == "adloco_look_score"]
    assert measure.samples == {(peer,): 5.5 for peer in HOSTS[:-1]}


def test_a_look_of_this_peer_is_a_line() -> None:
    look = LookedAt(round=3, instance=InstanceId(0), peer=IDLE, score=5.27, reason="")
    assert str(plain.line(look, replay(events(6)))).endswith(f"at the work of {IDLE}  score 5.3")
    late = replace(look, score=None, reason="the device had no time for it")
    assert "the device had no time for it" in str(plain.line(late, replay(events(6))))
