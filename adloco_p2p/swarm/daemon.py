"""hivemind's P2P daemon (p2pd, a Go process) as a child that cannot outlive us and that no Ctrl-C reaches.

hivemind starts p2pd by asyncio's create_subprocess_exec without a hook for the child's side. What it does offer is the list of
arguments: a subclass puts a launcher of five lines in front of them, which asks the kernel to kill it with its parent
(PR_SET_PDEATHSIG survives exec) and then becomes p2pd. The launcher also leaves our process group: a Ctrl-C in the terminal
must reach this process first, which still has a farewell to send through p2pd.
Why not otherwise: `setpriv --pdeathsig` is missing on small systems; a preexec_fn would need asyncio's function replaced for
everybody for a while, and runs Python between fork and exec. Where the kernel has no such thing (macOS), p2pd ends by itself
IDLE_SECONDS after its last connection, which is ours, is gone.
The kernel sends the signal when the THREAD that started the child ends: start hosts from the main thread's loop.

The daemon's unix sockets lie in a directory per workdir, so that what a killed life left there can be removed with certainty.
"""

import contextlib
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from hivemind.p2p import P2P

from adloco_p2p.errors import StorageError
from adloco_p2p.swarm.hivemind_patches import check_version, control_of, mend

IDLE_SECONDS = 30.0
"""p2pd ends so long after nobody is connected to it."""
REAP_SECONDS = 2.0
"""For a killed daemon to be gone."""
_MAX_SOCKET_PATH_BYTES = 100
"""Unix socket paths end at 107 bytes on Linux, at 103 on macOS."""
_LONGEST_SOCKET_NAME = "p2pclient-xxxxxxxxxxx.sock"

_LAUNCHER = """
import ctypes, os, signal, sys
os.setsid()
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone already")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""1 is PR_SET_PDEATHSIG of linux/prctl.h. Where the parent died before that call, our parent is another process by now."""

_DETACHER = """
import os, sys
os.setsid()
os.execv(sys.argv[2], sys.argv[2:])
"""


def launcher() -> list[str]:
    """What stands in front of p2pd's arguments. Isolated and without site packages: starts in about 15 ms."""
    source = _LAUNCHER if sys.platform == "linux" else _DETACHER
    return [sys.executable, "-I", "-S", "-c", source, str(os.getpid())]


def daemon_class(sockets: Path) -> type[P2P]:
    """hivemind's P2P whose daemon dies with us, has its sockets in `sockets`, and is heard whatever we stop waiting for."""

    class Daemon(P2P):  # type: ignore[misc]  # hivemind is not typed
        _UNIX_SOCKET_PREFIX = f"/unix{sockets}/"
        first_words: str | None = None
        """The first line that the latest daemon printed; hivemind reports the last one: of a Go panic, a line number."""

        @classmethod
        async def create(cls, *args: Any, **kwargs: Any) -> P2P:
            check_version()
            daemon = await super().create(*args, **kwargs)
            mend(control_of(daemon))
            return daemon

        @staticmethod
        def _make_process_args(*args: Any, **kwargs: Any) -> Sequence[str]:
            Daemon.first_words = None
            return [*launcher(), *P2P._make_process_args(*args, **kwargs)]

        @staticmethod
        def _log_p2pd_message(line: str) -> None:
            Daemon.first_words = Daemon.first_words or line
            P2P._log_p2pd_message(line)

    return Daemon


def make_socket_directory(workdir: Path) -> Path:
    """An empty directory that belongs to us and to this workdir. Call with the workdir locked: daemons and sockets of an
    earlier life are removed, and those of a living process would be too. Raises StorageError."""
    name = f"adloco-{os.getuid()}-{sha256(os.fsencode(workdir.resolve())).hexdigest()[:12]}"
    directory = Path(tempfile.gettempdir()) / name
    if len(os.fsencode(directory / _LONGEST_SOCKET_NAME)) > _MAX_SOCKET_PATH_BYTES:
        directory = Path("/tmp") / name
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        info = directory.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
            raise StorageError(f"{directory}: not ours alone; remove it")
        reap_orphans(directory)
        for left_behind in directory.iterdir():
            left_behind.unlink()
    except OSError as error:
        raise StorageError(f"{directory}: cannot be used for unix sockets: {error.strerror}") from error
    return directory


def reap_orphans(directory: Path) -> tuple[int, ...]:
    """End our user's daemons whose sockets are in this directory, and wait for it; returns their process ids.

    Where the kernel could not end them with their parent they would hold the peer's port and answer in its name. Without
    /proc (macOS) nothing is found; there they end by themselves IDLE_SECONDS later.
    """
    mark = f"-listen=/unix{directory}/".encode()
    orphans = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_daemon = entry.stat().st_uid == os.getuid() and any(
                word.startswith(mark) for word in (entry / "cmdline").read_bytes().split(b"\0")
            )
        except OSError:  # it has just ended, or is not ours to read
            continue
        if is_daemon:
            orphans.append(int(entry.name))
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + REAP_SECONDS
    while any(Path(f"/proc/{pid}/exe").exists() for pid in orphans) and time.monotonic() < deadline:
        time.sleep(0.01)
    return tuple(sorted(orphans))


def remove_socket_directory(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
