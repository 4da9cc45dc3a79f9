"""How busy this machine is, for the people who look at it."""

import psutil

from adloco_p2p.views import units


def machine_words() -> str:
    """`processor 87%  memory 3.40 GB of 16.8 GB`: since the call before, and now."""
    memory = psutil.virtual_memory()
    used = memory.total - memory.available
    return f"processor {psutil.cpu_percent():.0f}%  memory {units.size(used)} of {units.size(memory.total)}"
