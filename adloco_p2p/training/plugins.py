"""Builds models and losses of installed packages, and checks what the node needs of them."""

from collections.abc import Callable

import torch
import transformers

from adloco_p2p.config.plugins import load_plugin, one_line
from adloco_p2p.config.run_config import ModelConfig
from adloco_p2p.errors import ConfigError

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Logits [n, L, V] in fp32 and targets [n, L] -> the loss of each token [n, L]; zero where the target is IGNORED_LABEL, which
means that there is nothing to predict."""


def plugin_model(model: ModelConfig, *, vocab_size: int, sequence_length: int, seed: int) -> transformers.PreTrainedModel:
    """Return the model of the run's entry point, with random weights drawn from `seed`, tried on two tokens. Raises
    ConfigError."""
    build = load_plugin("model.plugin", model.plugin)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = build(vocab_size=vocab_size, sequence_length=sequence_length, **model.arguments)
        if not isinstance(module, transformers.PreTrainedModel):
            raise TypeError(f"it gives a {type(module).__name__}, and a transformers.PreTrainedModel is accepted")
        tokens = torch.zeros(1, 2, dtype=torch.int64)
        with torch.no_grad():
            logits = module(input_ids=tokens, position_ids=torch.arange(2)[None], use_cache=False).logits
        if logits.shape != (1, 2, vocab_size):
            raise ValueError(f"logits of two tokens have the shape {tuple(logits.shape)}, and (1, 2, {vocab_size}) is accepted")
        types = {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
        if types != {torch.float32}:
            raise TypeError(f"trained parameters are {', '.join(map(str, types)) or 'none'}, and torch.float32 is accepted")
    except Exception as error:  # other people's code, which may fail in any way
        raise ConfigError(f"model.plugin: {model.plugin!r} does not work: {one_line(error)}", code="E232") from error
    return module


def plugin_loss(name: str) -> Loss:
    """Return the run's loss, with a check of its shape. Raises ConfigError."""
    loss = load_plugin("model.loss", name)

    def checked(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        try:
            found = loss(logits, targets)
        except torch.OutOfMemoryError:
            raise  # the node tries smaller batches
        except Exception as error:  # other people's code, which may fail in any way
            raise ConfigError(f"model.loss: {name!r} does not work: {one_line(error)}", code="E232") from error
        if not isinstance(found, torch.Tensor) or found.shape != targets.shape:
            shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise ConfigError(
                f"model.loss: {name!r} gives {shape}, and one loss per token, {tuple(targets.shape)}, is accepted", code="E232"
            )
        return found

    return checked
