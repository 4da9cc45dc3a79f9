"""Which parts members make again: as many as the rate says, and not to be foreseen without the secret."""

from collections import Counter

import pytest

from adloco_p2p.core.model.recheck_draw import MOST_INSPECTED, drawn_parts, inspected_parts

MEMBERS, PARTS = 5, 80


def others_of(member: int) -> list[int]:
    """Every member reduces 16 parts."""
    return [part for part in range(PARTS) if part // 16 != member]


def drawn(member: int, rate: float, average: int) -> tuple[int, ...]:
    secret = f"{member} {average}".encode()
    return drawn_parts(secret, others_of(member), rate=rate, num_parts=PARTS, num_members=MEMBERS)


@pytest.mark.parametrize(("rate", "together"), [(0.001, 1.0), (0.05, 4.0), (1.0, 80.0)])
def test_all_members_together_draw_that_share_of_the_parts_and_at_least_one(rate: float, together: float) -> None:
    averages = 400
    counts = [sum(len(drawn(member, rate, average)) for member in range(MEMBERS)) for average in range(averages)]
    assert sum(counts) / averages == pytest.approx(together, rel=0.15)


def test_without_a_rate_nothing_is_drawn_and_with_the_largest_everything() -> None:
    assert drawn(0, 0.0, 1) == ()
    assert drawn(0, MEMBERS - 1, 1) == tuple(others_of(0))
    assert drawn(0, 100.0, 1) == tuple(others_of(0))


def test_every_part_of_others_is_drawn_about_as_often_and_no_own_one() -> None:
    counts = Counter(part for average in range(2000) for part in drawn(2, 1.0, average))
    assert set(counts) == set(others_of(2))
    assert max(counts.values()) < 1.35 * min(counts.values())


def test_two_secrets_draw_two_sets() -> None:
    assert len({drawn(0, 1.0, average) for average in range(20)}) == 20


def test_a_lonely_member_has_nothing_to_draw() -> None:
    assert drawn_parts(b"", (), rate=1.0, num_parts=3, num_members=1) == ()


def test_one_part_of_each_reducer_that_complaints_name_and_of_no_more_than_two() -> None:
    shards = [(0, 1, 2), (), (3, 4), (5,)]
    drawn_by = [inspected_parts(f"secret {index}".encode(), shards) for index in range(200)]
    assert all(list(parts) == sorted(parts) and len(parts) == MOST_INSPECTED for parts in drawn_by)
    assert all(len({next(n for n, shard in enumerate(shards) if part in shard) for part in parts}) == 2 for parts in drawn_by)
    assert {part for parts in drawn_by for part in parts} == {0, 1, 2, 3, 4, 5}  # any of them, by the secret
    assert inspected_parts(b"secret", [(5,)]) == (5,)
    assert inspected_parts(b"secret", [(), ()]) == ()
