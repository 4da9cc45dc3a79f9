"""A statement file that cannot be used ends no node."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from adloco_p2p.cli.shared import natural, positive
from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.model.scalars import LARGEST_COUNT
from adloco_p2p.runtime.adapters import admission
from adloco_p2p.storage.admission_files import keep_statement, read_statements
from tests.core.core_values import peer
from tests.core.ledger.test_admission import statement


def passed_on(workdir: Path, monkeypatch: pytest.MonkeyPatch, *, carried: bool) -> tuple[list[object], list[str]]:
    """Look twice. Return what was passed on to the run, and what was told."""
    stated: list[object] = []
    told: list[str] = []

    def state(one: object) -> str:
        stated.append(one)
        return ""

    agreement = SimpleNamespace(ledger=SimpleNamespace(admissions=SimpleNamespace(has=lambda _: carried)), state=state)
    looks = 0

    async def pause(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(admission, "asyncio", SimpleNamespace(sleep=pause))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(admission.pass_on_statements(workdir, cast(GossipAgreement, agreement), told.append))
    return stated, told


def test_one_that_cannot_be_read_is_told_once_and_the_others_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = statement("ban", peer(1))
    keep_statement(tmp_path, sound)
    (tmp_path / "statements" / "0.json").write_text("{}")
    stated, told = passed_on(tmp_path, monkeypatch, carried=False)
    assert stated == [sound, sound]
    assert len(told) == 1 and "0.json: damaged, or written by another version" in told[0]


def test_one_that_cannot_be_removed_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_statement(tmp_path, statement("ban", peer(1)))
    (path,) = read_statements(tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    _, told = passed_on(tmp_path, monkeypatch, carried=True)
    assert told == [f"{path}: its statement is in the ledger, and it cannot be removed: Permission denied"]


@pytest.mark.parametrize("parse", [natural, positive])
def test_no_number_is_signed_that_nobody_can_read(parse: Any) -> None:
    assert parse(str(LARGEST_COUNT)) == LARGEST_COUNT
    with pytest.raises(Exception, match=f"a number up to {LARGEST_COUNT} is accepted"):
        parse(str(LARGEST_COUNT + 1))
