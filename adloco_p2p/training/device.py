"""Which device, and how torch uses it."""

import os

import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.errors import ConfigError


def select_device(peer_config: PeerConfig) -> torch.device:
    """The device that `device` names. Raises ConfigError for one that this machine lacks."""
    name = peer_config.device
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: {name!r} is not a device; use auto, cpu, cuda or cuda:N", code="E210") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ConfigError(f"device: {name!r} is not supported; use auto, cpu, cuda or cuda:N", code="E210")
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"device: {name!r} asked for, but torch sees {torch.cuda.device_count()} CUDA devices; use auto or cpu",
            code="E210",
        )
    return torch.device("cuda", index)


def is_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether `model.precision` means bfloat16 arithmetic on this device."""
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0) or torch.version.hip is not None
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def configure_device(peer_config: PeerConfig) -> torch.device:
    """Set what torch keeps per process: threads, determinism, and the part of the GPU's memory that may be used."""
    device = select_device(peer_config)
    if peer_config.num_threads is not None:
        torch.set_num_threads(peer_config.num_threads)
    if peer_config.deterministic:
        # cuBLAS reads this when its first handle is made; without it torch refuses deterministic matrix products
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(peer_config.deterministic)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = peer_config.tf32
        torch.cuda.set_per_process_memory_fraction(peer_config.memory_fraction, device)
    return device


def memory_bytes() -> int | None:
    """Of this machine and its GPUs together; none where the system does not report it."""
    try:
        own = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
    return own + sum(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
