"""Checks whether torch.compile works: it builds kernels at run time, with tools that not every machine has."""

import os
import shutil
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from adloco_p2p.errors import ConfigError

GRAPHS = 128
"""How many compiled forms of a forward torch.compile keeps. A device needs about ten: rows with one or several documents, one
row, a fixed or any number of rows, training or evaluation, and sampling of text. Beyond the limit, which is 8 over all devices
in torch itself, a form stays uncompiled, with a line in the log."""


def keep_graphs() -> None:
    """Raise torch's limit of compiled forms for all of this process. Call it before the first model is compiled."""
    torch._dynamo.config.recompile_limit = max(GRAPHS, torch._dynamo.config.recompile_limit)


@cache
def can_compile(device: torch.device) -> bool:
    """Return whether torch.compile works on this device with no more than the packages of the node. On a CPU it needs a C++
    compiler, which is not asked of any machine; on a GPU Triton builds its launchers with a C compiler and Python's headers."""
    compilers = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    return device.type == "cuda" and find_spec("triton") is not None and has_headers and any(map(shutil.which, compilers))


def check_can_compile(device: torch.device) -> None:
    """Raise ConfigError where this device cannot follow the machine's setting `compile`."""
    if can_compile(device):
        return
    if device.type != "cuda":
        raise ConfigError(f"compile: true is for GPUs, and this peer trains on {device}; leave it off")
    raise ConfigError(
        "compile: true needs Triton, a C compiler and Python's headers, and not all of them are here; "
        "on Debian: apt install gcc python3-dev; or leave it off"
    )
