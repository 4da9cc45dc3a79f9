"""Scores of a model on tasks of lm-eval, the evaluation harness of EleutherAI."""

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import transformers

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.errors import ConfigError, DeviceError, brief


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    name: str
    digest: Digest
    """The digest of what was asked: every document, prompt and expected answer, and the metrics. Scores with equal digests can
    be compared."""
    num_documents: int
    metrics: Mapping[str, float]
    """Metrics by lm-eval's names without the filter `none`: `acc`, `acc_stderr`, `exact_match,strict-match`."""


class WritePrompt(Protocol):
    def __call__(self, messages: Sequence[Mapping[str, str]], *, is_begun: bool) -> str:
        """Return the text of a conversation up to the answer, or up to where an answer that `is_begun` goes on."""


def score_tasks(
    model: transformers.PreTrainedModel,
    tokenizer: Any,
    tasks: Sequence[str],
    *,
    batch_size: int,
    limit: int | None,
    write_prompt: WritePrompt | None = None,
    tasks_path: Path | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[TaskScore]:
    """Return the scores of a causal model, on its device. `tasks`: names of lm-eval's tasks, or YAML files of tasks, whose code
    is run. `limit`: the first documents of each task; None: all. `write_prompt` applies a chat template; None: plain prompts.
    `tasks_path`: a directory of further tasks, whose names come before those of lm-eval. `on_progress` is told in words how far
    the work has come, some times a second, in place of lm-eval's own bars.

    Raises DeviceError where lm-eval is not installed, and ConfigError where a task or its data cannot be loaded.
    """
    try:
        import lm_eval.api.model
        import lm_eval.api.task
        import lm_eval.evaluator
        import lm_eval.models.huggingface
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise DeviceError(
            "--tasks: lm-eval is not installed; in the checkout: pip install -c constraints.txt '.[lm-eval]'", code="E521"
        ) from error
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # git complains outside of a repository
    lm_eval.evaluator.get_git_commit_hash = lambda: None  # git complains outside of a repository
    lm_eval.api.task.tqdm = _silent(lm_eval.api.task.tqdm, "prompts written", on_progress)
    lm_eval.api.model.tqdm = _silent(lm_eval.api.model.tqdm, "prompts read", on_progress)
    lm_eval.models.huggingface.tqdm = _silent(lm_eval.models.huggingface.tqdm, "answers scored", on_progress)
    own = TaskManager(include_path=str(tasks_path), include_defaults=False) if tasks_path is not None else None
    if own is not None and all(task in own.all_tasks or _is_file(task) for task in tasks):
        manager = own
    else:
        manager = TaskManager(  # thousands of files are read for the defaults
            include_path=str(tasks_path) if tasks_path is not None else None,
            include_defaults=not all(_is_file(task) for task in tasks),
        )
    language_model = HFLM if write_prompt is None else _with_prompts_by(write_prompt, HFLM)
    try:
        found = lm_eval.simple_evaluate(
            language_model(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, device=str(model.device)),
            tasks=list(tasks),
            task_manager=manager,
            limit=limit,
            apply_chat_template=write_prompt is not None,
            log_samples=True,
        )
    except (KeyError, ValueError, OSError) as error:  # an unknown name or form, or missing data
        raise ConfigError(f"--tasks {' '.join(tasks)}: {brief(error)}", code="E223") from error
    assert found is not None, "one process"
    return [_score(name, samples, found["results"][name]) for name, samples in found["samples"].items()]


def _with_prompts_by(write_prompt: WritePrompt, kind: type) -> type:
    """Return lm-eval's kind of model with prompts by `write_prompt`; its own would render the template in this process and
    without limits."""

    def apply_chat_template(_self: Any, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return write_prompt(chat_history, is_begun=not add_generation_prompt)

    return type("Prompted", (kind,), {"apply_chat_template": apply_chat_template})


def _silent(bar: Any, words: str, on_progress: Callable[[str], None]) -> type:
    """Return a kind of tqdm's progress bar that draws nothing, and tells `on_progress` where it is instead."""

    class Silent(bar):  # type: ignore[misc]  # tqdm has no types
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **(settings | {"file": io.StringIO()}))

        def display(self, *_: object, **__: object) -> None:
            on_progress(f"{self.n} of {self.total} {words}")

    return Silent


def _is_file(task: str) -> bool:
    return task.endswith((".yaml", ".yml"))


def _score(name: str, samples: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> TaskScore:
    metrics = {
        key.removesuffix(",none"): float(value)
        for key, value in result.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key != "sample_len"
    }
    asked = [[sample[part] for part in ("doc_hash", "prompt_hash", "target_hash", "filter")] for sample in samples]
    return TaskScore(
        name=name,
        digest=canonical.digest([name, sorted({metric for sample in samples for metric in sample["metrics"]}), asked]),
        num_documents=len({sample["doc_id"] for sample in samples}),
        metrics=metrics,
    )
