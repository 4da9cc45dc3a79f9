"""Numbers in the reasons that plans and errors give."""


def plural(number: int, noun: str) -> str:
    """`1 peer`, `2 peers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
