"""Checks from its configuration alone that a model is small enough to be built; the configuration of other people's runs may
say anything."""

import copy

import torch
import transformers

from adloco_p2p.errors import ConfigError

BYTES_PER_PARAMETER = 20
"""Bytes of parameters, gradient and AdamW's moments, 4 each, and of the outer parameters; averaging needs more."""
MAX_BLOCKS = 1 << 14
"""The most layers times experts: even without parameters each of them takes kilobytes."""
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "decoder_layers", "encoder_layers")


def check_size(
    config: transformers.PretrainedConfig, memory_bytes: int | None, *, setting: str, purpose: str, bytes_each: int
) -> None:
    """Raise ConfigError, naming the setting, where `bytes_each` bytes for each parameter of the model exceed the memory.
    Nothing is allocated. `purpose`: what the memory is for, as in "to be trained"."""
    num_blocks = max(_num_blocks(config), _num_blocks(config.get_text_config()))
    if num_blocks > MAX_BLOCKS:
        raise ConfigError(f"{setting}: {num_blocks} layers or experts, at most {MAX_BLOCKS} are built", code="E217")
    with torch.device("meta"):
        own = copy.deepcopy(config)  # `from_config` would keep the attention that is named in it
        module = transformers.AutoModelForCausalLM.from_config(own, attn_implementation="eager", trust_remote_code=False)
    num_bytes = sum(parameter.numel() for parameter in module.parameters()) * bytes_each
    if memory_bytes is not None and num_bytes > memory_bytes:
        raise ConfigError(
            f"{setting}: {config.model_type} needs {num_bytes / 1e9:,.1f} GB to be {purpose}, {bytes_each} bytes per"
            f" parameter; this machine has {memory_bytes / 1e9:,.1f} GB",
            code="E217",
        )


def _num_blocks(config: transformers.PretrainedConfig) -> int:
    sizes = {name: value for name, value in config.to_dict().items() if type(value) is int}
    num_layers = max([value for name, value in sizes.items() if name in _LAYERS], default=1)
    return num_layers * max([value for name, value in sizes.items() if "experts" in name], default=1)
