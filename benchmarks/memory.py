"""The memory of one instance of a network peer, in bytes per parameter: its tensors, and the whole process.

python -m benchmarks.memory                     all; four pairs of real nodes on loopback, some five minutes on one thread
python -m benchmarks.memory --only tensors      seconds, as `--only scratch`; `--only instances` takes less than a minute
python -m benchmarks.memory --only tensors --fragments 1 4      of rounds that run ahead: 1 with `forecast`, others streamed

Tensors: the live ones of one process at moments of a round, on the device and on the host (both are main memory here).
Scratch: the most that a process held resident during inner steps, above what it holds after them when the allocator has given
back what is free: what backward makes and forgets, with the same few rows at two depths of a model.
Instances: what one more hosted instance adds to the resident memory of a process, beside the shared model, gradient and
activations. Expected are 4 local parameters, 8 AdamW moments, 4 outer parameters, 4 outer momentum.
Process: the most that a node ever held resident until it had averaged a few times with another one and both had left, minus
the same for a negligible model, per parameter: everything counts, whatever holds it. On a CPU it is device and
host together.
"""

import argparse
import gc
import os
import re
import signal
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import AveragingConfig, ModelConfig, OuterConfig, RunConfig
from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.training.hosting import Hosting
from benchmarks.equal_hosts import ME, round_of, zeros
from benchmarks.nodes import Member, begin_node, end, llama, write_document
from benchmarks.resident import peak_bytes, reset_peak, resident_bytes

ONE = InstanceId(0)
ARCHITECTURE = RunConfig().model.architecture | {"hidden_size": 480, "intermediate_size": 1296}
NUM_INSTANCES = 4
LIMITS = {"device": 16.0, "host": 32.0}
"""Limits in bytes per parameter."""
SIZES = (64, 768)
"""Widths of the two models of the processes."""
DEPTHS = (4, 8)
"""Layers of the models whose scratch is measured, both of the larger width."""
COMMON_ROUNDS = 4
"""Rounds that both nodes must have trained. However slow the machine is, the second one joins meanwhile."""
LAST_SECONDS = 900.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["tensors", "scratch", "instances", "process"])
    parser.add_argument("--fragments", nargs="+", type=int, help="with --only tensors")
    parser.add_argument("--codecs", nargs="+", default=["float32", "int8"], metavar="NAME")
    arguments = parser.parse_args()
    if arguments.only in (None, "instances"):  # first, because memory that others free would serve it uncounted
        measure_instances()
    for count in arguments.fragments or ():
        measure_ahead(count)
    if arguments.only in (None, "tensors") and not arguments.fragments:
        measure_tensors()
    if arguments.only in (None, "scratch"):
        measure_scratch()
    if arguments.only in (None, "process"):
        for codec in arguments.codecs:
            measure_processes(codec)


# --- tensors -----------------------------------------------------------------------------------------------------------


def measure_tensors() -> None:
    run = RunConfig(model=ModelConfig(architecture=ARCHITECTURE))
    peer = Hosting(run, PeerConfig(device="cpu", num_threads=1), ME, zeros())
    peer.start([ONE])
    print(f"tensors of {peer.num_parameters} parameters\n{'moment':24s}{'device':>8s}{'host':>8s}   bytes per parameter")
    work = round_of(ONE)
    served = [peer.state(ONE)]
    kept: tuple[torch.Tensor, ...] = ()
    for _ in range(3):  # from the third round on there are two boundaries' states and what is kept of the last average
        peer.run_inner(work, should_stop=lambda: False, on_progress=lambda *_: None)
        show("inner steps", peer, served, kept)
        contribution = peer.pseudo_gradient(ONE)
        served = served[-1:]  # `StateServer.keep_newest`
        average = contribution.clone()
        show("averaging, average there", peer, served, kept, average)
        returned = average.clone()  # `ReturnedParts`
        show("in a retry of the same", peer, served, kept, average, returned)
        del returned
        kept = (contribution, average)  # both as float32: `test_what_is_kept_is_what_was_sent_and_no_copy_of_it`
        peer.apply_outer(ONE, average, round=0)
        del contribution, average
        served.append(peer.state(ONE))
        show("outer step made", peer, served, kept)
        saved = peer.snapshot(ONE)
        show("checkpoint being written", peer, served, kept, saved)
        del saved
    print(f"{'at most':24s}{LIMITS['device']:8.1f}{LIMITS['host']:8.1f}")


