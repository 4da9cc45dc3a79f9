"""A recurrent model, sums as text and a focal loss: what a package gives to runs of adloco-peer (docs/plugins.md)."""

from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers.modeling_outputs import CausalLMOutput

IGNORED = -100
"""Target of a token that is not learned."""


class GruConfig(transformers.PretrainedConfig):
    model_type = "adloco_example_gru"

    def __init__(self, vocab_size: int = 257, hidden_size: int = 64, **rest: Any) -> None:
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        super().__init__(**rest)


class GruModel(transformers.PreTrainedModel):
    """Token ids [n, L] -> logits [n, L, V]."""

    config_class = GruConfig

    def __init__(self, config: GruConfig) -> None:
        super().__init__(config)
        self.embedding = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.recurrent = torch.nn.GRU(config.hidden_size, config.hidden_size, batch_first=True)
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        states, _last = self.recurrent(self.embedding(input_ids))
        return CausalLMOutput(logits=self.head(states))


def gru(*, vocab_size: int, sequence_length: int, hidden_size: int = 64) -> GruModel:  # noqa: ARG001 - any length will do
    """A model with random weights, from torch's random state. `hidden_size` comes from `model.arguments`."""
    return GruModel(GruConfig(vocab_size=vocab_size, hidden_size=hidden_size))


def sums(*, largest: int = 40) -> Iterator[str]:
    """Texts to learn from, the same ones in the same order on every machine. `largest` comes from `data.arguments`."""
    for left in range(largest):
        yield "\n".join(f"{left} + {right} = {left + right}" for right in range(largest))


def focal(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy that counts less where the model is sure already (arXiv 1708.02002, gamma 1). Logits [n, L, V] and targets
    [n, L] give [n, L], zero where the target is IGNORED."""
    nats = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED
    ).view(targets.shape)
    return nats * (1 - torch.exp(-nats))
