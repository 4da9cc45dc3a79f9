import json
import math

import pytest

from adloco_p2p.core.model import canonical, telemetry
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.ledger_entry import Value
from adloco_p2p.core.model.messages import Proposal
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, PeerId

PEER = PeerId("a")
VALUE = Value(round=3, parent=Digest("ab"), reports=(Digest("cd"), Digest("ef")), joined=(), departed=(PEER,), plan=Digest(""))


@pytest.mark.parametrize(
    "value",
    [
        Proposal(ballot=Ballot(attempt=1, peer=PEER), absent=(), value=VALUE, signature="0f"),
        Capacity(samples_per_second=0.1 + 0.2, micro_batch_limit=1 << 60, max_instances=8, upload_bytes_per_second=1e22),
        telemetry.Warning(key="k", message='\u03a9mega "quoted" \n\x7f', active=True),
        {"b": (VALUE, None), "a": [{"z": 1, "y": -0.0}]},
    ],
)
def test_the_bytes_are_those_of_the_plain_form_with_sorted_keys(value: object) -> None:
    plain = json.dumps(canonical.to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    assert canonical.encode(value) == plain.encode("ascii")


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_is_not_finite_has_no_canonical_form(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical.encode((1.0, number))


def test_what_is_no_value_has_no_canonical_form() -> None:
    with pytest.raises(AssertionError, match="no canonical form for <class 'set'>"):
        canonical.encode({"a": {1}})
