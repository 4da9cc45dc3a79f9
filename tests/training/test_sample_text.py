"""Sample texts: the continuation of a prompt, and that asking for one changes nothing else."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
import torch

from adloco_p2p.config.run_config import EvaluationConfig
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.sample_text import continued
from tests.training.small_run import ME, ONE, PEER, RUN, SyntheticFeed, effect

ASKED = replace(RUN, evaluation=EvaluationConfig(rows=8, sample_tokens=12, sample_prompts=("abc", "xy")))


class Bytes:
    """Ids are bytes; 255 ends a text."""

    end_of_document = 255

    def encode(self, texts: Sequence[str]) -> list[torch.Tensor]:
        return [torch.tensor([*text.encode()], dtype=torch.uint8) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(map(str, ids))


def counting(ids: torch.Tensor) -> torch.Tensor:
    """A model of 8 tokens that is certain of the next number, and of 7 where it sees more than three ids."""
    return torch.eye(8)[7 if len(ids) > 3 else (int(ids[-1]) + 1) % 8] * 1000.0


@pytest.mark.parametrize("temperature", [0.0, 1e-320, 1e-3, 0.7])
def test_a_text_goes_on_token_by_token(temperature: float) -> None:
    def found(prompt: list[int], *, num_tokens: int = 3, room: int = 3, ends: tuple[int, ...] = ()) -> list[int]:
        return continued(counting, prompt, num_tokens=num_tokens, room=room, ends=ends, temperature=temperature, seed=0)

    assert found([1, 2]) == [3, 4, 5]
    assert found([1, 2], ends=(4,)) == [3]
    assert found([1, 2], room=9) == [3, 4, 7], "the model sees the last `room` ids"
    assert found([1, 2], num_tokens=0) == []


def test_chance_is_drawn_as_the_logits_say_and_from_its_own_generator() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 0.5])
    before = torch.random.get_rng_state()
    drawn = continued(lambda _: logits, [0], num_tokens=4000, room=1, ends=(), temperature=2.0, seed=5)
    assert torch.equal(before, torch.random.get_rng_state())
    assert drawn == continued(lambda _: logits, [0], num_tokens=4000, room=1, ends=(), temperature=2.0, seed=5)
    weights = [2.718281828 ** (float(value) / 2.0) for value in logits]
    for token, weight in enumerate(weights):
        expected = weight / sum(weights)
        assert abs(drawn.count(token) / 4000 - expected) < 5 * (expected * (1 - expected) / 4000) ** 0.5


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_text_ends_where_the_model_has_diverged(temperature: float, value: float) -> None:
    def diverging(ids: torch.Tensor) -> torch.Tensor:
        return counting(ids) * (value if int(ids[-1]) == 3 else 1.0)

    assert continued(diverging, [1], num_tokens=9, room=3, ends=(), temperature=temperature, seed=0) == [2, 3]


def test_asking_for_texts_changes_no_bit_of_the_training() -> None:
    texts, ends = [], []
    for run, codec in ((RUN, None), (ASKED, Bytes())):
        engine = Hosting(run, PEER, ME, SyntheticFeed(), codec=codec)
        engine.start([ONE])
        for number in (0, 1):
            seen: list[int] = []

            def stop(engine: Hosting = engine, seen: list[int] = seen) -> bool:
                if len(seen) == 2:  # an evaluation between two inner steps, as of a round whose end was not waited for
                    engine.evaluate(ONE)
                    texts.append(engine.sample_texts(ONE))
                seen.append(0)
                return False

            engine.run_inner(effect(round=number), should_stop=stop, on_progress=lambda *_: None)
            ends.append(engine.pseudo_gradient(ONE).clone())
            engine.discard(ONE)
    assert torch.equal(ends[0], ends[2]) and torch.equal(ends[1], ends[3])
    assert texts[:2] == [[], []] and [prompt for prompt, _ in texts[2]] == ["abc", "xy"]
    assert texts[2] == texts[3] and all(0 < len(text.split()) <= 12 for _, text in texts[2])
