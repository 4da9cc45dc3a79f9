"""Does the emulator do what it is set to? Wanted against measured, in under a minute.

    python -m benchmarks.wan.check

Ends with 1 if something is outside its tolerance. A machine that does much else at the same time fails with reason.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.wan.emulator import LaboratoryUnavailable
from benchmarks.wan.lab import Border, Laboratory, Link

ROOT = Path(__file__).parents[2]
PAYLOAD = 1448 / 1500
"""The part of an Ethernet-sized packet that is payload of TCP with timestamps."""
PING_PORT, TCP_PORT = 7001, 7002
PROBE_SECONDS = 30.0
NUM_LOSS_PROBES = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    what: str
    unit: str
    wanted: float
    measured: float
    least: float
    most: float

    @property
    def is_good(self) -> bool:
        return self.least <= self.measured <= self.most

    def __str__(self) -> str:
        verdict = "ok" if self.is_good else "WRONG"
        bounds = f"{self.least:.4g} to {self.most:.4g}"
        return f"{self.what:48} {self.wanted:8.2f} {self.measured:9.2f}  {bounds:18} {self.unit:7} {verdict}"


def near(what: str, unit: str, wanted: float, measured: float, tolerance: float) -> Check:
    least, most = round(wanted - tolerance, 6), round(wanted + tolerance, 6)
    return Check(what=what, unit=unit, wanted=wanted, measured=measured, least=least, most=most)


def probe(*words: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.wan.probes", *map(str, words)]


def serve(lab: Laboratory, host: str) -> None:
    """Start programs that answer pings and take TCP streams."""
    for words in (("echo", PING_PORT), ("sink", TCP_PORT)):
        server = lab.popen(host, probe(*words), stdout=subprocess.PIPE, cwd=ROOT)
        assert server.stdout is not None
        if not server.stdout.readline():
            raise LaboratoryUnavailable(f"the probe {words} did not start")


def ask(lab: Laboratory, host: str, *words: object) -> dict[str, Any]:
    done = lab.run(host, probe(*words), timeout_seconds=PROBE_SECONDS, stdout=subprocess.PIPE, cwd=ROOT)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def ping(lab: Laboratory, source: str, target: str, *, count: int = 40, interval_seconds: float = 0.01) -> dict[str, Any]:
    return ask(lab, source, "ping", lab.address(target), PING_PORT, count, interval_seconds)


def stream(lab: Laboratory, source: str, target: str, *, seconds: float, flows: int = 1) -> float:
    """Return the Mbit/s of payload."""
    return float(ask(lab, source, "stream", lab.address(target), TCP_PORT, seconds, flows)["mbit"])


def rtt_ms(answer: dict[str, Any]) -> float:
    return 1e3 * float(median(answer["rtt_seconds"]))


def asymmetric() -> Iterator[Check]:
    """Check a home connection, its queue, a partition, and a link that changes."""
    home = Link(name="home", up_mbit=10, down_mbit=100, delay_ms=20, queue_kb=64)
    rented = Link(name="rented", up_mbit=100, down_mbit=100, delay_ms=5)
    third = Link(name="third", up_mbit=100, down_mbit=100, delay_ms=1)
    with Laboratory([home, rented, third]) as lab:
        for host in ("home", "rented"):
            serve(lab, host)
        yield near("round trip, 20 + 5 ms each way", "ms", 50, rtt_ms(ping(lab, "home", "rented")), 1.5)
        yield near("round trip from a third host, 1 + 5 ms", "ms", 12, rtt_ms(ping(lab, "third", "rented")), 1.5)
        yield near("one TCP flow down, 100 Mbit/s", "Mbit/s", 100 * PAYLOAD, stream(lab, "rented", "home", seconds=5), 7)
        with lab.popen("home", probe("stream", lab.address("rented"), TCP_PORT, 5, 1), stdout=subprocess.PIPE, cwd=ROOT) as up:
            full = ping(lab, "home", "rented", count=400)
            out, _ = up.communicate(timeout=PROBE_SECONDS)
        yield near("one TCP flow up, 10 Mbit/s", "Mbit/s", 10 * PAYLOAD, json.loads(out)["mbit"], 0.7)
        full_ms = 50 + 1e3 * home.queue_kb * 1024 / (home.up_mbit * 125_000)
        # The flow fills its queue, loses a packet and slows down. The longest time of all would show this machine's scheduler.
        longest_ms = 1e3 * quantiles(full["rtt_seconds"], n=20)[-1]
        yield near("long round trips (95 %), a full queue of 64 KiB", "ms", full_ms, longest_ms, 10)
        lab.partition([["home", "third"], ["rented"]])
        yield near("answers from across a partition, of 40", "", 0, len(ping(lab, "home", "rented")["answered"]), 0)
        lab.heal()
        yield near("answers after it has healed, of 40", "", 40, len(ping(lab, "home", "rented")["answered"]), 0)
        lab.cut("third", "home")
        yield near("answers over a cut pair, of 40", "", 0, len(ping(lab, "third", "home")["answered"]), 0)
        yield near("answers to another host meanwhile, of 40", "", 40, len(ping(lab, "third", "rented")["answered"]), 0)
        lab.change(Link(name="home", up_mbit=10, down_mbit=100, delay_ms=40, jitter_ms=10))
        jittery = ping(lab, "home", "rented", count=200)
        yield near("round trip, now 40 + 5 ms and up to 10 of jitter", "ms", 100, rtt_ms(jittery), 2.5)
        late = sum(counters.late for counters in lab.counters().values())
        carried = sum(counters.received_packets for counters in lab.counters().values())
        yield Check(what="packets over 2 ms late", unit="%", wanted=0, measured=100 * late / carried, least=0, most=5)


def islands() -> Iterator[Check]:
    """Check two islands of two: what is fast inside shares one link to the other island, in each direction."""
    links = [Link(name=name, up_mbit=200, down_mbit=200, delay_ms=0.5) for name in "abcd"]
    border = Border(islands=("ab", "cd"), mbit=20, delay_ms=25, queue_kb=256)
    with Laboratory(links, border=border) as lab:
        for host in "bcd":
            serve(lab, host)
        yield near("round trip inside an island, 0.5 + 0.5 ms", "ms", 2, rtt_ms(ping(lab, "a", "b")), 1.5)
        yield near("round trip between islands, 25 ms more each way", "ms", 52, rtt_ms(ping(lab, "a", "c")), 1.5)
        yield near("one TCP flow inside, 200 Mbit/s", "Mbit/s", 200 * PAYLOAD, stream(lab, "a", "b", seconds=3), 20)
        yield near("one TCP flow between islands, 20 Mbit/s", "Mbit/s", 20 * PAYLOAD, stream(lab, "a", "c", seconds=6), 1.5)
        before = lab.counters()
        there, back, inside = together(lab, ("ac", "bd"), seconds=8), together(lab, ("ac", "db"), seconds=8), lab.counters()
        yield near("two flows of two pairs, the same way: in all", "Mbit/s", 20 * PAYLOAD, sum(there), 1.5)
        yield near("two flows, one each way: the first", "Mbit/s", 20 * PAYLOAD, back[0], 4)
        yield near("two flows, one each way: the second", "Mbit/s", 20 * PAYLOAD, back[1], 4)
        sent = sum(inside[host].crossed_bytes - before[host].crossed_bytes for host in "ab") * 8e-6
        yield near("what left the first island, of 16 s at 20 Mbit/s", "Mbit", 320, sent, 40)


def together(lab: Laboratory, pairs: Sequence[str], *, seconds: float) -> list[float]:
    """Return the Mbit/s of payload of a flow from one host to another for each pair, all at once."""
    flows = [
        lab.popen(pair[0], probe("stream", lab.address(pair[1]), TCP_PORT, seconds, 1), stdout=subprocess.PIPE, cwd=ROOT)
        for pair in pairs
    ]
    return [float(json.loads(flow.communicate(timeout=PROBE_SECONDS)[0])["mbit"]) for flow in flows]


def lossy() -> Iterator[Check]:
    """Check 1 % loss one way: the right number of lost packets, and with the same seed the same ones."""
    answered = []
    for seed in (1, 1, 2):
        links = [Link(name=name, up_mbit=100, down_mbit=100, delay_ms=5, loss=loss) for name, loss in (("a", 0.01), ("b", 0))]
        with Laboratory(links, seed=seed) as lab:
            serve(lab, "b")
            answered.append(ping(lab, "a", "b", count=NUM_LOSS_PROBES, interval_seconds=4e-4)["answered"])
            counted = lab.counters()["a"].lost
    first, again, other = answered
    lost = 100 * (1 - len(first) / NUM_LOSS_PROBES)
    yield near(f"loss of {NUM_LOSS_PROBES} packets", "%", 1, lost, 0.45)  # three standard deviations
    yield near("lost, as the emulator counts, against as seen", "", NUM_LOSS_PROBES - len(other), counted, 0)
    yield near("differences with the same seed", "", 0, len(set(first) ^ set(again)), 0)
    yield Check(
        what="differences with another seed",
        unit="",
        wanted=0.02 * NUM_LOSS_PROBES,
        measured=len(set(first) ^ set(other)),
        least=1,
        most=0.04 * NUM_LOSS_PROBES,
    )


def fast() -> Iterator[Check]:
    """Check as much traffic as this machine can carry."""
    links = [Link(name=name, up_mbit=1000, down_mbit=1000, delay_ms=2.5, queue_kb=1024) for name in "ab"]
    with Laboratory(links) as lab:
        serve(lab, "b")
        mbit = stream(lab, "a", "b", seconds=4, flows=4)
    wanted = 1000 * PAYLOAD
    yield Check(what="four TCP flows, 1 Gbit/s", unit="Mbit/s", wanted=wanted, measured=mbit, least=400, most=wanted + 20)


def main() -> None:
    print(f"{'':48} {'wanted':>8} {'measured':>9}  tolerance")
    checks = []
    for group in (asymmetric, islands, lossy, fast):
        for check in group():
            print(check, flush=True)
            checks.append(check)
    sys.exit(not all(check.is_good for check in checks))


if __name__ == "__main__":
    main()
