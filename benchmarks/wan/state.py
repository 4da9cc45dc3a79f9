"""How fast a joiner gets a state over internet links, from one donor and from several, one of which may lie.

    python -m benchmarks.wan.state --out DIRECTORY [--millions 3] [--donors 4] [--up 10] [--down 100]

Every peer is a process in a namespace of its own, behind an emulated link of 12.5 ms: donors with `--up` Mbit/s up, and a
joiner with `--down` Mbit/s down, which fetches a state of 8 bytes per parameter with the node's own fetcher from the node's
own servers. `of the line`: the rate at which the state came, over the joiner's downlink, or over the uplinks of the honest
donors together where these are less. A donor that lies sends the true index and false chunks. `late` as in
`benchmarks.wan.averaging`.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import torch

from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.numerics.digest import state_digest
from benchmarks.signing import BenchmarkIdentity
from benchmarks.wan.contenders import Director, dial_lower_ranks
from benchmarks.wan.emulator import LaboratoryUnavailable
from benchmarks.wan.lab import Laboratory, Link

ROOT = Path(__file__).parents[2]
INSTANCE, ROUND = InstanceId(0), 1
FETCH_SECONDS = 500.0


# --- a peer ---------------------------------------------------------------------------------------------------------------


async def act(rank: int, listen: str, size: int, cases: list[list[int]]) -> None:
    """The process of the joiner, rank 0, or of a donor. `cases`: the ranks that the joiner fetches from, one after the other;
    the last donor lies."""
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
    server = StateServer(p2p)
    if rank:
        server.offer(INSTANCE, ROUND, root, outer, momentum)
        await server.start()
        if rank == len(names) - 1:
            assert await server._find(root)  # the index is made of the true state
            outer.add_(1.0)
    for case in cases:
        await tell("begin")
        seconds = 0.0
        if not rank:
            here, begun = (torch.zeros(size), torch.zeros(size)), time.monotonic()
            donors = [names[donor] for donor in case]
            await StateFetcher(p2p, server).fetch(
                INSTANCE, ROUND, root, donors, outer=here[0], momentum=here[1], timeout_seconds=FETCH_SECONDS
            )
            seconds = time.monotonic() - begun
            assert torch.equal(here[0], outer) and torch.equal(here[1], momentum)
        await tell("done", seconds)


# --- the laboratory -------------------------------------------------------------------------------------------------------


def _all_tell(pipes: list[tuple[IO[bytes], IO[bytes]]], kind: str) -> list[Any]:
    """What all peers tell, which each of them then learns."""
    values = []
    for rank, (out, _) in enumerate(pipes):
        line = out.readline()
        message = json.loads(line) if line else {"kind": "nothing"}
        if message["kind"] != kind:
            sys.exit(f"peer {rank} tells {message['kind']} where {kind} is next; see its log")
        values.append(message["value"])
    for _, into in pipes:
        into.write(json.dumps(values).encode() + b"\n")
    return values


def measure(args: argparse.Namespace) -> list[dict[str, float]]:
    num_bytes, donors = 8 * round(args.millions * 1e6), list(range(1, args.donors + 1))
    cases = [[1], donors, [*donors, args.donors + 1]]
    links = [Link(name="joiner", up_mbit=args.down, down_mbit=args.down, delay_ms=12.5)]
    links += [Link(name=f"d{rank}", up_mbit=args.up, down_mbit=args.down, delay_ms=12.5) for rank in (*donors, args.donors + 1)]
    pipes, rows = [], []
    with Laboratory(links) as lab:
        for rank, host in enumerate(lab.hosts):
            told = json.dumps({"size": num_bytes // 8, "cases": cases})
            command = [sys.executable, "-m", "benchmarks.wan.state", "--peer", str(rank), lab.address(host), told]
            with (args.out / f"{host}.txt").open("w") as log:
                peer = lab.popen(host, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, bufsize=0)
            assert peer.stdin is not None and peer.stdout is not None
            pipes.append((peer.stdout, peer.stdin))
        for _ in range(2):
            _all_tell(pipes, "share")
        for case in cases:
            before = lab.counters()
            _all_tell(pipes, "begin")
            seconds = _all_tell(pipes, "done")[0]
            after = lab.counters()
            received = after["joiner"].received_packets - before["joiner"].received_packets
            num_honest = len([donor for donor in case if donor in donors])
            rows.append(
                {
                    "donors": len(case),
                    "liars": len(case) - num_honest,
                    "seconds": seconds,
                    "of_the_line": num_bytes * 8e-6 / seconds / min(args.down, num_honest * args.up),
                    "received": (after["joiner"].received_bytes - before["joiner"].received_bytes) / num_bytes,
                    "late": (after["joiner"].late - before["joiner"].late) / max(1, received),
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
    parser.add_argument("--donors", type=int, default=4)
    parser.add_argument("--up", type=float, default=10.0, help="Mbit/s of a donor's uplink")
    parser.add_argument("--down", type=float, default=100.0, help="Mbit/s of every downlink")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        rows = measure(args)
    except LaboratoryUnavailable as error:
        sys.exit(str(error))
    print(f"{'donors':>6}{'liars':>7}{'seconds':>9}{'of the line':>13}{'received':>10}{'late':>7}")
    for row in rows:
        figures = f"{row['seconds']:9.1f}{row['of_the_line']:13.0%}{row['received']:10.2f}{row['late']:7.1%}"
        print(f"{row['donors']:6}{row['liars']:7}{figures}")
    (args.out / "state.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
