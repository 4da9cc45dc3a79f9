"""Whether a model is small enough to be built, from its configuration alone: in a run of others anything may stand there."""

import copy

import torch
import transformers

from adloco_p2p.errors import ConfigError

BYTES_PER_PARAMETER = 20
"""Parameters, gradient and AdamW's moments, 4 bytes each, and the outer parameters; more while averaging."""
MAX_BLOCKS = 1 << 14
"""Layers times experts: even without its parameters each of them takes kilobytes."""
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "decoder_layers", "encoder_layers")


def check_size(
    config: transformers.PretrainedConfig, memory_bytes: int | None, *, setting: str, purpose: str, bytes_each: int
) -> None:
    """Raise ConfigError, naming the setting, where the model does not fit into so much memory with `bytes_each` of its
    parameters, before any of it is allocated. `purpose`: what the memory is for, as in "to be trained"."""
    num_blocks = max(_num_blocks(config), _num_blocks(config.get_text_config()))
    if num_blocks > MAX_BLOCKS:
        raise ConfigError(f"{setting}: {num_blocks} layers or experts, at most {MAX_BLOCKS} are built", code="E217")
    with torch.device("meta"):
        own = copy.deepcopy(config)  # which keeps the attention that is named here
        module = transformers.AutoModelForCausalLM.from_config(own, attn_implementation="eager", trust_remote_code=False)
    num_bytes = sum(parameter.numel() for parameter in module.parameters()) * bytes_each
    if memory_bytes is not None and num_bytes > memory_bytes:
        raise ConfigError(
            f"{setting}: {config.model_type} needs {num_bytes / 2**30:,.1f} GiB to be {purpose}, {bytes_each} bytes per"
            f" parameter; this machine has {memory_bytes / 2**30:,.1f} GiB",
            code="E217",
        )


def _num_blocks(config: transformers.PretrainedConfig) -> int:
    sizes = {name: value for name, value in config.to_dict().items() if type(value) is int}
    num_layers = max([value for name, value in sizes.items() if name in _LAYERS], default=1)
    return num_layers * max([value for name, value in sizes.items() if "experts" in name], default=1)
