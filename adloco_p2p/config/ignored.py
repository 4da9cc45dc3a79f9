"""Settings of a run that are accepted and do nothing beside its other settings. No run is refused for them, because existing
runs may have them, but the author is told."""

from collections.abc import Iterator
from dataclasses import asdict

from adloco_p2p.config.fields import shown
from adloco_p2p.config.run_config import EvaluationConfig, LoraConfig, RunConfig


def ignored(run: RunConfig) -> list[str]:
    """Return a sentence, with a remedy, for every setting that differs from its default and does nothing."""
    return [*_model(run), *_inner(run), *_evaluation(run)]


def _model(run: RunConfig) -> Iterator[str]:
    model, usual = run.model, RunConfig().model
    if model.pretrained is not None and model.architecture != usual.architecture:
        yield f"model.architecture is ignored: model.pretrained {model.pretrained} has its own; leave one of the two out"
    if model.lora.rank == 0:
        yield from (
            f"model.lora.{name}: {shown(value)} is ignored: model.lora.rank is 0, so there are no adapters; set the rank, such"
            " as 16, or leave it out"
            for name, value in asdict(model.lora).items()
            if value != asdict(LoraConfig())[name]
        )


def _inner(run: RunConfig) -> Iterator[str]:
    inner, usual = run.inner, RunConfig().inner
    if inner.kind != "muon" and inner.momentum != usual.momentum:
        yield f"inner.momentum: {inner.momentum} is ignored: inner.kind is {inner.kind}; leave it out, or choose muon"
    if inner.batch_scaling_cap != usual.batch_scaling_cap:
        cap = f"inner.batch_scaling_cap: {inner.batch_scaling_cap} is ignored"
        if inner.batch_scaling == "none":
            yield f"{cap}: inner.batch_scaling is none; leave it out, or choose sqrt"
        elif run.batch.test == "constant":
            yield f"{cap}: batch.test is constant, so the batch does not grow; leave it out, or choose another test"


def _evaluation(run: RunConfig) -> Iterator[str]:
    data, evaluation = run.data, run.evaluation
    named = {"data.heldout_path": data.heldout_path, "data.heldout_split": data.heldout_split}
    if data.heldout_fraction != RunConfig().data.heldout_fraction:
        yield from (
            f"data.heldout_fraction: {data.heldout_fraction} is ignored: {setting} {value} names the held-out data; leave one"
            " of the two out"
            for setting, value in named.items()
            if value is not None
        )
    if evaluation.sample_tokens == 0 and evaluation.sample_prompts != EvaluationConfig().sample_prompts:
        yield "evaluation.sample_prompts is ignored: evaluation.sample_tokens is 0; set it, such as 60, or leave them out"
