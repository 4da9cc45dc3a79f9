"""The measurement of the machine's load, for the views and the metrics."""

import asyncio
from collections.abc import Callable

import psutil

from adloco_p2p.core.model.telemetry import Gpu, Machine

PERIOD_SECONDS = 5.0


def machine_use(gpus: tuple[Gpu, ...]) -> Machine:
    """Return the load: that of the processor since the previous call, everything else as it is now."""
    memory = psutil.virtual_memory()
    return Machine(
        processor_fraction=psutil.cpu_percent() / 100,
        memory_bytes=memory.total - memory.available,
        memory_limit_bytes=memory.total,
        process_memory_bytes=psutil.Process().memory_info().rss,
        gpus=gpus,
    )


async def watch_machine(write: Callable[[Machine], None], gpus: Callable[[], tuple[Gpu, ...]]) -> None:
    """Write the load once a period, until cancelled."""
    psutil.cpu_percent()  # the first answer covers no time
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        try:
            use = machine_use(await asyncio.to_thread(gpus))
        except (OSError, RuntimeError, psutil.Error):
            continue  # the system or a driver gives no figures now, and the node works without them
        write(use)
