"""The training room on virtual GPUs: every copy between device and host is asked for, and the results are the processor's."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from adloco_p2p.cli import main
from adloco_p2p.config.run_config import AveragingConfig, LoraConfig, ModelConfig, RunConfig
from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.core.model.lineage import Fork, Merge
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.errors import DeviceError
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training import chunked_loss, memory_search
from adloco_p2p.training import hosting as hosting_module
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.memory_search import search_cuda
from adloco_p2p.training.shell import ModelShell
from tests.training.small_run import (
    LENGTH,
    ONE,
    PEER,
    RUN,
    THREE,
    TWO,
    Rows,
    SyntheticFeed,
    effect,
    hosting,
    never,
    silent,
    train_round,
)
from tests.training.test_adapters import save_base
from tests.training.test_documents import TRIAL, varlen_by_hand
from tests.training.test_several_devices import history
from tests.training.virtual_gpu import DeviceTensor, virtual_gpus

GPU = replace(PEER, device="cuda", max_micro_batch=8)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    with virtual_gpus(monkeypatch, 2) as seen:
        monkeypatch.setattr(hosting_module, "search_cuda", lambda *_, **__: 4)  # it takes longer than all else
        yield seen


def check_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Sums are cut differently on a GPU."""
    torch.testing.assert_close(found.float(), expected.float(), rtol=1e-4, atol=2e-5)


def with_(part: str, **changes: object) -> RunConfig:
    return replace(RUN, **{part: replace(getattr(RUN, part), **changes)})


RUNS: dict[str, RunConfig] = {
    "as shipped": RUN,
    "muon": with_("inner", kind="muon"),
    "half states": with_("outer", state="bfloat16"),
    "two fragments": replace(RUN, averaging=AveragingConfig(fragments=2), work=replace(RUN.work, rounds=9)),
    "ahead": with_("outer", overlap="eager"),
}


