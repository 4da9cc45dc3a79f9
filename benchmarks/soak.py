"""A swarm under churn: real processes that are killed, frozen and restarted at random, for minutes or hours.

  python -m benchmarks.soak --peers 8 --minutes 60 --every 20 --bad-peers 2 --workdir DIR

Every SECONDS one peer, drawn at random, is killed with SIGKILL and started again, or stopped with SIGSTOP for 20 s, or asked
to leave and started again. Every fourth peer is only ever stopped, so that its memory is watched for the whole time. Bad peers
(`bad_peer.py`) are members too, one of each kind in turn; nobody disturbs them. Every peer has a device of the speed that
--step-seconds gives (`paced.py`), so that ten fit on two cores. These are printed at the end, and checked for the honest
peers (exit code 1 where one fails):

- rounds go on: never longer than --stuck seconds without one,
- all hosts of an instance have the same digest after a round, or take the others' state within three rounds,
- losses are numbers, and the last ones are lower than the first,
- a peer's own memory (USS) grows by less than 5 % from the first fifth of the time after the warm-up to the last,
- a peer that is asked to leave has left within a minute,
- no process of a dead peer lives on, and nothing is left at the end.

The run has more rounds than fit into the time; it is asked to stop at the end. DIR/deeds.txt lists what was done to whom, and
DIR/peer-K.log is the output of peer K.
"""

import argparse
import contextlib
import math
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.nodes import (
    IN_OWN_SESSION,
    LOOPBACK,
    Event,
    Member,
    end,
    llama,
    node_command,
    paced,
    write_document,
    write_text,
)

FREEZE_SECONDS = 20.0
LOOK_SECONDS = 0.25
STOP_SECONDS = 60.0
START_SECONDS = 1800.0
"""How long the first peer may take to start, at any speed of the machine."""
MEMORY_EVERY_SECONDS = 5.0
MAX_GROWTH = 0.05
INTERRUPTED = (130, -signal.SIGINT)
"""Exit codes of a peer that was asked to leave while it was starting; the second one before it could take notice."""
REPAIR_ROUNDS = 3
STEADY_EVERY = 4
"""One of so many peers is never killed nor asked to leave."""
TELL_SECONDS = 60.0
LOSSES = 20
"""Rounds whose losses are compared, at the beginning and at the end."""
PROGRAMS = ("adloco_p2p", "benchmarks.paced", "benchmarks.bad_peer", "benchmarks.stranger", "p2pd")
BAD_KINDS = ("nan", "replay", "cut", "garbage", "shape", "foreign", "weight")


