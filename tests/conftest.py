"""What holds for every test: random examples are found again, no example fails for being slow on a shared machine, and Ctrl-C
reaches the processes that tests start, also where the tests themselves were started in the background."""

import os
import signal

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
