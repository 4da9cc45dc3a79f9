"""The working directory of one peer in one run, which has all files that the peer writes.

lock               held while the process lives; it has the process id and, during the start, the phase of the start
run.json           the run's configuration in canonical form; its SHA-256 is the run's id
command.txt        the command with which the node started last
manifest.bin       the run's configuration, signed by its author, for joiners
identity.key       the private key of this peer; its holder is this peer
peers.json         the last known addresses of other peers
journal.bin        votes and final plans (`journal.py`)
attempts.txt       averaging attempts that were begun (`attempt_keys.py`)
events.jsonl       the events, one per line (`event_log.py`)
base/              the pretrained model, if it came from other peers (`swarm/transfer/file_transfer.py`)
checkpoints/       the state at round boundaries (`checkpoint.py`)
crash.txt          the traceback of the last crash, which support-bundle.zip has, too (`support_bundle.py`)
"""

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from weakref import WeakValueDictionary

from adloco_p2p.config.fields import differences
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.errors import ConfigError, StorageError
from adloco_p2p.storage.disk import RESTORE, keep_file, read_value, replace_file, reported

LOCK_BYTES = 128
"""The length to which the content of the lock is padded, so that one write replaces it."""
MAX_RUN_BYTES = 1 << 20
"""The most bytes of a run's configuration, which has a few kilobytes."""
LOOK_SECONDS, LOOKS_SECONDS = 0.001, 60.0
"""The time of one look into a directory, and the longest wait for others that look while the lock is taken: one that looks may
stand still for a while, as every process of a busy machine may."""


HELPING = "running as a bootstrap: it helps peers to find each other"
"""The phase of a directory's holder that is a bootstrap."""
READY = "ready"
"""The first word of the phase of a founder that can train, until all founders can."""
ENDING = "ending, because the process that started it has ended"
"""The phase of a swarm's peer after the process that started it was killed."""
EVENTS, JOURNAL = "events.jsonl", "journal.bin"
"""The names of the event file and the journal."""
COMMAND = "command.txt"
"""The name of the file with the command with which the node started last."""
MANIFEST = "manifest.bin"
"""The name of the file with the signed configuration of a run that was begun on the network."""
EXPORT_RECORD = "adloco_run.json"
"""The name of the file, in an exported directory, with the run that made it, which a run that starts from it has as parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that works in a directory."""

    pid: int
    """The process id; 0 if it cannot be read."""
    starting: str | None = None
    """The phase of the process while it starts; None before and after that."""

    @property
    def is_helper(self) -> bool:
        """Whether the process is a bootstrap, which answers no commands."""
        return self.starting == HELPING

    @property
    def words(self) -> str:
        """The work of the process, in words, while it answers no commands."""
        if self.starting in (HELPING, ENDING):
            return self.starting
        return f"starting: {self.starting}"


