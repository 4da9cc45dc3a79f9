"""Programs with a model and a loop of their own as peers: `examples/own_loop.py` in real processes."""

import os
import re
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

import adloco_p2p
from adloco_p2p.core.model.telemetry import Round
from tests.e2e.processes import ENVIRONMENT, REPOSITORY, warm
from tests.e2e.swarm_processes import LOOPBACK, WAIT_LIMIT_SECONDS, said_by, wait

EXAMPLE = REPOSITORY / "examples" / "own_loop.py"


def _main(arguments: list[str], output: str) -> None:
    for number in (1, 2):
        os.dup2(os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    os.environ.update(ENVIRONMENT)
    sys.argv = [str(EXAMPLE), *arguments]
    runpy.run_path(str(EXAMPLE), run_name="__main__")


@dataclass
class Program:
    """One process of the example."""

    workdir: Path
    arguments: Sequence[object]
    process: ForkServerProcess = field(init=False)

    def start(self) -> "Program":
        arguments = [str(self.workdir), "--listen", LOOPBACK, *map(str, self.arguments)]
        self.process = warm().Process(target=_main, args=(arguments, str(self.output)))
        self.process.start()
        return self

    @property
    def output(self) -> Path:
        return self.workdir.with_name(f"{self.workdir.name}.out")

    @property
    def words(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def said(self, pattern: str, *, seconds: float = WAIT_LIMIT_SECONDS) -> str:
        return said_by(self, pattern, seconds=seconds)

    @property
    def rounds(self) -> dict[int, Round]:
        if not (self.workdir / "run.json").exists():
            return {}
        return {event.round: event for event in adloco_p2p.Run(self.workdir).events if isinstance(event, Round)}

    def model(self, *, seconds: float = WAIT_LIMIT_SECONDS) -> str:
        """What it ends with."""
        return self.said(r"^finished: True, .* model (\w{64})$", seconds=seconds)


def pair(folder: Path, *, rounds: int) -> tuple[Program, Program]:
    """Two programs of one run, by the commands at the head of the example: the run begins when both are there."""
    commands = re.findall(r"^    python examples/own_loop\.py (\S+) ([^#\n]*)", EXAMPLE.read_text(), re.MULTILINE)
    (one, of_first), (other, of_second) = [(name, words.split()) for name, words in commands]
    of_first = [str(folder / word) if word == other else word for word in of_first]
    first = Program(folder / one, (*of_first, "--rounds", rounds)).start()
    link = first.said(r"^join link: (adloco://\S+)$")
    events = first.workdir / "events.jsonl"
    wait(lambda: events.exists() and '"founders"' in events.read_text(), "the first program to wait for the other")
    return first, Program(folder / other, [link if word == "LINK" else word for word in of_second]).start()


def test_two_programs_end_with_one_model(tmp_path: Path) -> None:
    first, second = pair(tmp_path, rounds=4)
    try:
        assert first.model() == second.model()
    finally:
        for program in (first, second):
            program.process.kill()
            program.process.join()
    ours, theirs = first.rounds, second.rounds
    assert {*ours, *theirs} == set(range(4))
    both = [(ours[n], theirs[n]) for n in ours.keys() & theirs.keys()]  # one that was held up may have skipped a round
    assert all(one.digest == other.digest for one, other in both if not (one.is_void or other.is_void))
    assert any(len(row.contributors) == 2 for row in adloco_p2p.Run(first.workdir).rounds)
    begun = ours[min(ours)]
    assert begun.samples == 10 * 32 and begun.requested_batch == 64
    assert any(event.heldout_loss is not None for event in (*ours.values(), *theirs.values()))


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_killed_program_comes_back_to_the_same_model(tmp_path: Path) -> None:
    first, second = pair(tmp_path, rounds=100)
    try:
        wait(lambda: len(second.rounds) >= 5, "five rounds of both")
        second.process.kill()
        second.process.join()
        second.start()
        assert first.model(seconds=600) == second.model(seconds=600)
    finally:
        for program in (first, second):
            program.process.kill()
            program.process.join()
    ours, theirs = first.rounds, second.rounds
    common = ours.keys() & theirs.keys()
    assert len(ours) == 100 and len(common) > 50 and all(ours[n].digest == theirs[n].digest for n in common)
