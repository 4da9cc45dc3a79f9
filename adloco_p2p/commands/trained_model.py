"""Verbs that use a trained model. They read the last complete checkpoint and disturb no running peer."""

import argparse
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from adloco_p2p.commands.console import call, say, say_exactly, say_json
from adloco_p2p.commands.model_card import model_card
from adloco_p2p.commands.push import check_push, push
from adloco_p2p.config.local_files import with_shared_inputs
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.events import Durable
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.errors import ConfigError, StorageError
from adloco_p2p.storage.disk import filling, share_mode
from adloco_p2p.storage.workdir import EXPORT_RECORD, check_output, meant_workdir, read_run

if TYPE_CHECKING:
    import torch
    import transformers

    from adloco_p2p.data.tokenizer import Tokenizer
    from adloco_p2p.storage.checkpoint import CheckpointStore

Read = TypeVar("Read")

ADAPTER_DIRECTORY = "adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A run's last checkpoint in a working directory."""

    run: RunConfig
    sources: RunConfig
    """The run as this machine reads it; see `with_shared_inputs`."""
    store: "CheckpointStore"
    round: int
    instances: tuple[InstanceId, ...]
    durable: Durable

    def instance(self, wanted: int | None) -> InstanceId:
        """Return the requested instance; by default the only one, or the first. Raises ConfigError."""
        if wanted is None:
            return self.instances[0]
        if wanted not in self.instances:
            raise ConfigError(f"--instance {wanted}: this checkpoint holds {', '.join(map(str, self.instances))}", code="E200")
        return InstanceId(wanted)

    def outer(self, instance: InstanceId) -> "torch.Tensor":
        """Return the outer parameters, flat float32 [P]."""
        return self.store.load_instance(self.round, instance)[0]["outer"].float()


def open_saved(workdir: Path) -> Saved:
    """Open the last checkpoint. Raises ConfigError where the directory holds no run or no checkpoint yet, and StorageError
    where it cannot be read."""
    run = read_run(workdir)
    if run is None and (meant := meant_workdir(workdir)):
        raise ConfigError(f"--workdir {workdir}: the directory of a swarm; did you mean {meant}?", code="E204")
    if run is None:
        begin = call("start", "CONFIG", "--workdir", workdir)
        raise ConfigError(f"--workdir {workdir}: holds no run; `{begin}` makes one", code="E204")
    from adloco_p2p.storage.checkpoint import CheckpointStore  # torch takes seconds to import: mistakes are reported before

    store = CheckpointStore(directory=workdir / "checkpoints", run=run.digest, kept=2)
    latest = store.latest() if store.directory.is_dir() else None
    if latest is None or not latest.instances:
        raise ConfigError(f"--workdir {workdir}: no checkpoint yet; the first is written at the end of a round", code="E204")
    return Saved(
        run=run,
        sources=with_shared_inputs(run, workdir),
        store=store,
        round=latest.round,
        instances=latest.instances,
        durable=latest.durable,
    )


def read_saved(workdir: Path, read: Callable[[Saved], Read]) -> tuple[Saved, Read]:
    """Return the last checkpoint, and the result of `read` on it; both of a newer one where a running node removed it
    meanwhile. Raises ConfigError and StorageError."""
    while True:
        saved = open_saved(workdir)
        try:
            return saved, read(saved)
        except StorageError:
            if saved.store.holds(saved.round):
                raise


def load_model(run: RunConfig, outer: "torch.Tensor", instance: InstanceId) -> "torch.nn.Module":
    """Return the model on the CPU in fp32, with outer parameters [P] of the instance; adapters stay beside their base."""
    from adloco_p2p.data.tokenizer import open_tokenizer
    from adloco_p2p.numerics.layout import unflatten_
    from adloco_p2p.training.model import build_model
    from adloco_p2p.training.seeds import initial_seed

    exact = replace(run.model, lora=replace(run.model.lora, base_precision="float32"))  # rounded once, when it is written
    module: torch.nn.Module = build_model(
        exact,
        vocab_size=open_tokenizer(run.tokenizer).vocab_size,
        sequence_length=run.data.sequence_length,
        seed=initial_seed(run, instance),
    )
    unflatten_(module, outer)
    return module.eval()


def export(arguments: argparse.Namespace) -> int:
    """Write a directory with weights, configuration and tokenizer, as `AutoModelForCausalLM` and `AutoTokenizer` load it.
    Adapters are merged, and also written alone to `adapter/`. Uploads only where `--push` names a repository."""
    if arguments.push is not None:
        check_push(arguments.push)
    record = write_export(arguments.workdir, arguments.output, instance=arguments.instance, dtype=arguments.dtype)
    pushed = None if arguments.push is None else push(arguments.output, arguments.push, message="Export by adloco-peer")
    if arguments.json:
        say_json({**record, "uploaded": pushed})
        return 0
    say(export_words(record))
    if pushed is not None:
        say(f"uploaded: {pushed}")
    return 0