def measure_ahead(num_fragments: int) -> None:
    """Measure the tensors where a round's inner steps begin while the one before is averaged."""
    outer = OuterConfig(overlap="streaming" if num_fragments > 1 else "forecast")
    averaging = AveragingConfig(fragments=num_fragments)
    run = RunConfig(model=ModelConfig(architecture=ARCHITECTURE), outer=outer, averaging=averaging)
    peer = Hosting(run, PeerConfig(device="cpu", num_threads=1), ME, zeros())
    peer.start([ONE])
    print(f"{num_fragments} fragments, {outer.overlap}, {peer.num_parameters} parameters: bytes per parameter")
    served = [peer.state(ONE)]
    kept: tuple[torch.Tensor, ...] = ()
    previous: torch.Tensor | None = None
    for number in range(4):
        work = replace(round_of(ONE), round=number, is_ahead=number > 0)
        peer.run_inner(work, should_stop=lambda: False, on_progress=lambda *_: None)
        own = peer.pseudo_gradient(ONE)
        if previous is not None:
            average = previous.clone()
            show("averaging, average there", peer, served, kept, previous, average, own)
            kept = (previous, average)
            peer.apply_outer(ONE, average, round=number - 1)
            del average
            served = [served[-1], peer.state(ONE)]
            show("outer step made", peer, served, kept, own)
            saved = peer.snapshot(ONE)
            show("checkpoint being written", peer, served, kept, own, saved)
            del saved
            served = served[-1:]  # `StateServer.keep_newest`: the next average begins
        previous = own


def show(moment: str, peer: Hosting, *held: object) -> None:
    """Print the bytes. `held`: what the node keeps at this moment; the arguments keep it alive, so it counts."""
    del held
    on_device = [peer._shell.gradient, peer._instances[ONE].local, *_optimizer_state(peer)]
    device = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in on_device}
    gc.collect()
    alive = {
        item.untyped_storage().data_ptr(): item.untyped_storage().nbytes()
        for item in gc.get_objects()
        if issubclass(type(item), torch.Tensor) and item.device.type == "cpu"
    }
    host = sum(size for address, size in alive.items() if address not in device)
    columns = (f"{size / peer.num_parameters:8.1f}" for size in (sum(device.values()), host))
    print(f"{moment:24s}{''.join(columns)}", flush=True)


def _optimizer_state(peer: Hosting) -> list[torch.Tensor]:
    return list(peer._instances[ONE].optimizer.state.values())


# --- scratch -----------------------------------------------------------------------------------------------------------


