"""One peer on the web page: its rounds by the ledger, what went wrong in them, and the same for every holder of the ledger."""

import json
from dataclasses import replace
from typing import Any

from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model.plan import REPORT_LAG
from adloco_p2p.views import peer_page
from adloco_p2p.views.ledger_events import LedgerEvents
from adloco_p2p.views.page import plans_of
from adloco_p2p.views.peer_page import peer_documents
from tests.core.agreement.test_observer import members, trained
from tests.core.core_values import peer
from tests.views.synthetic import OTHERS, THIS, events, replay, stamped, started

STARTED = started()
LENGTH = 128


def told(ledger: Ledger, **changes: Any) -> LedgerEvents:
    """The ledger's events; `changes` apply to what peer 1 reported of round 2."""
    entries = list(ledger.entries)
    if changes:
        about = entries[1 + REPORT_LAG]
        entries[1 + REPORT_LAG] = replace(
            about,
            reports=tuple(
                replace(
                    signed,
                    report=replace(
                        signed.report, instances=tuple(replace(item, **changes) for item in signed.report.instances)
                    ),
                )
                if signed.report.peer == peer(1)
                else signed
                for signed in about.reports
            ),
        )
    found = LedgerEvents(ledger.plans[0], started=STARTED, sequence_length=LENGTH)
    found.follow(entries)
    return found


def shown(found: LedgerEvents, name: str) -> dict[str, Any]:
    document = peer_documents(found.lines, found.credited, None)(name)
    return dict(json.loads(json.dumps(document, allow_nan=False)))


def test_the_rounds_of_a_peer_are_those_of_its_signed_reports() -> None:
    ledger = members(trained(3, rounds=6)).ledger
    found = told(ledger)
    for number in range(3):
        document = shown(found, peer(number))
        of_peer = [credit for credit in found.credited if credit.peer == peer(number)]
        settled = [line for line in document["rounds"] if line["samples"] is not None]
        assert [(line["round"], line["instance"], line["samples"]) for line in settled] == [
            (credit.round, credit.item.instance, credit.samples) for credit in of_peer
        ]
        for line in document["rounds"]:
            planned = next(item for item in ledger.plans[line["round"]].instances if item.instance == line["instance"])
            assert line["planned"] == next(share.samples for share in planned.hosts if share.peer == peer(number))
            assert line["words"] == ""
        assert len(settled) >= 6 and settled[0]["samples_per_second"] > 0
    assert peer_documents(found.lines, found.credited, None)("Qm") is None


def test_what_went_wrong_in_a_round_is_named() -> None:
    ledger = members(trained(3, rounds=6)).ledger
    for changes, words in (
        ({"samples": 0}, "its work is not in the average"),
        ({"is_void": True}, "no average got a majority"),
        ({"has_diverged": True, "samples": 0}, "its values were not finite or far too large"),
    ):
        document = shown(told(ledger, **changes), peer(1))
        assert {line["round"]: line["words"] for line in document["rounds"] if line["words"]} == {2: words}
    place = next(
        place for place, share in enumerate(ledger.plans[2].instances[0].hosts) if share.peer == peer(1)
    )  # every host reports whom the rule left out
    entry = ledger.entries[1 + REPORT_LAG]
    all_agree = replace(
        entry,
        reports=tuple(
            replace(
                signed,
                report=replace(
                    signed.report,
                    instances=tuple(replace(item, left_out=1 << place) for item in signed.report.instances),
                ),
            )
            for signed in entry.reports
        ),
    )
    found = LedgerEvents(ledger.plans[0], started=STARTED, sequence_length=LENGTH)
    found.follow([*ledger.entries[: 1 + REPORT_LAG], all_agree, *ledger.entries[2 + REPORT_LAG :]])
    for number, words in ((0, ""), (1, "the rule of averaging left its work out"), (2, "")):
        by_round = {line["round"]: line["words"] for line in shown(found, peer(number))["rounds"]}
        assert by_round[2] == words and by_round[1] == ""


def test_a_report_that_never_came_is_named_and_one_that_may_come_is_not() -> None:
    ledger = members(trained(3, rounds=6)).ledger
    entry = ledger.entries[1 + REPORT_LAG]
    without = replace(entry, reports=tuple(signed for signed in entry.reports if signed.report.peer != peer(1)))
    found = LedgerEvents(ledger.plans[0], started=STARTED, sequence_length=LENGTH)
    found.follow([*ledger.entries[: 1 + REPORT_LAG], without])
    rows = {line["round"]: line for line in shown(found, peer(1))["rounds"]}
    assert rows[2]["words"] == "its report did not arrive in time" and rows[2]["samples"] is None
    assert max(rows) > 2 and all(rows[number]["words"] == "" for number in rows if number > 2)


def test_without_a_ledger_the_node_of_this_machine_is_all() -> None:
    made = events()
    own = replay(made)
    documents = peer_documents(plans_of([*map(stamped, made)]), [], own)
    document: Any = documents(THIS)
    rounds = [(event["round"], event["instance"]) for event in made if event["event"] == "round"]
    assert [(line["round"], line["instance"]) for line in document["rounds"] if line["samples"] is not None] == rounds
    assert any("averaging attempt" in event["words"] for event in document["events"])
    other: Any = documents(OTHERS[0])
    assert other["rounds"] and all(line["samples"] is None and line["words"] == "" for line in other["rounds"])


def test_everything_has_a_limit() -> None:
    made = events(600)
    document: Any = peer_documents(plans_of([*map(stamped, made)]), [], replay(made))(THIS)
    assert len(document["rounds"]) == peer_page.MAX_ROUNDS < document["num_rounds"]
    assert document["rounds"][-1]["round"] == 599 and len(json.dumps(document)) < 1 << 18
