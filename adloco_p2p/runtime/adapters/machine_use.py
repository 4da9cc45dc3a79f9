"""The load of the machine, for the views and the metrics."""

import asyncio
from collections.abc import Callable

import psutil

from adloco_p2p.core.model.telemetry import Gpu, Machine

PERIOD_SECONDS = 5.0


def machine_use(gpus: tuple[Gpu, ...]) -> Machine:
    """The processor since the call before, the rest as it is now."""
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
            continue  # a system or a driver that gives no figures now: the node works without them
        write(use)
