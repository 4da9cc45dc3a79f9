"""The verbs that show and check decisions: what they print, and what they end with when something is wrong."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import adloco_p2p
from adloco_p2p.cli import main
from adloco_p2p.core.agreement.consensus import Consensus
from adloco_p2p.core.model.effects import Persist
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.outcomes import Outcome
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.runtime.adapters.network_journal import NetworkJournal, journal_records
from adloco_p2p.storage.journal import Journal
from tests.e2e.processes import ROUNDS, events, swarm_of_one

Forge = Callable[[LedgerEntry], LedgerEntry]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of a finished run of a swarm of one, which keeps a ledger like any other."""
    return swarm_of_one(tmp_path_factory.mktemp("ledger"))


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "work"))


def test_the_ledger_is_one_chain_of_what_was_trained(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "--workdir", str(whole), "--json"]) == 0
    plans = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [plan["round"] for plan in plans] == list(range(ROUNDS + 1))
    assert all({"round", "parent", "digest", "instances", "merges", "roster", "votes"} <= plan.keys() for plan in plans)
    assert [plan["parent"] for plan in plans] == ["0" * 64, *(plan["digest"] for plan in plans[:-1])]
    assert all(plan["votes"] == plan["roster"] and len(plan["votes"]) == 1 for plan in plans[1:])
    planned = {(plan["round"], item["instance"]): item["requested_batch"] for plan in plans for item in plan["instances"]}
    trained = {(event["round"], event["instance"]): event["requested_batch"] for event in events(whole, "round")}
    assert len(trained) > ROUNDS and trained.items() <= planned.items()
    merged = [(plan["round"], merge["sources"], merge["target"]) for plan in plans for merge in plan["merges"]]
    assert merged == [(event["round"], event["sources"], event["target"]) for event in events(whole, "merge")]

    assert main(["ledger", "--workdir", str(whole)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == ROUNDS + 1 and plans[-1]["digest"][:12] in lines[-1]


def test_a_round_is_explained_in_words_and_numbers(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    merge = events(whole, "merge")[0]
    assert main(["explain", str(merge["round"]), "--workdir", str(whole)]) == 0
    text = capsys.readouterr().out
    for source, weight in zip(merge["sources"], merge["weights"], strict=True):
        assert f"{source} with weight {weight:.3f}" in text
    assert merge["reason"] in text

    switched = next(event for event in events(whole, "round") if event["mode"] == "accumulate")
    assert main(["explain", str(switched["round"]), "--workdir", str(whole)]) == 0
    text = capsys.readouterr().out
    assert f"trains {switched['requested_batch']} samples in" in text and "passes of" in text
    assert switched["reason"] in text and "noise" in text and "reported of round" in text


def test_a_round_that_is_not_there(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "99", "--workdir", str(whole)]) == 2
    assert f"the ledger holds rounds 0 to {ROUNDS}" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["explain", "-1", "--workdir", str(whole)])
    assert ended.value.code == 2 and "a whole number from 0 on is accepted" in capsys.readouterr().err


# --- verify ----------------------------------------------------------------------------------------------------------


def test_a_sound_ledger_verifies(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "verify", "--workdir", str(whole)]) == 0
    assert f"sound: {ROUNDS} plans after the first, {ROUNDS} votes" in capsys.readouterr().out
    assert main(["ledger", "verify", "--json", "--workdir", str(whole)]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["is_sound"], verdict["plans"], verdict["votes"], verdict["problems"]) == (True, ROUNDS, ROUNDS, [])


def flipped(text: str) -> Digest:
    return Digest(("1" if text[0] == "0" else "0") + text[1:])


def vote_signature(entry: LedgerEntry) -> LedgerEntry:
    vote = entry.certificate.votes[0]
    return replace(entry, certificate=replace(entry.certificate, votes=(replace(vote, signature=flipped(vote.signature)),)))


def report_signature(entry: LedgerEntry) -> LedgerEntry:
    first = entry.reports[0]
    return replace(entry, reports=(replace(first, signature=flipped(first.signature)),))


def reported_loss(entry: LedgerEntry) -> LedgerEntry:
    first = entry.reports[0]
    better = replace(first.report, instances=tuple(replace(item, loss=0.5) for item in first.report.instances))
    return replace(entry, reports=(replace(first, report=better),))


def with_plan(entry: LedgerEntry, **changes: Any) -> LedgerEntry:
    return replace(entry, plan=replace(entry.plan, **changes))


