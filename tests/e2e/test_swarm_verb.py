"""The verb `swarm`: all its peers are founders of the run, and none of them outlives it."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adloco_p2p.cli import main
from adloco_p2p.commands import swarm as swarm_verb
from adloco_p2p.commands import swarm_members
from adloco_p2p.commands.console import Steps
from adloco_p2p.commands.swarm import _conclude
from adloco_p2p.commands.swarm_members import Interrupts, Member, Patience, check_first, wait_for_ending, wait_until_ready
from adloco_p2p.commands.train import SWARM_SECONDS
from adloco_p2p.config.load import load_run
from adloco_p2p.core.model import canonical
from adloco_p2p.errors import ConfigError, StorageError, SwarmError
from adloco_p2p.runtime import network_node
from adloco_p2p.swarm.discovery.join import DISCOVERY_SECONDS, JoinTarget
from tests.e2e.processes import ENVIRONMENT, REPOSITORY, run
from tests.e2e.swarm_processes import processes_of, wait, write_swarm_config


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator["Swarm"]:
    verb = Swarm(tmp_path)
    yield verb
    verb.kill()
    wait(lambda: not processes_of(tmp_path), f"nothing to be left of {processes_of(tmp_path)}")


class Swarm:
    """`adloco-peer swarm` of two peers, again and again in the same directory."""

    def __init__(self, folder: Path) -> None:
        self.workdir = folder / "runs"
        self._folder = folder
        self._config = write_swarm_config(folder, rounds=10_000, inner_steps=20)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["swarm", str(self._config), "--peers", "2", "--plain", "--workdir", str(self.workdir)]
        with (self._folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "adloco_p2p", *words],
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(REPOSITORY)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def end(self) -> int:
        assert self._process is not None
        return self._process.wait()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    @property
    def output(self) -> str:
        return (self._folder / "output").read_text()

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        path = self.workdir / name / "events.jsonl"
        whole = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
        return [event for event in map(json.loads, whole) if event["event"] == kind]


def test_a_swarm_counts_from_its_last_peer_on_and_leaves_no_orphans(swarm: Swarm, tmp_path: Path) -> None:
    swarm.start()
    wait(lambda: len(swarm.events("peer-1", "round")) > 1, "the second peer to train")
    assert len(swarm.events("peer-0", "plan")[0]["roster"]) == 2
    swarm.kill()
    # The same command at once: it waits for what is left of the swarm that was killed.
    past = len(swarm.events("peer-0", "started")), swarm.events("peer-0", "round")[-1]["round"]
    swarm.start()
    wait(lambda: len(swarm.events("peer-0", "started")) > past[0], "the second swarm")
    wait(lambda: swarm.events("peer-0", "round")[-1]["round"] > past[1], "rounds of the second swarm")
    assert run(["command", "stop", "--workdir", swarm.workdir / "peer-0"], folder=tmp_path).code == 0
    assert swarm.end() == 0, swarm.output
    rounds = [done["round"] for done in swarm.events("peer-0", "round")]
    assert rounds == sorted(set(rounds))
    for verb in ("generate", "report", "export"):
        assert f"  adloco-peer {verb} --workdir {swarm.workdir / 'peer-0'}" in swarm.output
    wait(lambda: not processes_of(tmp_path), "their daemons to die")


def test_a_founder_that_ends_or_is_late_ends_the_swarm_and_is_named(tmp_path: Path) -> None:
    def member(name: str, code: str, words: str) -> Member:
        log = tmp_path / f"{name}.log"
        log.write_text(words)
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        return Member(workdir=tmp_path / name, process=process, log=log, lifeline=-1)

    late = member("peer-1", "input()", "")
    lost = member("peer-2", "raise SystemExit(3)", "adloco-peer: E302: no peer\n  cause: x\n")
    try:
        lost.process.wait()
        with pytest.raises(SwarmError, match=r"(?m)^peer-2 did not start: adloco-peer: E302: no peer$"):
            wait_until_ready([late, lost], seconds=600.0, interrupts=Interrupts([]))
        with pytest.raises(SwarmError, match=r"no step further in 0 s: peer-1, at .*peer-1\.log; with --no-wait"):
            wait_until_ready([late], seconds=0.0, interrupts=Interrupts([]))
        check_first([late, lost])
        with pytest.raises(SwarmError, match=r"(?m)^peer-2 did not start: adloco-peer: E302: no peer$"):
            check_first([lost, late])  # it looks for the run of the first, which is not to come
        late.workdir.mkdir()
        (late.workdir / "run.json").touch()
        check_first([lost, late])  # it has the run
    finally:
        late.process.kill()
        late.process.wait()


HOLDER = """
import sys
from pathlib import Path
from adloco_p2p.storage.workdir import ENDING, Workdir
held = Workdir.open(Path(sys.argv[1]))
print(flush=True)
sys.stdin.readline()
held.enter(ENDING)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("is_ending", [True, False])
def test_peers_of_a_killed_swarm_may_notice_its_end_later_than_the_same_command_is_back(
    is_ending: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others that work there are named, once such peers would have said so."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdin=-1, stdout=-1, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None and process.stdout.readline() == b"\n"
        said: list[bytes] = []

        def look_later(seconds: float) -> None:
            assert process.stdin is not None and process.stdout is not None
            if said:
                process.communicate()
            else:
                process.stdin.write(b"\n")
                said.append(process.stdout.readline())

        monkeypatch.setattr(time, "sleep", look_later)
        if is_ending:
            wait_for_ending([tmp_path])
        else:
            monkeypatch.setattr(swarm_members, "NOTICE_SECONDS", 0.0)
            with pytest.raises(StorageError, match=f"in use by another adloco-peer .process {process.pid}"):
                wait_for_ending([tmp_path])
        assert bool(said) == is_ending and (process.poll() is not None) == is_ending


def test_a_start_may_take_long_as_long_as_it_moves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long depends on the machine, the text and the model."""
    now = 0.0
    monkeypatch.setattr(swarm_members, "time", SimpleNamespace(monotonic=lambda: now))
    patience = Patience(300.0)
    for step in ("importing libraries", "reading the text", "building the model"):
        assert not patience.is_over(step)
        now += 299.0
        assert not patience.is_over(step)
    now += 2.0
    assert patience.is_over("building the model")


def test_a_peer_of_a_swarm_waits_for_the_first_one_longer_than_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one announces the run once it has read the text and built the model, which may take minutes."""
    targets: list[JoinTarget] = []

    async def join_run(embedding: object, target: JoinTarget) -> None:
        targets.append(target)
        raise SwarmError("enough", code="E303")

    monkeypatch.setattr(network_node, "join_run", join_run)
    reading, writing = os.pipe()
    address = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWCvfkdZi5h86kPjP1dwDqJ5v8fhg1TvwYuxoZ7xicXEYS"
    for place, more in (("a", []), ("b", ["--lifeline", str(reading)])):
        assert main(["join", "--initial-peers", address, "--workdir", str(tmp_path / place), "--plain", *more]) == 3
    alone, of_swarm = targets
    assert alone.patience_seconds == DISCOVERY_SECONDS and of_swarm.patience_seconds == SWARM_SECONDS
    del writing  # stays open: the end of a lifeline ends this process


def test_a_child_ends_when_its_parent_is_gone_however_that_ended() -> None:
    child = "import os, sys; from adloco_p2p.commands import lifeline; lifeline.hold(int(sys.argv[1]),"
    child += " on_end=lambda: print('ending', flush=True)); print('here', flush=True); sys.stdin.read()"
    parent = "import os, subprocess, sys; r, w = os.pipe(); subprocess.Popen([sys.executable, '-c', sys.argv[1], str(r)],"
    parent += " pass_fds=(r,)); os.close(r); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", parent, child], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.kill()
        assert process.stdout.read() == b"ending\n"  # and the end of the file: nobody holds the pipe any more


