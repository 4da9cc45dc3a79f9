"""The check that votes make a value final, and the part of a plan's electors behind a value that lost to another one."""

from collections.abc import Collection

from adloco_p2p.core.model.certificate import BranchProof, Certificate
from adloco_p2p.core.model.electorate import electorate, electors, is_majority
from adloco_p2p.core.model.ledger_entry import Verify, cast_payloads
from adloco_p2p.core.model.plan import RoundPlan, roster_of
from adloco_p2p.core.model.scalars import Digest, PeerId


def check_certificate(
    certificate: Certificate,
    *,
    value: Digest,
    parent: RoundPlan,
    parent_digest: Digest,
    verify: Verify,
    returning_members: Collection[PeerId] = (),
) -> str:
    """Return why the votes do not make the value final; empty if they do. If no peer of the roster is left, the vote of the one
    peer that made the value is enough, if it is among `returning_members`: the peers that join by it and had a seat before."""
    counted = electors(electorate(parent), roster_of(parent), certificate.absent)
    if not counted and certificate.ballot.peer in returning_members:
        counted = [certificate.ballot.peer]
    members = frozenset(counted)
    peers = [vote.peer for vote in certificate.votes]
    if peers != sorted(set(peers)) or any(peer not in members for peer in peers):
        return "votes are not by distinct members that count"
    payloads = cast_payloads(certificate, parent=parent_digest, value=value)
    for cast, payload in zip(certificate.votes, payloads, strict=True):
        if not verify(cast.peer, payload, cast.signature):
            return f"the vote of {cast.peer} is not signed by that peer"
    abstained = sum(cast.abstains for cast in certificate.votes)
    votes = len(certificate.votes) - abstained
    if not is_majority(votes, len(counted) - abstained):
        return f"{votes} votes of {len(counted) - abstained} are no majority"
    return ""


def backing(proof: BranchProof, *, fork: RoundPlan, fork_digest: Digest, apart: Collection[PeerId], verify: Verify) -> float:
    """Return the part of the electors of `fork` whose votes made another value than ours its successor; 0 if the proof is not
    valid. Only the votes of electors that were `apart` count.

    A side of a partition counts the others as absent, and one elector can do so alone. So the mere existence of a certificate
    is weak evidence; the number of electors that signed it shows how much of the run went that way.
    """
    if check_certificate(proof.certificate, value=proof.branch, parent=fork, parent_digest=fork_digest, verify=verify):
        return 0.0
    full = electorate(fork)
    voters = {cast.peer for cast in proof.certificate.votes if not cast.abstains}
    return len(voters.intersection(full, apart)) / len(full)
