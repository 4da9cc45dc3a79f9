"""The doctor among real processes, and the orphans of a killed life."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from adloco_p2p.swarm.p2p.daemon import make_socket_directory, remove_socket_directory
from tests.e2e.processes import run
from tests.e2e.swarm_processes import PeerProcess

ORPHAN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]])
"""


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE  # nobody may be there to collect it


def test_the_doctor_asks_a_bootstrap_and_is_dialled_back(tmp_path):
    bootstrap = PeerProcess(workdir=tmp_path / "bootstrap", verb=("bootstrap",)).start()
    try:
        ended = run(["doctor", "--json", "--initial-peers", *bootstrap.addresses()], folder=tmp_path)
    finally:
        bootstrap.kill()
    assert ended.code == 0, ended.errors
    results = {result["check"]: result for result in json.loads(ended.output)["results"]}
    assert results["initial peers"]["found"] == "1 of 1 answer"
    for check in ("protocol", "clock", "dial back", "speed"):
        assert results[check]["outcome"] == "ok", results[check]
    assert "reached from outside at /ip4/" in results["dial back"]["found"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_orphaned_daemons_of_an_earlier_life_are_ended_and_no_others(tmp_path):
    sockets = {name: make_socket_directory(tmp_path / name) for name in ("mine", "other")}
    try:
        for directory in sockets.values():
            listen = f"-listen=/unix{directory}/p2pd-x.sock"
            subprocess.run([sys.executable, "-c", ORPHAN, listen], check=True)
        found = {}
        deadline = time.monotonic() + 20
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
