import json
import math
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import NamedTuple

import pytest

from adloco_p2p.core.model import canonical, telemetry
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.ledger_entry import Value
from adloco_p2p.core.model.messages import Proposal
from adloco_p2p.core.model.protocol import FIRST_UPGRADABLE
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, PeerId

PEER = PeerId("a")
VALUE = Value(round=3, parent=Digest("ab"), reports=(Digest("cd"), Digest("ef")), joined=(), departed=(PEER,), plan=Digest(""))


class Level(IntEnum):
    LOW = 3


class Name(StrEnum):
    FIRST = "one"


class Pair(NamedTuple):
    first: float
    second: str


@dataclass(frozen=True)
class Alone:
    only: Value


@pytest.mark.parametrize(
    "value",
    [
        Proposal(ballot=Ballot(attempt=1, peer=PEER), absent=(), value=VALUE, signature="0f"),
        Capacity(samples_per_second=0.1 + 0.2, micro_batch_limit=1 << 60, max_instances=8, upload_bytes_per_second=1e22),
        telemetry.Warning(key="k", message='\u03a9mega "quoted" \n\x7f', active=True),
        {"b": (VALUE, None), "a": [{"z": 1, "y": -0.0}]},
        (True, False, None, 0, -1, 1 << 70, 0.0, -0.0, 1e-7, 1e16, 5e-324, "", (), [], {}),
        (Level.LOW, Name.FIRST, Alone(only=VALUE), Pair(1.5, "x")),
    ],
)
def test_the_bytes_are_those_of_the_plain_form_with_sorted_keys(value: object) -> None:
    plain = json.dumps(canonical.to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    assert canonical.encode(value) == plain.encode("ascii")


def test_an_added_field_is_written_only_where_it_is_used() -> None:
    unused = Capacity(samples_per_second=1.0, micro_batch_limit=1, max_instances=1)
    used = replace(unused, newest_protocol=FIRST_UPGRADABLE + 1)
    assert b"newest_protocol" not in canonical.encode(unused)
    assert canonical.encode(used) == canonical.encode(unused).replace(
        b'"samples_per_second"', b'"newest_protocol":22,"samples_per_second"'
    )
    assert canonical.encode((unused, used, unused)) == b"[%s,%s,%s]" % tuple(map(canonical.encode, (unused, used, unused)))
    for capacity in (unused, used):
        plain = json.dumps(canonical.to_plain(capacity), sort_keys=True, separators=(",", ":"))
        assert canonical.encode(capacity) == plain.encode()


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_is_not_finite_has_no_canonical_form(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical.encode((1.0, number))


def test_what_is_no_value_has_no_canonical_form() -> None:
    with pytest.raises(AssertionError, match="no canonical form for <class 'set'>"):
        canonical.encode({"a": {1}})


@pytest.mark.parametrize("number", [-math.inf, [math.nan]])
def test_no_value_hides_such_a_number(number: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical.encode({"a": replace(telemetry.Warning(key="k", message="", active=True), key=number)})  # type: ignore[arg-type]


@pytest.fixture
def nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "_held", canonical._Held())


@pytest.mark.usefixtures("nothing_held")
def test_a_value_that_is_held_is_not_written_again_and_an_equal_one_is() -> None:
    data = canonical.encode(VALUE)
    for _ in range(2):
        canonical.hold(VALUE, data)
    assert canonical.encode(VALUE) is data and canonical._held._num_bytes == len(data)
    other = replace(VALUE)
    assert canonical.encode(other) == data and canonical.encode(other) is not data


@pytest.mark.usefixtures("nothing_held")
def test_no_more_is_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [replace(VALUE, round=number) for number in range(4)]
    encoded = [canonical.encode(value) for value in values]
    monkeypatch.setattr(canonical, "MAX_HELD_BYTES", 2 * len(encoded[0]))
    for value, data in zip(values, encoded, strict=True):
        canonical.hold(value, data)
    is_held = [canonical.encode(value) is data for value, data in zip(values, encoded, strict=True)]
    assert is_held == [False, False, True, True], "the latest"
    canonical.hold(VALUE, bytes(2 * len(encoded[0]) + 1))
    assert canonical.encode(VALUE) == encoded[3], "what is larger than all the room is not held"
