"""The one place where a verb prints."""


def say(text: str) -> None:
    """One piece of text to the user, at once."""
    print(text, flush=True)  # noqa: T201
