"""The rows of seats that cost computing, and that each of them fails where its defence is gone."""

import hashlib
from collections.abc import Callable

import pytest

from adloco_p2p.core.agreement.consensus import Consensus
from adloco_p2p.core.ledger import admission
from adloco_p2p.core.ledger.admission import Admissions, Door
from adloco_p2p.core.ledger.proof_of_work import CheckBudget, Puzzle
from adloco_p2p.core.model import first_seats
from adloco_p2p.core.model.scalars import PeerId
from benchmarks.adversary.paid_seats import PAID_SEATS

SEED = 3
ROWS = {row.name: row for row in PAID_SEATS}
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("name", ROWS)
def test_the_run_withstands_it(name: str) -> None:
    outcome = ROWS[name].play(SEED)
    assert outcome.has_passed, outcome


def checks_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckBudget, "try_take", lambda _self, _now: True)


def trusts_members_that_mislead(patch: pytest.MonkeyPatch) -> None:
    is_let_in = Consensus._is_let_in

    def forgives(self: Consensus, *arguments: object) -> bool:
        self._misleading.clear()
        return is_let_in(self, *arguments)  # type: ignore[arg-type]

    patch.setattr(Consensus, "_is_let_in", forgives)


def gives_strangers_nothing(patch: pytest.MonkeyPatch) -> None:
    """A door that a flood could keep shut."""
    is_let_in = Consensus._is_let_in

    def is_deaf(self: Consensus, request: object, sender: PeerId, now: float) -> bool:
        return sender in self.slot.roster and is_let_in(self, request, sender, now)  # type: ignore[arg-type]

    patch.setattr(Consensus, "_is_let_in", is_deaf)


def hashes(salt: str = "{peer}", what: str = "{run} {plan} {nonce}") -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        def hashed(self: Puzzle, nonce: int) -> bytes:
            names = {"peer": self.peer, "run": self.run, "plan": self.plan, "nonce": nonce}
            return hashlib.scrypt(what.format(**names).encode(), salt=salt.format(**names).encode(), n=2, r=1, p=1, dklen=32)

        patch.setattr(Puzzle, "_hash", hashed)

    return plant


def keeps_old_proofs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "PROOF_ROUNDS", 10**6)


def seats_any_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(first_seats, "FIRST_SEATS", 64)


def forgets_bans(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admissions, "bans", lambda _self: {})


def takes_proofs_of_before_a_ban_ended(patch: pytest.MonkeyPatch) -> None:
    puzzle = Door.puzzle

    def asked(self: Door, peer: PeerId, *, round: int) -> Puzzle | None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Admissions, "lifted", lambda _self: {})
            return puzzle(self, peer, round=round)

    patch.setattr(Door, "puzzle", asked)


FLOOD, WITH_MEMBER = "false proofs of strangers", "false proofs of strangers and of a member"
FOREIGN, SAVED = "proofs of others, old and foreign ones", "proofs saved up for the first plan"
SHOWN, BANNED = "one proof in many places", "proofs of a banned name"


@pytest.mark.parametrize(
    ("name", "plant", "problem"),
    [
        (FLOOD, checks_without_a_bound, "proofs, 356 are allowed"),
        (FLOOD, gives_strangers_nothing, "a newcomer that paid got no seat"),
        (WITH_MEMBER, trusts_members_that_mislead, "proofs, 356 are allowed"),
        (FOREIGN, hashes(salt="everybody"), "seats of strangers: x"),
        (FOREIGN, hashes(what="{plan} {nonce}"), "seats of strangers: x"),
        (FOREIGN, hashes(what="{run} {nonce}"), "seats of strangers: x"),
        (SAVED, keeps_old_proofs, "let in by an old proof"),
        (SAVED, seats_any_number, "more seats than there are first seats"),
        (SHOWN, hashes(salt="everybody"), "seats of strangers: x"),
        (BANNED, forgets_bans, "it had a seat again"),
        (BANNED, takes_proofs_of_before_a_ban_ended, "it had a seat again"),
    ],
)
def test_without_its_defence_it_fails(name: str, plant: Plant, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    outcome = ROWS[name].play(SEED)
    assert not outcome.has_passed and problem in outcome.happened, outcome
