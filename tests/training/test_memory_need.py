"""What a run is said to need, against the tensors that are there."""

import gc
from dataclasses import replace
from functools import partial
from typing import Literal

import pytest
import torch

from adloco_p2p.config.run_config import AveragingConfig, ModelConfig
from adloco_p2p.core.model.rules import GuardRules
from adloco_p2p.numerics.layout import Entry, Layout
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.memory_need import MemoryNeed, memory_need
from adloco_p2p.training.shell import frozen_bytes
from tests.training.small_run import ONE, RUN, TWO, effect, hosting, never, silent, train_round, with_run


def need_of(peer: Hosting) -> MemoryNeed:
    shell = peer._shell
    return memory_need(peer._run, shell.layout, matrices=shell.matrices, frozen_bytes=frozen_bytes(shell.module))


def on_device(peer: Hosting) -> int:
    instances = peer._instances.values()
    states = [tensor for instance in instances for tensor in instance.optimizer.state.values()]
    return sum(tensor.nbytes for tensor in (peer._shell.gradient, *(instance.local for instance in instances), *states))


@pytest.mark.parametrize("kind", ["adamw", "muon", "adamw8bit"])
def test_the_need_is_what_is_there(kind: Literal["adamw", "muon", "adamw8bit"]) -> None:
    if kind == "adamw8bit":
        pytest.importorskip("torchao")
    peer = hosting(with_run(inner=replace(RUN.inner, kind=kind)))
    peer.start([ONE])
    train_round(peer, effect())
    need = need_of(peer)
    size = need.num_parameters
    slack = 8 * 4352 if kind == "adamw8bit" else 0
    assert need.device <= on_device(peer) <= need.device + slack
    tensors, _ = peer.snapshot(ONE)
    assert need.checkpoint <= sum(tensor.nbytes for tensor in tensors.values()) <= need.checkpoint + slack
    peer.start([ONE, TWO])
    assert need.device + need.device_more <= on_device(peer) <= need.device + need.device_more + 2 * slack
    assert need.device <= 16 * size


def host_per_parameter(size: int, *, state: str = "float32", **averaging: object) -> float:
    run = with_run(averaging=AveragingConfig(**averaging), outer=replace(RUN.outer, state=state))  # type: ignore[arg-type]
    layout = Layout(entries=(Entry(name="weight", shape=(size,), offset=0, size=size),))
    return memory_need(run, layout, matrices=frozenset(), frozen_bytes=0).host / size


def test_codecs_and_overlap_add_to_the_host() -> None:
    host = partial(host_per_parameter, 10**9)

    # two boundaries; the last average and contribution; AdamW's state copied
    assert host() == 16 + 8 + 8
    assert host(recheck=0.0) == 16 + 4 + 8
    assert host(state="mixed", aggregation="mean") == 12 + 8 + 8
    # a rule that waits for all: both vectors in place of one boundary, what others sent, and what a retry keeps
    assert host(state="mixed") == 6 + 8 + 8 + 8
    # the contribution again; of two looks another host's, the mean of the others, and the parameters before the outer step
    assert host(recheck=0.0, assess_every=4) == 16 + 8 + 8 + 2 * 12
    assert host(state="bfloat16", assess_every=4) - host(state="bfloat16") == 2 * 10
    # the residual; one average, one contribution and the room for another average; AdamW's state copied
    assert host(codec="int8") == pytest.approx(16 + 4 + 3 + 8, abs=0.3)
    assert host(codec="int8", feedback=0.0) == pytest.approx(16 + 3 + 8, abs=0.3)
    assert host(codec="float16") == 16 + 6 + 8


def test_streamed_fragments_take_a_part_of_what_averaging_takes() -> None:
    """Two boundaries, and AdamW's state and the local parameters copied; the rest is divided by the fragments: the last average
    and contribution, and the next pseudo-gradient."""

    def host(count: int, **averaging: object) -> float:
        run = with_run(
            outer=replace(RUN.outer, overlap="streaming"),
            averaging=AveragingConfig(fragments=count, **averaging),  # type: ignore[arg-type]
        )
        layout = Layout(entries=(Entry(name="weight", shape=(10**9,), offset=0, size=10**9),))
        return memory_need(run, layout, matrices=frozenset(), frozen_bytes=0).host / 10**9

    assert [host(count) for count in (2, 4, 8)] == [16 + 12 + 12 / count for count in (2, 4, 8)]
    # one average, one contribution, the room for another average, and the next pseudo-gradient; the residual is of the whole
    assert host(4, codec="int8") == pytest.approx(16 + 12 + 4 + (3 + 4) / 4, abs=0.1)


