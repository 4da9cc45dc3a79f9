"""Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685) on a frozen base, by `peft`.

A linear layer W [out, in] becomes W + s B A with A [r, in] and B [out, r]; s = alpha / r, or alpha / sqrt(r) where
rank-stabilised. B starts at zero, so a fresh adapter changes nothing. The flat vector (`numerics/layout.py`) leaves out the
frozen parameters, which are those of the base and, with `freeze_a`, also A: they are not averaged, digested or saved, and every
peer makes the same ones from the run's digests and seed.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from adloco_p2p.config.local_files import is_hub_id
from adloco_p2p.config.run_config import LoraConfig, ModelConfig
from adloco_p2p.errors import ConfigError, DeviceError, brief

ADAPTER = "default"
"""The name that `peft` gives to a model's only adapter."""


def adapted(base: transformers.PreTrainedModel, lora: LoraConfig, *, seed: int) -> torch.nn.Module:
    """Return the frozen base with fresh adapters in fp32, whose A is drawn from `seed`: a `peft.PeftModel`, which is called
    like the base.

    Raises ConfigError where the base has no such layers, and DeviceError where `peft` is not installed.
    """
    try:
        import peft  # an extra: only fine-tuning needs it
    except ImportError as error:
        raise DeviceError(
            "model.lora: peft is not installed; in the checkout: pip install -c constraints.txt '.[finetune]'", code="E521"
        ) from error
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=lora.targets[0] if lora.targets == ("all-linear",) else list(lora.targets),
        exclude_modules=_more_than_linear(base) or None,
        use_rslora=lora.rank_stabilised,
        lora_dropout=0.0,
    )
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():  # A is drawn again below, from the seed
            warnings.simplefilter("ignore")  # about what peft itself has set
            module: torch.nn.Module = peft.get_peft_model(base, config)
    except ValueError as error:  # no layer matches, or one that peft cannot adapt
        raise ConfigError(f"model.lora.targets: {', '.join(lora.targets)}: {brief(error)}", code="E209") from error
    if any("lora_embedding_" in name for name, _ in module.named_parameters()):
        raise ConfigError(
            f"model.lora.targets: {', '.join(lora.targets)} names an embedding, which is often tied to the head;"
            " name linear layers, or all-linear",
            code="E209",
        )
    draw_adapter_(module, seed=seed)
    if lora.freeze_a:
        for a in _matrices_a(module):
            a.requires_grad_(False)
    return module


def check_targets(module: Any, lora: LoraConfig) -> None:
    """Raise ConfigError where a name of `model.lora.targets` matches no layer. `peft` ignores such a name as long as others
    match, so less would be trained than the author of the run meant."""
    if lora.targets == ("all-linear",):
        return
    have = [f".{name}" for name in module.base_model.targeted_module_names]
    idle = [target for target in lora.targets if not any(name.endswith(f".{target}") for name in have)]
    if idle:
        kinds = torch.nn.Linear, transformers.pytorch_utils.Conv1D
        linear = [
            name for name, layer in module.base_model.model.named_modules() if isinstance(layer, kinds) and ".lora_" not in name
        ]
        names = {name.removesuffix(".base_layer").rpartition(".")[2] for name in linear}
        raise ConfigError(
            f"model.lora.targets: no layer that takes an adapter is called {', '.join(idle)}; leave it out, or name layers"
            f" among {', '.join(sorted(names))}; all-linear, alone, names all but the head",
            code="E209",
        )


def _more_than_linear(base: torch.nn.Module) -> list[str]:
    """Return the names of modules that inherit from a linear layer but compute something else, such as Llama 4's routers, which
    return two tensors: `peft` would treat them as linear layers."""
    return [
        name
        for name, module in base.named_modules()
        if isinstance(module, torch.nn.Linear) and type(module).forward is not torch.nn.Linear.forward
    ]


@torch.no_grad()
def draw_adapter_(module: torch.nn.Module, *, seed: int) -> None:
    """Initialise the adapters of the module in place: A uniform in +-1/sqrt(in), as `peft` chooses, and B zero. A generator of
    its own draws them on the CPU, layer after layer, so they are the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    for a in _matrices_a(module):
        bound = a.shape[1] ** -0.5
        a.copy_(torch.empty(a.shape).uniform_(-bound, bound, generator=generator))
    for name, b in module.named_parameters():
        if ".lora_B." in name:
            b.zero_()


def _matrices_a(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    return (parameter for name, parameter in module.named_parameters() if ".lora_A." in name)


def leave_casts_to_autocast(module: torch.nn.Module) -> None:
    """Let adapters take their input in its own type, for forwards inside of autocast. Otherwise `peft` copies the input to
    fp32, the type of their weights, autocast casts it back, and backward keeps the copy; the values are the same."""
    for layer in module.modules():
        if hasattr(layer, "cast_input_dtype_enabled"):
            layer.cast_input_dtype_enabled = False  # type: ignore[assignment]


def save_adapter(module: Any, model: ModelConfig, directory: Path) -> None:
    """Write the adapter in the files of `peft`. They name the base by its hub id, and never by a directory of this machine."""
    config = module.peft_config[ADAPTER]
    config.base_model_name_or_path = model.pretrained if is_hub_id(model.pretrained or "") else ""
    config.revision = model.revision
    config.inference_mode = True
    module.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)  # peft's empty form of a model card


def merged(module: Any) -> transformers.PreTrainedModel:
    """Return the base with the adapters' product added to its weights, as a plain model, and consume the module. The result is
    exact where the base is fp32. A head with an adapter is no longer tied to the embeddings."""
    base = module.get_base_model()
    head, embeddings = base.get_output_embeddings(), base.get_input_embeddings()
    if hasattr(head, "base_layer") and head.base_layer.weight is embeddings.weight:
        head.base_layer.weight = torch.nn.Parameter(embeddings.weight.detach().clone())
        base.config.get_text_config().tie_word_embeddings = False
    plain: transformers.PreTrainedModel = module.merge_and_unload()
    return plain
