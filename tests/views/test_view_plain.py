"""Lines for logs. The whole output is a golden file, compared in test_view_terminal.py."""

import io

from adloco_p2p.views.plain import PlainView, line
from tests.views.synthetic import FORK_ROUND, MERGE_ROUND, OTHERS, START, events, live, replay, stamped, started


def lines(rounds: int = 24) -> list[str]:
    stream = io.StringIO()
    view = PlainView(stream)
    view.start()
    for event in events(rounds):
        view.update(stamped(event))
    view.stop()
    return stream.getvalue().splitlines()


def test_one_line_per_round_and_instance() -> None:
    rounds = [text for text in lines() if text.startswith("round ")]
    assert len(rounds) == sum(len(live(round_)) for round_ in range(24))


def test_the_columns_of_rounds_line_up() -> None:
    rounds = [text for text in lines(FORK_ROUND + MERGE_ROUND) if text.startswith("round ")]
    for label in ("instance ", "heldout ", "batch ", "mode ", "hosts ", "tokens ", "eta ", "why: "):
        assert len({text.index(label) for text in rounds}) == 1, label


def test_a_peer_that_trains_nothing_names_no_micro_batch() -> None:
    made = events()[0]
    shown = [line(started(), replay([{**made, "micro_batch_limit": limit}])) or "" for limit in (64, 0)]
    assert ["micro-batch limit" in text for text in shown] == [True, False]
    assert shown[1].endswith("device cpu  from the beginning")


def test_progress_and_phases_print_nothing() -> None:
    status = replay(events())
    quiet = {event["event"] for event in events() if line(stamped(event).event, status) is None}
    assert quiet == {"plan", "phase", "progress", "checkpoint", "peer_card"}


def test_a_joiner_prints_once_what_it_waits_for() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    plan = next(event for event in events() if event["event"] == "plan")
    strangers = {
        **plan,
        "roster": [roster_entry for roster_entry in plan["roster"] if roster_entry["peer"] != events()[0]["peer"]],
    }
    for event in (events()[0], strangers, *({**strangers, "round": number} for number in range(1, 50))):
        view.update(stamped(event))
    assert stream.getvalue().splitlines()[1:] == ["joining   waiting to join; plans read up to round 0"]


def test_a_joiner_says_now_and_then_how_far_it_is() -> None:
    """The live view has a bar for it; in a log, minutes of silence would look like a hang."""
    stream, me = io.StringIO(), events()[0]["peer"]
    view = PlainView(stream)
    plan = next(event for event in events() if event["event"] == "plan")
    without = {**plan, "roster": [entry for entry in plan["roster"] if entry["peer"] != me]}
    quiet = {
        "event": "progress",
        "round": 0,
        "instance": 0,
        "step": 1,
        "num_steps": 32,
        "loss": None,
        "tokens_per_second": None,
    }
    for event in (events()[0], without):
        view.update(stamped({**event, "time": START}))
    for second in range(1, 240):
        view.update(stamped({**quiet, "time": START + second}))
    waits = stream.getvalue().splitlines()[1:]
    assert waits == ["joining   waiting to join; plans read up to round 0", *[f"{waits[0]}  round 0/24 is under way"] * 4]
    for second, received in ((250, 10), (260, 50), (270, 90)):
        download = {
            "event": "state_download",
            "round": 0,
            "instance": 0,
            "received_bytes": received * 10**6,
            "total_bytes": 10**8,
        }
        view.update(stamped({**download, "bytes_per_second": 4e6, "time": START + 200 + second}))
    last = stream.getvalue().splitlines()[-1]
    assert last.startswith(f"{waits[0]}  ") and " of 100 MB, 4.00 MB/s, " in last


def test_a_keeper_and_a_node_that_trains_do_not_repeat_themselves() -> None:
    long = [{**event, "time": START + 3600.0 * place} for place, event in enumerate(events(3))]
    stream = io.StringIO()
    view = PlainView(stream)
    for event in long:
        view.update(stamped(event))
    assert not [text for text in stream.getvalue().splitlines() if text.startswith(("joining", "state", "keeper"))]


def test_a_run_is_finished_where_the_peer_stops_with_its_model_and_not_before() -> None:
    """A peer that fails with E314 has carried out the last plan as well."""
    assert lines()[-1].startswith("trained   rounds 24/24  heldout ")
    for is_finished, words in ((True, "finished  the run is complete"), (False, None)):
        event = {"event": "stopped", "time": START + 1e4, "reason": "the run is complete", "is_finished": is_finished}
        assert line(stamped(event).event, replay([*events(), event])) == words


def test_a_refusal_names_the_peer_that_refused() -> None:
    event = {"event": "refused", "time": START, "peer": OTHERS[0], "reason": "too many messages", "count": 2}
    words = f"refused   messages 2  by peer {OTHERS[0]}  why: too many messages"
    status = replay([*events(), event])
    assert line(stamped(event).event, status) == words
    assert status.incidents[-1].message == f"{OTHERS[0]} refused 2 messages of this peer: too many messages"


def test_a_line_is_one_line() -> None:
    event = {"event": "warning", "time": 0.0, "key": "disk", "message": "disk\nnearly\x1bfull", "active": True}
    assert line(stamped(event).event, replay(events())) == "warning   disk: disk nearly?full"


def test_a_sample_text_is_one_line() -> None:
    written = {"event": "sample_text", "round": 1, "instance": 0, "prompt": "def ", "text": "f(x):\n  pass"}
    made = stamped({**written, "time": START}).event
    assert line(made, replay(events(2))) == "sample    round 1/2  instance 0  def f(x): pass"
