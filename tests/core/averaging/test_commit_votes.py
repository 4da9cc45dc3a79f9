"""Which average counts, by hand."""

from adloco_p2p.core.averaging.commit_votes import CommitVotes, choice_of
from adloco_p2p.core.model.messages import AverageDigest
from adloco_p2p.core.model.types import Digest, PeerId

A, B, C, D = (PeerId(name) for name in "ABCD")


def vote(digest: str, *contributors: PeerId, relayed_for: tuple[PeerId, ...] = ()) -> AverageDigest:
    return AverageDigest(
        instance=0, round=3, attempt=0, contributors=contributors, digest=Digest(digest * 32), relayed_for=relayed_for
    )


def votes_of(me: PeerId, *clients: PeerId) -> CommitVotes:
    return CommitVotes(me=me, contributors=(A, B, C, D), clients=clients)


def test_a_majority_is_of_those_that_could_vote() -> None:
    votes, large = votes_of(A), vote("1", A, B, C, D)
    votes.cast(large)
    votes.received(B, large)
    assert votes.tally(()).majority is None  # two of four
    assert votes.tally((D,)).majority == choice_of(large)  # two of three
    assert votes.tally((A, B)).holders(choice_of(large)) == [A]  # this host is never absent to itself


def test_the_average_of_most_hosts_comes_first() -> None:
    votes, small, large = votes_of(A), vote("1", A, B), vote("2", B, C, D)
    votes.cast(small)
    votes.received(B, small)
    votes.received(C, large)
    votes.received(D, large)
    tally = votes.tally(())
    assert tally.is_complete and tally.majority is None
    assert tally.ranking == [choice_of(large), choice_of(small)]


def test_few_hold_an_average_of_few() -> None:
    votes, own = votes_of(A), vote("1", A)
    votes.cast(own)
    assert not votes.tally(()).is_of_half(choice_of(own))
    assert votes.tally((C, D)).is_of_half(choice_of(own))


def test_a_host_in_client_mode_counts_the_relayed_vote_of_another_one() -> None:
    relaying = vote("1", A, B, C, D, relayed_for=(D,))
    client, listening = votes_of(C, C, D), votes_of(B, C, D)
    for votes in (client, listening):
        votes.received(A, relaying)
    assert set(client.tally(()).votes) == {A, D}
    assert set(listening.tally(()).votes) == {A}
    assert client.direct_vote_of(D) is None  # it cannot be asked for the average


def test_a_host_that_has_voted_relays_the_same_vote_of_hosts_in_client_mode() -> None:
    votes, same, other = votes_of(A, C, D), vote("1", A, B, C, D), vote("2", D)
    votes.received(C, same)
    assert not votes.to_relay(C)  # not yet: this host holds nothing
    votes.cast(same)
    votes.received(D, other)
    assert votes.own.relayed_for == (C,)
    assert votes.to_relay(C) == {D}
    assert not votes.to_relay(D) and not votes.to_relay(B)
