"""Which part of the parameter vector a round averages (Streaming DiLoCo, arXiv 2501.18512)."""


def fragment(round: int, *, size: int, count: int, rounds: int) -> slice:
    """Of a vector of `size` values in `count` fragments, the one whose turn it is; after the last of the run's `rounds` all of
    it, so that the model holds what every fragment was trained.

    Fragments are contiguous and, to one value, equally large: every round sends the same number of bytes whatever the
    model's layers are, and a fragment is a view. (The paper deals out whole layers, strided, and finds little between that
    and layers in a row.)
    """
    assert 0 <= round < rounds and 1 <= count <= size, (round, rounds, count, size)
    if round == rounds - 1:
        return slice(0, size)
    turn = round % count
    return slice(turn * size // count, (turn + 1) * size // count)
