"""The process that carries the packets of a laboratory: `linkemu.c`, built, started, asked and stopped."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("linkemu.c")
TUN = Path("/dev/net/tun")
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
STOP_SECONDS = 5.0


class LaboratoryUnavailable(SystemExit):
    """This machine or this user cannot have a laboratory; the message names what is missing. It ends the benchmark."""


def check_available(congestion_control: str) -> None:
    """Raise LaboratoryUnavailable, naming everything that is missing, with remedies."""
    missing = []
    if not AVAILABLE.exists():
        missing.append("Linux")
    elif congestion_control not in AVAILABLE.read_text().split():
        missing.append(f"the congestion control {congestion_control} (this kernel has: {AVAILABLE.read_text().strip()})")
    if os.geteuid() != 0:
        missing.append("root, for network namespaces (or a container with SYS_ADMIN and NET_ADMIN)")
    if not TUN.exists():
        missing.append(f"{TUN} (in a container: --device {TUN})")
    if shutil.which("gcc") is None:
        missing.append("gcc, with the headers of the C library")
    if shutil.which("nsenter") is None:
        missing.append("nsenter (package util-linux)")
    if missing:
        raise LaboratoryUnavailable("a laboratory needs " + "; ".join(missing))


class Emulator:
    """The running emulator, in which hosts have numbers. The namespaces end with it and with the processes inside them."""

    def __init__(self, arguments: Sequence[str], *, congestion_control: str, seed: int) -> None:
        check_available(congestion_control)
        with tempfile.TemporaryDirectory(prefix="linkemu-") as directory, _allowed(congestion_control):
            binary = Path(directory) / "linkemu"
            command = ["gcc", "-O2", "-std=c11", "-o", str(binary), str(SOURCE)]
            built = subprocess.run(command, check=False, capture_output=True, text=True)
            if built.returncode:
                raise LaboratoryUnavailable(f"gcc cannot build the emulator: {built.stderr}")
            # A session of its own, because Ctrl-C is for the program that made the laboratory, which takes it down in order.
            self._process = subprocess.Popen(
                [binary, str(seed), congestion_control, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                bufsize=1,
                start_new_session=True,
            )
            try:
                self._descriptors = self._read_line().split()
                self.inodes = frozenset(Path(self.namespace(host)).stat().st_ino for host in range(len(arguments)))
                """Inodes of the namespaces, as in /proc/PID/ns/net of the processes inside."""
            except BaseException:
                self.stop()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def namespace(self, host: int) -> str:
        """Return a path for `nsenter --net=`."""
        return f"/proc/{self._process.pid}/fd/{self._descriptors[host]}"

    def ask(self, command: str) -> str:
        """Send one line and return its answer. Raises ValueError where the emulator refuses the command."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        answer = self._read_line()
        if answer.startswith("error"):
            raise ValueError(f"{command}: {answer}")
        return answer

    def _read_line(self) -> str:
        assert self._process.stdout is not None and self._process.stderr is not None
        line: str = self._process.stdout.readline().strip()
        if not line:
            raise LaboratoryUnavailable(f"the emulator has ended: {self._process.stderr.read().strip()}")
        return line

    def stop(self) -> None:
        """End it; the links are dead when this returns."""
        self._process.kill()
        self._process.communicate(timeout=STOP_SECONDS)


@contextmanager
def _allowed(congestion_control: str) -> Iterator[None]:
    """Allow this congestion control to everybody on the machine inside the context, as a namespace needs."""
    with ALLOWED.open("r+") as setting:
        fcntl.flock(setting, fcntl.LOCK_EX)  # another laboratory must not take our change for the machine's own setting
        before = setting.read().split()
        if congestion_control in before:
            yield
            return
        ALLOWED.write_text(" ".join([*before, congestion_control]))
        try:
            yield
        finally:
            ALLOWED.write_text(" ".join(before))
