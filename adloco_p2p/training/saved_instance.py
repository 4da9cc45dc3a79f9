"""The state of an instance in a checkpoint: all that a bit-exact resume needs beside the data's place."""

from collections.abc import Mapping, Sequence

import torch

from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.errors import StorageError
from adloco_p2p.training.inner_optimizer import has_shape_of
from adloco_p2p.training.instance import Instance


def saved_tensors(hosted: Instance, *, has_fragments: bool) -> dict[str, torch.Tensor]:
    """Return CPU tensors that nobody writes to: outer parameters and momentum themselves, and copies of the others."""
    state, _ = hosted.optimizer_copy()
    tensors = {"outer": hosted.outer, "momentum": hosted.momentum, **state}
    if has_fragments or (hosted.is_carried and hosted.start is None):
        tensors["local"] = hosted.mixed_local()
    return tensors


def load_saved_(
    instance: InstanceId,
    hosted: Instance,
    tensors: Mapping[str, torch.Tensor],
    meta: Mapping[str, object],
    *,
    has_fragments: bool,
) -> dict[str, object]:
    """Restore `hosted`, which has the checkpoint's outer parameters and momentum already, to the saved state. Returns the saved
    place in its data. Raises StorageError."""
    match meta:
        case {"optimizer_steps": int(steps), "adoption_steps": int() | None as adoption_steps, "feed": dict(feed)}:
            pass
        case _:
            raise StorageError(f"checkpoint of instance {instance}: its counters are missing", code="E405")
    for name, own in hosted.optimizer.state.items():
        if not has_shape_of(tensors.get(name), own):
            raise _other_model(instance, name)
    hosted.optimizer.load(tensors, steps)
    hosted.adoption_steps = adoption_steps
    if has_fragments or "local" in tensors:
        hosted.local.copy_(tensors["local"])
        hosted.is_carried = not has_fragments
    return feed


def check_saved(
    instance: InstanceId, tensors: Mapping[str, torch.Tensor], names: Sequence[str], *, size: int, dtype: torch.dtype
) -> None:
    """Raise StorageError unless all named vectors are there, with `size` values of this type."""
    for name in names:
        if name not in tensors or tensors[name].shape != (size,) or tensors[name].dtype != dtype:
            raise _other_model(instance, name)


def _other_model(instance: InstanceId, name: str) -> StorageError:
    return StorageError(f"checkpoint of instance {instance}: {name} is missing or not of this model", code="E405")
