"""Reads `events.jsonl`: one JSON object a line, in the order in which things happened."""

import json
from pathlib import Path

from adloco_p2p.errors import ConfigError
from adloco_p2p.views.records import Event
from adloco_p2p.views.status import Status, apply


def read_events(path: Path) -> list[Event]:
    """Return all events of the file. A torn last line (the process was killed while writing it) is omitted.

    Raises ConfigError, naming the file: missing, unreadable, empty, or a line that is not an event.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"--workdir {path.parent}: no events of a run lie here ({path.name} is missing); name the working directory of a"
            " peer that has trained",
            code="E212",
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: the events of the run cannot be read: {error.strerror}", code="E212") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not an event file: no text at byte {error.start}", code="E212") from None
    lines = text.splitlines()
    is_torn = not text.endswith("\n")
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        event = _event(line)
        if event is not None:
            events.append(event)
        elif not (is_torn and number == len(lines)):
            raise ConfigError(
                f"{path}, line {number}: not an event (a JSON object with `event` and `time`): {line[:80]!r}", code="E212"
            )
    if not events:
        raise ConfigError(f"{path}: holds no events; did the run start?", code="E212")
    _check_fields(path, events)
    return events


def _check_fields(path: Path, events: list[Event]) -> None:
    """That the views can show them. Raises ConfigError."""
    status = Status()
    for event in events:
        try:
            status = apply(status, event)
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}: the event `{event['event']}` does not have the form that this version writes"
                f" ({type(error).__name__}: {error}); use the adloco-peer that wrote it",
                code="E212",
            ) from None


def _event(line: str) -> Event | None:
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return None
    is_event = isinstance(value, dict) and isinstance(value.get("event"), str) and isinstance(value.get("time"), int | float)
    return value if is_event else None
