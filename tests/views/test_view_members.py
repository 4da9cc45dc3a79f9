"""The rows of a swarm's peers."""

from adloco_p2p.views import progress, table_rows
from adloco_p2p.views.members import member_row
from adloco_p2p.views.status import Status
from tests.views.synthetic import THIS, events, replay


def test_a_peer_that_starts_has_the_phase_of_its_process() -> None:
    row = member_row("peer-1", Status(), outside="importing libraries")
    assert (row.name, row.phase, row.num_steps, row.loss) == ("peer-1", "importing libraries", 0, None)


def test_a_peer_that_trains_has_the_sums_of_its_instances() -> None:
    made = list(events())
    middle = next(index for index, event in enumerate(made) if event["event"] == "progress" and event["round"] == 5)
    status = replay(made[: middle + 1])
    own = [row for row in table_rows.instance_rows(status) if row.phase != "by others"]
    row = member_row("peer-0", status)
    assert (row.peer, row.phase) == (THIS, progress.phase(status))
    assert row.step == sum(instance.step for instance in own) > 0
    assert row.num_steps == sum(instance.num_steps for instance in own)
    assert row.loss == min(instance.loss for instance in own if instance.loss is not None)
