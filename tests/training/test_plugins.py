"""Own model, texts and loss by entry points: found, built, held to what the node needs; refused where a machine lacks them."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adloco_p2p.config import plugins
from adloco_p2p.config.load import load_run
from adloco_p2p.config.local_files import check_run_of_others
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.plugins import check_packages, packages_of
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.data.feed import open_feed
from adloco_p2p.data.source import check_files, files_digest
from adloco_p2p.errors import ConfigError
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.model import build_model
from adloco_p2p.training.plugins import plugin_loss
from tests.plugins import install
from tests.training.small_run import ME, ONE, effect, train_round

SETTINGS = ["model.plugin=gru", "model.arguments.hidden_size=8", "data.source=plugin", "data.plugin=sums", "model.loss=focal"]
SETTINGS += ["data.sequence_length=32", "mode=diloco", "batch.initial_batch=4", "batch.max_batch=4", "work.rounds=2"]
PACKAGE = "adloco-example"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(install(tmp_path / "site"))
    yield tmp_path
    sys.modules.pop("adloco_example", None)


def run_with(*more: str) -> RunConfig:
    return load_run(None, [*SETTINGS, *more]).value


def stated(run: RunConfig) -> RunConfig:
    """As `start` writes it."""
    run = replace(run, packages=packages_of(run))
    return replace(run, data=replace(run.data, digest=files_digest(run.data)))


def test_the_run_states_the_package_and_its_version(installed: Path) -> None:
    run = stated(run_with())
    assert run.packages == {PACKAGE: "1.0"}
    check_run_of_others(run, PeerConfig())
    check_files(run.data)
    assert run.digest != run_with().digest


def test_a_machine_without_the_package_gets_the_command_that_installs_it() -> None:
    run = replace(run_with(), packages={PACKAGE: "1.0"})
    with pytest.raises(ConfigError, match=r"pip install 'adloco-example==1\.0'") as refused:
        check_run_of_others(run, PeerConfig())
    assert refused.value.code == "E232" and "your rights" in str(refused.value)
    with pytest.raises(ConfigError, match=r"no installed package has an entry point 'gru' in the group adloco_p2p\.models"):
        packages_of(run_with())


def test_a_machine_with_another_version_gets_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, version="2.0"))
    with pytest.raises(ConfigError, match=r"adloco-example 2\.0; pip install 'adloco-example==1\.0'"):
        check_packages(replace(run_with(), packages={PACKAGE: "1.0"}))


def test_no_code_of_a_package_runs_before_the_check(installed: Path) -> None:
    (installed / "site" / "adloco_example.py").write_text("raise AssertionError('the package was imported')")
    check_packages(replace(run_with(), packages={PACKAGE: "1.0"}))
    assert "adloco_example" not in sys.modules


def test_an_entry_point_of_a_package_that_the_run_does_not_name_is_refused(installed: Path) -> None:
    with pytest.raises(ConfigError, match="comes from adloco-example here, which the run does not name"):
        check_packages(replace(run_with(), packages={"numpy": plugins.installed_version("numpy") or ""}))


def test_nobody_is_asked_to_install_a_package_that_no_entry_point_needs() -> None:
    """Nothing is installed here: an entry point could come from any package of the run, but only from one."""
    one = load_run(None, ["model.loss=focal"]).value
    none, other = load_run(None, []).value, {"evil": "1.0"}
    for run, packages in ((none, other), (one, {PACKAGE: "1.0"} | other), (run_with(), dict.fromkeys("abcd", "1.0"))):
        with pytest.raises(ConfigError, match="does not need that many") as refused:
            check_run_of_others(replace(run, packages=packages), PeerConfig())
        assert refused.value.code == "E232" and "pip install" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"pip install 'a==1\.0' 'b==1\.0' 'c==1\.0'"):
        check_packages(replace(run_with(), packages=dict.fromkeys("abc", "1.0")))


def test_where_the_package_is_installed_no_other_one_is_needed(installed: Path) -> None:
    with pytest.raises(ConfigError, match="packages: evil, but run") as refused:
        check_packages(replace(run_with(), packages={PACKAGE: "1.0", "evil": "1.0"}))
    assert "pip install" not in str(refused.value)
    # of another version: that one could have fewer entry points
    with pytest.raises(ConfigError, match=r"pip install 'adloco-example==2\.0' 'further==1\.0'"):
        check_packages(replace(run_with(), packages={PACKAGE: "2.0", "further": "1.0"}))


@pytest.mark.parametrize("name", ["evil; rm -rf /", "-r", "git+https://evil", "$(x)", "a b"])
def test_what_people_copy_into_a_shell_is_a_package_and_a_version(name: str) -> None:
    run = run_with()
    for packages in ({name: "1.0"}, {PACKAGE: name}):
        with pytest.raises(ConfigError, match="is no package with a version"):
            check_run_of_others(replace(run, packages=packages), PeerConfig())


def test_the_model_is_that_of_the_package_with_weights_of_the_seed(installed: Path) -> None:
    model = run_with().model
    first, again, other = (build_model(model, vocab_size=257, sequence_length=32, seed=seed) for seed in (1, 1, 2))
    assert type(first).__name__ == "GruModel" and first.config.hidden_size == 8
    weights = [built.state_dict() for built in (first, again, other)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert not all(torch.equal(value, weights[2][name]) for name, value in weights[0].items())


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def gru(**_): return 3", "gives a int"),
        ("def gru(**_): raise RuntimeError('no such size')", "RuntimeError: no such size"),
        ("raise ImportError('libfoo.so')", "cannot be imported: ImportError: libfoo.so"),
        ("gru = 3", "is no function"),
        (
            "import transformers as t\ndef gru(**_): return t.LlamaForCausalLM(t.LlamaConfig(vocab_size=9, hidden_size=8,"
            " intermediate_size=8, num_hidden_layers=1, num_attention_heads=1))",
            r"shape \(1, 2, 9\)",
        ),
    ],
    ids=["a number", "raises", "no import", "no function", "other vocabulary"],
)
def test_a_model_that_does_not_work_is_an_error_of_the_setting(installed: Path, source: str, words: str) -> None:
    (installed / "site" / "adloco_example.py").write_text(source)
    sys.modules.pop("adloco_example", None)
    with pytest.raises(ConfigError, match=rf"model\.plugin: 'gru'.*{words}"):
        build_model(run_with().model, vocab_size=257, sequence_length=32, seed=1)


def test_texts_are_those_of_the_package_and_other_ones_are_refused(installed: Path) -> None:
    run = stated(run_with())
    feed = open_feed(run, cache_dir=None)
    text = bytes(int(token) for token in feed.heldout(1).input_ids[0] if token < 256).decode()
    assert " + " in text and " = " in text
    changed = replace(run.data, arguments={"largest": 41})
    with pytest.raises(ConfigError, match=r"data\.plugin: the texts have digest"):
        check_files(changed)
    with pytest.raises(ConfigError, match=r"data\.plugin: 'sums' failed: TypeError"):
        files_digest(replace(run.data, arguments={"smallest": 1}))


def test_the_loss_is_that_of_the_package_in_steps_and_evaluation(installed: Path) -> None:
    before: dict[str, float] = {}
    for name in ("focal", ""):
        run = run_with()
        run = replace(run, model=replace(run.model, loss=name))
        engine = Hosting(run, PeerConfig(device="cpu", max_micro_batch=4), ME, open_feed(run, cache_dir=None))
        engine.start([ONE])
        before[name] = engine.evaluate(ONE)
        train_round(engine, effect(round=0))
        assert engine.evaluate(ONE) < before[name]
    assert 0.9 * before[""] < before["focal"] < before[""]  # untrained, exp(-nats) is about 1 / 257


def test_a_loss_of_another_shape_is_an_error_of_the_setting(installed: Path) -> None:
    logits, targets = torch.zeros(1, 3, 5), torch.tensor([[1, 2, -100]])
    found = plugin_loss("focal")(logits, targets)
    nats = torch.log(torch.tensor(5.0))
    assert torch.allclose(found, torch.tensor([[1.0, 1.0, 0.0]]) * nats * 0.8)  # 1 - 1/5, by hand
    (installed / "site" / "adloco_example.py").write_text("def focal(logits, targets): return logits.sum()")
    sys.modules.pop("adloco_example", None)
    with pytest.raises(ConfigError, match=r"one loss per token, \(1, 3\), is accepted"):
        plugin_loss("focal")(logits, targets)


def test_an_error_inside_a_loss_is_one_of_the_setting(installed: Path) -> None:
    (installed / "site" / "adloco_example.py").write_text("def focal(logits, targets): raise ValueError('boom')")
    sys.modules.pop("adloco_example", None)
    with pytest.raises(ConfigError, match=r"model\.loss: 'focal' does not work: ValueError: boom") as refused:
        plugin_loss("focal")(torch.zeros(1, 3, 5), torch.tensor([[1, 2, -100]]))
    assert refused.value.code == "E232"


def test_a_negative_loss_is_an_error_of_the_setting_in_steps_and_evaluation(installed: Path) -> None:
    """No peer would accept a report with one."""
    with (installed / "site" / "adloco_example.py").open("a") as source:
        source.write("\n\ndef focal(logits, targets): return logits.logsumexp(-1) - 99.0\n")
    sys.modules.pop("adloco_example", None)
    run = run_with()
    run = replace(run, model=replace(run.model, loss="focal"))
    engine = Hosting(run, PeerConfig(device="cpu", max_micro_batch=4), ME, open_feed(run, cache_dir=None))
    engine.start([ONE])
    for measure in (lambda: engine.evaluate(ONE), lambda: train_round(engine, effect(round=0))):
        with pytest.raises(ConfigError, match=r"model\.loss: a mean of -\d.*accepted: losses of 0 or more") as refused:
            measure()
        assert refused.value.code == "E232"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["data.source=plugin"], "data.plugin: belongs to data.source plugin"),
        (["data.plugin=sums"], "data.plugin: belongs to data.source plugin"),
        (["model.arguments.hidden_size=3"], "model.arguments: nothing without model.plugin"),
        (["model.plugin=gru", "model.architecture.hidden_size=32"], "model.architecture: model.plugin builds the model"),
        (["data.source=plugin", "data.plugin=sums", "data.streaming=true"], "data.plugin: gives all texts itself"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_run(None, settings)
    assert words in str(refused.value)
