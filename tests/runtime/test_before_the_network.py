"""A device, model or tokenizer that this machine lacks ends the start before the network does anything."""

import asyncio
import io
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import ModelConfig, RunConfig, TokenizerConfig
from adloco_p2p.core.model.events import Durable
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.errors import ConfigError, StorageError, SwarmError
from adloco_p2p.runtime import network_node
from adloco_p2p.runtime.adapters.embedding import Built, Embedding
from adloco_p2p.runtime.services import LocalPeer, open_local
from adloco_p2p.storage.disk import check_room
from adloco_p2p.storage.workdir import Workdir
from adloco_p2p.swarm.discovery.join import JoinTarget
from adloco_p2p.swarm.discovery.manifest import SignedManifest
from adloco_p2p.swarm.p2p.identity import Identity
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode
from adloco_p2p.views.plain import PlainView
from tests.core.core_values import RUN, capacity, peer

SILENT = PlainView(io.StringIO())


def embedding(workdir: Workdir, **more: Any) -> Embedding:
    return Embedding(**{"workdir": workdir, "config": PeerConfig(), "view": SILENT, "say": lambda _: None, **more})


@pytest.mark.parametrize("damage", [b"", b"\xff", b"\x0a\x01x"])
def test_a_damaged_manifest_is_named_and_only_its_author_signs_it_again(damage: bytes, tmp_path: Path) -> None:
    """Nothing, no message, and a message of another content."""
    author = Identity.load_or_create(tmp_path / "identity.key")
    run = RunConfig(author=author.peer_id)
    signed = SignedManifest.sign(run, author)
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.adopt(run)
        assert network_node._load_manifest(workdir) is None
        workdir.save_manifest(signed.to_bytes())
        assert network_node._load_manifest(workdir) == signed
        workdir.manifest_path.write_bytes(damage)
        with pytest.raises(StorageError, match=r"manifest\.bin: damaged"):
            network_node._load_manifest(workdir)
        others = replace(run, name="other")
        with pytest.raises(StorageError, match=r"manifest\.bin: damaged"):
            network_node._own_manifest(embedding(workdir), others, author)
        assert workdir.manifest_path.read_bytes() == damage
        said: list[str] = []
        assert network_node._own_manifest(embedding(workdir, say=said.append), run, author) == signed
        assert workdir.manifest_path.read_bytes() == signed.to_bytes()
        assert said == [f"{workdir.manifest_path}: damaged, and signed again by this peer, the author of the run"]


