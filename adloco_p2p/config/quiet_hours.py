"""The times of day, in local time, at which a machine must not train or send. Pure functions."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

_RANGE = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


def parse_range(text: str) -> tuple[int, int]:
    """Return the minutes of the day at which `22:00-07:00` begins and ends. Raises ValueError."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a range of hours such as 22:00-07:00")
    hours = [int(number) for number in match.groups()]
    begin, end = 60 * hours[0] + hours[1], 60 * hours[2] + hours[3]
    if begin == end:
        raise ValueError(f"{text!r} begins when it ends; use pause for ever, or no range at all")
    return begin, end


def quiet_until(ranges: Sequence[str], now: datetime) -> datetime | None:
    """Return when the quiet time that contains `now` ends; None outside of all ranges. The end of a range does not belong to
    it; of overlapping ranges the latest end counts."""
    ends = []
    for text in ranges:
        begin, end = parse_range(text)
        minute = 60 * now.hour + now.minute
        if (begin <= minute < end) if begin < end else (minute >= begin or minute < end):
            day = now.replace(hour=0, minute=0, second=0, microsecond=0)
            ends.append(day + timedelta(minutes=end + (24 * 60 if end <= minute else 0)))
    return max(ends, default=None)
