"""Fragments of the parameter vector that are averaged in turn: by hand, and against the method written down plainly."""

import copy
import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adloco_p2p.config.run_config import AveragingConfig
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import StorageError
from adloco_p2p.numerics.layout import flatten, fragment
from adloco_p2p.numerics.reduction import weighted_average
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.model import build_model
from adloco_p2p.training.seeds import initial_seed
from tests.training.by_hand import of
from tests.training.small_run import ONE, RUN, effect, hosting, never, rows_of, silent, train_round, with_run

HOSTS = [PeerId("peer-a"), PeerId("peer-b"), PeerId("peer-c")]
ROUNDS, STEPS, BATCH = 7, 3, 2


@given(size=st.integers(1, 1000), count=st.integers(1, 64), first=st.integers(0, 100))
def test_every_value_has_its_turn_once_in_as_many_rounds(size: int, count: int, first: int) -> None:
    count = min(count, size)
    turns = [fragment(number, size=size, count=count, rounds=1000) for number in range(first, first + count)]
    values = [value for turn in turns for value in range(size)[turn]]
    assert sorted(values) == list(range(size))
    sizes = [turn.stop - turn.start for turn in turns]
    assert max(sizes) - min(sizes) <= 1


def test_the_last_round_averages_everything() -> None:
    assert fragment(6, size=10, count=3, rounds=7) == slice(0, 10)
    assert [fragment(number, size=10, count=3, rounds=7) for number in range(3)] == [slice(0, 3), slice(3, 6), slice(6, 10)]


def fragmented(count: int, *, rounds: int = ROUNDS, **outer: Any) -> Hosting:
    run = with_run(
        averaging=AveragingConfig(fragments=count),
        work=WorkRules(rounds=rounds),
        outer=replace(RUN.outer, **outer),
    )
    return hosting(run)


def test_two_fragments_by_hand(moves: list[float]) -> None:
    """Each half of the parameters, before and after its turn. Outer learning rate 0.5, all ones at the start."""
    moves += [0.1, 0.2, 0.4]
    peer = fragmented(2, kind="sgd", learning_rate=0.5, momentum=0.0)
    size = peer.num_parameters
    first, second = slice(0, size // 2), slice(size // 2, size)
    peer.adopt(ONE, torch.ones(size), torch.zeros(size))

    def trains(number: int) -> float:
        peer.run_inner(effect(round=number), should_stop=never, on_progress=silent)
        delta = peer.pseudo_gradient(ONE)
        assert len(delta) == peer.num_averaged(number)
        return of(delta)

    def applies(number: int, averaged: float) -> tuple[float, float, float, float]:
        """Outer parameters of both halves, then local ones."""
        peer.apply_outer(ONE, torch.full((peer.num_averaged(number),), averaged), round=number)
        outer, local = peer.state(ONE)[0], peer._instances[ONE].local
        return of(outer[first]), of(outer[second]), of(local[first]), of(local[second])

    assert trains(0) == 0.1
    assert applies(0, 0.2) == (0.9, 1.0, 0.9, 0.9), "the second half goes on from where it is"
    assert trains(1) == 0.3, "0.1 of round 0 and 0.2 of round 1"
    assert applies(1, 0.4) == (0.9, 0.8, 0.7, 0.8)
    assert trains(2) == 0.6
    assert applies(2, 0.6) == (0.6, 0.8, 0.6, 0.4)


def test_one_fragment_is_the_whole_vector() -> None:
    ends = []
    for count in (1, 2):
        peer = fragmented(count, rounds=1)
        peer.start([ONE])
        ends.append((train_round(peer, effect(round=0)), peer.digests(ONE)))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1], "the only round is the last"


