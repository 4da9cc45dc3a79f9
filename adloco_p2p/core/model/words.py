"""Words and numbers in the reasons that plans and errors give."""

from collections.abc import Sequence


def plural(number: int, noun: str, nouns: str = "") -> str:
    """`1 peer`, `2 peers`; `nouns` is the plural if it is not formed with an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or noun + 's'}"


def listed(items: Sequence[object]) -> str:
    """`1`, `1 and 2`, `1, 2 and 3`."""
    *others, last = map(str, items)
    return f"{', '.join(others)} and {last}" if others else last


def figure(number: float) -> str:
    """Three significant digits below 1,000, whole numbers from there on."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:,.0f}"


def moved(before: int, after: int) -> str:
    """`grows from 8 to 12`, `stays at 8`, `shrinks from 12 to 8`."""
    if before == after:
        return f"stays at {after}"
    return f"{'grows' if after > before else 'shrinks'} from {before} to {after}"
