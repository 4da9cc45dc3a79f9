"""Fragments that are averaged while the device goes on (`outer.overlap: streaming`): by hand, and against the method written
down plainly."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from adloco_p2p.config.run_config import AveragingConfig, OuterConfig
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.numerics.layout import flatten, layout_of, strided_fragments
from adloco_p2p.numerics.reduction import weighted_average
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.model import build_model
from adloco_p2p.training.seeds import initial_seed
from tests.training.by_hand import of
from tests.training.small_run import ONE, RUN, effect, hosting, never, rows_of, silent, train_round, with_run

HOSTS = [PeerId("peer-a"), PeerId("peer-b")]
ROUNDS, STEPS, BATCH, DELAY, MIXING = 9, 4, 2, 2, 0.25
STREAMED = replace(RUN.outer, overlap="streaming", delay_steps=DELAY, mixing=MIXING)


def streamed(count: int, outer: OuterConfig = STREAMED, *, me: PeerId = HOSTS[0], codec: str = "float32") -> Hosting:
    averaging = AveragingConfig(fragments=count, codec=codec)  # type: ignore[arg-type]
    run = with_run(averaging=averaging, outer=outer, work=WorkRules(rounds=ROUNDS))
    return hosting(replace(run, inner=replace(RUN.inner, weight_decay=0.0)) if outer.kind == "sgd" else run, me=me)


def halves(peer: Hosting, vector: torch.Tensor) -> tuple[float, ...]:
    return tuple(of(torch.cat([vector[where] for where in part])) for part in strided_fragments(peer._vector_layout, 2))


def at_one(**outer: object) -> Hosting:
    """Every parameter is 1; outer steps of SGD with a rate of 0.5, and a quarter of the own parameters stays."""
    rules = replace(STREAMED, kind="sgd", learning_rate=0.5, momentum=0.0, **outer)  # type: ignore[arg-type]
    peer = streamed(2, rules)
    ones = torch.ones(peer.num_parameters)
    peer.adopt(ONE, ones, torch.zeros_like(ones))
    return peer


def trains(peer: Hosting, number: int, *, is_ahead: bool = False) -> float:
    work = replace(effect(round=number), is_ahead=is_ahead)
    assert peer.run_inner(work, should_stop=never, on_progress=silent) is not None
    assert len(peer.pseudo_gradient(ONE)) == peer.num_averaged(number)
    return of(peer.pseudo_gradient(ONE))


def applies(peer: Hosting, number: int, averaged: float, **details: torch.Tensor) -> tuple[float, ...]:
    """Outer parameters of both halves after the outer step, then local ones."""
    peer.apply_outer(ONE, torch.full((peer.num_averaged(number),), averaged), round=number, **details)
    return *halves(peer, peer.state(ONE)[0]), *halves(peer, peer._instances[ONE].local)


def test_two_fragments_by_hand(moves: list[float]) -> None:
    moves += [0.1, 0.2, 0.4, 0.4]
    peer = at_one()
    assert trains(peer, 0) == 0.1
    assert trains(peer, 1, is_ahead=True) == 0.3, "of the second half: 0.1 of round 0, 0.2 of round 1"
    assert applies(peer, 0, 0.2) == (0.9, 1.0, 0.7, 0.7), "1 - 0.5 * 0.2; the inner steps of round 1 are not disturbed"
    assert trains(peer, 2, is_ahead=True) == 0.45, "of the first half: 0.9 - (0.25 * 0.7 + 0.75 * 0.9 - 0.4)"
    assert applies(peer, 1, 0.4) == (0.9, 0.8, 0.45, 0.3)
    assert applies(peer, 2, 0.4) == (0.7, 0.8, 0.6375, 0.3), "nothing has begun since: 0.25 * 0.45 + 0.75 * 0.7"
    assert trains(peer, 3) == 0.525, "of the second half: 0.8 - (0.25 * 0.3 + 0.75 * 0.8 - 0.4), mixed late"


def test_a_void_round_leaves_its_fragment_for_its_next_turn(moves: list[float]) -> None:
    moves += [0.1, 0.2, 0.4]
    peer = at_one()
    trains(peer, 0)
    own = peer.pseudo_gradient(ONE)
    trains(peer, 1, is_ahead=True)
    peer.carry_over(ONE, own, round=0)
    assert of(peer.pseudo_gradient(ONE)) == 0.3, "of the other half: nothing of round 0 is added to it"
    assert applies(peer, 1, 0.0) == (1.0, 1.0, 0.7, 0.925)
    assert trains(peer, 2) == 0.7, "0.1, 0.2 and 0.4 of three rounds"


def test_what_a_codec_lost_waits_for_the_fragments_next_turn(moves: list[float]) -> None:
    moves += [0.1, 0.2, 0.4]
    peer = at_one()
    trains(peer, 0)
    trains(peer, 1, is_ahead=True)
    applies(peer, 0, 0.2, residual=torch.full((peer.num_averaged(0),), 0.5))
    assert of(peer.pseudo_gradient(ONE)) == 0.3, "it is not of this half"
    assert trains(peer, 2, is_ahead=True) == 0.95, "0.45 as above, and 0.5"


def test_a_refused_step_replaces_what_its_fragment_has_learned(moves: list[float]) -> None:
    moves += [0.1, 0.2, 0.4]
    peer = at_one()
    trains(peer, 0)
    trains(peer, 1, is_ahead=True)
    assert applies(peer, 0, math.inf)[:2] == (1.0, 1.0)
    assert trains(peer, 2, is_ahead=True) == 0.4, "from 1, the outer parameters"


def test_a_snapshot_in_the_middle_holds_what_is_still_to_be_mixed_in(moves: list[float]) -> None:
    moves += [0.1, 0.2]
    peer = at_one()
    trains(peer, 0)
    trains(peer, 1, is_ahead=True)
    applies(peer, 0, 0.2)
    resumed = at_one()
    resumed.restore(ONE, *peer.snapshot(ONE))
    assert halves(resumed, resumed._instances[ONE].local) == (0.85, 0.7)
    assert resumed.digests(ONE) == peer.digests(ONE)


def learning_rate(number: int, step: int) -> float:
    """Warm-up over 4 steps times a cosine from 1 to 0.1 over ten rounds, by hand."""
    progress = number / 10 + ((number + 1) / 10 - number / 10) * step / STEPS
    decay = 0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1e-2 * decay * min(1.0, (number * STEPS + step + 1) / 4)


class Plain:
    """One model that lives on, with its AdamW."""

    def __init__(self) -> None:
        self.model = build_model(RUN.model, vocab_size=256, sequence_length=32, seed=initial_seed(RUN, ONE))
        self.adam = torch.optim.AdamW(
            self.model.parameters(), lr=1.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
        )
        self.model.train()

    def step(self, number: int, place: int, step: int) -> None:
        ids = rows_of("train 0", ((number * len(HOSTS) + place) * STEPS + step) * BATCH, BATCH).input_ids
        self.adam.zero_grad()
        for row in ids.split(1):
            (self.model(input_ids=row, labels=row).loss * (1 / BATCH)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.param_groups[0]["lr"] = learning_rate(number, step)
        self.adam.step()

    def replace_(self, where: torch.Tensor, values: torch.Tensor, kept: float) -> None:
        """Value by value, by a mask."""
        whole = flatten(self.model)
        mixed = copy.deepcopy(whole) * kept + values * (1 - kept)
        mask = torch.zeros(len(whole), dtype=torch.bool)
        mask[where] = True
        torch.nn.utils.vector_to_parameters(torch.where(mask, mixed, whole), self.model.parameters())


def reference(count: int, arrives: Callable[[int], int | None]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outer parameters and the local ones of each worker. `arrives`: after how many inner steps of the next round the average
    of this one is there; none: before they begin."""
    workers = [Plain() for _ in HOSTS]
    outer = flatten(workers[0].model)
    momentum = torch.zeros_like(outer)
    fragments = [
        torch.cat([torch.arange(r.start, r.stop) for r in part])
        for part in strided_fragments(layout_of(workers[0].model), count)
    ]
    waiting: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    """Steps of this round after which a fragment is mixed in, its places, and the outer parameters."""
    for number in range(ROUNDS):
        for place, worker in enumerate(workers):
            for step in range(STEPS):
                for due, where, values in waiting:
                    if due == step:
                        worker.replace_(where, values, MIXING)
                worker.step(number, place, step)
        where = fragments[number % count]
        delta = weighted_average([(outer - flatten(worker.model))[where] for worker in workers], [1.0] * len(workers))
        parameter = torch.nn.Parameter(outer[where].clone())
        nesterov = torch.optim.SGD([parameter], lr=0.7, momentum=0.7, nesterov=True)
        nesterov.state[parameter]["momentum_buffer"] = momentum[where]
        parameter.grad = delta
        nesterov.step()
        outer, momentum = outer.clone(), momentum.clone()
        outer[where] = parameter.detach()
        momentum[where] = nesterov.state[parameter]["momentum_buffer"]
        arrival = arrives(number)
        waiting = [] if arrival is None else [(max(arrival, DELAY), where, outer)]
        if arrival is None:
            for worker in workers:
                worker.replace_(where, outer, MIXING)
    return outer, [flatten(worker.model) for worker in workers]


