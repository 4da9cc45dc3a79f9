"""Loading a configuration: layers, origins, and what a user is told who wrote something wrong."""

import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from adloco_p2p.config.fields import differences, flatten
from adloco_p2p.config.load import Loaded, load_peer, load_run
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.presets import preset_of
from adloco_p2p.config.run_config import AVERAGING_PRESETS, RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.protocol import NEWEST, OLDEST
from adloco_p2p.decode import decode
from adloco_p2p.errors import ConfigError

REPOSITORY = Path(__file__).parents[2]


def file(tmp_path: Path, text: str, name: str = "run.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def from_text(tmp_path: Path, text: str, *overrides: str) -> Loaded[RunConfig]:
    return load_run(file(tmp_path, text), overrides)


def problems_of(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as refusal:
        from_text(tmp_path, text, *overrides)
    return list(refusal.value.problems)


# --- layers and origins ----------------------------------------------------------------------------------------------


def test_an_empty_file_is_the_defaults_and_what_the_mode_brings(tmp_path: Path) -> None:
    loaded = from_text(tmp_path, "# nothing yet\n")
    assert set(loaded.origins.values()) == {"default", "preset adloco"}
    assert [line.partition(":")[0] for line in differences(RunConfig(), loaded.value)] == [
        key for key, origin in loaded.origins.items() if origin == "preset adloco"
    ]


def test_adloco_brings_what_docs_results_found_best(tmp_path: Path) -> None:
    value = from_text(tmp_path, "").value
    assert (value.batch.eta, value.batch.level, value.inner.batch_scaling) == (1.7, "inner", "sqrt")
    assert (value.instances.count, value.work.inner_steps, value.outer.momentum) == (1, 32, 0.5)


@pytest.mark.parametrize("mode", ["adloco", "diloco", "localsgd"])
def test_gains_of_norms_do_not_decay_in_any_mode(tmp_path: Path, mode: str) -> None:
    assert from_text(tmp_path, f"mode: {mode}").value.inner.decayed == "matrices"
    assert from_text(tmp_path, f"mode: {mode}\ninner: {{decayed: all}}").value.inner.decayed == "all"


@pytest.mark.parametrize(
    ("batch", "largest"),
    [
        ("{}", 12),
        ("{initial_batch: 256}", 768),
        ("{initial_batch: 8, test: schedule}", 24),
        ("{initial_batch: 8, max_batch: 64}", 64),
        ("{initial_batch: 8, test: constant}", 4096),
    ],
)
def test_a_batch_grows_to_three_times_its_start_unless_the_author_states_another_cap(
    tmp_path: Path, batch: str, largest: int
) -> None:
    assert from_text(tmp_path, f"batch: {batch}").value.batch.max_batch == largest


def test_the_later_layer_wins_and_is_named(tmp_path: Path) -> None:
    path = file(tmp_path, "mode: diloco\nseed: 5\nwork:\n  inner_steps: 64\n  rounds: 9\n")
    loaded = load_run(path, ["work.rounds=12", "batch.initial_batch=8"])
    assert loaded.value.work.inner_steps == 64 and loaded.origins["work.inner_steps"] == f"file {path}"
    assert loaded.value.work.rounds == 12 and loaded.origins["work.rounds"] == "--set"
    assert loaded.value.batch.initial_batch == 8 and loaded.origins["batch.initial_batch"] == "--set"
    assert loaded.value.batch.test == "constant" and loaded.origins["batch.test"] == "preset diloco"
    assert loaded.value.work.share == "speed" and loaded.origins["work.share"] == "default"


def test_a_run_ends_by_what_was_written_last(tmp_path: Path) -> None:
    """Of `work.samples` and `work.rounds` the command line's replaces the file's; both in one place are refused."""

    def end(text: str, *overrides: str) -> tuple[int | None, int | None]:
        work = from_text(tmp_path, text, *overrides).value.work
        return work.rounds, work.samples

    assert end("") == (40, None)
    assert end("work: {samples: 5000}") == (None, 5000)
    assert end("work: {rounds: 9}", "work.samples=5000") == (None, 5000)
    assert end("work: {samples: 5000}", "work.rounds=9") == (9, None)
    assert end("work: {samples: 5000, rounds: null}") == (None, 5000)
    for text, overrides in (("work: {rounds: 9, samples: 5000}", ()), ("", ("work.rounds=9", "work.samples=5000"))):
        with pytest.raises(ConfigError, match="a run has one end"):
            from_text(tmp_path, text, *overrides)


@pytest.mark.parametrize(("chosen", "other"), [("warmup_steps", "warmup_samples"), ("warmup_samples", "warmup_steps")])
def test_the_warm_up_of_the_command_line_replaces_that_of_the_file(tmp_path: Path, chosen: str, other: str) -> None:
    inner = from_text(tmp_path, f"inner: {{{other}: 9}}", f"inner.{chosen}=5").value.inner
    assert (getattr(inner, chosen), getattr(inner, other)) == (5, None)
    with pytest.raises(ConfigError, match="choose one"):
        from_text(tmp_path, f"inner: {{{other}: 9, {chosen}: 5}}")


def test_every_setting_has_an_origin_and_every_origin_a_setting(tmp_path: Path) -> None:
    plain = asdict(from_text(tmp_path, "model: {pretrained: a/b, architecture: {}}").value)
    origins = from_text(tmp_path, "model: {pretrained: a/b, architecture: {}}").origins

    def keys_of(section: dict[str, Any], prefix: str = "") -> set[str]:
        inside = {name: value for name, value in section.items() if isinstance(value, dict) and value}
        below = {key for name, value in inside.items() for key in keys_of(value, f"{prefix}{name}.")}
        return below | {f"{prefix}{name}" for name in section.keys() - inside.keys()}

    assert origins.keys() == keys_of(plain)


def test_the_mode_may_come_from_set_and_brings_its_preset(tmp_path: Path) -> None:
    loaded = from_text(tmp_path, "mode: adloco", "mode=localsgd")
    assert loaded.value.mode == "localsgd" and loaded.value.outer.kind == "average"
    assert loaded.origins["outer.kind"] == "preset localsgd"


def test_the_last_set_of_a_key_wins(tmp_path: Path) -> None:
    assert from_text(tmp_path, "", "seed=1", "seed=2").value.seed == 2


def test_the_same_settings_by_other_ways_are_the_same_run(tmp_path: Path) -> None:
    yaml = from_text(tmp_path, "inner: {eps: 1e-7, clip_norm: 1}\nbatch: {eta: 2}")
    toml = load_run(file(tmp_path, "[inner]\neps = 1e-7\nclip_norm = 1.0\n[batch]\neta = 2.0\n", "run.toml"))
    given = from_text(tmp_path, "", "inner.eps=0.0000001", "batch.eta=2.0")
    assert yaml.value.digest == toml.value.digest == given.value.digest
    assert isinstance(yaml.value.batch.eta, float)
    assert decode(RunConfig, canonical.encode(yaml.value), max_bytes=1 << 20) == yaml.value


def test_values_are_what_yaml_says(tmp_path: Path) -> None:
    value = from_text(
        tmp_path,
        "name: 2024-01-01\ninner: {learning_rate: 3e-4, betas: [0, 0.5]}\nmerge: {guard: off}\ndata: {path: ~}\nswitch:\n",
    ).value
    assert value.name == "2024-01-01"
    assert value.inner.learning_rate == 3e-4 and value.inner.betas == (0.0, 0.5)
    assert value.merge.guard is False and value.data.path is None


def test_the_architecture_is_replaced_whole_by_a_file_and_entry_by_entry_by_set(tmp_path: Path) -> None:
    path = file(tmp_path, "model: {architecture: {model_type: gpt2, n_embd: 64}}")
    loaded = load_run(path, ["model.architecture.n_embd=128", "model.architecture.n_head=2"])
    assert loaded.value.model.architecture == {"model_type": "gpt2", "n_embd": 128, "n_head": 2}
    assert loaded.origins["model.architecture.model_type"] == f"file {path}"
    assert loaded.origins["model.architecture.n_head"] == "--set"
    wider = from_text(tmp_path, "", "model.architecture.hidden_size=320")
    assert wider.value.model.architecture == {**RunConfig().model.architecture, "hidden_size": 320}
    assert wider.origins["model.architecture.num_hidden_layers"] == "default"
    whole = from_text(tmp_path, "", "model.architecture.n_head=2", "model.architecture={model_type: gpt2}")
    assert whole.value.model.architecture == {"model_type": "gpt2"}


# --- presets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inner_steps", "momentum"), [(1, 0.5), (32, 0.5), (33, 0.7), (512, 0.7)])
@pytest.mark.parametrize("mode", ["adloco", "diloco"])
def test_the_outer_momentum_follows_from_h(tmp_path: Path, mode: str, inner_steps: int, momentum: float) -> None:
    loaded = from_text(tmp_path, f"mode: {mode}", f"work.inner_steps={inner_steps}")
    assert loaded.value.outer.momentum == momentum
    assert loaded.origins["outer.momentum"] == f"preset {mode}"
    assert from_text(tmp_path, f"mode: {mode}\nouter: {{momentum: 0.3}}").value.outer.momentum == 0.3


@pytest.mark.parametrize(
    ("work", "momentum"),
    [
        ("rounds: 64", 0.9),
        ("samples: 8065", 0.9),  # 63 rounds of 32 steps with a batch of 4, and one sample of a 64th
        ("rounds: 63", 0.5),
        ("samples: 8064", 0.5),
    ],
)
@pytest.mark.parametrize("codec", ["float32", "sign"])
def test_long_runs_have_a_larger_outer_momentum(tmp_path: Path, codec: str, work: str, momentum: float) -> None:
    loaded = from_text(tmp_path, f"mode: diloco\naveraging: {{codec: {codec}}}\nwork: {{inner_steps: 32, {work}}}")
    assert (loaded.value.outer.momentum, loaded.origins["outer.momentum"]) == (momentum, "preset diloco")


@pytest.mark.parametrize(
    "other",
    [
        {"work.inner_steps": 16},
        {"mode": "adloco"},  # a batch that grows leaves fewer rounds than are planned
        {"batch.test": "schedule"},
        {"instances.count": 2},
        {"averaging.fragments": 2},
        {"outer.overlap": "forecast"},
        {"model.pretrained": "some/model"},
    ],
)
def test_where_the_larger_outer_momentum_was_not_measured_it_is_that_of_short_runs(other: dict[str, Any]) -> None:
    long_run = {"mode": "diloco", "work.rounds": 640}
    assert preset_of(long_run)["outer.momentum"] == ("preset diloco", 0.9)
    assert preset_of({**long_run, **other})["outer.momentum"][1] == 0.5
    signs = preset_of({**long_run, "averaging.preset": "sign", **other})
    assert signs["outer.momentum"][1] == (0.9 if "work.inner_steps" in other else 0.5)


@pytest.mark.parametrize(("inner_steps", "rounds", "momentum"), [(16, 128, 0.9), (16, 127, 0.5), (8, 64, 0.5), (128, 64, 0.7)])
def test_signs_have_the_larger_outer_momentum_in_as_many_inner_steps(inner_steps: int, rounds: int, momentum: float) -> None:
    written = {"mode": "diloco", "averaging.preset": "sign", "work.inner_steps": inner_steps, "work.rounds": rounds}
    assert preset_of(written)["outer.momentum"][1] == momentum


def test_diloco_is_one_instance_with_a_constant_batch(tmp_path: Path) -> None:
    value = from_text(tmp_path, "mode: diloco").value
    assert (value.batch.test, value.instances.count, value.instances.start) == ("constant", 1, "same")
    assert (value.merge.policy, value.outer.kind, value.outer.learning_rate) == ("none", "nesterov", 0.7)


def test_localsgd_takes_the_mean(tmp_path: Path) -> None:
    value = from_text(tmp_path, "mode: localsgd").value
    assert (value.batch.test, value.instances.count, value.merge.policy) == ("constant", 1, "none")
    assert (value.outer.kind, value.outer.learning_rate, value.outer.momentum) == ("average", 1.0, 0.0)


def test_the_file_wins_over_the_preset(tmp_path: Path) -> None:
    value = from_text(tmp_path, "mode: diloco\nbatch: {test: norm}\ninstances: {count: 2}").value
    assert (value.batch.test, value.instances.count, value.merge.policy) == ("norm", 2, "none")


def test_what_follows_from_a_choice_need_not_be_written(tmp_path: Path) -> None:
    assert from_text(tmp_path, "outer: {kind: sgd}").value.outer.momentum == 0
    assert from_text(tmp_path, "outer: {kind: average}").value.outer.learning_rate == 1
    assert from_text(tmp_path, "batch: {statistic: micro_batch}").value.batch.level == "inner"


def test_averages_are_kept_of_as_many_rounds_as_make_a_state(tmp_path: Path) -> None:
    def kept(text: str) -> int:
        return from_text(tmp_path, text).value.work.rounds_kept

    assert [kept(f"averaging: {{codec: {codec}}}") for codec in ("float32", "float16", "int8", "sign")] == [2, 4, 7, 12]
    assert kept("averaging: {preset: sparse}") == 12
    assert kept("averaging: {codec: int8}\nwork: {rounds_kept: 3}") == 3


@pytest.mark.parametrize("preset", AVERAGING_PRESETS)
def test_an_averaging_preset_is_named_as_the_origin_of_what_it_brings(tmp_path: Path, preset: str) -> None:
    loaded = from_text(tmp_path, f"mode: diloco\naveraging: {{preset: {preset}}}\nwork: {{inner_steps: 8, rounds: 256}}")
    values = flatten(loaded.value)
    for key, value in AVERAGING_PRESETS[preset].items():
        assert (values[key], loaded.origins[key]) == (value, f"averaging.preset {preset}")
    assert loaded.origins["batch.test"] == "preset diloco"
    assert (loaded.value.outer.momentum, loaded.origins["outer.momentum"]) == (
        {"sparse": 0.0, "sign": 0.9}.get(preset, 0.5),
        "averaging.preset sign" if preset == "sign" else "preset diloco",
    )


def test_what_is_written_wins_over_an_averaging_preset_but_for_another_codec(tmp_path: Path) -> None:
    value = from_text(tmp_path, "averaging: {preset: sparse, feedback: 1.0}\nouter: {learning_rate: 0.8}").value
    assert (value.averaging.codec, value.averaging.feedback, value.outer.learning_rate) == ("topk2", 1.0, 0.8)
    assert from_text(tmp_path, "averaging: {preset: sign, codec: sign}").value.averaging.codec == "sign"
    (problem,) = problems_of(tmp_path, "averaging: {preset: sign, codec: int8}")
    assert problem == "averaging.codec: int8, but averaging.preset sign means sign; leave one of the two out"
    (problem,) = problems_of(tmp_path, "averaging: {preset: tiny}")
    assert "averaging.preset" in problem and "sparse" in problem


def test_a_mean_per_place_needs_a_codec_that_names_places(tmp_path: Path) -> None:
    assert from_text(tmp_path, "averaging: {preset: sparse}").value.averaging.division == "named"
    assert from_text(tmp_path, "averaging: {preset: sparse, division: all}").value.averaging.division == "all"
    assert from_text(tmp_path, "averaging: {codec: topk2}").value.averaging.division == "all"
    (problem,) = problems_of(tmp_path, "averaging: {codec: int8, division: named}")
    assert "averaging.division: named" in problem and "int8" in problem and "sparse" in problem


def test_the_command_line_replaces_a_codec_by_a_preset_and_a_preset_by_a_codec(tmp_path: Path) -> None:
    by_preset = from_text(tmp_path, "averaging: {codec: int8}", "averaging.preset=sparse").value
    assert (by_preset.averaging.codec, by_preset.outer.kind) == ("topk2", "sgd")
    by_codec = from_text(tmp_path, "averaging: {preset: sparse}", "averaging.codec=int8").value
    assert (by_codec.averaging.preset, by_codec.averaging.codec, by_codec.outer.kind) == (None, "int8", "nesterov")


def test_local_sgd_keeps_its_outer_step_with_every_averaging_preset(tmp_path: Path) -> None:
    for preset in AVERAGING_PRESETS:
        value = from_text(tmp_path, f"mode: localsgd\naveraging: {{preset: {preset}}}").value
        assert (value.outer.kind, value.outer.learning_rate) == ("average", 1.0)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    text = "work: {inner_step: 3, rounds: 0}\nbatch: {eta: big}\nbogus: 1\n"
    problems = problems_of(tmp_path, text, "seed=-1", "oops", "merge=1")
    assert len(problems) == 7
    assert "work.inner_step: unknown setting; did you mean work.inner_steps?" in problems
    assert "bogus: unknown setting" in problems
    assert any(problem.startswith("--set oops: write it as key=value") for problem in problems)
    assert "--set merge=1: merge is a section; set one of its settings, such as merge.policy" in problems
    assert "seed: -1 (--set) is not accepted; accepted: a whole number, at least 0" in problems


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("wrok", "work"),
        ("inner_steps", "work.inner_steps"),
        ("inner_stepz", "work.inner_steps"),
        ("data.rounds", "work.rounds"),
        ("batch.inital_batch", "batch.initial_batch"),
        ("model.architectur", "model.architecture"),
    ],
)
def test_an_unknown_key_comes_with_the_likely_one(tmp_path: Path, key: str, meant: str) -> None:
    expected = [f"{key}: unknown setting; did you mean {meant}?"]
    assert problems_of(tmp_path, "", f"{key}=1") == expected
    section, _, name = key.rpartition(".")
    assert problems_of(tmp_path, f"{section}: {{{name}: 1}}" if section else f"{name}: 1") == expected


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("work.inner_steps='8'", 'work.inner_steps: "8" (--set) is not accepted, because it is text'),
        ("work.inner_steps=8.0", "work.inner_steps: 8.0 (--set) is not accepted; accepted: a whole number, at least 1"),
        ("work.inner_steps=true", "work.inner_steps: true (--set) is not accepted"),
        ("work.inner_steps=", "work.inner_steps: null (--set) is not accepted"),
        ("batch.eta=0", "batch.eta: 0 (--set) is not accepted; accepted: a number, above 0"),
        ("batch.floor_fraction=1.5", "accepted: a number, at least 0, at most 1"),
        ("data.heldout_fraction=1", "accepted: a number, above 0, below 1"),
        ("batch.test=nrom", "accepted: one of constant, schedule, norm, inner_product, augmented"),
        ("merge.guard=1", "merge.guard: 1 (--set) is not accepted; accepted: true or false"),
        (
            "work.inner_steps=many",
            'work.inner_steps: "many" (--set) is not accepted, because it is text; accepted: a whole number',
        ),
        (f"seed=0x{'f' * 5000}", "seed: a whole number of more than 63 bits"),
        ("outer.momentum=1,5", "because it is text; decimals have a point, as 0.5; accepted: a number"),
        ("merge.guard='no'", "because it is text (perhaps only the quotes are too many); accepted: true or false"),
        ("name=8", "name: 8 (--set) is not accepted, because it is not text (quotes are missing)"),
        ("name=''", "accepted: text, at least 1 character, at most 200 characters"),
        (
            "evaluation.sample_prompts=[]",
            "accepted: a list, at least 1 entry, at most 4 entries, each text, at least 1 character, at most 200 characters",
        ),
        ("model.revision=12345", "accepted: text, at least 1 character, at most 200 characters, printable ones only, or null"),
        ("inner.betas=[1, 0.5]", "accepted: a list of 2: a number, at least 0, below 1; a number, at least 0, below 1"),
        ("inner.betas=[0.1]", "inner.betas: [0.1] (--set) is not accepted"),
        ("inner.eps=.inf", "inner.eps: inf is not a finite number"),
        ("inner.eps=.nan", "inner.eps: nan is not a finite number"),
        ("seed=99999999999999999999", "seed: 99999999999999999999 is a whole number of more than 63 bits"),
        ("protocol=2", f"protocol: 2 (--set) is not accepted; accepted: a whole number, at least {OLDEST}, at most {NEWEST}"),
        ("mode=fedavg", "accepted: one of adloco, diloco, localsgd"),
        ("mode=[adloco]", 'mode: ["adloco"] (--set) is not accepted'),
        (
            "model.architecture=llama",
            "accepted: a section, each value text or a whole number or a number or true or false or null",
        ),
        (
            "model.architecture.rope=[1]",
            "model.architecture.rope: [1] (--set) is not accepted; accepted: text or a whole number",
        ),
        ("data.path=[[[[[[[[[[1]]]]]]]]]]", "data.path: nested too deeply"),
        ('name="\\ud800"', "name: not valid text (half of a surrogate pair)"),
        ("model.architecture.x=.inf", "model.architecture: inf is not a finite number"),
        ("data.path=!!binary YQ==", "data.path: b'a' is a bytes; write it in quotes if it is meant as text"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_do(tmp_path: Path, override: str, told: str) -> None:
    (problem,) = problems_of(tmp_path, "", override)
    assert told in problem


def test_a_problem_names_its_file(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "batch: {eta: -1}")
    assert f"batch.eta: -1 (file {tmp_path / 'run.yaml'}) is not accepted" in problem


def test_a_wrong_table_in_the_file_is_not_hidden_by_setting_an_entry(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "model: {architecture: 3}", "model.architecture.hidden_size=8")
    assert problem.startswith("model.architecture: 3 ")


def test_a_section_that_is_no_section(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "work: 3") == ["work: is a section of settings, not the value 3"]


def test_a_date_of_toml_is_no_value(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name: 2024-01-01 is a date; write it in quotes"):
        load_run(file(tmp_path, "name = 2024-01-01", "run.toml"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("work:\n  rounds: [1\n", "line 3: expected ',' or ']'"),
        ("seed: 1\nwork:\n\trounds: 1\n", "line 3: found character '\\t'"),
        ("seed: 1\nseed: 2\n", "line 2: the key 'seed' appears twice"),
        ("seed: 1\n1: 2\n", "line 2: a key must be a name"),
        ("seed: 1\n? [a]\n: 2\n", "line 2: a key must be a name"),
        ("a: !!python/object:os.system {}\n", "line 1: could not determine a constructor"),
        ("- work\n- batch\n", "holds a list; a configuration is lines"),
        ("just words", "holds the single value 'just words'"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("seed: " + "9" * 5000, "Exceeds the limit"),
        ("a: \x07", "not readable as YAML"),
        ("# " + "x" * (1 << 20), "longer than 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_as_yaml(tmp_path: Path, text: str, told: str) -> None:
    (problem,) = problems_of(tmp_path, text)
    assert problem.startswith(str(tmp_path / "run.yaml")) and told in problem


@pytest.mark.parametrize(("text", "told"), [("seed = = 1", "line 1"), ("a = " + "[" * 5000, "nested too deeply")])
def test_a_file_that_cannot_be_read_as_toml(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"run\.toml: .*{told}"):
        load_run(file(tmp_path, text, "run.toml"))


def test_files_that_cannot_be_read_at_all(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9t\xe9\n")
    for name, told in (
        ("none.yaml", "there is no such file"),
        ("folder.yaml", "is a directory; a configuration is one file, whose name ends in .yaml or .toml"),
        ("latin.yaml", "not UTF-8 text \\(byte 6\\)"),
        ("run.json", "ends in .yaml, .yml or .toml"),
    ):
        with pytest.raises(ConfigError, match=f"{name}: .*{told}"):
            load_run(tmp_path / name)


def test_a_bad_value_after_set_is_named(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "", "data.path=[a")
    assert problem.startswith("--set data.path=[a, line 1: ")


# --- shipped configurations by name ----------------------------------------------------------------------------------


def test_no_file_is_the_embedded_default() -> None:
    assert load_run(None) == load_run(Path("default"))
    assert load_run(None).origins["mode"] == "file configs/default.yaml"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"c4: no shipped configuration .* \(there are: c4-150m, c4-300m, default, diloco, "):
        load_run(Path("c4"))


def test_a_folder_of_configurations_is_named_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without a suffix may be that of a shipped configuration."""
    (tmp_path / "configs").mkdir()
    monkeypatch.chdir(tmp_path)
    for load in (load_run, load_peer):
        with pytest.raises(ConfigError, match="configs: is a directory; a configuration is one file") as raised:
            load(Path("configs"))
        assert raised.value.code == "E202"


def test_an_installation_without_configurations_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "files", lambda _: tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="none in this installation"):
        load_run(None)


def test_the_configurations_of_a_wheel_are_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package" / "configs").mkdir(parents=True)
    (tmp_path / "package" / "configs" / "default.yaml").write_text("seed: 77")
    monkeypatch.setattr(resources, "files", lambda _: tmp_path / "package")
    assert load_run(None).value.seed == 77


# --- one machine's configuration -------------------------------------------------------------------------------------


def test_a_machine_without_a_file_has_the_defaults() -> None:
    loaded = load_peer(None)
    assert loaded.value == PeerConfig()
    assert set(loaded.origins.values()) == {"default"}


def test_a_machine_is_configured_like_a_run(tmp_path: Path) -> None:
    path = file(tmp_path, "device: cpu\nhost_maddrs: [/ip4/127.0.0.1/tcp/0]\nmemory_budget_bytes: 1048576\n", "laptop.yaml")
    loaded = load_peer(path, ["num_threads=2", "checkpoints_kept=3"])
    assert loaded.value.device == "cpu" and loaded.value.host_maddrs == ("/ip4/127.0.0.1/tcp/0",)
    assert loaded.value.num_threads == 2 and loaded.value.checkpoints_kept == 3
    assert loaded.origins["device"] == f"file {path}" and loaded.origins["num_threads"] == "--peer-set"
    with pytest.raises(ConfigError) as refusal:
        load_peer(path, ["checkpoints_kept=1", "devise=cpu", "host_maddrs=[1]", "num_threads=0"])
    assert json.dumps(refusal.value.problems).count("accepted: ") == 3
    assert "devise: unknown setting; did you mean device?" in refusal.value.problems
    assert "host_maddrs: [1] (--peer-set) is not accepted; accepted: a list, each text" in refusal.value.problems


def test_a_machine_has_no_shipped_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ends in"):
        load_peer(tmp_path / "default")


def test_a_pretrained_model_brings_its_own_tokenizer() -> None:
    loaded = load_run(None, ["model.pretrained=owner/model", "model.revision=v1"])
    assert (loaded.value.tokenizer.source, loaded.value.tokenizer.revision) == ("owner/model", "v1")
    assert loaded.origins["tokenizer.source"].startswith("preset")
    written = load_run(None, ["model.pretrained=owner/model", "model.revision=v1", "tokenizer.source=owner/words"]).value
    assert (written.tokenizer.source, written.tokenizer.revision) == ("owner/words", None)
    assert load_run(None).value.tokenizer.source == "bytes"


def test_a_setting_of_the_machine_given_for_the_run_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError) as refused:
        load_run(None, ["device=cuda", "data.dataset=x"])
    assert refused.value.problems[0].startswith("device: belongs to the machine, not to the run: --peer-set device=cuda")
    assert "the section data has source, path" in refused.value.problems[1]
    with pytest.raises(ConfigError) as refused:
        load_peer(None, ["work.rounds=3", "model.architecture.hidden_size=8"])
    first, second = refused.value.problems
    assert first.startswith("work.rounds: belongs to the run, not to the machine: --set work.rounds=3")
    assert second.startswith("model.architecture.hidden_size: belongs to the run")


@pytest.mark.parametrize(
    ("rounds", "count", "fork_round", "first_round", "notice"),
    [
        (1, 1, 8, 12, "too short to fork"),
        (2, 2, 1, 1, "fork before round 1, not 8"),
        (10, 2, 3, 5, "merge from round 5 on, not 12"),
        (12, 2, 8, 12, ""),
    ],
)
def test_the_demonstration_shrinks_with_its_rounds(
    rounds: int, count: int, fork_round: int, first_round: int, notice: str
) -> None:
    loaded = load_run(None, [f"work.rounds={rounds}"])
    found = loaded.value
    assert (found.instances.count, found.instances.fork_round, found.merge.first_round) == (count, fork_round, first_round)
    assert len(loaded.notices) == (1 if notice else 0) and notice in "".join(loaded.notices)
    with pytest.raises(ConfigError, match="never comes"):  # what the user sets is not changed
        load_run(None, ["work.rounds=2", "instances.fork_round=8"])


@pytest.mark.parametrize("path", [None, Path("default"), REPOSITORY / "configs" / "default.yaml"])
def test_the_demonstration_shrinks_with_its_samples_however_it_is_named(path: Path | None) -> None:
    loaded = load_run(path, ["work.samples=1000"])
    assert (loaded.value.instances.fork_round, loaded.value.merge.first_round) == (2, 4)
    assert "at most 8 rounds instead of 24" in loaded.notices[0]
    assert not load_run(path, ["work.samples=4000"]).notices
    assert load_run(path, ["work.rounds=null", "work.samples=1000"]).notices == loaded.notices


def test_a_file_of_the_user_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "default.yaml"
    shipped = (REPOSITORY / "configs" / "default.yaml").read_text()
    path.write_text(shipped.replace("seed: 42", "seed: 43"))
    with pytest.raises(ConfigError, match="never comes"):
        load_run(path, ["work.samples=1000"])


def test_jsonl_is_json(tmp_path: Path) -> None:
    assert load_run(None, ["data.source=jsonl", "data.path=a.jsonl"]).value.data.source == "json"
    path = tmp_path / "run.yaml"
    path.write_text("data: {source: jsonl, path: a.jsonl}")
    assert load_run(path).value.data.source == "json"
