"""Which average is committed, by hand."""

from dataclasses import replace

from adloco_p2p.core.averaging.commit_votes import CommitVotes, Voter, choice_of
from adloco_p2p.core.model.messages import AverageDigest
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.sim.identities import sign, verify

A, B, C, D = (PeerId(name) for name in "ABCD")
PLAN = Digest("5" * 64)


def vote(voter: PeerId, digest: str, *contributors: PeerId, backers: tuple[PeerId, ...] = ()) -> AverageDigest:
    unsigned = AverageDigest(instance=InstanceId(0), round=3, attempt=0, contributors=contributors, digest=Digest(digest * 64))
    signed = {peer: sign(peer, unsigned.payload(PLAN, peer)) for peer in (voter, *backers)}
    return replace(unsigned, signature=signed[voter], backers=tuple((peer, signed[peer]) for peer in backers))


def votes_of(me: PeerId, *clients: PeerId) -> CommitVotes:
    return CommitVotes(
        me=me,
        plan_digest=PLAN,
        hosts=(A, B, C, D),
        contributors=(A, B, C, D),
        deciding=(A, B, C, D),
        clients=clients,
        voter=Voter(sign=lambda payload: sign(me, payload), verify=verify, keep=lambda _: [], kept=None),
    )


def test_a_majority_is_of_the_planned_voters_whoever_is_gone() -> None:
    votes = votes_of(A)
    votes.cast(vote(A, "1", A, B, C, D))
    votes.received(B, vote(B, "1", A, B, C, D))
    for absent in ((), (D,), (C, D), (B, C, D)):
        assert votes.tally(absent).majority is None, "two of four"
    assert not votes.tally((D,)).is_hopeless and votes.tally((C, D)).is_hopeless
    votes.received(C, vote(C, "1", A, B, C, D))
    assert votes.tally((B, C, D)).majority == choice_of(vote(A, "1", A, B, C, D)), "votes of the dead count"


def test_a_majority_names_the_same_attempt_contributors_and_digest() -> None:
    votes = votes_of(A)
    votes.cast(vote(A, "1", A, B, C, D))
    votes.received(B, vote(B, "1", A, B, C))
    votes.received(C, vote(C, "1", A, B, C))
    tally = votes.tally(())
    assert tally.majority is None and not tally.is_hopeless
    votes.received(D, vote(D, "2", B, C, D))
    assert votes.tally(()).is_hopeless


def test_a_vote_is_of_a_host_that_took_part() -> None:
    votes = votes_of(A)
    votes.received(B, vote(B, "1", C, D))
    assert votes.voters == ()


def test_a_host_passes_on_the_equal_votes_of_hosts_in_client_mode() -> None:
    votes = votes_of(A, C, D)
    votes.received(C, vote(C, "1", A, B, C, D))
    votes.received(B, vote(B, "1", A, B, C, D))
    assert not votes.to_relay(C), "not yet: this host holds nothing"
    votes.cast(vote(A, "1", A, B, C, D))
    votes.received(D, vote(D, "2", D))
    assert [peer for peer, _ in votes.own.backers] == [C]
    assert votes.to_relay(C) == {D}
    assert not votes.to_relay(D) and not votes.to_relay(B)
    other = votes_of(D, C, D)
    other.received(A, votes.own)
    assert other.voters == (A, C), "each signed its own"
    answer = votes.answer(None)
    assert answer is not None and [peer for peer, _ in answer.backers] == [B, C]


def test_votes_that_are_passed_on_are_taken_up_to_the_first_that_is_not_signed() -> None:
    votes = votes_of(A)
    message = vote(B, "1", A, B, C, D, backers=(C, D))
    forged = replace(message, backers=((C, "00"), *message.backers))
    votes.received(B, forged)
    assert votes.voters == (B,)
    votes.received(B, message)
    assert votes.voters == (B, C, D)


def test_a_host_without_a_vote_passes_on_the_void_votes_of_those_that_have_left() -> None:
    """Nobody else shows that they made no average."""
    followed, asks = votes_of(D), votes_of(C)
    assert followed.answer(None) is None
    followed.received(A, vote(A, "0"))
    followed.received(B, vote(B, "1", B, C))
    answer = followed.answer(None)
    assert answer is not None and answer.signature == ""
    asks.received(D, answer)
    assert asks.voters == (A,)


