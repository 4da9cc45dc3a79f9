"""What a newcomer sees first: every verb that takes long prints a line at once, before anything heavy is imported."""

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from adloco_p2p.cli import FIRST_STEPS, main, make_parser
from adloco_p2p.cli.parser import Parser
from adloco_p2p.commands import console
from adloco_p2p.commands.console import Steps, say
from adloco_p2p.storage.workdir import Workdir

HEAVY = ("torch", "transformers", "hivemind", "datasets", "matplotlib", "grpc", "aiohttp", "rich")
WORDS = {
    "swarm:swarm": ["swarm", "--peers", "2"],
    "train:start": ["start", "--offline"],
    "train:join": ["join", "--initial-peers", "/ip4/127.0.0.1/tcp/1"],
    "trained_model:generate": ["generate", "--prompt", "x"],
    "inspect:report": ["report", "--output", "out"],
    "control:status": ["status"],
    "control:watch": ["watch"],
    "admission:members": ["members"],
    "observe:replay": ["replay"],
}
INK_CALLS = 500_000
"""Calls and returns until the first line, which are as many on every machine, however slow; about 140,000, or 0.05 s, now."""
QUICK = {"support:version", "support:explain_error", "support:completion"}
PROGRAM = f"""
import json, sys
num_calls = 0
def count(*_):
    global num_calls
    num_calls += 1
sys.setprofile(count)
from adloco_p2p import cli
class Terminal:
    encoding = "utf-8"
    def fileno(self): return 1
    def isatty(self): return True
    def flush(self): pass
    def write(self, text):
        if text.strip():
            sys.setprofile(None)
            loaded = [name for name in {HEAVY} if name in sys.modules]
            sys.__stdout__.write(json.dumps((text, loaded, num_calls)))
            sys.__stdout__.flush()
            import os
            os._exit(0)
sys.stdout = sys.stderr = Terminal()
cli.main(sys.argv[1:])
"""


@pytest.mark.parametrize("verb", WORDS)
def test_the_first_line_comes_at_once_and_before_anything_heavy(verb: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *WORDS[verb], "--workdir", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "TERM": "xterm"},
        check=False,
    )
    text, loaded, calls = json.loads(done.stdout)
    assert FIRST_STEPS[verb] in text, done
    assert loaded == []
    assert calls < INK_CALLS


def test_every_verb_but_the_quick_ones_has_a_first_step() -> None:
    def functions(parser: Parser) -> set[str]:
        below = [functions(verb) for verb in parser.verbs.values()]
        return {parser.get_default("verb")}.union(*below)

    assert functions(make_parser()) - {None} == {*FIRST_STEPS} | QUICK


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_step_moves_in_a_terminal_and_makes_way_for_results(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(console, "LEAST_SECONDS", 0.0)
    steps = Steps(terminal)
    steps.enter("importing libraries")
    say("a result")
    steps.enter("building the model")
    steps.enter(None)
    text = terminal.getvalue()
    assert "importing libraries" in text.split("\r\x1b[2Ka result\n")[0]
    lines = [line.rpartition("\x1b[2K")[2] for line in text.split("\n")[:-1]]
    assert [line.rsplit("  ", 1)[0].strip() for line in lines] == ["a result", "importing libraries", "building the model"]


def test_a_bootstrap_that_ends_leaves_the_shell_a_line_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(*, workdir: Workdir, **others: object) -> None:
        workdir.enter("running as a bootstrap")

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(console, "LEAST_SECONDS", 0.0)
    monkeypatch.setitem(sys.modules, "adloco_p2p.runtime.bootstrap_node", SimpleNamespace(serve=serve))
    assert main(["bootstrap", "--workdir", str(tmp_path)]) == 0
    *_, last, rest = terminal.getvalue().split("\n")
    assert last.rpartition("\x1b[2K")[2].startswith("  running as a bootstrap  ") and rest == ""


def test_a_pipe_gets_the_steps_of_training_and_the_results_of_the_rest() -> None:
    log, other = io.StringIO(), io.StringIO()
    Steps(log).enter("importing libraries")
    Steps(other, is_log=False).enter("loading the model")
    assert (log.getvalue(), other.getvalue()) == ("importing libraries\n", "")
    quiet = io.StringIO()
    Steps(quiet, is_quiet=True).enter("importing libraries")
    assert quiet.getvalue() == ""


def test_verbose_logs_information_and_quiet_still_prints_results(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("adloco_p2p")
    before = logger.level
    try:
        assert main(["explain-error", "E302", "-v"]) == 0
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)
    assert main(["explain-error", "E302", "-q"]) == 0
    assert capsys.readouterr().out.count("E302") >= 2
