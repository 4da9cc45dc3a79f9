"""What hosts of one instance tell each other about its average: see `outer_round.py` for the rules."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen

from adloco_p2p.core.types import MAX_HOSTS, Count, HexDigest, InstanceId, PeerId

Members = Annotated[tuple[PeerId, ...], MaxLen(MAX_HOSTS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageDigest:
    """'I hold a complete average.' The sender's one vote of this round."""

    instance: InstanceId
    round: Count
    attempt: Count
    contributors: Members
    digest: HexDigest
    is_answer: bool = False
    """Said because the receiver showed that it does not know it; asks for nothing itself."""
    seconded: Members = ()
    """Contributors in client mode who told the sender that they hold the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """'My attempt ended without a result; these I waited for in vain.' A sender that names itself will not contribute."""

    instance: InstanceId
    round: Count
    attempt: Count
    suspects: Members


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStart:
    """'Average again, with these.' Members that wait in the attempt say it, too: whoever has voted already answers."""

    instance: InstanceId
    round: Count
    attempt: Count
    members: Members


AveragingMessage = AverageDigest | AttemptFailed | AttemptStart
