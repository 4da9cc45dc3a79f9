"""Settings of a run's model, tokenizer and data that cannot work together, or would silently do nothing."""

from collections.abc import Iterator

from adloco_p2p.config.plugins import packages_problems
from adloco_p2p.config.run_config import DataConfig, ModelConfig, RunConfig

_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
"""Arguments that most architectures have; `transformers` would answer impossible ones with an unrelated error."""
MAX_SIZE = 1 << 24
"""The largest whole number in `model.architecture`."""
MAX_LAYERS = 4096
"""The largest number of layers or experts, which `transformers` lists one by one."""


def input_combinations(run: RunConfig) -> Iterator[str]:
    """Yield one sentence for each impossible combination, with a remedy."""
    yield from _model(run)
    yield from _plugins(run)
    yield from _data(run)


def _model(run: RunConfig) -> Iterator[str]:
    model, tokenizer = run.model, run.tokenizer
    if model.pretrained is None and not isinstance(model.architecture.get("model_type"), str):
        yield "model.architecture: needs a `model_type`, such as llama, or set model.pretrained"
    for name, source in (("vocab_size", "the tokenizer"), ("max_position_embeddings", "data.sequence_length")):
        if name in model.architecture:
            yield f"model.architecture.{name}: follows from {source}; leave it out"
    for name in _SIZES:
        value = model.architecture.get(name)
        if value is not None and (type(value) is not int or value < 1):
            yield f"model.architecture.{name}: {value!r}, but every model needs a whole number from 1 on"
    for name, value in model.architecture.items():
        most = MAX_LAYERS if "layer" in name or "expert" in name else MAX_SIZE
        if type(value) is int and value > most:
            yield f"model.architecture.{name}: {value}, but at most {most} can be built"
    if model.pretrained is not None and tokenizer.source == "bytes":
        yield (
            f"tokenizer.source: bytes, but the weights of model.pretrained {model.pretrained} were trained on other tokens, so"
            " they would read nonsense; accepted: the model's own tokenizer (leave tokenizer.source out), or a hub id or"
            " directory with the same vocabulary"
        )
    if model.share and model.pretrained is None:
        yield "model.share: true, but there are no pretrained weights to share; set model.pretrained"
    if model.revision is not None and model.pretrained is None:
        yield "model.revision: names a version of model.pretrained, which is not set"
    if model.lora.rank and model.pretrained is None:
        yield f"model.lora.rank: {model.lora.rank}, but there are no pretrained weights to adapt; set model.pretrained"
    if model.lora.rank == 0 and model.lora.freeze_a:
        yield "model.lora.freeze_a: nothing without adapters; set model.lora.rank, such as 16"
    if not model.lora.targets:
        yield "model.lora.targets: empty, so nothing would be trained; name layers such as q_proj, or leave it out"
    if tokenizer.revision is not None and tokenizer.source == "bytes":
        yield "tokenizer.revision: the `bytes` tokenizer has no versions; set it to null, or set tokenizer.source"


def _plugins(run: RunConfig) -> Iterator[str]:
    model, data = run.model, run.data
    yield from packages_problems(run.packages)
    if model.plugin and model.architecture != ModelConfig().architecture:
        yield "model.architecture: model.plugin builds the model; leave it out, and give model.arguments"
    if model.plugin and (model.pretrained is not None or model.lora.rank):
        yield "model.plugin: builds a fresh model, without model.pretrained and model.lora; choose one of them"
    if model.program and (model.plugin or model.loss):
        yield "model.plugin, model.loss: the model and its loss are the program's (model.program); leave them out"
    if bool(data.plugin) != (data.source == "plugin"):
        yield "data.plugin: belongs to data.source plugin, and it to data.plugin; set both, or none"
    if data.plugin and (data.path is not None or data.mixture or data.heldout_path or data.streaming):
        yield "data.plugin: gives all texts itself; leave data.path, mixture, heldout_path and streaming out"
    for name, plugin, arguments in (("model", model.plugin, model.arguments), ("data", data.plugin, data.arguments)):
        if arguments and not plugin:
            yield f"{name}.arguments: nothing without {name}.plugin; leave it out"


def _data(run: RunConfig) -> Iterator[str]:
    data = run.data
    if data.source == "python" and data.path is not None:
        yield f"data.path: {data.path} is not read with data.source python; set data.source to what it holds"
    if data.source not in ("python", "plugin") and data.path is None and not data.mixture:
        what = "the id of a hub dataset" if data.source == "hub" else "the files, such as texts/*.txt"
        yield f"data.path: not set, but data.source is {data.source}; set it to {what}"
    for name, value in (("name", data.name), ("revision", data.revision), ("heldout_split", data.heldout_split)):
        if value is not None and data.source != "hub":
            yield f"data.{name}: only hub datasets have it, and data.source is {data.source}; leave it out"
    yield from _columns(data)
    if data.mixture and data.path is not None:
        yield f"data.path: {data.path} would be ignored beside data.mixture; name it there, with a weight"
    if data.heldout_path is not None and data.source in ("python", "hub"):
        yield f"data.heldout_path: only local files have it, and data.source is {data.source}; leave it out"
    if data.share and data.source not in ("text", "json"):
        yield f"data.share: true, but peers share only files of text or json, and data.source is {data.source}; leave it out"
    if data.source == "hub" and data.heldout_split == data.split:
        yield f"data.heldout_split: {data.split} is also trained on (data.split); choose another, or leave it out"


def _columns(data: DataConfig) -> Iterator[str]:
    """Find problems of the settings that name the columns of a row."""
    if (data.prompt_column is None) != (data.completion_column is None):
        yield "data.prompt_column, data.completion_column: one needs the other; set both, or none"
    if data.messages_column is not None and data.prompt_column is not None:
        yield "data.messages_column: and data.prompt_column are two forms of one thing; set one of them"
    is_plain = data.messages_column is None and data.prompt_column is None
    if data.source in ("python", "text", "plugin") and not is_plain:
        yield (
            f"data.messages_column, data.prompt_column: data.source {data.source} has no columns; use json, parquet, arrow or"
            " hub"
        )
    if data.streaming and (not is_plain or data.mixture or data.heldout_path):
        yield (
            "data.streaming: only plain text of one data set is streamed; leave data.streaming off with messages, completions,"
            " a mixture or a data.heldout_path"
        )
    if data.mixture and data.source in ("python", "hub"):
        yield f"data.mixture: only local files are mixed, and data.source is {data.source}; use json, parquet or text"