@pytest.mark.parametrize("verb", ["start", "join"])
def test_a_missing_device_is_noticed_before_the_join_link(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def no_network(**_: object) -> None:
        raise AssertionError("the network was started")

    monkeypatch.setattr(SwarmNode, "start", no_network)
    said: list[str] = []
    with closing(Workdir.open(tmp_path)) as workdir:
        if verb == "start":
            begin = partial(network_node.start_run, run=RunConfig(), initial_peers=())
        else:
            begin = partial(network_node.join_run, target=JoinTarget(initial_peers=(), run=None))
        coroutine = begin(Embedding(workdir=workdir, config=PeerConfig(device="cuda:97"), view=SILENT, say=said.append))
        with pytest.raises(ConfigError, match="device: 'cuda:97'") as refused:
            asyncio.run(coroutine)
    assert refused.value.code == "E210" and said == []


@pytest.mark.parametrize(
    ("run", "code", "setting"),
    [
        (
            RunConfig(model=ModelConfig(pretrained="./nomodel"), tokenizer=TokenizerConfig(source="./nomodel")),
            "E209",
            "model.pretrained",
        ),
        (RunConfig(tokenizer=TokenizerConfig(source="./nowhere")), "E208", "tokenizer.source"),
    ],
)
def test_a_missing_directory_is_noticed_before_the_join_link(
    run: RunConfig, code: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_network(**_: object) -> None:
        raise AssertionError("the network was started")

    monkeypatch.setattr(SwarmNode, "start", no_network)
    with closing(Workdir.open(tmp_path)) as workdir:
        started = network_node.start_run(embedding(workdir), run, initial_peers=())
        with pytest.raises(ConfigError, match=f"{setting}: '\\./no") as refused:
            asyncio.run(started)
    assert refused.value.code == code


class NobodyElse:
    """A node of the network that can be dialled, and has nobody to talk to."""

    def __init__(self, identity: Identity) -> None:
        self.identity, self.me = identity, identity.peer_id

    async def addresses(self) -> list[str]:
        return [f"/ip4/127.0.0.1/tcp/1/p2p/{self.me}"]

    async def describe_reachability(self) -> str:
        return "reachable"

    async def stop(self) -> None:
        """Nothing."""


def refuse(*_: object) -> NoReturn:
    raise ConfigError("model.lora.targets: no layer is called nonsense", code="E209")


@pytest.mark.parametrize("is_built", [False, True])
def test_a_model_that_cannot_be_built_is_noticed_before_the_join_link(
    is_built: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of it, such as names of layers, where the engine begins a new run."""
    said: list[str] = []
    engine = SimpleNamespace(
        snapshot_bytes=0, micro_batch_limit=1, num_parameters=1, device_names=(), start=refuse, release=lambda: None
    )
    with closing(Workdir.open(tmp_path)) as workdir:
        node = NobodyElse(Identity.load_or_create(workdir.identity_path))

        async def start(**_: object) -> NobodyElse:
            return node

        def build(*_: object) -> Built:
            if not is_built:
                refuse()
            return Built(engine=engine, unigram_entropy=None)

        monkeypatch.setattr(SwarmNode, "start", start)
        run = replace(RunConfig(), author=node.me)
        begun = network_node.start_run(embedding(workdir, build=build, say=said.append), run, initial_peers=())
        with pytest.raises(ConfigError, match="nonsense"):
            asyncio.run(begun)
    assert "reachable" in said and not [line for line in said if "adloco://" in line]


def test_checkpoints_that_the_disk_cannot_hold_are_noticed_before_others_are_asked(tmp_path: Path) -> None:
    engine = SimpleNamespace(snapshot_bytes=10**17)
    with closing(Workdir.open(tmp_path)) as workdir, pytest.raises(StorageError) as refused:
        open_local(embedding(workdir, build=lambda *_: Built(engine=engine, unigram_entropy=None)), RunConfig())
    assert refused.value.code == "E420"
    assert "the 3 checkpoints of an instance of this run take 300,000,000,000.0 MB" in str(refused.value)


@pytest.mark.parametrize(("is_keeper", "shown"), [(False, 5), (True, 0)])
def test_a_keeper_names_no_micro_batch(is_keeper: bool, shown: int, tmp_path: Path) -> None:
    engine = SimpleNamespace(snapshot_bytes=0, micro_batch_limit=5, num_parameters=1, device_names=(), release=lambda: None)
    with closing(Workdir.open(tmp_path)) as workdir:
        parts = embedding(workdir, build=lambda *_: Built(engine=engine, unigram_entropy=None))
        parts = replace(parts, config=replace(parts.config, keeper=is_keeper))
        with closing(open_local(parts, RunConfig())) as local:
            assert local.started.micro_batch_limit == shown


def test_a_peer_that_closes_ends_the_processes_of_its_engine_before_its_directory_is_free() -> None:
    names: list[str] = []

    def part(name: str, verb: str = "close") -> SimpleNamespace:
        return SimpleNamespace(**{verb: lambda: names.append(name)})

    own = SimpleNamespace(workdir=part("directory"))
    parts = SimpleNamespace(engine=part("engine", "release"), sink=part("sink"), event_log=part("log"), embedding=own)
    LocalPeer.close(parts)  # type: ignore[arg-type]
    assert names == ["engine", "sink", "log", "directory"]


def test_checkpoints_that_are_there_already_make_room_for_their_successors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(StorageError, match="free some space"):
        check_room(tmp_path / "checkpoints", 130, what="files")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "one").write_bytes(bytes(40))
    check_room(tmp_path / "checkpoints", 130, what="files")


@pytest.mark.parametrize("verb", ["start", "join"])
def test_the_models_libraries_load_while_the_network_is_asked(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_prepared = threading.Event()

    async def answer_then(**_: object) -> SwarmNode:
        assert await asyncio.to_thread(is_prepared.wait, 240)
        raise SwarmError("nobody is there", code="E302")

    monkeypatch.setattr(SwarmNode, "start", answer_then)
    with closing(Workdir.open(tmp_path)) as workdir:
        if verb == "start":
            begin = partial(network_node.start_run, run=RunConfig(), initial_peers=())
        else:
            begin = partial(network_node.join_run, target=JoinTarget(initial_peers=(), run=None))
        with pytest.raises(SwarmError, match="nobody is there"):
            asyncio.run(begin(embedding(workdir, prepare=is_prepared.set)))


@pytest.mark.parametrize(("count", "expected"), [(0, False), (1, False), (2, True)])
def test_a_peer_that_nobody_answers_is_warned_where_its_roster_has_others(count: int, expected: bool) -> None:
    plan = genesis(RUN, [(peer(number), capacity()) for number in range(count)], Rules()) if count else None
    durable = Durable(round=0, plans=(plan,), held=()) if plan is not None else None
    assert network_node.has_others(durable, peer(0)) is expected