class PackedRows(Rows):
    def take(self, num_samples: int) -> Batch:
        positions = torch.arange(LENGTH).repeat(num_samples, 1)
        positions[:, LENGTH // 2 :] -= LENGTH // 2
        return replace(super().take(num_samples), positions=positions)


class Documents(SyntheticFeed):
    """Two documents in every row."""

    def open(self, *, instance: InstanceId, peer: PeerId, round: int, first_sample: int) -> Rows:
        return PackedRows(self, instance, first_sample)


def test_a_virtual_gpu_notices_what_a_real_one_would(seen: Counter[str]) -> None:
    on_host = torch.ones(3)
    on_gpu = on_host.to("cuda:0")
    assert on_gpu.device == torch.device("cuda", 0) and on_gpu.to("cuda:0") is on_gpu and on_gpu[1:].is_cuda
    with pytest.raises(RuntimeError, match="tensors on cpu and cuda:0"):
        on_gpu.add_(on_host)
    with pytest.raises(RuntimeError, match="tensors on cuda:0 and cuda:1"):
        torch.cat([on_gpu, on_gpu.to("cuda:1")])
    with pytest.raises(TypeError, match="numpy"):
        on_gpu.numpy()
    with pytest.raises(AssertionError, match="not waited for"):
        on_gpu.to("cpu", non_blocking=True)
    before = seen["reads"]
    assert bool((on_gpu + 1 > 1).all()) and float(on_gpu.sum()) == 3 and seen["reads"] == before + 2


def life(peer: Hosting, *, is_ahead: bool = False) -> dict[InstanceId, dict[str, torch.Tensor]]:
    """A round, a fork, a second round that accumulates, a merge, a restart, losses. Returns what a checkpoint would hold."""
    peer.start([ONE, TWO])
    for instance in (ONE, TWO):
        train_round(peer, effect(instance, batch=3, steps=2))
    peer.transition([Fork(source=ONE, targets=(THREE,))], [])
    work = effect(THREE, 1, batch=5, micro=2, steps=2)
    if is_ahead:
        assert peer.run_inner(work, should_stop=never, on_progress=silent) is not None
        waiting = peer.pseudo_gradient(THREE).clone()
        assert peer.run_inner(replace(effect(THREE, 2), is_ahead=True), should_stop=never, on_progress=silent) is not None
        peer.apply_outer(THREE, waiting, round=1)
        peer.carry_over(THREE, peer.pseudo_gradient(THREE), round=2)
    else:
        train_round(peer, work)
    peer.transition([], [Merge(sources=(ONE, TWO), target=ONE, weights=(0.25, 0.75), reason="test")])
    for instance in (ONE, THREE):
        tensors, meta = peer.snapshot(instance)
        peer.restore(instance, tensors, meta)
        losses = [peer.evaluate(instance)]
        train_round(peer, effect(instance, 3, batch=3, steps=1))
        losses.append(peer.evaluate(instance))
        assert losses[0] < 6 and losses[1] < 6, losses
    return {instance: peer.snapshot(instance)[0] for instance in peer.hosted}


def check_equal(found: dict[InstanceId, dict[str, torch.Tensor]], expected: dict[InstanceId, dict[str, torch.Tensor]]) -> None:
    assert found.keys() == expected.keys()
    for instance, tensors in expected.items():
        assert found[instance].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert type(found[instance][name]) is torch.Tensor, f"{name} is still on the GPU"
            check_close(found[instance][name], tensor)


@pytest.mark.parametrize("name", RUNS)
def test_a_gpu_trains_as_the_processor_does(name: str, seen: Counter[str]) -> None:
    is_ahead = name == "ahead"
    with sdpa_kernel(SDPBackend.MATH):
        expected = life(hosting(RUNS[name]), is_ahead=is_ahead)
    peer = hosting(RUNS[name], peer=GPU)
    assert isinstance(peer._shell.gradient, DeviceTensor)
    check_equal(life(peer, is_ahead=is_ahead), expected)


def test_so_does_a_model_with_adapters_whose_activations_are_recomputed(seen: Counter[str], tmp_path: Path) -> None:
    model = ModelConfig(pretrained=str(save_base(tmp_path)), lora=LoraConfig(rank=2))
    run = replace(RUN, model=model)
    with sdpa_kernel(SDPBackend.MATH):
        expected = life(hosting(run))
    check_equal(life(hosting(run, peer=replace(GPU, activation_checkpointing=True))), expected)


def test_so_does_a_chunked_loss_on_packed_documents(seen: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_loss, "LARGE_VOCABULARY", 2)
    monkeypatch.setattr(chunked_loss, "CHUNK_VALUES", 7 * 256)
    with sdpa_kernel(SDPBackend.MATH):
        expected = life(hosting(feed=Documents()))
    peer = hosting(peer=GPU, feed=Documents())
    assert peer._shell.is_loss_chunked
    check_equal(life(peer), expected)


def test_two_gpus_at_once_end_as_one(seen: Counter[str]) -> None:
    (in_turn, _), (at_once, placed) = history(GPU), history(replace(GPU, device=("cuda:0", "cuda:1")))
    assert placed == {ONE: ("cuda:0",), TWO: ("cuda:1",), THREE: ("cuda:1",)}
    for instance, (digests, loss, tensors) in in_turn.items():
        assert (digests, loss) == at_once[instance][:2]
        assert all(torch.equal(tensor, at_once[instance][2][name]) for name, tensor in tensors.items())


@pytest.mark.parametrize("devices", [("cuda:0", "cuda:1"), ("cuda:0", "cpu")])
def test_an_instance_that_two_devices_share_trains_as_on_one(devices: tuple[str, ...], seen: Counter[str]) -> None:
    alone, shared = hosting(peer=GPU), hosting(peer=replace(GPU, device=devices))
    for peer in (alone, shared):
        peer.start([ONE])
    shared.place(ONE, (0, 1))
    for number in range(2):
        work = effect(round=number, batch=5)
        check_close(train_round(shared, work), train_round(alone, work))


def test_an_instance_that_waits_on_the_host_trains_on_as_it_was(seen: Counter[str]) -> None:
    stays, waits = hosting(peer=GPU), hosting(peer=GPU)
    for peer in (stays, waits):
        peer.start([ONE, TWO])
        train_round(peer, effect(ONE))
    waits._make_room(0, TWO)
    waits.discard(ONE)
    assert waits._instances[ONE]._trained is None and waits._instances[ONE]._waiting is not None
    for peer in (stays, waits):
        train_round(peer, effect(ONE, 1))
    assert waits.digests(ONE) == stays.digests(ONE)


def waits_of(seen: Counter[str], peer: Hosting, *, steps: int, batch: int, micro: int) -> Counter[str]:
    """What a round of so many inner steps makes the host wait for."""
    peer.discard(ONE)
    before = seen.copy()
    peer.run_inner(effect(ONE, steps=steps, batch=batch, micro=micro), should_stop=never, on_progress=silent)
    return seen - before


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_inner_steps_do_not_wait_for_the_gpu(kind: str, seen: Counter[str]) -> None:
    """Its queue never runs dry: the rows come from pinned memory, and no value is read before the end of the round but by those
    who watch the progress."""
    peer = hosting(with_("inner", kind=kind), peer=GPU)
    peer.start([ONE])
    few, many = (waits_of(seen, peer, steps=steps, batch=4, micro=2) for steps in (4, 8))
    assert many - few == Counter({"copies to a device": 4 * 2, "copies to the host": 1}), "rows; one more measured step"
    assert few["reads"] == 3 and few["copies to the host"] == 1, "at the end: the loss, and whether the parameters are sound"


@pytest.mark.parametrize("has_kernel", [False, True])
def test_neither_do_rows_of_several_documents(has_kernel: bool, seen: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would look at the positions before it makes the mask."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_by_hand)
    peer = hosting(peer=GPU, feed=Documents())
    assert not has_kernel or peer._shell.try_document_kernel(TRIAL)
    peer.start([ONE])
    few, many = (waits_of(seen, peer, steps=steps, batch=4, micro=2) for steps in (4, 8))
    assert many - few == Counter({"copies to a device": 4 * 3, "copies to the host": 1})


@pytest.mark.parametrize(
    ("attention", "precision", "is_deterministic", "is_asked_for"),
    [
        ("document", "auto", False, True),
        ("document", "auto", False, False),
        ("row", "auto", False, True),
        ("document", "float32", False, True),
        ("document", "auto", True, True),
    ],
)
def test_the_kernel_for_documents_is_tried_where_it_may_be_used(
    attention: str,
    precision: Literal["auto", "float32"],
    is_deterministic: bool,
    is_asked_for: bool,
    seen: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []
    monkeypatch.setattr(ModelShell, "try_document_kernel", lambda _, rows: tried.append(rows.num_samples))
    run = replace(with_("data", attention=attention), model=replace(RUN.model, precision=precision))
    machine = replace(GPU, device=("cuda:0", "cuda:1"), deterministic=is_deterministic, document_kernel=is_asked_for)
    hosting(run, peer=machine)
    is_tried = (attention, precision) == ("document", "auto") and is_asked_for and not is_deterministic
    assert tried == ([2, 2] if is_tried else [])


def test_the_largest_micro_batch_is_found_by_trying(seen: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting_module, "search_cuda", search_cuda)
    peer = hosting(peer=GPU)
    weighted_loss = peer._shell.weighted_loss

    def short(rows: Batch, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if rows.num_samples > 5:
            raise torch.OutOfMemoryError
        return weighted_loss(rows, weights)

    monkeypatch.setattr(peer._shell, "weighted_loss", short)
    assert peer.micro_batch_limit == 5
    assert peer._shell._bound is None, "the probe's parameters are freed before an instance has its own"
    peer.start([ONE])
    train_round(peer, effect(batch=12, micro=12))


@pytest.mark.parametrize(
    ("max_instances", "is_in_the_step", "why"),
    [
        (1, False, "memory_fraction: cuda:0 does not hold the model, .* adapters .model.lora. or inner.kind adamw8bit"),
        (2, False, "max_instances: 2 instances do not fit cuda:0; host fewer"),
        (1, True, "one sample of .* tokens does not fit cuda:0 beside 1 instances; raise memory_fraction"),
    ],
)
def test_what_does_not_fit_is_named_with_its_remedy(
    max_instances: int, is_in_the_step: bool, why: str, seen: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(hosting_module, "search_cuda", search_cuda)
    peer = hosting(peer=replace(GPU, device="cuda:0", max_instances=max_instances))
    monkeypatch.setattr(memory_search, *(("accumulate_gradient", short) if is_in_the_step else ("Instance", short)))
    with pytest.raises(DeviceError, match=why):
        _ = peer.micro_batch_limit


def test_an_apple_gpu_never_sees_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    with virtual_gpus(monkeypatch, 0):
        peer = hosting(with_("evaluation", rows=4), peer=replace(PEER, device="auto"))
        assert peer.device_names == ("mps:0",)
        life(peer)


def start(workdir: Path, *, devices: str, rounds: int = 2) -> int:
    """A node that trains alone, small; its exit code."""
    sizes = ["model.architecture.num_hidden_layers=1", "data.sequence_length=64", "evaluation.rows=4", "batch.initial_batch=2"]
    work = ["work.inner_steps=2", "work.samples=null"]
    machine = [f"device={devices}", "num_threads=1", "max_micro_batch=2"]
    words = ["start", "configs/default.yaml", "--offline", "--plain", "--workdir", str(workdir), "--rounds", str(rounds)]
    return main([*words, "--set", *sizes, *work, "--peer-set", *machine])


def test_a_node_trains_alone_on_a_gpu(seen: Counter[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it: text, forks, evaluation, checkpoints, the end."""
    assert start(tmp_path, devices="auto") == 0
    said = capsys.readouterr().out
    assert "device cuda:0" in said and "fork" in said and "trained   rounds 2/2" in said


def test_a_gpu_that_fails_ends_the_node_and_the_others_go_on(
    seen: Counter[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the third round, when it trains the instance that was forked."""
    run_inner = Hosting.run_inner

    def failing(self: Hosting, effect: RunInner, **more: Any) -> InnerResult | None:
        if effect.round == 2 and self.device_names[self._place_of(effect.plan.instance)] == "cuda:1":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return run_inner(self, effect, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Hosting, "run_inner", failing)
        assert start(tmp_path, devices="[cuda:0,cuda:1]", rounds=4) == 1
    said = capsys.readouterr()
    assert "E102" in said.err, said
    assert start(tmp_path, devices="cuda:0", rounds=4) == 0
    assert "trained   rounds 4/4" in capsys.readouterr().out


def test_a_model_that_a_gpu_does_not_hold_is_refused_by_name(seen: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(hosting_module, "ModelShell", short)
    with pytest.raises(DeviceError, match="memory_fraction: cuda:0 does not hold the model and a gradient") as refused:
        hosting(peer=GPU)
    assert refused.value.code == "E502"
