"""One model in several processes, here of the processor: the same training as in one, and an end to every wait."""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from adloco_p2p.config.load import load_peer
from adloco_p2p.config.peer_config import MOST_SHARDS, PeerConfig
from adloco_p2p.config.run_config import AveragingConfig, InnerConfig, LoraConfig, ModelConfig, RunConfig
from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.core.model.lineage import Fork
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.errors import ConfigError, DeviceError, ShardLost
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.numerics.layout import layout_of
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.memory_need import EXCHANGE_BYTES, SHARD_PROCESS_BYTES, memory_need
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shards import group as group_module
from adloco_p2p.training.shards import messages
from adloco_p2p.training.shards.division import check_dividable, part_of, passes_of, shard_devices, undivided_bytes
from adloco_p2p.training.shards.hosting import ShardedHosting
from adloco_p2p.training.shell import block_matrices
from tests.e2e.processes import REPOSITORY
from tests.training.small_run import (
    ARCHITECTURE,
    LENGTH,
    ME,
    ONE,
    PEER,
    RUN,
    TWO,
    VOCAB_SIZE,
    SyntheticFeed,
    effect,
    silent,
)

EXACT = replace(RUN, model=replace(RUN.model, precision="float32"))
TWO_SHARDS = replace(PEER, shards=2, max_instances=1)
WAIT_SECONDS = 240.0


def sharded(run: RunConfig = EXACT, peer: PeerConfig = TWO_SHARDS, feed: SyntheticFeed | None = None) -> ShardedHosting:
    return ShardedHosting(run, peer, ME, feed or SyntheticFeed(is_padded=True))


def alone(run: RunConfig = EXACT, peer: PeerConfig = PEER, feed: SyntheticFeed | None = None) -> Hosting:
    return Hosting(run, peer, ME, feed or SyntheticFeed(is_padded=True))


def round_of(
    peer: Hosting, number: int, instance: InstanceId = ONE, *, batch: int = 5, micro: int = 4, looks: bool = False
) -> InnerResult:
    """Inner steps of several passes, unequal ones, and the outer step with the own pseudo-gradient."""

    def look() -> bool:
        return looks and not peer.evaluate(instance)  # between two inner steps; its loss is not 0

    work = effect(instance, number, batch=batch, micro=micro)
    result = peer.run_inner(work, should_stop=look, on_progress=silent)
    assert result is not None
    assert peer.apply_outer(instance, peer.pseudo_gradient(instance).clone(), round=number)
    return result


@pytest.fixture(scope="module")
def pair() -> Iterator[ShardedHosting]:
    peer = sharded()
    yield peer
    peer.release()


def test_two_processes_train_as_one_and_go_on_from_a_snapshot_bit_by_bit(pair: ShardedHosting) -> None:
    """25 inner steps with accumulation, clipping, a tied embedding, and passes in which one process has no row."""
    one = alone()
    for peer in (one, pair):
        peer.start([ONE])
    assert pair.digests(ONE) == one.digests(ONE)
    assert pair.evaluate(ONE) == pytest.approx(one.evaluate(ONE), rel=1e-6)
    for number in range(2):
        expected, result = round_of(one, number), round_of(pair, number)
        assert result.loss == pytest.approx(expected.loss, rel=1e-5)
        assert (result.samples, result.tokens) == (expected.samples, expected.tokens)
        assert result.half_batch is not None and expected.half_batch is not None
        assert result.half_batch.mean_sqnorm == pytest.approx(expected.half_batch.mean_sqnorm, rel=1e-3)
    tensors, meta = pair.snapshot(ONE)
    saved = {name: tensor.clone() for name, tensor in tensors.items()}
    for number in range(2, 5):
        expected, result = round_of(one, number), round_of(pair, number)
        assert result.loss == pytest.approx(expected.loss, rel=1e-5)
    torch.testing.assert_close(pair.state(ONE)[0], one.state(ONE)[0], rtol=1e-4, atol=2e-5)
    assert one.snapshot(ONE)[0].keys() == pair.snapshot(ONE)[0].keys()
    assert one.snapshot(ONE)[1]["optimizer_steps"] == pair.snapshot(ONE)[1]["optimizer_steps"] == 25
    first_end = pair.digests(ONE), {name: tensor.clone() for name, tensor in pair.snapshot(ONE)[0].items()}
    pair.drop(ONE)
    pair.restore(ONE, saved, meta)
    for number in range(2, 5):
        round_of(pair, number)
    assert pair.digests(ONE) == first_end[0]
    assert all(torch.equal(tensor, first_end[1][name]) for name, tensor in pair.snapshot(ONE)[0].items())
    pair.drop(ONE)
    undivided = alone()
    undivided.restore(ONE, saved, meta)
    for number in range(2, 5):
        round_of(undivided, number)
    torch.testing.assert_close(undivided.state(ONE)[0], one.state(ONE)[0], rtol=1e-4, atol=2e-5)