def test_averaging_takes_the_place_of_the_older_boundary() -> None:
    """Both vectors, what a retry keeps and what others sent, beside what is kept and one boundary's state: AdamW's copy, which
    is not made meanwhile, is as large at most; with Muon, whose state is small, averaging takes the most."""
    muon = replace(RUN.inner, kind="muon")
    matrix = Layout(entries=(Entry(name="weight", shape=(10**9,), offset=0, size=10**9),))

    def host(**changed: object) -> float:
        run = with_run(inner=muon, **changed)
        return memory_need(run, matrix, matrices=frozenset({"weight"}), frozen_bytes=0).host / 10**9

    held = 2**28 / 10**9
    assert host(averaging=AveragingConfig(aggregation="mean")) == pytest.approx(8 + 8 + 12 + held)
    assert host() == 8 + 8 + 16
    assert host(guard=GuardRules(enabled=True)) == 24 + 8 + 16
    # the residual and the next one, what is sent, what others sent and what a retry keeps
    assert host(averaging=AveragingConfig(codec="int8")) == pytest.approx(8 + 4 + 3 + 15, abs=0.3)


def test_a_download_keeps_one_state_more() -> None:
    layout = Layout(entries=(Entry(name="weight", shape=(100,), offset=0, size=100),))

    def download(state: Literal["float32", "mixed", "bfloat16"]) -> int:
        run = with_run(outer=replace(RUN.outer, state=state))
        return memory_need(run, layout, matrices=frozenset(), frozen_bytes=0).download

    assert (download("float32"), download("mixed"), download("bfloat16")) == (800, 600, 400)


def test_earlier_averages_take_disk_and_no_memory() -> None:
    """Those of four rounds, of as many as fit into 12 bytes per parameter, or, of small models, into 64 MiB."""

    def averages(size: int, codec: Literal["float32", "float16"] = "float32") -> float:
        run = with_run(averaging=AveragingConfig(codec=codec))
        layout = Layout(entries=(Entry(name="weight", shape=(size,), offset=0, size=size),))
        return memory_need(run, layout, matrices=frozenset(), frozen_bytes=0).averages / size

    assert averages(10**6) == 4 * 4
    assert averages(10**7) == 3 * 4
    assert averages(10**7, "float16") == 4 * 2
    assert host_per_parameter(10**6) == host_per_parameter(10**7) == 16 + 8 + 8


def vectors(peer: Hosting, held: object) -> float:
    """Live vectors as long as the model, or longer, beside those of the device: in lengths of the model."""
    del held
    gc.collect()
    device = [peer._shell.gradient, peer._instances[ONE].local, *peer._instances[ONE].optimizer.state.values()]
    excluded = {tensor.untyped_storage().data_ptr() for tensor in device}
    found = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor) and item.untyped_storage().nbytes() >= 4 * peer.num_parameters:
            found[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
    return sum(size for address, size in found.items() if address not in excluded) / (4 * peer.num_parameters)


@pytest.mark.usefixtures("new_objects")
def test_a_round_makes_no_copy_that_is_not_named() -> None:
    """Two boundaries' outer parameters and momentum, then one and what is averaged, then two and what is saved: and nothing
    else."""
    architecture = {**RUN.model.architecture, "hidden_size": 96, "intermediate_size": 192}
    peer = hosting(with_run(model=ModelConfig(architecture=architecture)))
    peer.start([ONE])
    train_round(peer, effect())
    older = peer.state(ONE)
    assert vectors(peer, older) == 2
    train_round(peer, effect(round=1))
    assert vectors(peer, older) == 4
    peer.run_inner(effect(round=2), should_stop=never, on_progress=silent)
    average = peer.pseudo_gradient(ONE).clone()
    older = peer.state(ONE)  # `StateServer.keep_newest`
    assert vectors(peer, (older, average)) == 4
    peer.apply_outer(ONE, average, round=2)
    del average
    assert vectors(peer, older) == 4
    saved, _ = peer.snapshot(ONE)
    assert vectors(peer, (older, saved)) == 6


@pytest.mark.usefixtures("new_objects")
def test_the_memory_search_keeps_nothing() -> None:
    """What autograd saved for it must be gone: it once held the first weights and two samples' activations for ever."""
    peer = hosting()
    gc.collect()
    before = sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())
    assert peer.micro_batch_limit > 0
    peer.start([ONE])
    peer._shell.bind(peer._instances[ONE].local)
    gc.collect()
    weights = {parameter.data_ptr() for parameter in peer._shell.parameters}
    matrices = [item for item in gc.get_objects() if type(item) is torch.Tensor and item.shape == (64, 32)]
    assert all(item.data_ptr() in weights or item.untyped_storage().nbytes() > 4 * item.numel() for item in matrices)
    assert sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects()) < before + 100
