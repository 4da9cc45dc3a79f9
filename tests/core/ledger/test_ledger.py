"""The chain of final plans in memory, in a journal, and behind a fork."""

from dataclasses import replace

from adloco_p2p.core.ledger.ledger import ENTRIES_KEPT, Ledger, chain, unconnected
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot, Certificate
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Value
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import InstanceRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.core.planning.round_plan import genesis
from tests.core.core_values import RUN, capacity, peer

RULES = Rules(work=WorkRules(rounds=4), instances=InstanceRules(count=1))
FIRST = genesis(RUN, [(peer(0), capacity())], RULES)


def following(parent: RoundPlan, *, reason: str = "") -> LedgerEntry:
    """The entry of a next plan; another reason makes it another plan."""
    before = canonical.digest(parent)
    plan = replace(parent, round=parent.round + 1, parent=before, reason=reason)
    value = Value(round=plan.round, parent=before, reports=(), joined=(), departed=(), plan=canonical.digest(plan))
    certificate = Certificate(ballot=Ballot(attempt=0, peer=peer(0)), absent=(), votes=())
    return LedgerEntry(plan=plan, value=value, reports=(), certificate=certificate)


def entries_after(parent: RoundPlan, count: int, *, reason: str = "") -> list[LedgerEntry]:
    entries: list[LedgerEntry] = []
    for _ in range(count):
        entries.append(following(entries[-1].plan if entries else parent, reason=reason))
    return entries


def test_a_journal_gives_its_entries_and_skips_other_records() -> None:
    first, second = entries_after(FIRST, 2)
    assert chain([], FIRST) == []
    assert chain(["a vote", first, "a report", second], FIRST) == [first, second]
    assert unconnected(["a vote", first, second], FIRST) == []


def test_an_entry_after_an_older_plan_cuts_the_chain_back_to_it() -> None:
    first, lost, also_lost = entries_after(FIRST, 3)
    won = following(first.plan, reason="the other side")
    assert chain([first, lost, also_lost, won], FIRST) == [first, won]
    late = following(also_lost.plan)
    assert chain([first, lost, also_lost, won, late], FIRST) == [first, won]  # what was cut off has no successors any more
    assert unconnected([first, lost, also_lost, won, late], FIRST) == []  # and was written down: an honest journal


def test_an_entry_whose_parent_was_never_written_down_is_left_out_and_named() -> None:
    first, second, third = entries_after(FIRST, 3)
    assert chain([first, third], FIRST) == [first]
    assert unconnected([first, third, second], FIRST) == [third]


def test_a_rewritten_journal_in_which_a_history_came_back_is_sound() -> None:
    """It keeps one record of each entry, the last one, so `lost` comes before the plan that it follows."""
    first, second, lost, also_lost = entries_after(FIRST, 4)
    other, on = following(FIRST, reason="the other side"), following(second.plan, reason="once more")
    whole = [first, second, lost, also_lost, other, first, second, on]
    rewritten = [record for place, record in enumerate(whole) if record not in whole[place + 1 :]]
    assert rewritten == [lost, also_lost, other, first, second, on]
    assert chain(rewritten, FIRST) == chain(whole, FIRST) == [first, second, on]
    assert unconnected(rewritten, FIRST) == unconnected(whole, FIRST) == []
    assert unconnected([lost, also_lost, other, first, on], FIRST) == [lost, also_lost, on], "the second is missing"
    again = following(first.plan, reason="once more")
    left = [first, second, lost, other, first, again, other]
    rewritten = [record for place, record in enumerate(left) if record not in left[place + 1 :]]
    assert rewritten == [second, lost, first, again, other], "the first history was left once more"
    assert unconnected(rewritten, FIRST) == unconnected(left, FIRST) == []


def test_old_entries_are_recalled_and_forgotten_together() -> None:
    made = entries_after(FIRST, 2 * ENTRIES_KEPT)
    asked: list[int] = []
    written = {entry.value.plan: entry for entry in made}

    def recall(plan: Digest) -> LedgerEntry:
        asked.append(written[plan].plan.round)
        return written[plan]

    ledger = Ledger(FIRST, recall=recall)
    for entry in made[:-1]:
        ledger.append(entry)
    ledger.forget_old()
    assert ledger.entries == made[:-1]  # not before there are twice as many
    ledger.append(made[-1])
    ledger.forget_old()
    assert ledger.entries == made[-ENTRIES_KEPT:]
    assert ledger.plans == [entry.plan for entry in ledger.entries]
    assert ledger.plan(0) is FIRST and not asked
    assert ledger.plan(1) == made[0].plan and asked == [1]
    assert list(ledger.since(2 * ENTRIES_KEPT)) == made[-1:] and asked == [1]
    assert ledger.after(made[0].value.plan, 2) == (made[1], made[2]) and asked == [1, 2, 3]


def test_a_truncated_ledger_is_one_that_never_went_on() -> None:
    made = entries_after(FIRST, 2 * ENTRIES_KEPT)
    written = {entry.value.plan: entry for entry in made}
    whole, short = Ledger(FIRST, recall=written.__getitem__), Ledger(FIRST, recall=written.__getitem__)
    for entry in made:
        whole.append(entry)
    whole.forget_old()
    for entry in made[:5]:
        short.append(entry)
    copy = whole.truncated(made[4].value.plan)
    assert (copy.head, copy.digests, copy.position) == (short.head, short.digests, short.position)
    assert copy.reported == made[3].plan  # the plan before the head: the next entry uses reports on it
    copy.append(made[5])
    assert copy.entry(6) == made[5] and copy.plan(1) == made[0].plan
    assert whole.head.round == 2 * ENTRIES_KEPT  # the original goes on


def test_a_locator_steps_back_ever_farther_and_ends_at_the_first_plan() -> None:
    ledger = Ledger(FIRST, recall=dict[Digest, LedgerEntry]().__getitem__)
    assert ledger.locator() == (ledger.digests[0],)
    for entry in entries_after(FIRST, 20):
        ledger.append(entry)
    positions = [ledger.position[digest] for digest in ledger.locator()]
    assert positions == [20, 19, 18, 17, 16, 14, 10, 2, 0]