def test_an_evaluation_between_inner_steps_changes_nothing(pair: ShardedHosting) -> None:
    ends = []
    for looks in (False, True):
        pair.start([ONE])
        round_of(pair, 0, looks=looks)
        ends.append(pair.digests(ONE))
        pair.drop(ONE)
    assert ends[0] == ends[1]


def test_instances_take_turns_in_the_processes(pair: ShardedHosting) -> None:
    """A fork takes the moments along, and each instance goes on with its own."""
    one = alone()
    for peer in (one, pair):
        peer.start([ONE])
        round_of(peer, 0)
        peer.transition([Fork(source=ONE, targets=(TWO,))], [])
        for number in (1, 2):
            for instance in (TWO, ONE):
                round_of(peer, number, instance)
    for instance in (ONE, TWO):
        torch.testing.assert_close(pair.state(instance)[0], one.state(instance)[0], rtol=1e-4, atol=2e-5)
    steps = [peer.snapshot(TWO)[1]["optimizer_steps"] for peer in (one, pair)]
    assert steps == [15, 15]
    for instance in (ONE, TWO):
        pair.drop(instance)


def test_the_next_token_follows_as_in_one_process(pair: ShardedHosting) -> None:
    one, ids = alone(), torch.arange(9)
    flat = one._fresh(ONE)
    logits = []
    for shell in (one._shells[0].shell, pair._shells[0].shell):
        with shell.evaluating(flat), torch.no_grad():
            logits.append(shell.next_logits(ids))
    torch.testing.assert_close(*logits)


def test_parameters_come_back_after_an_evaluation_that_failed(pair: ShardedHosting) -> None:
    shell, ones = pair._sharded, torch.ones(pair.num_parameters)
    pair._group.write("local", ones)
    shell.is_training = True
    with pytest.raises(ZeroDivisionError), shell.evaluating(torch.zeros_like(ones)):
        raise ZeroDivisionError
    shell.is_training = False
    found = torch.zeros_like(ones)
    pair._group.read("local", found)
    assert torch.equal(found, ones)


def test_a_measured_step_is_counted_with_two_gradients(pair: ShardedHosting) -> None:
    whole = undivided_bytes(EXACT, build_model(EXACT.model, vocab_size=VOCAB_SIZE, sequence_length=LENGTH, seed=0))
    assert EXACT.batch.is_tested and whole is not None
    fixed = [each["fixed"] for each in pair._group.call("memory", num_waits=3)]
    assert sum(fixed) == 2 * whole + 2 * 4 * pair.num_parameters


def test_what_a_process_prints_is_kept_up_to_a_limit(pair: ShardedHosting) -> None:
    errors = pair._group._members[0].errors
    os.write(errors.fileno(), bytes(group_module.MAX_OUTPUT_BYTES + 1))
    pair._group.call("set_steps", steps=0)
    assert os.fstat(errors.fileno()).st_size < group_module.MAX_OUTPUT_BYTES


def test_a_process_that_does_not_end_is_left_alone() -> None:
    def waits(timeout: float) -> None:
        raise subprocess.TimeoutExpired("a process", timeout)

    closed: list[str] = []
    member = SimpleNamespace(
        process=SimpleNamespace(kill=lambda: None, wait=waits),
        connection=SimpleNamespace(close=lambda: closed.append("connection")),
        errors=SimpleNamespace(close=lambda: closed.append("errors")),
    )
    group_module._end([member])  # type: ignore[list-item]
    assert closed == ["connection", "errors"]


