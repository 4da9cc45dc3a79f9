"""Builds the model of a run from a `transformers` configuration, or loads it."""

import torch
import transformers

from adloco_p2p.config.local_files import check_no_program
from adloco_p2p.config.run_config import ModelConfig, Scalar
from adloco_p2p.errors import ConfigError, brief
from adloco_p2p.training.adapters import adapted
from adloco_p2p.training.device import memory_bytes
from adloco_p2p.training.model_size import BYTES_PER_PARAMETER, check_size
from adloco_p2p.training.plugins import plugin_model
from adloco_p2p.training.pretrained import load_pretrained


def build_model(model: ModelConfig, *, vocab_size: int, sequence_length: int, seed: int) -> transformers.PreTrainedModel:
    """Return a causal language model on the CPU whose trainable parameters are fp32: all parameters, or those of its adapters
    (`adapters.py`). `seed` draws what is not pretrained; torch's global random state stays as it was.

    Raises ConfigError naming the setting that does not work.
    """
    check_no_program(model)
    if model.plugin:
        module = plugin_model(model, vocab_size=vocab_size, sequence_length=sequence_length, seed=seed)
    elif model.pretrained is None:
        config = _architecture(model.architecture, vocab_size=vocab_size, sequence_length=sequence_length)
        module = _from_config(config, model.architecture, seed)
    else:
        module = load_pretrained(model)
        num_tokens = module.config.get_text_config().vocab_size  # a model of text and images keeps it in a part of its own
        if num_tokens < vocab_size:
            raise ConfigError(
                f"model.pretrained: {model.pretrained} has {num_tokens} tokens, the tokenizer has {vocab_size};"
                " use the tokenizer that belongs to the model",
                code="E209",
            )
    longest = _longest_sequence(module.config.get_text_config())
    if longest is not None and longest < sequence_length:
        built = "model.plugin" if model.plugin else "model.architecture.max_position_embeddings"
        name = built if model.pretrained is None else "model.pretrained"
        raise ConfigError(f"{name}: the model reads {longest} tokens, data.sequence_length is {sequence_length}", code="E209")
    return adapted(module, model.lora, seed=seed) if model.lora.rank else module


def _architecture(architecture: dict[str, Scalar], *, vocab_size: int, sequence_length: int) -> transformers.PretrainedConfig:
    """Return the configuration that the arguments name. Raises ConfigError for an unknown argument, which `transformers` would
    only store."""
    arguments = dict(architecture)
    model_type = arguments.pop("model_type", None)
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise ConfigError(
            f"model.architecture.model_type: {model_type!r} is not a model type of transformers, such as llama",
            code="E209",
        )
    if "vocab_size" in arguments:
        raise ConfigError(
            f"model.architecture.vocab_size: follows from the tokenizer ({vocab_size}); leave it out", code="E209"
        )
    unknown = [key for key in sorted(arguments) if not _is_known(model_type, key, arguments[key])]
    if unknown:
        raise ConfigError(*(f"model.architecture.{key}: {model_type} has no such argument" for key in unknown), code="E209")
    arguments.setdefault("max_position_embeddings", sequence_length)
    arguments["vocab_size"] = vocab_size
    # The special tokens of the class's own vocabulary are left out; the model sees only those that the tokenizer makes.
    arguments |= {key: None for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key not in arguments}
    try:
        return transformers.AutoConfig.for_model(model_type, **arguments)
    except Exception as error:  # each class of transformers has its own ways to refuse a user's value
        raise ConfigError(f"model.architecture: {model_type} refuses it: {brief(error)}", code="E209") from error


def _is_known(model_type: str, key: str, value: Scalar) -> bool:
    """Return whether the argument has an effect: the configuration has the name, or something else in it changes."""
    plain = transformers.AutoConfig.for_model(model_type)
    if key in plain.to_dict() or key in plain.attribute_map:
        return True
    try:
        changed = transformers.AutoConfig.for_model(model_type, **{key: value}).to_dict()
    except Exception:  # refused, so the name exists; `_architecture` reports why
        return True
    changed.pop(key, None)
    return bool(changed != plain.to_dict())


def check_texts_apart(module: transformers.PreTrainedModel, model: ModelConfig) -> None:
    """Raise ConfigError where texts of one row, each with positions from 0 on, can read each other. Only some architectures of
    `transformers` derive their attention mask from the positions."""
    setting, value = "model.architecture", module.config.model_type
    if model.plugin:
        setting, value = "model.plugin", model.plugin
    elif model.pretrained is not None:
        setting = f"model.pretrained: {model.pretrained}"
    if _mixes_texts(module):
        raise ConfigError(
            f"{setting}: {value} lets a text read the text before it in its row, and this run keeps them apart, as"
            " conversations, completions and data.attention=document do; accepted: an architecture that restarts with the"
            " positions, such as llama, qwen3 or gemma3; or whole texts in data.text_column with data.attention=row",
            code="E209",
        )


def _mixes_texts(module: transformers.PreTrainedModel) -> bool:
    """Return whether the second of two texts in a row has a gradient at the first one; a mask between them leaves exactly
    none."""
    length = 4
    ids = torch.arange(2 * length).unsqueeze(0) % module.config.get_text_config().vocab_size
    positions = torch.arange(length).repeat(2).unsqueeze(0)
    embedded: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    try:
        hook = module.get_input_embeddings().register_forward_hook(keep)
    except NotImplementedError:  # a plugin's own class, which keeps texts apart itself (docs/plugins.md)
        return False
    was_training = module.training
    module.eval()
    with hook, torch.enable_grad():
        logits = module(input_ids=ids, position_ids=positions, use_cache=False).logits
    module.train(was_training)
    if not embedded:
        return False
    (gradient,) = torch.autograd.grad(logits[:, length:].float().square().sum(), embedded[0], allow_unused=True)
    return gradient is not None and bool(gradient[:, :length].any())


def _from_config(config: transformers.PretrainedConfig, given: dict[str, Scalar], seed: int) -> transformers.PreTrainedModel:
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(f"model.architecture.model_type: {config.model_type} is not a causal language model", code="E209")
    try:
        check_size(config, memory_bytes(), setting="model.architecture", purpose="trained", bytes_each=BYTES_PER_PARAMETER)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        with torch.no_grad():  # two tokens find sizes that do not match, here instead of in the first inner step
            module(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=False)
    except ConfigError:
        raise
    except Exception as error:  # torch and transformers refuse impossible sizes with various errors
        sizes = " ".join(f"{key}={value}" for key, value in sorted(given.items()) if type(value) is int)
        raise ConfigError(
            f"model.architecture: these sizes do not make a {config.model_type}: {sizes or 'none is set'}; torch reports:"
            f" {brief(error) or type(error).__name__}",
            code="E209",
        ) from error
    return module


def _longest_sequence(config: transformers.PretrainedConfig) -> int | None:
    """Return how many tokens the positions cover; None for models without such a limit."""
    longest = config.to_dict().get(config.attribute_map.get("max_position_embeddings", "max_position_embeddings"))
    return longest if isinstance(longest, int) else None