def export_words(record: Mapping[str, Any]) -> str:
    number = record["instances"]
    others = f" (of {number} unmerged instances)" if number > 1 else ""
    what = f"instance {record['instance']}{others} after round {record['round']} of a run of {record['length']}"
    return f"{record['output']}: {what}"


def write_export(workdir: Path, output: Path, *, instance: int | None, dtype: str | None = None) -> Mapping[str, Any]:
    """Write the last checkpoint's model into a new or empty directory, and return a record of it. `dtype`: torch's name of the
    type; None: that of the pretrained weights. Raises ConfigError and StorageError."""
    check_output(output)  # before the imports, which take seconds
    import torch
    import transformers

    from adloco_p2p.data.tokenizer import open_tokenizer

    transformers.utils.logging.disable_progress_bar()
    saved, outer = read_saved(workdir, lambda saved: saved.outer(saved.instance(instance)))
    model = load_model(saved.sources, outer, saved.instance(instance))
    from adloco_p2p.training.adapters import merged, save_adapter  # seconds to import: a wrong directory was refused before
    from adloco_p2p.training.pretrained import stored_dtype

    chosen, run = saved.instance(instance), saved.run
    tokenizer = open_tokenizer(saved.sources.tokenizer)
    card = model_card(workdir, run, round=saved.round, instance=chosen)
    with filling(output):
        if run.model.lora.rank:
            save_adapter(model, run.model, output / ADAPTER_DIRECTORY)
        plain = merged(model) if run.model.lora.rank else cast("transformers.PreTrainedModel", model)
        plain = plain.to(stored_dtype(saved.sources.model) if dtype is None else getattr(torch, dtype))
        if (settings := _generation_settings(plain)) is not None:
            settings.eos_token_id = end_tokens(plain, tokenizer.end_of_document)
        plain.save_pretrained(output)
        share_mode(output)
        tokenizer.save(output)
        record = {"run": run.digest, "name": run.name, "round": saved.round, "instance": chosen}
        (output / "README.md").write_text(card, encoding="utf-8")
        (output / EXPORT_RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return {**record, "output": str(output), "instances": len(saved.instances), "length": run.work.length}


def end_tokens(model: "transformers.PreTrainedModel", end_of_document: int) -> int | list[int]:
    """Return the ids that end a text: those of a pretrained model, which may be several; otherwise the tokenizer's."""
    settings = _generation_settings(model)
    known = settings.eos_token_id if settings is not None else None
    return end_of_document if known is None else known


def _generation_settings(model: "transformers.PreTrainedModel") -> "transformers.GenerationConfig | None":
    """Return the settings; None for a model of a plugin that transformers cannot generate with."""
    return getattr(model, "generation_config", None)


def sleep_while_waiting() -> None:
    """Let the threads of torch sleep while they wait for each other. They spin otherwise, and disturb a run that trains on the
    same cores: 40 tokens beside five busy threads on two cores took 32 s, not 14. Torch reads this once, at its import."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def generate(arguments: argparse.Namespace) -> int:
    """Continue the prompt; a model of conversations answers it."""
    sleep_while_waiting()
    import torch

    from adloco_p2p.data.tokenizer import open_tokenizer
    from adloco_p2p.training.sample_text import continued

    if not 0 <= arguments.temperature < math.inf:
        raise ConfigError(f"--temperature {arguments.temperature}: a number from 0 on is accepted", code="E200")
    saved, outer = read_saved(arguments.workdir, lambda saved: saved.outer(saved.instance(arguments.instance)))
    model = load_model(saved.sources, outer, saved.instance(arguments.instance))
    tokenizer = open_tokenizer(saved.sources.tokenizer)
    room = saved.run.data.sequence_length
    is_chat = saved.run.data.messages_column is not None
    prompt, ends = _prompt(tokenizer, arguments.prompt, is_chat=is_chat) if arguments.prompt else ([], set())
    if not prompt:
        raise ConfigError("--prompt: an empty text cannot be continued; give at least one character", code="E200")
    found = end_tokens(cast("transformers.PreTrainedModel", model), tokenizer.end_of_document)
    ends |= {tokenizer.end_of_document, *(found if isinstance(found, list) else [found])}

    def next_logits(ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=ids[None], use_cache=False).logits[0, -1]
        return logits.float()

    new = continued(
        next_logits,
        prompt[-room:],
        num_tokens=arguments.max_new_tokens,
        room=room,
        ends=ends,
        temperature=arguments.temperature,
        seed=arguments.seed,
    )
    text = tokenizer.decode(new)
    if arguments.json:
        say_json({"prompt": arguments.prompt, "text": text})
    else:
        say_exactly(arguments.prompt + ("\n" if is_chat else "") + text)
    return 0


def _prompt(tokenizer: "Tokenizer", text: str, *, is_chat: bool) -> tuple[list[int], set[int]]:
    """Return the prompt as token ids, and the control tokens that end an answer to it. Raises ConfigError."""
    from adloco_p2p.data.chat_template import ChatTemplate

    if not is_chat:
        return tokenizer.encode([text])[0].tolist(), set()
    with closing(ChatTemplate(tokenizer)) as chat:
        return chat.question(text).tolist(), chat.ends()
