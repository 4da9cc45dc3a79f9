"""A run that starts from what another run, or a training script, has made."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from adloco_p2p.commands.trained_model import open_saved
from adloco_p2p.config.load import load_run
from adloco_p2p.numerics.layout import flatten
from adloco_p2p.storage.workdir import read_run
from adloco_p2p.training.model import build_model
from tests.e2e.processes import MACHINE, Ended, events, run, write_config


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def finished(config: Path) -> Path:
    """A folder with `work`, a whole run that began with three instances, and its export in `model`."""
    folder = config.parent
    command(folder, "start", config, "--workdir", folder / "work", *MACHINE)
    command(folder, "export", "--workdir", folder / "work", "--output", folder / "model")
    return folder


def command(folder: Path, *arguments: object) -> Ended:
    ended = run(arguments, folder=folder)
    assert ended.code == 0, ended
    return ended


def test_a_finished_run_is_prolonged_by_a_new_one_that_names_it(finished: Path, config: Path, tmp_path: Path) -> None:
    """With another number of instances. It begins with the very parameters that the first one ended with."""
    settings = (f"model.pretrained={finished / 'model'}", "instances.count=2", "instances.start=same", "work.rounds=2")
    command(tmp_path, "start", config, "--set", *settings, "--workdir", tmp_path / "work", *MACHINE)
    first, second = read_run(finished / "work"), read_run(tmp_path / "work")
    assert first is not None and second is not None
    assert (second.model.parent, first.model.parent) == (first.digest, "")
    start = flatten(build_model(second.model, vocab_size=257, sequence_length=32, seed=9))
    saved = open_saved(finished / "work")
    assert torch.equal(start, saved.outer(saved.instances[0]))
    before, after = (
        [event["heldout_loss"] for event in events(work) if event["event"] == "round" and event["round"] == 0]
        for work in (finished / "work", tmp_path / "work")
    )
    assert max(after) < min(before) - 0.1, "it does not begin anew"
    assert {event["instance"] for event in events(tmp_path / "work") if event["event"] == "round"} == {0, 1}


def test_adapters_start_from_a_run_that_trained_the_whole_model(finished: Path, config: Path, tmp_path: Path) -> None:
    settings = (f"model.pretrained={finished / 'model'}", "model.lora.rank=2", "work.rounds=1", "instances.count=1")
    command(tmp_path, "start", config, "--set", *settings, "--workdir", tmp_path / "work", *MACHINE)
    command(tmp_path, "export", "--workdir", tmp_path / "work", "--output", tmp_path / "model")
    first = read_run(finished / "work")
    assert first is not None and f"Its parent is run `{first.digest}`" in (tmp_path / "model" / "README.md").read_text()


def test_a_run_starts_from_a_state_dict(finished: Path, config: Path, tmp_path: Path) -> None:
    source = transformers.AutoModelForCausalLM.from_pretrained(finished / "model")
    torch.save({"model": source.state_dict(), "step": 3}, tmp_path / "weights.pt")
    model = tmp_path / "imported"
    command(tmp_path, "import", config, "--weights", tmp_path / "weights.pt", "--output", model)
    settings = (f"model.pretrained={model}", "work.rounds=1", "instances.count=1")
    command(tmp_path, "start", config, "--set", *settings, "--workdir", tmp_path / "work", *MACHINE)
    imported = load_run(config, [f"model.pretrained={model}"]).value.model
    assert torch.equal(flatten(build_model(imported, vocab_size=257, sequence_length=32, seed=1)), flatten(source))
    named = [path.name for path in model.iterdir() if str(tmp_path).encode() in path.read_bytes()]
    assert not named and json.loads((model / "config.json").read_text())["hidden_size"] == 32


def test_weights_of_another_model_are_refused(finished: Path, config: Path, tmp_path: Path) -> None:
    torch.save({"model.embed_tokens.weight": torch.zeros(257, 16)}, tmp_path / "weights.pt")
    shapes = "1 tensors of another shape: model.embed_tokens.weight [257, 16] instead of [257, 32]"
    for weights, code, problem in (("weights.pt", "E209", shapes), ("none.pt", "E200", "none.pt: no such file")):
        ended = run(["import", config, "--weights", tmp_path / weights, "--output", tmp_path / "imported"], folder=tmp_path)
        assert ended.code == 2 and code in ended.errors and problem in ended.errors, ended
        assert not (tmp_path / "imported").exists()
