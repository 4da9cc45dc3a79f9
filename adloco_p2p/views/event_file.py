"""Reads `events.jsonl`: one JSON object a line, in the order in which things happened."""

from pathlib import Path

from adloco_p2p.core.model.telemetry import Stamped
from adloco_p2p.decode import decode_event
from adloco_p2p.errors import ConfigError


def read_events(path: Path) -> list[Stamped]:
    """Return all events of the file of kinds that this version has. A torn last line (the process was killed while writing it)
    is omitted.

    Raises ConfigError, naming the file: missing, unreadable, empty, or a line that does not have the form of this version.
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
    events: list[Stamped] = []
    for number, line in enumerate(lines, start=1):
        try:
            event = decode_event(line)
        except ValueError as error:
            if is_torn and number == len(lines):
                break
            raise ConfigError(f"{path}, line {number}: {error}; use the adloco-peer that wrote it", code="E212") from None
        if event is not None:
            events.append(event)
    if not events:
        raise ConfigError(f"{path}: holds no events; did the run start?", code="E212")
    return events
