"""Fetches the pretrained model and the text of a run from peers before anything is built, and serves them from then on."""

from datetime import datetime
from pathlib import Path

from adloco_p2p.config.local_files import (
    SHARED_MODEL,
    SHARED_TEXT,
    needs_shared_model,
    needs_shared_text,
    with_shared_inputs,
)
from adloco_p2p.config.run_config import DataConfig, RunConfig
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.data.source import local_files
from adloco_p2p.runtime.adapters.daily_schedule import DAY_BOOK, DayBook
from adloco_p2p.runtime.adapters.embedding import Embedding
from adloco_p2p.swarm.discovery.join import connect_to_run
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode
from adloco_p2p.swarm.transfer.chunk_server import ChunkServer
from adloco_p2p.swarm.transfer.file_transfer import (
    JSON,
    MODEL,
    TEXT,
    FileKind,
    NamedFiles,
    check_text,
    fetch_files,
    file_server,
    files_root,
    model_files,
    text_files,
)
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.rate_limiter import RateLimiter
from adloco_p2p.swarm.transport.traffic import Traffic


def text_root(data: DataConfig) -> Digest:
    """Return the root by which the author's run names its text. Raises ConfigError where it cannot be shared."""
    kind, files = _text_kind(data), _own_text(data)
    check_text(kind, files)
    return files_root(kind, files)


def model_root(directory: Path) -> Digest:
    """Return the root by which the author's run names the files of its model. Raises ConfigError."""
    return files_root(MODEL, model_files(directory))


async def get_shared_inputs(
    swarm_node: SwarmNode, discovery: Discovery, run: RunConfig, embedding: Embedding, *, digest: Digest
) -> None:
    """Fetch into the working directory what this machine needs and does not have yet. `digest` is that of the run."""
    machine, workdir = embedding.config, embedding.workdir
    wanted: list[tuple[FileKind, str, Path]] = []
    if needs_shared_model(run, machine):
        wanted.append((MODEL, run.model.files, workdir.path / SHARED_MODEL))
    if needs_shared_text(run, machine):
        wanted.append((_text_kind(run.data), run.data.files, workdir.path / SHARED_TEXT))
    wanted = [(kind, root, directory) for kind, root, directory in wanted if not directory.is_dir()]
    if not wanted:
        return
    workdir.enter(f"fetching the {wanted[0][0].noun}")
    known = await connect_to_run(swarm_node, discovery, digest, should_retry=True)
    donors = list(dict.fromkeys([*known.connected, *await swarm_node.peers_connected()]))
    up, down = machine.upload_bytes_per_second, machine.download_bytes_per_second
    traffic = Traffic()
    pace = RateLimiter(traffic, up_bytes_per_second=up, down_bytes_per_second=down)
    endpoint = Endpoint(swarm_node.p2p, pace=pace, meter=traffic.state)
    try:
        for kind, root, directory in wanted:
            workdir.enter(f"fetching the {kind.noun}")
            await fetch_files(endpoint, kind, Digest(root), directory, donors, say=embedding.say)
    finally:
        if machine.daily_budget_bytes:  # the node, which counts only its own bytes, reads the book when it begins
            DayBook(workdir.path / DAY_BOOK).used(datetime.now().astimezone(), sum(traffic.total))


def input_servers(endpoint: Endpoint, run: RunConfig, workdir: Path) -> list[ChunkServer]:
    """Return the server of both; none where the run shares neither."""
    shared: dict[Digest, tuple[FileKind, NamedFiles]] = {}
    if run.model.share:
        directory = Path(with_shared_inputs(run, workdir).model.pretrained or "")
        shared[Digest(run.model.files)] = (MODEL, model_files(directory))
    if run.data.share:
        fetched = workdir / SHARED_TEXT
        kind = _text_kind(run.data)
        shared[Digest(run.data.files)] = (kind, kind.held(fetched) if fetched.is_dir() else _own_text(run.data))
    return [file_server(endpoint, shared)] if shared else []


def _text_kind(data: DataConfig) -> FileKind:
    return JSON if data.source == "json" else TEXT


def _own_text(data: DataConfig) -> NamedFiles:
    return text_files(_text_kind(data), local_files(data))
