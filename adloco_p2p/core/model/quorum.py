"""When an attempt at an average ends without its slowest contributors. Pure.

A host whose link fails in the middle of an average would hold all others up until the timeout. A quorum is enough of the
weight, from a majority of the hosts that the plan counts on. Once it is there, these hosts wait only for uploads that will be
over soon, at their present rate. A host that has not begun is not judged, because it may still compute; nor is one whose link
the plan does not know yet, because to be measured it has to be waited for, and plans spare links that are known to be slow
(`core/planning/link_periods.py`). If the attempt has to wait for such a host anyway, no host is left out.

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
"""Least tolerance of any round for an upload: busy machines alone take several seconds now and then."""
PARTIAL_SECONDS = 4.0
"""A host that began late ends its inner steps early if the others would wait for longer: a retry costs them some seconds."""
DOUBTFUL_PART = 0.5
"""The part of its worth for which others wait for a host that they left out of the last average that it gave something to."""
LEAST_MEASURED = 2
"""Measurements after which an uplink counts: the first average of a process is slow."""
LEAST_MEASURED_SECONDS = 2.0
"""Least time over which an upload is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """The conditions under which one attempt ends without its stragglers."""

    fraction: float
    """Part of the members' weight that has to be there."""
    num_planned: int
    """Number of contributors that the plan counts on, including those that the attempt is without."""
    tolerance_seconds: float
    """Longest that the hosts that are there wait for another host, by its rate."""
    unmeasured: frozenset[PeerId] = frozenset()
    """Contributors whose links are not in the plan yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The progress of one contributor's upload to one reducer in the attempt."""

    weight: int
    is_there: bool
    """The contributor has sent all that it may send by now."""
    num_bytes: int = 0
    rest_bytes: int = 0
    """Bytes still to come."""
    seconds: float = 0.0
    """Time since the upload began."""
    is_known: bool = True
    """The contributor's link is in the plan."""

    @property
    def rest_seconds(self) -> float:
        """Time that the rest takes at the present rate; infinite if nothing has come."""
        return self.rest_bytes * self.seconds / self.num_bytes if self.num_bytes else float("inf")


def quorum_of(
    rules: WorkRules,
    plan: RoundPlan,
    contributors: Collection[PeerId],
    *,
    average_seconds: float,
    known: Collection[PeerId] = (),
) -> Quorum | None:
    """Return the quorum of an attempt, or None if all are waited for. `contributors` are those that the plan counts on, `known`
    those at which attempts failed here lately: with a new seat plans forget what they knew of a link. `average_seconds` is the
    time of an average over the median link: where that is long, an upload that began late is no sign of a link that failed."""
    if rules.quorum is None:
        return None
    tolerance = max(LEAST_TOLERANCE_SECONDS, average_seconds, rules.straggler_tolerance * plan.expected_seconds)
    measured = {entry.peer for entry in plan.roster if len(entry.uplinks) >= LEAST_MEASURED}
    return Quorum(
        fraction=rules.quorum,
        num_planned=len(contributors),
        tolerance_seconds=tolerance,
        unmeasured=frozenset(contributors) - measured - frozenset(known),
    )


def is_there(quorum: Quorum, uploads: Sequence[Upload]) -> bool:
    """Return whether the quorum is there. `uploads` are those of all members that contribute, including the reducer itself."""
    there = [upload.weight for upload in uploads if upload.is_there]
    has_weight = sum(there) >= quorum.fraction * sum(upload.weight for upload in uploads)
    return has_weight and is_majority(len(there), quorum.num_planned)


def stragglers(quorum: Quorum, uploads: Sequence[Upload], *, waiting: float = 1.0) -> tuple[int, ...]:
    """Return the places of the uploads without which the attempt ends; empty if it goes on. `waiting` is the fraction of the
    time in which the hosts that are there wait for the others; less than one if they have more to send and proceed as fast as
    the slowest."""
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
    """Return how much longer than planned the hosts in `waiting` have to wait for this one's inner steps, by measured speeds.

    Half of the `num_planned` contributors that decide wait, and by the plan need `common` seconds or more. If fewer than half
    lie about their speed, one of these hosts is honest, and it is done, so the round has lasted that long. This host has
    worked for less by the result, or by less than that if it needs less than `common` itself. 0 if its speed, or the speeds of
    too many others, are unknown.
    """
    speeds = {entry.peer: entry.speed for entry in plan.roster}
    needed = {peer: samples / speeds[peer] for peer, samples in _planned_samples(plan).items() if speeds.get(peer, 0.0) > 0}
    half = (num_planned + 1) // 2
    common = sorted((needed.get(peer, 0.0) for peer in waiting), reverse=True)[half - 1 : half]
    return max(0.0, min(needed.get(me, 0.0), *common) - elapsed_seconds) if common else 0.0


def _planned_samples(plan: RoundPlan) -> dict[PeerId, int]:
    """Return the samples of each host over all its instances, because speeds are measured over all of them."""
    samples: dict[PeerId, int] = {}
    for item in plan.instances:
        for share in item.hosts:
            samples[share.peer] = samples.get(share.peer, 0) + share.samples
    return samples


def worth_seconds(
    rules: WorkRules, plan: RoundPlan, *, weight: int, others: int, average_seconds: float, is_doubtful: bool = False
) -> float:
    """Return how long hosts of the weight `others` wait for a host of this weight: the time in which they do its part of the
    round, whose average takes `average_seconds` over the median link. `is_doubtful` means that they left it out of the last
    average that it gave something to: as likely as not they would wait in vain."""
    worth = rules.straggler_tolerance * (plan.expected_seconds + average_seconds) * weight / others
    return DOUBTFUL_PART * worth if is_doubtful else max(LEAST_TOLERANCE_SECONDS, worth)


def words_of(upload: Upload, quorum: Quorum, *, round: int) -> str:
    """Say why the attempt ends without this upload."""
    whole = upload.num_bytes + upload.rest_bytes
    return (
        f"left out of round {round}: {upload.num_bytes / 1e6:.3g} of {whole / 1e6:.3g} MB here after {upload.seconds:.3g} s; "
        f"the others are here and wait {quorum.tolerance_seconds:.3g} s at most"
    )


def words_of_decline(late_seconds: float, worth: float, *, round: int) -> str:
    """Say why this host declines the round."""
    return f"declined round {round}: the others are done and would wait {late_seconds:.3g} s; its part is worth {worth:.3g} s"
