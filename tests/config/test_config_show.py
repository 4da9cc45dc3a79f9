"""`config show`, the differences of two configurations, and the words under the fields."""

import dataclasses
import inspect
import json
from typing import Annotated

import pytest
from annotated_types import MultipleOf

from adloco_p2p.config import fields
from adloco_p2p.config.fields import differences
from adloco_p2p.config.load import load_peer, load_run, show
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import ModelConfig, RunConfig
from adloco_p2p.core.model.rules import WorkRules


def test_every_setting_is_shown_with_value_origin_and_meaning() -> None:
    loaded = load_run(None, ["work.max_step_ratio=2"])
    text = show(loaded, as_json=False)
    lines = text.splitlines()
    assert lines[0] == f"# run {loaded.value.digest}"
    place = lines.index("work.max_step_ratio = 2.0    [--set]")
    assert lines[place + 1] == "    A fast host never does more than this many times H inner steps."
    assert 'mode = "adloco"    [file configs/default.yaml]' in lines
    assert {line.partition(" = ")[0] for line in lines if " = " in line} == loaded.origins.keys()


def test_a_table_is_explained_once() -> None:
    text = show(load_run(None), as_json=False)
    assert text.count("Arguments of the `transformers` configuration") == 1
    assert 'model.architecture.model_type = "llama"    [default]' in text


def test_the_json_form_is_complete() -> None:
    loaded = load_run(None, ["seed=9"])
    document = json.loads(show(loaded, as_json=True))
    assert document["digest"] == loaded.value.digest
    assert document["origins"] == loaded.origins and document["values"].keys() == loaded.origins.keys()
    assert document["values"]["seed"] == 9 and document["values"]["inner.betas"] == [0.9, 0.95]
    assert document["values"]["model.architecture.model_type"] == "llama"


def test_a_machine_has_no_digest() -> None:
    loaded = load_peer(None)
    assert json.loads(show(loaded, as_json=True))["digest"] is None
    assert show(loaded, as_json=False).splitlines()[0] == 'device = "auto"    [default]'


@pytest.mark.parametrize("kind", [RunConfig, PeerConfig])
def test_the_words_come_from_the_source(kind: type) -> None:
    settings = fields.settings_of(kind)
    assert len(settings) > 15
    assert sum(bool(setting.doc) for setting in settings.values()) > len(settings) / 2


def test_without_source_there_are_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Unread:
        number: int = 1
        """A number."""

    def missing(_: object) -> str:
        raise OSError("no source")

    monkeypatch.setattr(inspect, "getsource", missing)
    assert fields.settings_of(Unread)["number"].doc == ""


def test_a_constraint_without_words_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="no words for the constraint"):
        fields.accepted(Annotated[int, MultipleOf(2)])


def test_every_setting_describes_what_it_accepts() -> None:
    for kind in (RunConfig, PeerConfig):
        for setting in fields.settings_of(kind).values():
            assert fields.accepted(setting.annotation)


def test_equal_configurations_do_not_differ() -> None:
    assert differences(RunConfig(), RunConfig()) == []


def test_differences_name_the_setting_and_both_values() -> None:
    other = RunConfig(work=WorkRules(inner_steps=64), name="other")
    assert differences(RunConfig(), other) == [
        'name: "adloco-embedded" here, "other" there',
        "work.inner_steps: 32 here, 64 there",
    ]


def test_entries_of_a_table_differ_one_by_one_and_by_type() -> None:
    here = RunConfig(model=ModelConfig(architecture={"model_type": "llama", "a": 1, "b": True, "only": 2}))
    there = RunConfig(model=ModelConfig(architecture={"model_type": "llama", "a": 1.0, "b": 1, "new": None}))
    assert here.digest != there.digest
    assert differences(here, there) == [
        "model.architecture.a: 1 here, 1.0 there",
        "model.architecture.b: true here, 1 there",
        "model.architecture.only: 2 here, nothing there",
        "model.architecture.new: nothing here, null there",
    ]


def test_runs_that_differ_in_digest_differ_in_words_and_the_other_way_round() -> None:
    base = load_run(None).value
    for override in ("seed=1", "inner.betas=[0.9, 0.99]", "data.sequence_length=64", "model.architecture={model_type: x}"):
        other = load_run(None, [override]).value
        assert other.digest != base.digest and differences(base, other)
