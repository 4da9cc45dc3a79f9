"""A chat model of 18,560 parameters that lies in a folder, and a run that trains adapters of it on conversations."""

import json
from pathlib import Path

import torch
import yaml

from adloco_p2p.config.run_config import ModelConfig
from adloco_p2p.training.model import build_model
from tests.data.test_chat_template import save_tokenizer
from tests.e2e.processes import TINY_MODEL


def save_chat_model(folder: Path, *, dtype: torch.dtype = torch.float32) -> None:
    model = build_model(ModelConfig(**TINY_MODEL), vocab_size=259, sequence_length=64, seed=1)  # type: ignore[arg-type]
    model.to(dtype).save_pretrained(folder)
    save_tokenizer(folder)


def write_adapter_config(folder: Path, answer: str, **sections: object) -> Path:
    """Everything that the run needs lies in the folder; every answer of its conversations is the same but for `{n}`."""
    save_chat_model(folder / "base", dtype=torch.bfloat16)
    talks = [
        [{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": answer.format(n=n + 1)}] for n in range(200)
    ]
    (folder / "talks.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    document = {
        "mode": "diloco",
        "model": {"pretrained": str(folder / "base"), "lora": {"rank": 2}},
        "data": {
            "source": "json",
            "path": str(folder / "talks.jsonl"),
            "messages_column": "messages",
            "sequence_length": 64,
            "heldout_fraction": 0.2,
        },
        "batch": {"initial_batch": 4, "max_batch": 4},
        "averaging": {"codec": "int8"},
        **sections,
    }
    path = folder / "finetune.yaml"
    path.write_text(yaml.safe_dump(document))
    return path
