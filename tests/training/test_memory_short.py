"""A device whose memory runs out where instances are made or compared: the others wait on the host, and no value changes."""

from collections.abc import Callable

import pytest
import torch

from adloco_p2p.core.model.types import Fork, Merge
from adloco_p2p.errors import DeviceError
from adloco_p2p.training import hosting as hosting_module
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.instance import Instance
from tests.training.small_run import ONE, THREE, TWO, effect, hosting, never, silent, train_round


def trained() -> Hosting:
    peer = hosting()
    peer.start([ONE, TWO])
    for instance in (ONE, TWO):
        train_round(peer, effect(instance))
    return peer


def on_device(peer: Hosting) -> list[int]:
    return [instance for instance, hosted in peer._instances.items() if hosted._trained is not None]


def failing(work: Callable[..., object], is_short: Callable[[], bool]) -> Callable[..., object]:
    def tried(*arguments: object, **named: object) -> object:
        if is_short():
            raise torch.OutOfMemoryError
        return work(*arguments, **named)

    return tried


def test_a_fork_makes_room_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, short = trained(), trained()
    fork = Fork(source=ONE, targets=(THREE,))
    merge = Merge(sources=(ONE, TWO), target=TWO, weights=(0.5, 0.5), reason="test")
    plain.transition([fork], [merge])
    with monkeypatch.context() as patch:
        patch.setattr(Instance, "copy", failing(Instance.copy, lambda: TWO in on_device(short)))
        short.transition([fork], [merge])
    for instance in (TWO, THREE):
        for peer in (plain, short):
            train_round(peer, effect(instance, 1))
        assert short.digests(instance) == plain.digests(instance)
        expected, found = plain.snapshot(instance)[0], short.snapshot(instance)[0]
        assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_evaluation_makes_room_also_between_inner_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, short = trained(), trained()
    losses: dict[str, list[float]] = {"plain": [], "short": []}
    for name, peer in (("plain", plain), ("short", short)):

        def evaluate(peer: Hosting = peer, name: str = name) -> bool:
            losses[name].append(peer.evaluate(TWO))
            return False

        with monkeypatch.context() as patch:
            if peer is short:
                heldout = failing(hosting_module.heldout_loss, lambda: TWO in on_device(short))
                patch.setattr(hosting_module, "heldout_loss", heldout)
            peer.run_inner(effect(ONE, 1), should_stop=evaluate, on_progress=silent)
            losses[name].append(peer.evaluate(ONE))
    assert on_device(short) == [ONE]
    assert losses["short"] == losses["plain"]
    for peer in (plain, short):
        peer.apply_outer(ONE, peer.pseudo_gradient(ONE), round=1)
        train_round(peer, effect(TWO, 1))
    assert [short.digests(instance) for instance in (ONE, TWO)] == [plain.digests(instance) for instance in (ONE, TWO)]


def test_a_device_that_holds_not_even_one_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = trained()
    assert peer.micro_batch_limit
    monkeypatch.setattr(hosting_module, "heldout_loss", failing(hosting_module.heldout_loss, lambda: True))
    with pytest.raises(DeviceError, match="memory_fraction"):
        peer.evaluate(ONE)
    monkeypatch.undo()
    assert peer.run_inner(effect(ONE, 1), should_stop=never, on_progress=silent) is not None  # and it goes on
