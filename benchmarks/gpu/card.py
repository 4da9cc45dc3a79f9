"""Shared parts of this package: models, rows, a peer alone on the card, and times that wait for the card."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import EvaluationConfig, InnerConfig, ModelConfig, RunConfig
from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training.hosting import Hosting
from benchmarks.equal_hosts import ME, InMemory, work_of
from benchmarks.nodes import llama

ONE, ROUNDS = InstanceId(0), 10
LENGTH, VOCAB_SIZE = 1024, 50257
DENSE_BFLOAT16 = 989e12
"""Operations per second of an H100 or H200 by its datasheet, to which the share of the card's peak (MFU) refers."""
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
"""124 million parameters with the vocabulary of GPT-2."""
LLAMA_30M = llama(width=384, layers=8, heads=6, intermediate=1024)
"""33 million parameters with the vocabulary of GPT-2."""


def random_rows(*, length: int = LENGTH, vocab_size: int = VOCAB_SIZE, count: int = 256, documents: int = 1) -> InMemory:
    """Return a feed of the same random rows again and again."""
    ids = torch.randint(vocab_size, (count, length), generator=torch.Generator().manual_seed(1))
    positions = None if documents == 1 else torch.arange(length).remainder(-(-length // documents)).repeat(count, 1)
    return InMemory(Batch(input_ids=ids, labels=ids, positions=positions), vocab_size=vocab_size)


def run_of(
    architecture: dict[str, Any], *, precision: Literal["float32", "bfloat16"] = "bfloat16", **changes: Any
) -> RunConfig:
    """Return a run with a constant batch, which is not measured."""
    model = ModelConfig(architecture=architecture, precision=precision)
    run = RunConfig(model=model, evaluation=EvaluationConfig(rows=1), inner=InnerConfig(learning_rate=1e-4))
    return replace(run, batch=replace(run.batch, test="constant"), **changes)


def peer_of(run: RunConfig, feed: InMemory | None = None, *, instances: int = 1, **machine: Any) -> Hosting:
    """Return a peer on the card, with so many instances."""
    config = PeerConfig(device="cuda", max_instances=instances, **machine)
    peer = Hosting(run, config, ME, feed or random_rows())
    peer.start([InstanceId(number) for number in range(instances)])
    return peer


def work(*, batch: int, micro: int, steps: int, number: int = 0, instance: InstanceId = ONE) -> RunInner:
    """Return a round of one host, of ROUNDS."""
    return work_of(0, number, hosts=[ME], instance=instance, batch=batch, inner_steps=steps, rounds=ROUNDS, micro=micro)


def train(peer: Hosting, effect: RunInner) -> InnerResult:
    """Do the inner steps of a round as the node does; the card has then finished, too."""
    result = peer.run_inner(effect, should_stop=lambda: False, on_progress=lambda *_: None)
    assert result is not None
    return result


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds until the card has finished."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def mfu(tokens_per_second: float, *, parameters: int, layers: int, width: int, length: int = LENGTH) -> float:
    """Return the share of DENSE_BFLOAT16: 6 operations per parameter and token, and those of attention, as nanoGPT counts them
    (PaLM's appendix B)."""
    return tokens_per_second * (6 * parameters + 12 * layers * width * length) / DENSE_BFLOAT16


def describe() -> str:
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
