"""The verb that measures a trained model by held-out loss or by scores on tasks. It reads the last complete checkpoint."""

import argparse
import contextlib
import glob
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from adloco_p2p.commands import lifeline
from adloco_p2p.commands.console import say, say_json
from adloco_p2p.commands.trained_model import Saved, load_model, read_saved, sleep_while_waiting
from adloco_p2p.config.run_config import DataConfig, RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.model.words import plural
from adloco_p2p.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    import torch
    import transformers

    from adloco_p2p.data.prompt_template import PromptTemplate

TASK_BATCH = 8
"""Prompts that are scored at a time."""
LOWEST_PRIORITY = 19
FIRST_TO_GO = "1000"


def evaluate(arguments: argparse.Namespace) -> int:
    """Print scores on tasks where some are named, and the held-out loss otherwise."""
    _check_files(arguments)
    sleep_while_waiting()
    if arguments.tasks:
        return _on_tasks(arguments)
    given = {"--limit": arguments.limit, "--chat": arguments.chat or None, "--tasks-path": arguments.tasks_path}
    for option, is_given in ((option, value is not None) for option, value in given.items()):
        if is_given:
            raise ConfigError(f"{option}: only tasks take it; name some with --tasks", code="E200")
    return _on_heldout(arguments)


def _check_files(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for a wrong path at once, before libraries are imported for minutes."""
    if arguments.data is not None:
        _check_data(arguments.data)
    if arguments.tasks_path is not None and not arguments.tasks_path.is_dir():
        raise ConfigError(f"--tasks-path {arguments.tasks_path}: no such directory", code="E223")
    for task in arguments.tasks or ():
        if task.endswith((".yaml", ".yml")) and not Path(task).is_file():
            raise ConfigError(f"--tasks {task}: no such file", code="E223")


def _on_heldout(arguments: argparse.Namespace) -> int:
    """Print held-out loss and perplexity of every live instance, and of the merge of all."""
    saved, states = read_saved(
        arguments.workdir,
        lambda saved: {instance: saved.store.load_instance(saved.round, instance) for instance in saved.instances},
    )
    from adloco_p2p.config.peer_config import PeerConfig
    from adloco_p2p.core.model.scalars import PeerId
    from adloco_p2p.core.planning.merge_policy import final_merge
    from adloco_p2p.data.feed import open_feed
    from adloco_p2p.data.source import other_embedded_text
    from adloco_p2p.training.evaluate import perplexity
    from adloco_p2p.training.hosting import Hosting

    evaluated = saved.sources if arguments.data is None else _over_file(saved.sources, arguments.data)
    with _named_as_given(arguments.data):
        feed = open_feed(evaluated, cache_dir=arguments.workdir / "data")
    engine = Hosting(evaluated, PeerConfig(), PeerId("evaluation"), feed)
    for instance in saved.instances:
        engine.restore(instance, *states.pop(instance))
    losses = {instance: engine.evaluate(instance) for instance in saved.instances}
    by_data = {instance: dict(zip(evaluated.readers, engine.heldout_losses(instance), strict=True)) for instance in losses}
    if diverged := [instance for instance, loss in losses.items() if not math.isfinite(loss)]:
        raise DeviceError(f"the held-out loss of instance {diverged[0]} after round {saved.round} is not finite", code="E503")
    result: dict[str, object] = {
        "run": saved.run.digest,
        "round": saved.round,
        "instances": [
            {
                "instance": instance,
                "heldout_loss": loss,
                "perplexity": perplexity(loss),
                "heldout_by_data": by_data[instance],
            }
            for instance, loss in losses.items()
        ],
        "merged": None,
    }
    plans = _plans_of(saved)
    if len(plans) > 1:
        verdict = engine.probe_merge(final_merge(plans, rules=saved.run.merge))
        merged_loss = verdict.merged_loss
        result["merged"] = {"heldout_loss": merged_loss, "perplexity": perplexity(merged_loss)}
    if arguments.json:
        say_json(result)
        return 0
    say(f"{saved.run.name}, after round {saved.round} of a run of {saved.run.work.length}")
    if warning := other_embedded_text(evaluated.data):
        say(warning)
    lines = [(f"instance {instance}", loss) for instance, loss in losses.items()]
    if len(plans) > 1:
        lines.append(("merged", merged_loss))
    for name, loss in lines:
        say(f"  {name:<12} held-out loss {loss:.4f} nats per token  perplexity {perplexity(loss):.3f}")
    for instance, found in by_data.items():
        for name, loss in found.items():
            say(f"  instance {instance} on {name}: {loss:.4f}")
    return 0


_KINDS: dict[str, Literal["json", "text", "parquet", "arrow"]] = {
    ".json": "json",
    ".jsonl": "json",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
}


def _check_data(file: Path) -> None:
    if file.suffix not in _KINDS or not file.is_file():
        problem = "no such file" if not file.exists() else f"only files with {', '.join(_KINDS)} are read"
        raise ConfigError(f"--data {file}: {problem}; name one with the columns that the run reads", code="E207")


@contextlib.contextmanager
def _named_as_given(file: Path | None) -> Iterator[None]:
    """Let errors about the data name `--data` where the user gave it, and no settings of the run that `_over_file` replaces."""
    try:
        yield
    except ConfigError as error:
        if file is None or error.code != "E207":
            raise
        raise ConfigError(*(_as_given(problem, file) for problem in error.problems), code=error.code) from error


def _as_given(problem: str, file: Path) -> str:
    reason = problem.removeprefix("data.path: ").removeprefix(f"{glob.escape(str(file))!r} ")
    return f"--data {file}: {reason.removesuffix(', or change data.source')}"


def _over_file(run: RunConfig, file: Path) -> RunConfig:
    """Return the run with the data of one file, read by the same columns and in rows of the same length."""
    columns = {
        name: getattr(run.data, name) for name in ("text_column", "messages_column", "prompt_column", "completion_column")
    }
    data = DataConfig(
        source=_KINDS[file.suffix],
        path=glob.escape(str(file)),
        heldout_path=glob.escape(str(file)),
        sequence_length=run.data.sequence_length,
        attention=run.data.attention,
        **columns,
    )
    return replace(
        run,
        data=data,
        batch=replace(run.batch, initial_batch=1),  # a short file will do
        instances=replace(run.instances, data=()),
        evaluation=replace(run.evaluation, rows=max(2, run.evaluation.rows)),  # one of them may hold a single token
    )


def _on_tasks(arguments: argparse.Namespace) -> int:
    """Print scores of the single instance, or of the merge of several; the run's own data are not needed."""
    if arguments.data is not None:
        raise ConfigError("--data: gives a held-out loss, and --tasks scores; ask for one of them", code="E200")
    if arguments.lifeline is not None:
        _step_back(arguments.lifeline)
    saved, (instance, outer) = read_saved(arguments.workdir, merged_outer)
    import torch

    from adloco_p2p.config.peer_config import PeerConfig
    from adloco_p2p.numerics.digest import state_digest
    from adloco_p2p.training.adapters import merged
    from adloco_p2p.training.device import select_device
    from adloco_p2p.training.task_scores import score_tasks

    run = saved.run
    model = load_model(saved.sources, outer, instance)
    plain = merged(model) if run.model.lora.rank else cast("transformers.PreTrainedModel", model)
    tokenizer = _transformers_tokenizer(saved.sources)
    prompts = _prompts(tokenizer) if arguments.chat else None
    arguments.steps.enter("scoring")
    with contextlib.closing(prompts) if prompts is not None else contextlib.nullcontext():
        scores = score_tasks(
            plain.to(select_device(PeerConfig(device="auto" if arguments.lifeline is None else "cpu"))).eval(),
            tokenizer,
            arguments.tasks,
            batch_size=TASK_BATCH,
            limit=arguments.limit,
            write_prompt=None if prompts is None else prompts.write,
            tasks_path=arguments.tasks_path,
            on_progress=arguments.steps.show_progress,
        )
    digest = canonical.digest([score.digest for score in scores])
    if arguments.json:
        tasks = [canonical.to_plain(score) for score in scores]
        kept = outer.to(torch.bfloat16) if run.outer.state == "bfloat16" else outer  # as peers hold and hash it
        model_digest = state_digest(kept, kept[:0])
        say_json({"run": run.digest, "round": saved.round, "model": model_digest, "tasks_digest": digest, "tasks": tasks})
        return 0
    say(f"{run.name}, after round {saved.round} of a run of {run.work.length}; tasks {digest}")
    for score in scores:
        figures = "  ".join(f"{name} {value:.4f}" for name, value in sorted(score.metrics.items()))
        say(f"  {score.name:<20} {plural(score.num_documents, 'document')}  {figures}")
    return 0


def _prompts(tokenizer: "transformers.PreTrainedTokenizerBase") -> "PromptTemplate":
    """Return prompts by the default chat template, if there are several. Raises ConfigError where there is none."""
    from adloco_p2p.data.prompt_template import PromptTemplate

    template = tokenizer.chat_template
    if isinstance(template, dict):
        named, template = ", ".join(sorted(template)), template.get("default")
        found = f"has several chat templates ({named}), and none is `default`"
    else:
        found = "has no chat template"
    if not isinstance(template, str):
        raise ConfigError(f"--chat: the tokenizer of this run {found}; leave it out", code="E208")
    return PromptTemplate(template, special_tokens=tokenizer.special_tokens_map, setting="--chat")


def _step_back(fd: int) -> None:
    """Give way to the node that has started this process beside its training: end with it, run at the lowest priority, and be
    the first to end where memory runs out."""
    lifeline.hold(fd, on_end=lambda: None)
    os.nice(LOWEST_PRIORITY)
    with contextlib.suppress(OSError):  # only Linux has it
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)


