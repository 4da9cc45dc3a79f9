"""The results of all rounds of a long run, as a value that grows without being copied. Pure.

Views compute values that derive from all results `once` per value: a screen is drawn three times per second, and a round takes
longer.
"""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView

from adloco_p2p.core.model.once import once
from adloco_p2p.views.records import RoundResult

Place = tuple[int, int]
"""A round and an instance."""
BLOCK_ROUNDS = 64
"""The number of rounds of a block. With a result, its block and the list of blocks are copied, and no other block."""


class RoundResults(Mapping[Place, RoundResult]):
    """Results by (round, instance), which never change. The results of one round are in order of arrival."""

    __slots__ = ("__weakref__", "_blocks")

    def __init__(self, results: Mapping[Place, RoundResult] | None = None) -> None:
        blocks: dict[int, dict[Place, RoundResult]] = {}
        for place, result in (results or {}).items():
            blocks.setdefault(place[0] // BLOCK_ROUNDS, {})[place] = result
        self._blocks: Mapping[int, Mapping[Place, RoundResult]] = blocks

    def adding(self, result: RoundResult) -> "RoundResults":
        """Return these results with one more, as the last of its round. It replaces a result of the same place."""
        place = result.round, result.instance
        block = self._block(place)
        if place in block:
            block = {other: known for other, known in block.items() if other != place}
        return self._with_block({**block, place: result}, place)

    def replacing(self, result: RoundResult) -> "RoundResults":
        """Return these results with another one in the place of a known one."""
        place = result.round, result.instance
        return self._with_block({**self._block(place), place: result}, place)

    def _block(self, place: Place) -> Mapping[Place, RoundResult]:
        return self._blocks.get(place[0] // BLOCK_ROUNDS, {})

    def _with_block(self, block: Mapping[Place, RoundResult], place: Place) -> "RoundResults":
        made = RoundResults()
        made._blocks = {**self._blocks, place[0] // BLOCK_ROUNDS: block}
        return made

    def _all(self) -> dict[Place, RoundResult]:
        return _merged(self)

    def __getitem__(self, place: Place) -> RoundResult:
        return self._block(place)[place]

    def __contains__(self, place: object) -> bool:
        return isinstance(place, tuple) and place in self._block(place)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._all())

    def __len__(self) -> int:
        return sum(map(len, self._blocks.values()))

    def items(self) -> ItemsView[Place, RoundResult]:
        return self._all().items()

    def values(self) -> ValuesView[RoundResult]:
        return self._all().values()


@once
def _merged(results: RoundResults) -> dict[Place, RoundResult]:
    found: dict[Place, RoundResult] = {}
    for block in results._blocks.values():
        found.update(block)
    return found
