"""The load of this machine, in words for people."""

import psutil

from adloco_p2p.views import units


def machine_words() -> str:
    """Return `processor 87% memory 3.40 GB of 16.8 GB`: the processor's load since the last call, and the memory now."""
    memory = psutil.virtual_memory()
    used = memory.total - memory.available
    return f"processor {psutil.cpu_percent():.0f}%  memory {units.size(used)} of {units.size(memory.total)}"
