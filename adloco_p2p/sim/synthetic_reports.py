"""What simulated machines claim: their capacity, and a liar's branch of a history that never was."""

import hashlib
from random import Random

from adloco_p2p.core.model.types import BranchState, Capacity, Digest, RoundPlan

CAPACITY = Capacity(samples_per_second=10.0, micro_batch_limit=8, max_instances=4)


def invented(plan: RoundPlan, plan_digest: Digest, random: Random) -> BranchState:
    """The end of a history that never was."""
    branch = Digest(hashlib.sha256(random.randbytes(8)).hexdigest())
    instance = random.choice(plan.instances).instance
    forks = ((plan_digest, plan.round), (plan.parent, plan.round - 1), (branch, 3))
    fork, fork_round = random.choice(forks if plan.round else forks[:1])
    return BranchState(
        fork=fork, fork_round=fork_round, branch=branch, instance=instance, round=plan.round + 2, state=branch, samples=10**12
    )
