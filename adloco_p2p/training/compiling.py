"""Where torch.compile works: it builds kernels at run time, with tools that not every machine has."""

import os
import shutil
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from adloco_p2p.errors import ConfigError

GRAPHS = 128
"""Forms of a forward that torch.compile keeps. A device needs ten or so: of rows with several documents or without, one row, a
fixed number or any, training or evaluation, and a text that is sampled. Beyond torch's own limit, 8 over all devices, a form
stays uncompiled, with a line in the log."""


def keep_graphs() -> None:
    """Before the first model is compiled: for all of this process."""
    torch._dynamo.config.recompile_limit = max(GRAPHS, torch._dynamo.config.recompile_limit)


@cache
def can_compile(device: torch.device) -> bool:
    """Whether torch.compile works for it without more than the packages of the node: on a CPU it would need a C++ compiler on
    every machine; Triton, which it uses for GPUs, builds its launchers with a C compiler and Python's headers."""
    compilers = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    return device.type == "cuda" and find_spec("triton") is not None and has_headers and any(map(shutil.which, compilers))


def check_can_compile(device: torch.device) -> None:
    """Raises ConfigError where the machine's setting `compile` cannot be followed."""
    if can_compile(device):
        return
    if device.type != "cuda":
        raise ConfigError(f"compile: true is for GPUs, and this peer trains on {device}; leave it off")
    raise ConfigError(
        "compile: true needs Triton, a C compiler and Python's headers, and not all of them are here; "
        "on Debian: apt install gcc python3-dev; or leave it off"
    )
