"""Nodes as a user starts them, for benchmarks: their command, their output, their event files."""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import yaml

from adloco_p2p.swarm.p2p.identity import Identity

ROOT = Path(__file__).parents[1]
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
LOOK_SECONDS = 0.2
IN_OWN_SESSION = partial(subprocess.Popen, start_new_session=True)
"""Starts processes that a Ctrl-C in the terminal must not reach."""
ADDRESSES = re.compile(r"^initial peers: (.+)$", re.MULTILINE)
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
NUM_PARAGRAPHS = 400
WORDS = ("outer", "inner", "round", "step", "peer", "merge", "batch", "plan", "link", "loss", "delay", "queue")

Event = dict[str, Any]


def read_events(workdir: Path) -> list[Event]:
    """Return the node's events so far, from whole lines only."""
    path = workdir / "events.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [json.loads(line) for line in whole.splitlines()]


def began(event: Event) -> float:
    """Return the instant at which the round of the event began to compute, in unix seconds."""
    return float(event["time"] - sum(event["seconds"].values()))


@dataclass(kw_only=True, eq=False)
class Member:
    """A node's process over its lives, with its directory, and NAME.log beside it with its output."""

    workdir: Path
    command: Sequence[str]
    popen: Callable[..., Any] = subprocess.Popen
    """May start the process elsewhere, as in a network namespace."""
    process: subprocess.Popen[Any] = field(init=False)
    lives: int = 0
    _read_bytes: int = 0

    def start(self) -> Self:
        self.lives += 1
        with self.log.open("ab") as output:
            options = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT, "cwd": ROOT}
            self.process = self.popen(self.command, env={**os.environ, **ENVIRONMENT}, **options)
        return self

    @property
    def name(self) -> str:
        return self.workdir.name

    @property
    def log(self) -> Path:
        return self.workdir.with_name(f"{self.name}.log")

    @property
    def words(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def peer_id(self) -> str | None:
        """The id of the peer; None before its first start has made the key."""
        key = self.workdir / "identity.key"
        return Identity.load_or_create(key).peer_id if key.exists() else None

    def events(self) -> list[Event]:
        return read_events(self.workdir)

    def new_rounds(self) -> Iterator[Event]:
        """Yield the round events since the last call."""
        path = self.workdir / "events.jsonl"
        if not path.exists():
            return
        if path.stat().st_size < self._read_bytes:
            self._read_bytes = 0  # rewound to its last checkpoint
        with path.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")[0]
        self._read_bytes += len(whole) + bool(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):  # a rewind fell between two looks
                event = json.loads(line)
                if event["event"] == "round":
                    yield event

    def num_rounds(self) -> int:
        return sum(event["event"] == "round" for event in self.events())

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def addresses(self, *, deadline: float) -> list[str]:
        """Return the addresses that it prints for others. Raises SystemExit where there are none by the deadline, an instant of
        `time.monotonic`."""
        while not (match := ADDRESSES.search(self.words)):
            if not self.is_alive or time.monotonic() > deadline:
                sys.exit(f"{self.name} did not start: {self.words[-1000:]}")
            time.sleep(LOOK_SECONDS)
        return match[1].split()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def paced(step_seconds: float, *, row_seconds: float = 0.0) -> Sequence[object]:
    """Return the module of a node whose device takes so long for an inner step and for each of its rows, and its arguments;
    both 0: the node as it is."""
    if not step_seconds and not row_seconds:
        return ("adloco_p2p",)
    return ("benchmarks.paced", *(("--row-seconds", row_seconds) if row_seconds else ()), step_seconds)


def node_command(
    *arguments: object, workdir: Path, listen: str, program: Sequence[object] = ("adloco_p2p",), settings: Sequence[str] = ()
) -> list[str]:
    """Return `adloco-peer ARGUMENTS` with one thread and these settings of the machine. `program`: the module that is the node,
    and its own arguments before these."""
    common = ["--workdir", workdir, "--plain", "--peer-set", "num_threads=1", "allow_local_files=true", *settings]
    common += ["--host-maddrs", listen]
    return [sys.executable, "-m", *map(str, (*program, *arguments, *common))]


def begin(folder: Path, name: str, command: Sequence[str], *, popen: Callable[..., Any] = subprocess.Popen) -> Member:
    """Start the command of a node whose directory is FOLDER/NAME."""
    return Member(workdir=folder / name, command=command, popen=popen).start()


def begin_node(folder: Path, name: str, *arguments: object, step_seconds: float = 0.0, settings: Sequence[str] = ()) -> Member:
    """Start a node by `node_command`, on loopback."""
    program = paced(step_seconds)
    command = node_command(*arguments, workdir=folder / name, listen=LOOPBACK, program=program, settings=settings)
    return begin(folder, name, command)


def end(members: Sequence[Member], *, seconds: float = 60.0) -> list[int]:
    """Ask all of them to leave, kill those that are late, and return the exit codes."""
    for member in members:
        member.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + seconds
    for member in members:
        try:
            member.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            member.kill()
    return [member.process.returncode for member in members]


def problems_of(members: Sequence[Member], *, minutes: float) -> list[str]:
    """Return the problems of members that should have ended by themselves within so many minutes."""
    codes = {member.name: member.process.poll() for member in members}
    problems = [f"{name} was not done after {minutes:g} minutes" for name, code in codes.items() if code is None]
    return problems + [f"{name} ended with exit code {code}; see its log" for name, code in codes.items() if code]


def new_directory(parser: argparse.ArgumentParser, out: Path) -> Path:
    """Make the directory that `--out` names, and return it. Ends the program where it exists."""
    if out.exists():
        parser.error(f"--out {out}: exists; name a new directory")
    out = out.resolve()
    out.mkdir(parents=True)
    return out


def end_on_sigterm() -> None:
    """End by an exception, so that even then the processes that this program has started are ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def llama(*, width: int, layers: int, heads: int, intermediate: int) -> dict[str, Any]:
    """Return an architecture for the configuration's `model`."""
    return {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "tie_word_embeddings": True,
    }


def write_text(folder: Path) -> Path:
    """Write a text to train on, always the same."""
    words = random.Random(3)
    paragraphs = [" ".join(words.choice(WORDS) for _ in range(60)) for _ in range(NUM_PARAGRAPHS)]
    path = folder / "text.txt"
    path.write_text("\n\n".join(paragraphs))
    return path


def write_document(folder: Path, document: dict[str, Any]) -> Path:
    """Write the configuration as NAME.yaml into the folder."""
    path = folder / f"{document['name']}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def write_config(
    folder: Path, name: str, *, rounds: int, inner_steps: int, width: int, layers: int, equal_shares: bool
) -> Path:
    """Write a run of one small instance with a fixed batch of 32 and a text of its own: NAME.yaml in the folder."""
    document = {
        "name": name,
        "model": {"architecture": llama(width=width, layers=layers, heads=width // 32, intermediate=256)},
        "data": {"source": "text", "path": str(write_text(folder)), "sequence_length": 64, "heldout_fraction": 0.1},
        "inner": {"warmup_steps": 8},
        "work": {"inner_steps": inner_steps, "rounds": rounds, "share": "equal" if equal_shares else "speed"},
        "instances": {"count": 1},
        "batch": {"initial_batch": 32, "max_batch": 32},
        "merge": {"policy": "none"},
        "evaluation": {"rows": 16},
        "admission": {"kind": "open", "probation_rounds": 0},
    }
    return write_document(folder, document)
