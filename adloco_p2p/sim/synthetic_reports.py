"""The claims of simulated machines: their capacity, certificates, and a liar's branch of an invented history."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from random import Random

from adloco_p2p.core.model.branches import BranchState
from adloco_p2p.core.model.certificate import Ballot, BranchProof, CastVote, Certificate
from adloco_p2p.core.model.events import Durable
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.model.task_scores import Metric, TaskClaim, TaskScore
from adloco_p2p.sim.identities import sign
from adloco_p2p.sim.votes import votes_in

DIGEST = Digest("5" * 64)
TASK_SECONDS = 3.0
"""The duration of a scoring of tasks, longer than a round."""
CAPACITY = Capacity(samples_per_second=10.0, micro_batch_limit=8, max_instances=4, newest_protocol=NEWEST)


def invented(plan: RoundPlan, plan_digest: Digest, random: Random) -> BranchState:
    """Return a branch state of an invented history."""
    branch = Digest(hashlib.sha256(random.randbytes(8)).hexdigest())
    instance = random.choice(plan.instances).instance
    forks = ((plan_digest, plan.round), (plan.parent, plan.round - 1), (branch, 3))
    fork, fork_round = random.choice(forks if plan.round else forks[:1])
    return BranchState(
        fork=fork, fork_round=fork_round, branch=branch, instance=instance, round=plan.round + 2, state=branch, samples=10**12
    )


def lone_proof(peer: PeerId, roster: Sequence[PeerId], branch_state: BranchState) -> BranchProof:
    """Return a certificate like that of a member cut off from all others: its own vote, with the others absent. It does not
    show whether the peer was cut off. `roster` is that of the fork."""
    ballot, absent = Ballot(attempt=0, peer=peer), tuple(other for other in roster if other != peer)
    about = (branch_state.fork, branch_state.branch)
    return BranchProof(branch=branch_state.branch, certificate=certificate_of([peer], about, ballot=ballot, absent=absent))


def certificate_of(
    voters: Iterable[PeerId],
    about: tuple[Digest, Digest],
    *,
    ballot: Ballot,
    absent: tuple[PeerId, ...] = (),
    abstaining: Collection[PeerId] = (),
    sign: Callable[[PeerId, bytes], str] = sign,
) -> Certificate:
    """Return the certificate of the voters' signed votes. `about` is the parent and the value."""
    unsigned = tuple(CastVote(peer=peer, abstains=peer in abstaining, signature="") for peer in voters)
    certificate = Certificate(ballot=ballot, absent=absent, votes=unsigned)
    signed = (replace(vote, signature=sign(vote.peer, vote.payload)) for vote in votes_in(certificate, about))
    casts = tuple(CastVote(peer=vote.peer, abstains=vote.abstains, signature=vote.signature) for vote in signed)
    return replace(certificate, votes=casts)


def task_claim(saved: Durable | None) -> TaskClaim | None:
    """Return made-up scores of the saved model; None if nothing is saved yet."""
    if saved is None:
        return None
    score = TaskScore(name="made_up", digest=DIGEST, num_documents=4, metrics=(Metric(name="acc", value=0.5),))
    return TaskClaim(round=saved.round, model=DIGEST, scores=(score,))
