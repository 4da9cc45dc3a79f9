"""The devices of a machine, and torch's settings for them."""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import psutil
import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import ModelConfig
from adloco_p2p.errors import ConfigError, DeviceError, brief

Result = TypeVar("Result")

_ROUNDED_MB = 16
"""The size in MB up to which pinned blocks, those of rows, are rounded up, so that later rows can use them again."""


def select_devices(peer_config: PeerConfig) -> dict[str, torch.device]:
    """Return the devices that the setting `device` names, by name and in order. `auto` means all GPUs that torch can compute
    on, or else the processor. Raises ConfigError for a device that this machine lacks.

    Torch sees one processor: `cpu:0` and `cpu:1` are the same device, for which a peer keeps two of everything.
    """
    names = peer_config.devices
    if names == ("auto",):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = tuple(f"cuda:{index}" for index in range(count) if _has_kernels(index))
        names = names or (("mps",) if torch.backends.mps.is_available() else ("cpu",))
    selected: dict[str, torch.device] = {}
    for name in names:
        device = _device(name)
        title = name if device.type == "cpu" else str(device)
        if title in selected:
            raise ConfigError(f"device: {', '.join(names)}: {title} is named twice; name it once", code="E210")
        selected[title] = device
    return selected


def select_device(peer_config: PeerConfig) -> torch.device:
    """Return the first of `select_devices`."""
    return next(iter(select_devices(peer_config).values()))


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: {name!r} is not a device; use auto, cpu, mps, cuda or cuda:N", code="E210") from None
    match device.type:
        case "cpu":
            return torch.device("cpu")
        case "mps" if torch.backends.mps.is_available():
            return torch.device("mps", 0)
        case "mps":
            raise ConfigError("device: 'mps' asked for, but torch sees no Apple GPU; use auto or cpu", code="E210")
        case "cuda":
            index = device.index or 0
            if torch.cuda.is_available() and index < torch.cuda.device_count() and _has_kernels(index):
                return torch.device("cuda", index)
            problem = gpu_problem() or f"torch sees {torch.cuda.device_count()} CUDA devices"
            raise ConfigError(f"device: {name!r} asked for, but {problem}; use auto or cpu", code="E210")
    raise ConfigError(f"device: {name!r} is not supported; use auto, cpu, mps, cuda or cuda:N", code="E210")


def gpu_problem() -> str:
    """Return what keeps torch from GPUs of NVIDIA or AMD, in a phrase: no driver, an old one, or a card that torch was not
    built for. Empty where torch can use every GPU that it sees."""
    if torch.cuda.is_available():
        cards = []
        for index in range(torch.cuda.device_count()):
            if not _has_kernels(index):
                major, minor = torch.cuda.get_device_capability(index)
                cards.append(f"{torch.cuda.get_device_name(index)} (compute capability {major}.{minor})")
        return f"torch {torch.__version__} was not built for {', '.join(cards)}" if cards else ""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:  # the CPU build of torch raises AssertionError
        return f"torch {torch.__version__} reports: {brief(error)}"
    return f"torch {torch.__version__} finds no GPU"


def _has_kernels(index: int) -> bool:
    """Return whether this torch was built for the card: for its generation up to the card's own version, or with code that the
    driver translates."""
    if torch.version.hip is not None:  # AMD's generations have names, not numbers
        return True
    capability = torch.cuda.get_device_capability(index)
    for built in torch.cuda.get_arch_list():  # such as sm_86, sm_90a, compute_120
        kind, _, number = built.partition("_")
        version = divmod(int(number.rstrip("af")), 10)
        if version <= capability and (kind == "compute" or version[0] == capability[0]):
            return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """A device and its memory; that of a processor is the machine's."""

    name: str
    model: str
    free_bytes: int
    total_bytes: int


def memory_of(devices: Mapping[str, torch.device]) -> tuple[DeviceMemory, ...]:
    """Return the memory of each of `select_devices`."""
    return tuple(_memory(name, device) for name, device in devices.items())


