"""When an attempt at an average ends without its slowest contributors. Pure.

A host whose link fails it in the middle of an average would hold all others up until the timeout. Once a quorum of the weight
is there, whose hosts are a majority of those that the plan counts on, these wait only for hosts whose uploads will be over
soon, at the rate at which they come. A host that has not begun is not judged, for it may still compute; nor is one whose link
the plan does not know yet: to be measured it has to be waited for, and plans spare links that are known to be slow
(`core/planning/link_periods.py`). Nobody is left out where the attempt has to wait for such a host all the same.

A host that still trains because it began late, as after a restart, is not judged by the others: it declines the round itself
once a quorum waits for it, if it would hold them up for longer than its part of the round is worth to them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.scalars import PeerId

LEAST_TOLERANCE_SECONDS = 10.0
"""So long an upload may take beyond the quorum in any round: busy machines alone take several seconds now and then."""
PARTIAL_SECONDS = 4.0
"""A host that began late ends its inner steps early where the others would wait for longer: a retry costs them some seconds."""
LEAST_MEASURED = 2
"""An uplink counts once it was measured so often: the first average of a process is slow."""
LEAST_MEASURED_SECONDS = 2.0
"""An upload is measured for so long at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """Of one attempt."""

    fraction: float
    """Of the weight of its members."""
    num_planned: int
    """Contributors that the plan counts on, those that the attempt is without among them."""
    tolerance_seconds: float
    """So long those that are there wait for a host, by its rate."""
    unmeasured: frozenset[PeerId] = frozenset()
    """Contributors whose links are not in the plan yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The bytes that one reducer has from one contributor in the attempt."""

    weight: int
    is_there: bool
    """It has sent all that it may send by now."""
    num_bytes: int = 0
    rest_bytes: int = 0
    """Still to come."""
    seconds: float = 0.0
    """Since its upload began."""
    is_known: bool = True
    """Its link is in the plan."""

    @property
    def rest_seconds(self) -> float:
        """At its rate; infinite where nothing has come."""
        return self.rest_bytes * self.seconds / self.num_bytes if self.num_bytes else float("inf")


def quorum_of(rules: WorkRules, plan: RoundPlan, contributors: Collection[PeerId]) -> Quorum | None:
    """`contributors`: those that the plan counts on. None where all are waited for."""
    if rules.quorum is None:
        return None
    tolerance = max(LEAST_TOLERANCE_SECONDS, rules.straggler_tolerance * plan.expected_seconds)
    measured = {entry.peer for entry in plan.roster if len(entry.uplinks) >= LEAST_MEASURED}
    return Quorum(
        fraction=rules.quorum,
        num_planned=len(contributors),
        tolerance_seconds=tolerance,
        unmeasured=frozenset(contributors) - measured,
    )


def is_there(quorum: Quorum, uploads: Sequence[Upload]) -> bool:
    """`uploads`: of all members that contribute, the reducer itself among them."""
    there = [upload.weight for upload in uploads if upload.is_there]
    has_weight = sum(there) >= quorum.fraction * sum(upload.weight for upload in uploads)
    return has_weight and is_majority(len(there), quorum.num_planned)


def stragglers(quorum: Quorum, uploads: Sequence[Upload], *, waiting: float = 1.0) -> tuple[int, ...]:
    """Places of the uploads without which the attempt ends; none where it goes on. `waiting`: the part of the time in which
    those that are there wait for the others; less than one where they have more to send and proceed as the slowest does."""
    if not is_there(quorum, uploads):
        return ()
    late = [place for place, upload in enumerate(uploads) if not upload.is_there]
    return tuple(late) if all(_is_straggler(quorum, uploads[place], waiting) for place in late) else ()


def _is_straggler(quorum: Quorum, upload: Upload, waiting: float) -> bool:
    is_measured = upload.is_known and upload.seconds >= LEAST_MEASURED_SECONDS and upload.num_bytes > 0
    return is_measured and waiting * upload.rest_seconds > quorum.tolerance_seconds


def lateness_seconds(
    plan: RoundPlan, me: PeerId, waiting: Collection[PeerId], *, num_planned: int, elapsed_seconds: float
) -> float:
    """How much longer the hosts in `waiting` have to wait for this one's inner steps than the plan foresaw, by its measured
    speeds. Half of the `num_planned` contributors wait and need `common` seconds or more: one of them is honest where fewer
    than half lie about their speed, and it is done, so the round has gone on for so long. This host has been at it for less
    by the result, or by less where it needs less than `common` itself. 0 where its speed is unknown, or the speeds of too
    many."""
    speeds = {entry.peer: entry.speed for entry in plan.roster}
    needed = {peer: samples / speeds[peer] for peer, samples in _planned_samples(plan).items() if speeds.get(peer, 0.0) > 0}
    half = (num_planned + 1) // 2
    common = sorted((needed.get(peer, 0.0) for peer in waiting), reverse=True)[half - 1 : half]
    return max(0.0, min(needed.get(me, 0.0), *common) - elapsed_seconds) if common else 0.0


def _planned_samples(plan: RoundPlan) -> dict[PeerId, int]:
    """Of all instances together, as speeds are measured."""
    samples: dict[PeerId, int] = {}
    for item in plan.instances:
        for share in item.hosts:
            samples[share.peer] = samples.get(share.peer, 0) + share.samples
    return samples


def worth_seconds(rules: WorkRules, plan: RoundPlan, *, weight: int, others: int) -> float:
    """So long hosts of the weight `others` wait for one of this weight: in the time in which they do its part of the round."""
    return max(LEAST_TOLERANCE_SECONDS, rules.straggler_tolerance * plan.expected_seconds * weight / others)


def words_of(upload: Upload, quorum: Quorum, *, round: int) -> str:
    """Why the attempt ends without it."""
    whole = upload.num_bytes + upload.rest_bytes
    return (
        f"left out of round {round}: {upload.num_bytes / 1e6:.3g} of {whole / 1e6:.3g} MB here after {upload.seconds:.3g} s; "
        f"the others are here and wait {quorum.tolerance_seconds:.3g} s at most"
    )


def words_of_decline(late_seconds: float, worth: float, *, round: int) -> str:
    """Why a host declines the round."""
    return f"declined round {round}: the others are done and would wait {late_seconds:.3g} s; its part is worth {worth:.3g} s"