def test_a_complete_swarm_is_called_so_and_another_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "peer-0").mkdir()
    run = load_run(None, ["admission.kind=open", "admission.probation_rounds=0"]).value
    run = replace(run, author="an-author", founders=("a-founder",), data=replace(run.data, digest="d" * 64))  # filled in
    (tmp_path / "peer-0" / "run.json").write_bytes(canonical.encode(run))
    for name in ("is_complete", "ended"):
        monkeypatch.setattr(swarm_verb, name, lambda workdir: True)
    words = ["swarm", "--peers", "2", "--workdir", str(tmp_path)]
    assert main(words) == 0
    assert "this run is complete: 24 rounds are done\ndone. Try next:" in capsys.readouterr().out
    assert main([*words, "--rounds", "30"]) == 2
    said = capsys.readouterr()
    assert "E203" in said.err and "complete with 24 rounds, and 30 rounds are asked for" in said.err and "done" not in said.out
    assert main([*words, "--set", "outer.overlap=forecast"]) == 2
    said = capsys.readouterr()
    listed = '(here: in the directory, there: asked for):\n  outer.overlap: "none" here, "forecast" there\n'
    assert "E203" in said.err and listed in said.err and "author" not in said.err and "done" not in said.out


def test_the_same_command_again_leaves_the_model_that_it_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, model, finished = load_run(None).value, tmp_path / "model", tmp_path / "peer-0"
    for folder in (model, finished):
        folder.mkdir()
    (finished / "run.json").write_bytes(canonical.encode(run))
    arguments = argparse.Namespace(workdir=tmp_path, export=model)

    def conclude() -> str:
        assert _conclude(arguments, [], Steps(sys.stdout, is_quiet=True), finished=[finished], is_stopped=False) == 0
        return capsys.readouterr().out

    (model / "adloco_run.json").write_text(json.dumps({"run": run.digest, "round": 24}))
    assert "model: the model after round 24 was written before" in conclude()
    (model / "adloco_run.json").write_text(json.dumps({"run": "another", "round": 24}))
    with pytest.raises(ConfigError, match="exists and is not empty") as refused:
        conclude()
    assert refused.value.code == "E211"
