"""The diagnosis of a slow uplink, against numbers worked out by hand."""

import io
from dataclasses import replace

import pytest

from adloco_p2p.views.plain import PlainView
from adloco_p2p.views.slow_peer import slow_peer
from adloco_p2p.views.status import SLOW_PEER
from tests.views.golden import screen
from tests.views.synthetic import OTHERS, THIS, Made, events, replay, stamped


def slowed(speeds: dict[str, float], *, codec: str = "float32", expected_seconds: float = 6.0) -> list[Made]:
    """The run up to a plan after a round with three hosts in which each sent 45 MB, with these uplinks."""
    made: list[Made] = []
    for event in events():
        if event["event"] == "started":
            event = {**event, "codec": codec}  # noqa: PLW2901
        if event["event"] == "round":
            event = {**event, "bytes_sent": 45_000_000}  # noqa: PLW2901
        if event["event"] == "plan":
            roster = [{**each, "upload_bytes_per_second": speeds.get(each["peer"], 0.0)} for each in event["roster"]]
            event = {**event, "roster": roster, "expected_seconds": expected_seconds}  # noqa: PLW2901
        made.append(event)
        if event["event"] == "plan" and event["round"] == 3:
            return made
    raise AssertionError


@pytest.mark.parametrize(
    ("speeds", "codec", "words"),
    [
        # 45 MB at 2 MB/s take 22.5 s, at 9 MB/s 5 s; int8 takes 1.02 of 4 bytes.
        ({OTHERS[2]: 2e6, THIS: 9e6}, "float32", f"17.5 s for {OTHERS[2]}, 16 Mbit/s up; in a new run averaging.codec=int8"),
        ({OTHERS[2]: 2e6, THIS: 9e6}, "float32", "would need 5.7 s"),
        ({OTHERS[2]: 9e6, THIS: 2e6}, "bfloat16", "17.5 s for this peer, 16 Mbit/s up"),
        ({OTHERS[2]: 2e6, THIS: 9e6}, "int8", "longer rounds"),
        ({OTHERS[2]: 2e6, THIS: 2.1e6}, "float32", ""),
        ({OTHERS[2]: 2e6}, "float32", ""),
    ],
)
def test_the_slowest_uplink_is_named_with_the_remedy(speeds: dict[str, float], codec: str, words: str) -> None:
    found = replay(slowed(speeds, codec=codec)).warnings.get(SLOW_PEER, "")
    assert words in found and bool(words) == bool(found)


def test_nobody_waits_for_a_peer_once_the_run_is_over() -> None:
    made = slowed({OTHERS[2]: 2e6, THIS: 9e6})
    (finished,) = [event for event in events() if event["event"] == "finished"]
    assert SLOW_PEER in replay(made).warnings and SLOW_PEER not in replay([*made, finished]).warnings


def test_a_wait_that_is_short_beside_the_round_is_no_news() -> None:
    assert SLOW_PEER not in replay(slowed({OTHERS[2]: 2e6, THIS: 9e6}, expected_seconds=600.0)).warnings


def test_screen_and_lines_name_it() -> None:
    made = slowed({OTHERS[2]: 2e6, THIS: 9e6})
    text = " ".join(screen(replay(made), 120, 40).split())
    assert "rounds wait 17.5 s for" in text and "2.00 MB" in text
    stream = io.StringIO()
    view = PlainView(stream)
    for event in made:
        view.update(stamped(event))
    assert stream.getvalue().count("slow      rounds wait") == 1


def test_a_slow_link_that_holds_nobody_up_is_reported_as_such() -> None:
    """A peer in every fourth average, and one that is benched: it has no instance, and the plan's reason names it."""
    status = replay(slowed({OTHERS[2]: 2e6, THIS: 9e6}))
    (*_, plan) = status.plans
    (first, *rest) = plan.instances
    hosts = tuple(replace(share, averages_every=4) if share.peer == THIS else share for share in first.hosts)
    reason = f"{OTHERS[2]} is benched, and tried every 32 rounds; batch of 8"
    told = replace(plan, instances=(replace(first, hosts=hosts), *rest), reason=reason)
    assert slow_peer(told, status.averaging_bytes, codec="float32", me=THIS) == (
        "this peer is in one of 4 averages: 72 Mbit/s up would hold the others up; "
        f"{OTHERS[2]} waits on the bench: 16 Mbit/s up would hold the others up"
    )
