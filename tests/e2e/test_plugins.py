"""A run with model, texts and loss of an installed package: alone, to its exported model, and between real processes. That
needs minutes, so it is run by name: python -m pytest -m heavy tests/e2e/test_plugins.py"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adloco_p2p.cli import main
from adloco_p2p.swarm.p2p.identity import Identity
from tests.plugins import install

REPOSITORY = Path(__file__).parents[2]
LIMIT_SECONDS = 400.0
SETTINGS = "model.plugin=gru model.arguments.hidden_size=16 data.source=plugin data.plugin=sums model.loss=focal mode=localsgd"
SETTINGS += " data.sequence_length=32 work.inner_steps=20 work.rounds=3 batch.initial_batch=8 batch.max_batch=8"
SETTINGS += " admission.kind=open evaluation.rows=16"
COMMON = ["--plain", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--peer-set", "num_threads=1"]


def begin(words: list[str], workdir: Path, *, packages: Path | None) -> subprocess.Popen[str]:
    path = os.pathsep.join(map(str, [REPOSITORY, *([] if packages is None else [packages])]))
    command = [sys.executable, "-m", "adloco_p2p", *words, "--workdir", str(workdir), *COMMON]
    with workdir.with_suffix(".log").open("w") as log:
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log, text=True)


def said(process: subprocess.Popen[str], log: Path, pattern: str) -> str:
    deadline = time.monotonic() + LIMIT_SECONDS
    while (found := re.search(pattern, log.read_text(), re.MULTILINE)) is None:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return found[1]


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_a_run_of_a_package_is_joined_by_those_who_have_it(tmp_path: Path) -> None:
    packages, first_log = install(tmp_path / "site"), tmp_path / "first.log"
    (tmp_path / "with").mkdir()
    founder = Identity.load_or_create(tmp_path / "with" / "identity.key").peer_id  # so that the run waits for it
    start = ["start", "--set", *SETTINGS.split(), f"founders=[{founder}]"]
    processes = [begin(start, tmp_path / "first", packages=packages)]
    try:
        link = said(processes[0], first_log, r"^join link: (.+)$")
        joining = ["join", "--initial-peers", link]
        processes.append(begin(joining, tmp_path / "without", packages=None))
        assert processes[-1].wait(LIMIT_SECONDS) == 2
        words = (tmp_path / "without.log").read_text()
        assert "pip install 'adloco-example==1.0'" in words and "E232" in words
        assert not (tmp_path / "without" / "checkpoints").exists() and not (tmp_path / "without" / "run.json").exists()
        processes.append(begin(joining, tmp_path / "with", packages=packages))
        assert processes[-1].wait(LIMIT_SECONDS) == 0, (tmp_path / "with.log").read_text()
        assert processes[0].wait(LIMIT_SECONDS) == 0, first_log.read_text()
        losses = [float(loss) for loss in re.findall(r"heldout (\d\.\d+)", first_log.read_text())]
        assert losses[-1] < losses[0]
    finally:
        for process in processes:
            process.kill()


def test_the_model_of_a_package_is_exported_and_writes_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "site")))
    workdir, output = str(tmp_path / "peer"), tmp_path / "model"
    short = [*SETTINGS.split(), "work.inner_steps=1", "work.rounds=1", "data.arguments.largest=20"]
    start = ["start", "--offline", "--plain", "--workdir", workdir, "--peer-set", "num_threads=1", "max_micro_batch=8"]
    assert main([*start, "--set", *short]) == 0
    assert main(["export", "--workdir", workdir, "--output", str(output)]) == 0
    assert (output / "model.safetensors").exists() and (output / "config.json").exists()
    capsys.readouterr()
    assert main(["generate", "--workdir", workdir, "--prompt", "1 + 1", "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("1 + 1")