@dataclass(slots=True, kw_only=True)
class Workdir:
    """An open working directory, locked until `close` or the end of this process."""

    path: Path
    run: RunConfig | None
    """The run to which the directory belongs; None in a fresh directory."""
    _lock: FileIO
    on_phase: Callable[[str | None], None] = lambda _: None
    """Shows the phases to the user of this process."""

    @classmethod
    def open(cls, path: Path) -> "Workdir":
        """Make or open the directory and lock it. Raises StorageError if another process uses it."""
        with reported(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = _lock(path / "lock")
        try:
            return cls(path=path, run=read_run(path), _lock=lock)
        except StorageError:
            lock.close()
            raise

    def enter(self, phase: str | None) -> None:
        """Show other processes the phase of this one while it starts and answers no commands yet; None once it has started."""
        with reported(self.path):
            _write_holder(self._lock, phase)
        self.on_phase(phase)

    def adopt(self, run: RunConfig) -> None:
        """Bind a fresh directory to a run, for good. Raises ConfigError if it belongs to another one.

        A run in which nothing has happened yet, because its settings could not be used, gives way to the next one.
        """
        if self.run is None or (self.run.digest != run.digest and not self.has_history):
            keep_file(self.run_path, canonical.encode(run))
            self.run = run
        elif self.run.digest != run.digest:
            listed = "\n".join(f"  {line}" for line in differences(self.run, run))
            raise ConfigError(
                f"{self.path}: holds run {self.run.digest[:16]}, not run {run.digest[:16]}"
                f" (here: in the directory, there: asked for):\n{listed}",
                code="E203",
            )

    def as_begun(self, run: RunConfig) -> RunConfig:
        """Return the run with the protocol and the embedded text with which the run of this directory began, so that it goes on
        after an update: newer versions begin new runs with a newer protocol, and each Python has another text."""
        begun = self.run
        if begun is None:
            return run
        is_embedded = run.data.source == begun.data.source == "python"
        data = replace(run.data, digest=begun.data.digest) if is_embedded else run.data
        return replace(run, protocol=begun.protocol, data=data)

    def keep_command(self, command: str) -> None:
        """Write the command of this start, for `read_command`. Raises StorageError."""
        keep_file(self.path / COMMAND, f"{command}\n".encode())

    def keep_to(self, *, is_offline: bool) -> None:
        """Raise ConfigError if the run in this directory was trained the other way, offline or on the network. Training alone
        leaves no ledger that others could verify, and a ledger that is continued later would lack its rounds."""
        if is_offline and self.manifest_path.exists():
            raise ConfigError(
                f"--offline: the run in {self.path} was begun on the network, and the others would lack what is trained without"
                " it; remove --offline (no other peer has to be there), or choose another --workdir",
                code="E213",
            )
        has_trained = self.checkpoints_path.is_dir() and any(self.checkpoints_path.iterdir())
        if not is_offline and has_trained and not self.manifest_path.exists():
            raise ConfigError(
                f"--workdir {self.path}: the run was trained with --offline and has no ledger that others could verify; go on"
                " with --offline, or choose another directory",
                code="E213",
            )

    @property
    def has_history(self) -> bool:
        """Whether anything of the run has happened here."""
        files = (self.manifest_path, self.journal_path, self.events_path)
        with reported(self.path):
            return any(path.exists() and path.stat().st_size for path in files) or any(self.checkpoints_path.glob("*"))

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    @property
    def run_path(self) -> Path:
        return self.path / "run.json"

    @property
    def manifest_path(self) -> Path:
        return self.path / MANIFEST

    def save_manifest(self, data: bytes) -> None:
        """Write the signed manifest, unless there is one, to serve it to joiners. Raises StorageError."""
        with reported(self.manifest_path):
            if not self.manifest_path.exists():
                replace_file(self.manifest_path, data)

    @property
    def identity_path(self) -> Path:
        return self.path / "identity.key"

    @property
    def journal_path(self) -> Path:
        return self.path / JOURNAL

    @property
    def attempts_path(self) -> Path:
        return self.path / "attempts.txt"

    @property
    def events_path(self) -> Path:
        return self.path / EVENTS

    @property
    def checkpoints_path(self) -> Path:
        return self.path / "checkpoints"


_locks: WeakValueDictionary[tuple[int, int, int], FileIO] = WeakValueDictionary()
"""The locks of this process, by its id and the file's device and inode. A record lock does not exclude its own process, and is
lost as soon as that process closes any other descriptor of the file, so a locked file is never opened again."""


def _held_here(path: Path) -> FileIO | None:
    """Return the lock file if this process holds it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    file = _locks.get((os.getpid(), found.st_dev, found.st_ino))
    return None if file is None or file.closed else file


def _lock(path: Path) -> FileIO:
    """Take the lock, which is a record lock, because children do not inherit it: a helper process that outlives a killed peer
    must not keep the directory locked. Raises OSError and StorageError."""
    if _held_here(path) is not None:
        raise StorageError(
            f"{path.parent}: in use by this program already; end that use first, or choose another working directory",
            code="E404",
        )
    file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+")
    try:
        _take(file)
    except (BlockingIOError, PermissionError):
        holder = _read_holder(file).pid or "unknown"
        file.close()
        raise StorageError(
            f"{path.parent}: in use by another adloco-peer (process {holder}); stop it, or choose another working directory",
            code="E404",
        ) from None
    _write_holder(file, None)
    found = os.fstat(file.fileno())
    _locks[os.getpid(), found.st_dev, found.st_ino] = file
    return file


def _take(file: FileIO) -> None:
    """Take the lock, after the verbs that look into the directory at this moment (`holder_of`): each shares the lock while it
    looks. Raises BlockingIOError or PermissionError if another process works there."""
    deadline = time.monotonic() + LOOKS_SECONDS
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            if time.monotonic() > deadline:
                raise
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # fails at once where a process works there
            fcntl.lockf(file, fcntl.LOCK_UN)
            time.sleep(LOOK_SECONDS)
        else:
            return


def _write_holder(file: FileIO, phase: str | None) -> None:
    words = f"{os.getpid()}\n{phase or ''}".encode("ascii", "replace")[: LOCK_BYTES - 1]
    os.pwrite(file.fileno(), words.ljust(LOCK_BYTES - 1) + b"\n", 0)


def _read_holder(file: FileIO) -> Holder:
    pid, _, phase = os.pread(file.fileno(), LOCK_BYTES, 0).decode("ascii", "replace").partition("\n")
    return Holder(pid=int(pid) if pid.isdecimal() else 0, starting=phase.strip() or None)


def holder_of(path: Path) -> Holder | None:
    """Return the process that works in this directory now; None if there is none. Raises StorageError."""
    with reported(path):
        if (mine := _held_here(path / "lock")) is not None:
            return _read_holder(mine)
        try:
            file = (path / "lock").open("rb", buffering=0)
        except FileNotFoundError:
            return None
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                return _read_holder(file)
    return None


def meant_workdir(path: Path) -> Path | None:
    """Return the directory of the first peer if `path` is that of a whole swarm on this machine, else None."""
    first = path / "peer-0"
    return first if not (path / "run.json").exists() and (first / "run.json").exists() else None


def read_command(workdir: Path) -> str:
    """Return the command with which a node of this directory started last; empty if none did. Raises StorageError."""
    path = workdir / COMMAND
    with reported(path):
        return path.read_text("utf-8", errors="replace").strip() if path.exists() else ""


def read_run(workdir: Path) -> RunConfig | None:
    """Return the run of a working directory, None if there is none. Takes no lock. Raises StorageError."""
    return read_value(RunConfig, workdir / "run.json", max_bytes=MAX_RUN_BYTES, remedy=RESTORE)


def check_output(output: Path, *, option: str = "--output") -> None:
    """Raise ConfigError for a directory that is not new or empty: nothing is overwritten. Raises StorageError where the name
    cannot be one of a directory."""
    with reported(output):
        is_free = not output.exists() or (output.is_dir() and not any(output.iterdir()))
    if not is_free:
        raise ConfigError(f"{option} {output}: exists and is not empty; name a new directory", code="E211")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The content of `EXPORT_RECORD` in a directory."""

    run: str
    round: int


def exported(directory: Path) -> Exported | None:
    """Return the run and the round of the model in a directory, None if it has no such record."""
    try:
        record = json.loads((directory / EXPORT_RECORD).read_text("utf-8"))
        run, round = record["run"], record["round"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return Exported(run=run, round=round) if isinstance(run, str) and len(run) <= 64 and type(round) is int else None
