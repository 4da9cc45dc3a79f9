"""A run that begins with a pretrained model: its tokenizer and its end tokens are the model's own, in and out."""

import json
from pathlib import Path

import peft
import pytest
import torch
import transformers

from adloco_p2p.config.load import load_run
from adloco_p2p.config.run_config import ModelConfig, RunConfig, TokenizerConfig
from adloco_p2p.data.tokenizer import ByteTokenizer, check_vocabulary, open_tokenizer
from adloco_p2p.errors import ConfigError
from adloco_p2p.storage.workdir import read_run
from adloco_p2p.training.model import build_model
from tests.e2e.processes import CONNECTED, TINY_MODEL, run, write_text

END_TOKENS = [256, 7]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer, and two end tokens as models for conversations have."""
    folder = tmp_path_factory.mktemp("models") / "mine"
    model = build_model(ModelConfig(**TINY_MODEL), vocab_size=257, sequence_length=32, seed=1)  # type: ignore[arg-type]
    assert model.generation_config is not None
    model.generation_config.eos_token_id = END_TOKENS
    model.generation_config.repetition_penalty = 1.25
    model.save_pretrained(folder)
    ByteTokenizer().save(folder)
    return folder


def other_tokenizer(folder: Path) -> Path:
    """The byte tokenizer with every id of a letter moved by one."""
    ByteTokenizer().save(folder)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    vocabulary = document["model"]["vocab"]
    document["model"]["vocab"] = {token: (index + 1) % 256 for token, index in vocabulary.items() if index < 256} | {
        token: index for token, index in vocabulary.items() if index >= 256
    }
    path.write_text(json.dumps(document))
    return folder


def test_it_trains_on_its_own_tokens_and_keeps_its_end_tokens(pretrained: Path, tmp_path: Path) -> None:
    write_text(tmp_path, num_paragraphs=60)
    settings = [
        f"model.pretrained={pretrained}",
        "data.source=text",
        f"data.path={tmp_path / 'text.txt'}",
        "data.sequence_length=32",
        "work.rounds=1",
        "work.inner_steps=2",
        "instances.count=1",
    ]
    workdir, output = tmp_path / "work", tmp_path / "model"
    ended = run(["start", "--set", *settings, "--workdir", workdir, "--offline", *CONNECTED], folder=tmp_path)
    assert ended.code == 0, ended
    trained = read_run(workdir)
    assert trained is not None and trained.tokenizer.source == str(pretrained)
    assert run(["export", "--workdir", workdir, "--output", output], folder=tmp_path).code == 0
    generation = transformers.GenerationConfig.from_pretrained(output)
    assert (generation.eos_token_id, generation.repetition_penalty) == (END_TOKENS, 1.25)
    assert len(transformers.AutoTokenizer.from_pretrained(output)) == 257


def test_a_tokenizer_of_another_model_is_refused(pretrained: Path, tmp_path: Path) -> None:
    other, same = other_tokenizer(tmp_path / "other"), tmp_path / "same"
    ByteTokenizer().save(same)
    for source in (same, other):
        tokenizer = TokenizerConfig(source=str(source))
        with_model = RunConfig(model=ModelConfig(pretrained=str(pretrained)), tokenizer=tokenizer)
        if source == same:
            check_vocabulary(with_model, open_tokenizer(tokenizer))
            continue
        with pytest.raises(ConfigError, match=r"does not belong to model\.pretrained .*: 256 of 257 ids") as refused:
            check_vocabulary(with_model, open_tokenizer(tokenizer))
        assert refused.value.code == "E208"


def test_bytes_do_not_go_with_a_pretrained_model(pretrained: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.source: bytes, .*leave tokenizer\.source out"):
        load_run(None, [f"model.pretrained={pretrained}", "tokenizer.source=bytes"])


@pytest.mark.parametrize("name", ["./nomodel", "../no/model", "/no/model", "three/part/name"])
def test_a_path_that_is_not_there_is_not_asked_of_the_hub(name: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.pretrained: .* there is no such directory"):
        build_model(ModelConfig(pretrained=name), vocab_size=257, sequence_length=32, seed=1)
    with pytest.raises(ConfigError, match=r"tokenizer\.source: .* there is no such directory"):
        open_tokenizer(TokenizerConfig(source=name))


CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_a_run_of_adapters_exports_the_merged_model_and_the_adapter(
    dtype: str | None, pretrained: Path, tmp_path: Path
) -> None:
    """Generation settings, end tokens, chat template and dtype are those of the base; no file names a path of this machine."""
    base = tmp_path / "base"
    transformers.AutoModelForCausalLM.from_pretrained(pretrained, dtype=torch.bfloat16).save_pretrained(base)
    tokenizer = transformers.AutoTokenizer.from_pretrained(pretrained)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(base)
    write_text(tmp_path, num_paragraphs=60)
    settings = [
        f"model.pretrained={base}",
        "model.lora.rank=2",
        "data.source=text",
        f"data.path={tmp_path / 'text.txt'}",
        "data.sequence_length=32",
        "work.rounds=2",
        "work.inner_steps=2",
    ]
    workdir, output = tmp_path / "work", tmp_path / "model"
    ended = run(["start", "--set", *settings, "--workdir", workdir, "--offline", *CONNECTED], folder=tmp_path)
    assert ended.code == 0, ended
    options = [] if dtype is None else ["--dtype", dtype]
    ended = run(["export", "--workdir", workdir, "--output", output, *options], folder=tmp_path)
    assert ended.code == 0, ended
    merged = transformers.AutoModelForCausalLM.from_pretrained(output)
    assert merged.dtype == getattr(torch, dtype or "bfloat16")
    assert (merged.generation_config.eos_token_id, merged.generation_config.repetition_penalty) == (END_TOKENS, 1.25)
    assert transformers.AutoTokenizer.from_pretrained(output).chat_template == CHAT_TEMPLATE
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(plain, output / "adapter").eval()
    ids = torch.arange(32)[None]
    with torch.no_grad():
        off = (adapted(input_ids=ids).logits - merged.float()(input_ids=ids).logits).abs().max()
    assert off < 0.02, "the merged weights differ by more than their rounding"
    named = [path.name for path in output.rglob("*") if path.is_file() and str(tmp_path).encode() in path.read_bytes()]
    assert not named
    modes = {path.stat().st_mode & 0o777 for path in output.rglob("*") if path.is_file()}
    assert len(modes) == 1, "whoever may read the configuration may read the weights"


def test_evaluation_on_a_named_file(pretrained: Path, tmp_path: Path) -> None:
    """It needs neither the run's own data nor many rows, and differs with the file."""
    write_text(tmp_path, num_paragraphs=60)
    settings = [f"model.pretrained={pretrained}", "data.source=text", f"data.path={tmp_path / 'text.txt'}"]
    settings += [
        "data.sequence_length=32",
        "work.rounds=1",
        "work.inner_steps=8",
        "inner.warmup_samples=16",
        "instances.count=1",
    ]
    workdir = tmp_path / "work"
    ended = run(["start", "--set", *settings, "--workdir", workdir, "--offline", *CONNECTED], folder=tmp_path)
    assert ended.code == 0, ended
    same, other = tmp_path / "same.txt", tmp_path / "other.txt"
    same.write_text((tmp_path / "text.txt").read_text()[:200])
    other.write_text("0123456789 " * 20)
    losses = []
    for path in (same, other):
        ended = run(["evaluate", "--workdir", workdir, "--data", path, "--json"], folder=tmp_path)
        assert ended.code == 0, ended
        losses.append(json.loads(ended.output)["instances"][0]["heldout_loss"])
    assert losses[0] < losses[1] - 0.2, losses
    (tmp_path / "a.csv").write_text("text")
    for name, problem in (("none.txt", "no such file"), ("none", "no such file"), ("a.csv", "only files with .json")):
        ended = run(["evaluate", "--workdir", workdir, "--data", tmp_path / name], folder=tmp_path)
        assert ended.code == 2 and problem in ended.errors, ended
