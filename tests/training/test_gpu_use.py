"""The load of a GPU, on a fake driver: the figures that it gives, and none where it gives none."""

import pytest
import torch

from adloco_p2p.core.model.telemetry import Gpu
from adloco_p2p.training.gpu_use import gpu_use


def refuse(_: torch.device) -> int:
    raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")


def test_a_processor_has_no_gpu() -> None:
    assert gpu_use([torch.device("cpu")]) == ()


def test_what_the_driver_reports_is_in_base_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "utilization", lambda _: 87)
    monkeypatch.setattr(torch.cuda, "temperature", lambda _: 66)
    monkeypatch.setattr(torch.cuda, "power_draw", lambda _: 215_500)
    assert gpu_use([torch.device("cuda", 1)]) == (
        Gpu(
            index=1,
            memory_bytes=5 << 30,
            memory_limit_bytes=8 << 30,
            utilisation_fraction=0.87,
            temperature_celsius=66.0,
            power_watts=215.5,
        ),
    )


def test_without_the_library_of_the_vendor_the_memory_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 8))
    for name in ("utilization", "temperature", "power_draw"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    assert gpu_use([torch.device("cuda", 0)]) == (Gpu(index=0, memory_bytes=7, memory_limit_bytes=8),)
