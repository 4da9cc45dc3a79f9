"""The load of the machine reaches the views; a driver that fails for a moment ends nothing."""

import asyncio

import pytest

from adloco_p2p.core.model.telemetry import Gpu, Machine
from adloco_p2p.runtime.adapters import machine_use

GPU = Gpu(index=0, memory_bytes=1, memory_limit_bytes=2)


def test_the_figures_are_of_this_machine() -> None:
    found = machine_use.machine_use((GPU,))
    assert 0 < found.process_memory_bytes < found.memory_limit_bytes
    assert 0 < found.memory_bytes <= found.memory_limit_bytes and found.processor_fraction >= 0
    assert found.gpus == (GPU,)


def test_a_driver_that_fails_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_use, "PERIOD_SECONDS", 0.0)
    written: list[Machine] = []
    asked = 0

    def gpus() -> tuple[Gpu, ...]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("the driver restarts")
        return (GPU,)

    async def scenario() -> None:
        is_written = asyncio.Event()

        def write(machine: Machine) -> None:
            written.append(machine)
            is_written.set()

        watching = asyncio.create_task(machine_use.watch_machine(write, gpus))
        waiting = asyncio.create_task(is_written.wait())
        done, _ = await asyncio.wait([watching, waiting], return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        assert waiting in done, "the failure ended the watch"

    asyncio.run(scenario())
    assert asked >= 2 and written[0].gpus == (GPU,)
