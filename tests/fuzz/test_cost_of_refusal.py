"""Bytes that are no value cost little before they are refused, whatever kind they claim to be."""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from adloco_p2p.config.load import load_run
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.messages import MESSAGE_KINDS
from adloco_p2p.decode import MAX_NESTED_SHARE, _validator, decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.p2p.dht_records import PeerRecord, RunRecord
from tests.fuzz.corpus import swarm_values

KINDS: dict[str, Any] = {**MESSAGE_KINDS, "PeerRecord": PeerRecord, "RunRecord": RunRecord, "RunConfig": RunConfig}
WRONG: tuple[Any, ...] = ({}, [], 1, -1, None, "", "x" * 40, [{}], {"": {}})
NUM_WRONG = 100
MOST_FAULTS = 32
"""Faults of one refusal: all fields of a kind that are missing, and one for each way to read its first wrong element."""


def places(value: Any) -> Iterator[list[str]]:
    """Yield the paths of fields in a canonical value, one for each field of a nested object."""
    for name, part in value.items():
        yield [name]
        inside = part[0] if isinstance(part, list) and part else part
        if isinstance(inside, dict):
            yield from ([name, *path] for path in places(inside))


def put(value: Any, path: list[str], wrong: Any) -> None:
    """Replace the field at the path."""
    *before, last = path
    for name in before:
        value = value[name]
        value = value[0] if isinstance(value, list) else value
    value[last] = wrong


def examples() -> Iterator[tuple[str, Any]]:
    messages, _ = swarm_values()
    for name, kind in KINDS.items():
        assert is_dataclass(kind)
        yield name, {field.name: [] for field in fields(kind)}
        if name in messages:
            yield name, json.loads(max(messages[name], key=len))


@pytest.mark.parametrize(("name", "value"), examples())
def test_a_collection_is_read_up_to_its_first_wrong_element(name: str, value: Any) -> None:
    text = json.dumps(value)
    for path in places(value):
        for wrong in WRONG:
            for many in ([wrong] * NUM_WRONG, {str(number): wrong for number in range(NUM_WRONG)}):
                bad = json.loads(text)
                put(bad, path, many)
                try:
                    _validator(KINDS[name]).validate_json(json.dumps(bad), strict=True)
                except ValidationError as error:
                    assert error.error_count() <= MOST_FAULTS, (path, wrong)  # noqa: PT017 (most are refused, not all)


def test_more_brackets_than_any_value_has_are_refused_before_they_are_read() -> None:
    data = b'{"statements":[' + b",".join([b"[]"] * 4000) + b"]}"
    with pytest.raises(RemoteProtocolError, match="Heartbeat: more brackets than any value has"):
        decode(MESSAGE_KINDS["Heartbeat"], data, max_bytes=len(data))


def test_what_peers_send_and_write_has_far_fewer() -> None:
    configurations = [canonical.encode(load_run(Path(name)).value) for name in ("default", "c4-150m", "finetune")]
    values = [*configurations, *(data for found in swarm_values() for some in found.values() for data in some)]
    long = [data for data in values if len(data) > 1024]
    assert len(long) > 50
    assert max((data.count(b"[") + data.count(b"{")) / len(data) for data in long) < MAX_NESTED_SHARE / 2
