"""The pretrained model of a run whose peers share it: fetched before anything is built, and served while the node runs."""

from pathlib import Path

from adloco_p2p.config.local_files import SHARED_BASE, needs_shared_base, with_shared_base
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.runtime.adapters.embedding import Embedding
from adloco_p2p.swarm.discovery.join import connect_to_run
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode
from adloco_p2p.swarm.transfer.chunk_server import ChunkServer
from adloco_p2p.swarm.transfer.file_transfer import fetch_files, file_server
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.rate_limiter import RateLimiter
from adloco_p2p.swarm.transport.traffic import Traffic


async def get_base(
    swarm_node: SwarmNode, discovery: Discovery, run: RunConfig, embedding: Embedding, *, digest: Digest
) -> None:
    """Fetch the pretrained model into the working directory, if this machine needs it and lacks it. `digest` is the run's."""
    machine, directory = embedding.config, embedding.workdir.path / SHARED_BASE
    if not needs_shared_base(run, machine) or directory.is_dir():
        return
    embedding.workdir.enter("fetching the pretrained model")
    known = await connect_to_run(swarm_node, discovery, digest, should_retry=True)
    donors = list(dict.fromkeys([*known.connected, *await swarm_node.peers_connected()]))
    up, down = machine.upload_bytes_per_second, machine.download_bytes_per_second
    pace = RateLimiter(Traffic(), up_bytes_per_second=up, down_bytes_per_second=down)
    endpoint = Endpoint(swarm_node.p2p, pace=pace)
    await fetch_files(endpoint, Digest(run.model.files), directory, donors, say=embedding.say)


def base_servers(endpoint: Endpoint, run: RunConfig, workdir: Path) -> list[ChunkServer]:
    """Return the server of the pretrained model; none if the run does not share it."""
    if not run.model.share:
        return []
    directory = Path(with_shared_base(run, workdir).model.pretrained or "")
    return [file_server(endpoint, Digest(run.model.files), directory)]