@dataclass(kw_only=True, eq=False)
class Peer(Member):
    """One peer of the swarm over all its lives."""

    kind: str = ""
    """The kind of a bad peer; empty for an honest one."""
    is_steady: bool = False
    """Whether it is only ever stopped."""
    frozen_until: float | None = None
    leaving_until: float | None = None
    restarted_at: float | None = None
    """When it was started again, until its next round ends."""
    rounds: dict[tuple[int, int], str] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    memory: list[tuple[float, int]] = field(default_factory=list)
    """Seconds of this life, and its own bytes then."""
    began: float = 0.0
    growths: list[float] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    def start(self) -> Self:
        self.began, self.memory = time.monotonic(), []
        return super().start()

    @property
    def is_undisturbed(self) -> bool:
        return self.is_alive and self.frozen_until is None and self.leaving_until is None

    def note_rounds(self) -> list[Event]:
        """Return the round events since the last call, and keep their digests and losses."""
        events = list(self.new_rounds())
        for event in events:
            self.rounds[event["round"], event["instance"]] = event["digest"]
            if event["loss"] is not None:
                self.losses[event["round"]] = event["loss"]
        return events

    def measure(self) -> None:
        if not self.is_alive or self.frozen_until is not None:
            return
        with contextlib.suppress(psutil.Error):
            self.memory.append((time.monotonic() - self.began, psutil.Process(self.process.pid).memory_full_info().uss))

    def end_life(self, warm_seconds: float) -> None:
        """Note how much memory grew from the end of the warm-up to now."""
        warm = [size for seconds, size in self.memory if seconds >= warm_seconds]
        if len(warm) >= 10:
            fifth = max(1, len(warm) // 5)
            first, last = sorted(warm[:fifth])[fifth // 2], sorted(warm[-fifth:])[fifth // 2]
            self.growths.append(last / first - 1.0)
        self.codes.append(self.process.returncode)


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # peers started by a shell's background job would ignore it
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    say(f"seed {seed}, {arguments.peers} peers, {arguments.minutes:g} minutes, something every {arguments.every:g} s")
    arguments.workdir = arguments.workdir.resolve()
    arguments.workdir.mkdir(parents=True)
    soak = Soak(arguments, random.Random(seed))
    try:
        soak.run()
    finally:
        soak.stop()
    return soak.judge()


class Soak:
    def __init__(self, arguments: argparse.Namespace, chance: random.Random) -> None:
        self.arguments = arguments
        self.chance = chance
        self.folder: Path = arguments.workdir
        self.peers: list[Peer] = []
        self.bad_peers: list[Peer] = []
        self.deeds = dict.fromkeys(("kill", "freeze", "leave"), 0)
        self.newest = -1
        self.progress_at = time.monotonic()
        self.longest_pause = 0.0
        self.orphans: list[str] = []
        self.stubborn: list[str] = []
        """Peers that had not left a minute after being asked to."""
        self.back_seconds: list[float] = []
        self.is_ending = False

    def run(self) -> None:
        step_seconds = self.arguments.step_seconds
        first = begin_peer(self.folder, "peer-0", "start", self._write_config(), step_seconds=step_seconds)
        self.peers.append(first)
        join = ("join", "--initial-peers", *first.addresses(deadline=time.monotonic() + START_SECONDS))
        for index in range(1, self.arguments.peers):
            self.peers.append(begin_peer(self.folder, f"peer-{index}", *join, step_seconds=step_seconds))
            self.peers[-1].is_steady = index % STEADY_EVERY == 1
        for index in range(self.arguments.bad_peers):
            kind = BAD_KINDS[index % len(BAD_KINDS)]
            self.bad_peers.append(begin_peer(self.folder, f"bad-{index}-{kind}", *join, step_seconds=step_seconds, kind=kind))
        end = time.monotonic() + 60.0 * self.arguments.minutes
        next_word = time.monotonic() + TELL_SECONDS
        next_deed = time.monotonic() + self.arguments.every
        next_memory = time.monotonic()
        self.progress_at = time.monotonic()
        while (now := time.monotonic()) < end:
            self._look()
            self._thaw(now)
            self._see_off(now)
            if now >= next_memory:
                next_memory = now + MEMORY_EVERY_SECONDS
                for peer in self.peers:
                    peer.measure()
            if now >= next_deed:
                next_deed = now + self.arguments.every
                self._disturb(now)
            if now >= next_word:
                next_word = now + TELL_SECONDS
                self._tell()
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        self.is_ending = True
        for peer in self.bad_peers:
            peer.kill()
        for peer in self.peers:
            if peer.frozen_until is not None:
                peer.process.send_signal(signal.SIGCONT)
        stubborn = [peer.name for peer, code in zip(self.peers, end(self.peers), strict=True) if code == -signal.SIGKILL]
        for name in stubborn:
            say(f"{name} does not end a minute after it was asked to")
        for peer in self.peers:
            peer.end_life(self.arguments.warm)
        self._look()

    def judge(self) -> int:
        time.sleep(2.0)  # daemons notice that their parents are gone
        left = processes_of(self.folder)
        rounds: dict[tuple[int, int], dict[str, list[str]]] = {}
        for peer in self.peers:
            for key, digest in peer.rounds.items():
                rounds.setdefault(key, {}).setdefault(digest, []).append(peer.name)
        differing = {key: digests for key, digests in rounds.items() if len(digests) > 1}
        unrepaired = [key for key in differing if self._is_unrepaired(key, rounds)]
        growths = [growth for peer in self.peers for growth in peer.growths]
        codes = sorted({code for peer in self.peers for code in peer.codes})
        first, last = self._losses()
        say(f"rounds {self.newest + 1}; longest time without one {self.longest_pause:.1f} s")
        say(f"deeds {self.deeds}; lives {[peer.lives for peer in self.peers]}; exit codes {codes}")
        back = sorted(self.back_seconds)
        say(f"from restart to the next own round: {_spread(back)} s" if back else "nobody was restarted")
        say(f"loss: median {first:.3f} over the first {LOSSES} rounds, {last:.3f} over the last")
        say(f"lives of bad peers: {', '.join(f'{peer.kind} {peer.lives}' for peer in self.bad_peers) or 'there are none'}")
        say(f"differing digests {len(differing)}, unrepaired {len(unrepaired)} {sorted(unrepaired)[:10]}")
        say(
            f"memory growth after {self.arguments.warm:.0f} s of a life: {_spread([100 * g for g in growths])} %"
            if growths
            else "no life was long enough to measure its memory"
        )
        say(f"orphans {len(self.orphans)}, processes left {len(left)}")
        say(f"did not leave within {STOP_SECONDS:.0f} s: {', '.join(self.stubborn) or 'nobody'}")
        for line in [*self.orphans, *left]:
            say(f"  {line}")
        checks = {
            "rounds go on": self.longest_pause <= self.arguments.stuck and self.newest >= 0,
            "same digests": not unrepaired,
            "losses": last < first,
            "memory": all(growth < MAX_GROWTH for growth in growths),
            "no orphans": not self.orphans and not left,
            "leaving": not self.stubborn,
            "exit codes": all(code in (0, -signal.SIGKILL, *INTERRUPTED) for code in codes),
        }
        failed = [name for name, is_good in checks.items() if not is_good]
        say(f"FAILED: {', '.join(failed)}" if failed else f"passed: {', '.join(checks)}")
        return 1 if failed else 0

    def _losses(self) -> tuple[float, float]:
        """Return the medians of the first and the last rounds; NaN where any loss is NaN."""
        by_round: dict[int, float] = {number: loss for peer in self.peers for number, loss in peer.losses.items()}
        losses = [loss for _, loss in sorted(by_round.items())]
        if not losses or not all(math.isfinite(loss) for loss in losses):
            return math.nan, math.nan
        return _median(losses[:LOSSES]), _median(losses[-LOSSES:])

    def _tell(self) -> None:
        sizes = [peer.memory[-1][1] >> 20 for peer in self.peers if peer.memory]
        deeds = ", ".join(f"{count} {deed}" for deed, count in self.deeds.items())
        memory = f"{min(sizes)} to {max(sizes)} MiB" if sizes else "unknown"
        say(f"round {self.newest}, longest wait {self.longest_pause:.0f} s; {deeds}; memory {memory}")

    def _note(self, text: str) -> None:
        with (self.folder / "deeds.txt").open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def _is_unrepaired(self, key: tuple[int, int], rounds: dict[tuple[int, int], dict[str, list[str]]]) -> bool:
        number, instance = key
        later = [rounds.get((number + ahead, instance)) for ahead in range(1, REPAIR_ROUNDS + 1)]
        seen = [digests for digests in later if digests]
        return bool(seen) and all(len(digests) > 1 for digests in seen)

    def _look(self) -> None:
        now = time.monotonic()
        for peer in self.peers:
            for event in peer.note_rounds():
                if peer.restarted_at is not None:
                    self.back_seconds.append(now - peer.restarted_at)
                    peer.restarted_at = None
                if event["round"] > self.newest:
                    self.newest, self.progress_at = event["round"], now
        self.longest_pause = max(self.longest_pause, now - self.progress_at)
        for peer in self.peers:
            if not peer.is_alive and peer.leaving_until is None and not self.is_ending:
                peer.end_life(self.arguments.warm)
                say(f"{peer.name} ended by itself with {peer.codes[-1:]}; started again")
                self._restart(peer)
        for peer in self.bad_peers:
            if not peer.is_alive and not self.is_ending:
                self._note(f"bad peer {peer.kind} ended by itself; started again")
                peer.start()

    def _thaw(self, now: float) -> None:
        for peer in self.peers:
            if peer.frozen_until is not None and now >= peer.frozen_until:
                peer.frozen_until = None
                peer.process.send_signal(signal.SIGCONT)

    def _disturb(self, now: float) -> None:
        able = [peer for peer in self.peers if peer.is_undisturbed and peer.rounds]
        if len(able) <= len(self.peers) // 2 + 1:
            return  # a majority stays
        peer = self.chance.choice(able)
        deed = "freeze" if peer.is_steady else self.chance.choice(sorted(self.deeds))
        self.deeds[deed] += 1
        self._note(f"round {self.newest}: {deed} {peer.name}")
        if deed == "freeze":
            peer.frozen_until = now + FREEZE_SECONDS
            peer.process.send_signal(signal.SIGSTOP)
            return
        if deed == "leave":
            peer.leaving_until = now + STOP_SECONDS
            peer.process.send_signal(signal.SIGINT)
            return
        self._kill(peer)
        self._restart(peer)

    def _kill(self, peer: Peer) -> None:
        peer.kill()
        peer.end_life(self.arguments.warm)
        time.sleep(1.0)  # its daemon notices that its parent is gone
        self.orphans += processes_of(peer.workdir)

    def _see_off(self, now: float) -> None:
        """Start those again that have left on request."""
        for peer in self.peers:
            if peer.leaving_until is None or (peer.is_alive and now < peer.leaving_until):
                continue
            if peer.is_alive:
                self.stubborn.append(f"{peer.name} in round {self.newest}")
                self._kill(peer)
            else:
                peer.end_life(self.arguments.warm)
            peer.leaving_until = None
            self._restart(peer)

    def _restart(self, peer: Peer) -> None:
        peer.restarted_at = time.monotonic()
        peer.start()

    def _write_config(self) -> Path:
        write_text(self.folder)
        document = soak_document(self.folder, inner_steps=self.arguments.inner_steps, instances=self.arguments.instances)
        return write_document(self.folder, document)


def begin_peer(folder: Path, name: str, *arguments: object, step_seconds: float, kind: str = "") -> Peer:
    """Start an honest peer, or a bad one of the kind, whose device takes so long for an inner step. It has a session of its
    own, since Ctrl-C is for this program alone."""
    program = ("benchmarks.bad_peer", kind, step_seconds) if kind else paced(step_seconds)
    command = node_command(*arguments, workdir=folder / name, listen=LOOPBACK, program=program)
    return Peer(workdir=folder / name, command=command, popen=IN_OWN_SESSION, kind=kind).start()


def soak_document(folder: Path, *, inner_steps: int, instances: int) -> dict[str, Any]:
    """Return the configuration of a run that has more rounds than fit into any soak."""
    return {
        "name": "soak",
        "model": {"architecture": llama(width=64, layers=2, heads=2, intermediate=128)},
        "data": {"source": "text", "path": str(folder / "text.txt"), "sequence_length": 64, "heldout_fraction": 0.2},
        "work": {"inner_steps": inner_steps, "rounds": 100_000},
        "instances": {"count": instances},
        "batch": {"initial_batch": 32, "max_batch": 64},
        "merge": {"policy": "none"},
        "admission": {"kind": "open", "probation_rounds": 0},
        "inner": {"learning_rate": 1e-3},
    }


def processes_of(folder: Path) -> list[str]:
    """Return the live processes, daemons among them, that work under the folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or ()
        line = " ".join(words)
        is_peer = any(program in line for program in PROGRAMS)
        if is_peer and any(f"{folder}/" in f"{word}/" for word in words) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line[:200])
    return found


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[0]:.1f} to {ordered[-1]:.1f}, median {ordered[len(ordered) // 2]:.1f}"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A swarm under churn.")
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two deeds")
    parser.add_argument("--bad-peers", type=int, default=0, help="members that misbehave, on top of --peers")
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--inner-steps", type=int, default=40)
    parser.add_argument("--step-seconds", type=float, default=0.1, help="of every peer's device; 0: as fast as it can")
    parser.add_argument("--stuck", type=float, default=60.0, help="seconds without a round that count as stuck")
    parser.add_argument("--warm", type=float, default=600.0, help="seconds of a life before its memory is watched")
    parser.add_argument("--seed", type=int, help="of the deeds; printed")
    parser.add_argument("--workdir", type=Path, required=True, help="new directory")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
