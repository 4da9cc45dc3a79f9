import gc
from dataclasses import dataclass

from adloco_p2p.core.model.once import once


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Name:
    text: str


def test_a_result_is_computed_once_per_object_and_forgotten_with_it() -> None:
    asked: list[str] = []

    @once
    def length(name: Name) -> int:
        asked.append(name.text)
        return len(name.text)

    first, equal = Name("ab"), Name("ab")
    assert [length(first), length(first), length(equal)] == [2, 2, 2]
    assert asked == ["ab", "ab"], "an equal object is another one"
    for _ in range(100):  # objects of later turns lie where earlier ones lay
        assert length(Name("abc")) == 3
    gc.collect()
    assert len(asked) == 102
