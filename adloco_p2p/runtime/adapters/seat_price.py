"""How a node computes the proof of work of a run that asks for one, beside everything else that it does."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.ledger.proof_of_work import Puzzle
from adloco_p2p.core.model.ledger_entry import ProofOfWork
from adloco_p2p.core.model.scalars import LARGEST_COUNT
from adloco_p2p.core.model.telemetry import Proving
from adloco_p2p.storage.admission_files import keep_proof, read_proof

IDLE_SECONDS = 1.0
SLICE_SECONDS = 0.5
"""Attempts in a row, without a look at newer plans, or whether the node ends."""
SHOWN_SECONDS = 15.0
"""From one event about it to the next."""


@dataclass(slots=True, kw_only=True)
class Search:
    """One search, from the first attempt to the solution; newer plans go on with it."""

    shown_at: float = float("-inf")
    attempts: int = 0
    seconds: float = 0.0
    """Spent in attempts."""

    def event(self, puzzle: Puzzle, *, is_over: bool) -> Proving:
        return Proving(price=puzzle.price, attempts=self.attempts, seconds=self.seconds, is_over=is_over)


def attempt_for_a_while(puzzle: Puzzle) -> tuple[int | None, int, float]:
    """The nonce, where one was found; attempts, and seconds that they took. It begins anywhere: what was tried before a restart
    is hardly tried again."""
    began, first, count = time.monotonic(), random.SystemRandom().randrange(LARGEST_COUNT // 2), 0
    while True:
        is_solved = puzzle.attempt(first + count)
        count += 1
        seconds = time.monotonic() - began
        if is_solved or seconds >= SLICE_SECONDS:
            return (first + count - 1 if is_solved else None), count, seconds


async def earn_seat(workdir: Path, agreement: GossipAgreement, write: Callable[[Proving], None]) -> None:
    """Find a proof of work whenever the run asks this peer for one, on one core, until cancelled. The last one is on the disk:
    a restart within its rounds costs nothing."""
    known, search = read_proof(workdir), None
    if known is not None:
        agreement.show(known)
    while True:
        puzzle = agreement.puzzle()
        if puzzle is None:
            search = None
            await asyncio.sleep(IDLE_SECONDS)
            continue
        search = search or Search()
        nonce, count, seconds = await asyncio.to_thread(attempt_for_a_while, puzzle)
        search.attempts += count
        search.seconds += seconds
        now = time.monotonic()
        if nonce is not None:
            proof = ProofOfWork(round=puzzle.round, nonce=nonce)
            keep_proof(workdir, proof)
            agreement.show(proof)
        if nonce is not None or now - search.shown_at >= SHOWN_SECONDS:
            search.shown_at = now
            write(search.event(puzzle, is_over=nonce is not None))
