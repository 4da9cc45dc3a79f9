"""The manifest, which is the signed configuration of a run: its author makes it, and every peer fetches and serves it."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from hivemind.p2p import P2P

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.protocol import NEWEST, unfollowed
from adloco_p2p.core.model.scalars import MAX_PEER_ID_CHARS, Digest, PeerId
from adloco_p2p.decode import decode, peek_protocol
from adloco_p2p.errors import ProtocolOutgrown, RemoteProtocolError, RunNotHeld, SwarmError
from adloco_p2p.swarm.p2p.identity import Identity, verify
from adloco_p2p.swarm.transport.gossip import NETWORK_ERRORS, SEND_TIMEOUT_SECONDS, AdlocoGossip, hivemind_id
from adloco_p2p.v1 import gossip_pb2

MAX_MANIFEST_BYTES = 64 * 1024
_MANIFEST_CONTEXT = "manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedManifest:
    """The configuration of a run as its author signed it. A joiner fetches it first, from any peer."""

    manifest: bytes
    """The canonical form of the RunConfig, whose digest is the run."""
    author: PeerId
    signature: bytes

    @classmethod
    def sign(cls, config: RunConfig, author: Identity) -> "SignedManifest":
        manifest = canonical.encode(config)
        return cls(manifest=manifest, author=author.peer_id, signature=author.sign(_MANIFEST_CONTEXT, manifest))

    @property
    def run(self) -> Digest:
        """The digest of this manifest, computed from its bytes."""
        return Digest(hashlib.sha256(self.manifest).hexdigest())

    def verified(self, run: Digest) -> RunConfig:
        """Return the configuration after checking that this is the manifest of `run`, signed by its author.

        Raises RemoteProtocolError; ProtocolOutgrown if the run begins with a protocol too new for this version.
        """
        if len(self.manifest) > MAX_MANIFEST_BYTES:
            raise RemoteProtocolError(f"manifest of {len(self.manifest)} bytes, at most {MAX_MANIFEST_BYTES} accepted")
        if len(self.author) > MAX_PEER_ID_CHARS:
            raise RemoteProtocolError(f"an author of {len(self.author)} characters, at most {MAX_PEER_ID_CHARS} accepted")
        if self.run != run:
            raise RemoteProtocolError(f"the manifest has digest {self.run}, not that of run {run}")
        if not verify(self.author, _MANIFEST_CONTEXT, self.manifest, self.signature):
            raise RemoteProtocolError(f"the manifest of run {run} is not signed by its author {self.author}")
        protocol = peek_protocol(self.manifest)
        if protocol is not None and (words := unfollowed(protocol)):
            raise ProtocolOutgrown(words) if protocol > NEWEST else RemoteProtocolError(words)
        config: RunConfig = decode(RunConfig, self.manifest, max_bytes=MAX_MANIFEST_BYTES)
        if config.author != self.author:
            raise RemoteProtocolError(
                f"the manifest of run {run} is signed by {self.author}, its author is {config.author[:64]}"
            )
        return config

    def to_proto(self) -> gossip_pb2.SignedManifest:
        return gossip_pb2.SignedManifest(manifest=self.manifest, author=self.author, signature=self.signature)

    @classmethod
    def from_proto(cls, message: gossip_pb2.SignedManifest) -> "SignedManifest":
        return cls(manifest=message.manifest, author=PeerId(message.author), signature=message.signature)

    def to_bytes(self) -> bytes:
        """Encode the manifest for the disk."""
        return bytes(self.to_proto().SerializeToString(deterministic=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> "SignedManifest":
        """Decode `to_bytes`. Raises RemoteProtocolError."""
        try:
            return cls.from_proto(gossip_pb2.SignedManifest.FromString(data))
        except DecodeError:
            raise RemoteProtocolError("not a signed manifest") from None


_NOT_SERVED = "protocols not supported"
"""libp2p's answer of a peer that is there but serves no run."""


async def fetch_manifest(p2p: P2P, peers: Iterable[PeerId], run: Digest) -> SignedManifest:
    """Fetch the manifest of `run` from the first of `peers` that has it, and verify its digest and signature. Raises
    SwarmError; RunNotHeld if all of them answer that they do not have it."""
    problems = []
    num_without = 0
    for peer in peers:
        request = gossip_pb2.ManifestRequest(run=bytes.fromhex(run))
        try:
            reply = await AdlocoGossip.get_stub(p2p, hivemind_id(peer)).rpc_manifest(request, timeout=SEND_TIMEOUT_SECONDS)
            if not reply.HasField("manifest"):
                num_without += 1
                raise RemoteProtocolError("does not hold it")
            manifest = SignedManifest.from_proto(reply.manifest)
            manifest.verified(run)
        except (RemoteProtocolError, *NETWORK_ERRORS) as error:
            is_elsewhere = _NOT_SERVED in str(error)
            problems.append(
                f"  {peer}: {'a bootstrap, or a node that is still starting' if is_elsewhere else error or 'no answer'}"
            )
        else:
            return manifest
    raise (RunNotHeld if problems and num_without == len(problems) else SwarmError)(
        f"no peer could give the manifest of run {run}:\n" + "\n".join(problems or ["  no peer is known"]), code="E304"
    )
