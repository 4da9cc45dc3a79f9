"""The health of a node, for a supervisor."""

from adloco_p2p.views.own_part import bench_words, is_keeper
from adloco_p2p.views.status import Status

MAX_ROUNDS_BEHIND = 2
"""How many rounds the report of a ready peer may lag: one for a peer that has just trained, and one for a retried average."""


def readiness(status: Status) -> tuple[bool, str]:
    """Return whether the peer is in the run and trained or averaged in one of its last rounds, with the reason in a line."""
    if status.state == "finished":
        return True, "the run is complete"
    if status.state != "running":
        return False, f"the node is {status.state}" + (f": {status.stopping}" if status.stopping else "")
    plan = status.current_plan
    if plan is not None and is_keeper(plan, status.peer):
        return True, "the node keeps the states of the run"
    if words := bench_words(status):
        return True, words
    last = max((round for round, _ in status.results), default=None)
    if last is None:
        return False, "no round of this peer is done yet"
    words = f"round {status.current_round}, this peer's last one is {last}"
    return status.current_round - last <= MAX_ROUNDS_BEHIND, words