def _memory(name: str, device: torch.device) -> DeviceMemory:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(name=name, model=torch.cuda.get_device_name(device), free_bytes=free, total_bytes=total)
    if device.type == "mps":
        total = torch.mps.recommended_max_memory()
        used = torch.mps.driver_allocated_memory()
        return DeviceMemory(name=name, model="Apple GPU", free_bytes=max(0, total - used), total_bytes=total)
    machine = psutil.virtual_memory()
    return DeviceMemory(name=name, model="processor", free_bytes=machine.available, total_bytes=machine.total)


def is_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether `model.precision` means bfloat16 arithmetic on this device."""
    return has_bfloat16(device) if precision == "auto" else precision == "bfloat16"


def has_bfloat16(device: torch.device) -> bool:
    """Return whether the device has instructions for bfloat16 arithmetic; torch emulates them on others."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0) or torch.version.hip is not None
    if device.type == "mps":
        return False
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def emulated_setting(model: ModelConfig, devices: Iterable[torch.device]) -> str:
    """Return the setting that prescribes bfloat16 arithmetic where a device emulates it, several times slower than its float32;
    empty where none does. Apple's GPUs do not count: whether they emulate it is not known."""
    if all(has_bfloat16(device) or device.type == "mps" for device in devices):
        return ""
    if model.precision == "bfloat16":
        return "model.precision"
    return "model.lora.base_precision" if model.lora.rank and model.lora.base_precision == "bfloat16" else ""


def configure_devices(peer_config: PeerConfig) -> dict[str, torch.device]:
    """Apply torch's settings for this process, which are threads, determinism and the usable part of each GPU's memory, and
    return the devices by name."""
    devices = select_devices(peer_config)
    configure_computing(peer_config)
    for device in devices.values():
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = peer_config.tf32
            _limit_memory(device, peer_config.memory_fraction)
            _keep_pinned_sizes()
    return devices


def configure_computing(peer_config: PeerConfig) -> None:
    """The part of `configure_devices` that touches no device."""
    if peer_config.num_threads is not None:
        torch.set_num_threads(peer_config.num_threads)
    if peer_config.deterministic:
        # cuBLAS reads this variable when it makes its first handle; without it torch refuses deterministic matrix products.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(peer_config.deterministic)


def _limit_memory(device: torch.device, fraction: float) -> None:
    """Limit torch to a part of the memory that other programs leave. Where it runs out, some drivers, as in WSL, move data to
    main memory instead of reporting an error, and training becomes many times slower; libraries also need memory that torch
    does not count."""
    free, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(fraction * free / total, device)


def _keep_pinned_sizes() -> None:
    """Round pinned vectors up less: torch would take the next power of two of bytes, up to twice the need. An allocator that
    the environment configures is left as it is."""
    if {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        return
    with contextlib.suppress(AttributeError, RuntimeError, ValueError):  # an older torch lacks the function or the key
        torch._C._accelerator_setAllocatorSettings(f"pinned_max_round_threshold_mb:{_ROUNDED_MB}")


def memory_bytes() -> int | None:
    """Return the memory of this machine and its GPUs together; None where the system does not report it."""
    try:
        own = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0  # the driver also counts GPUs that torch cannot use
    return own + sum(torch.cuda.get_device_properties(index).total_memory for index in range(count))


def with_room(work: Callable[[], Result], make_room: Callable[[], None], *, problem: str) -> Result:
    """Return the result of `work`, which changes nothing where memory is short; it is then called once more, after `make_room`.
    Raises DeviceError with the words of `problem` where that is not enough."""
    try:
        return work()
    except torch.OutOfMemoryError:
        pass
    make_room()  # outside the handler, which would keep the tensors of the failed attempt alive
    try:
        return work()
    except torch.OutOfMemoryError as error:
        raise DeviceError(problem, code="E502") from error
