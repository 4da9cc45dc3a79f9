"""What a peer knows of states that others have, from plans and reports."""

from dataclasses import replace

from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.peer.plan_book import PlanBook
from tests.core.planning.test_round_plan import ONE, honest_reports, start


def test_a_host_that_reports_a_later_round_without_the_state_has_none_to_wait_for() -> None:
    """It was given an instance that no peer has, and skipped the round for which it waited for it: no report on that round will
    ever come. The others would wait for it as long as it lives."""
    plans = [replace(start(ONE), round=number) for number in range(3)]
    (item,) = plans[0].instances
    me, skipping, silent = (share.peer for share in item.hosts)
    book = PlanBook(me)
    for plan in plans:
        book.remember(plan)

    def may_come(*gone: PeerId) -> bool:
        return book.outlook(item.instance, 1, gone).may_come

    def report(peer: PeerId, number: int, *, has_state: bool) -> None:
        (made,) = (report for report in honest_reports(plans[number]) if report.peer == peer)
        book.note_states(made if has_state else replace(made, instances=()))

    assert may_come(silent) and not may_come(silent, skipping)
    report(skipping, 1, has_state=True)
    assert may_come(silent), "it trains it: its report on the round before is on its way"
    report(skipping, 2, has_state=False)
    assert not may_come(silent)
    assert may_come(), "the other one may still come"
    report(skipping, 0, has_state=True)
    assert may_come(silent), "what was reported late is state all the same"


def test_names_on_probation_are_asked_for_a_state_last() -> None:
    """Eight donors are asked at a time, and one that trickles keeps its place for minutes."""
    plan = start(ONE, 12)
    names = {entry.peer for entry in plan.roster[:8]}  # their ids are the smallest
    later = replace(plan, round=1, roster=tuple(replace(entry, probation=8 * (entry.peer in names)) for entry in plan.roster))
    for me in (plan.roster[8].peer, plan.roster[9].peer):
        book = PlanBook(me)
        for one in (plan, later):
            book.remember(one)
        for report in honest_reports(plan):
            book.note_states(report)
        donors = book.outlook(plan.instances[0].instance, 1, ()).donors
        assert len(donors) == 11 and names.isdisjoint(donors[:3]) and names == {*donors[3:]}


def test_a_host_without_a_seat_has_no_state_to_wait_for() -> None:
    plan = start(ONE)
    (item,) = plan.instances
    me, other, silent = (share.peer for share in item.hosts)
    book = PlanBook(me)
    book.remember(plan)
    assert book.outlook(item.instance, 1, (other,)).may_come
    book.remember(replace(plan, round=1, roster=tuple(entry for entry in plan.roster if entry.peer != silent)))
    assert not book.outlook(item.instance, 1, (other,)).may_come


def test_hosts_that_are_all_new_to_an_instance_do_not_wait_for_each_other() -> None:
    """Its former hosts went before they had given the state to anybody: seats of names that only knock do so."""
    plan = replace(start(ONE), round=1)
    (item,) = plan.instances
    me = item.hosts[0].peer
    former = tuple(replace(share, peer=PeerId(f"former{index}")) for index, share in enumerate(item.hosts))
    book = PlanBook(me)
    book.remember(replace(plan, round=0, instances=(replace(item, hosts=former),)))
    book.remember(plan)
    assert not book.outlook(item.instance, 2, ()).may_come
    book.remember(replace(plan, roster=(*plan.roster, replace(plan.roster[0], peer=former[0].peer))))
    assert book.outlook(item.instance, 2, ()).may_come, "one of them has a seat, and may bring it"


def test_the_state_of_those_that_have_one_counts_where_all_others_go_without() -> None:
    """Of three hosts one reported a state, and the others, this peer among them, went through the round with nothing: no
    majority of the planned hosts will ever report one."""
    plans = [replace(start(ONE), round=number) for number in range(2)]
    (item,) = plans[0].instances
    me, has_state, without = (share.peer for share in item.hosts)
    book = PlanBook(me)
    for plan in plans:
        book.remember(plan)
    (report,) = (report for report in honest_reports(plans[0]) if report.peer == has_state)
    book.note_states(report)
    book.note_states(replace(report, peer=me, instances=()))
    assert book.reported_state(item.instance, 0, ()) is None, "the third may report another one"
    book.note_states(replace(report, peer=without, instances=()))
    assert book.reported_state(item.instance, 0, ()) == report.instances[0].state_digest


def test_reports_count_where_their_history_counts_whenever_they_came() -> None:
    """Two hosts were cut off from each other for a round: each sees the other's report on a plan that it does not have, and
    would take a state that no host has in its own history, as the one of the host that joined first."""
    first = start(ONE)
    kept, other = (replace(first, round=1, reason=reason) for reason in ("kept", "other"))
    (item,) = first.instances
    me, peer = item.hosts[1].peer, item.hosts[0].peer
    book = PlanBook(me)
    book.remember(first)
    book.remember(kept)

    def report(plan: RoundPlan, of: PeerId, state: str, *, is_leaving: bool = False) -> None:
        (made,) = (report for report in honest_reports(plan) if report.peer == of)
        items = tuple(replace(one, state_digest=Digest(state * 64)) for one in made.instances)
        book.note_states(replace(made, instances=items, capacity=replace(made.capacity, is_leaving=is_leaving)))

    def known() -> tuple[str | None, tuple[PeerId, ...], bool]:
        outlook = book.outlook(item.instance, 2, gone)
        return outlook.digest and outlook.digest[0], outlook.donors, peer in book.leaving

    gone = [share.peer for share in item.hosts[2:]]
    report(kept, me, "a")
    report(other, peer, "b", is_leaving=True)
    assert known() == (None, (), False), "its report on this history may still come"
    report(kept, peer, "a")
    report(other, peer, "c", is_leaving=True)
    assert known() == ("a", (peer,), False), "a report on the other history came late"
    book.cut(at=1)
    book.remember(other)
    report(other, me, "c")
    assert known() == ("c", (peer,), True), "what came before the other history won"
    report(kept, peer, "a")
    report(kept, me, "a")
    assert known() == ("c", (peer,), True), "what came after it had lost"
    book.cut(at=1)
    book.remember(kept)
    book.forget(before=2)
    assert not any(number < 2 for number, _ in book._reports)


def test_what_was_reported_of_the_plans_that_lost_is_forgotten() -> None:
    first = start(ONE)
    plan = replace(first, round=1)
    (item,) = first.instances
    book = PlanBook(item.hosts[0].peer)
    for each in (first, plan):
        book.remember(each)
        for made in honest_reports(each):
            book.note_states(made)
    state = book.reported_state(item.instance, 1, ())
    book.cut(at=1)
    book.remember(plan)
    assert state is not None and book.reported_state(item.instance, 1, ()) is None
    assert book.reported_state(item.instance, 0, ()) is not None
