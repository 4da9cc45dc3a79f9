"""The hash tree of one encoded part, whose leaves are its slices; see `core/model/hash_tree.py`."""

from collections.abc import Iterator

from adloco_p2p.core.model.hash_tree import leaf_hash, tree_root
from adloco_p2p.numerics.tensor_codec import Buffer, TensorCodec


def slices(codec: TensorCodec, data: Buffer, *, first: int, size: int, length: int) -> Iterator[tuple[int, Buffer]]:
    """Return the slices of an encoded part, each as the index of its first value in the vector and its encoding.

    The part has the values `first` to `first + size` of the vector. `length` is a multiple of the codec's group; the last slice
    may be shorter.
    """
    return zip(range(first, first + size, length), codec.cuts(data, size, length), strict=True)


def part_leaves(codec: TensorCodec, data: Buffer, *, first: int, size: int, length: int) -> list[bytes]:
    """Return the hashes of a part's slices. Raises RemoteProtocolError if the claimed size contradicts the bytes' length."""
    return [leaf_hash(at, cut) for at, cut in slices(codec, data, first=first, size=size, length=length)]


def part_root(codec: TensorCodec, data: Buffer, *, first: int, size: int, length: int) -> bytes:
    """Return the root of a part's hash tree, 32 bytes. Raises as `part_leaves` does."""
    return tree_root(part_leaves(codec, data, first=first, size=size, length=length))
