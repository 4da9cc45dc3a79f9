"""The configurations in `configs/`, and how they get into the wheel."""

import re
import tomllib
from pathlib import Path

import pytest

from adloco_p2p.config.documents import shipped
from adloco_p2p.config.fields import differences
from adloco_p2p.config.load import load_run
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.error_codes import ERROR_CODES

ROOT = Path(__file__).parents[2]

SIZES_OF_VOCABULARIES = {"bytes": 257, "openai-community/gpt2": 50257}


def parameters(run: RunConfig) -> int:
    """Of a Llama, from its architecture; no weights are made."""
    shape = run.model.architecture
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    width, inner, layers, heads, groups = (shape[name] for name in names)
    assert isinstance(width, int) and isinstance(inner, int) and isinstance(layers, int)
    assert isinstance(heads, int) and isinstance(groups, int)
    assert width % heads == 0 and heads % groups == 0
    attention = 2 * width * width + 2 * width * (width // heads * groups)
    layer = attention + 3 * width * inner + 2 * width
    embeddings = SIZES_OF_VOCABULARIES[run.tokenizer.source] * width
    return layers * layer + width + embeddings * (1 if shape["tie_word_embeddings"] else 2)


def test_the_shipped_ones_are_those_of_the_folder() -> None:
    assert sorted(shipped()) == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
    assert sorted(shipped()) == ["c4-150m", "c4-300m", "default", "diloco", "finetune", "localsgd", "ramp"]


@pytest.mark.parametrize("name", ["default", "diloco", "localsgd", "ramp", "finetune", "c4-150m", "c4-300m"])
def test_every_shipped_configuration_is_valid_by_name_and_by_path(name: str) -> None:
    by_name, by_path = load_run(Path(name)), load_run(ROOT / "configs" / f"{name}.yaml")
    assert by_name.value == by_path.value


@pytest.mark.parametrize(("name", "millions"), [("c4-150m", 150), ("c4-300m", 300)])
def test_the_size_is_as_named(name: str, millions: int) -> None:
    assert parameters(load_run(Path(name)).value) == pytest.approx(millions * 1e6, rel=0.05)


def test_the_formula_agrees_with_the_library_on_a_small_model() -> None:
    transformers = pytest.importorskip("transformers")
    run = load_run(None).value
    config = transformers.AutoConfig.for_model(**run.model.architecture, vocab_size=SIZES_OF_VOCABULARIES["bytes"])
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters(run)


@pytest.mark.parametrize("name", ["default", "diloco", "localsgd", "ramp", "c4-150m", "c4-300m"])
@pytest.mark.parametrize("code", ["E207", "E208"])
def test_the_settings_of_a_remedy_are_accepted_as_they_stand(code: str, name: str) -> None:
    (settings,) = re.findall(r"`--set ([^`]+)`", ERROR_CODES[code].remedy)
    load_run(Path(name), settings.split())


@pytest.mark.parametrize("name", ["c4-150m", "c4-300m"])
def test_public_runs_pin_what_they_download(name: str) -> None:
    run = load_run(Path(name)).value
    assert run.data.source == "hub" and run.data.streaming and run.data.heldout_split == "validation"
    for revision in (run.data.revision, run.tokenizer.revision):
        assert revision is not None and len(revision) == 40
    assert run.batch.test == "schedule", "what docs/results.md favours where the length of a run is known"
    assert run.inner.decayed == "matrices", "what docs/results/tuned.md favours"
    tokens = 20 * parameters(run)
    assert run.work.samples is not None
    assert run.work.samples * run.data.sequence_length == pytest.approx(tokens, rel=0.05), "20 tokens per parameter"


@pytest.mark.parametrize(("name", "mode"), [("diloco", "diloco"), ("localsgd", "localsgd")])
def test_the_baselines_differ_from_the_default_in_the_method_only(name: str, mode: str) -> None:
    default, baseline = load_run(None).value, load_run(Path(name)).value
    assert baseline.mode == mode
    growth = ("batch.test", "batch.eta", "batch.level", "batch.growth_cap", "batch.max_batch", "inner.batch_scaling")
    of_the_method = ("name", "mode", *growth, "instances.", "merge.", "outer.")
    for difference in differences(default, baseline):
        assert difference.startswith(of_the_method), difference


def test_the_wheel_holds_every_package_and_the_configurations() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = [path.parent for path in sorted((ROOT / "adloco_p2p").rglob("__init__.py"))]
    in_tree = {".".join(folder.relative_to(ROOT).parts) for folder in folders} | {"adloco_p2p.configs"}
    assert set(setuptools["packages"]) == in_tree
    assert setuptools["package-dir"]["adloco_p2p.configs"] == "configs"
    assert setuptools["package-data"]["adloco_p2p.configs"] == ["*.yaml"]
