"""The first incarnation of a journal, by the age of the key beside it."""

import os
import time
from pathlib import Path

from adloco_p2p.runtime.adapters.network_journal import first_incarnation


def test_a_key_that_is_older_than_the_process_may_have_been_a_member(tmp_path: Path) -> None:
    key = tmp_path / "identity.key"
    key.write_bytes(b"key")
    began, now = time.monotonic() - 100.0, time.time()
    for age, is_new in ((50.0, True), (5000.0, False)):
        os.utime(key, (now - age, now - age))
        assert (first_incarnation(key, began=began) == 1) == is_new
    assert abs(first_incarnation(key, began=began) - now / 60) < 2