def test_the_death_of_a_process_is_named_however_late_it_ends_after_others_have_reported_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system takes its memory first; the others hear of its end by their own connections to it."""
    ends, seconds = iter([None] * 500 + [-signal.SIGKILL]), iter(range(10**6))
    clock = SimpleNamespace(monotonic=lambda: 0.01 * next(seconds), sleep=lambda _: None)
    monkeypatch.setattr(group_module, "time", clock)
    alive = SimpleNamespace(poll=lambda: None)
    dying = SimpleNamespace(poll=lambda: next(ends), wait=lambda timeout: -signal.SIGKILL)
    group = SimpleNamespace(_members=[SimpleNamespace(process=process) for process in (alive, dying)])
    assert group_module.ShardGroup._first_death(group).startswith("process 1 was killed")  # type: ignore[arg-type]
    group._members.pop()
    assert group_module.ShardGroup._first_death(group) == ""  # type: ignore[arg-type]


def test_a_process_that_is_stopped_ends_the_wait(pair: ShardedHosting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last test of the pair."""
    pair.start([ONE])
    processes = [member.process for member in pair._group._members]
    monkeypatch.setattr(group_module, "STALL_SECONDS", 1.0)
    processes[0].send_signal(signal.SIGSTOP)
    with pytest.raises(ShardLost, match=r"process 0.* did not answer") as failed:
        pair.evaluate(ONE)
    assert failed.value.code == "E103" and all(process.poll() is not None for process in processes)


