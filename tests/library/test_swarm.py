"""What `Swarm` refuses, and that a program which uses it loads no libraries of models. `tests/training/test_own_loop.py` and
`tests/e2e/test_own_loop.py` have its rounds."""

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import adloco_p2p
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.effects import Stop
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.error_codes import ERROR_CODES
from adloco_p2p.errors import ConfigError
from adloco_p2p.runtime.adapters.embedding import Embedding
from adloco_p2p.storage.workdir import Workdir

ALONE = {"name": "line", "work.rounds": 1, "work.inner_steps": 1, "batch.initial_batch": 4, "admission.probation_rounds": 0}
MACHINE = {"num_threads": 1, "host_maddrs": ["/ip4/127.0.0.1/tcp/0"], "daemon_start_seconds": 240.0}


def line() -> torch.nn.Linear:
    return torch.nn.Linear(2, 1)


def made_in_inference() -> list[torch.nn.Parameter]:
    with torch.inference_mode():
        return list(line().parameters())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], "none"),
        (line(), "a Linear"),
        (line().state_dict(), "a OrderedDict"),
        (torch.optim.SGD(line().parameters()).param_groups, "number 0 is a dict"),
        (line().bfloat16().parameters(), "number 0 is torch.bfloat16"),
        (made_in_inference(), "number 0 was made under torch.inference_mode"),
        ([line().weight] * 2, "twice"),
    ],
)
def test_parameters_that_cannot_be_averaged_are_refused_with_what_is_accepted(given: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(adloco_p2p.AdlocoError, match=f"^parameters: .*{problem}.*; accepted: ") as refused:
        adloco_p2p.Swarm(ALONE, workdir=tmp_path, parameters=given)
    assert refused.value.code == "E233"
    assert "docs/library.md" in "".join(refused.value.__notes__), "a traceback shows the remedy"


def test_a_swarm_is_entered_once_and_a_step_belongs_inside(tmp_path: Path) -> None:
    net = line()
    swarm = adloco_p2p.Swarm(ALONE, workdir=tmp_path, parameters=net.parameters(), name="line", peer=MACHINE)
    with pytest.raises(adloco_p2p.AdlocoError, match="accepted: `with") as early:
        swarm.step(samples=4, loss=1.0)
    with swarm:
        with pytest.raises(adloco_p2p.AdlocoError, match="samples=0") as wrong:
            swarm.step(samples=0, loss=1.0)
        pair = torch.tensor([4, 4])
        for name, value in [("samples", 2.5), ("samples", pair), ("tokens", -1), ("tokens", 2.5), ("tokens", 1 << 70)]:
            words = rf"{name}={re.escape(repr(value))}.*accepted: a whole number"
            with pytest.raises(adloco_p2p.AdlocoError, match=words) as wrong:
                swarm.step(**{"samples": 4, "loss": 1.0, name: value})  # type: ignore[arg-type]
        with pytest.raises(adloco_p2p.AdlocoError, match=r"step\(loss.*: -0\.25; accepted: 0 or more; .*constant") as negative:
            swarm.step(samples=4, loss=-0.25)
        for loss in ("1.0", None):
            with pytest.raises(adloco_p2p.AdlocoError, match=f"loss={loss!r}.*accepted: a number"):
                swarm.step(samples=4, loss=loss)  # type: ignore[arg-type]
        with pytest.raises(adloco_p2p.AdlocoError, match="in use by this program"):
            adloco_p2p.Swarm(ALONE, workdir=tmp_path, parameters=net.parameters(), name="line", peer=MACHINE).__enter__()
        assert not swarm.step(samples=torch.tensor(4), loss=1.0, tokens=np.int64(9)) and swarm.is_finished
    with pytest.raises(adloco_p2p.AdlocoError, match="accepted: a new Swarm") as again:
        swarm.__enter__()
    assert {refused.value.code for refused in (early, wrong, negative, again)} == {"E233"}


def test_a_peer_that_comes_when_the_run_is_over_does_not_take_its_own_parameters_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def over(embedding: Embedding, run: RunConfig, **_: Any) -> Stop:
        embedding.build(run, embedding.config, PeerId(adloco_p2p.peer_id(tmp_path)), embedding.workdir)
        return Stop(reason="the run is complete", is_finished=True)

    monkeypatch.setattr("adloco_p2p.library.swarm.start_run", over)
    swarm = adloco_p2p.Swarm(ALONE, workdir=tmp_path, parameters=line().parameters(), name="line", peer=MACHINE)
    with pytest.raises(adloco_p2p.AdlocoError, match="holds no model") as late, swarm:
        pass
    assert late.value.code == "E314" and not swarm.is_finished


@pytest.mark.parametrize("is_file", [False, True])
def test_settings_of_inner_steps_that_the_program_does_are_named(
    is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def begun(*_: Any, **__: Any) -> Stop:
        raise adloco_p2p.AdlocoError("begun")

    monkeypatch.setattr("adloco_p2p.library.swarm.start_run", begun)
    target: Any = {**ALONE, "mode": "adloco", "inner.learning_rate": 0.1}
    if is_file:
        target = tmp_path / "run.yaml"
        target.write_text("mode: adloco\ninner: {learning_rate: 0.1}\nwork: {rounds: 1}\n")
    swarm = adloco_p2p.Swarm(target, workdir=tmp_path / "me", parameters=line().parameters(), peer=MACHINE)
    with pytest.raises(adloco_p2p.AdlocoError, match="begun"):
        swarm.__enter__()
    (warned,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned.startswith("inner.learning_rate: without effect, because the program's own optimizer"), "no preset is named"


def test_settings_in_the_directory_of_a_run_that_was_joined_name_the_link(tmp_path: Path) -> None:
    joined = Workdir.open(tmp_path)
    joined.adopt(RunConfig(name="theirs", author=PeerId("12D3KooWTheirs")))
    joined.journal_path.write_bytes(b"plans")
    joined.close()
    swarm = adloco_p2p.Swarm(ALONE, workdir=tmp_path, parameters=line().parameters(), peer=MACHINE)
    with pytest.raises(adloco_p2p.AdlocoError, match=r"theirs .*this peer joined.*a link to that run") as refused:
        swarm.__enter__()
    assert refused.value.code == "E203"


def test_the_remedy_of_a_run_that_diverged_is_one_that_a_program_has() -> None:
    assert "in a program around `adloco_p2p.Swarm` the rate of its own optimizer" in ERROR_CODES["E503"].remedy


def test_a_program_loads_no_libraries_of_models() -> None:
    """They are seconds of its start, and their warnings are not its own."""
    code = "import sys, adloco_p2p; adloco_p2p.Swarm; assert not {'transformers', 'peft', 'datasets'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("target", [None, "", [], 3])
def test_a_target_that_is_none_is_refused_with_what_is_accepted(target: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="accepted: a join link, the path of a configuration, or settings"):
        adloco_p2p.Swarm(target, workdir=tmp_path, parameters=torch.nn.Linear(2, 2).parameters(), name="net")


def test_paths_are_settings_and_other_objects_are_refused(tmp_path: Path) -> None:
    parameters = list(torch.nn.Linear(2, 2).parameters())
    made = adloco_p2p.Swarm(
        {"name": "net"}, workdir=tmp_path, parameters=parameters, name="net", peer={"tasks_path": tmp_path / "tasks"}
    )
    assert made._machine.tasks_path == str(tmp_path / "tasks")
    with pytest.raises(ConfigError, match="tasks_path: a object; accepted: numbers, texts"):
        adloco_p2p.Swarm({"name": "net"}, workdir=tmp_path, parameters=parameters, name="net", peer={"tasks_path": object()})
