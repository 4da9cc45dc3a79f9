"""Does a volunteer behind a NAT take part, with the defaults?

    python -m benchmarks.wan.nat --out DIRECTORY [--homes 2] [--nat cone|symmetric] [--public-peers 1] [--rounds 4]
                                 [--peer-set KEY=VALUE ...] [--minutes 4]

Lays a small internet of network namespaces: a bridge with public addresses, and homes, each a router that masquerades for one
machine with a private address. A bootstrap and `--public-peers` peers have public addresses; each home holds one peer. The
first peer starts a run through the bootstrap, the others join it. All are `adloco-peer` with default settings, but for what
`--peer-set` changes in the homes.

`cone`: the router keeps the port of a connection where it can, so that hole punching may work. `symmetric`: it draws a new port
for every connection, so that only relays help. Both let nothing in that was not asked for.

First it shows what `adloco-peer doctor` says in the first home. Afterwards the peers' own event files and ledgers are judged as
in `benchmarks.wan.swarm`; it ends with 1 where a promise is broken. Needs Linux, root, unshare, nsenter, ip and iptables.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from benchmarks.nodes import (
    ENVIRONMENT,
    LOOK_SECONDS,
    ROOT,
    Member,
    begin,
    end_on_sigterm,
    new_directory,
    problems_of,
    write_config,
)
from benchmarks.wan.swarm import judged
from benchmarks.wan.verdict import Verdict, show_promises

NatKind = Literal["cone", "symmetric"]
PUBLIC = "45.10.0.{}"
"""Addresses that libp2p takes for public ones; they exist in the namespaces only."""
PUBLIC_PORT = 31337
GRACE_SECONDS = 10.0
DOCTOR_SECONDS = 120.0
NEEDED = ("unshare", "nsenter", "ip", "iptables")


class Internet:
    """A bridge with public hosts, and homes behind masquerading routers. Its namespaces have no names: each one belongs to a
    process that ends with its input, so that nothing outlives the program that made them."""

    def __init__(self, *, public: Sequence[str], homes: Sequence[str], nat: NatKind) -> None:
        self._public = tuple(public)
        self._homes = tuple(homes)
        self._nat = nat
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        missing = [name for name in NEEDED if shutil.which(name) is None]
        if missing or os.geteuid() != 0:
            sys.exit(f"this needs root, and {', '.join(NEEDED)}; missing: {', '.join(missing) or 'root'}")
        try:
            self._lay()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for ending in (signal.SIGTERM, signal.SIGKILL):
            for process in self._started:
                if process.poll() is None:
                    process.send_signal(ending)
            deadline = time.monotonic() + GRACE_SECONDS
            while any(process.poll() is None for process in self._started) and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
        self._remove()

    def address(self, host: str) -> str:
        """Return the address at which the world sees a public host, or a home's router."""
        return PUBLIC.format(1 + [*self._public, *self._homes].index(host))

    def popen(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        process = subprocess.Popen([*self._inside(host), *argv], start_new_session=True, **options)
        self._started.append(process)
        return process

    def _lay(self) -> None:
        self._hold("bridge")
        self._do("bridge", "ip link add br0 type bridge", "ip link set br0 up")
        for host in self._public:
            self._hold(host)
            self._plug(host, "eth0", self.address(host))
        for number, home in enumerate(self._homes, 1):
            router, inner = f"router-{home}", f"192.168.{number}"
            self._hold(router)
            self._hold(home)
            self._plug(router, "wan", self.address(home))
            self._do(
                router,
                f"ip link add lan type veth peer name eth0 netns {self._holders[home].pid}",
                f"ip addr add {inner}.1/24 dev lan",
                "ip link set lan up",
                "sysctl -qw net.ipv4.ip_forward=1",
                "iptables -t nat -A POSTROUTING -o wan -p tcp -j MASQUERADE" + self._port_choice,
                "iptables -t nat -A POSTROUTING -o wan -j MASQUERADE" + self._port_choice,
                "iptables -P FORWARD DROP",
                "iptables -A FORWARD -i lan -j ACCEPT",
                "iptables -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
                "iptables -P INPUT DROP",
                "iptables -A INPUT -i lan -j ACCEPT",
                "iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            )
            self._do(home, f"ip addr add {inner}.2/24 dev eth0", "ip link set eth0 up", f"ip route add default via {inner}.1")

    @property
    def _port_choice(self) -> str:
        return " --random-fully" if self._nat == "symmetric" else ""

    def _hold(self, name: str) -> None:
        before = Path("/proc/self/ns/net").stat().st_ino
        holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._holders[name] = holder
        while Path(f"/proc/{holder.pid}/ns/net").stat().st_ino == before:
            time.sleep(LOOK_SECONDS)
        self._do(name, "ip link set lo up")

    def _plug(self, host: str, interface: str, address: str) -> None:
        port = f"port{len(self._holders)}"
        self._do(
            "bridge",
            f"ip link add {port} type veth peer name {interface} netns {self._holders[host].pid}",
            f"ip link set {port} master br0",
            f"ip link set {port} up",
        )
        self._do(host, f"ip addr add {address}/16 dev {interface}", f"ip link set {interface} up")

    def _inside(self, name: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._holders[name].pid}/ns/net", "--"]

    def _do(self, name: str, *commands: str) -> None:
        for command in commands:
            subprocess.run([*self._inside(name), *command.split()], check=True)

    def _remove(self) -> None:
        for holder in self._holders.values():
            assert holder.stdin is not None
            holder.stdin.close()
            holder.wait(timeout=GRACE_SECONDS)


def begin_in(net: Internet, out: Path, host: str, verb: str, *arguments: object) -> Member:
    command = [sys.executable, "-m", "adloco_p2p", verb, *map(str, arguments), "--workdir", str(out / host)]
    return begin(out, host, command, popen=partial(net.popen, host))


TRAINS = ("--plain", "--peer-set", "num_threads=1", "allow_local_files=true")
"""Arguments of every peer: the text of the run is a file of this machine."""


def ask_doctor(net: Internet, host: str, known: Sequence[str]) -> None:
    """Print the doctor's advice to the volunteer in this home before joining."""
    command = [sys.executable, "-m", "adloco_p2p", "doctor", *known]
    told = net.popen(host, command, stdout=subprocess.PIPE, text=True, env={**os.environ, **ENVIRONMENT}, cwd=ROOT)
    print(f"doctor in {host}:\n{told.communicate(timeout=DOCTOR_SECONDS)[0]}", flush=True)


def conduct(args: argparse.Namespace, config: Path) -> tuple[list[Member], list[str]]:
    """Run the swarm to its end, or to the end of its time. Also returns what went wrong with the processes."""
    deadline = time.monotonic() + 60 * args.minutes
    publics = [f"public-{index}" for index in range(args.public_peers)]
    homes = [f"home-{index}" for index in range(args.homes)]
    with Internet(public=["bootstrap", *publics], homes=homes, nat=args.nat) as net:
        listen = ["--host-maddrs", f"/ip4/0.0.0.0/tcp/{PUBLIC_PORT}"]
        bootstrap = begin_in(net, args.out, "bootstrap", "bootstrap", *listen)
        known = ["--initial-peers", *bootstrap.addresses(deadline=deadline)]
        hosts = [*publics, *homes]
        members: list[Member] = []
        for host in hosts:
            verb = ["start", config] if not members else ["join"]
            extra = args.peer_set if host in homes else []
            members.append(begin_in(net, args.out, host, *verb, *known, *TRAINS, *extra))
            members[0].addresses(deadline=deadline)
        for host in homes[:1]:
            ask_doctor(net, host, known)
        while any(member.is_alive for member in members) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return members, problems_of(members, minutes=args.minutes)


def show(members: Sequence[Member], verdict: Verdict) -> None:
    print("round shares in avg digests")
    for done in verdict.rounds:
        print(f"{done.round:5} {done.num_shares:6} {done.num_contributors:6} {done.num_digests:7}")
    for member in members:
        counted = [event for event in member.events() if event["event"] == "round"]
        averages = [verdict_round for verdict_round in verdict.rounds if verdict_round.num_contributors > 1]
        print(f"{member.name}: {len(counted)} rounds; the swarm averaged in {len(averages)}")
        for event in member.events():
            if event["event"] == "warning" and event["key"].startswith("connection"):
                since = event["time"] - member.events()[0]["time"]
                print(f"  {since:5.0f} s  {event['key'][-8:]} {'unreached' if event['active'] else 'reached'}")
    show_promises(verdict)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="new directory for nat.json, the logs and the workdirs")
    parser.add_argument("--homes", type=int, default=1, help="peers behind a NAT, each behind its own")
    parser.add_argument("--public-peers", type=int, default=2)
    parser.add_argument("--nat", default="cone", choices=get_args(NatKind))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--inner-steps", type=int, default=48, help="how long a round computes")
    parser.add_argument("--peer-set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the peers in homes")
    parser.add_argument("--minutes", type=float, default=4.0, help="the swarm is ended after this time")
    args = parser.parse_args()
    args.out = new_directory(parser, args.out)
    end_on_sigterm()
    config = write_config(
        args.out, "nat", rounds=args.rounds, inner_steps=args.inner_steps, width=96, layers=3, equal_shares=False
    )
    members, problems = conduct(args, config)
    verdict = judged(members, problems, rounds=args.rounds)
    show(members, verdict)
    document = {"homes": args.homes, "nat": args.nat, "public_peers": args.public_peers, **asdict(verdict)}
    (args.out / "nat.json").write_text(json.dumps(document, indent=1) + "\n")
    return 1 if verdict.broken else 0


if __name__ == "__main__":
    sys.exit(main())
