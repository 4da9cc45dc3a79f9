"""The fenced bash blocks of a page, with what a comment before a block says about its test, and a sandbox that runs them.

```bash                                                 runs to its end, exit code 0
<!-- test: syntax - REASON -->                          is only parsed: by bash, and adloco-peer's lines by its own parser
<!-- test: heavy -->                                    runs in the heavy tests only
<!-- test: after REGEX -->                              runs once a process that goes on has said so
<!-- test: until REGEX -->                              goes on until it says so, then gets Ctrl-C; exit code 0, or 130
                                                        where it only looks
<!-- test: keep until REGEX -->                         goes on after having said so, to the end of the page
<!-- test: ends it -->                                  makes what was kept last end by itself, exit code 0

Named groups of the last two replace the words of that name in later blocks. Addresses for listening become loopback.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from adloco_p2p import cli
from tests.docs import warm

REPOSITORY = Path(__file__).parents[2]
WAIT_LIMIT_SECONDS = 600.0
"""What has not happened by then never will, on a machine that is ten times slower or busier than ours."""
LOOK_SECONDS = 0.05
BLOCK = re.compile(r"(?:^<!-- test: ([^\n]*?) -->\n)?^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(adloco-peer [^`]+)`")
TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
WORDS = ("outer", "inner", "round", "step", "peer", "merge", "batch", "plan", "gossip", "swarm")
ON_LOOPBACK = """#!/usr/bin/env bash
machine="checkpoints_kept=50 checkpoint_period_seconds=1 allow_local_files=true daemon_start_seconds=240"
case $1 in start|join|bootstrap|doctor) set -- "$@" --host-maddrs /ip4/127.0.0.1/tcp/0 --peer-set $machine ;; esac
case $1 in dashboard) set -- "$@" --port 0 ;; esac
exec {python} -I -S {warm} {address} "$@"
"""
"""adloco-peer on loopback, whatever its flags say: the last of two counts. It starts warm, see `warm.py`. Rounds of a fraction
of a second must not remove the checkpoint that another command reads."""
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Block:
    directive: str
    script: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(directive=directive, script=script) for directive, script in BLOCK.findall(page.read_text())]


def check_syntax(script: str) -> None:
    """By bash; and every line of adloco-peer by its parser."""
    checked = subprocess.run(["bash", "-n", "-c", script], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    for line in script.replace("\\\n", " ").splitlines():
        if line.startswith("adloco-peer "):
            check_command(line)


def check_command(line: str) -> None:
    """That adloco-peer's parser knows the verb and the options of the line, which may leave out required ones.

    Raises AssertionError."""
    words = shlex.split(line.replace("...", ""), comments=True)[1:]
    numbers = {"R": "1", "N": "1", "ROUND": "1", "VERB": "join"}
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        cli.make_parser().parse_args([numbers.get(word, word) for word in words])
    errors = [found for found in said.getvalue().splitlines() if "E200: " in found and "are required" not in found]
    assert not errors, f"{line}: {errors}"


@dataclass
class Kept:
    """A command that goes on."""

    script: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def words(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + WAIT_LIMIT_SECONDS
        while True:
            is_over = self.process.poll() is not None or time.monotonic() > deadline
            whole_lines = "".join(self.words.rpartition("\n")[:2])
            if found := re.search(pattern, whole_lines, re.MULTILINE):
                return found
            assert not is_over, f"{self.script}never said {pattern}:\n{self.words[-3000:]}"
            time.sleep(LOOK_SECONDS)

    def interrupt(self, *, codes: tuple[int, ...] = (0,)) -> None:
        """Ctrl-C, unless it has ended by itself."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        self.end(codes=codes)

    def end(self, *, codes: tuple[int, ...] = (0,)) -> None:
        """Wait for an exit code that is expected."""
        code = self.process.wait(WAIT_LIMIT_SECONDS)
        assert code in codes, f"{self.script}ended with {code}:\n{self.words[-3000:]}"


@dataclass
class Sandbox:
    """A folder that looks like a checkout whose configurations are tiny and whose runs are endless."""

    folder: Path
    warm_server: str
    """Where the server of `warm.py` listens."""
    kept: list[Kept] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        lines = (" ".join(WORDS[(7 * i + j * j) % 10] for j in range(60)) for i in range(200))
        (self.folder / "text.txt").write_text("\n\n".join(lines))
        shutil.copytree(REPOSITORY / "peers", self.folder / "peers")
        (self.folder / "bin").mkdir()
        program = self.folder / "bin" / "adloco-peer"
        python, client, server = map(shlex.quote, (sys.executable, warm.__file__, self.warm_server))
        program.write_text(ON_LOOPBACK.format(python=python, warm=client, address=server))
        program.chmod(0o755)
        (self.folder / "configs").mkdir()
        for path in (REPOSITORY / "configs").glob("*.yaml"):
            document = yaml.safe_load(path.read_text())
            document["model"] = {"architecture": TINY}
            document["data"] = {"source": "text", "path": str(self.folder / "text.txt"), "sequence_length": 32}
            document["data"]["heldout_fraction"] = 0.2
            document["work"] = {"inner_steps": 8, "rounds": 10_000}
            document["evaluation"] = {"rows": 4}
            document.pop("tokenizer", None)
            (self.folder / "configs" / path.name).write_text(yaml.safe_dump(document))

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, **ENVIRONMENT, "PATH": path, "ADLOCO_WORKDIR": str(self.folder / "rented")}

    def run(self, block: Block) -> None:
        directive, _, argument = block.directive.partition(" ")
        if directive == "syntax":
            check_syntax(block.script)
        elif directive == "until":
            self._begin(block.script, argument).interrupt(codes=(0, 130))
        elif directive == "keep":
            self.kept.append(self._begin(block.script, argument.removeprefix("until ")))
        else:
            assert directive in ("", "after", "heavy", "ends"), f"unknown directive: {block.directive}"
            if directive == "after":
                self.kept[-1].wait_for(argument)
            self._run_to_its_end(block.script)
            if directive == "ends":
                self.kept[-1].end()

    def _run_to_its_end(self, script: str) -> None:
        command = ["bash", "-euo", "pipefail", "-c", self._named(script)]
        ended = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_LIMIT_SECONDS,
        )
        assert ended.returncode == 0, f"{script}ended with {ended.returncode}:\n{ended.stdout[-2000:]}{ended.stderr[-3000:]}"

    def _begin(self, script: str, pattern: str) -> Kept:
        log = self.folder / f"{len(list(self.folder.glob('*.said')))}.said"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", self._named(script)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        kept = Kept(script=script, log=log, process=process)
        try:
            self.names |= kept.wait_for(pattern).groupdict()
        except BaseException:
            kill(process)
            raise
        return kept

    def _named(self, script: str) -> str:
        for name, value in self.names.items():
            script = re.sub(rf"\b{name}\b", lambda _, value=value: shlex.quote(value), script)  # type: ignore[misc]
        return script


def kill(process: subprocess.Popen[bytes]) -> None:
    """With everything that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def sandbox(folder: Path, warm_server: str) -> Iterator[Sandbox]:
    """Ends what goes on, what began last first; each with exit code 0."""
    box = Sandbox(folder, warm_server)
    box.prepare()
    try:
        yield box
        for kept in reversed(box.kept):
            kept.interrupt()
    except BaseException as error:
        for kept in box.kept:
            error.add_note(f"what goes on, {kept.script}said:\n{kept.words[-3000:]}")
        raise
    finally:
        for kept in box.kept:
            kill(kept.process)
