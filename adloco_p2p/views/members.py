"""The peers of a swarm on one machine, one row each. Pure."""

from dataclasses import dataclass

from adloco_p2p.views import progress, table_rows, traffic
from adloco_p2p.views.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    name: str
    """The name of its directory in that of the swarm."""
    is_ready: bool
    """Whether it has all that it needs to train."""
    peer: str
    phase: str
    step: int
    """Inner steps of the round, over all instances of the peer; 0 of 0 where it has none."""
    num_steps: int
    loss: float | None
    tokens_per_second: float | None
    up_bytes_per_second: float | None
    down_bytes_per_second: float | None


def member_row(name: str, status: Status, *, is_ready: bool = True, outside: str = "") -> MemberRow:
    """Return the row. `outside`: what is known of the process while its node cannot be asked, such as the step of its start."""
    rows = [row for row in table_rows.instance_rows(status) if row.phase != "by others"] if not outside else []
    losses = [row.loss for row in rows if row.loss is not None]
    speeds = [row.tokens_per_second for row in rows if row.tokens_per_second is not None]
    bandwidth = traffic.bandwidth(status)
    return MemberRow(
        name=name,
        is_ready=is_ready,
        peer=status.peer,
        phase=outside or progress.phase(status),
        step=sum(min(row.step, row.num_steps) for row in rows),
        num_steps=sum(row.num_steps for row in rows),
        loss=min(losses, default=None),
        tokens_per_second=sum(speeds) if speeds else None,
        up_bytes_per_second=bandwidth.up_bytes_per_second,
        down_bytes_per_second=bandwidth.down_bytes_per_second,
    )
