"""A cell of the grid of `benchmarks.wan.grid`, and the constants that all cells share."""

from dataclasses import dataclass

PEERS = 4
PARAMETERS = 30.8e6
STEP_TOKENS, STEP_SAMPLES = 2048, 4
"""Tokens and samples of one peer in one inner step."""
STEP_SECONDS = 0.0255
"""Median of their records, forward, backward and optimizer: 25.1 to 26.6 ms."""
DELAY_MS = 12.5
"""The delay of one leg: 50 ms there and back. Their machines stood in one data centre."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    preset: str
    overlap: str
    inner_steps: int
    mbit: float
    """The stated rate; the links of the laboratory are `scale` times slower."""
    scale: int = 10
    """The divisor of values and links."""

    @property
    def name(self) -> str:
        return f"{self.preset}-{self.overlap}-h{self.inner_steps}-{self.mbit:g}mbit-{self.scale}"
