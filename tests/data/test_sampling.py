import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.data.sampling import SampleOrder, permute, round_keys

A, B = InstanceId(0), InstanceId(1)
sizes = st.integers(1, 700)
seeds = st.integers(0, 1 << 40)


def rows(order: SampleOrder, instance: InstanceId, start: int, count: int) -> list[int]:
    return [int(row) for row in order.rows(instance, first_sample=start, num_samples=count)]


@given(sizes, seeds)
def test_permutation_is_a_bijection(size: int, seed: int) -> None:
    permuted = permute(np.arange(size), size=size, keys=round_keys(seed))
    assert sorted(permuted.tolist()) == list(range(size))


def slow_place(place: int, size: int, keys: tuple[int, ...]) -> int:
    """One place at a time, in whole numbers."""
    bits = 1
    while 1 << (2 * bits) < size:
        bits += 1
    while True:
        left, right = divmod(place, 1 << bits)
        for key in keys:
            mixed = right ^ key
            mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % (1 << 64)
            mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % (1 << 64)
            left, right = right, left ^ ((mixed ^ (mixed >> 31)) % (1 << bits))
        place = (left << bits) + right
        if place < size:
            return place


@given(st.integers(1, 1 << 62), seeds, st.data())
def test_permutation_against_one_place_at_a_time(size: int, seed: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), max_size=10))
    permuted = permute(np.array(places, dtype=np.int64), size=size, keys=round_keys(seed)).tolist()
    assert permuted == [slow_place(place, size, round_keys(seed)) for place in places]


@given(st.integers(1, 1 << 62), seeds, st.data())
def test_permutation_of_any_size_stays_inside_and_keeps_places_apart(size: int, seed: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=20))
    permuted = permute(np.array(places, dtype=np.int64), size=size, keys=round_keys(seed)).tolist()
    assert all(0 <= row < size for row in permuted) and len(set(permuted)) == len(places)


@given(sizes, seeds, st.integers(0, 400), st.integers(0, 400))
def test_random_access_reads_the_same_order(size: int, seed: int, start: int, count: int) -> None:
    order = SampleOrder(seed=seed, num_rows=size)
    whole = rows(order, A, 0, start + count)
    assert rows(order, A, start, count) == whole[start:]


@given(sizes, seeds, st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_hosts_of_a_plan_read_disjoint_rows_of_an_epoch(size: int, seed: int, shares: list[int]) -> None:
    order = SampleOrder(seed=seed, num_rows=size)
    read: list[int] = []
    start = 0
    for share in shares:
        read += rows(order, A, start, min(share, size - start))
        start = min(start + share, size)
    assert len(read) == len(set(read)) == min(sum(shares), size)


def test_every_epoch_reads_every_row_in_another_order() -> None:
    order = SampleOrder(seed=3, num_rows=100)
    epochs = [rows(order, A, 100 * epoch, 100) for epoch in range(4)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_instances_and_seeds_read_in_different_orders() -> None:
    orders = [rows(SampleOrder(seed=seed, num_rows=100), instance, 0, 100) for seed in (3, 4) for instance in (A, B)]
    assert len({tuple(order) for order in orders}) == 4


def test_order_looks_random() -> None:
    """Positions and rows of 2**13 + 1 rows: correlation, and neighbours that stay neighbours, are what chance gives."""
    size = (1 << 13) + 1
    for seed in range(5):
        permuted = permute(np.arange(size), size=size, keys=round_keys(seed))
        assert abs(np.corrcoef(np.arange(size), permuted)[0, 1]) < 4.5 / size**0.5
        assert np.count_nonzero(np.abs(np.diff(permuted)) == 1) < 15  # Poisson with mean 2
        assert np.count_nonzero(permuted == np.arange(size)) < 12  # Poisson with mean 1


def test_keys_of_different_parts_never_meet() -> None:
    assert round_keys(1, 23) != round_keys(12, 3)
    assert round_keys("a", "bc") != round_keys("ab", "c")


def test_the_order_is_part_of_the_protocol() -> None:
    """Peers of different machines and versions derive the same rows; a change here is a change of the protocol version."""
    assert rows(SampleOrder(seed=42, num_rows=1000), A, 0, 8) == [490, 152, 570, 60, 536, 978, 632, 979]
