"""Commands that start warm: one process imports everything once and forks a child for each.

Importing torch and transformers costs some five seconds of processor time, and the pages run fifty commands. `python warm.py
SOCKET ARGUMENT...` stands for `adloco-peer ARGUMENT...`: the server forks a child that gets the arguments, directory,
environment and open files of whoever asked, and calls the same `main`. Signals are passed on, the exit code comes back, and a
child outlives neither the process that asked for it nor the server, however they end.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

PRELOADED = (
    "adloco_p2p.cli",
    "adloco_p2p.commands.control",
    "adloco_p2p.commands.doctor",
    "adloco_p2p.commands.inspect",
    "adloco_p2p.commands.plan",
    "adloco_p2p.commands.audit",
    "adloco_p2p.commands.trained_model",
    "adloco_p2p.commands.observe",
    "adloco_p2p.commands.train",
    "adloco_p2p.runtime.doctor.network_checks",
    "adloco_p2p.runtime.network_node",
    "datasets",
    "transformers.models.llama.modeling_llama",
)
"""Also by the fork server of `tests/e2e/processes.py`."""
LENGTH = struct.Struct("!I")
STANDARD_FILES = (0, 1, 2)
PASSED_ON = (signal.SIGINT, signal.SIGTERM)
PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h."""


# --- who asks; starts often, so it imports nothing else ---------------------------------------------------------------


def ask(address: str, arguments: list[str]) -> int:
    """Have the command run; returns its exit code."""
    request = {"arguments": arguments, "directory": str(Path.cwd()), "environment": dict(os.environ)}
    content = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # what comes from now on is for the command, which may be faster
        socket.send_fds(line, [LENGTH.pack(len(content))], STANDARD_FILES)
        line.sendall(content)

        def pass_on(number: int, frame: FrameType | None) -> None:
            line.send(bytes([number]))

        for number in PASSED_ON:
            signal.signal(number, pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        code = line.recv(1)
    return code[0] if code else 1


# --- the server ------------------------------------------------------------------------------------------------------


def serve(address: str) -> None:
    """Until the standard input ends: then whoever started this is gone."""
    for name in PRELOADED:
        __import__(name)
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(address)
        listener.listen()
        selector.register(sys.stdin, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        children: dict[int, tuple[int, socket.socket]] = {}
        """Open file of a child's end -> its process, and the line to who asked."""
        print("ready", flush=True)
        while True:
            for key, _ in selector.select():
                if selector.get_map().get(key.fd) is not key:
                    continue  # a line whose child has ended a moment ago
                if key.fileobj is sys.stdin:
                    for pid, _ in children.values():
                        os.kill(pid, signal.SIGKILL)
                    os._exit(0)  # taking torch apart takes seconds
                if key.fileobj is listener:
                    line, _ = listener.accept()
                    pid = _fork(line, [listener, *(other for _, other in children.values())])
                    end = os.pidfd_open(pid)
                    children[end] = (pid, line)
                    selector.register(end, selectors.EVENT_READ)
                    selector.register(line, selectors.EVENT_READ, data=pid)
                elif key.fd in children:
                    pid, line = children.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    if line.fileno() in selector.get_map():
                        selector.unregister(line)
                    with contextlib.suppress(OSError):  # who asked may be gone
                        line.send(bytes([code if code >= 0 else 128 - code]))
                    line.close()
                else:
                    _pass_on(selector, key)


def _pass_on(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """A signal for a child; none where who asked is gone."""
    line = key.fileobj
    assert isinstance(line, socket.socket)
    with contextlib.suppress(ConnectionResetError):
        if number := line.recv(1):
            os.kill(key.data, number[0])
            return
    selector.unregister(line)
    os.kill(key.data, signal.SIGKILL)


def _fork(line: socket.socket, others: list[socket.socket]) -> int:
    header, files, _, _ = socket.recv_fds(line, LENGTH.size, len(STANDARD_FILES))
    size = LENGTH.unpack(header)[0]
    content = b""
    while len(content) < size:
        content += line.recv(size - len(content))
    request = json.loads(content)
    server = os.getpid()
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        return pid
    try:
        _end_with(server)
        for other in (line, *others):
            other.close()
        for standard, file in zip(STANDARD_FILES, files, strict=True):
            os.dup2(file, standard)
            os.close(file)
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # where a background job runs the tests, it is ignored
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["adloco-peer", *request["arguments"]]
        from adloco_p2p.__main__ import main

        if PRELOADED:
            be_patient()
        main()
    finally:
        os._exit(1)


def be_patient() -> None:
    """Wait longer for the answer of a node than outside: on a busy machine one that is in order answers late, too."""
    from adloco_p2p.control import client
    from adloco_p2p.runtime.doctor import network_checks

    client.TIMEOUT_SECONDS = network_checks.JOIN_SECONDS = 240.0


def _end_with(parent: int) -> None:
    """A run of the pages is endless: nobody would end it where the server was killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@contextlib.contextmanager
def server(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A running server; yields its address. What libraries read of the environment when they are imported is the server's."""
    address = str(folder / "warm")
    command = [sys.executable, __file__, "serve", address]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield address
        finally:
            process.stdin.close()
            process.wait()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
