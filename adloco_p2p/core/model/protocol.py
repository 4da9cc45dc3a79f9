"""Versions of the protocol: what peers must read and compute alike. A run begins with one and moves on to later ones.

`core/planning/upgrade.py` has the rule; CONTRIBUTING.md describes how a release adds a protocol.
"""

FIRST_UPGRADABLE = 21
"""Protocol of a plan or a capacity that names none. It never changes, because the bytes of all ledgers depend on it."""
OLDEST = 21
"""Oldest protocol of the runs that this version follows."""
NEWEST = 22
"""Newest protocol, which this version announces to others: a run moves on to it once all electors can follow it."""
STANDINGS_IN_NOISE = 22
"""The protocol from which the gradient noise of a round takes the standings into account by which it was averaged."""
PROBATION_LIMITED = 22
"""The protocol from which members on probation train as a minority only, and decide nothing beside full members, and hosts
without work decide nothing about a round."""
PROBED_IN_TIME = 22
"""The protocol from which the last merge is measured in time although the end of the run comes nearer as batches grow."""
VERDICT_OF_MOST = 22
"""The protocol from which a merge takes the verdicts of more than half of the full members that trained its target."""
SIZE_OF_MOST = 22
"""The protocol from which vectors have the size that more than half of the hosts state, over all instances."""
PROTOCOLS = f"protocols {OLDEST} to {NEWEST}" if OLDEST < NEWEST else f"protocol {NEWEST}"
"""The protocols that this version follows, in words."""
CANNOT_FOLLOW = "protocol"
"""Key of the warning that this version cannot follow the run, or not for long."""
UPGRADE_REMEDY = "in the checkout `git pull && pip install -c constraints.txt .`, then start again with the same directory"


def unfollowed(protocol: int, *, newest: int = NEWEST) -> str:
    """Say why this version cannot take part, and the remedy; empty if it can."""
    if OLDEST <= protocol <= newest:
        return ""
    known = f"{OLDEST} to {newest}" if newest > OLDEST else f"{newest}"
    words = f"the run follows protocol {protocol}, and the installed version knows only {known}"
    if protocol < OLDEST:
        return f"{words}: install an older adloco-peer for it"
    return f"{words}: {UPGRADE_REMEDY}"
