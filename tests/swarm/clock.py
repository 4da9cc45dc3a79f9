"""A clock for tests."""


class Clock:
    """Goes on by hand; seconds."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now