def test_fragments_in_turn_are_averaged_as_in_one_process() -> None:
    run = replace(EXACT, averaging=AveragingConfig(fragments=2))
    one, two = alone(run), sharded(run)
    for peer in (one, two):
        peer.start([ONE])
        for number in range(3):
            round_of(peer, number)
    torch.testing.assert_close(two.state(ONE)[0], one.state(ONE)[0], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(two.snapshot(ONE)[0]["local"], one.snapshot(ONE)[0]["local"], rtol=1e-4, atol=2e-5)
    two.release()


class LargeFeed(SyntheticFeed):
    """So many tokens that logits are made in chunks."""

    vocab_size = 9001


def test_odd_sizes_in_three_processes_and_the_death_of_one() -> None:
    """No size divides by three, so the last process holds less, and nothing of the norms' last rows; head and embedding are
    two; activations are computed again; norms are not decayed."""
    odd = {**ARCHITECTURE, "hidden_size": 40, "intermediate_size": 65, "num_hidden_layers": 3, "tie_word_embeddings": False}
    inner = replace(EXACT.inner, decayed="matrices")
    run = replace(EXACT, inner=inner, model=ModelConfig(architecture=odd, precision="float32"))
    machine = replace(PEER, activation_checkpointing=True)
    one, three = alone(run, machine, LargeFeed()), sharded(run, replace(machine, shards=3, max_instances=1), LargeFeed())
    for peer in (one, three):
        peer.start([ONE])
    for number in range(2):
        expected, result = round_of(one, number, batch=5, micro=3), round_of(three, number, batch=5, micro=3)
        assert result.loss == pytest.approx(expected.loss, rel=1e-5)
    torch.testing.assert_close(three.state(ONE)[0], one.state(ONE)[0], rtol=1e-4, atol=2e-5)
    assert (three.device_names, three.devices) == (("cpu x3",), (torch.device("cpu"),))
    processes = [member.process for member in three._group._members]

    def kill_one() -> bool:
        processes[1].kill()
        return False

    with pytest.raises(ShardLost, match=r"process 1 was killed.*checkpoint is intact") as failed:
        three.run_inner(effect(ONE, 2), should_stop=kill_one, on_progress=silent)
    assert failed.value.code == "E103" and all(process.poll() is not None for process in processes)
    with pytest.raises(ShardLost, match="are gone"):
        three.evaluate(ONE)
    with pytest.raises(DeviceError, match=r"process 0 is short of memory: x; lower max_micro_batch") as short:
        three._group._refuse(0, reason="x", kind="memory")
    assert short.value.code == "E502"


SCRIPT = """
import os, signal
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.training.shards import messages
from adloco_p2p.training.shards.group import ShardGroup
from adloco_p2p.training.shards.setup import Setup
more = dict(deterministic=False, tf32=True, memory_fraction=1.0, activation_checkpointing=False)
setup = dict(run=RunConfig(), device="cpu", num_threads=1, vocab_size=64, sequence_length=16, size=2, **more)
group = ShardGroup([Setup(rank=rank, **setup) for rank in range(2)])
group._send([0], messages.encode("memory", {}))  # in which it waits for the other one
print(*group.pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_process_outlives_a_peer_that_is_killed_and_no_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=own, check=False)
    assert ended.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in ended.stdout.split()]
    assert len(pids) == 2
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(timeout=WAIT_SECONDS)
    assert not list(tmp_path.glob("shards-*"))


def test_messages_carry_rows_whose_labels_are_their_ids_and_losses_that_are_no_numbers() -> None:
    ids = torch.arange(12).view(3, 4)
    rows = Batch(input_ids=ids, labels=ids).rows(1, 3)
    word, values = messages.decode(messages.encode("accumulate", {**messages.values_of(rows), "loss_sum": math.nan}))
    assert word == "accumulate" and math.isnan(values.pop("loss_sum"))
    found = Batch(**values)
    assert torch.equal(found.input_ids, ids[1:]) and torch.equal(found.labels, ids[1:]) and found.positions is None


# --- what can be divided, and how --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_row_belongs_to_one_pass_and_one_process(size: int) -> None:
    for num_samples in range(1, 12):
        for micro in (1, 2, 4):
            for is_measured in (False, num_samples > 1):
                passes = passes_of(num_samples, micro * size, is_measured=is_measured)
                assert len(passes) >= 1 + is_measured
                rows = [
                    row for start, stop in passes for rank in range(size) for row in range(*part_of(start, stop, rank, size))
                ]
                assert rows == list(range(num_samples))
                assert all(len(range(*part_of(*one, rank, size))) <= micro for one in passes for rank in range(size))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["shards=2"], "set it to 1"),
        (["shards=2", "max_instances=1", "compile=true"], "compile is on"),
        (["shards=2", "max_instances=1", "device=mps"], "set shards to 1"),
        (["shards=2", "max_instances=1", "device=[cuda:0]"], r"accepted: auto, cpu, or 2 GPUs such as \[cuda:0, cuda:1\]"),
        (["shards=2", "max_instances=1", "device=[cuda:0, cpu]"], "accepted: auto, cpu"),
        (["shards=100", "max_instances=1"], "shards"),
    ],
)
def test_settings_that_cannot_be_divided_are_refused_with_the_remedy(settings: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_peer(None, settings)


def test_a_divided_cpu_is_named_as_often_as_it_has_processes() -> None:
    assert load_peer(None, ["shards=3", "max_instances=1", "device=cpu"]).value.shards == 3
    assert shard_devices(replace(TWO_SHARDS, shards=3)) == ("cpu", "cpu", "cpu")


def test_a_machine_with_fewer_gpus_than_shards_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = {f"cuda:{index}": torch.device("cuda", index) for index in range(3)}
    monkeypatch.setattr("adloco_p2p.training.shards.division.select_devices", lambda _: gpus)
    auto = PeerConfig(shards=2, max_instances=1)
    assert shard_devices(auto) == ("cuda:0", "cuda:1")
    with pytest.raises(ConfigError, match=r"shards: 4, but device gives cuda:0, cuda:1, cuda:2; set it to 3"):
        shard_devices(replace(auto, shards=4))


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (replace(RUN, inner=InnerConfig(kind="muon")), "inner.kind muon"),
        (replace(RUN, model=ModelConfig(pretrained="x", lora=LoraConfig(rank=4))), "model.lora.rank 4"),
        (replace(RUN, outer=replace(RUN.outer, overlap="streaming")), "outer.overlap streaming"),
    ],
)
def test_runs_that_cannot_be_divided_are_refused_with_the_remedy(run: RunConfig, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"shards: 2, but this run .*{problem}.*leave it at 1"):
        check_dividable(run, TWO_SHARDS)
    assert undivided_bytes(run, None) is None


def test_memory_of_a_divided_model_is_counted_by_device() -> None:
    module = build_model(RUN.model, vocab_size=VOCAB_SIZE, sequence_length=LENGTH, seed=0)
    whole = undivided_bytes(RUN, module)
    assert whole is not None
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    outside = sum(size for name, size in sizes.items() if ".layers." not in name)
    assert whole == 8 * sum(sizes.values()) + 4 * outside  # two blocks are all of them here
    need = memory_need(RUN, layout_of(module), matrices=block_matrices(module), frozen_bytes=0, whole_bytes=whole)
    assert need.device == 16 * need.num_parameters
    assert need.divided(2) == 8 * need.num_parameters + whole
    assert need.divided_host(2) == 4 * need.num_parameters + EXCHANGE_BYTES + 2 * SHARD_PROCESS_BYTES
    delayed = replace(RUN, outer=replace(RUN.outer, overlap="delayed"))
    more = memory_need(delayed, layout_of(module), matrices=block_matrices(module), frozen_bytes=0, whole_bytes=whole)
    assert more.divided_host(2) == need.divided_host(2) + 4 * need.num_parameters
    assert need.least_shards(need.divided(3)) == 3
    assert need.least_shards(whole) is None
    assert need.divided(MOST_SHARDS) > whole
