"""When a run moves on to the next protocol. Pure functions of the plan before and the new roster.

```
plan(r)      all electors can follow the next protocol, by their reports     upgrade_round = r + NOTICE_ROUNDS
plan(r+1)    so they can still; a plan in which one cannot withdraws it      upgrade_round unchanged
plan(r+4)    protocol + 1: round r+4, its reports and plan(r+5) are of the next protocol
```

The plan with the new number is made by the rule of the old protocol, so peers that cannot follow the new one can verify it,
too, and know for sure why they go no further. A run never goes back, and skips no protocol.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adloco_p2p.core.model.electorate import electing
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.words import plural

NOTICE_ROUNDS = 4
"""Rounds from the first plan in which all electors can follow the next protocol to its first round, so that the others learn of
it in time."""
MAX_NAMED = 3
"""Most electors that a plan's reason names as holding the upgrade up."""
ROUNDS_LEFT = 8
"""Least number of rounds to go for an upgrade: a peer that is not upgraded by then would end without the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """The protocol of a plan."""

    number: int
    upgrade_round: int | None
    """The first round of the next protocol, if one is agreed."""
    reason: str
    """The state of the upgrade in words; empty if no elector can follow the next protocol, or the run ends too soon."""


def protocol_after(previous: RoundPlan, roster: Sequence[RosterEntry], *, end: int) -> tuple[Protocol, tuple[RosterEntry, ...]]:
    """Return the protocol of the plan after `previous`, and this roster, in which members that cannot follow it leave, as if
    they had asked to. `end` is the round of the last plan, as far as is known."""
    protocol = _next_protocol(previous, roster, end=end)
    return protocol, tuple(_leaving_unless_able(entry, protocol.number) for entry in roster)


def _next_protocol(previous: RoundPlan, roster: Sequence[RosterEntry], *, end: int) -> Protocol:
    round, following = previous.round + 1, previous.protocol + 1
    electors = electing(roster, round)
    unable = [entry.peer for entry in electors if entry.capacity.newest_protocol < following]
    able = len(electors) - len(unable)
    upgrade_round = round + NOTICE_ROUNDS if previous.upgrade_round is None else previous.upgrade_round
    if not able or upgrade_round > end - ROUNDS_LEFT:
        return Protocol(number=previous.protocol, upgrade_round=None, reason="")
    if unable:
        named = f"{', '.join(unable[:MAX_NAMED])}{' and others' if len(unable) > MAX_NAMED else ''}"
        reason = f"{able} of {plural(len(electors), 'elector')} can follow protocol {following}, not {named}"
        return Protocol(number=previous.protocol, upgrade_round=None, reason=reason)
    if round < upgrade_round:
        reason = f"protocol {following} from round {upgrade_round} on"
        return Protocol(number=previous.protocol, upgrade_round=upgrade_round, reason=reason)
    return Protocol(number=following, upgrade_round=None, reason=f"protocol {following} from this round on")


def _leaving_unless_able(entry: RosterEntry, protocol: int) -> RosterEntry:
    if entry.capacity.newest_protocol >= protocol:
        return entry
    return replace(entry, capacity=replace(entry.capacity, is_leaving=True))
