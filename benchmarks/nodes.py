"""Nodes as a user starts them, for benchmarks: their command, what they say, what they write."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
ADDRESSES = re.compile(r"^initial peers: (.+)$", re.MULTILINE)
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
WORDS = ("outer", "inner", "round", "step", "peer", "merge", "batch", "plan", "link", "loss", "delay", "queue")

Event = dict[str, Any]


def read_events(workdir: Path) -> list[Event]:
    """What the node has written so far, whole lines only."""
    path = workdir / "events.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [json.loads(line) for line in whole.splitlines()]


@dataclass(slots=True, kw_only=True)
class Member:
    """A node's process and what it leaves behind."""

    name: str
    workdir: Path
    log: Path
    process: subprocess.Popen[Any]

    @property
    def words(self) -> str:
        return self.log.read_text(errors="replace")

    def events(self) -> list[Event]:
        return read_events(self.workdir)

    def num_rounds(self) -> int:
        return sum(event["event"] == "round" for event in self.events())


def node_command(*arguments: object, workdir: Path, listen: str, step_seconds: float = 0.0) -> list[str]:
    """`adloco-peer ARGUMENTS` with one thread; with `step_seconds` on a device that takes so long for an inner step."""
    program = ["benchmarks.paced", step_seconds] if step_seconds else ["adloco_p2p"]
    common = ["--workdir", workdir, "--plain", "--peer-set", "num_threads=1", "allow_local_files=true"]
    common += ["--host-maddrs", listen]
    return [sys.executable, "-m", *map(str, (*program, *arguments, *common))]


def write_config(
    folder: Path, name: str, *, rounds: int, inner_steps: int, width: int, layers: int, equal_shares: bool
) -> Path:
    """A run of one small instance with a fixed batch of 32 and a text of its own: NAME.yaml in the folder."""
    words = random.Random(3)
    paragraphs: Sequence[str] = [" ".join(words.choice(WORDS) for _ in range(60)) for _ in range(400)]
    (folder / "text.txt").write_text("\n\n".join(paragraphs))
    heads = width // 32
    architecture = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "tie_word_embeddings": True,
    }
    document = {
        "name": name,
        "model": {"architecture": architecture},
        "data": {"source": "text", "path": str(folder / "text.txt"), "sequence_length": 64, "heldout_fraction": 0.1},
        "inner": {"warmup_steps": 8},
        "work": {"inner_steps": inner_steps, "rounds": rounds, "share": "equal" if equal_shares else "speed"},
        "instances": {"count": 1},
        "batch": {"initial_batch": 32, "max_batch": 32},
        "merge": {"policy": "none"},
        "evaluation": {"rows": 16},
        "admission": {"kind": "open", "probation_rounds": 0},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path