def test_an_average_is_lost_where_no_present_voter_holds_it_and_one_reports_that() -> None:
    mine, empty = vote(A, "1", A, B, C, D), {peer: replace(vote(peer, "1", A, B, C, D), is_held=False) for peer in (B, C, D)}
    choice = choice_of(mine)
    kept = Voter(sign=lambda payload: sign(A, payload), verify=verify, keep=lambda _: [], kept=mine)
    votes = CommitVotes(
        me=A, plan_digest=PLAN, hosts=(A, B, C, D), contributors=(A, B, C, D), deciding=(A, B, C, D), clients=(), voter=kept
    )
    assert not votes.own.is_held, "it was started again"
    votes.received(B, vote(B, "1", A, B, C, D))
    assert not votes.is_lost(choice, ()) and votes.donors(choice) == [B]
    assert votes.is_lost(choice, (B,)), "the only holder is gone, and this host has nothing"
    votes.received(B, empty[B])
    assert votes.is_lost(choice, ()) and votes.tally(()).holders(choice) == [A, B], "a vote all the same"
    votes.received(C, replace(empty[C], backers=((D, vote(D, "1", A, B, C, D).signature),)))
    assert votes.tally(()).majority == choice
    assert not votes.is_lost(choice, ()), "D has said nothing itself"
    assert votes.is_lost(choice, (D,))
    votes.received(D, vote(D, "1", A, B, C, D))
    assert not votes.is_lost(choice, ())
    votes.held = choice
    assert votes.own.is_held and not votes.is_lost(choice, (D,))


def test_those_whose_votes_count_are_asked_for_the_average_before_those_that_only_state_that_they_hold_it() -> None:
    """C is on probation, and D has no vote; anybody may state that it holds an average."""
    everybody = (A, B, C, D)
    one = vote(A, "1", A, B, C)
    for holders in ((A, C, D), (D, C, A), (C, D, A)):
        voter = Voter(sign=lambda payload: sign(B, payload), verify=verify, keep=lambda _: [], kept=None)
        votes = CommitVotes(
            me=B, plan_digest=PLAN, hosts=everybody, contributors=(A, B, C), deciding=(A, B), clients=(), voter=voter
        )
        for peer in holders:
            votes.received(peer, replace(one, signature="") if peer == D else vote(peer, "1", A, B, C))
        assert votes.donors(choice_of(one))[0] == A and set(votes.donors(choice_of(one))) == {A, C, D}


def test_voters_that_are_all_gone_may_hold_it_still() -> None:
    votes = votes_of(D)
    for peer in (A, B, C):
        votes.received(peer, replace(vote(peer, "1", A, B, C), is_held=False))
    assert votes.is_lost(choice_of(vote(A, "1", A, B, C)), ())
    assert not votes.is_lost(choice_of(vote(A, "1", A, B, C)), (A, B, C)), "on the other side of a partition"


def test_a_host_alone_makes_its_average_again_after_a_restart() -> None:
    """No vote of it counts for others."""
    written: list[AverageDigest] = []

    def keep(one: AverageDigest) -> tuple[()]:
        written.append(one)
        return ()

    voter = Voter(sign=lambda payload: sign(A, payload), verify=verify, keep=keep, kept=vote(A, "1", A))
    alone = CommitVotes(me=A, plan_digest=PLAN, hosts=(A,), contributors=(A,), deciding=(A,), clients=(), voter=voter)
    assert not alone.have_own and alone.cast(vote(A, "2", A)) == [] and not written
    assert CommitVotes(me=A, plan_digest=PLAN, hosts=(A, B), contributors=(A,), deciding=(A,), clients=(), voter=voter).have_own


def test_votes_of_names_on_probation_are_passed_on_and_not_counted() -> None:
    """A and B decide, C and D are on probation. Three of four voted for the same average, but only one that decides."""
    voter = Voter(sign=lambda payload: sign(A, payload), verify=verify, keep=lambda _: [], kept=None)
    everybody = (A, B, C, D)
    votes = CommitVotes(
        me=A, plan_digest=PLAN, hosts=everybody, contributors=everybody, deciding=(A, B), clients=(), voter=voter
    )
    votes.cast(vote(A, "1", *everybody))
    for name in (C, D):
        votes.received(name, vote(name, "1", *everybody))
    assert votes.voters == (A, C, D) and votes.tally(()).majority is None and not votes.tally(()).is_hopeless
    assert votes.tally((B,)).is_hopeless, "C and D cannot stand in for B"
    votes.received(B, vote(B, "1", *everybody))
    assert votes.tally(()).majority == choice_of(vote(A, "1", *everybody))
