"""Settings that do nothing are named, and stop nothing."""

from pathlib import Path

import pytest

from adloco_p2p.cli import main
from adloco_p2p.config.documents import shipped
from adloco_p2p.config.load import load_run


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["model.pretrained=DIR", "tokenizer.source=DIR", "model.architecture={model_type: gpt2}"],
            "model.architecture is ignored",
        ),
        (["model.lora.alpha=8"], "model.lora.alpha: 8.0 is ignored: model.lora.rank is 0"),
        (["model.lora.targets=[q_proj]"], "model.lora.targets: "),
        (["inner.momentum=0.9"], "inner.momentum: 0.9 is ignored: inner.kind is adamw"),
        (
            ["inner.batch_scaling=none", "inner.batch_scaling_cap=3"],
            "ignored: inner.batch_scaling is none",
        ),
        (["batch.test=constant", "inner.batch_scaling=sqrt", "inner.batch_scaling_cap=3"], "ignored: batch.test is constant"),
        (
            ["data.source=text", "data.path=a.txt", "data.heldout_path=b.txt", "data.heldout_fraction=0.1"],
            "data.heldout_fraction: 0.1 is ignored: data.heldout_path b.txt names the held-out data",
        ),
        (["evaluation.sample_prompts=[def]"], "evaluation.sample_prompts is ignored"),
    ],
)
def test_a_setting_that_does_nothing_is_named(settings: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (notice,) = load_run(None, settings).notices
    assert words in notice and "; " in notice
    assert main(["config", "show", "--json", "--set", *settings]) == 0
    told = capsys.readouterr()
    assert told.err.strip() == notice and "ignored" not in told.out


@pytest.mark.parametrize(
    "settings",
    [
        ["inner.kind=muon", "inner.momentum=0.9"],
        ["model.pretrained=DIR", "tokenizer.source=DIR", "model.lora.rank=8", "model.lora.alpha=8"],
        ["inner.batch_scaling=sqrt", "inner.batch_scaling_cap=3"],
        ["evaluation.sample_prompts=[def]", "evaluation.sample_tokens=9"],
        ["data.heldout_fraction=0.1"],
    ],
)
def test_a_setting_that_does_something_is_not(settings: list[str]) -> None:
    assert load_run(None, settings).notices == ()


@pytest.mark.parametrize("name", shipped())
def test_shipped_configurations_have_no_such_setting(name: str) -> None:
    assert load_run(Path(name)).notices == ()
