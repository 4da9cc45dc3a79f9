"""The working directory of one peer in one run. Everything the peer writes lies in it.

lock               held while the process lives; inside are its process id and, while it starts, what it does
run.json           the run's configuration in canonical form; its SHA-256 is the run's id
command.txt        the command with which the node started last
manifest.bin       the same, signed by the run's author: what joiners are given
identity.key       this peer's private key: its owner is this peer
peers.json         where other peers were found last time
journal.bin        votes and final plans (`journal.py`)
attempts.txt       averaging attempts that were begun (`attempt_keys.py`)
events.jsonl       what happened, one line each (`event_log.py`)
base/              the pretrained model, where it came from other peers (`swarm/transfer/file_transfer.py`)
checkpoints/       the state at round boundaries (`checkpoint.py`)
crash.txt          how the last crash ended; it is in support-bundle.zip too (`support_bundle.py`)
"""

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from weakref import WeakValueDictionary

from adloco_p2p.config.fields import differences
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.errors import ConfigError, StorageError
from adloco_p2p.storage.disk import keep_file, read_value, replace_file, reported

LOCK_BYTES = 128
"""The content of the lock is padded to this, so that one write replaces it."""
MAX_RUN_BYTES = 1 << 20
"""A run's configuration is a few kilobytes; anything longer is not one."""


HELPING = "running as a bootstrap: it helps peers to find each other"
"""The phase of a directory's holder that is a bootstrap."""
READY = "ready"
"""The phase of a founder that can train, until all founders can, begins with this."""
ENDING = "ending, because the process that started it has ended"
"""The phase of a peer of a swarm whose parent was killed."""
EVENTS, JOURNAL = "events.jsonl", "journal.bin"
"""What happened, and what was agreed on."""
COMMAND = "command.txt"
"""The command with which the node started last."""
MANIFEST = "manifest.bin"
"""The signed configuration of a run that was begun on the network."""
EXPORT_RECORD = "adloco_run.json"
"""In an exported directory: the run that made it, which a run that starts from there names as its parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that works in a directory."""

    pid: int
    """0 where it cannot be read."""
    starting: str | None = None
    """Its phase while it starts; none before and after that."""

    @property
    def is_helper(self) -> bool:
        """A bootstrap: it runs, and there is nothing to ask it."""
        return self.starting == HELPING

    @property
    def words(self) -> str:
        """The work of the process while it cannot be asked."""
        if self.starting in (HELPING, ENDING):
            return self.starting
        return f"starting: {self.starting}"


