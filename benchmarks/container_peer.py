"""A peer in a container joins a swarm of plain processes, trains with it to the end and leaves nothing behind but its volume.

bash peers/build-image.sh && python -m benchmarks.container_peer --image adloco-peer:cpu      two minutes; needs buildah

The container runs with chroot isolation: its own files and user, the machine's network. Prints one line per promise and a
verdict; exit code 1 where one is broken.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

WAIT_LIMIT_SECONDS = 600.0
LOOK_SECONDS = 0.2
ENDLESS = 10_000
"""Rounds: the check stops the run."""
ENOUGH = 3
"""Rounds in which the others counted the container's work."""
USER = 10001
HEALTH = ("adloco-peer", "status", "--workdir", "/data")
"""As in the Dockerfile."""
ADDRESS = re.compile(r"^initial peers: (\S+)", re.MULTILINE)
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
WORDS = ("outer", "inner", "round", "step", "peer", "merge", "batch", "plan", "gossip", "swarm")


def write_run(folder: Path) -> Path:
    """A tiny run over a text of its own, which lies at the same path inside the container."""
    (folder / "text.txt").write_text("\n\n".join(" ".join(WORDS[(7 * i + j * j) % 10] for j in range(60)) for i in range(200)))
    architecture = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    document = {
        "name": "container",
        "model": {"architecture": architecture},
        "data": {"source": "text", "path": str(folder / "text.txt"), "sequence_length": 64, "heldout_fraction": 0.2},
        "inner": {"learning_rate": 3e-3},
        "work": {"inner_steps": 5, "rounds": ENDLESS},
        "instances": {"count": 1},
        "batch": {"initial_batch": 12, "max_batch": 12},
        "merge": {"policy": "none"},
        "admission": {"kind": "open", "probation_rounds": 0},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def events_of(workdir: Path, name: str) -> list[dict[str, Any]]:
    path = workdir / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    events = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [event for event in events if event["event"] == name]


def rounds_together(volume: Path, plain: Path) -> list[int]:
    """Rounds in which the plain peer counted the container's work beside its own."""
    started = events_of(volume, "started")
    rounds = events_of(plain, "round") if started else []
    return [event["round"] for event in rounds if started[0]["peer"] in event["hosts"] and len(event["hosts"]) > 1]


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=ENVIRONMENT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait(look: Callable[[], Any], what: str, *processes: subprocess.Popen[bytes]) -> Any:
    """The first true thing that `look` returns while the processes live."""
    deadline = time.monotonic() + WAIT_LIMIT_SECONDS
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        if found := look():
            return found
        time.sleep(LOOK_SECONDS)
    raise SystemExit(f"waited in vain for {what}")


def buildah(*arguments: str) -> str:
    return subprocess.run(["buildah", *arguments], check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def container_of(image: str) -> Iterator[str]:
    container = buildah("from", "--pull-never", image)
    try:
        yield container
    finally:
        buildah("rm", container)


def check(folder: Path, container: str) -> dict[str, bool]:
    """Run the swarm to its end. What was promised, and whether it held."""
    config, volume = write_run(folder), folder / "volume"
    volume.mkdir()
    os.chown(volume, USER, USER)
    folder.chmod(0o755)
    command = [sys.executable, "-m", "adloco_p2p"]
    common = ["--plain", "--host-maddrs", LOOPBACK, "--peer-set", "num_threads=1", "allow_local_files=true"]
    logs = {name: folder / f"{name}.log" for name in ("first", "second", "container")}
    start = [*command, "start", str(config), "--workdir", str(folder / "first"), *common]
    with running(start, logs["first"]) as first:
        address = wait(lambda: ADDRESS.search(logs["first"].read_text()), "the first peer to listen", first)[1]
        join = ["join", "--initial-peers", address]
        enter = ["buildah", "run", "--isolation", "chroot", "--volume", f"{volume}:/data", "--volume", f"{folder}:{folder}:ro"]
        enter += ["--env", "OMP_NUM_THREADS=1", container, "--"]
        inside = [*enter, "adloco-peer", *join, "--workdir", "/data", *common]
        with (
            running([*command, *join, "--workdir", str(folder / "second"), *common], logs["second"]) as second,
            running(inside, logs["container"]) as contained,
        ):
            try:
                everybody = (first, second, contained)
                wait(lambda: len(rounds_together(volume, folder / "first")) >= ENOUGH, "rounds together", *everybody)
                health = subprocess.run([*enter, *HEALTH], check=False, timeout=WAIT_LIMIT_SECONDS).returncode
                inner = int((volume / "lock").read_text())  # chroot isolation: the machine's process ids
                os.kill(inner, signal.SIGTERM)
                codes = [contained.wait(WAIT_LIMIT_SECONDS)]
                for process in (first, second):
                    process.send_signal(signal.SIGINT)
                codes += [process.wait(WAIT_LIMIT_SECONDS) for process in (first, second)]
            finally:
                print(logs["container"].read_text())
    together = rounds_together(volume, folder / "first")
    ours, theirs = ({e["round"]: e["digest"] for e in events_of(path, "round")} for path in (volume, folder / "first"))
    owners = {path.stat().st_uid for path in volume.rglob("*")}
    return {
        f"the others counted its work in {len(together)} rounds": len(together) >= ENOUGH,
        f"same bytes as the others after its {len(ours)} rounds": bool(ours)
        and all(theirs[number] == digest for number, digest in ours.items()),
        f"SIGTERM ended it with 0, Ctrl-C the others: {codes}": codes == [0, 0, 0],
        f"its health check answers: {' '.join(HEALTH)}": health == 0,
        f"everything in the volume belongs to user {USER}": owners == {USER},
        "identity and data lie in the one volume": (volume / "identity.key").exists() and (volume / "data").exists(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--image", default="adloco-peer:cpu")
    image = parser.parse_args().image
    with tempfile.TemporaryDirectory() as name, container_of(image) as container:
        promises = check(Path(name), container)
    size = int(buildah("inspect", "--type", "image", "--format", "{{len .Docker.RootFS.DiffIDs}}", image))
    print(f"{image}: {size} layers; {buildah('images', '--format', '{{.Size}}', image)} unpacked")
    for words, is_kept in promises.items():
        print(f"{'ok    ' if is_kept else 'BROKEN'}  {words}")
    print("verdict: " + ("the containerised peer is a peer" if all(promises.values()) else "broken"))
    return 0 if all(promises.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
