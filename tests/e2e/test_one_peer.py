"""One peer from the outside: the command, its files, its exit codes; what is killed, stopped, torn and full."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from adloco_p2p.commands.trained_model import load_model, open_saved
from adloco_p2p.data.source import files_digest
from adloco_p2p.storage.workdir import Workdir
from tests.e2e.processes import (
    CONNECTED,
    LAST_SECONDS,
    MACHINE,
    ROUNDS,
    TINY_MODEL,
    Ended,
    begin,
    begin_warm,
    digests,
    events,
    finish,
    run,
    write_config,
    write_document,
)
from tests.e2e.swarm_processes import LOOPBACK

HOSTING = "adloco_p2p.training.hosting:Hosting"
STORE = "adloco_p2p.storage.checkpoint:CheckpointStore"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of a run that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("whole") / "work"
    ended = finish(begin("start", config, "--workdir", workdir, *MACHINE))
    assert ended.code == 0, ended
    assert ended.errors == ""
    return workdir


@pytest.fixture(scope="module")
def stopped(config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """The working directory of a run that was asked to stop while the second instance of round 2 trained."""
    folder = tmp_path_factory.mktemp("stopped")
    fault = ("signal_at", f"{HOSTING}.run_inner", "6", "before", "SIGINT")
    return folder / "work", run(["start", config, "--workdir", folder / "work", *MACHINE], folder=folder, fault=fault)


@pytest.fixture
def copy(stopped: tuple[Path, Ended], tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped[0], tmp_path / "work"))


def is_like(workdir: Path, whole: Path) -> None:
    """Every round and instance once, with the same bits; and the same model, momentum and moments in the end."""
    assert digests(workdir) == digests(whole)
    assert [event["event"] for event in events(workdir)].count("finished") == 1
    ends = [sorted((folder / "checkpoints" / f"round-{ROUNDS:06}").glob("*.safetensors")) for folder in (workdir, whole)]
    assert [path.name for path in ends[0]] == [path.name for path in ends[1]] == ["instance-2.safetensors"]
    assert ends[0][0].read_bytes() == ends[1][0].read_bytes()


# --- a run that nothing disturbs -------------------------------------------------------------------------------------


def test_the_event_file_keeps_its_contract(whole: Path) -> None:
    rounds = events(whole, "round")
    assert len(digests(whole)) == 1 + 3 + 3 + 3 + 2 + 2
    for event in rounds:
        assert {"event", "round", "instance", "loss", "heldout_loss", "requested_batch", "effective_batch"} <= event.keys()
        assert {"accumulation_steps", "mode", "reason", "samples", "tokens", "hosts", "digest", "seconds"} <= event.keys()
        assert event["bytes_sent"] == event["bytes_received"] == 0
        assert event["samples"] == 4 * event["effective_batch"]
        assert len(event["digest"]) == 64 and len(event["hosts"]) == 1
        assert all(seconds >= 0 for seconds in event["seconds"].values())
        assert event["reason"]
    assert rounds[0]["heldout_loss"] > rounds[-1]["heldout_loss"] + 1.0
    assert max(event["accumulation_steps"] for event in rounds) > 1, "the batch never grew beyond a micro-batch"
    merges = events(whole, "merge")
    assert [(merge["round"], merge["sources"], merge["target"]) for merge in merges] == [(4, [0, 1], 1), (6, [1, 2], 2)]
    assert all(sum(merge["weights"]) == pytest.approx(1.0) and merge["reason"] for merge in merges)


def test_a_finished_run_reports_its_end_and_keeps_its_events(whole: Path, config: Path, tmp_path: Path) -> None:
    before = (whole / "events.jsonl").read_bytes()
    ended = run(["start", config, "--workdir", whole, *MACHINE], folder=tmp_path)
    assert ended.code == 0
    assert f"this run is complete: {ROUNDS} rounds are done" in ended.output
    assert (whole / "events.jsonl").read_bytes() == before


def test_the_export_is_the_model(whole: Path, tmp_path: Path) -> None:
    output = tmp_path / "model"
    ended = run(["export", "--workdir", whole, "--output", output], folder=tmp_path)
    assert ended.code == 0, ended
    exported = transformers.AutoModelForCausalLM.from_pretrained(output).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    saved = open_saved(whole)
    ids = torch.tensor([tokenizer("the outer step of a round")["input_ids"]])
    with torch.no_grad():
        expected = load_model(saved.run, saved.outer(saved.instances[0]), saved.instances[0])(input_ids=ids).logits
        assert torch.equal(exported(input_ids=ids).logits, expected)
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == "the outer step of a round"
    again = run(["export", "--workdir", whole, "--output", output], folder=tmp_path)
    assert again.code == 2 and "not empty" in again.errors


def test_the_model_writes_and_is_evaluated(whole: Path, tmp_path: Path) -> None:
    words = ["generate", "--workdir", whole, "--prompt", "outer ", "--max-new-tokens", "20"]
    written = run([*words, "--seed", "1"], folder=tmp_path)
    assert written.code == 0 and written.output.startswith("outer ") and len(written.output) > len("outer \n")
    assert run([*words, "--seed", "1"], folder=tmp_path).output == written.output
    evaluated = run(["evaluate", "--workdir", whole, "--json"], folder=tmp_path)
    assert evaluated.code == 0, evaluated
    result = json.loads(evaluated.output)
    assert result["round"] == ROUNDS and result["merged"] is None
    assert result["instances"][0]["heldout_loss"] == pytest.approx(events(whole, "finished")[0]["heldout_loss"], rel=1e-5)


def test_the_report_and_the_estimate(whole: Path, config: Path, tmp_path: Path) -> None:
    drawn = run(["report", "--workdir", whole, "--output", tmp_path / "report"], folder=tmp_path)
    assert drawn.code == 0, drawn
    images = sorted((tmp_path / "report").glob("*.png"))
    assert images and all(image.read_bytes().startswith(b"\x89PNG") for image in images)
    planned = run(["plan", config, "--samples", "1000", "--workdir", whole, "--json"], folder=tmp_path)
    assert planned.code == 0, planned
    document = json.loads(planned.output)
    assert document["samples"] == 1000 and document["parameters"] == 18560
    assert [item["basis"] for item in document["estimates"]] == ["derived", "derived", "extrapolated", "extrapolated"]
    assert document["happened"]["rounds"] == ROUNDS
    assert document["happened"]["samples"] == sum(event["samples"] for event in events(whole, "round"))
    shown = run(["config", "show", config, "--set", "seed=9", "--json"], folder=tmp_path)
    assert shown.code == 0 and json.loads(shown.output)


# --- kill -9 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param((f"{HOSTING}.apply_outer", "1", "before"), (f"{HOSTING}.apply_outer", "3", "after"), id="outer steps"),
        pytest.param((f"{STORE}.complete", "1", "before"), (f"{HOSTING}.run_inner", "9", "before"), id="no checkpoint yet"),
        pytest.param((f"{STORE}.complete", "2", "before"), (f"{STORE}._prune", "3", "before"), id="around a checkpoint"),
        pytest.param(("os:fsync", "21", "before"), ("os:replace", "3", "before"), id="inside a checkpoint"),
        pytest.param((f"{HOSTING}.transition", "5", "after"), (f"{HOSTING}.transition", "3", "after"), id="merges"),
        pytest.param((f"{HOSTING}.probe_merge", "1", "after"), (f"{STORE}.complete", "4", "after"), id="before the end"),
    ],
)
def test_a_killed_run_goes_on_bit_for_bit(
    config: Path, whole: Path, tmp_path: Path, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    command = ["start", config, "--workdir", tmp_path / "work", *MACHINE]
    for fault in (first, second):
        assert run(command, folder=tmp_path, fault=("signal_at", *fault, "SIGKILL")).code == -signal.SIGKILL
    expected = beginning(tmp_path / "work")
    ended = run(command, folder=tmp_path)
    assert ended.code == 0, ended
    assert expected in ended.output
    is_like(tmp_path / "work", whole)


def test_a_peer_that_others_could_reach_loses_nothing_either(config: Path, whole: Path, tmp_path: Path) -> None:
    """The same with its network up: votes are journaled, and the swarm of one agrees with itself."""
    command = ["start", config, "--workdir", tmp_path / "work", "--host-maddrs", LOOPBACK, *CONNECTED]
    fault = ("signal_at", f"{HOSTING}.apply_outer", "6", "after", "SIGKILL")
    killed = run(command, folder=tmp_path, fault=fault)
    assert killed.code == -signal.SIGKILL, killed
    expected = beginning(tmp_path / "work")
    ended = run(command, folder=tmp_path)
    assert ended.code == 0, ended
    assert expected in ended.output
    is_like(tmp_path / "work", whole)


def beginning(workdir: Path) -> str:
    """What the next process has to say. Checkpoints are written while training goes on: a killed process may have none."""
    complete = checkpoints(workdir)
    return f"resumed at round {max(complete)}" if complete else "from the beginning"


def checkpoints(workdir: Path) -> list[int]:
    """Rounds of the complete ones."""
    return [int(path.name.removeprefix("round-")) for path in (workdir / "checkpoints").iterdir() if path.suffix == ""]


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_one_interrupt_ends_the_round_and_the_same_command_goes_on(
    stopped: tuple[Path, Ended], copy: Path, config: Path, whole: Path, tmp_path: Path
) -> None:
    workdir, ended = stopped
    assert ended.code == 0 and ended.errors == ""
    assert f"continue with: adloco-peer start {config} --workdir {workdir}" in ended.output
    assert max(digests(workdir)) == (2, 2), "the round was ended for all its instances"
    assert sorted(checkpoints(workdir)) == [2, 3]
    again = run(["start", config, "--workdir", copy, *MACHINE], folder=tmp_path)
    assert again.code == 0 and "resumed at round 3" in again.output
    is_like(copy, whole)


def test_two_interrupts_end_at_once(copy: Path, config: Path, whole: Path, tmp_path: Path) -> None:
    command = ["start", config, "--workdir", copy, *MACHINE]
    output, errors = tmp_path / "output", tmp_path / "errors"
    os.mkfifo(output)
    process = begin_warm(command, output=output, errors=errors, fault=("hang_at", f"{HOSTING}.run_inner", "2"))
    assert process.pid is not None
    with output.open() as lines:
        wait_for("started", lines)
        os.kill(process.pid, signal.SIGINT)
        wait_for("stopping", lines)
        os.kill(process.pid, signal.SIGINT)
        process.join(LAST_SECONDS)
    assert process.exitcode == 130
    assert "the last checkpoint stands" in errors.read_text()
    output.unlink()
    assert run(command, folder=tmp_path).code == 0
    is_like(copy, whole)


def wait_for(word: str, lines: Iterator[str]) -> None:
    assert any(line.startswith(word) for line in lines), f"no line {word!r}"


# --- refusals --------------------------------------------------------------------------------------------------------


def test_another_run_is_refused_with_what_differs(stopped: tuple[Path, Ended], config: Path, tmp_path: Path) -> None:
    before = contents(stopped[0])
    changes = ["--set", "seed=6", "inner.learning_rate=0.02"]
    ended = run(["start", config, "--workdir", stopped[0], *changes, *MACHINE], folder=tmp_path)
    assert ended.code == 2
    assert "seed: 5 here, 6 there" in ended.errors and "inner.learning_rate: 0.01 here, 0.02 there" in ended.errors
    assert "Traceback" not in ended.errors
    assert contents(stopped[0]) == before


def test_a_directory_in_use_is_refused(stopped: tuple[Path, Ended], config: Path, tmp_path: Path) -> None:
    holder = Workdir.open(stopped[0])
    try:
        ended = run(["start", config, "--workdir", stopped[0], *MACHINE], folder=tmp_path)
    finally:
        holder.close()
    assert ended.code == 4
    assert f"in use by another adloco-peer (process {os.getpid()})" in ended.errors and "Traceback" not in ended.errors


def test_all_mistakes_are_listed_at_once(config: Path, tmp_path: Path) -> None:
    mistakes = ["work.inner_stepz=4", "seed=soon", "outer.kind=average", "outer.momentum=0.9"]
    ended = run(["start", config, "--workdir", tmp_path / "work", "--set", *mistakes, *MACHINE], folder=tmp_path)
    assert ended.code == 2
    for part in ("work.inner_stepz", "work.inner_steps", 'seed: "soon"'):
        assert part in ended.errors
    assert "Traceback" not in ended.errors
    impossible = run(["start", config, "--workdir", tmp_path / "work", "--set", *mistakes[2:], *MACHINE], folder=tmp_path)
    assert impossible.code == 2 and "outer.momentum" in impossible.errors
    assert run(["start", "--workdir"], folder=tmp_path).code == 2
    nothing = run(["evaluate", "--workdir", tmp_path / "work"], folder=tmp_path)
    assert nothing.code == 2 and "holds no run" in nothing.errors
    assert not (tmp_path / "work").exists()


# --- damage and full disks -------------------------------------------------------------------------------------------


def test_a_run_that_diverges_ends_with_an_error_and_a_sound_checkpoint(config: Path, tmp_path: Path) -> None:
    wild = ["--set", "inner.learning_rate=1e30", "--set", "inner.warmup_steps=0"]
    ended = run(["start", config, "--workdir", tmp_path / "work", *wild, *MACHINE], folder=tmp_path)
    assert ended.code == 5 and "E503" in ended.errors and "inner.learning_rate" in ended.errors, ended
    warnings = [event for event in events(tmp_path / "work", "warning") if event["key"].startswith("diverged")]
    assert warnings and all("nothing was sent" in event["message"] for event in warnings)
    saved = open_saved(tmp_path / "work")
    tensors, _ = saved.store.load_instance(saved.round, saved.instances[0])
    assert saved.round > 0 and all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def test_a_run_with_the_guard_measures_its_steps_and_ends(config: Path, tmp_path: Path) -> None:
    ended = run(["start", config, "--workdir", tmp_path / "work", "--set", "guard.enabled=true", *MACHINE], folder=tmp_path)
    assert ended.code == 0, ended
    plan = open_saved(tmp_path / "work").durable.plans[-1]
    measured = [rise for item in plan.instances for rise in item.rises]
    assert measured and not any(event["key"].startswith("guard") for event in events(tmp_path / "work", "warning"))


def test_a_peer_with_another_embedded_text_trains_and_is_warned(tmp_path: Path) -> None:
    work = tmp_path / "work"
    document = {
        "name": "embedded",
        "model": TINY_MODEL,
        "data": {"sequence_length": 32},
        "work": {"inner_steps": 2, "rounds": 2},
        "evaluation": {"rows": 8},
    }
    config = write_document(tmp_path, document)
    begun = run(["start", config, "--workdir", work, *MACHINE], folder=tmp_path)
    assert begun.code == 0 and "embedded text" not in begun.output, begun
    started = open_saved(work).run
    assert started.data.digest == files_digest(started.data), "the author's text is known to all"

    other = tmp_path / "other"
    elsewhere = ["start", config, "--workdir", other, "--set", f"data.digest={'f' * 64}", *MACHINE]
    warned = run(elsewhere, folder=tmp_path)
    assert warned.code == 0 and "warning: the embedded text of Python" in warned.output, warned
    evaluated = run(["evaluate", "--workdir", other], folder=tmp_path)
    assert evaluated.code == 0 and "warning: the embedded text" in evaluated.output


def test_a_torn_checkpoint_is_passed_over(copy: Path, config: Path, whole: Path, tmp_path: Path) -> None:
    torn = copy / "checkpoints" / "round-000003" / "instance-1.safetensors"
    os.truncate(torn, torn.stat().st_size // 2)
    ended = run(["start", config, "--workdir", copy, *MACHINE], folder=tmp_path)
    assert ended.code == 0 and "resumed at round 2" in ended.output
    is_like(copy, whole)


def test_nothing_is_overwritten_where_every_checkpoint_is_damaged(copy: Path, config: Path, tmp_path: Path) -> None:
    for manifest in (copy / "checkpoints").glob("*/manifest.json"):
        damaged = bytearray(manifest.read_bytes())
        damaged[len(damaged) // 2] ^= 1  # whatever stands there: every byte of a manifest counts
        manifest.write_bytes(damaged)
    before = contents(copy)
    ended = run(["start", config, "--workdir", copy, *MACHINE], folder=tmp_path)
    assert ended.code == 4
    assert "no checkpoint can be used" in ended.errors and "Traceback" not in ended.errors
    assert contents(copy) == before


def contents(workdir: Path) -> dict[str, bytes]:
    """Everything but the lock and the command, which name the last process and how it was started."""
    paths = (path for path in sorted(workdir.rglob("*")) if path.is_file() and path.name not in ("lock", "command.txt"))
    return {str(path.relative_to(workdir)): path.read_bytes() for path in paths}


def test_files_that_may_not_grow_end_the_run_and_lose_nothing(copy: Path, config: Path, whole: Path, tmp_path: Path) -> None:
    command = ["start", config, "--workdir", copy, *MACHINE]
    full = run(command, folder=tmp_path, fault=("limit_files", "100000"))
    assert full.code == 4, full
    assert "checkpoints/round-000004.tmp" in full.errors and "Traceback" not in full.errors
    assert run(command, folder=tmp_path).code == 0
    is_like(copy, whole)


def test_a_full_disk_ends_the_run_and_loses_nothing(config: Path, whole: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    # two checkpoints of three instances do not fit
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1800k", "tmpfs", disk], check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a small disk needs the right to mount one")
    command = ["start", config, "--workdir", disk / "work", *MACHINE]
    try:
        full = run(command, folder=tmp_path)
        assert full.code == 4, full
        assert "the disk is full" in full.errors and "Traceback" not in full.errors
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        again = run(command, folder=tmp_path)
        assert again.code == 0 and "resumed at round" in again.output
        is_like(disk / "work", whole)
    finally:
        subprocess.run(["umount", disk], check=True)
