"""Real processes of the command, and the tiny run that they train: 18,560 parameters, six rounds, three instances."""

import json
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from benchmarks.nodes import LOOPBACK, llama, write_document
from tests.docs.warm import PRELOADED, be_patient
from tests.e2e import faults

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
CONNECTED = (
    *("--plain", "--peer-set", "deterministic=true", "num_threads=1", "max_micro_batch=4"),
    *("checkpoint_period_seconds=0", "daemon_start_seconds=240"),
)
"""Bit-identical repetition, micro-batches small enough that the growing batch needs several, a checkpoint after every round,
also on a machine whose rounds are shorter than checkpoints are apart by default, and patience with the network's daemon."""
MACHINE = ("--offline", *CONNECTED)
REPOSITORY = Path(__file__).parents[2]
FAULTS = Path(__file__).with_name("faults.py")
ROUNDS = 6
LAST_SECONDS = 900
"""A process that has not ended by then never will, on a machine that is ten times slower or busier than ours."""
WORDS = ("outer", "inner", "round", "step", "peer", "merge", "batch", "plan")


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    """What it printed."""
    errors: str


TINY_MODEL = {"architecture": llama(width=32, layers=1, heads=2, intermediate=64)}


def write_text(folder: Path, *, num_paragraphs: int) -> None:
    """`text.txt`: the same words in the same order every time."""
    words = random.Random(3)
    paragraphs = [" ".join(words.choice(WORDS) for _ in range(60)) for _ in range(num_paragraphs)]
    (folder / "text.txt").write_text("\n\n".join(paragraphs))


def write_config(folder: Path) -> Path:
    """A run over a small text of its own. Three instances after round 0, two after round 3, one at the end."""
    write_text(folder, num_paragraphs=120)
    document = {
        "name": "tiny",
        "seed": 5,
        "model": TINY_MODEL,
        "data": {"source": "text", "path": str(folder / "text.txt"), "sequence_length": 32, "heldout_fraction": 0.2},
        "inner": {"learning_rate": 1e-2, "warmup_steps": 4},
        "work": {"inner_steps": 4, "rounds": ROUNDS},
        "instances": {"count": 3, "fork_round": 1},
        "batch": {"eta": 0.05, "max_batch": 12},
        "merge": {"period_rounds": 2, "first_round": 2, "guard_tolerance": 10.0},
        "evaluation": {"rows": 8},
    }
    return write_document(folder, document)


def begin(*arguments: object, fault: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """`adloco-peer ARGUMENTS` with pipes; the caller waits for it. `fault`: see `run`."""
    start = ["-m", "adloco_p2p"] if not fault else [str(FAULTS), *fault, "--"]
    return subprocess.Popen(
        [sys.executable, *start, *map(str, arguments)],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> Ended:
    try:
        output, errors = process.communicate(timeout=LAST_SECONDS)
    finally:
        process.kill()
    return Ended(code=process.returncode, output=output, errors=errors)


# --- processes that start warm ---------------------------------------------------------------------------------------
#
# Importing torch and transformers costs seconds. A fork server imports them once; each child is a process of its own, with
# its own pid to kill, that calls the same `main` as the command.


def warm() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    return context


def run(arguments: Sequence[object], *, folder: Path, fault: tuple[str, ...] = ()) -> Ended:
    """The command in a warm process, to its end. `fault` is a function of `faults.py` and its arguments, called first."""
    output, errors = folder / "output", folder / "errors"
    process = begin_warm(arguments, output=output, errors=errors, fault=fault)
    process.join(LAST_SECONDS)
    process.kill()
    assert process.exitcode is not None, f"it never ended: {output.read_text()}"
    return Ended(code=process.exitcode, output=output.read_text(), errors=errors.read_text())


def begin_warm(arguments: Sequence[object], *, output: Path, errors: Path, fault: tuple[str, ...] = ()) -> ForkServerProcess:
    process = warm().Process(target=_main, args=([*map(str, arguments)], str(output), str(errors), fault))
    process.start()
    return process


def _main(arguments: list[str], output: str, errors: str, fault: tuple[str, ...]) -> None:
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    os.environ.update(ENVIRONMENT)
    if fault and fault[0] in faults.FRESH:
        os.environ["PYTHONPATH"] = str(REPOSITORY)
        os.execv(sys.executable, [sys.executable, str(FAULTS), *fault, "--", *arguments])
    if fault:
        getattr(faults, fault[0])(*fault[1:])
    be_patient()
    from adloco_p2p.cli import main

    raise SystemExit(main(arguments))


def swarm_of_one(folder: Path, *more: object) -> Path:
    """The working directory of a finished run on the network; `said` in it has the output."""
    workdir = folder / "work"
    command = ["start", write_config(folder), "--workdir", workdir, "--host-maddrs", LOOPBACK, *CONNECTED, *more]
    ended = run(command, folder=folder)
    assert ended.code == 0, ended
    (workdir / "said").write_text(ended.output)
    return workdir


# --- what they leave -------------------------------------------------------------------------------------------------


def events(workdir: Path, name: str | None = None) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (workdir / "events.jsonl").read_text().splitlines()]
    return [event for event in lines if name in (None, event["event"])]


def digests(workdir: Path) -> dict[tuple[int, int], str]:
    """Round and instance -> outer parameters after it. Fails where a round is there twice."""
    rounds = [((event["round"], event["instance"]), event["digest"]) for event in events(workdir, "round")]
    assert len(dict(rounds)) == len(rounds), [key for key, _ in rounds]
    return dict(rounds)
