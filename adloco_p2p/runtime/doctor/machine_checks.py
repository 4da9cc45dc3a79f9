"""The doctor's checks of this machine. They download and change nothing, and ask no other peer."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch
from packaging.requirements import Requirement

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import ModelConfig
from adloco_p2p.core.ledger.proof_of_work import Puzzle
from adloco_p2p.core.model.rules import AdmissionRules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import ConfigError, StorageError, brief
from adloco_p2p.storage.workdir import Holder, holder_of, read_run
from adloco_p2p.swarm.p2p.identity import Identity
from adloco_p2p.swarm.p2p.listening import check_config, has_open_port, is_free
from adloco_p2p.training.device import emulated_setting, gpu_problem, memory_of, select_devices
from adloco_p2p.training.memory_need import PROCESS_BYTES, SHARD_PROCESS_BYTES
from adloco_p2p.training.shards.division import shard_devices
from adloco_p2p.views.check_report import CheckResult
from adloco_p2p.views.units import duration, size

DISTRIBUTION = "adloco-peer"
LEAST_PYTHON = (3, 11)
LEAST_DISK_BYTES, GOOD_DISK_BYTES = 1 << 30, 5 << 30
LEAST_MEMORY_BYTES, GOOD_MEMORY_BYTES = 1 << 29, 3 << 29
BYTES_PER_TRAINED_PARAMETER = 48
"""The need on a CPU, with AdamW and float32 averages. `adloco-peer plan` computes it for a run (training/memory_need.py)."""
DEVICE_BYTES_PER_PARAMETER = 16
"""The part of these that is on a GPU, if there is one."""
LOCAL_BYTES_PER_PARAMETER = 4
"""The additional need of a model divided over processes, for the values that they return at the end of a round."""
DRIVER_SECONDS = 5.0
TRIED_ATTEMPTS = 8
MEMORY_INFO = Path("/proc/meminfo")
CONTAINER_LIMIT, CONTAINER_USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
NVIDIA = Path("/proc/driver/nvidia/version")


def check_machine(config: PeerConfig, workdir: Path | None) -> Iterator[CheckResult]:
    """Yield one result after the other, in a second or two."""
    yield check_python(sys.version_info[:3])
    yield check_packages()
    yield check_gpu(config)
    yield check_memory(available_memory_bytes(), config.shards)
    yield check_disk(workdir or Path.cwd())
    holder = holder_of(workdir) if workdir is not None else None
    if workdir is not None:
        yield check_workdir(workdir, holder)
        yield from check_run(workdir, config)
    yield check_ports(config, is_running=holder is not None)


def check_python(version: tuple[int, ...]) -> CheckResult:
    found = ".".join(map(str, version))
    if version < LEAST_PYTHON:
        return CheckResult(check="Python", outcome="failed", found=found, code="E520")
    return CheckResult(check="Python", outcome="ok", found=found)


def check_packages() -> CheckResult:
    """Compare the requirements of the installed node with the installed packages."""
    problems, count = [], 0
    try:
        requirements = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        found = f"{DISTRIBUTION} is not installed, it runs from a checkout; its requirements are unknown"
        return CheckResult(check="packages", outcome="warning", found=found, code="E521")
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        count += 1
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            problems.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{requirement.name} is {version}, wanted {requirement.specifier}")
    if problems:
        return CheckResult(check="packages", outcome="failed", found="; ".join(problems), code="E521")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in (DISTRIBUTION, "torch", "hivemind"))
    return CheckResult(check="packages", outcome="ok", found=f"{versions}; all {count} as required")


def check_gpu(config: PeerConfig) -> CheckResult:
    """Describe the devices on which the node would train."""
    try:
        devices = select_devices(config)
        members = shard_devices(config)
    except ConfigError as error:
        return CheckResult(check="GPU", outcome="failed", found=str(error), code=error.code)
    if all(device.type == "cpu" for device in devices.values()):
        version = driver_version()
        if (version or NVIDIA.exists()) and (problem := gpu_problem()):
            found = f"the driver is there (version {version or 'unknown'}), but {problem}"
            return CheckResult(check="GPU", outcome="warning", found=found, code="E522")
        found = f"none in use; the node trains on the CPU ({', '.join(devices)})"
        found += f", one model in {config.shards} processes" if config.shards > 1 else ""
        return CheckResult(check="GPU", outcome="ok", found=found)
    try:
        memories = memory_of(devices)
    except RuntimeError as error:  # of the driver: another program has exclusive use of the GPU, or the GPU has failed
        return CheckResult(check="GPU", outcome="failed", found=brief(error), code="E522")
    cards = [f"{item.name} {item.model}, {size(item.free_bytes)} of {size(item.total_bytes)} free" for item in memories]
    driver = driver_version()
    computing = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    versions = f" ({computing}" + (f", driver {driver})" if driver else ")") if torch.cuda.is_available() else ""
    free_bytes = config.memory_fraction * min(item.free_bytes for item in memories[: len(members)])
    held = _held_by_gpus(free_bytes, len(devices), config)
    return CheckResult(check="GPU", outcome="ok", found="; ".join(cards) + versions + held)


def _held_by_gpus(free_bytes: float, num_devices: int, config: PeerConfig) -> str:
    """Describe how large a model each GPU, or all together, can train with AdamW."""
    most = free_bytes / DEVICE_BYTES_PER_PARAMETER / 1e6
    if config.shards > 1:
        return f"; {config.shards} together for some {config.shards * most:,.0f}M trained parameters, activations aside"
    more = (
        f", up to {num_devices} times as many with shards={num_devices} max_instances=1 (docs/limits.md)"
        if num_devices > 1
        else ""
    )
    return f"; each for some {most:,.0f}M trained parameters, activations aside{more}"


def check_memory(available_bytes: int | None, shards: int = 1) -> CheckResult:
    """Grade the available memory; `shards` is the number of processes over which the model is divided."""
    if available_bytes is None:
        return CheckResult(check="memory", outcome="skipped", found="this system does not report it")
    processes, each = PROCESS_BYTES, BYTES_PER_TRAINED_PARAMETER
    if shards > 1:
        processes, each = processes + shards * SHARD_PROCESS_BYTES, each + LOCAL_BYTES_PER_PARAMETER
    trained = max(0, available_bytes - processes) / each / 1e6
    found = f"{size(available_bytes)} available: for some {trained:,.0f}M trained parameters on the CPU, activations aside"
    return _graded("memory", found, available_bytes, least=LEAST_MEMORY_BYTES, good=GOOD_MEMORY_BYTES, code="E523")


def check_disk(folder: Path) -> CheckResult:
    while not folder.exists():
        folder = folder.absolute().parent
    if not os.access(folder, os.W_OK):
        return CheckResult(check="disk", outcome="failed", found=f"{folder} cannot be written to", code="E403")
    free = shutil.disk_usage(folder).free
    found = f"{size(free)} free at {folder}"
    return _graded("disk", found, free, least=LEAST_DISK_BYTES, good=GOOD_DISK_BYTES, code="E420")


def _graded(check: str, found: str, num_bytes: int, *, least: int, good: int, code: str) -> CheckResult:
    """Return a result that is failed below the least amount, and a warning below a good one."""
    if num_bytes >= good:
        return CheckResult(check=check, outcome="ok", found=found)
    return CheckResult(check=check, outcome="failed" if num_bytes < least else "warning", found=found, code=code)


def check_workdir(workdir: Path, holder: Holder | None) -> CheckResult:
    """Report the identity in the workdir, and whether a node runs there."""
    key, events = workdir / "identity.key", workdir / "events.jsonl"
    try:
        who = f"peer {Identity.load_or_create(key).peer_id}" if key.exists() else "no identity yet"
    except StorageError as error:
        return CheckResult(check="workdir", outcome="failed", found=str(error), code=error.code)
    if holder is None:
        return CheckResult(check="workdir", outcome="ok", found=f"{who}; no node runs there")
    age = f", last event {max(0.0, time.time() - events.stat().st_mtime):.0f} s ago" if events.exists() else ""
    return CheckResult(check="workdir", outcome="ok", found=f"{who}; a node runs there (process {holder.pid}{age})")


def check_run(workdir: Path, config: PeerConfig) -> Iterator[CheckResult]:
    """Check what the run in the directory requires of this machine; no result if there is no run or no special requirement."""
    try:
        run = read_run(workdir)
    except StorageError as error:
        yield CheckResult(check="run", outcome="failed", found=str(error), code=error.code)
        return
    if run is None:
        return
    if run.admission.price:
        yield check_seat_price(run.admission)
    yield from check_arithmetic(run.model, config)


def check_arithmetic(model: ModelConfig, config: PeerConfig) -> Iterator[CheckResult]:
    """Warn if the devices emulate the run's arithmetic. No result if they do not, or for no devices, as `check_gpu` reports."""
    try:
        devices = select_devices(config)
    except ConfigError:
        return
    if setting := emulated_setting(model, devices.values()):
        found = f"{setting} is bfloat16, which {', '.join(devices)} emulates, several times slower than float32"
        yield CheckResult(check="arithmetic", outcome="warning", found=found, code="E524")


