"""The doctor's checks of a machine, what they are worth together, and how they are shown."""

import asyncio
import io
import json
import os
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from adloco_p2p.cli import main
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import LoraConfig, ModelConfig, RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.rules import AdmissionRules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.error_codes import ERROR_CODES
from adloco_p2p.runtime.doctor import network_checks
from adloco_p2p.runtime.doctor.machine_checks import (
    check_disk,
    check_gpu,
    check_memory,
    check_packages,
    check_ports,
    check_python,
    check_run,
    check_workdir,
)
from adloco_p2p.runtime.doctor.network_checks import _beside_a_node, _dial_back, _protocol
from adloco_p2p.storage.workdir import Holder, holder_of
from adloco_p2p.swarm.discovery.reachability import ClockReading
from adloco_p2p.views.check_report import CheckResult, exit_code, render
from tests.e2e.swarm_processes import free_port

GIB = 1 << 30
HOLDER = """
import sys
from pathlib import Path
from adloco_p2p.storage.workdir import Workdir
workdir = Workdir.open(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("result", "outcome", "code"),
    [
        (check_python((3, 10, 9)), "failed", "E520"),
        (check_python((3, 11, 0)), "ok", None),
        (check_gpu(PeerConfig(device="cpu")), "ok", None),
        (check_gpu(PeerConfig(device="cuda:97")), "failed", "E210"),
        (check_memory(GIB // 4), "failed", "E523"),
        (check_memory(GIB), "warning", "E523"),
        (check_memory(2 * GIB), "ok", None),
        (check_memory(None), "skipped", None),
        (check_ports(PeerConfig(host_maddrs=("nonsense",)), is_running=False), "failed", "E201"),
        (check_ports(PeerConfig(client_mode=True), is_running=False), "ok", None),
        (check_ports(PeerConfig(), is_running=False), "ok", None),
    ],
)
def test_a_machine_is_judged(result, outcome, code):
    assert (result.outcome, result.code) == (outcome, code), result


def test_a_taken_port_fails_unless_the_running_node_has_it():
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        config = PeerConfig(host_maddrs=(f"/ip4/127.0.0.1/tcp/{port}",))
        assert check_ports(config, is_running=False).code == "E307"
        assert check_ports(config, is_running=True).outcome == "skipped"
    assert check_ports(config, is_running=False).outcome == "ok"


@pytest.mark.parametrize(("free", "outcome"), [(GIB // 2, "failed"), (2 * GIB, "warning"), (9 * GIB, "ok")])
def test_the_disk_is_that_of_the_nearest_folder_that_exists(tmp_path, monkeypatch, free, outcome):
    asked = []

    def usage(folder):
        asked.append(folder)
        return SimpleNamespace(free=free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert check_disk(tmp_path / "not" / "yet").outcome == outcome
    assert asked == [tmp_path]


def test_a_folder_that_cannot_be_written_to_fails_although_its_disk_has_room(tmp_path, monkeypatch):
    """Root may write everywhere but on a disk that is read-only."""
    monkeypatch.setattr(os, "access", lambda folder, mode: not (folder == tmp_path and mode == os.W_OK))
    found = check_disk(tmp_path / "not" / "yet")
    assert (found.outcome, found.code) == ("failed", "E403") and str(tmp_path) in found.found


def test_packages_are_compared_with_what_the_node_needs(monkeypatch):
    assert check_packages().outcome == "ok"
    needs = ["torch>=99", "no-such-thing>=1", "ruff>=99; extra == 'dev'"]
    monkeypatch.setattr(metadata, "requires", lambda name: needs)
    found = check_packages()
    assert found.code == "E521"
    assert "wanted >=99" in found.found and "no-such-thing is missing" in found.found and "ruff" not in found.found


def test_a_node_that_runs_from_a_checkout_has_no_requirements_to_compare(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    found = check_packages()
    assert (found.outcome, found.code) == ("warning", "E521") and "runs from a checkout" in found.found


def test_a_running_node_is_seen_and_not_disturbed(tmp_path):
    assert holder_of(tmp_path / "nowhere") is None
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "open\n"
        assert holder_of(tmp_path) == Holder(pid=process.pid)
        assert f"process {process.pid}" in check_workdir(tmp_path, holder_of(tmp_path)).found
        process.stdin.close()
    assert holder_of(tmp_path) is None
    (tmp_path / "identity.key").write_bytes(b"short")
    (tmp_path / "identity.key").chmod(0o600)
    assert check_workdir(tmp_path, None).code == "E406"


def test_a_damaged_run_is_one_failed_check_beside_all_others(capsys, tmp_path):
    (tmp_path / "run.json").write_bytes(b'{"name": "of another version"}')
    code = main(["doctor", "--json", "--workdir", str(tmp_path)])
    told = json.loads(capsys.readouterr().out)
    checks = {result["check"]: result for result in told["results"]}
    assert (checks["run"]["outcome"], checks["run"]["code"]) == ("failed", "E405") and code != 0
    assert "written by another version" in checks["run"]["found"] and "ports" in checks


def test_the_seat_of_a_run_that_asks_for_computing_is_measured_in_this_machines_time(tmp_path):
    assert not list(check_run(tmp_path, PeerConfig())), "no run"
    for admission, shown in ((AdmissionRules(kind="work", price_minutes=3.0), True), (AdmissionRules(), False)):
        run = RunConfig(admission=admission)
        (tmp_path / "run.json").write_bytes(canonical.encode(run))
        results = list(check_run(tmp_path, PeerConfig()))
        assert [(result.check, result.outcome) for result in results] == ([("seat", "ok")] if shown else [])
        assert all("work, 3 min of one core a seat" in result.found for result in results)
        assert all(result.found.endswith("on average here") for result in results)


@pytest.mark.parametrize("has_instructions", [True, False])
def test_arithmetic_that_this_machine_emulates_is_a_warning(tmp_path, monkeypatch, has_instructions):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_instructions)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    for model, setting in (
        (ModelConfig(precision="bfloat16"), "model.precision"),
        (ModelConfig(pretrained="owner/name", lora=LoraConfig(rank=4)), "model.lora.base_precision"),
        (ModelConfig(pretrained="owner/name", lora=LoraConfig(rank=4, base_precision="float32")), None),
        (ModelConfig(precision="auto"), None),
    ):
        (tmp_path / "run.json").write_bytes(canonical.encode(RunConfig(model=model)))
        found = list(check_run(tmp_path, PeerConfig(device="cpu")))
        assert [(result.outcome, result.code) for result in found] == [("warning", "E524")] * bool(
            setting and not has_instructions
        )
        assert all(result.found.startswith(f"{setting} is bfloat16, which cpu emulates") for result in found)
    assert not list(check_run(tmp_path, PeerConfig(device="cuda:97"))), "check_gpu reports it"


def _result(outcome, code=None):
    return CheckResult(check="thing", outcome=outcome, found="as it is", code=code)


def test_the_first_failure_is_the_exit_code_and_warnings_do_not_fail():
    warned, disk, network = _result("warning", "E523"), _result("failed", "E420"), _result("failed", "E302")
    assert exit_code([_result("ok"), warned]) == 0
    assert exit_code([warned, disk, network]) == 4
    assert exit_code([network, disk]) == 3


def test_every_trouble_is_shown_with_its_code_cause_and_remedy():
    screen = io.StringIO()
    Console(file=screen, width=100).print(render([_result("ok"), _result("warning", "E322"), _result("failed", "E420")], 100))
    text = " ".join(screen.getvalue().split())
    for code in ("E322", "E420"):
        entry = ERROR_CODES[code]
        assert code in text and " ".join(entry.cause.split()) in text and " ".join(entry.remedy.split()[:6]) in text
    assert text.endswith("1 of 3 checks failed: the node cannot take part like this")


def test_the_verb_without_peers_looks_at_the_machine_only(capsys, tmp_path):
    code = main(["doctor", "--json", "--workdir", str(tmp_path / "new")])
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code
    checks = {result["check"]: result["outcome"] for result in told["results"]}
    assert checks["Python"] == checks["packages"] == "ok" and checks["network"] == "skipped"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("form", ["/ip4/127.0.0.1/tcp/{}", "/ip4/127.0.0.1/udp/{}/quic-v1"])
def test_the_doctor_tries_the_machines_own_port_unless_a_node_has_it(form):
    kind = socket.SOCK_DGRAM if "udp" in form else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as node:
        node.bind(("127.0.0.1", port := free_port()))
        if kind == socket.SOCK_STREAM:
            node.listen()
        named = form.format(port)
        config = PeerConfig(host_maddrs=(named,), announce_maddrs=("/ip4/203.0.113.7/tcp/31337",))
        elsewhere = _beside_a_node(config)
        assert elsewhere.host_maddrs == (form.format(0),) and not elsewhere.announce_maddrs
    assert _beside_a_node(config) == config
    anywhere = PeerConfig(host_maddrs=(form.format(0),), announce_maddrs=config.announce_maddrs)
    assert _beside_a_node(anywhere) == anywhere


@pytest.mark.parametrize(("run", "outcome"), [("cd" * 32, "warning"), ("", "ok")])
def test_a_helper_of_the_next_release_is_no_reason_to_warn_of_the_protocol(run: str, outcome: str) -> None:
    """It takes part in no run and names the newest protocol that it knows."""
    reading = ClockReading(offset_seconds=0.0, round_trip_seconds=0.1, protocol=NEWEST + 1, run=Digest(run), observed="")
    assert _protocol({PeerId("helper"): reading}).outcome == outcome


@pytest.mark.parametrize(
    ("reached", "words"),
    [
        (["/ip4/8.8.8.8/tcp/1"], "reached from outside at /ip4/8.8.8.8/tcp/1 ("),
        (["/ip4/10.0.0.2/tcp/1"], "reached inside this network at /ip4/10.0.0.2/tcp/1 ("),
        (["/ip4/127.0.0.1/tcp/1"], "reached by a peer on this machine at /ip4/127.0.0.1/tcp/1;"),
        (["/ip6/::1/tcp/1"], "reached by a peer on this machine at /ip6/::1/tcp/1;"),
        (["/ip4/127.0.0.1/tcp/1", "/ip4/8.8.8.8/tcp/1"], "reached from outside at /ip4/8.8.8.8/tcp/1 ("),
    ],
)
def test_only_a_peer_elsewhere_reaches_this_machine_from_outside(
    monkeypatch: pytest.MonkeyPatch, reached: list[str], words: str
) -> None:
    """Each of two peers reaches one of the addresses."""
    answers: list[dict[str, str | None]] = [{address: None} for address in reached]

    async def ask(_p2p: object, _peer: PeerId, _addresses: object) -> dict[str, str | None]:
        return answers.pop(0) if answers else {}

    async def addresses() -> list[str]:
        return reached

    monkeypatch.setattr(network_checks, "ask_to_dial_back", ask)
    reading = ClockReading(offset_seconds=0.0, round_trip_seconds=0.1, protocol=NEWEST, run=Digest(""), observed=reached[0])
    node: Any = SimpleNamespace(p2p=None, addresses=addresses)
    result = asyncio.run(_dial_back(node, {PeerId("a"): reading, PeerId("b"): reading}))
    assert result.outcome == "ok" and result.found.startswith(words)
