"""The node's side of the control API: authenticates requests and passes them to the node."""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
from google.protobuf import json_format
from grpc import aio

from adloco_p2p.config.peer_config import cap_problem
from adloco_p2p.control import endpoint as endpoints
from adloco_p2p.control.api import API_VERSION, MAX_REPLY_BYTES, MAX_REQUEST_BYTES
from adloco_p2p.control.endpoint import Endpoint, Listen
from adloco_p2p.core.model.commands import Command, known_command
from adloco_p2p.errors import SwarmError
from adloco_p2p.v1 import control_pb2, control_pb2_grpc

MAX_WATCHERS = 16
"""The most watchers at a time; each keeps a queue of events."""
STOP_SECONDS = 2.0
"""How long calls that are under way may take to end with the node."""


class Controlled(Protocol):
    """The status of the node, and the commands that it takes. Called from the event loop, so methods must be quick."""

    def status(self) -> Mapping[str, Any]:
        """Return the fields of `NodeStatus`, by name."""

    def watch(self) -> AsyncIterator[tuple[Sequence[str], bool]]:
        """Yield batches of events as JSON, and whether they are of the past, which comes first; ends with the node."""

    def command(self, name: Command) -> str:
        """Carry out a command; returns what happens now, in words."""

    def set_bandwidth(self, up_bytes_per_second: int | None, down_bytes_per_second: int | None) -> Mapping[str, Any] | None:
        """Change the caps; None keeps one, 0 removes it. Returns the fields of `Traffic`; None where nothing governs the
        traffic."""


class ControlServer:
    """The server of the control API, which listens from `start` to `stop`."""

    def __init__(self, node: Controlled, *, workdir: Path, listen: Listen) -> None:
        self._node = node
        self._workdir = workdir
        self._listen = listen
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises StorageError, and SwarmError where the port is taken."""
        if not self._listen.is_on:
            return
        endpoint = endpoints.choose(self._workdir, self._listen)
        server = aio.server(
            interceptors=(_Guard(endpoint),),
            options=(
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_send_message_length", MAX_REPLY_BYTES),
                ("grpc.so_reuseport", 0),
            ),
        )
        control_pb2_grpc.add_ControlServicer_to_server(_Servicer(self._node), server)
        try:
            port = server.add_insecure_port(endpoint.address)  # never leaves this machine
        except RuntimeError:
            raise SwarmError(
                f"control_address: {endpoint.address} is taken or not allowed; choose another port, or 0 for any", code="E353"
            ) from None
        await server.start()
        self._server = server
        if endpoint.token is not None:
            host = endpoint.address.rpartition(":")[0]
            endpoint = Endpoint(address=f"{host}:{port}", token=endpoint.token)
        endpoints.publish(self._workdir, endpoint)

    async def stop(self) -> None:
        if self._server is not None:
            endpoints.withdraw(self._workdir)
            await self._server.stop(STOP_SECONDS)


class _Guard(aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses requests without the token, where there is one."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._wanted = dict(endpoint.metadata)

        async def refuse(request: object, context: aio.ServicerContext) -> None:
            del request
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong")

        self._refusal = grpc.unary_unary_rpc_method_handler(refuse)

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]], details: Any
    ) -> grpc.RpcMethodHandler:
        sent = dict(details.invocation_metadata)
        for key, wanted in self._wanted.items():
            if not hmac.compare_digest(str(sent.get(key, "")).encode(), wanted.encode()):
                return self._refusal
        return await continuation(details)


class _Servicer(control_pb2_grpc.ControlServicer):  # type: ignore[misc]
    """One method per call of the interface; grpc prescribes their names."""

    def __init__(self, node: Controlled) -> None:
        self._node = node
        self._num_watchers = 0

    async def GetStatus(self, request: Any, context: aio.ServicerContext) -> Any:  # noqa: N802
        await _check_version(request, context)
        fields = {"api_version": API_VERSION, **self._node.status()}
        return json_format.ParseDict(fields, control_pb2.NodeStatus())  # by name; None stands for an absent value

    async def Watch(self, request: Any, context: aio.ServicerContext) -> AsyncIterator[Any]:  # noqa: N802
        await _check_version(request, context)
        if self._num_watchers >= MAX_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHERS} others watch this node already")
        self._num_watchers += 1
        try:
            async for batch, are_past in self._node.watch():
                yield control_pb2.Events(events=batch, are_past=are_past)
        finally:
            self._num_watchers -= 1

    async def Command(self, request: Any, context: aio.ServicerContext) -> Any:  # noqa: N802
        await _check_version(request, context)
        command = known_command(request.command)
        if command is None:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"command {request.command!r}: not known here")
        return control_pb2.CommandReply(words=self._node.command(command))

    async def SetBandwidth(self, request: Any, context: aio.ServicerContext) -> Any:  # noqa: N802
        await _check_version(request, context)
        up = request.up_bytes_per_second if request.HasField("up_bytes_per_second") else None
        down = request.down_bytes_per_second if request.HasField("down_bytes_per_second") else None
        for name, cap in (("up_bytes_per_second", up), ("down_bytes_per_second", down)):
            if cap is not None and (problem := cap_problem(cap)):
                return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{name}: {problem}")
        traffic = self._node.set_bandwidth(up, down)
        if traffic is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "a run without a network has no traffic to cap")
        return json_format.ParseDict(dict(traffic or {}), control_pb2.Traffic())


async def _check_version(request: Any, context: aio.ServicerContext) -> None:
    if request.api_version != API_VERSION:
        await context.abort(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"the node speaks version {API_VERSION} of the control API, the request version {request.api_version}",
        )
