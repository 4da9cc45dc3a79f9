"""What a node does for its seat where one costs computing, beside everything else."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.ledger.proof_of_work import Puzzle
from adloco_p2p.core.model.ledger_entry import ProofOfWork
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.model.telemetry import Proving
from adloco_p2p.runtime.adapters import seat_price
from adloco_p2p.runtime.adapters.seat_price import CALM_SECONDS, LEAP_ROUNDS, attempt_for_a_while, earn_seat
from adloco_p2p.storage.admission_files import keep_proof, read_proof

FREE = Puzzle(run=Digest("0" * 64), peer=PeerId("Q"), plan=Digest("1" * 64), round=9, price=1)
"""Every nonce solves it, ..."""
DEAR = replace(FREE, price=1 << 40)
"""... and none this one."""


class Over(Exception):
    """Nothing is left to look at."""


class Run:
    """A run as the node sees it: what it asks at each look, and what the node did by then."""

    def __init__(self, puzzles: Iterable[Puzzle | None], *, price: int = 1) -> None:
        self._puzzles = iter(puzzles)
        self.ledger = SimpleNamespace(plans=[SimpleNamespace(price=price)])
        self.shown: list[ProofOfWork] = []
        self.events: list[Proving] = []

    def puzzle(self) -> Puzzle | None:
        try:
            return next(self._puzzles)
        except StopIteration:
            raise Over from None

    def show(self, proof: ProofOfWork) -> None:
        self.shown.append(proof)

    def play(self, workdir: Path) -> None:
        with pytest.raises(Over):
            asyncio.run(earn_seat(workdir, cast(GossipAgreement, self), self.events.append))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IDLE_SECONDS", "SLICE_SECONDS", "CALM_SECONDS"):
        monkeypatch.setattr(seat_price, name, 0.0)


def test_attempts_end_with_a_solution_or_with_their_time() -> None:
    nonce, count, seconds = attempt_for_a_while(FREE)
    assert nonce is not None and FREE.attempt(nonce) and count == 1 and seconds > 0
    assert attempt_for_a_while(DEAR)[:2] == (None, 1)


def test_a_proof_is_kept_shown_and_reported_and_shown_again_after_a_restart(tmp_path: Path) -> None:
    run = Run([None, DEAR, DEAR, FREE, None])
    run.play(tmp_path)
    (proof,) = run.shown
    assert proof.round == 9 and read_proof(tmp_path) == proof
    assert [(event.attempts, event.is_over) for event in run.events] == [(1, False), (2, True)]
    again = Run([None])
    again.play(tmp_path)
    assert again.shown == [proof] and not again.events
    (tmp_path / "proof.json").write_bytes(b"{")
    damaged = Run([None])
    damaged.play(tmp_path)
    assert not damaged.shown, "another one is computed"


def test_no_event_of_a_search_comes_after_the_seat(tmp_path: Path) -> None:
    run = Run([DEAR, None])
    run.play(tmp_path)
    assert not run.events, "the seat came during the first attempts"


def test_a_run_without_a_price_is_shown_no_proof_that_lies_in_the_directory(tmp_path: Path) -> None:
    keep_proof(tmp_path, ProofOfWork(round=3, nonce=5))
    run = Run([], price=0)
    asyncio.run(earn_seat(tmp_path, cast(GossipAgreement, run), run.events.append))
    assert not run.shown


def test_a_peer_that_still_reads_the_ledger_does_not_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The price is one that every nonce pays; each look is a second after the one before."""
    monkeypatch.setattr(seat_price, "CALM_SECONDS", CALM_SECONDS)
    seconds = iter(range(1000))
    monkeypatch.setattr(seat_price, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    monkeypatch.setattr(seat_price, "attempt_for_a_while", lambda puzzle: (7, 1, 0.01))
    reading = [LEAP_ROUNDS * number for number in range(1, 9)]
    calm = [reading[-1] + number // 2 for number in range(1, 8)]
    run = Run(replace(FREE, round=round) for round in [*reading, *calm])
    run.play(tmp_path)
    assert run.shown[0].round == calm[int(CALM_SECONDS) - 1]