@dataclass(slots=True, kw_only=True)
class Workdir:
    """An open working directory, locked until `close` or the end of this process."""

    path: Path
    run: RunConfig | None
    """The run whose state lies here; none in a fresh directory."""
    _lock: FileIO
    on_phase: Callable[[str | None], None] = lambda _: None
    """Shows the phases to the user of this process."""

    @classmethod
    def open(cls, path: Path) -> "Workdir":
        """Make or open the directory and lock it. Raises StorageError where another process uses it."""
        with reported(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = _lock(path / "lock")
        try:
            return cls(path=path, run=read_run(path), _lock=lock)
        except StorageError:
            lock.close()
            raise

    def enter(self, phase: str | None) -> None:
        """Show other processes the phase of this one while it starts, before it can be asked; none: it has started."""
        with reported(self.path):
            _write_holder(self._lock, phase)
        self.on_phase(phase)

    def adopt(self, run: RunConfig) -> None:
        """Bind a fresh directory to a run, for good. Raises ConfigError where it belongs to another one.

        A run of which nothing happened yet, because its settings could not be used, gives way to the next try.
        """
        if self.run is None or (self.run.digest != run.digest and not self._has_history):
            keep_file(self.run_path, canonical.encode(run))
            self.run = run
        elif self.run.digest != run.digest:
            listed = "\n".join(f"  {line}" for line in differences(self.run, run))
            raise ConfigError(
                f"{self.path}: holds run {self.run.digest[:16]}, not run {run.digest[:16]}"
                f" (here: in the directory, there: asked for):\n{listed}",
                code="E203",
            )

    def with_protocol(self, run: RunConfig) -> RunConfig:
        """The run of a configuration, with the protocol that the run of this directory began with: newer versions begin others
        with a newer one."""
        return run if self.run is None else replace(run, protocol=self.run.protocol)

    def keep_command(self, command: str) -> None:
        """For `read_command`. Raises StorageError."""
        keep_file(self.path / COMMAND, f"{command}\n".encode())

    def keep_to(self, *, is_offline: bool) -> None:
        """Training alone leaves no ledger that others could verify, and agreed rounds would be missing in a ledger that is
        continued later. Raises ConfigError where the run in this directory was trained the other way."""
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
    def _has_history(self) -> bool:
        files = (self.manifest_path, self.journal_path, self.events_path)
        with reported(self.path):
            return any(path.exists() and path.stat().st_size for path in files) or any(self.checkpoints_path.glob("*"))

    def close(self) -> None:
        """Let others in."""
        self._lock.close()

    @property
    def run_path(self) -> Path:
        return self.path / "run.json"

    @property
    def manifest_path(self) -> Path:
        return self.path / MANIFEST

    def save_manifest(self, data: bytes) -> None:
        """Keep the signed manifest, to serve it to joiners. Raises StorageError."""
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
"""The locks of this process, by its id and the file's device and inode. A record lock does not exclude its own process, and
goes as soon as that process closes any other descriptor of the file: a held file is never opened again."""


def _held_here(path: Path) -> FileIO | None:
    """The lock, where this process holds it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    file = _locks.get((os.getpid(), found.st_dev, found.st_ino))
    return None if file is None or file.closed else file


def _lock(path: Path) -> FileIO:
    """A record lock, which children do not inherit: a helper process that outlives a killed peer must not keep the
    directory locked. Raises OSError and StorageError."""
    if _held_here(path) is not None:
        raise StorageError(
            f"{path.parent}: in use by this program already; end that use first, or choose another working directory",
            code="E404",
        )
    file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def _write_holder(file: FileIO, phase: str | None) -> None:
    words = f"{os.getpid()}\n{phase or ''}".encode("ascii", "replace")[: LOCK_BYTES - 1]
    os.pwrite(file.fileno(), words.ljust(LOCK_BYTES - 1) + b"\n", 0)


def _read_holder(file: FileIO) -> Holder:
    pid, _, phase = os.pread(file.fileno(), LOCK_BYTES, 0).decode("ascii", "replace").partition("\n")
    return Holder(pid=int(pid) if pid.isdecimal() else 0, starting=phase.strip() or None)


def holder_of(path: Path) -> Holder | None:
    """The process that works in this directory now; none where there is none. Raises StorageError."""
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
    """The directory of the first peer, where `path` is that of a whole swarm on this machine."""
    first = path / "peer-0"
    return first if not (path / "run.json").exists() and (first / "run.json").exists() else None


def read_command(workdir: Path) -> str:
    """The command with which a node of this directory started last; empty where none did. Raises StorageError."""
    path = workdir / COMMAND
    with reported(path):
        return path.read_text("utf-8", errors="replace").strip() if path.exists() else ""


def read_run(workdir: Path) -> RunConfig | None:
    """The run that lies in a working directory, none where there is none. Takes no lock. Raises StorageError."""
    remedy = "restore it, or choose another working directory"
    return read_value(RunConfig, workdir / "run.json", max_bytes=MAX_RUN_BYTES, remedy=remedy)


def check_output(output: Path, *, option: str = "--output") -> None:
    """Raise ConfigError for a directory that is not new or empty: nothing is overwritten."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{option} {output}: exists and is not empty; name a new directory", code="E211")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The content of `EXPORT_RECORD` in a directory."""

    run: str
    round: int


def exported(directory: Path) -> Exported | None:
    """The run whose model lies in a directory, none where there is no such record."""
    try:
        record = json.loads((directory / EXPORT_RECORD).read_text("utf-8"))
        run, round = record["run"], record["round"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return Exported(run=run, round=round) if isinstance(run, str) and len(run) <= 64 and type(round) is int else None