def reference(count: int) -> torch.Tensor:
    """One model per worker that lives on, AdamW on its parameters, the outer step on one slice of flat vectors per round."""
    model = build_model(RUN.model, vocab_size=256, sequence_length=32, seed=initial_seed(RUN, ONE))
    workers = [copy.deepcopy(model) for _ in HOSTS]
    adams = [
        torch.optim.AdamW(w.parameters(), lr=1.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True) for w in workers
    ]
    outer = torch.nn.Parameter(flatten(model))
    size = len(outer)
    bounds = [size * place // count for place in range(count + 1)]
    fragments = [torch.nn.Parameter(outer.detach()[a:b].clone()) for a, b in itertools.pairwise(bounds)]
    nesterovs = [torch.optim.SGD([part], lr=0.7, momentum=0.7, nesterov=True) for part in fragments]
    for number in range(ROUNDS):
        for place, (worker, adam) in enumerate(zip(workers, adams, strict=True)):
            worker.train()
            for step in range(STEPS):
                ids = rows_of("train 0", (number * len(HOSTS) + place) * STEPS * BATCH + step * BATCH, BATCH).input_ids
                adam.zero_grad()
                for row in ids.split(1):
                    (worker(input_ids=row, labels=row).loss * (1 / BATCH)).backward()
                torch.nn.utils.clip_grad_norm_(worker.parameters(), 1.0)
                adam.param_groups[0]["lr"] = learning_rate(number, step)
                adam.step()
        turns = range(count) if number == ROUNDS - 1 else [number % count]
        for turn in turns:
            where = slice(bounds[turn], bounds[turn + 1])
            locals_ = [flatten(worker)[where] for worker in workers]
            deltas = [fragments[turn].detach() - local for local in locals_]
            fragments[turn].grad = weighted_average(deltas, [1.0] * len(deltas))
            nesterovs[turn].step()
            for worker in workers:
                whole = flatten(worker)
                whole[where] = fragments[turn].detach()
                torch.nn.utils.vector_to_parameters(whole, worker.parameters())
    return torch.cat([part.detach() for part in fragments])


def learning_rate(number: int, step: int) -> float:
    """Warm-up over 4 steps times a cosine from 1 to 0.1 over ten rounds, by hand."""
    progress = number / 10 + ((number + 1) / 10 - number / 10) * step / STEPS
    decay = 0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1e-2 * decay * min(1.0, (number * STEPS + step + 1) / 4)


@pytest.mark.parametrize("count", [1, 3])
def test_three_peers_equal_the_plain_loop(count: int) -> None:
    """Bit for bit; one of them is saved and restored in the middle."""
    run = with_run(averaging=AveragingConfig(fragments=count), work=WorkRules(rounds=ROUNDS))
    peers = [hosting(run, me=me) for me in HOSTS]
    for peer in peers:
        peer.start([ONE])
    for number in range(ROUNDS):
        if number == 4:
            resumed = hosting(run, me=HOSTS[1])
            resumed.restore(ONE, *peers[1].snapshot(ONE))
            peers[1] = resumed
        deltas = []
        for place, peer in enumerate(peers):
            first = (number * len(HOSTS) + place) * STEPS * BATCH
            work = effect(ONE, number, batch=BATCH, micro=1, steps=STEPS, first_sample=first)
            peer.run_inner(work, should_stop=never, on_progress=silent)
            deltas.append(peer.pseudo_gradient(ONE))
        averaged = weighted_average(deltas, [1.0] * len(deltas))
        for peer in peers:
            peer.apply_outer(ONE, averaged, round=number)
    assert len({peer.digests(ONE) for peer in peers}) == 1
    assert torch.equal(peers[0].state(ONE)[0], reference(count))


def test_a_joiner_starts_every_fragment_from_the_outer_parameters() -> None:
    peer, joiner = fragmented(3), fragmented(3)
    peer.start([ONE])
    train_round(peer, effect(round=0))
    assert not torch.equal(peer._instances[ONE].local, peer.state(ONE)[0])
    joiner.adopt(ONE, *peer.state(ONE))
    assert torch.equal(joiner._instances[ONE].local, peer.state(ONE)[0])
    assert joiner.digests(ONE) == peer.digests(ONE)


def test_what_a_codec_loses_waits_for_the_fragments_next_turn() -> None:
    peer = fragmented(2)
    peer.start([ONE])
    train_round(peer, effect(round=0), lost=0.25)
    half = peer.num_averaged(0)
    assert (of(peer._residual[ONE][:half]), of(peer._residual[ONE][half:])) == (0.25, 0.0)
    saved, _ = peer.snapshot(ONE)
    train_round(peer, effect(round=1), lost=0.5)
    assert (of(saved["residual"][:half]), of(saved["residual"][half:])) == (0.25, 0.0)
    assert (of(peer._residual[ONE][:half]), of(peer._residual[ONE][half:])) == (0.25, 0.5)


def test_a_checkpoint_without_local_parameters_is_refused() -> None:
    whole, parts = fragmented(1), fragmented(2)
    whole.start([ONE])
    with pytest.raises(StorageError, match="local is missing"):
        parts.restore(ONE, *whole.snapshot(ONE))
