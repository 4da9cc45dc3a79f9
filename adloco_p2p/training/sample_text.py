"""Text that a model writes: the ids of a prompt, continued one at a time."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import torch

TEMPERATURE = 0.7
"""The temperature of sampling, also in `adloco-peer generate`: text repeats itself far below 1, and falls apart far above
it."""
COLDEST = 1e-3
"""Below this temperature, logits divided by it could exceed the range of float32."""

NextLogits = Callable[[torch.Tensor], torch.Tensor]
"""Token ids [n] -> logits of the next token [vocabulary], fp32 on the CPU."""


class TextCodec(Protocol):
    """Translates texts to ids and back by the run's tokenizer."""

    @property
    def end_of_document(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> Sequence[Any]:
        """Return the token ids of each text, as arrays of integers."""

    def decode(self, ids: Iterable[int]) -> str: ...


@torch.no_grad()
def continued(
    next_logits: NextLogits,
    prompt: Sequence[int],
    *,
    num_tokens: int,
    room: int,
    ends: Collection[int],
    temperature: float,
    seed: int,
) -> list[int]:
    """Return at most `num_tokens` ids that follow the prompt [n], ending before any of `ends`, or where the model's answer is
    not finite, as after a divergence. The model sees the last `room` ids. A temperature below COLDEST takes the most likely id
    each time. Draws no number from torch's global generator."""
    assert prompt, "nothing to continue"
    chance = torch.Generator().manual_seed(seed)
    ids = [*prompt]
    for _ in range(num_tokens):
        logits = next_logits(torch.tensor(ids[-room:], dtype=torch.long))
        weights = torch.softmax(logits / max(temperature, COLDEST), dim=-1)
        if not bool(torch.isfinite(weights).all()):
            break
        is_greedy = temperature < COLDEST
        token = int(logits.argmax()) if is_greedy else int(torch.multinomial(weights, 1, generator=chance))
        if token in ends:
            break
        ids.append(token)
    return ids[len(prompt) :]
