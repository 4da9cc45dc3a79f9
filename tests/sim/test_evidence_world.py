"""Liars in averages of a live swarm: what is proven bans them within a few rounds, and no honest peer is ever banned."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.complaints import Complaint
from adloco_p2p.core.model.ledger_entry import Evidence, LedgerEntry, WrongSum
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.suspension import suspended
from adloco_p2p.sim.adversary import Liar
from adloco_p2p.sim.averaging import Averaging, pledge_of
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.world import Parts, World
from adloco_p2p.sim.wrong_sums import small_average

PEERS, ROUNDS, LIAR = 6, 14, 3


class Recorded:
    """A world, the decrees of its ledger by round, and its rosters."""

    def __init__(
        self,
        seed: int,
        *,
        liar: int | None,
        faults: Faults,
        returned: Callable[[PeerId, object], object] | None = None,
        complaining: Mapping[int, Callable[[Report], Report]] = MappingProxyType({}),
    ) -> None:
        """`returned`: what the liar, as a reducer, hands each host in place of an average. `complaining`: further liars, and
        what they make of their reports."""
        liars = {number: Liar(alters=alters) for number, alters in complaining.items()}
        if liar is not None:
            liars[liar] = Liar(alters=complaining.get(liar), hands_out=returned)
        self.world = World(seed, peers=PEERS, rounds=ROUNDS, faults=faults, round_seconds=1.2, parts=Parts(liars=liars))
        self.banned: dict[PeerId, int] = {}
        self.kinds: set[type] = set()
        self.rosters: dict[int, tuple[PeerId, ...]] = {}
        self.complaints = 0
        """That a plan has remembered at the same time, at the most."""
        self.suspended: set[PeerId] = set()
        note = self.world.checkers.persisting

        def persisting(peer: PeerId, record: object) -> None:
            if isinstance(record, LedgerEntry):
                self.rosters[record.plan.round] = roster_of(record.plan)
                for item in record.plan.instances:
                    self.complaints = max(self.complaints, len(item.complaints))
                    self.suspended |= suspended(item.hosts, record.plan.round)
                for made in record.value.statements:
                    assert isinstance(made, Evidence)
                    self.kinds.add(type(made))
                    self.banned.setdefault(made.subject, record.plan.round)
            note(peer, record)

        self.world.checkers.persisting = persisting  # type: ignore[method-assign]


def lie(world: World, liar: PeerId, begin: int, kind: str) -> Callable[[], int | None]:
    """From that round on, every average of the liar shows two of its pledges to those who take part. Returns the first round of
    it, once there is one."""
    averaging: Averaging = world._around.averaging
    reduce = averaging._reduce
    lied: list[int] = []

    def lying(attempt, process) -> None:
        member = attempt.joined.get(liar)
        if member is not None and len(attempt.members) > 1 and member.effect.round >= begin:
            lied.append(member.effect.round)
            contents = [Digest(canonical.digest(f"{word} {member.effect.key}")) for word in ("one", "other")]
            one, other = (pledge_of(liar, member.effect, kind, content) for content in contents)  # type: ignore[arg-type]
            averaging.show([joined for peer, joined in attempt.joined.items() if peer != liar][:1], one, other)
        reduce(attempt, process)

    averaging._reduce = lying  # type: ignore[method-assign]
    return lambda: min(lied, default=None)


@pytest.mark.parametrize("kind", ["contribution", "reduction"])
@pytest.mark.parametrize("seed", range(3))
def test_a_member_that_pledges_two_things_is_out_within_a_few_rounds(seed: int, kind: str) -> None:
    """One honest host alone holds the proof, some crash, messages are lost."""
    faults = Faults(loss=0.02, crashes=1, faults_end_at=10.0)
    recorded = Recorded(seed, liar=LIAR, faults=faults)
    first = lie(recorded.world, name_of(LIAR), 3, kind)
    recorded.world.run()
    lied_in = first()
    assert lied_in is not None, f"seed {seed}: the liar never averaged"
    assert set(recorded.banned) == {name_of(LIAR)}, f"seed {seed}"
    banned_in = recorded.banned[name_of(LIAR)]
    assert banned_in <= lied_in + 4, f"seed {seed}: lied in round {lied_in}, banned in {banned_in}"
    assert all(name_of(LIAR) not in roster for round, roster in recorded.rosters.items() if round >= banned_in)


@pytest.mark.parametrize("seed", range(3))
def test_a_reducer_that_hands_out_different_averages_is_banned_by_its_receipts(seed: int) -> None:
    def divides(host: PeerId, average: object) -> object:
        return hashed("for", host, average)

    recorded = Recorded(seed, liar=LIAR, faults=Faults(loss=0.02, faults_end_at=10.0), returned=divides)
    recorded.world.run()
    assert set(recorded.banned) == {name_of(LIAR)}, f"seed {seed}"
    assert recorded.banned[name_of(LIAR)] <= 5, f"seed {seed}"


@pytest.mark.parametrize("seed", range(2))
def test_a_reducer_that_returns_one_wrong_sum_to_everybody_is_banned_by_those_that_make_parts_again(seed: int) -> None:
    """Its receipts agree. Every round it is drawn with a probability of about one half."""

    def agrees_with_itself(host: PeerId, average: object) -> object:
        del host
        return hashed("wrong", average)

    recorded = Recorded(seed, liar=LIAR, faults=Faults(loss=0.02, faults_end_at=10.0), returned=agrees_with_itself)
    recorded.world.run()
    assert set(recorded.banned) == {name_of(LIAR)}, f"seed {seed}"
    assert recorded.kinds == {WrongSum}, f"seed {seed}"
    assert recorded.banned[name_of(LIAR)] <= 9, f"seed {seed}: banned in round {recorded.banned[name_of(LIAR)]}"


@pytest.mark.parametrize("seed", range(1))
def test_checkers_that_accuse_honest_reducers_ban_nobody(seed: int) -> None:
    """Two of six state evidence about every reducer of every average: made from true receipts, or signed by themselves."""
    recorded = Recorded(seed, liar=LIAR, faults=Faults(loss=0.02, faults_end_at=10.0))
    averaging: Averaging = recorded.world._around.averaging
    reduce, refused = averaging._reduce, list[str]()

    def accusing(attempt, process) -> None:
        for checker in (name_of(LIAR), name_of(LIAR + 1)):
            member = attempt.joined.get(checker)
            others = [peer for peer in attempt.joined if peer != checker]  # about itself its word is good
            for reducer in others if member is not None and len(attempt.members) > 1 else ():
                small, wrong = small_average(member.effect), Digest(canonical.digest("a sum that never was"))
                honest = pledge_of(reducer, member.effect, "reduction", small.receipt_content(reducer, None))
                forged = pledge_of(checker, member.effect, "reduction", small.receipt_content(reducer, wrong))
                for receipt, said in ((honest, None), (honest, wrong), (replace(forged, peer=reducer), wrong)):
                    refused.append(member.process.agreement.state(small.evidence(receipt, said)))
        reduce(attempt, process)

    averaging._reduce = accusing  # type: ignore[method-assign]
    recorded.world.run()
    assert len(refused) > 30 and all(refused), f"seed {seed}"
    assert recorded.banned == {}, f"seed {seed}"


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(8))
def test_a_minority_that_complains_about_an_honest_host_in_every_report_suspends_nobody(seed: int) -> None:
    """Two of six, and some crash."""

    def complains(report: Report) -> Report:
        said = Complaint(round=report.round, contributor=0, reducer=0)
        return replace(report, instances=tuple(replace(item, complaint=said) for item in report.instances))

    faults = Faults(loss=0.02, crashes=2, faults_end_at=10.0)
    recorded = Recorded(seed, liar=None, faults=faults, complaining={LIAR: complains, LIAR + 1: complains})
    recorded.world.run()
    assert recorded.complaints > 0, f"seed {seed}"
    assert recorded.suspended == set(), f"seed {seed}"


@pytest.mark.parametrize("seed", range(5))
def test_honest_peers_that_crash_and_come_back_are_never_banned(seed: int) -> None:
    faults = Faults(loss=0.05, crashes=4, crash_chance=0.002, crash_targets=0.01, faults_end_at=20.0)
    recorded = Recorded(seed, liar=None, faults=faults)
    recorded.world.run()
    assert recorded.banned == {}, f"seed {seed}"
