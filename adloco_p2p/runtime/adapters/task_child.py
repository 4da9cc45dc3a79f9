"""Scores on the run's tasks by a child process: `adloco-peer evaluate --tasks` on the newest checkpoint, of lowest priority.

It is a child and not a thread, so it delays nothing, its memory is freed at its end, and a failure in it cannot end the node.
It uses tasks by name only, never files that a run names, and no network: the data of the tasks must be on this machine.
"""

import asyncio
import contextlib
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.scalars import Digest, within_scalars
from adloco_p2p.core.model.task_scores import MAX_METRICS, MAX_TASKS, Metric, TaskClaim, TaskScore, is_word
from adloco_p2p.errors import TaskScoringFailed

NO_CHECKPOINT = "E204"
AGAIN_SECONDS = 5.0
"""The pause after a try that found no checkpoint yet."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_TRUST_REMOTE_CODE": "0"}
MAX_REASON = 300


def can_score(run: RunConfig, machine: PeerConfig) -> bool:
    """Return whether this peer may be drawn to score. Whether it has the tasks' data shows only when it is drawn."""
    return bool(run.evaluation.tasks.names) and machine.task_seconds > 0 and find_spec("lm_eval") is not None


class TaskChild:
    """Scores the tasks, one at a time."""

    def __init__(self, workdir: Path, run: RunConfig, machine: PeerConfig) -> None:
        tasks = run.evaluation.tasks
        self._names = tasks.names
        self._seconds = machine.task_seconds
        limit = [] if tasks.limit is None else ["--limit", str(tasks.limit)]
        path = [] if machine.tasks_path is None else ["--tasks-path", machine.tasks_path]
        self._arguments = ["evaluate", "--workdir", str(workdir), "--tasks", *tasks.names, *limit, *path]

    async def score(self) -> TaskClaim:
        """Score the newest checkpoint. Raises TaskScoringFailed."""
        try:
            async with asyncio.timeout(self._seconds):
                output = await self._output()
        except TimeoutError:
            reason = f"not done after {self._seconds} s; --peer-set task_seconds=N gives it longer, 0 leaves it to others"
            raise TaskScoringFailed(reason) from None
        except OSError as error:  # the system may lack processes, memory or descriptors now
            raise TaskScoringFailed(f"the child process cannot be started: {error}"[:MAX_REASON]) from error
        return claim_of(output, self._names)

    async def _output(self) -> bytes:
        while True:
            output, problem = await self._run()
            if not problem:
                return output
            if NO_CHECKPOINT not in problem:
                raise TaskScoringFailed(" ".join(problem.split())[:MAX_REASON])
            await asyncio.sleep(AGAIN_SECONDS)

    async def _run(self) -> tuple[bytes, str]:
        """Run the child; return its output, and the reason if it failed. It holds one end of a pipe, so that it ends with this
        process."""
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "adloco_p2p", *self._arguments, "--json", "--lifeline", "0"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **OFFLINE, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 4))},
            start_new_session=True,  # so that Ctrl-C reaches only the node
        )
        try:
            assert child.stdout is not None and child.stderr is not None
            output, problem = await asyncio.gather(child.stdout.read(), child.stderr.read())
            code = await child.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await asyncio.shield(child.wait())
        return output, "" if code == 0 else _problem(output, problem) or f"the child process ended with {code}"


def _problem(output: bytes, errors: bytes) -> str:
    """Return code and problems from the document that a failed command prints with `--json`, or the end of its errors."""
    try:
        error = json.loads(output.splitlines()[-1])["error"]
        return f"{error['code']}: {' '.join(error['problems'])}"
    except (IndexError, KeyError, TypeError, ValueError):
        return errors.decode(errors="replace").strip()[-MAX_REASON:]


def claim_of(output: bytes, names: tuple[str, ...]) -> TaskClaim:
    """Parse the JSON of `evaluate --tasks`. Raises TaskScoringFailed for anything else, and if it has other tasks, as for the
    name of a group."""
    assert 0 < len(names) <= MAX_TASKS
    try:
        found = json.loads(output.splitlines()[-1])
        scores = {str(task["name"]): task for task in found["tasks"]}
        if sorted(scores) != sorted(names):
            raise TaskScoringFailed(f"evaluation.tasks.names: {' '.join(names)} gave {' '.join(scores)[:MAX_REASON]}")
        in_order = tuple(_score(scores[name]) for name in names)
        return TaskClaim(round=int(found["round"]), model=Digest(str(found["model"])), scores=in_order)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise TaskScoringFailed(f"the child process printed no scores: {error!r}"[:MAX_REASON]) from error


def _score(task: dict[str, object]) -> TaskScore:
    """Convert one task's scores. If it has more metrics than a report holds, standard errors are dropped first."""
    metrics = {name: value for name, value in dict(task["metrics"]).items() if is_word(name)}  # type: ignore[call-overload]
    kept = sorted(metrics, key=lambda name: ("_stderr" in name, name))[:MAX_METRICS]
    return TaskScore(
        name=str(task["name"]),
        digest=Digest(str(task["digest"])),
        num_documents=int(str(task["num_documents"])),
        metrics=tuple(Metric(name=name, value=within_scalars(float(metrics[name]))) for name in sorted(kept)),
    )
