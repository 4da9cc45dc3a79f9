"""Where torch.compile works: it builds kernels at run time, with tools that not every machine has."""

import os
import shutil
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from adloco_p2p.errors import ConfigError


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
