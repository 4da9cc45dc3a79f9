from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Envelope(_message.Message):
    __slots__ = ("protocol_version", "run", "sender", "kind", "payload")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run: bytes
    sender: str
    kind: str
    payload: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., run: _Optional[bytes] = ..., sender: _Optional[str] = ..., kind: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("accepted", "reason")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    def __init__(self, accepted: bool = ..., reason: _Optional[str] = ...) -> None: ...

class ManifestRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    def __init__(self, run: _Optional[bytes] = ...) -> None: ...

class SignedManifest(_message.Message):
    __slots__ = ("manifest", "author", "signature")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    author: str
    signature: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., author: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ManifestReply(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: SignedManifest
    def __init__(self, manifest: _Optional[_Union[SignedManifest, _Mapping]] = ...) -> None: ...

class PingRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class PingReply(_message.Message):
    __slots__ = ("protocol_version", "run", "wall_clock_seconds")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    WALL_CLOCK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run: bytes
    wall_clock_seconds: float
    def __init__(self, protocol_version: _Optional[int] = ..., run: _Optional[bytes] = ..., wall_clock_seconds: _Optional[float] = ...) -> None: ...

class SignedRecord(_message.Message):
    __slots__ = ("payload", "signature")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    signature: bytes
    def __init__(self, payload: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class StateRequest(_message.Message):
    __slots__ = ("protocol_version", "run", "instance", "round", "root")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run: bytes
    instance: int
    round: int
    root: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., run: _Optional[bytes] = ..., instance: _Optional[int] = ..., round: _Optional[int] = ..., root: _Optional[bytes] = ...) -> None: ...

class StateHeader(_message.Message):
    __slots__ = ("refusal", "is_busy", "num_bytes", "num_leaves")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    IS_BUSY_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_LEAVES_FIELD_NUMBER: _ClassVar[int]
    refusal: str
    is_busy: bool
    num_bytes: int
    num_leaves: int
    def __init__(self, refusal: _Optional[str] = ..., is_busy: bool = ..., num_bytes: _Optional[int] = ..., num_leaves: _Optional[int] = ...) -> None: ...
