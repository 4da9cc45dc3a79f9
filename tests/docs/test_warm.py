"""The server of warm processes, with a command that imports nothing and goes on for ten minutes."""

import os
import select
import subprocess
import sys
from pathlib import Path

from tests.docs import warm
from tests.docs.pages import REPOSITORY

LONG = """
import os, sys, time, types
from tests.docs import warm
def main():
    print(os.getpid(), flush=True)
    time.sleep(600)
sys.modules["adloco_p2p.__main__"] = types.SimpleNamespace(main=main)
warm.PRELOADED = ()
warm.serve(sys.argv[1])
"""
LIMIT_SECONDS = 300


def test_a_command_ends_with_a_killed_server(tmp_path: Path) -> None:
    address = str(tmp_path / "warm")
    with subprocess.Popen([sys.executable, "-c", LONG, address], stdin=-1, stdout=-1, cwd=REPOSITORY) as server:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        with subprocess.Popen([sys.executable, warm.__file__, address, "start"], stdout=-1) as asking:
            assert asking.stdout is not None
            end = os.pidfd_open(int(asking.stdout.readline()))
            server.kill()
            assert select.select([end], [], [], LIMIT_SECONDS)[0], "it goes on"
            os.close(end)
            assert asking.wait(LIMIT_SECONDS) == 1
