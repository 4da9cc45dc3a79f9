"""The other pages of the live view, each behind a key: help, the log, the reasons of the batches. Pure."""

from collections.abc import Sequence

from rich.console import RenderableType

from adloco_p2p.views import table_rows, units
from adloco_p2p.views.pieces import line, title, wrapped
from adloco_p2p.views.status import Status

LABEL = 10
"""Columns of the first word of a line of the log; text that does not fit the line continues below the rest."""
KEYS = "? help  q leave  p pause  l log  r reasons"
HELP = (
    ("q", "leave: end the round, save, hand over; the same command goes on later. In `watch`: close the view only"),
    ("p", "pause after this round, or resume; the others do not wait for a paused peer"),
    ("l", "the log: one line for everything that happened"),
    ("r", "why each batch has its size"),
    ("Esc", "back to the run"),
    ("", ""),
    ("round", "all peers train apart for some steps, then average what they learned; that is one round"),
    ("instance", "one model in training; a run may train several for a while and merge them into one"),
    ("loss", "how badly the model predicts the text that it trains on: less is better"),
    ("held-out", "the same on text that nobody trains on; the number to watch"),
    ("batch", "texts per step, of all peers together; `64 of 104`: more would help, this is what fits the machines"),
    ("mode", "single: one pass a step; capped: the batch is cut to what fits; accumulate: several passes a step"),
    ("phase", "averaging: with the others; committing: a majority signs the same result; by others: without this peer"),
    ("share", "part of the work of a round that a peer does, by its speed"),
    ("looked at", "others measured how much a peer's work lowers the loss of its texts: a score, about 0 without training"),
    ("uplink/s", "how fast a peer sent its last averages"),
    ("last report", "the last round of which a peer reported its work"),
)


def help_page(width: int, height: int) -> list[RenderableType]:
    lines: list[RenderableType] = [each for key, words in HELP for each in wrapped(f"{key:<13}", words, width, "")]
    if len(lines) > (room := max(height - 1, 1)):
        lines = [*lines[: room - 1], line("a taller window shows more", width, "dim")]
    return [title("Help"), *lines][:height]


def log_page(log: Sequence[str], width: int, height: int) -> list[RenderableType]:
    """Return the newest lines that fit."""
    room = max(height - 1, 1)
    shown: list[RenderableType] = []
    for each in log[-room:]:
        shown += wrapped(each[:LABEL], each[LABEL:], width, "")
    shown = shown[-room:]
    return [title("Log"), *(shown or [line("nothing yet", width, "dim")])][:height]


def reasons_page(status: Status, width: int, height: int) -> list[RenderableType]:
    rows = [row for row in table_rows.instance_rows(status) if row.reason]
    lines: list[RenderableType] = [
        each for row in rows for each in wrapped(f"instance {row.instance}  ", units.one_line(row.reason), width, "")
    ]
    return [title("Reasons of the batches"), *(lines or [line("no plan yet", width, "dim")])][:height]
