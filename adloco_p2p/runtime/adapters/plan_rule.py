"""The first plan of a run, and the rule for the next one."""

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.plan import Decide, RoundPlan
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.scalars import MAX_INSTANCES, PeerId
from adloco_p2p.core.planning.round_plan import genesis, next_plan

UNKNOWN_CAPACITY = Capacity(samples_per_second=0.0, micro_batch_limit=1 << 20, max_instances=MAX_INSTANCES)
"""The capacity of a peer that has not reported yet; its engine keeps to its own limit anyway."""


def genesis_of(run: RunConfig) -> RoundPlan:
    """Return the first plan, which every peer computes from the run's configuration. Its roster is the author, who is its first
    signer, and the founders, all of unknown capacity."""
    author = PeerId(run.author)
    roster = [(PeerId(peer), UNKNOWN_CAPACITY) for peer in (author, *run.founders)]
    return genesis(run.digest, roster, run.rules, signers=[author], protocol=run.protocol)


def decide_by(rules: Rules) -> Decide:
    """Return the rule that makes the next plan from the reports."""
    return lambda parent, reports, change: next_plan(parent, reports, rules, roster=change)