FORGED: dict[str, Forge] = {
    "a vote's signature": vote_signature,
    "no vote": lambda entry: replace(entry, certificate=replace(entry.certificate, votes=())),
    "a report's signature": report_signature,
    "a reported loss": reported_loss,
    "a batch in the plan": lambda entry: with_plan(
        entry, instances=(replace(entry.plan.instances[0], requested_batch=11), *entry.plan.instances[1:])
    ),
    "a reason in the plan": lambda entry: with_plan(entry, reason="because"),
    "the digest that was voted on": lambda entry: replace(entry, value=replace(entry.value, plan=flipped(entry.value.plan))),
    "the parent": lambda entry: replace(entry, value=replace(entry.value, parent=flipped(entry.value.parent))),
}


def forge(path: Path, change: Forge, *, round: int) -> None:
    """Write the journal anew with one entry changed; its checksums are right."""
    records = journal_records(path)
    journal = Journal.open(path)
    journal.keep(())
    writer = NetworkJournal(journal)
    for record in records:
        writer.append(change(record) if isinstance(record, LedgerEntry) and record.plan.round == round else record)
    journal.close()


def test_writing_the_journal_anew_without_a_change_is_no_forgery(copy: Path) -> None:
    before = (copy / "journal.bin").read_bytes()
    forge(copy / "journal.bin", lambda entry: entry, round=3)
    assert (copy / "journal.bin").read_bytes() == before


@pytest.mark.parametrize("what", sorted(FORGED))
def test_a_forged_ledger_does_not_verify(copy: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    forge(copy / "journal.bin", FORGED[what], round=3)
    assert main(["ledger", "verify", "--workdir", str(copy)]) == 1
    printed = capsys.readouterr().out
    assert "round 3: " in printed and "sound" not in printed


def test_a_byte_that_changed_on_the_disk_is_found(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy / "journal.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert main(["ledger", "verify", "--workdir", str(copy)]) == 4
    assert "damaged" in capsys.readouterr().err


def test_directories_without_a_ledger(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "--workdir", str(tmp_path / "nothing")]) == 2
    assert "holds no run" in capsys.readouterr().err
    (copy / "journal.bin").unlink()
    assert main(["ledger", "--workdir", str(copy)]) == 4
    assert "--offline keeps none" in capsys.readouterr().err


# --- simulate --------------------------------------------------------------------------------------------------------


def test_simulated_swarms_in_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--peers", "4", "--rounds", "2", "--seeds", "1-3", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [(result["seed"], result["peers"], result["violation"]) for result in results] == [(n, 4, None) for n in (1, 2, 3)]
    for result in results:
        assert [item["round"] for item in result["rounds"]] == [1, 2]
        assert all(0 <= item["first_seconds"] <= item["median_seconds"] <= item["last_seconds"] for item in result["rounds"])
        assert result["messages_per_peer"] > 0 and result["bytes_per_peer"] > 0


def test_simulated_swarms_of_several_sizes_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--peers", "1", "6", "--rounds", "2", "--seeds", "3", "--loss", "0.05", "--liars", "0.3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 of 2 runs kept every promise"
    assert [line.split()[:2] for line in lines if line.split() and line.split()[0].isdigit()][-2:] == [["1", "2"], ["6", "2"]]


def test_a_broken_promise_is_shown_with_seed_and_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flush = Consensus._flush

    def replies_before_persisting(self: Consensus, now: float) -> list[Outcome]:
        return sorted(flush(self, now), key=lambda outcome: isinstance(outcome, Persist))

    monkeypatch.setattr(Consensus, "_flush", replies_before_persisting)
    assert main(["simulate", "--peers", "5", "--rounds", "3", "--seeds", "1-2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = next(index for index, line in enumerate(lines) if "FAILED" in line)
    assert lines[0] == "0 of 2 runs kept every promise"
    assert lines[failed].startswith("seed 1 with 5 peers FAILED: ") and lines[-1] == "seeds that failed too: 2"
    assert any("p00" in line and "->" in line for line in lines[failed + 1 :]), "no story"


def test_a_program_reads_the_same_from_the_ledger(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`adloco_p2p.Run` against what the peer itself wrote down, round by round."""
    read = adloco_p2p.Run(whole)
    of_peer = {(event["round"], event["instance"]): event for event in events(whole, "round")}
    assert [(row.round, row.instance) for row in read.rounds] == sorted(of_peer)
    assert all(row.loss == of_peer[row.round, row.instance]["loss"] for row in read.rounds)
    assert read.reports and {row.peer for row in read.reports} == {read.contributors[0].peer}
    assert read.contributors[0].samples == sum(row.samples for row in read.reports)
    assert main(["ledger", "--workdir", str(whole), "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(read.plans) == 1 + len(read.entries)
