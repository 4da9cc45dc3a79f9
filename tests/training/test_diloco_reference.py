"""The independent version: DiLoCo written down plainly in PyTorch gives the same parameters, bit for bit, as three peers."""

import copy
import math

import pytest
import torch

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.numerics.layout import flatten
from adloco_p2p.training.model import build_model
from adloco_p2p.training.seeds import initial_seed
from tests.training.small_run import ME, ONE, RUN, SyntheticFeed, effect, hosting, never, rows_of, silent

HOSTS = [PeerId("peer-a"), PeerId("peer-b"), PeerId("peer-c")]
ROUNDS, STEPS = 3, 6


def learning_rate(round_number: int, step: int) -> float:
    """Warm-up over 4 steps times a cosine from 1 to 0.1 over ten rounds, by hand."""
    progress = round_number / 10 + ((round_number + 1) / 10 - round_number / 10) * step / STEPS
    decay = 0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1e-2 * decay * min(1.0, (round_number * STEPS + step + 1) / 4)


def reference(batches: tuple[int, ...], micro: int, *, is_delayed: bool = False) -> torch.Tensor:
    """Workers are deep copies of the model; AdamW lives on, the outer optimizer is torch's SGD with Nesterov momentum. Where
    its steps are delayed, every round but the first begins one outer step earlier."""
    outer = build_model(RUN.model, vocab_size=256, sequence_length=32, seed=initial_seed(RUN, ONE))
    workers = [copy.deepcopy(outer) for _ in batches]
    adams = [
        torch.optim.AdamW(worker.parameters(), lr=1.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
        for worker in workers
    ]
    nesterov = torch.optim.SGD(outer.parameters(), lr=0.7, momentum=0.7, nesterov=True)
    older = copy.deepcopy(outer)
    for round_number in range(ROUNDS):
        for worker, adam, batch, first in zip(workers, adams, batches, first_samples(batches, round_number), strict=True):
            worker.load_state_dict((older if is_delayed else outer).state_dict())
            worker.train()
            for step in range(STEPS):
                rows = rows_of("train 0", first + step * batch, batch)
                adam.zero_grad()
                for start in range(0, batch, micro):
                    ids = rows.input_ids[start : start + micro]
                    loss = worker(input_ids=ids, labels=ids).loss  # transformers shifts
                    (loss * (len(ids) / batch)).backward()
                torch.nn.utils.clip_grad_norm_(worker.parameters(), 1.0)
                adam.param_groups[0]["lr"] = learning_rate(round_number, step)
                adam.step()
        for parameters in zip(
            outer.parameters(),
            (older if is_delayed else outer).parameters(),
            *(worker.parameters() for worker in workers),
            strict=True,
        ):
            _, start, *ends = (parameter.detach() for parameter in parameters)
            # sum n_m Delta_m / N in host order, each share, product and sum rounded to float32
            parameters[0].grad = torch.zeros_like(start)
            for batch, end in zip(batches, ends, strict=True):
                parameters[0].grad += (start - end) * torch.tensor(batch / sum(batches), dtype=torch.float32)
        older.load_state_dict(outer.state_dict())
        nesterov.step()
    return flatten(outer)


def first_samples(batches: tuple[int, ...], round_number: int) -> list[int]:
    start = round_number * STEPS * sum(batches)
    return [start + STEPS * sum(batches[:place]) for place in range(len(batches))]


@pytest.mark.parametrize(
    ("batches", "micro"),
    [
        pytest.param((1, 1, 1), 1, id="one sample each"),
        pytest.param((4, 4, 4), 2, id="two micro-batches each"),
        pytest.param((4, 2, 8), 1, id="unequal work"),
    ],
)
def test_three_peers_equal_the_plain_loop(batches: tuple[int, ...], micro: int) -> None:
    peers = [hosting(me=me) for me in HOSTS]
    for peer in peers:
        peer.start([ONE])
    for round_number in range(ROUNDS):
        deltas, weights = [], []
        for peer, batch, first in zip(peers, batches, first_samples(batches, round_number), strict=True):
            work = effect(ONE, round_number, batch=batch, micro=micro, steps=STEPS, first_sample=first)
            result = peer.run_inner(work, should_stop=never, on_progress=silent)
            assert result is not None
            deltas.append(peer.pseudo_gradient(ONE))
            weights.append(result.samples)
        steps = [STEPS] * len(peers)
        averaged = aggregate(deltas, weights, steps, rule=rule_named("mean"), codec=codec_named("float32")).vector
        for peer in peers:
            peer.apply_outer(ONE, averaged, round=round_number)
    assert len({peer.digests(ONE) for peer in peers}) == 1
    assert torch.equal(peers[0].state(ONE)[0], reference(batches, micro))


def test_the_reference_moves() -> None:
    """So that the equality above is not that of untrained models."""
    peer = hosting(me=ME, feed=SyntheticFeed())
    peer.start([ONE])
    assert float((peer.state(ONE)[0] - reference((1,), 1)).norm()) > 0.1
