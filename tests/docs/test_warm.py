"""The server of warm processes, with a command that imports nothing and goes on for ten minutes."""

import os
import select
import signal
import socket
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


def test_ctrl_c_that_comes_while_a_command_is_asked_for_is_passed_on(tmp_path: Path) -> None:
    """The command may speak, and whoever waited for its words may end it, before the process that asked has another turn."""
    address, large = str(tmp_path / "warm"), {f"LARGE_{number}": "x" * 100_000 for number in range(8)}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        with subprocess.Popen([sys.executable, warm.__file__, address, "start"], env={**os.environ, **large}) as asking:
            line, _ = listener.accept()
            with line:
                header, files, _, _ = socket.recv_fds(line, warm.LENGTH.size, len(warm.STANDARD_FILES))
                for file in files:
                    os.close(file)
                asking.send_signal(signal.SIGINT)  # the rest is more than the line takes
                left = warm.LENGTH.unpack(header)[0]
                while left:
                    piece = line.recv(left)
                    assert piece, "it has ended"
                    left -= len(piece)
                assert line.recv(1) == bytes([signal.SIGINT])
                line.send(bytes([7]))
            assert asking.wait(LIMIT_SECONDS) == 7
