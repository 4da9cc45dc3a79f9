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
from adloco_p2p.numerics.layout import Entry, Layout, flatten, layout_of, num_values, places, strided_fragments
from adloco_p2p.numerics.reduction import weighted_average
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.model import build_model
from adloco_p2p.training.seeds import initial_seed
from tests.training.by_hand import of
from tests.training.small_run import ONE, RUN, effect, hosting, never, rows_of, silent, train_round, with_run

HOSTS = [PeerId("peer-a"), PeerId("peer-b"), PeerId("peer-c")]
ROUNDS, STEPS, BATCH = 7, 3, 2


def layout(*entries: tuple[str, int]) -> Layout:
    ends = list(itertools.accumulate(size for _, size in entries))
    return Layout(
        entries=tuple(
            Entry(name=name, shape=(size,), offset=end - size, size=size)
            for (name, size), end in zip(entries, ends, strict=True)
        )
    )


def strided_order(model: Layout, count: int) -> list[int]:
    """The places of all values in the order in which fragments are cut from it, value by value."""
    layers = [[int(part) for part in entry.name.split(".") if part.isdecimal()][:1] for entry in model.entries]
    numbers = sorted({layer[0] for layer in layers if layer}, key=lambda number: layers.index([number]))
    spans = [list(range(entry.offset, entry.offset + entry.size)) for entry in model.entries]
    known = [place for place, layer in enumerate(layers) if layer]
    first = known[0] if known else len(layers)
    order = [span for place, span in enumerate(spans) if not layers[place] and place < first]
    for offset in range(count):
        for number in numbers[offset::count]:
            order += [span for place, span in enumerate(spans) if layers[place] == [number]]
    order += [span for place, span in enumerate(spans) if not layers[place] and place >= first]
    return [value for span in order for value in span]


_NAMES = st.sampled_from(["wte", "ln_f", "head", *(f"h.{layer}.{name}" for layer in range(7) for name in ("w", "b"))])


@given(entries=st.lists(st.tuples(_NAMES, st.integers(1, 40)), min_size=1, max_size=20), count=st.integers(1, 64))
def test_fragments_are_equal_cuts_of_the_strided_order(entries: list[tuple[str, int]], count: int) -> None:
    model = layout(*entries)
    size = model.num_parameters
    count = min(count, size)
    fragments, order = strided_fragments(model, count), strided_order(model, count)
    for turn, ranges in enumerate(fragments):
        values = [value for where in ranges for value in range(where.start, where.stop)]
        assert values == sorted(order[turn * size // count : (turn + 1) * size // count])
        assert num_values(ranges) == len(values)
        assert [value for where, there in places(ranges) for value in values[there]] == values
        assert all(later.start > earlier.stop for earlier, later in itertools.pairwise(ranges)), "neighbours are one range"


def test_layers_in_strides_by_hand() -> None:
    """Two values of an embedding, six layers of four, two of a norm and a head: 28 values in two fragments of 14."""
    model = layout(("wte", 2), *((f"h.{layer}.w", 4) for layer in range(6)), ("ln_f", 1), ("head", 1))
    assert strided_fragments(model, 2) == (
        (slice(0, 6), slice(10, 14), slice(18, 22)),  # the embedding and layers 0, 2 and 4
        (slice(6, 10), slice(14, 18), slice(22, 28)),  # layers 1, 3 and 5, and what follows them
    )


def test_fragments_of_a_model_without_layers_or_with_one_are_in_a_row() -> None:
    for entries in ([("a", 7), ("b", 3)], [("wte", 4), ("h.0.w", 3), ("h.0.b", 1), ("ln_f", 2)]):
        assert strided_fragments(layout(*entries), 3) == ((slice(0, 3),), (slice(3, 6),), (slice(6, 10),))


def test_the_last_round_averages_everything() -> None:
    peer = fragmented(3, rounds=7)
    assert [peer.num_averaged(number) for number in (5, 6)] == [peer.num_averaged(2), peer.num_parameters]


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
    first, second = strided_fragments(peer._vector_layout, 2)
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
        halves = [torch.cat([vector[where] for where in part]) for vector in (outer, local) for part in (first, second)]
        return of(halves[0]), of(halves[1]), of(halves[2]), of(halves[3])

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
    order = torch.tensor(strided_order(layout_of(model), count))
    bounds = [size * place // count for place in range(count + 1)]
    turns_of = [order[a:b].sort().values for a, b in itertools.pairwise(bounds)]
    fragments = [torch.nn.Parameter(outer.detach()[where].clone()) for where in turns_of]
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
            where = turns_of[turn]
            locals_ = [flatten(worker)[where] for worker in workers]
            deltas = [fragments[turn].detach() - local for local in locals_]
            fragments[turn].grad = weighted_average(deltas, [1.0] * len(deltas))
            nesterovs[turn].step()
            for worker in workers:
                whole = flatten(worker)
                whole[where] = fragments[turn].detach()
                torch.nn.utils.vector_to_parameters(whole, worker.parameters())
    whole = torch.empty(size)
    for where, part in zip(turns_of, fragments, strict=True):
        whole[where] = part.detach()
    return whole


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

    def halves(whole: torch.Tensor) -> list[float]:
        return [of(torch.cat([whole[where] for where in part])) for part in strided_fragments(peer._vector_layout, 2)]

    assert halves(peer._residual[ONE]) == [0.25, 0.0]
    saved, _ = peer.snapshot(ONE)
    train_round(peer, effect(round=1), lost=0.5)
    assert halves(saved["residual"]) == [0.25, 0.0]
    assert halves(peer._residual[ONE]) == [0.25, 0.5]
    train_round(peer, effect(round=2))
    assert halves(peer._residual[ONE]) == [0.0, 0.5], "it was sent, and is not sent again"


def test_a_host_that_diverged_starts_every_fragment_from_the_outer_parameters() -> None:
    """Not only that of the round: the others would be no numbers for good."""
    peer = fragmented(2)
    peer.start([ONE])
    train_round(peer, effect(round=0))
    assert peer.run_inner(effect(round=1), should_stop=never, on_progress=silent) is not None
    hosted = peer._instances[ONE]
    hosted.local.fill_(math.nan)
    hosted.has_diverged = True
    peer.apply_outer(ONE, torch.zeros(peer.num_averaged(1)), round=1)
    assert torch.equal(hosted.local, peer.state(ONE)[0])


def test_a_checkpoint_without_local_parameters_is_refused() -> None:
    whole, parts = fragmented(1), fragmented(2)
    whole.start([ONE])
    with pytest.raises(StorageError, match="local is missing"):
        parts.restore(ONE, *whole.snapshot(ONE))
