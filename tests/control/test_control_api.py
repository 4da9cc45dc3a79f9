"""The control API: a real server and a real client, in one process."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from adloco_p2p.control import client as control_client
from adloco_p2p.control import endpoint
from adloco_p2p.control.api import API_VERSION, MAX_REQUEST_BYTES
from adloco_p2p.control.client import ControlClient
from adloco_p2p.control.endpoint import Endpoint, parse_listen
from adloco_p2p.control.server import MAX_WATCHERS, ControlServer
from adloco_p2p.core.model.commands import COMMANDS
from adloco_p2p.core.model.telemetry import Checkpoint, Resumed, Stamped, Stopped, to_line
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.v1 import control_pb2, control_pb2_grpc
from adloco_p2p.views.node_status import summary
from tests.views.synthetic import events, replay

TRAFFIC = {"sent_bytes": 1 << 40, "received_bytes": 7, "up_cap_bytes_per_second": 5, "down_cap_bytes_per_second": 0}


PAST = [Stamped(time=1.0, event=Resumed(round=0)), Stamped(time=2.0, event=Checkpoint(round=1))]
PRESENT = Stamped(time=3.0, event=Stopped(reason="asked", is_finished=False))


class FakeNode:
    """Says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.caps: tuple[int | None, int | None] | None = None
        self.is_governed = True
        self.is_endless = False

    def status(self) -> Mapping[str, Any]:
        return summary(replay(events()[:-1]))

    async def watch(self) -> AsyncIterator[tuple[Sequence[str], bool]]:
        yield [*map(to_line, PAST), '{"event":"sunrise","time":2}'], True
        yield [], False
        yield [to_line(PRESENT)], False
        if self.is_endless:
            await asyncio.Event().wait()

    def command(self, name: str) -> str:
        self.asked.append(name)
        return f"does {name}"

    def set_bandwidth(self, up_bytes_per_second: int | None, down_bytes_per_second: int | None) -> Mapping[str, Any] | None:
        self.caps = (up_bytes_per_second, down_bytes_per_second)
        return TRAFFIC if self.is_governed else None


def served(node: FakeNode, workdir: Path, ask: Callable[[], object], *, listen: str = "auto") -> object:
    """What `ask`, in a thread, comes to while the node's server runs in an event loop."""

    async def play() -> object:
        server = ControlServer(node, workdir=workdir, listen=parse_listen(listen))
        await server.start()
        try:
            return await asyncio.to_thread(ask)
        finally:
            await server.stop()

    return asyncio.run(play())


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a node that is in order answers late, too."""
    monkeypatch.setattr(control_client, "TIMEOUT_SECONDS", 240.0)


@pytest.fixture
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short enough for a socket."""
    return tmp_path_factory.mktemp("w")


def test_the_status_arrives_whole(workdir: Path) -> None:
    node = FakeNode()

    def ask() -> dict[str, Any]:
        with ControlClient(workdir) as client:
            return client.status()

    assert served(node, workdir, ask) == {"api_version": API_VERSION, **node.status()}


def test_past_and_present_arrive_in_order(workdir: Path) -> None:
    def ask() -> list[tuple[list[Stamped], bool]]:
        with ControlClient(workdir) as client:
            return list(client.watch())

    assert served(FakeNode(), workdir, ask) == [(PAST, True), ([], False), ([PRESENT], False)]


def test_commands_and_caps_reach_the_node(workdir: Path) -> None:
    node = FakeNode()
    names = list(COMMANDS)

    def ask() -> dict[str, Any]:
        with ControlClient(workdir) as client:
            assert [client.command(name) for name in names] == [f"does {name}" for name in names]
            return client.set_bandwidth(up_bytes_per_second=0, down_bytes_per_second=None)

    traffic = served(node, workdir, ask)
    assert node.asked == names
    assert node.caps == (0, None)  # no cap and no change are different things
    assert isinstance(traffic, dict)
    assert {name: traffic[name] for name in TRAFFIC} == TRAFFIC
    assert traffic["budget_left_bytes"] is None


