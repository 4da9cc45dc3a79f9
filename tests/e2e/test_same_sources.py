"""Every peer of a run starts from the same weights, tokenizer and files, or is refused with both digests."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from adloco_p2p.commands.train import _identified
from adloco_p2p.config.local_files import check_sources, is_hub_id, with_plain_paths
from adloco_p2p.config.run_config import DataConfig, ModelConfig, RunConfig, TokenizerConfig
from adloco_p2p.data.feed import open_feed
from adloco_p2p.data.tokenizer import ByteTokenizer, open_tokenizer
from adloco_p2p.errors import ConfigError
from adloco_p2p.storage.workdir import EXPORT_RECORD, read_run
from adloco_p2p.training.model import build_model
from tests.e2e.processes import CONNECTED, TINY_MODEL, run, write_text

HEX = r"[0-9a-f]{64}"


def save_model(folder: Path, seed: int) -> None:
    model = build_model(ModelConfig(**TINY_MODEL), vocab_size=257, sequence_length=32, seed=seed)  # type: ignore[arg-type]
    model.save_pretrained(folder)
    ByteTokenizer().save(folder)


def run_over(folder: Path) -> RunConfig:
    save_model(folder / "models" / "mine", 1)
    write_text(folder, num_paragraphs=60)
    return replace(
        RunConfig(),
        model=ModelConfig(pretrained="models/mine"),
        tokenizer=TokenizerConfig(source="models/mine"),
        data=DataConfig(source="text", path="text.txt", sequence_length=32, heldout_fraction=0.2),
    )


def test_a_directory_of_the_author_is_never_a_hub_id_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "author").mkdir()
    (tmp_path / "joiner").mkdir()
    monkeypatch.chdir(tmp_path / "author")
    started = with_plain_paths(run_over(Path()))
    assert (started.model.pretrained, started.tokenizer.source) == ("./models/mine", "./models/mine")
    monkeypatch.chdir(tmp_path / "joiner")
    assert is_hub_id("models/mine") and not is_hub_id("./models/mine")
    with pytest.raises(ConfigError, match="there is no such directory on this machine"):
        check_sources(started)


def test_other_bytes_are_refused_with_both_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "author").mkdir()
    monkeypatch.chdir(tmp_path / "author")
    started = _identified(run_over(Path()))
    assert started.model.digest and started.tokenizer.digest and started.data.digest and not started.model.parent
    assert _identified(started) == started
    (tmp_path / "joiner").mkdir()
    monkeypatch.chdir(tmp_path / "joiner")
    run_over(Path())
    open_feed(started, cache_dir=None)
    build_model(started.model, vocab_size=257, sequence_length=32, seed=1)

    Path("text.txt").write_text(Path("text.txt").read_text() + " more")
    with pytest.raises(ConfigError, match=rf"data\.path: .* digest {HEX} here, .* {started.data.digest}") as refused:
        open_feed(started, cache_dir=None)
    assert refused.value.code == "E218"
    save_model(Path("models/mine"), 2)
    with pytest.raises(ConfigError, match=rf"model\.pretrained: .* digest {HEX} here, .* {started.model.digest}"):
        build_model(started.model, vocab_size=257, sequence_length=32, seed=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained("models/mine")
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained("models/mine")
    with pytest.raises(ConfigError, match=rf"tokenizer\.source: .* digest {HEX} here, .* {started.tokenizer.digest}"):
        open_tokenizer(started.tokenizer)


def test_a_run_from_the_export_of_another_names_its_parent_and_keeps_its_weights(tmp_path: Path) -> None:
    save_model(tmp_path / "base", 1)
    write_text(tmp_path, num_paragraphs=60)
    common = [
        "data.source=text",
        f"data.path={tmp_path / 'text.txt'}",
        "data.sequence_length=32",
        "work.rounds=1",
        "work.inner_steps=2",
        "instances.count=1",
    ]

    def train(name: str, source: Path, *extra: str) -> tuple[RunConfig, Path]:
        settings = [*common, f"model.pretrained={source}", *extra]
        ended = run(["start", "--set", *settings, "--workdir", tmp_path / name, "--offline", *CONNECTED], folder=tmp_path)
        assert ended.code == 0, ended
        output = tmp_path / f"{name}-model"
        assert run(["export", "--workdir", tmp_path / name, "--output", output], folder=tmp_path).code == 0
        trained = read_run(tmp_path / name)
        assert trained is not None
        return trained, output

    first, exported = train("first", tmp_path / "base")
    second, _ = train("second", exported, "model.lora.rank=2")  # another form of training, on the same model
    assert (first.model.parent, second.model.parent) == ("", first.digest)

    weights = exported / "model.safetensors"
    model = transformers.AutoModelForCausalLM.from_pretrained(exported)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    weights.unlink()
    model.save_pretrained(exported)
    assert (exported / EXPORT_RECORD).exists()
    arguments = ["start", "--set", *common, f"model.pretrained={exported}", "model.lora.rank=2"]
    ended = run([*arguments, "--workdir", tmp_path / "second", "--offline", *CONNECTED], folder=tmp_path)
    assert ended.code == 2 and "E203" in ended.errors and "model.digest: " in ended.errors, ended
    ended = run(["export", "--workdir", tmp_path / "second", "--output", tmp_path / "x"], folder=tmp_path)
    assert ended.code == 2 and "E218" in ended.errors and second.model.digest in ended.errors, ended


def test_a_new_run_does_not_evaluate_on_what_it_trains_on(tmp_path: Path) -> None:
    write_text(tmp_path, num_paragraphs=60)
    config = tmp_path / "run.yaml"
    text = tmp_path / "text.txt"
    config.write_text(f"data: {{source: text, path: '{tmp_path}/t*.txt', heldout_path: '{text}'}}\n")
    ended = run(["start", config, "--workdir", tmp_path / "work", "--offline", *CONNECTED], folder=tmp_path)
    assert ended.code == 2 and f"data.heldout_path: {text} would also be trained on, by data.path" in ended.errors, ended
    assert read_run(tmp_path / "work") is None
