"""The command's side of the control API: finds the node of a working directory and asks it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from adloco_p2p.control import endpoint as endpoints
from adloco_p2p.control.api import API_VERSION, MAX_REPLY_BYTES, plain
from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.telemetry import Stamped
from adloco_p2p.decode import decode_events
from adloco_p2p.errors import NoNodeError, SwarmError
from adloco_p2p.v1 import control_pb2, control_pb2_grpc

TIMEOUT_SECONDS = 10.0
"""How long an answer may take: the node answers from its event loop, which nothing may block for long."""


def starting_status(phase: str) -> dict[str, Any]:
    """Return the fields of `NodeStatus` for a node that cannot be asked yet."""
    return plain(control_pb2.NodeStatus(api_version=API_VERSION, state="starting", phase=phase))


class ControlClient:
    """A connection to the node that runs in `workdir`. Every method raises SwarmError where the node cannot be asked."""

    def __init__(self, workdir: Path) -> None:
        endpoint = endpoints.find(workdir)
        self._workdir = workdir
        self._metadata = endpoint.metadata
        options = (
            ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
            ("grpc.enable_http_proxy", 0),  # the node is on this machine, whatever proxies the environment names
            ("grpc.default_authority", "localhost"),
        )
        self._channel = grpc.insecure_channel(endpoint.address, options)
        self._stub = control_pb2_grpc.ControlStub(self._channel)

    def __enter__(self) -> "ControlClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def status(self) -> dict[str, Any]:
        """Return the fields of `NodeStatus`."""
        with self._explained():
            request = control_pb2.StatusRequest(api_version=API_VERSION)
            return plain(self._stub.GetStatus(request, timeout=TIMEOUT_SECONDS, metadata=self._metadata))

    def watch(self) -> Iterator[tuple[list[Stamped], bool]]:
        """Yield batches of events, and whether they are of the past, which comes first, until the node ends.

        Leaves out events of a node of another version that this version cannot read.
        """
        with self._explained():
            request = control_pb2.WatchRequest(api_version=API_VERSION)
            for batch in self._stub.Watch(request, metadata=self._metadata):
                yield decode_events(batch.events), batch.are_past

    def command(self, name: Command) -> str:
        """Ask the node for a command; returns what happens now, in words."""
        with self._explained():
            request = control_pb2.CommandRequest(api_version=API_VERSION, command=name)
            return str(self._stub.Command(request, timeout=TIMEOUT_SECONDS, metadata=self._metadata).words)

    def set_bandwidth(self, *, up_bytes_per_second: int | None, down_bytes_per_second: int | None) -> dict[str, Any]:
        """Change the caps; None keeps one, 0 removes it. Returns the fields of `Traffic`."""
        with self._explained():
            request = control_pb2.BandwidthRequest(
                api_version=API_VERSION,
                up_bytes_per_second=up_bytes_per_second,
                down_bytes_per_second=down_bytes_per_second,
            )
            return plain(self._stub.SetBandwidth(request, timeout=TIMEOUT_SECONDS, metadata=self._metadata))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an error of grpc into one in words."""
        try:
            yield
        except grpc.RpcError as error:
            raise self._explain(error.code(), error.details()) from None

    def _explain(self, code: grpc.StatusCode, details: str) -> SwarmError:
        where = self._workdir
        match code:
            case grpc.StatusCode.UNAVAILABLE:
                return NoNodeError(f"{where}: the node that ran in this directory does not answer; it has ended")
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return SwarmError(
                    f"{where}: the node did not answer for {TIMEOUT_SECONDS:.0f} s; is it suspended?", code="E351"
                )
            case grpc.StatusCode.UNAUTHENTICATED:
                return SwarmError(f"{where}: the node refuses the token in control/endpoint.json: {details}", code="E352")
            case grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.UNIMPLEMENTED:
                return SwarmError(f"{where}: {details}; use the adloco-peer that started the node", code="E354")
            case _:
                return SwarmError(f"{where}: the node answered: {details}", code="E355")
