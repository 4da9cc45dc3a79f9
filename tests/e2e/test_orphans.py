"""The orphans of a killed life."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from adloco_p2p.swarm.p2p.daemon import make_socket_directory, remove_socket_directory

ORPHAN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]])
"""


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE  # nobody may be there to collect it


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_orphaned_daemons_of_an_earlier_life_are_ended_and_no_others(tmp_path):
    sockets = {name: make_socket_directory(tmp_path / name) for name in ("mine", "other")}
    try:
        for directory in sockets.values():
            listen = f"-listen=/unix{directory}/p2pd-x.sock"
            subprocess.run([sys.executable, "-c", ORPHAN, listen], check=True)
        found: dict[str, psutil.Process] = {}
        deadline = time.monotonic() + 300
        while len(found) < 2 and time.monotonic() < deadline:
            found = {
                name: process
                for process in psutil.process_iter(["cmdline"])
                for name, directory in sockets.items()
                if (process.info["cmdline"] or [""])[-1] == f"-listen=/unix{directory}/p2pd-x.sock"
                and process.info["cmdline"][2] == "import time; time.sleep(600)"  # not before it is another program
            }
        assert set(found) == {"mine", "other"}
        make_socket_directory(tmp_path / "mine")
        while _is_alive(found["mine"]) and time.monotonic() < deadline:
            time.sleep(0.01)  # it has no memory any more, and is for a moment not yet a zombie
        assert not _is_alive(found["mine"]) and _is_alive(found["other"])
    finally:
        for directory in sockets.values():
            for process in psutil.process_iter(["cmdline"]):
                if (process.info["cmdline"] or [""])[-1] == f"-listen=/unix{directory}/p2pd-x.sock":
                    os.kill(process.pid, 9)
            remove_socket_directory(directory)
