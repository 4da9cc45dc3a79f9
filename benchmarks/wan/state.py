"""How fast joiners get a state over internet links: one from one donor and from several, one of which may lie; or several at
once, which serve each other or do not.

    python -m benchmarks.wan.state --out DIRECTORY [--joiners 1] [--millions 3] [--donors 4] [--up 10] [--down 100]

Every peer is a process in a namespace of its own, behind an emulated link of 12.5 ms: `--up` Mbit/s up and `--down` Mbit/s
down. Joiners fetch a state of 8 bytes per parameter with the node's own fetcher from the node's own servers. Several joiners
begin together, first with the donors only, then with the donors and each other. `seconds`: until the last joiner has the
state. `of the line`: the rate at which the state came to a single joiner, over its downlink, or over the uplinks of the honest
donors together where these are less. `received`: by all joiners, and `donors sent`, in states. A donor that lies sends the true
index and false chunks. `late` as in `benchmarks.wan.averaging`.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from adloco_p2p.core.model.effects import FetchState
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.numerics.digest import state_digest
from adloco_p2p.swarm.transport.endpoint import Endpoint
from benchmarks.averaging_peer import BenchmarkIdentity
from benchmarks.barrier import DirectedPeers, Director, PeerFailed
from benchmarks.contenders import dial_lower_ranks
from benchmarks.wan.lab import Laboratory, Link

INSTANCE, ROUND = InstanceId(0), 1
FETCH_SECONDS = 500.0


# --- a peer ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A measurement: every joiner fetches from these donors and perhaps from the other joiners. Joiners have the first ranks,
    the donor that lies the last one."""

    donors: Sequence[int]
    together: bool = False


async def act(rank: int, listen: str, size: int, num_joiners: int, cases: list[dict[str, Any]]) -> None:
    """Run the process of a joiner or of a donor."""
    from hivemind.p2p import P2P

    from adloco_p2p.swarm.transfer.state_transfer import StateFetcher, StateServer

    torch.set_num_threads(1)
    director, identity = Director(), BenchmarkIdentity()

    async def tell(kind: str, value: Any = None) -> Any:
        return await asyncio.to_thread(director.tell, kind, value)

    p2p = await P2P.create(host_maddrs=[f"/ip4/{listen}/tcp/0"], identity_path=identity.path)
    addresses = await tell("share", [str(address) for address in await p2p.get_visible_maddrs()])
    await dial_lower_ranks(p2p, addresses, rank)
    names = [PeerId(name) for name in await tell("share", p2p.peer_id.to_base58())]
    drawn = torch.Generator().manual_seed(0)
    outer, momentum = (torch.randn(size, generator=drawn) for _ in range(2))
    root = state_digest(outer, momentum)
    endpoint = Endpoint(p2p)
    server = StateServer(endpoint)
    await server.start()
    if rank >= num_joiners:
        server.offer(INSTANCE, ROUND, root, outer, momentum)
        if rank == len(names) - 1:
            assert await server._find(root)  # the index is made of the true state
            outer.add_(1.0)
    for case in (Case(**case) for case in cases):
        await tell("begin")
        seconds = 0.0
        if rank < num_joiners:
            here, begun = (torch.zeros(size), torch.zeros(size)), time.monotonic()
            donors = [*case.donors, *(other for other in range(num_joiners) if case.together and other != rank)]
            from_peers = tuple(sorted(names[donor] for donor in donors))
            asked = FetchState(instance=INSTANCE, round=ROUND, digest=root, from_peers=from_peers)
            await StateFetcher(endpoint, server).fetch(asked, *here, timeout_seconds=FETCH_SECONDS)
            seconds = time.monotonic() - begun
            assert torch.equal(here[0], outer) and torch.equal(here[1], momentum)
            server.offer(INSTANCE, ROUND, root, *here)
        await tell("done", seconds)
        if rank < num_joiners:
            server.withdraw(INSTANCE)


# --- the laboratory -------------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace) -> list[dict[str, float]]:
    """Return the figures of all cases. Raises LaboratoryUnavailable, PeerFailed."""
    num_bytes, first = 8 * round(args.millions * 1e6), args.joiners
    donors = list(range(first, first + args.donors))
    if args.joiners > 1:
        cases = [Case(donors=donors), Case(donors=donors, together=True)]
    else:
        cases = [Case(donors=donors[:1]), Case(donors=donors), Case(donors=[*donors, donors[-1] + 1])]
    joiners, givers = [f"j{rank}" for rank in range(first)], [f"d{rank}" for rank in (*donors, donors[-1] + 1)]
    links = [Link(name=name, up_mbit=args.up, down_mbit=args.down, delay_ms=12.5) for name in (*joiners, *givers)]
    told = json.dumps({"size": num_bytes // 8, "num_joiners": first, "cases": [asdict(case) for case in cases]})
    rows = []
    with Laboratory(links) as lab:
        peers = DirectedPeers(lab.popen, seconds=(len(cases) + 1) * FETCH_SECONDS)
        for rank, host in enumerate(lab.hosts):
            arguments = ("--peer", str(rank), lab.address(host), told)
            peers.begin(host, "benchmarks.wan.state", *arguments, log=args.out / f"{host}.txt")
        for _ in range(2):
            peers.share("share")
        for case in cases:
            before = lab.counters()
            peers.share("begin")
            seconds = max(peers.share("done"))
            after = lab.counters()
            received = sum(after[name].received_packets - before[name].received_packets for name in joiners)
            num_honest = len([donor for donor in case.donors if donor in donors])
            rows.append(
                {
                    "joiners": args.joiners,
                    "together": case.together,
                    "donors": len(case.donors),
                    "liars": len(case.donors) - num_honest,
                    "seconds": seconds,
                    "of_the_line": num_bytes * 8e-6 / seconds / min(args.down, num_honest * args.up),
                    "received": sum(after[name].received_bytes - before[name].received_bytes for name in joiners) / num_bytes,
                    "donors_sent": sum(after[name].sent_bytes - before[name].sent_bytes for name in givers) / num_bytes,
                    "late": sum(after[name].late - before[name].late for name in joiners) / max(1, received),
                }
            )
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--peer"]:
        rank, listen, told = sys.argv[2:]
        asyncio.run(act(int(rank), listen, **json.loads(told)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory for state.json and the logs")
    parser.add_argument("--millions", type=float, default=3.0, help="parameters, in millions")
    parser.add_argument("--joiners", type=int, default=1, help="that begin together")
    parser.add_argument("--donors", type=int, default=4)
    parser.add_argument("--up", type=float, default=10.0, help="Mbit/s of every uplink")
    parser.add_argument("--down", type=float, default=100.0, help="Mbit/s of every downlink")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        rows = measure(args)
    except PeerFailed as error:
        sys.exit(str(error))
    print("joiners  each other  donors  liars  seconds  of the line  received  donors sent   late")
    for row in rows:
        who = f"{row['joiners']:7}{'yes' if row['together'] else 'no':>12}{row['donors']:8}{row['liars']:7}"
        line = f"{row['of_the_line']:13.0%}" if row["joiners"] == 1 else " " * 13
        print(f"{who}{row['seconds']:9.1f}{line}{row['received']:10.2f}{row['donors_sent']:13.2f}{row['late']:7.1%}")
    (args.out / "state.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
