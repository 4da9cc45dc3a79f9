"""A node's interface to the process that it runs in: its directory and settings, the engine, the way to end it, and messages
for its user. The defaults are those of the command; a program that imports the package passes its own."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from adloco_p2p.config.local_files import check_no_program, with_shared_inputs
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.data.feed import IndexedFeed, open_feed
from adloco_p2p.data.tokenizer import open_tokenizer
from adloco_p2p.runtime.adapters import signals
from adloco_p2p.runtime.adapters.first_contribution import process_start
from adloco_p2p.runtime.adapters.imports import collecting_nothing, import_training
from adloco_p2p.runtime.node.event_sink import View
from adloco_p2p.runtime.node.loop import Node
from adloco_p2p.runtime.node.ports import Engine
from adloco_p2p.storage.workdir import Workdir


class LocalEngine(Engine, Protocol):
    """The interface of an engine for the composition roots, which call it before the node runs."""

    @property
    def devices(self) -> tuple[torch.device, ...]: ...

    @property
    def num_parameters(self) -> int: ...

    @property
    def state_dtypes(self) -> tuple[torch.dtype, torch.dtype]: ...

    @property
    def snapshot_bytes(self) -> int: ...

    @property
    def micro_batch_limit(self) -> int: ...

    def num_averaged(self, round: int) -> int: ...

    def start(self, instances: Sequence[InstanceId]) -> None: ...

    def restore(self, instance: InstanceId, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, object]) -> None: ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    engine: LocalEngine
    unigram_entropy: float | None
    """The unigram entropy of the run's text; None if its rows are not indexed, or if instances have own data, because their
    held-out loss is a mean over the data sets."""


def build_hosting(run: RunConfig, peer_config: PeerConfig, me: PeerId, workdir: Workdir) -> Built:
    """Build the engine of the command: the run's model on its data. Raises ConfigError and DeviceError."""
    check_no_program(run.model)
    workdir.enter("importing model code")
    with collecting_nothing():  # first, since imports of `transformers` beside `import_training` would find it half done
        from adloco_p2p.training.hosting import Hosting

        if peer_config.shards > 1:
            from adloco_p2p.training.shards.hosting import ShardedHosting as Hosting
    workdir.enter("reading the text")
    sources = with_shared_inputs(run, workdir.path)
    feed = open_feed(sources, cache_dir=workdir.path / "data")
    workdir.enter("building the model")
    codec = open_tokenizer(sources.tokenizer) if run.evaluation.sample_tokens else None
    engine = Hosting(sources, peer_config, me, feed, codec=codec)
    if not isinstance(feed, IndexedFeed) or run.readers:
        return Built(engine=engine, unigram_entropy=None)
    return Built(engine=engine, unigram_entropy=feed.unigram_entropy(run.evaluation.rows))


def steer_by_signals(node: Node, peer_config: PeerConfig) -> None:
    """Let Ctrl-C and SIGTERM end the node. Called in the main thread's loop."""
    signals.install_for(node, asyncio.get_running_loop(), grace_seconds=peer_config.grace_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """The process around a node."""

    workdir: Workdir
    config: PeerConfig
    view: View
    say: Callable[[str], None]
    """Shows a line to the user."""
    should_gather: bool = False
    """Whether to wait for the other founders after a restart, too."""
    prepare: Callable[[], None] = import_training
    """Loads the libraries that `build` needs. Called in a thread of its own while the node looks for the run."""
    build: Callable[[RunConfig, PeerConfig, PeerId, Workdir], Built] = build_hosting
    steer: Callable[[Node, PeerConfig], None] = steer_by_signals
    """Called in the node's loop just before it runs."""
    began: float = field(default_factory=process_start)
    """When the user's command began, by the monotonic clock."""
    on_link: Callable[[str], None] = lambda _: None
    """Takes the join link for others, with an invitation if this peer is the author."""
