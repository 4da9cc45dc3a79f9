"""The command as a process: how it begins, and how it ends."""

import asyncio
import contextlib
import errno
import io
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adloco_p2p.cli import EXIT_BROKEN_PIPE, WithFields, main
from adloco_p2p.cli.parser import error_words
from adloco_p2p.commands import admission, audit, control, signing, swarm, train, trained_model
from adloco_p2p.commands.audit import read_ledger
from adloco_p2p.commands.console import open_view, say
from adloco_p2p.commands.swarm_members import Member
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.control import endpoint
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.roster_entry import Capacity, RosterEntry
from adloco_p2p.core.model.rules import AdmissionRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import Resumed, Stamped, Stopped, to_line
from adloco_p2p.errors import StorageError, SwarmError
from adloco_p2p.runtime.adapters import signals
from adloco_p2p.runtime.node.event_sink import stamp
from adloco_p2p.sim.identities import signed_by
from adloco_p2p.storage.admission_files import keep_address
from adloco_p2p.storage.event_log import recorded_events
from adloco_p2p.storage.workdir import Workdir
from adloco_p2p.swarm.p2p.identity import Identity
from tests.core.core_values import peer
from tests.core.ledger.test_admission import AUTHOR, KEY, agree, invited, statement, ticketed_ledger
from tests.views.synthetic import OTHERS, START, THIS, events, stamped

POOLS = """
import ctypes, threading
from adloco_p2p.__main__ import share_one_arena
share_one_arena()
barrier, blocks = threading.Barrier(4), []
def allocate():
    barrier.wait()
    blocks.append(bytes(60_000))
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, stream)
libc.fflush(stream)
"""
"""Prints glibc's own account of its pools."""
STARTS = """
import multiprocessing, sys
sys.version_info = (3, 14, 0)
from adloco_p2p.__main__ import start_by_fork
start_by_fork()
print(multiprocessing.get_start_method(allow_none=True))
"""
AT_EXIT = "import atexit, sys; atexit.register(print, 'taken apart'); sys.argv[0] = 'adloco-peer'"
HOLDER = "import sys; from pathlib import Path; from adloco_p2p.storage.workdir import Workdir"


def begin(*words: object, first: str = "") -> subprocess.Popen[str]:
    program = f"{first}\nfrom adloco_p2p.__main__ import main\nmain()"
    return subprocess.Popen([sys.executable, "-c", program, *map(str, words)], stdout=-1, stderr=-1, text=True)


def command(*words: object, first: str = "") -> tuple[int, str, str]:
    """Exit code, what it printed, and what went wrong."""
    with begin(*words, first=first) as process:
        output, errors = process.communicate()
    return process.returncode, output, errors


@pytest.mark.parametrize(("code", "exit_code"), [("E302", 0), ("E999", 2)])
def test_everything_is_printed_and_the_verb_ends_at_once(code: str, exit_code: int) -> None:
    ended, output, errors = command("explain-error", code, first=AT_EXIT)
    assert ended == exit_code and code in (errors if exit_code else output)
    assert "taken apart" not in output


def test_ctrl_c_before_the_command_line_is_loaded_shows_no_traceback() -> None:
    """The import takes seconds on a loaded machine."""
    first = """
import builtins
load = builtins.__import__
def interrupted(name, globals=None, locals=None, fromlist=(), level=0):
    if name == "adloco_p2p" and "cli" in (fromlist or ()):
        raise KeyboardInterrupt
    return load(name, globals, locals, fromlist, level)
builtins.__import__ = interrupted
"""
    assert command("status", first=first) == (130, "", "")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other pools")
def test_threads_share_one_pool_of_memory() -> None:
    output = subprocess.run([sys.executable, "-c", POOLS], capture_output=True, text=True, check=True).stdout
    assert output.count("<heap nr=") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems start processes otherwise")
def test_locks_need_no_process_of_their_own_from_python_3_14_on() -> None:
    assert subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, check=True).stdout == "fork\n"


