"""Messages of the control API as plain values; its version and its limits."""

from typing import Any

from google.protobuf.message import Message

API_VERSION = 3
"""Grows with every change that an older command or node would misunderstand."""
MAX_REQUEST_BYTES = 4096
"""Requests are a few numbers."""
MAX_REPLY_BYTES = 4 << 20
"""A status of a thousand peers, or a batch of events."""


def plain(message: Message) -> dict[str, Any]:
    """Every field by its name, absent ones as none; whole numbers stay whole, which protobuf's own JSON does not do."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)  # the names come from the message's own description
    if field.message_type is not None:
        is_many = not isinstance(value, Message)
        return [plain(item) for item in value] if is_many else plain(value)
    if field.has_presence and not message.HasField(field.name):
        return None
    return value if isinstance(value, (str, int, float, bool)) else list(value)
