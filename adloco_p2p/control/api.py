"""Messages of the control API as plain values; its version and its limits."""

from typing import Any

from google.protobuf.message import Message

API_VERSION = 3
"""The version, which grows with every change that an older command or node would misunderstand."""
MAX_REQUEST_BYTES = 4096
"""The largest request: requests are a few numbers."""
MAX_REPLY_BYTES = 4 << 20
"""The largest reply: a status of a thousand peers, or a batch of events."""


def plain(message: Message) -> dict[str, Any]:
    """Return every field by its name, an absent one as None. Whole numbers stay whole, unlike in protobuf's own JSON."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)  # the names come from the message's own description
    if field.message_type is not None:
        is_many = not isinstance(value, Message)
        return [plain(item) for item in value] if is_many else plain(value)
    if field.has_presence and not message.HasField(field.name):
        return None
    return value if isinstance(value, (str, int, float, bool)) else list(value)
