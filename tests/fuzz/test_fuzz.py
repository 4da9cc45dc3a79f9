"""No bytes from outside raise anything but a refusal. `python -m tests.fuzz.fuzz --minutes 60` looks longer."""

import pytest

from adloco_p2p.core.model.messages import MESSAGE_KINDS, RECORD_KINDS
from tests.fuzz.corpus import swarm_values
from tests.fuzz.fuzz import examples, problem
from tests.fuzz.targets import targets

SEEDS = range(4)


def test_the_corpus_has_every_kind_that_peers_send_and_write() -> None:
    messages, records = swarm_values()
    assert set(messages) == set(MESSAGE_KINDS) and set(records) == set(RECORD_KINDS)


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
def test_what_is_whole_is_taken_and_what_is_damaged_is_refused(target) -> None:
    for data in target.corpus:
        if target.name != "pieces":  # the second piece alone is refused
            target.read(data)
    found = [
        f"seed {seed}, example {number}: {why}"
        for seed in SEEDS
        for number, data in enumerate(examples(target, seed))
        if (why := problem(target, data)) is not None
    ]
    assert not found, "\n".join(found[:10])


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
def test_damage_is_noticed(target) -> None:
    """The mutations are worth something: most of them make bytes that differ, and some are refused."""
    refused = 0
    for data in examples(target, 0):
        try:
            target.read(data)
        except target.refusals:
            refused += 1
    assert refused > 0 or target.name in {"chunk reply", "codec float32", "codec float16"}