def test_ctrl_c_while_an_extension_is_loaded_is_no_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(arguments: object) -> int:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr(control, "status", load)
    assert main(["status", "--workdir", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "adloco-peer: stopped\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["version"], ["--version"], ["config", "show", "default", "--json"]])
def test_an_output_on_a_full_disk_is_an_error_of_the_disk(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([sys.executable, "-m", "adloco_p2p", *words], stdout=full, stderr=-1, text=True, check=False)
    assert ended.returncode == StorageError.exit_code
    assert ended.stderr.startswith("adloco-peer: E402: standard output: the disk is full")


@pytest.mark.parametrize(("closed", "shown"), [("<&-", True), (">&-", False), ("2>&-", True), ("<&- >&- 2>&-", False)])
def test_streams_that_were_closed_before_the_start_are_no_error(closed: str, shown: bool) -> None:
    line = f'"$0" -m adloco_p2p explain-error E302 {closed}'
    ended = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr, "E302" in ended.stdout) == (0, "", shown)


def test_an_output_escapes_the_characters_that_its_encoding_lacks(tmp_path: Path) -> None:
    (folder := tmp_path / "\u00e4 \u0142").mkdir()
    finished_run(folder)
    line = [sys.executable, "-m", "adloco_p2p", "status", "--workdir", str(folder)]
    ended = subprocess.run(line, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, check=False)
    assert ended.returncode == 0 and b"/\xe4 \\u0142' --output DIR" in ended.stdout


def test_a_name_that_is_no_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Latin-1 where the file system has UTF-8."""
    assert main(["export", "--workdir", "mine", "--output", os.fsdecode(b"mod\xe8le")]) == 2
    assert "E200: mod\ufffdle: has bytes that are not text in the encoding utf-8" in capsys.readouterr().err


def test_a_reader_that_goes_is_no_error() -> None:
    with begin("explain-error") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == EXIT_BROKEN_PIPE


class Gone(io.StringIO):
    """A terminal that is closed, or a file on a full disk."""

    def write(self, text: str) -> int:
        del text
        raise OSError(errno.EIO, "Input/output error")

    def flush(self) -> None:
        self.write("")


def show_a_run(arguments: Namespace) -> int:
    """What a node prints."""
    view = open_view(plain=arguments.plain)
    for event in events():
        view.update(stamped(event))
    view.stop()
    say("saved")
    arguments.steps.enter("ending")
    return 0


def test_a_node_outlives_its_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setattr(train, "start", show_a_run)
    assert main(["start", "--offline", "--plain", "--workdir", str(tmp_path)]) == 0
    with pytest.raises(StorageError, match=r"standard output: .* input/output error"):
        say("a result that is lost is an error of every other verb")


@pytest.mark.timeout(240)
def test_a_node_does_not_wait_for_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, bytes(1 << 16)):
            pass
    os.set_blocking(writing, True)
    monkeypatch.setattr(train, "start", show_a_run)
    with os.fdopen(reading, "rb") as read, os.fdopen(writing, "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["start", "--offline", "--plain", "--workdir", str(tmp_path)]) == 0
        assert read.read(1 << 16) == bytes(1 << 16)
        assert main(["start", "--offline", "--plain", "--workdir", str(tmp_path)]) == 0
        assert b"saved" in read.read1(1 << 16)
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (["start", "--workdir", "/proc/nowhere"], 4, "E401"),
        (["join", "--initial-peers", "adloco://abc", "--workdir", "new"], 2, "E206"),
        (["join", "--initial-peers", "nonsense", "--workdir", "new"], 2, "E206"),
        (["bootstrap", "--host-maddrs", "0.0.0.0:31337", "--workdir", "new"], 2, "E201"),
    ],
)
def test_wrong_addresses_and_directories_are_reported_before_torch_is_imported(
    words: list[str], exit_code: int, code: str, tmp_path: Path
) -> None:
    words = [str(tmp_path / word) if word == "new" else word for word in words]
    ended, _, errors = command(*words, first="import sys; sys.modules['torch'] = sys.modules['hivemind'] = None")
    assert ended == exit_code and errors.startswith(f"adloco-peer: {code}: "), errors
    assert not (tmp_path / "new").exists()


NEEDED_BY_FEW = (
    "{'aiohttp', 'datasets', 'lm_eval', 'matplotlib', 'pandas', 'peft', 'prometheus_client', 'pyarrow', 'tensorboardX',"
    " 'transformers'}"
)
"""Or later: a thread imports `transformers` while the network is asked."""


@pytest.mark.heavy
def test_a_node_imports_nothing_that_few_need_and_collects_no_garbage_meanwhile() -> None:
    code = (
        "import gc, sys\nfrom adloco_p2p.runtime.adapters.imports import collecting_nothing\n"
        "before = gc.get_stats()[0]['collections']\n"
        "with collecting_nothing():\n    from adloco_p2p.runtime import network_node\n"
        "    print(gc.get_stats()[0]['collections'] - before)\n"
        f"print(sorted(sys.modules.keys() & {NEEDED_BY_FEW}), gc.isenabled(), gc.get_freeze_count() > 100_000)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n")[:2] == ["0", "[] True True"]


@pytest.mark.heavy
def test_the_text_is_read_when_the_models_libraries_are_all_imported(tmp_path: Path) -> None:
    """Its tokenizer imports `transformers` too, and would find it half done."""
    code = (
        "import sys, threading\nfrom pathlib import Path\n"
        "from adloco_p2p.config.peer_config import PeerConfig\nfrom adloco_p2p.config.run_config import RunConfig\n"
        "from adloco_p2p.runtime.adapters import embedding\nfrom adloco_p2p.storage.workdir import Workdir\n"
        "importing = threading.Thread(target=embedding.import_training)\n"
        "embedding.open_feed = lambda *_, **__: sys.exit(str(hasattr(sys.modules['adloco_p2p.training'], 'hosting')))\n"
        "importing.start()\n"
        f"embedding.build_hosting(RunConfig(), PeerConfig(), 'peer', Workdir.open(Path({str(tmp_path)!r})))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == "True"


def test_a_node_that_does_not_listen_yet_is_distinguished_from_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = ["status", "--workdir", str(tmp_path)]
    assert main(status) == 2
    assert "no node runs" in capsys.readouterr().err
    holding = f"{HOLDER}; held = Workdir.open(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holding, tmp_path], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert main(status) == 2
        assert f"E225: {tmp_path}: process {process.pid} does not listen: it is ending, or" in capsys.readouterr().err


def test_a_node_that_starts_shows_its_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--workdir", str(tmp_path)]
    holding = f"{HOLDER}; held = Workdir.open(Path(sys.argv[1])); held.enter('reading the text'); print(flush=True)"
    holding += "; sys.stdin.readline(); held.enter(None); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holding, tmp_path], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        assert main(["status", *where]) == 0
        assert capsys.readouterr().out == "starting: reading the text\n"
        assert main(["status", "--json", *where]) == 0
        fields = json.loads(capsys.readouterr().out)
        assert (fields["state"], fields["phase"], fields["instances"]) == ("starting", "reading the text", [])
        assert main(["pause", *where]) == 2
        assert f"E225: {tmp_path}: the node is starting (reading the text); ask again" in capsys.readouterr().err
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert main(["status", *where]) == 2  # it has started, and does not listen


def test_a_watcher_waits_for_a_node_that_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    holding = f"{HOLDER}; held = Workdir.open(Path(sys.argv[1])); held.enter('reading the text'); print(flush=True)"
    holding += "; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holding, tmp_path], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()

        def look_later(seconds: float) -> None:
            process.communicate()  # the node ends before it can be asked

        monkeypatch.setattr(time, "sleep", look_later)
        assert main(["watch", "--plain", "--workdir", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == "starting  reading the text\n" and "no node runs" in said.err


class Paused:
    """The control client of a node that came to its pause before anybody watched, and then has nothing more to tell."""

    def __init__(self, workdir: Path) -> None:
        pass

    def __enter__(self) -> "Paused":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def command(self, name: str) -> str:
        return name

    def status(self) -> dict[str, str]:
        return {"state": "paused"}

    def watch(self) -> Iterator[tuple[list[dict[str, str]], bool]]:
        yield [{"event": "started"}, {"event": "paused"}], True
        raise AssertionError("it waits for what has been")


def test_a_pause_that_came_before_anybody_waited_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ControlClient", Paused)
    assert main(["pause", "--wait", "--workdir", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory")]
)
def test_memory_that_ran_out_is_no_fault_of_the_program(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: Namespace) -> int:
        raise error

    monkeypatch.setattr(control, "status", fail)
    assert main(["status", "--workdir", str(tmp_path)]) == 5
    said = capsys.readouterr().err
    assert said.startswith("adloco-peer: E502: main memory") and "Traceback" not in said and not any(tmp_path.iterdir())


def test_a_warning_has_place_and_reason() -> None:
    record = logging.makeLogRecord(
        {"levelname": "WARNING", "name": "disk", "msg": "%s refused", "args": ("it",), "path": "a/b"}
    )
    assert WithFields("%(levelname)s %(name)s: %(message)s").format(record) == "WARNING disk: it refused, path a/b"


def test_what_others_sent_draws_nothing_on_the_terminal_in_errors_and_log_lines() -> None:
    evil = "two lines\nof a peer\x1b[2J\u202e"
    record = logging.makeLogRecord({"levelname": "INFO", "name": "swarm", "msg": "%s", "args": (evil,)})
    for shown in (error_words("E301", [evil]), WithFields("%(message)s").format(record)):
        assert "two lines\nof a peer" in shown.replace("\n  ", "\n")  # a line of the log continues indented
        assert all(character.isprintable() or character == "\n" for character in shown)


class Stored:
    """A checkpoint store whose rounds can go."""

    def __init__(self, round: int) -> None:
        self.round, self.is_there = round, True
        self.store = self

    def holds(self, round: int) -> bool:
        return round == self.round and self.is_there


def test_what_is_removed_while_it_is_read_is_read_from_a_newer_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [Stored(3), Stored(5), Stored(8)]
    monkeypatch.setattr(trained_model, "open_saved", lambda workdir: waiting.pop(0))

    def read(saved: Stored) -> str:
        saved.is_there = saved.round == 8
        if saved.is_there:
            return "state"
        raise StorageError("no such file")

    saved, state = trained_model.read_saved(Path("anywhere"), read)  # type: ignore[arg-type]
    assert (saved.round, state, waiting) == (8, "state", [])


def test_what_is_there_and_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_model, "open_saved", lambda workdir: Stored(3))

    def read(saved: object) -> None:
        raise StorageError("damaged")

    with pytest.raises(StorageError, match="damaged"):
        trained_model.read_saved(Path("anywhere"), read)


TORCH_IS_IMPORTED = """
import os, sys
class Finder:
    def find_spec(self, name, *others):
        if name == "torch":
            print("waits:", os.environ.get("OMP_WAIT_POLICY"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("words", [["generate", "--prompt", "x"], ["evaluate"]])
@pytest.mark.parametrize("wanted", [None, "active"])
def test_verbs_that_use_a_model_do_not_spin_beside_a_run(
    words: list[str], wanted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if wanted is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", wanted)
    finished_run(tmp_path)
    _, output, errors = command(*words, "--workdir", tmp_path, first=TORCH_IS_IMPORTED)
    assert f"waits: {wanted or 'passive'}" in output, errors


def test_offline_never_asks_the_hub(tmp_path: Path) -> None:
    first = "import socket\nsocket.getaddrinfo = lambda *words, **more: print('asked', words, flush=True)"
    words = ["start", "--offline", "--workdir", tmp_path, "--set", "model.pretrained=owner/model", "work.rounds=1"]
    ended, output, errors = command(*words, first=first)
    assert ended == 2 and "asked" not in output, output
    lines = errors.splitlines()
    assert len(lines) == 3 and "left out: 'owner/model' cannot be loaded" in lines[0]


class Dead:
    """The control client of a node that was killed and left its address behind."""

    def __init__(self, workdir: Path) -> None:
        self.looks = 0

    def __enter__(self) -> "Dead":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def watch(self) -> Iterator[tuple[list[dict[str, str]], bool]]:
        raise SwarmError("nobody answers", code="E351")
        yield [], True


def test_the_end_of_a_dead_node_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(control, "ControlClient", Dead)
    monkeypatch.setattr(time, "sleep", wait)
    assert main(["watch", "--plain", "--workdir", str(tmp_path)]) == 0
    assert len(waits) == 5 and capsys.readouterr().out.count("the node has ended") == 1


def test_a_watcher_says_of_a_suspended_node_that_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []
    node = Workdir.open(tmp_path)
    node.enter(None)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            node.close()
        if len(waits) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(control, "ControlClient", Dead)
    monkeypatch.setattr(time, "sleep", wait)
    assert main(["watch", "--plain", "--workdir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.count("runs, but does not answer (suspended") == 1 and said.count("the node has ended") == 1, said
    assert said.index("does not answer") < said.index("has ended")


def test_a_watcher_stays_where_the_run_goes_on_after_its_end() -> None:
    end = stamped(events()[-1])
    again = Stamped(time=end.time + 1.0, event=Resumed(round=20))
    assert control._has_finished([end], False) and not control._has_finished([end, again], False)


def finished_run(folder: Path) -> None:
    """What a finished run leaves that `status` reads."""
    with closing(Workdir.open(folder)) as workdir:
        workdir.adopt(RunConfig())
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events()))


def test_the_status_of_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir = tmp_path / "swarm" / "peer-0"
    finished_run(workdir)
    assert main(["status", "--workdir", str(workdir)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("finished: round 24/24, held-out loss ")
    assert f"adloco-peer export --workdir {workdir}" in said and f"adloco-peer report --workdir {workdir}" in said
    assert "a new run from it: adloco-peer start CONFIG --workdir NEW --set model.pretrained=DIR" in said
    assert main(["watch", "--workdir", str(workdir)]) == 0  # there is nothing to wait for
    assert capsys.readouterr().out == said
    assert main(["status", "--json", "--workdir", str(workdir)]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert (fields["state"], fields["rounds"], fields["fraction"]) == ("finished", 24, 1.0)


def test_the_status_of_a_peer_without_the_model_names_no_command_that_would_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It came when the run had ended."""
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.adopt(RunConfig())
    write_events(tmp_path, [event for event in events() if event["event"] != "checkpoint"])
    assert main(["status", "--workdir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "no model of it is here" in said and "export" not in said.replace("can export it", "")


def test_a_verb_that_finds_no_node_names_how_the_run_of_the_directory_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.adopt(RunConfig())
    assert main(["status", "--workdir", str(tmp_path)]) == 2
    assert "its run goes on with the command that started it" in capsys.readouterr().err
    keep_address(tmp_path, f"adloco://{RunConfig().digest},/ip4/127.0.0.1/tcp/1/p2p/12D3KooW{'1' * 44}")
    assert main(["pause", "--workdir", str(tmp_path)]) == 2
    assert f"its run goes on with: adloco-peer join --workdir {tmp_path}" in capsys.readouterr().err
    command = f"adloco-peer start mine.yaml --workdir {tmp_path} --host-maddrs /ip4/0.0.0.0/tcp/31337"
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.keep_command(command)
    assert main(["status", "--workdir", str(tmp_path)]) == 2
    assert f"its run goes on with: {command}\n" in capsys.readouterr().err, "under its old address, which links name"
    moved = tmp_path.rename(tmp_path.with_name("moved here"))
    assert main(["status", "--workdir", str(moved)]) == 2
    assert f"its run goes on with: {command.replace(str(tmp_path), repr(str(moved)))}\n" in capsys.readouterr().err


def test_a_verb_that_finds_no_node_of_a_peer_that_was_refused_names_another_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_run(tmp_path)
    keep_address(tmp_path, f"adloco://{RunConfig().digest},/ip4/127.0.0.1/tcp/1/p2p/12D3KooW{'1' * 44}")
    with (tmp_path / "events.jsonl").open("a") as file:
        refused = "the run does not let this peer in: no seat of the invitation is left: it has 1"
        file.write(f"{to_line(stamp(Stopped(reason=refused, is_finished=False)))}\n")
    assert main(["status", "--workdir", str(tmp_path)]) == 2
    wanted = f"with another link its run goes on: adloco-peer join --initial-peers LINK --workdir {tmp_path}\n"
    assert wanted in capsys.readouterr().err


def test_the_status_of_a_peer_that_ended_without_the_model_of_the_run_names_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_run(tmp_path)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(f"{to_line(stamp(Stopped(reason='most others were not heard at the end', is_finished=False)))}\n")
    assert main(["status", "--workdir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "the last one stopped: most others were not heard at the end; its run goes on with" in said


def write_events(folder: Path, made: Sequence[Any]) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in made)


@pytest.mark.parametrize("is_lifted", [False, True])
def test_a_verb_that_finds_no_node_of_a_banned_peer_names_the_ban_and_no_command_to_join(
    is_lifted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.adopt(RunConfig())
        workdir.keep_command("adloco-peer join")
    keep_address(tmp_path, f"adloco://{RunConfig().digest},/ip4/127.0.0.1/tcp/1/p2p/12D3KooW{'1' * 44}")
    ban = {"event": "ruled", "time": START, "round": 3, "action": "ban", "subject": THIS, "by": OTHERS[0], "reason": "noise"}
    write_events(tmp_path, [*events(6)[:-1], ban, *([{**ban, "action": "unban"}] if is_lifted else [])])
    assert main(["status", "--workdir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    words = f"E221: {tmp_path}: no node runs in this directory; this peer is banned in round 3 by {OTHERS[0]}: noise; a signer"
    assert (words in said, "its run goes on with: adloco-peer join" in said) == (not is_lifted, is_lifted)


def test_the_status_of_a_run_that_a_signer_ended_names_the_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.adopt(RunConfig())
    stop = {"event": "ruled", "time": START, "round": 4, "action": "stop", "subject": "", "by": THIS, "reason": "it is good"}
    changed: dict[str, Any] = {"plan": {"course": {"last_round": 5}}, "started": {"rounds": 24}}
    ended = [{**event, **changed.get(event["event"], {})} for event in events(6)]
    write_events(tmp_path, [*ended[:-1], stop, ended[-1]])
    assert main(["status", "--workdir", str(tmp_path)]) == 0
    words = "a signer ended the run after round 5: it is good"
    assert f"; {words}\n" in capsys.readouterr().out
    assert main(["status", "--json", "--workdir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["ended_by_signer"] == words


@pytest.mark.parametrize("verb", ["status", "pause", "bandwidth"])
def test_a_verb_names_how_the_run_goes_on_after_a_node_that_was_killed(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It leaves its address behind, where nothing listens."""
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.adopt(RunConfig())
        workdir.keep_command("adloco-peer start mine.yaml")
    endpoint.publish(tmp_path, endpoint.choose(tmp_path, endpoint.parse_listen("127.0.0.1:1")))
    assert main([verb, "--workdir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "does not answer; it has ended; its run goes on with: adloco-peer start mine.yaml\n" in said


@pytest.mark.parametrize("verb", ["status", "pause"])
def test_a_verb_that_finds_no_node_reads_the_events_of_the_run_once(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.adopt(RunConfig())
    write_events(tmp_path, events(6)[:-1])
    read: list[Path] = []

    def note(path: Path) -> Sequence[Stamped]:
        read.append(path)
        return recorded_events(path)

    monkeypatch.setattr(control, "recorded_events", note)
    assert main([verb, "--workdir", str(tmp_path)]) == 2
    assert "its run goes on with" in capsys.readouterr().err and read == [tmp_path / "events.jsonl"]


def author_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch, **newest: Any) -> None:
    """A signer's directory whose newest plan has these values."""
    me = Identity.load_or_create(folder / "identity.key").peer_id
    with closing(Workdir.open(folder)) as workdir:
        workdir.adopt(replace(RunConfig(), author=me))
    keep_address(folder, f"adloco://{'a' * 64},/ip4/127.0.0.1/tcp/1/p2p/{me}")
    run, ledger = read_ledger(folder)
    ledger.plans[-1] = replace(ledger.plans[-1], **newest)
    for verbs in (admission, signing):
        monkeypatch.setattr(verbs, "read_ledger", lambda workdir: (run, ledger))


@pytest.mark.parametrize("words", [["invite"], ["ban", "1" * 46], ["command", "stop"], ["signers", "--add", "1" * 46]])
def test_no_statement_is_signed_after_the_last_plan(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    author_of_a_run(tmp_path, monkeypatch, is_last=True)
    assert main([*words, "--workdir", str(tmp_path)]) == 2
    assert "E234: --workdir" in (said := capsys.readouterr().err) and "the run is complete, so nobody can join it" in said
    assert not (tmp_path / "statements").exists()


def test_an_invitation_to_end_is_named_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    author_of_a_run(tmp_path, monkeypatch)
    assert main(["invite", "--revoke", "no-link", "--workdir", str(tmp_path)]) == 2
    assert "--revoke no-link: not one invitation of this run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("order", "value"),
    [
        ("stop", "--after-round=299"),
        ("pause", "--from-round=30"),
        ("set", "--rounds=300"),
        ("set", "--samples=5000"),
        ("set", "--from-round=30"),
    ],
)
def test_an_order_for_what_is_over_is_refused_instead_of_taking_effect_at_once(
    order: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    author_of_a_run(tmp_path, monkeypatch, round=300, samples_before=5000)
    rest = ["--learning-rate-factor=0.5"] if (order, value) == ("set", "--from-round=30") else []
    assert main(["command", order, value, *rest, "--workdir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert value.replace("=", " ") in said and "accepted" in said and not (tmp_path / "statements").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["stop"], "the end of the run;"),
        (["stop", "--after-round=400"], "the end of the run after round 400;"),
        (["set", "--samples=6000"], "the change;"),
    ],
)
def test_an_order_is_signed_and_left_to_the_node(
    words: list[str], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    author_of_a_run(tmp_path, monkeypatch, round=300, samples_before=5000)
    assert main(["command", *words, "--workdir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"signed: {what} a plan carries it after the node of this directory has started")
    assert len(list((tmp_path / "statements").glob("*.json"))) == 1


def test_links_alone_are_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    author_of_a_run(tmp_path, monkeypatch)
    for words, number, about in (
        ([], 1, "the link lets in everybody who has it: 8 seats"),
        (["--each=2"], 2, "each link lets in"),
    ):
        assert main(["invite", *words, "--workdir", str(tmp_path)]) == 0
        said = capsys.readouterr()
        links = said.out.splitlines()
        assert len(links) == number and all(link.startswith("adloco://") for link in links) and said.err.startswith(about)


def test_a_keeper_is_listed_without_the_probation_that_it_never_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def seat(peer: str, *, is_keeper: bool) -> RosterEntry:
        capacity = Capacity(samples_per_second=1.0, micro_batch_limit=1, max_instances=1, is_keeper=is_keeper)
        return RosterEntry(peer=PeerId(peer), joined_round=3, probation=8, standing=1, capacity=capacity)

    author_of_a_run(tmp_path, monkeypatch, roster=(seat("K" * 52, is_keeper=True), seat("T" * 52, is_keeper=False)))
    assert main(["members", "--workdir", str(tmp_path)]) == 0
    keeper, newcomer = [line for line in capsys.readouterr().out.splitlines() if "since round" in line]
    assert keeper.endswith("since round 3  keeper") and "on probation for 8 more reports" in newcomer


def test_members_that_hold_an_upgrade_up_are_listed_so_and_the_ledger_names_the_protocol_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def seat(peer: str, newest: int) -> RosterEntry:
        capacity = Capacity(samples_per_second=1.0, micro_batch_limit=1, max_instances=1, newest_protocol=newest)
        return RosterEntry(peer=PeerId(peer), joined_round=3, capacity=capacity)

    seats = (seat("A" * 52, 22), seat("O" * 52, 21))
    author_of_a_run(tmp_path, monkeypatch, roster=seats)
    assert main(["members", "--workdir", str(tmp_path)]) == 0
    able, old = [line for line in capsys.readouterr().out.splitlines() if "since round" in line]
    assert "protocol" not in able and "can follow protocol 21 at most" in old
    assert main(["members", "--workdir", str(tmp_path), "--json"]) == 0
    assert [member["newest_protocol"] for member in json.loads(capsys.readouterr().out)["members"]] == [22, 21]
    plan = replace(ticketed_ledger().plans[-1], roster=seats)
    assert audit._document(plan, None)["newest_protocols"] == {"A" * 52: 22, "O" * 52: 21}


def test_an_invitation_ends_with_the_signer_that_made_it_and_is_listed_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ticketed_ledger()
    agree(ledger, joined=[invited(peer(1))])
    monkeypatch.setattr(admission, "read_ledger", lambda workdir: (RunConfig(), ledger))

    def listed(*more: str) -> str:
        assert main(["members", "--workdir", str(tmp_path), *more]) == 0
        return capsys.readouterr().out

    assert f"invitation {KEY}: 1 of 2 seats taken\n" in listed()
    ledger.plans[-1] = replace(ledger.plans[-1], signers=(peer(1),))
    assert f"invitation {KEY}: 1 of 2 seats taken, ended: its signer was removed\n" in listed()
    (shown,) = json.loads(listed("--json"))["invitations"]
    assert shown == {"key": KEY, "seats": 2, "seats_taken": 1, "is_revoked": False, "signer": AUTHOR}


def test_a_round_is_explained_with_the_orders_that_its_plan_carries_and_those_that_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ticketed_ledger()
    first = ledger.plans[-1]
    ban = signed_by(AUTHOR, replace(statement("ban", peer(1)), reason="sends noise"))
    entries = [agree(ledger, joined=[invited(peer(1))])]
    entries.append(agree(ledger, departed=[peer(1)], statements=[ban]))
    entries.append(agree(ledger, statements=[statement("pause", PeerId(""))]))
    journal = Namespace(genesis=first, entries=entries)
    monkeypatch.setattr(audit, "read_journal", lambda workdir: journal)

    def explained(round: int) -> str:
        assert main(["explain", str(round), "--workdir", str(tmp_path)]) == 0
        return capsys.readouterr().out

    assert "signed by" not in explained(1)
    assert f"signed by {AUTHOR[-8:]}: ban {peer(1)}: sends noise\n" in explained(2) and "pauses" not in explained(2)
    assert f"signed by {AUTHOR[-8:]}: pause\n  a signer pauses the run before round 4\n" in explained(3)


def test_an_open_run_prints_its_link_to_every_peer_and_another_only_to_a_signer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    is_open, is_closed = (RunConfig(admission=AdmissionRules(kind=kind)) for kind in ("open", "tickets"))
    for name, run in (("open", is_open), ("closed", is_closed)):
        with closing(Workdir.open(tmp_path / name)) as workdir:
            workdir.adopt(replace(run, author=PeerId("12D3KooW" + "1" * 44)))
        Identity.load_or_create(tmp_path / name / "identity.key")
        keep_address(tmp_path / name, f"adloco://{'a' * 64},/ip4/127.0.0.1/tcp/1/p2p/12D3KooW{'1' * 44}")
    assert main(["invite", "--workdir", str(tmp_path / "open")]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("adloco://") and said.out.count("\n") == 1 and "no invitation" in said.err
    assert main(["invite", "--workdir", str(tmp_path / "closed")]) == 2
    refused = capsys.readouterr().err
    assert "E222" in refused and "a peer that a signer has added" in refused and "adloco-peer signers --add" in refused
    (tmp_path / "closed" / "identity.key").unlink()
    assert main(["invite", "--workdir", str(tmp_path / "closed")]) == 4
    assert "E406" in capsys.readouterr().err and not (tmp_path / "closed" / "identity.key").exists()


def test_a_run_whose_link_is_printed_can_be_asked_for_its_members_before_its_first_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.adopt(RunConfig())
    assert main(["members", "--workdir", str(tmp_path)]) == 4  # a run without the network looks like this
    keep_address(tmp_path, f"adloco://{RunConfig().digest},/ip4/127.0.0.1/tcp/1/p2p/{'1' * 46}")
    assert main(["members", "--workdir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("round 0, admission tickets")


def test_the_directory_of_a_swarm_leads_to_its_first_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_run(tmp_path / "swarm" / "peer-0")
    for words in (["status"], ["generate", "--prompt", "x"]):
        assert main([*words, "--workdir", str(tmp_path / "swarm")]) == 2
        assert f"did you mean {tmp_path / 'swarm' / 'peer-0'}?" in capsys.readouterr().err


def test_a_bootstrap_is_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    holding = f"{HOLDER}, HELPING; held = Workdir.open(Path(sys.argv[1])); held.enter(HELPING); print(flush=True)"
    holding += "; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holding, tmp_path], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert main(["status", "--workdir", str(tmp_path)]) == 0
        assert capsys.readouterr().out.startswith("running as a bootstrap")
        assert main(["pause", "--workdir", str(tmp_path)]) == 2
        assert f"process {process.pid} is a bootstrap" in capsys.readouterr().err


def test_a_peer_that_never_joined_fails_the_swarm_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spawn(arguments: list[str], workdir: Path, threads: int) -> Member:
        workdir.mkdir(parents=True, exist_ok=True)
        log = workdir / "output.log"
        if workdir.name == "peer-0":
            (workdir / "run.json").write_bytes(canonical.encode(RunConfig()))
            log.write_text("initial peers: /ip4/127.0.0.1/tcp/1/p2p/x\n")
            code = 0
        else:
            log.write_text("adloco-peer: E302: no peer:\n  127.0.0.1:1: refused\n  cause:  x\n  remedy: y\n")
            code = 3
        process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
        return Member(workdir=workdir, process=process, log=log, lifeline=os.open(os.devnull, os.O_WRONLY))

    monkeypatch.setattr(swarm, "spawn", spawn)
    monkeypatch.setattr(swarm, "is_complete", lambda workdir: workdir.name == "peer-0")
    assert main(["swarm", "--peers", "2", "--workdir", str(tmp_path), "--plain", "--no-wait"]) == 3
    said = capsys.readouterr().out
    assert "peer-1 ended with exit code 3: adloco-peer: E302: no peer:\n  127.0.0.1:1: refused\n" in said
    assert "peer-1 never joined" in said and "cause" not in said


def test_a_closed_terminal_ends_a_node_as_sigterm_does() -> None:
    asked: list[str] = []

    async def closed() -> None:
        is_asked = asyncio.Event()

        def answer(name: str) -> None:
            asked.append(name)
            is_asked.set()

        signals.install(asyncio.get_running_loop(), lambda: answer("stop"), terminate=lambda: answer("terminate"))
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
        await is_asked.wait()

    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        asyncio.run(closed())
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert asked == ["terminate"]


STOPS_AT_ONCE = """
import asyncio, os, signal
from rich.console import Console
from adloco_p2p.runtime.adapters import signals
from adloco_p2p.views.terminal import TerminalView
async def interrupted_twice():
    TerminalView(Console(force_terminal=True)).start()
    signals.install(asyncio.get_running_loop(), lambda: os.kill(os.getpid(), signal.SIGINT))
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()
asyncio.run(interrupted_twice())
"""


def test_a_node_that_stops_at_once_gives_the_screen_back() -> None:
    """Otherwise the shell goes on without a cursor, on a screen that cannot be scrolled."""
    ended = subprocess.run([sys.executable, "-c", STOPS_AT_ONCE], capture_output=True, text=True, check=False)
    assert ended.returncode == 130 and signals.AT_ONCE in ended.stderr
    before, after = ended.stdout.split("\x1b[?1049h")
    assert not before and after.endswith("\x1b[?1049l\x1b[?25h")
