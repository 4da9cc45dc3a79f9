"""A peer in a container joins a swarm of plain processes, trains with it to the end and leaves nothing behind but its volume.

bash peers/build-image.sh && python -m benchmarks.container_peer --image adloco-peer:cpu      two minutes; needs buildah

The container runs with chroot isolation: its own files and user, the machine's network. Prints one line per promise and a
verdict; exit code 1 where one is broken.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.nodes import (
    LOOK_SECONDS,
    LOOPBACK,
    Event,
    Member,
    begin,
    begin_node,
    end,
    node_command,
    read_events,
    write_config,
)

WAIT_LIMIT_SECONDS = 600.0
ENDLESS = 10_000
"""Rounds of a run that the check stops."""
ENOUGH = 3
"""Rounds in which the others must count the container's work."""
USER = 10001
HEALTH = ("adloco-peer", "status", "--workdir", "/data")
"""The health check, as in the Dockerfile."""


def events_of(workdir: Path, name: str) -> list[Event]:
    return [event for event in read_events(workdir) if event["event"] == name]


def rounds_together(volume: Path, plain: Path) -> list[int]:
    """Return the rounds in which the plain peer counted the container's work beside its own."""
    started = events_of(volume, "started")
    rounds = events_of(plain, "round") if started else []
    return [event["round"] for event in rounds if started[0]["peer"] in event["hosts"] and len(event["hosts"]) > 1]


@contextlib.contextmanager
def running(member: Member) -> Iterator[Member]:
    try:
        yield member
    finally:
        if member.is_alive:
            member.process.kill()
            member.process.wait()


def wait_for_rounds_together(volume: Path, plain: Path, *members: Member) -> None:
    """Wait for enough common rounds while the processes live. Raises SystemExit where they do not come."""
    deadline = time.monotonic() + WAIT_LIMIT_SECONDS
    while len(rounds_together(volume, plain)) < ENOUGH:
        if time.monotonic() > deadline or not all(member.is_alive for member in members):
            raise SystemExit(f"fewer than {ENOUGH} rounds together; see the logs")
        time.sleep(LOOK_SECONDS)


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
    """Run the swarm to its end, and return which promises held."""
    config = write_config(folder, "container", rounds=ENDLESS, inner_steps=5, width=32, layers=1, equal_shares=False)
    volume = folder / "volume"
    volume.mkdir()
    os.chown(volume, USER, USER)
    folder.chmod(0o755)
    with running(begin_node(folder, "first", "start", config)) as first:
        addresses = first.addresses(deadline=time.monotonic() + WAIT_LIMIT_SECONDS)
        join = ["join", "--initial-peers", *addresses]
        enter = ["buildah", "run", "--isolation", "chroot", "--volume", f"{volume}:/data", "--volume", f"{folder}:{folder}:ro"]
        enter += ["--env", "OMP_NUM_THREADS=1", container, "--"]
        _, _, _, *arguments = node_command(*join, workdir=Path("/data"), listen=LOOPBACK)
        with (
            running(begin_node(folder, "second", *join)) as second,
            running(begin(folder, "container", [*enter, "adloco-peer", *arguments])) as contained,
        ):
            try:
                wait_for_rounds_together(volume, first.workdir, first, second, contained)
                health = subprocess.run([*enter, *HEALTH], check=False, timeout=WAIT_LIMIT_SECONDS).returncode
                inner = int((volume / "lock").read_text())  # chroot isolation uses the machine's process ids
                os.kill(inner, signal.SIGTERM)
                codes = [contained.process.wait(WAIT_LIMIT_SECONDS), *end((first, second), seconds=WAIT_LIMIT_SECONDS)]
            finally:
                print(contained.words)
    together = rounds_together(volume, first.workdir)
    ours, theirs = ({e["round"]: e["digest"] for e in events_of(path, "round")} for path in (volume, first.workdir))
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