def check_seat_price(admission: AdmissionRules) -> CheckResult:
    """Estimate, from a few attempts, how long the proof of work for a seat in the run takes here."""
    puzzle = Puzzle(run=Digest(""), peer=PeerId(""), plan=Digest(""), round=0, price=admission.price)
    began = time.perf_counter()
    for nonce in range(TRIED_ATTEMPTS):
        puzzle.attempt(nonce)
    seconds = (time.perf_counter() - began) / TRIED_ATTEMPTS * admission.price
    found = f"{admission.in_words}; {duration(seconds)} on average here"
    return CheckResult(check="seat", outcome="ok", found=found)


def check_ports(config: PeerConfig, *, is_running: bool) -> CheckResult:
    try:
        check_config(config)
    except ConfigError as error:
        return CheckResult(check="ports", outcome="failed", found=str(error), code=error.code)
    if config.client_mode:
        return CheckResult(check="ports", outcome="ok", found="client mode: listens nowhere")
    named = [maddr for maddr in config.host_maddrs if not has_open_port(maddr)]
    if not named:
        return CheckResult(check="ports", outcome="ok", found="any free one")
    if is_running:
        return CheckResult(check="ports", outcome="skipped", found=f"{', '.join(named)}: the running node has them")
    taken = [maddr for maddr in named if not is_free(maddr)]
    if taken:
        return CheckResult(check="ports", outcome="failed", found=f"cannot listen on {', '.join(taken)}", code="E307")
    return CheckResult(check="ports", outcome="ok", found=f"{', '.join(named)}: free")


def available_memory_bytes() -> int | None:
    """Return the memory that this process may still take, of the machine or of its container, whichever is less."""
    if not MEMORY_INFO.exists():
        return None
    lines = dict(line.split(":", 1) for line in MEMORY_INFO.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.exists() else "max"
    if limit != "max" and CONTAINER_USED.exists():
        available = min(available, max(0, int(limit) - int(CONTAINER_USED.read_text())))
    return available


def driver_version() -> str | None:
    """Return the driver's version as nvidia-smi reports it; None if it reports none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.splitlines()[0].strip() if result.stdout.strip() else None
