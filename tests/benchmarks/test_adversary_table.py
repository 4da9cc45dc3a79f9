"""`python -m benchmarks.adversary`: a handful of its rows in every build; the rest by name."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from adloco_p2p.core.ledger.proof_of_work import PROOF_ROUNDS
from benchmarks.adversary import live
from benchmarks.adversary.__main__ import main, scenarios
from benchmarks.adversary.scenario import Outcome, Scenario, named

EVERYDAY = ("A7", "A9", "B6", "B7", "B9", "C1", "C2", "C4", "one-vote entry of a member")


def test_a_handful_of_attacks_is_withstood(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--only", *EVERYDAY]) == 0, capsys.readouterr().out


def test_a_row_that_fails_fails_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def play(seed: int) -> Outcome:
        return Outcome(sent=f"seed {seed}", happened="the model was replaced", has_passed=False)

    monkeypatch.setattr("benchmarks.adversary.__main__.scenarios", lambda: [Scenario(name="all", finding="A1", play=play)])
    assert main(["--seed", "5"]) == 1
    assert "FAIL  A1" in capsys.readouterr().out


@pytest.mark.parametrize(("has_passed", "code", "word"), [(False, 0, "open  B6"), (True, 1, "shut  B6")])
def test_a_known_gap_is_shown_as_open_and_fails_the_command_once_it_is_shut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_passed: bool, code: int, word: str
) -> None:
    def play(seed: int) -> Outcome:
        return Outcome(sent=f"seed {seed}", happened="a wrong average", has_passed=has_passed)

    gap = Scenario(name="all", finding="B6", play=play, gap="nobody looks")
    monkeypatch.setattr("benchmarks.adversary.__main__.scenarios", lambda: [gap])
    assert main(["--seed", "5"]) == code
    told = capsys.readouterr().out
    assert word in told and "known gap: nobody looks" in told


def test_the_gaps_are_those_that_the_page_on_security_names() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    assert "no known gap is left" in page
    assert [row.name for row in scenarios() if row.gap] == []


def test_every_finding_has_a_row_and_there_are_twenty_variants() -> None:
    findings = {row.finding for row in scenarios()}
    expected = {f"A{n}" for n in range(1, 11)} | {f"B{n}" for n in range(1, 12)} | {f"C{n}" for n in range(1, 5)}
    assert findings == expected | {""}
    assert len([row for row in scenarios() if not row.finding]) >= 20
    assert len({row.name for row in scenarios()}) == len(scenarios())


def test_an_unknown_name_is_an_error() -> None:
    assert main(["--only", "D9"]) == 2
    with pytest.raises(KeyError):
        named(scenarios(), ["D9"])


@pytest.mark.parametrize(
    ("paid_in", "seated_in", "problem"),
    [
        (4, 6, ""),
        (4, 4 + PROOF_ROUNDS, ""),
        (4, 5 + PROOF_ROUNDS, f"the newcomer waited for {PROOF_ROUNDS + 1} rounds"),
        (4, None, "the newcomer paid, and got no seat"),
        (None, None, "the newcomer found no proof"),
    ],
)
def test_a_newcomer_has_its_seat_before_its_first_proof_is_over(
    paid_in: int | None, seated_in: int | None, problem: str
) -> None:
    round = 0
    peer = SimpleNamespace(peer_id="me", is_alive=True, words="")
    peer.events = lambda: [{"event": "proving", "is_over": paid_in is not None and round >= paid_in}]
    nodes = SimpleNamespace(newest=lambda: [round, round])
    nodes.seats = lambda: [(number, ["me"] if number == seated_in else []) for number in range(round + 1)]
    newcomer = live._Newcomer(nodes, peer)  # type: ignore[arg-type]
    while not newcomer.is_done():
        round += 1
    assert newcomer.problem() == problem
    assert round == (seated_in if seated_in is not None else live.MOST_ROUNDS + 1)


@pytest.mark.parametrize(("work", "most"), [(0.0, 301.0), (0.001, 301.0), (0.01, 1801.0), (1.0, 91.0)])
def test_nodes_without_a_round_are_waited_for_only_so_long(work: float, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`work`: seconds of processor time in every second; idle nodes, nodes that beat, busy nodes."""
    now = [0.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])

        @staticmethod
        def sleep(seconds: float) -> None:
            now[0] += seconds

    monkeypatch.setattr(live, "time", Clock)
    monkeypatch.setattr(live._Nodes, "newest", lambda _: [3, 4])
    monkeypatch.setattr(live._Nodes, "_processor_seconds", lambda _: 7.0 + work * now[0])
    nodes = live._Nodes(Path())
    assert nodes.wait_for(3) and now[0] == 0.0
    assert not nodes.wait_for(4)
    assert most - 2 < now[0] < most