def arrives(number: int) -> int | None:
    """Now sooner, now later than `outer.delay_steps`, and after every fourth round with nothing to hide it behind."""
    return None if number % 4 == 3 or number == ROUNDS - 1 else (1, 2, 3)[number % 3]


Averaged = tuple[int, torch.Tensor]
"""A round that is averaged while the next one's inner steps are under way, and its average."""


def trains_beside(peer: Hosting, place: int, number: int, averaged: Averaged | None) -> torch.Tensor:
    """The pseudo-gradient of a round; the outer step of the round before lands when its average arrives."""
    work = effect(ONE, number, batch=BATCH, micro=1, steps=STEPS, first_sample=(number * len(HOSTS) + place) * STEPS * BATCH)
    steps = 0

    def should_stop() -> bool:
        nonlocal steps
        if averaged is not None and arrives(averaged[0]) == steps:
            peer.apply_outer(ONE, averaged[1], round=averaged[0])
        steps += 1
        return False

    peer.run_inner(replace(work, is_ahead=averaged is not None), should_stop=should_stop, on_progress=silent)
    return peer.pseudo_gradient(ONE)


@pytest.mark.parametrize("count", [2, 3])
def test_two_peers_equal_the_plain_loop(count: int) -> None:
    """Bit for bit; one of them is saved and restored at a boundary."""
    peers = [streamed(count, me=me) for me in HOSTS]
    for peer in peers:
        peer.start([ONE])
    waiting: Averaged | None = None
    for number in range(ROUNDS):
        if number == 4:
            resumed = streamed(count, me=HOSTS[1])
            resumed.restore(ONE, *peers[1].snapshot(ONE))
            peers[1] = resumed
        deltas = [trains_beside(peer, place, number, waiting) for place, peer in enumerate(peers)]
        waiting = number, weighted_average(deltas, [1.0] * len(deltas))
        if arrives(number) is None:
            for peer in peers:
                peer.apply_outer(ONE, waiting[1], round=number)
            waiting = None
    outer, locals_ = reference(count, arrives)
    for peer, local in zip(peers, locals_, strict=True):
        assert torch.equal(peer.state(ONE)[0], outer)
        assert torch.equal(peer._instances[ONE].local, local)
    assert peers[0].digests(ONE) == peers[1].digests(ONE)


def test_no_round_averages_more_than_a_fragment() -> None:
    peer = streamed(3)
    assert {peer.num_averaged(number) for number in range(ROUNDS)} <= {peer.num_parameters // 3, peer.num_parameters // 3 + 1}


def test_a_host_alone_mixes_too() -> None:
    peer = streamed(2)
    peer.start([ONE])
    train_round(peer, effect(round=0))
    outer, local = peer.state(ONE)[0], peer._instances[ONE].local
    first, _ = strided_fragments(peer._vector_layout, 2)
    assert not any(torch.equal(outer[where], local[where]) for where in first)