def merged_outer(saved: Saved) -> "tuple[InstanceId, torch.Tensor]":
    """Return the single instance with its outer parameters, or the target of a merge of all with their weighted mean."""
    from adloco_p2p.core.planning.merge_policy import final_merge
    from adloco_p2p.numerics.reduction import weighted_average

    plans = _plans_of(saved)
    if len(plans) < 2:
        return saved.instances[0], saved.outer(saved.instances[0])
    merge = final_merge(plans, rules=saved.run.merge)
    return merge.target, weighted_average([saved.outer(source) for source in merge.sources], merge.weights)


def _plans_of(saved: Saved) -> list[InstancePlan]:
    """Return the newest plan that has all saved instances; a later one may have merged some of them."""
    plans = saved.durable.plans
    wanted = set(saved.instances)
    plan = next((plan for plan in reversed(plans) if wanted <= {item.instance for item in plan.instances}), plans[-1])
    return [item for item in plan.instances if item.instance in wanted]


def _transformers_tokenizer(run: RunConfig) -> "transformers.PreTrainedTokenizerBase":
    """Return the run's tokenizer as users of the exported model load it."""
    import transformers

    from adloco_p2p.data.tokenizer import open_tokenizer

    with tempfile.TemporaryDirectory() as directory:
        open_tokenizer(run.tokenizer).save(Path(directory))
        return transformers.AutoTokenizer.from_pretrained(directory)