def test_without_a_governor_caps_are_refused(workdir: Path) -> None:
    node = FakeNode()
    node.is_governed = False

    def ask() -> None:
        with ControlClient(workdir) as client:
            client.set_bandwidth(up_bytes_per_second=10_000, down_bytes_per_second=None)

    with pytest.raises(SwarmError, match="no traffic to cap") as caught:
        served(node, workdir, ask)
    assert caught.value.code == "E355"


# --- who may ask -----------------------------------------------------------------------------------------------------


def modes(workdir: Path) -> dict[str, int]:
    folder = workdir / "control"
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}


def test_a_socket_is_its_owners_alone_and_gone_afterwards(workdir: Path) -> None:
    umask = os.umask(0)
    try:
        found = served(FakeNode(), workdir, lambda: modes(workdir))
    finally:
        os.umask(umask)
    assert found == {"control": 0o700, "socket": 0o600, "endpoint.json": 0o600}
    assert modes(workdir) == {"control": 0o700}
    with pytest.raises(SwarmError, match="no node runs") as caught:
        ControlClient(workdir)
    assert caught.value.code == "E225"


def deep(workdir: Path) -> Path:
    return workdir / ("a-long-name" * 10)


@pytest.mark.parametrize(
    ("listen", "place"), [("auto", deep), ("127.0.0.1:0", Path), ("localhost:0", Path)], ids=["long path", "asked", "by name"]
)
def test_loopback_needs_the_token(workdir: Path, listen: str, place: Callable[[Path], Path]) -> None:
    folder = place(workdir)
    folder.mkdir(exist_ok=True)

    def ask() -> tuple[Endpoint, str]:
        with ControlClient(folder) as client:
            assert client.status()["rounds"] == 24
        path = folder / "control" / "endpoint.json"
        document = json.loads(path.read_text())
        found = endpoint.find(folder)
        path.write_text(json.dumps({**document, "token": "guessed"}))
        with ControlClient(folder) as client, pytest.raises(SwarmError, match="token") as caught:
            client.status()
        with ControlClient(folder) as client, pytest.raises(SwarmError, match="token"):
            list(client.watch())
        return found, caught.value.code

    found = served(FakeNode(), folder, ask, listen=listen)
    assert isinstance(found, tuple)
    assert found[0].address.startswith("127.0.0.1:")
    assert found[0].token is not None and len(found[0].token) >= 43
    assert found[1] == "E352"


@pytest.mark.parametrize("setting", ["0.0.0.0:4711", "192.168.1.5:80", "[::]:1", "[2001:db8::1]:1"])
def test_the_network_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="only loopback") as caught:
        parse_listen(setting)
    assert setting in str(caught.value) and caught.value.code == "E220"


@pytest.mark.parametrize("setting", ["", "on", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:65536", "example.org:80", ":80"])
def test_other_addresses_are_refused_in_words(setting: str) -> None:
    with pytest.raises(ConfigError, match="accepted are auto, off, and a loopback address"):
        parse_listen(setting)


@pytest.mark.parametrize(("setting", "address"), [("127.0.0.9:1", "127.0.0.9:1"), ("[::1]:2", "[::1]:2")])
def test_loopback_addresses_are_accepted(setting: str, address: str) -> None:
    assert parse_listen(setting).address == address


def test_off_means_off(workdir: Path) -> None:
    with pytest.raises(SwarmError, match="no node runs"):
        served(FakeNode(), workdir, lambda: ControlClient(workdir), listen="off")


def test_what_a_killed_node_left_is_no_obstacle(workdir: Path) -> None:
    node = FakeNode()
    endpoint.publish(workdir, endpoint.choose(workdir, parse_listen("127.0.0.1:1")))
    (workdir / "control" / "socket").write_bytes(b"")
    with ControlClient(workdir) as client, pytest.raises(SwarmError, match="does not answer") as caught:
        client.status()
    assert caught.value.code == "E225"

    def ask() -> str:
        with ControlClient(workdir) as client:
            return client.command("pause")

    assert served(node, workdir, ask) == "does pause"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"address": "unix"}',
        b"\xff" * 100,
        b'{"address": 7, "token": "t"}',
        b'{"address": "203.0.113.7:80", "token": "t"}',  # of a directory that somebody else made
        b'{"address": "dns:///example.org:80", "token": "t"}',
        b'{"address": "auto", "token": "t"}',  # a setting, but as an address the name of a machine
        b'{"address": "off", "token": "t"}',
    ],
)
def test_a_damaged_endpoint_is_reported_in_words(workdir: Path, content: bytes) -> None:
    (workdir / "control").mkdir()
    (workdir / "control" / "endpoint.json").write_bytes(content)
    with pytest.raises(SwarmError, match="unreadable"):
        ControlClient(workdir)


