"""The shipped configurations let a device compute: the figures of docs/results/time.md, recomputed from the files."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.cli import main
from adloco_p2p.commands.plan import memory_need_of
from adloco_p2p.config.load import load_run
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.training.device import DeviceMemory
from adloco_p2p.views import units
from adloco_p2p.views.cost_model import Link
from adloco_p2p.views.device_share import FROZEN_OPERATIONS, OPERATIONS, DeviceShare, device_share
from benchmarks.finetune import KEPT
from benchmarks.method.store import read_records
from tests.config.test_shipped_configs import ROOT, parameters
from tests.e2e.tiny_chat import write_adapter_config

ROW = re.compile(
    r"^\| `configs/(?P<name>[\w-]+)\.yaml` \| (?P<hosts>\d+) \| (?P<rate>[\d.]+) \| (?P<computing>[\d.]+) s"
    r" \| (?P<averaging>[\d.]+) s \| (?P<between>[\d.]+) s \| (?P<share>[\d.]+) % \|$",
    re.MULTILINE,
)
TEXT = (ROOT / "docs" / "results" / "time.md").read_text("utf-8")
LAYERS, WIDTH, INNER, KEYS, VOCABULARY = 30, 576, 1536, 192, 49152
"""The shape of SmolLM2-135M; `KEYS`: the width of its keys, and of its values."""
LINEAR = ((WIDTH, WIDTH), (WIDTH, KEYS), (WIDTH, KEYS), (WIDTH, WIDTH), (WIDTH, INNER), (WIDTH, INNER), (INNER, WIDTH))
"""The linear maps of one of its layers."""


def trained_and_frozen(run: RunConfig) -> tuple[int, int]:
    if not run.model.lora.rank:
        return parameters(run), 0
    assert run.name == "finetune-smollm2" and run.model.lora.targets == ("all-linear",)
    frozen = LAYERS * (sum(width * height for width, height in LINEAR) + 2 * WIDTH) + WIDTH + VOCABULARY * WIDTH
    return LAYERS * run.model.lora.rank * sum(width + height for width, height in LINEAR), frozen


def share_of(name: str, *overrides: str, hosts: int, teraflops: float) -> DeviceShare:
    run = load_run(Path(name), overrides).value
    num_parameters, num_frozen = trained_and_frozen(run)
    link = Link(
        num_parameters=num_parameters,
        num_workers=hosts,
        bytes_per_value=run.averaging.bytes_per_value,
        megabits_per_second=100.0,
    )
    return device_share(
        link,
        batch_per_host=run.batch.initial_batch / hosts,
        row_tokens=run.data.sequence_length,
        inner_steps=run.work.inner_steps,
        teraflops=teraflops,
        num_frozen=num_frozen,
    )


def test_by_hand() -> None:
    """A million parameters, two hosts, two bytes a value over 8 Mbit/s: 2 MB each way in 2.5 s at 80 %, and three delays.
    Ten steps of 4 rows of 100 tokens are 24 GFLOP: 2.4 s at 10 GFLOP/s."""
    link = Link(num_parameters=10**6, num_workers=2, bytes_per_value=2.0, megabits_per_second=8.0)
    found = device_share(link, batch_per_host=4, row_tokens=100, inner_steps=10, teraflops=0.01)
    assert found.computing_seconds == pytest.approx(2.4)
    assert found.averaging_seconds == pytest.approx(2.5 + 0.15)
    assert found.outer_step_seconds == pytest.approx(4 / 150)
    assert found.share == pytest.approx(2.4 / (2.4 + 2.65 + 4 / 150))
    more = device_share(link, batch_per_host=4, row_tokens=100, inner_steps=10, teraflops=0.01, num_frozen=3 * 10**6)
    assert more.computing_seconds == pytest.approx(3 * 2.4), "three times the parameters, at two thirds of the price"
    assert more.averaging_seconds == found.averaging_seconds


@pytest.mark.parametrize("row", ROW.finditer(TEXT), ids=lambda row: row["name"])
def test_the_table_is_what_the_configurations_give(row: re.Match[str]) -> None:
    found = share_of(row["name"], hosts=int(row["hosts"]), teraflops=float(row["rate"]))
    assert [f"{value:.1f}" for value in (found.computing_seconds, found.averaging_seconds, found.outer_step_seconds)] == [
        row["computing"],
        row["averaging"],
        row["between"],
    ]
    assert f"{100 * found.share:.1f}" == row["share"]
    assert found.share >= 0.85, "what the issue asks of a shipped configuration"


def test_the_table_has_every_configuration_of_the_folder() -> None:
    assert sorted(row["name"] for row in ROW.finditer(TEXT)) == sorted(path.stem for path in (ROOT / "configs").iterdir())


def test_adapters_have_the_size_and_the_rate_of_the_kept_runs() -> None:
    """The bytes are those of `int8`, with a scale of 4 bytes for 256 values. The rate is that of the fastest run."""
    run, records = load_run(Path("finetune")).value, read_records(KEPT)
    trained, frozen = trained_and_frozen(run)
    assert {record["num_bytes"] for record in records if record["row"] == "all" and not record["set"]} == {
        trained + trained // 256 * 4 + 4
    }
    assert run.work.rounds is not None
    samples = run.work.rounds * run.work.inner_steps * run.batch.initial_batch
    seconds = min(record["seconds"] for record in records if record["row"] == "one" and not record["set"])
    rate = (OPERATIONS * trained + FROZEN_OPERATIONS * frozen) * samples * run.data.sequence_length / seconds / 1e12
    (row,) = (row for row in ROW.finditer(TEXT) if row["name"] == "finetune")
    assert f"{rate:.3f}" == row["rate"]
    told = " ".join(TEXT.split())
    assert f"{trained / 1e6:.1f} million values beside {frozen / 1e6:.1f} million that are frozen" in told
    assert f"{samples} rows in {seconds} s" in told
    on_a_card = share_of("finetune", hosts=int(row["hosts"]), teraflops=50.0)
    assert f"At 50 TFLOP/s `finetune` would compute {100 * on_a_card.share:.1f} % of the time" in told


def test_the_plan_of_adapters_counts_the_base(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = write_adapter_config(tmp_path, "yes yes yes")
    assert main(["plan", str(config), "--samples", "1000", "--peers", "2", "--teraflops", "0.001", "--json"]) == 0
    said, run = json.loads(capsys.readouterr().out), load_run(config).value
    operations = OPERATIONS * said["memory"]["num_parameters"] + FROZEN_OPERATIONS * said["memory"]["num_frozen"]
    tokens = run.batch.initial_batch / 2 * run.data.sequence_length * run.work.inner_steps
    assert said["memory"]["num_frozen"] > said["memory"]["num_parameters"] > 0
    assert said["device"]["computing_seconds"] == pytest.approx(operations * tokens / 1e9)


def test_what_was_shipped_before_let_the_device_wait() -> None:
    before = ("batch.initial_batch=32", "work.inner_steps=64", "averaging.codec=float16")
    (told,) = re.findall(r"computed (\d+\.\d) % with 32 samples, H 64 and float16", TEXT)
    assert f"{100 * share_of('c4-150m', *before, hosts=8, teraflops=50.0).share:.1f}" == told


def test_the_plan_of_a_constant_batch_needs_no_samples(capsys: pytest.CaptureFixture[str]) -> None:
    """Six rounds of eight steps of eight rows. A batch that grows has no such count."""
    counted = ["work.rounds=6", "work.inner_steps=8", "batch.initial_batch=8"]
    assert main(["plan", "diloco", "--json", "--set", *counted]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 384
    assert main(["plan", "default", "--set", *counted]) == 2
    assert "--samples N is required" in capsys.readouterr().err


def test_the_plan_of_a_small_run_shows_sizes_and_batches_that_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2"
    small = f"model.architecture={{model_type: llama, {sizes}}}"
    assert main(["plan", "default", "--samples", "1000", "--peers", "3", "--set", small]) == 0
    said = capsys.readouterr().out
    assert " kB on the device" in said and "0.00" not in said and "constant batch of 2.67 per host" in said


def test_the_plan_for_a_processor_adds_its_memory_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need = memory_need_of(load_run(None, []).value)
    whole = need.device + need.host + need.process
    said = []
    for free in (whole, whole - 1):
        machine = DeviceMemory(name="cpu", model="processor", free_bytes=free, total_bytes=2 * whole)
        monkeypatch.setattr("adloco_p2p.commands.plan._devices", lambda machine=machine: (machine,))
        assert main(["plan", "default", "--samples", "1000"]) == 0
        said.append(capsys.readouterr().out)
    assert all(f"training here takes {units.size(whole)} in all" in text for text in said)
    assert ["more than is free" in text for text in said] == [False, True]


def test_the_plan_of_a_divided_model_shows_the_memory_of_each_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ["plan", "default", "--samples", "1000"]
    assert main([*plan, "--shards", "2"]) == 0
    assert "  divided (--peer-set shards=2 max_instances=1): " in capsys.readouterr().out
    need = memory_need_of(load_run(None, []).value)
    assert need.whole is not None
    card = DeviceMemory(name="cuda:0", model="small card", free_bytes=need.divided(3), total_bytes=need.device)
    monkeypatch.setattr("adloco_p2p.commands.plan._devices", lambda: (card,))
    assert main(plan) == 0
    assert "no GPU here holds it; 3 such ones hold it divided (--peer-set shards=3 max_instances=1)" in capsys.readouterr().out
    monkeypatch.setattr("adloco_p2p.commands.plan._devices", lambda: (replace(card, free_bytes=need.whole),))
    assert main(plan) == 0
    assert "cannot be divided" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*plan, "--shards", "65"])
    assert "65: a whole number from 1 to 64 is accepted" in capsys.readouterr().err
    streamed = ["--set", "outer.overlap=streaming", "averaging.fragments=2", "instances.count=1", "batch.statistic=micro_batch"]
    assert main([*plan, "--shards", "2", *streamed]) == 0
    said = capsys.readouterr().out
    assert "cannot be divided over devices: this run has outer.overlap streaming" in said and "leave shards at 1" in said
    monkeypatch.setattr("adloco_p2p.commands.plan._devices", lambda: (replace(card, free_bytes=need.device),))
    assert main(plan) == 0
    assert "divided" not in capsys.readouterr().out
