"""GPUs that compute on the processor, for tests: a mix of device and host memory raises an error, as on a GPU.

A tensor of a virtual GPU is a `DeviceTensor`: Python sees it on `cuda:N` or `mps:0`, torch's C++ on `meta:N`, whose backward
needs no driver, and its values are an ordinary tensor on the CPU, on which every operation is performed. Waits of the
host for the device are counted. Not modelled: kernels of a GPU's own, autocast, the memory of the device, and time: every
operation ends before the next one begins.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

aten = torch.ops.aten
_READS = {aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.masked_select.default}
"""Operations whose result depends on values, so that the host waits for them."""
_COPIES = {aten.copy_.default, aten._to_copy.default}
_HOST = torch.device("cpu")
_FIRST = {"cuda": 0, "mps": 64}
"""The first meta device that stands for one of this kind."""


class DeviceTensor(torch.Tensor):
    """`held` on a virtual GPU."""

    held: torch.Tensor
    place: torch.device

    @staticmethod
    def __new__(cls, held: torch.Tensor, place: torch.device) -> "DeviceTensor":
        assert type(held) is torch.Tensor, type(held)
        tensor: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=_as_torch_sees(place),
        )
        tensor.held, tensor.place = held, place
        return tensor

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.held}, {self.place})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Makes `Module.to` exchange parameters as wholes, so that tied ones stay tied."""
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(*_: object) -> "DeviceTensor":
        raise AssertionError("only torch.compile asks for it")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
            args[0].held = args[1].held
        if func in (torch.Tensor.numpy, torch.Tensor.__array__):
            raise TypeError(f"can't convert {args[0].place} device type tensor to numpy")
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return args[0].place.type == "cuda"
        if func == torch.Tensor.tolist:
            return args[0].cpu().tolist()
        if func == torch.autograd.backward:  # its functions of Python see what those of forward passes see
            ((loss,),) = args
            engine: Any = torch.autograd.Variable._execution_engine
            return engine.run_backward((loss,), (torch.ones_like(loss),), False, False, (), True, accumulate_grad=True)
        args = [_as_torch_sees(value) for value in args]
        kwargs = {name: _as_torch_sees(value) for name, value in (kwargs or {}).items()}
        with torch._C.DisableTorchFunctionSubclass():
            return _as_python_sees(func(*args, **kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _perform(func, args, kwargs or {})


def _as_torch_sees(thing: Any) -> Any:
    if isinstance(thing, str) and thing.startswith(("cuda", "mps")):
        thing = torch.device(thing)
    if isinstance(thing, torch.device) and thing.type in _FIRST:
        return torch.device("meta", _FIRST[thing.type] + (thing.index or 0))
    return thing


def _as_python_sees(thing: Any) -> Any:
    """A meta device without a number is torch's own."""
    if isinstance(thing, torch.device) and thing.type == "meta" and thing.index is not None:
        kind = "mps" if thing.index >= _FIRST["mps"] else "cuda"
        return torch.device(kind, thing.index - _FIRST[kind])
    return thing


def _device_of(tensor: torch.Tensor) -> torch.device:
    return tensor.place if isinstance(tensor, DeviceTensor) else tensor.device


class _Mode(TorchDispatchMode):
    """Sees what makes tensors out of none, too."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and its import takes longer than a test

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _perform(func, args, kwargs or {})


def _perform(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation of torch, on what its tensors hold."""
    leaves, form = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    on_gpu = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    devices = {_device_of(tensor) for tensor in tensors if tensor.ndim or isinstance(tensor, DeviceTensor)}
    asked = kwargs.get("device")
    if func == aten.copy_.default:
        target = _device_of(args[0])
    elif asked is not None:
        target = _as_python_sees(torch.device(asked))
    else:
        target = on_gpu[0].place if on_gpu else _HOST
    if target.type in _FIRST:
        target = torch.device(target.type, target.index or 0)
    if func in _COPIES:
        _note_copy(func, args, kwargs, devices | {target}, target)
    elif len(devices) > 1:
        raise RuntimeError(f"{func} of tensors on {' and '.join(sorted(map(str, devices)))}")
    elif on_gpu and func in _READS:
        SEEN["reads"] += 1
    if func == aten._fused_sdp_choice.default:
        return 0  # attention as plain products: its kernels are named after their devices
    args, kwargs = tree_unflatten([leaf.held if isinstance(leaf, DeviceTensor) else leaf for leaf in leaves], form)
    if target.type in _FIRST and asked is not None:
        kwargs["device"] = _HOST
    is_pinned = bool(kwargs.pop("pin_memory", None))
    result = func(*args, **kwargs)
    if target.type not in _FIRST:
        if is_pinned:
            result.is_pinned_here = True
        return result
    known = {id(tensor.held): tensor for tensor in on_gpu}  # what an operation in place returns is what it was given

    def on_target(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if target.type == "mps" and leaf.dtype == torch.float64:
            raise TypeError("the MPS framework doesn't support float64")
        return known[id(leaf)] if id(leaf) in known else DeviceTensor(leaf, target)

    return on_target(result) if isinstance(result, torch.Tensor) else tree_map(on_target, result)


def _note_copy(func: Any, args: Any, kwargs: Any, devices: set[torch.device], target: torch.device) -> None:
    if len(devices) == 1:
        return
    is_waiting = not (kwargs.get("non_blocking") or (func == aten.copy_.default and len(args) > 2 and args[2]))
    if target == _HOST:
        assert is_waiting, "nobody knows when a copy to the host that is not waited for has ended"
        SEEN["copies to the host"] += 1
    else:
        SEEN["copies to a device, waited for" if is_waiting else "copies to a device"] += 1
        assert is_waiting or target.type == "cuda", "only CUDA's allocator keeps the memory that such a copy reads"


SEEN: Counter[str] = Counter()
"""Reads of a GPU's values by the host, and copies, since the last `virtual_gpus` began."""


class _Generator:
    """Chance on a virtual GPU is that of the processor."""

    def manual_seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    if _is_pinned(tensor):
        return tensor
    copy = tensor.clone()
    copy.is_pinned_here = True  # type: ignore[attr-defined]
    return copy


def _is_pinned(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "is_pinned_here")


@contextmanager
def virtual_gpus(monkeypatch: pytest.MonkeyPatch, count: int = 1) -> Iterator[Counter[str]]:
    """In this thread, and in those that begin inside, `cuda:0` and so on exist; `mps`, where `count` is 0. Gives `SEEN`."""
    fakes: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: count > 0,
        "is_bf16_supported": lambda *_: True,
        "device_count": lambda: count,
        "get_device_name": lambda _: "virtual GPU",
        "get_device_capability": lambda _: (8, 6),
        "get_arch_list": lambda: ["sm_75", "sm_80", "sm_90"],
        "get_device_properties": lambda _: SimpleNamespace(total_memory=8 << 30),
        "mem_get_info": lambda _: (6 << 30, 8 << 30),
        "set_per_process_memory_fraction": lambda *_: None,
        "synchronize": lambda _: None,
        "empty_cache": lambda: None,
        "get_rng_state": lambda _: torch.get_rng_state(),
        "set_rng_state": lambda state, _: torch.set_rng_state(state),
        "default_generators": tuple(_Generator() for _ in range(count)),
    }
    run = threading.Thread.run

    def run_with_gpus(thread: threading.Thread) -> None:
        with _Mode():
            run(thread)

    with monkeypatch.context() as patch:
        for name, fake in fakes.items():
            patch.setattr(torch.cuda, name, fake)
        patch.setattr(torch.Tensor, "pin_memory", _pinned)
        patch.setattr(torch.Tensor, "is_pinned", _is_pinned)
        patch.setattr(torch.backends.mps, "is_available", lambda: count == 0)
        patch.setattr(torch.mps, "manual_seed", _Generator().manual_seed)
        patch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)  # torch built for CUDA asks the driver
        patch.setattr(threading.Thread, "run", run_with_gpus)
        # activation checkpointing compares what it recomputes with what it saved, which it sees by the name of the C++ side
        patch.setitem(checkpoint._allowed_determinism_checks_to_fns, "default", lambda saved: {"shape": saved.shape})
        SEEN.clear()
        with _Mode():
            yield SEEN
