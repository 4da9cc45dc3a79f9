"""Two hosts with emulated links: the links are as asked, and nothing is left when the laboratory ends."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil
import pytest

from benchmarks.wan.check import PAYLOAD, ping, serve, stream, together
from benchmarks.wan.emulator import Emulator, LaboratoryUnavailable
from benchmarks.wan.lab import Border, Laboratory, Link

ROOT = Path(__file__).parents[2]
LINKS = [Link(name=name, up_mbit=20, down_mbit=50, delay_ms=10) for name in ("a", "b")]
INTERRUPTED = """
import subprocess, sys, threading
from benchmarks.wan.lab import Laboratory
from tests.e2e.test_wan_lab import LINKS
with Laboratory(LINKS) as lab:
    inside = lab.popen("a", ["sh", "-c", "echo started; exec sleep 1000"], stdout=subprocess.PIPE)
    inside.stdout.readline()
    print(*[lab._emulator.pid, *lab._inside()], flush=True)
    threading.Event().wait()
"""


@pytest.fixture(autouse=True, scope="module")
def _permitted() -> None:
    try:
        Emulator(["10.77.0.1,1e6,1e6,0,0,0,1e5"], congestion_control="cubic", seed=1).stop()
    except LaboratoryUnavailable as error:
        pytest.skip(str(error))


def exists(pid: int) -> bool:
    """Not counting the dead whom nobody has asked about yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def namespaces() -> set[str]:
    """Of every process there is."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(str(entry.readlink()))
        except OSError:
            continue  # it has ended
    return found


@pytest.mark.heavy  # it is about time, which a busy machine has little of
def test_a_link_has_at_least_the_delay_and_at_most_the_rate_it_was_given() -> None:
    """How much more, and how much less, is this machine's: `python -m benchmarks.wan.check` judges it on an idle one."""
    with Laboratory(LINKS) as lab:
        serve(lab, "b")
        answers = ping(lab, "a", "b", count=20)
        mbit = stream(lab, "a", "b", seconds=2)
        counters = lab.counters()
    assert answers["answered"]
    assert median(answers["rtt_seconds"]) >= 0.040
    assert 0 < mbit < 1.1 * 20 * PAYLOAD
    assert counters["b"].received_bytes > 0
    assert counters["a"].cut == counters["b"].cut == 0


@pytest.mark.heavy  # it is about time, which a busy machine has little of
def test_hosts_of_an_island_share_the_way_to_another_island_and_nothing_else() -> None:
    links = [Link(name=name, up_mbit=50, down_mbit=50, delay_ms=1) for name in "abcd"]
    begun = time.monotonic()
    with Laboratory(links, border=Border(islands=("ab", "cd"), mbit=5, delay_ms=20, queue_kb=64)) as lab:
        for host in "bcd":
            serve(lab, host)
        inside, across = ping(lab, "a", "b", count=20), ping(lab, "a", "c", count=20)
        fast, alone = stream(lab, "a", "b", seconds=2), stream(lab, "a", "c", seconds=3)
        shared = together(lab, ("ac", "bd"), seconds=6)
        counters, seconds = lab.counters(), time.monotonic() - begun
    assert 0.004 <= median(inside["rtt_seconds"]) < 0.044 <= median(across["rtt_seconds"])
    assert 1.1 * 5 * PAYLOAD < fast < 1.1 * 50 * PAYLOAD
    assert 0 < alone < 1.1 * 5 * PAYLOAD
    assert min(shared) > 0 and sum(shared) < 1.1 * 5 * PAYLOAD
    assert counters["a"].sent_bytes > 2 * counters["a"].crossed_bytes > 0
    assert sum(counters[host].crossed_bytes for host in "ab") <= seconds * 5 * 125_000 + 64 * 1024


def test_nothing_is_left_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[int] = []
    inodes: set[str] = set()

    def fail(lab: Laboratory) -> None:
        # one that ignores requests to end, and its child, which nobody waits for
        stubborn = lab.popen("a", ["sh", "-c", "trap '' TERM; sleep 1000 & echo started; wait"], stdout=subprocess.PIPE)
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        seen.extend([*lab._inside(), lab._emulator.pid])
        inodes.update(f"net:[{inode}]" for inode in lab._emulator.inodes)
        assert stubborn.pid in seen and len(seen) == 3 and inodes & namespaces()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Laboratory(LINKS) as lab:
        fail(lab)
    assert not any(exists(pid) for pid in seen)
    assert not inodes & namespaces()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_after_an_interrupt() -> None:
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as lab:
        try:
            assert lab.stdout is not None
            pids = [int(word) for word in lab.stdout.readline().split()]
            assert len(pids) == 2 and all(exists(pid) for pid in pids)
            lab.send_signal(signal.SIGINT)
            _, errors = lab.communicate(timeout=300)
        finally:
            lab.kill()  # if it is still there; otherwise nothing happens
    assert errors.strip().endswith(b"KeyboardInterrupt")
    assert not any(exists(pid) for pid in pids)


@pytest.mark.heavy  # it is about time, which a busy machine has little of
def test_two_laboratories_are_separate_networks() -> None:
    """They have the same names and addresses."""
    with Laboratory(LINKS) as one, Laboratory(LINKS) as other:
        serve(one, "b")
        assert ping(one, "a", "b", count=5)["answered"]
        assert ping(other, "a", "b", count=5)["answered"] == []
        one.partition([["a"], ["b"]])
        assert ping(one, "a", "b", count=5)["answered"] == []
        assert one.counters()["a"].cut == 5


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LaboratoryUnavailable, match=r"root, for network namespaces.*gcc.*nsenter"), Laboratory(LINKS):
        pass
