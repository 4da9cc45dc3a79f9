"""The load of the GPUs on which a node trains."""

from collections.abc import Callable, Sequence

import torch

from adloco_p2p.core.model.telemetry import Gpu


def gpu_use(devices: Sequence[torch.device]) -> tuple[Gpu, ...]:
    """Return the use of each GPU: memory in use by all programs, as the driver reports it, and load, temperature and power
    where `nvidia-ml-py` (or AMD's `amdsmi`) is installed beside torch. A processor or an Apple GPU has no entry."""
    return tuple(_use(device) for device in devices if device.type == "cuda")


def _use(device: torch.device) -> Gpu:
    free, limit = torch.cuda.mem_get_info(device)
    load = _asked(torch.cuda.utilization, device)
    milliwatts = _asked(torch.cuda.power_draw, device)
    return Gpu(
        index=device.index or 0,
        memory_bytes=limit - free,
        memory_limit_bytes=limit,
        utilisation_fraction=None if load is None else load / 100,
        temperature_celsius=_asked(torch.cuda.temperature, device),
        power_watts=None if milliwatts is None else milliwatts / 1000,
    )


def _asked(ask: Callable[[torch.device], int], device: torch.device) -> float | None:
    try:
        return float(ask(device))
    except Exception:  # no library, no permission or no sensor: each driver has its own error; training goes on without
        return None
