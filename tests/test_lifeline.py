"""A process that is started by another one ends with it."""

import os
import signal
import subprocess
import sys

import pytest

HELD = """
import sys, time
from adloco_p2p.commands import lifeline

def on_end():
    {on_end}

lifeline.hold(int(sys.argv[1]), on_end=on_end)
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("on_end", ["pass", "raise OSError(28, 'No space left on device')"], ids=["in order", "full disk"])
def test_a_process_ends_with_the_one_that_holds_its_lifeline(on_end: str) -> None:
    """Also where the word of its end cannot be written; it trained on, and kept its directory locked."""
    reading, writing = os.pipe()
    command = [sys.executable, "-c", HELD.format(on_end=on_end), str(reading)]
    with subprocess.Popen(command, pass_fds=(reading,), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        os.close(reading)
        assert child.stdout is not None and child.stdout.readline() == b"held\n"
        os.close(writing)
        try:
            assert child.wait(300) == -signal.SIGKILL
        finally:
            child.kill()
