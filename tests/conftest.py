"""What holds for every test: random examples are found again, no example fails for being slow on a shared machine, and Ctrl-C
reaches the processes that tests start, also where the tests themselves were started in the background. `--share 2/3` runs every
third test, from the second on: shares take about the same time."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "everywhere",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize="CI" in os.environ,
)
settings.load_profile("everywhere")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what runs in the background, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="1/1", help="the part of the tests that is run, of how many: 2/3")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = map(int, config.getoption("share").split("/"))
    items[:] = items[part - 1 :: parts]