# --- strange requests ------------------------------------------------------------------------------------------------


def raw(workdir: Path, call: Callable[[Any], object]) -> grpc.RpcError:
    """The error of a call without our client."""

    def ask() -> grpc.RpcError:
        with grpc.insecure_channel(endpoint.find(workdir).address, (("grpc.default_authority", "localhost"),)) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                call(control_pb2_grpc.ControlStub(channel))
            return caught.value

    error = served(FakeNode(), workdir, ask)
    assert isinstance(error, grpc.RpcError)
    return error


def test_another_version_is_refused_in_words(workdir: Path) -> None:
    for call in (
        lambda stub: stub.GetStatus(control_pb2.StatusRequest(api_version=99)),
        lambda stub: stub.Command(control_pb2.CommandRequest(command="drain")),
        lambda stub: list(stub.Watch(control_pb2.WatchRequest(api_version=1))),
        lambda stub: stub.SetBandwidth(control_pb2.BandwidthRequest()),
    ):
        error = raw(workdir, call)
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert f"speaks version {API_VERSION}" in error.details()


@pytest.mark.parametrize("name", ["", "PAUSE", "format the disk"])
def test_an_unknown_command_is_refused(workdir: Path, name: str) -> None:
    request = control_pb2.CommandRequest(api_version=API_VERSION, command=name)
    assert raw(workdir, lambda stub: stub.Command(request)).code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["up_bytes_per_second", "down_bytes_per_second"])
def test_a_cap_that_leaves_nothing_beside_gossip_is_refused_with_its_unit(workdir: Path, name: str) -> None:
    """As on the command line and in the settings, whichever program asks."""
    request = control_pb2.BandwidthRequest(api_version=API_VERSION, **{name: 9_999})
    error = raw(workdir, lambda stub: stub.SetBandwidth(request))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(f"{name}: 9999 ") and "bytes per second from 10000 on" in error.details()


def test_a_long_request_is_refused(workdir: Path) -> None:
    request = control_pb2.StatusRequest(api_version=API_VERSION)
    request.MergeFromString(b"\x9a\x06" + b"\xff\x7f" + b"x" * 16383)  # an unknown field, longer than any request
    assert request.ByteSize() > MAX_REQUEST_BYTES
    assert raw(workdir, lambda stub: stub.GetStatus(request)).code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def watches(client: ControlClient) -> bool:
    """Whether the node has a place for one more."""
    try:
        return next(client.watch())[1]
    except SwarmError:
        return False


def test_the_number_of_watchers_is_limited_and_places_become_free(workdir: Path) -> None:
    node = FakeNode()
    node.is_endless = True

    def ask() -> None:
        with ControlClient(workdir) as client:
            watching = [client.watch() for _ in range(MAX_WATCHERS)]
            for watch in watching:
                next(watch)
            with pytest.raises(SwarmError, match=f"{MAX_WATCHERS} others watch"):
                next(client.watch())
        with ControlClient(workdir) as client:  # the others went with their channel; the node hears of it a moment later
            while not watches(client):
                pass

    served(node, workdir, ask)
