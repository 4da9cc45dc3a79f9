"""Which devices a machine has, by what torch reports of GPUs that it can, and cannot, use."""

from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest
import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.errors import ConfigError
from adloco_p2p.runtime.doctor import machine_checks
from adloco_p2p.runtime.doctor.machine_checks import check_gpu
from adloco_p2p.training.compiling import can_compile, check_can_compile
from adloco_p2p.training.device import configure_devices, memory_bytes, select_devices
from tests.training.virtual_gpu import virtual_gpus

AUTO = PeerConfig()
OLD = "The NVIDIA driver on your system is too old (found version 12020)."


def fail_with(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_auto_is_every_gpu_or_else_apples_or_else_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert select_devices(AUTO) == {"cpu": torch.device("cpu")}
    with virtual_gpus(monkeypatch, 0):
        assert select_devices(AUTO) == {"mps:0": torch.device("mps", 0)}
    with virtual_gpus(monkeypatch, 2):
        assert select_devices(AUTO) == {"cuda:0": torch.device("cuda", 0), "cuda:1": torch.device("cuda", 1)}
        assert list(select_devices(replace(AUTO, device=("cuda:1", "cpu")))) == ["cuda:1", "cpu"]
        with pytest.raises(ConfigError, match="cuda:0 is named twice"):
            select_devices(replace(AUTO, device=("cuda", "cuda:0")))
        with pytest.raises(ConfigError, match="torch sees 2 CUDA devices"):
            select_devices(replace(AUTO, device="cuda:2"))


def test_a_driver_that_is_too_old_is_reported_and_the_processor_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts its GPUs all the same."""
    monkeypatch.setattr(machine_checks, "driver_version", lambda: "535.183")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in ("init", "mem_get_info", "get_device_properties", "get_device_capability"):
        monkeypatch.setattr(torch.cuda, name, fail_with(RuntimeError(OLD)))
    assert select_devices(AUTO) == {"cpu": torch.device("cpu")}
    assert memory_bytes() == psutil.virtual_memory().total
    with pytest.raises(ConfigError, match=r"device: 'cuda' asked for, but torch .* reports: The NVIDIA driver .* is too old"):
        select_devices(replace(AUTO, device="cuda"))
    result = check_gpu(AUTO)
    assert (result.outcome, result.code) == ("warning", "E522")
    assert "version 535.183" in result.found and OLD in result.found


@pytest.mark.parametrize(
    ("capability", "built", "is_usable"),
    [
        ((6, 1), ["sm_75", "sm_80", "sm_120"], False),
        ((8, 9), ["sm_75", "sm_80", "sm_120"], True),
        ((9, 0), ["sm_75", "sm_80", "sm_90a"], True),
        ((7, 0), ["sm_75", "compute_120"], False),
        ((12, 1), ["sm_80", "compute_90"], True),
    ],
)
def test_a_card_that_torch_was_not_built_for_is_left_out(
    capability: tuple[int, int], built: list[str], is_usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "driver_version", lambda: "580.95")
    with virtual_gpus(monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
        assert list(select_devices(AUTO)) == (["cuda:0"] if is_usable else ["cpu"])
        assert check_gpu(AUTO).outcome == ("ok" if is_usable else "warning")
        if not is_usable:
            with pytest.raises(ConfigError, match=r"was not built for virtual GPU \(compute capability \d.\d\)"):
                select_devices(replace(AUTO, device="cuda:0"))
        monkeypatch.setattr(torch.version, "hip", "7.0")  # whose generations have names
        assert list(select_devices(AUTO)) == ["cuda:0"]


def test_a_gpu_that_the_driver_does_not_give_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    with virtual_gpus(monkeypatch):
        busy = RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")
        monkeypatch.setattr(torch.cuda, "mem_get_info", fail_with(busy))
        result = check_gpu(AUTO)
    assert (result.outcome, result.code) == ("failed", "E522") and "busy" in result.found


def test_training_takes_its_part_of_what_other_programs_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[object] = []
    allocator: list[str] = []
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", allocator.append)
    with virtual_gpus(monkeypatch):
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *limit: limits.append(limit))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (6 << 30, 24 << 30))
        configure_devices(replace(AUTO, memory_fraction=0.5))
        assert limits == [(0.125, torch.device("cuda", 0))]
        assert allocator == ["pinned_max_round_threshold_mb:16"]
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # then it is the user's
        configure_devices(AUTO)
        assert len(allocator) == 1


def test_kernels_are_compiled_only_where_the_tools_are(monkeypatch: pytest.MonkeyPatch) -> None:
    has: set[str] = {"triton", "gcc"}
    monkeypatch.setattr("adloco_p2p.training.compiling.find_spec", lambda name: name if name in has else None)
    monkeypatch.setattr("adloco_p2p.training.compiling.shutil.which", lambda name: name if name in has else None)
    monkeypatch.setattr("adloco_p2p.training.compiling.Path.exists", lambda path: path.name in has)
    found = []
    for more in ((), ("Python.h",), ("cc",)):
        has |= set(more)
        can_compile.cache_clear()
        found.append(can_compile(torch.device("cuda", 0)))
    has.discard("triton")
    assert found == [False, True, True] and not can_compile(torch.device("cpu"))
    with pytest.raises(ConfigError, match="compile: true is for GPUs, and this peer trains on cpu"):
        check_can_compile(torch.device("cpu"))
    can_compile.cache_clear()
    with pytest.raises(ConfigError, match="apt install gcc python3-dev"):
        check_can_compile(torch.device("cuda", 0))
    can_compile.cache_clear()