def measure_scratch() -> None:
    work = round_of(ONE)
    for layers in DEPTHS:
        model = ModelConfig(architecture=llama(width=SIZES[-1], layers=layers, heads=SIZES[-1] // 64, intermediate=2048))
        peer = Hosting(RunConfig(model=model), PeerConfig(device="cpu", num_threads=1), ME, zeros())
        peer.start([ONE])
        found = [_scratch_bytes(peer, work) for _ in range(4)][1:]  # the first round makes the optimizer's state
        columns = " ".join(f"{size / 2**20:.0f}" for size in found)
        print(
            f"scratch of a round's inner steps, {peer.num_parameters} parameters in {layers} layers: {columns} MiB", flush=True
        )
        del peer
        gc.collect()


def _scratch_bytes(peer: Hosting, work: RunInner) -> int:
    process = os.getpid()
    peer._shell.free_cache()
    reset_peak(process)
    peer.run_inner(work, should_stop=lambda: False, on_progress=lambda *_: None)
    most = peak_bytes(process)
    peer._shell.free_cache()
    return most - sum(resident_bytes(process))


# --- instances ---------------------------------------------------------------------------------------------------------


def measure_instances() -> None:
    run = RunConfig(model=ModelConfig(architecture=ARCHITECTURE))
    peer = Hosting(run, PeerConfig(device="cpu", num_threads=1), ME, zeros())
    print(f"{peer.num_parameters} parameters\ninstances  resident MiB  bytes per parameter of the last instance")
    before = 0
    for number in range(NUM_INSTANCES):
        instance = InstanceId(number)
        peer.start([instance])
        peer.run_inner(round_of(instance), should_stop=lambda: False, on_progress=lambda *_: None)
        peer.apply_outer(instance, peer.pseudo_gradient(instance), round=0)
        after = sum(resident_bytes(os.getpid()))
        # The first round also makes activations and library buffers.
        added = f"{(after - before) / peer.num_parameters:39.1f}" if number else ""
        print(f"{number + 1:9d}  {after / 2**20:12.0f}  {added}", flush=True)
        before = after


# --- processes ---------------------------------------------------------------------------------------------------------


def measure_processes(codec: str) -> None:
    peaks, parameters = [], []
    with tempfile.TemporaryDirectory() as name:
        for width in SIZES:
            folder = Path(name) / f"{codec}-{width}"
            folder.mkdir()
            peaks.append(peak_of_two_nodes(folder, codec=codec, width=width))
            parameters.append(num_parameters_of(folder / "first"))
    per_parameter = (peaks[1] - peaks[0]) / (parameters[1] - parameters[0])
    print(
        f"process, codec {codec}: {peaks[1] / 2**20:.0f} MiB at most with {parameters[1]} parameters,"
        f" {peaks[0] / 2**20:.0f} MiB with {parameters[0]}:"
        f" {per_parameter:.1f} bytes per parameter (limit {sum(LIMITS.values()):.0f})",
        flush=True,
    )


def peak_of_two_nodes(folder: Path, *, codec: str, width: int) -> int:
    """Return the most resident bytes of the first node."""
    model = llama(width=width, layers=4, heads=width // 64, intermediate=width * 8 // 3)
    document = {
        "name": f"memory-{codec}-{width}",
        "mode": "diloco",
        "model": {"architecture": model},
        "data": {"sequence_length": 16},
        "work": {"inner_steps": 8, "rounds": 1000, "share": "equal"},
        "batch": {"initial_batch": 2},
        "averaging": {"codec": codec},
        "admission": {"kind": "open", "probation_rounds": 0},
        "evaluation": {"rows": 1, "period_rounds": 2},
    }
    node = partial(begin_node, folder, settings=["max_micro_batch=1"])
    first = node("first", "start", write_document(folder, document))
    nodes, peak, are_asked = [first], 0, False
    try:
        through = first.addresses(deadline=time.monotonic() + LAST_SECONDS)
        nodes.append(node("second", "join", "--initial-peers", *through))
        deadline = time.monotonic() + LAST_SECONDS
        while first.is_alive and time.monotonic() < deadline:
            if not are_asked and rounds_of_two(first) >= COMMON_ROUNDS:
                are_asked = True
                for member in nodes:  # they leave at a boundary, with a last checkpoint, which counts too
                    member.process.send_signal(signal.SIGINT)
            peak = max(peak, peak_bytes(first.process.pid))
            assert are_asked or nodes[1].is_alive, f"see {folder}: {nodes[1].words[-2000:]}"
            time.sleep(0.05)
        assert first.process.returncode == 0, f"see {folder}: {first.words[-2000:]}"
    finally:
        end(nodes)
    return peak


def rounds_of_two(member: Member) -> int:
    return len(re.findall(r"^round .* hosts 2 ", member.words, re.MULTILINE))


def num_parameters_of(workdir: Path) -> int:
    found = re.search(r'"parameters":\s*(\d+)', (workdir / "events.jsonl").read_text())
    assert found is not None, workdir
    return int(found[1])


if __name__ == "__main__":
    main()
