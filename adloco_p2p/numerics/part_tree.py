"""The hash tree of one encoded part, slice by slice; see `core/model/hash_tree.py`."""

from collections.abc import Iterator

from adloco_p2p.core.model.hash_tree import leaf_hash, tree_root
from adloco_p2p.numerics.tensor_codec import Buffer, TensorCodec


def slices(codec: TensorCodec, data: Buffer, *, first: int, size: int, length: int) -> Iterator[tuple[int, Buffer]]:
    """Of a part with `size` values, the first of which has index `first` in the vector: index of the first value, and encoding,
    of each slice of `length` values, a multiple of the codec's group; the last may be shorter."""
    for begin in range(0, size, length):
        yield first + begin, codec.cut(data, begin, min(length, size - begin))


def part_leaves(codec: TensorCodec, data: Buffer, *, first: int, size: int, length: int) -> list[bytes]:
    """The hashes of its slices. Raises RemoteProtocolError for bytes that claim another size than their length has."""
    return [leaf_hash(at, cut) for at, cut in slices(codec, data, first=first, size=size, length=length)]


def part_root(codec: TensorCodec, data: Buffer, *, first: int, size: int, length: int) -> bytes:
    """32 bytes. Raises as `part_leaves` does."""
    return tree_root(part_leaves(codec, data, first=first, size=size, length=length))
