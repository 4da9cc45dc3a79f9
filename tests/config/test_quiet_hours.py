"""Ranges of hours, over midnight and not."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adloco_p2p.config.load import load_peer
from adloco_p2p.config.machine_combinations import peer_combinations
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.quiet_hours import parse_range, quiet_until
from adloco_p2p.errors import ConfigError


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-03-04T{text}")


@pytest.mark.parametrize(
    ("now", "until"),
    [
        ("21:59", None),
        ("22:00", "2026-03-05T07:00"),
        ("23:59", "2026-03-05T07:00"),
        ("00:00", "2026-03-04T07:00"),
        ("06:59", "2026-03-04T07:00"),
        ("07:00", None),
        ("12:30", "2026-03-04T13:00"),
    ],
)
def test_a_range_holds_from_its_beginning_to_before_its_end(now: str, until: str | None) -> None:
    found = quiet_until(("22:00-07:00", "12:15-13:00"), at(now))
    assert found == (None if until is None else datetime.fromisoformat(until))


@given(begin=st.integers(0, 1439), end=st.integers(0, 1439), minute=st.integers(0, 1439))
def test_against_walking_through_the_day(begin: int, end: int, minute: int) -> None:
    if begin == end:
        return
    text = f"{begin // 60:02}:{begin % 60:02}-{end // 60:02}:{end % 60:02}"
    inside, walk = set(), begin
    while walk != end:
        inside.add(walk)
        walk = (walk + 1) % 1440
    now = at("00:00") + timedelta(minutes=minute)
    until = quiet_until((text,), now)
    assert (until is not None) == (minute in inside)
    if until is not None:
        assert now < until <= now + timedelta(days=1) and (until.hour, until.minute) == divmod(end, 60)


@pytest.mark.parametrize("text", ["", "22-7", "24:00-01:00", "22:00-22:00", "22:60-23:00", "22:00-07:00x"])
def test_what_is_no_range_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="22:00"):
        parse_range(text)
    (problem,) = peer_combinations(PeerConfig(quiet_hours=(text,)))
    assert problem.startswith("quiet_hours: ") and repr(text) in problem


def test_quiet_caps_without_quiet_hours_do_nothing_and_warn() -> None:
    (problem,) = peer_combinations(PeerConfig(quiet_upload_bytes_per_second=50_000))
    assert problem.startswith("quiet_upload_bytes_per_second: ")


@pytest.mark.parametrize("name", ["upload", "download", "quiet_upload", "quiet_download"])
def test_a_cap_that_leaves_nothing_beside_gossip_is_refused_with_its_unit(name: str) -> None:
    setting = f"{name}_bytes_per_second"
    with pytest.raises(ConfigError) as refusal:
        load_peer(None, ["quiet_hours=[22:00-07:00]", f"{setting}=1"])
    (problem,) = refusal.value.problems
    assert problem.startswith(f"{setting}: 1 ") and "bytes per second from 10000 on" in problem
    load_peer(None, ["quiet_hours=[22:00-07:00]", f"{setting}=10000"])
