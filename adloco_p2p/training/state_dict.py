"""Loads weights from a state dict, as torch or safetensors files hold it, into a model of a known architecture."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from adloco_p2p.errors import ConfigError, brief

_WRAPPERS = ("state_dict", "model_state_dict", "model")
"""The keys under which training scripts store it beside other things."""
_PREFIXES = ("_orig_mod.", "module.")
"""The prefixes that torch.compile and data parallelism put before every name."""
_SHOWN = 3
"""How many names of each kind a message lists."""


def read_state_dict(path: Path) -> dict[str, torch.Tensor]:
    """Return tensors by name, on the CPU, without the wrappers and prefixes of training scripts. Never runs code of the file.
    Raises ConfigError."""
    try:
        if path.suffix == ".safetensors":
            found: Any = safetensors.torch.load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's unpickler raises anything over a file of another kind
        is_pickle = isinstance(error, pickle.UnpicklingError)  # torch's message advises to run the code of the file
        reason = "it holds other things than tensors" if is_pickle else brief(error) or "the file is empty"
        raise ConfigError(
            f"--weights {path}: no state dict can be read: {reason}; write one with torch.save(model.state_dict(), FILE)",
            code="E209",
        ) from error
    for name in _WRAPPERS:
        if isinstance(found, dict) and isinstance(found.get(name), dict):
            found = found[name]
    named = found.items() if isinstance(found, dict) else ()
    if not named or not all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in named):
        raise ConfigError(
            f"--weights {path}: holds other things than tensors by name; write it with torch.save(model.state_dict(), FILE)",
            code="E209",
        )
    tensors: dict[str, torch.Tensor] = found
    # in any order, as the model that torch.compile or data parallelism wraps may be wrapped by the other one already
    while prefix := next((one for one in _PREFIXES if all(name.startswith(one) for name in tensors)), None):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


@torch.no_grad()
def load_state_dict_(module: torch.nn.Module, given: Mapping[str, torch.Tensor], *, source: str) -> None:
    """Set every parameter and buffer of the module to the tensor of its name, in the module's own types.

    Of names that share one tensor (a tied head) one is enough. Raises ConfigError where names or shapes differ, where tied
    names get unequal tensors, or where values are not finite.
    """
    own = module.state_dict()
    problems = _listed("that the model does not have", sorted(given.keys() - own.keys()))
    shared = {own[name].data_ptr() for name in given.keys() & own.keys()}
    problems += _listed("missing", sorted(name for name, value in own.items() if value.data_ptr() not in shared))
    problems += _listed(
        "of another shape",
        [
            f"{name} {list(given[name].shape)} instead of {list(own[name].shape)}"
            for name in sorted(given.keys() & own.keys())
            if given[name].shape != own[name].shape
        ],
    )
    if not problems:
        for name, value in given.items():
            own[name].copy_(value)
        wrong = [name for name, value in given.items() if not torch.equal(own[name], value.to(own[name].dtype))]
        not_finite = [name for name in given if not bool(torch.isfinite(own[name]).all())]
        problems += _listed("whose values are not finite", not_finite)
        problems += _listed(
            "tied to another one in the model and unequal to it here (tie_word_embeddings: false unties them)",
            [name for name in wrong if name not in not_finite],
        )
    if problems:
        raise ConfigError(*(f"--weights {source}: {problem}" for problem in problems), code="E209")


def _listed(what: str, names: list[str]) -> list[str]:
    """Return one line about names that are wrong in the same way; empty where there are none."""
    if not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{len(names)} tensors {what}: {', '.join(names[:_SHOWN])}{more}; check model.architecture"]


def common_dtype(tensors: Mapping[str, torch.Tensor]) -> torch.dtype:
    """Return the floating type that all of them share; float32 where they have several."""
    found = {value.dtype for value in tensors.values() if value.is_floating_point()}
    return found.pop() if len(found) == 1 else torch.float32
