"""A device whose memory runs out anywhere but in a forward pass: other instances wait on the host, and no value changes.

`test_inner_loop.py` has the forward pass, where the micro-batch becomes smaller.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.lineage import Fork, Merge
from adloco_p2p.errors import DeviceError
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.numerics.grad_stats import half_products
from adloco_p2p.training import hosting as hosting_module
from adloco_p2p.training import shell as shell_module
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.inner_optimizer import _Stepped, inner_optimizer
from adloco_p2p.training.instance import Instance
from tests.training.small_run import ONE, RUN, THREE, TWO, effect, hosting, never, silent, train_round, with_run


def trained(run: RunConfig = RUN) -> Hosting:
    peer = hosting(run)
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
                heldout = failing(heldout_loss, lambda: TWO in on_device(short))
                patch.setattr(hosting_module, "heldout_loss", heldout)
            peer.run_inner(effect(ONE, 1), should_stop=evaluate, on_progress=silent)
            losses[name].append(peer.evaluate(ONE))
    assert on_device(short) == [ONE]
    assert losses["short"] == losses["plain"]
    for peer in (plain, short):
        peer.apply_outer(ONE, peer.pseudo_gradient(ONE), round=1)
        train_round(peer, effect(TWO, 1))
    assert [short.digests(instance) for instance in (ONE, TWO)] == [plain.digests(instance) for instance in (ONE, TWO)]


def test_a_device_without_room_for_one_sample_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = trained()
    assert peer.micro_batch_limit
    monkeypatch.setattr(hosting_module, "heldout_loss", failing(heldout_loss, lambda: True))
    with pytest.raises(DeviceError, match="memory_fraction"):
        peer.evaluate(ONE)
    monkeypatch.undo()
    assert peer.run_inner(effect(ONE, 1), should_stop=never, on_progress=silent) is not None  # and it goes on


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Batch, "to"), (_Stepped, "step"), (hosting_module, "inner_optimizer")],
    ids=["rows", "step", "state of the optimizer"],
)
def test_inner_steps_make_room_and_change_nothing(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    plain, short = trained(), trained()
    for peer in (plain, short):
        peer._instances[ONE].leave_device()
        with monkeypatch.context() as patch:
            if peer is short:
                patch.setattr(owner, name, failing(getattr(owner, name), lambda: TWO in on_device(short)))
            train_round(peer, effect(ONE, 1))
    assert on_device(short) == [ONE] and on_device(plain) == [ONE, TWO]
    assert_equal(plain, short)


def test_a_step_that_does_not_fit_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = trained()
    monkeypatch.setattr(_Stepped, "step", failing(_Stepped.step, lambda: True))
    with pytest.raises(DeviceError, match="a step of the inner optimizer"):
        peer.run_inner(effect(ONE, 1), should_stop=never, on_progress=silent)


@pytest.mark.parametrize("kind", ["muon", "adamw8bit"])
def test_a_step_whose_room_is_missing_has_changed_nothing(
    monkeypatch: pytest.MonkeyPatch, kind: Literal["muon", "adamw8bit"]
) -> None:
    """A second try must not step twice what came before the place where the memory ended."""
    if kind == "adamw8bit":
        pytest.importorskip("torchao")
    plain, short = (trained(with_run(inner=replace(RUN.inner, kind=kind))) for _ in range(2))
    empty, failures = torch.empty, iter([True, False, True])

    def rarely(*size: object, **details: object) -> torch.Tensor:
        if size[0] == short._instances[ONE].optimizer._scratch_bytes and next(failures, False):  # type: ignore[attr-defined]
            raise torch.OutOfMemoryError
        return empty(*size, **details)  # type: ignore[call-overload]

    train_round(plain, effect(ONE, 1))
    monkeypatch.setattr(torch, "empty", rarely)
    train_round(short, effect(ONE, 1))
    assert not [*failures], "every failure came"
    assert_equal(plain, short)


def test_one_sample_is_trained_without_the_statistics_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = with_run(batch=replace(RUN.batch, test="norm"))
    plain, short = hosting(replace(tested, batch=replace(RUN.batch, test="constant"))), hosting(tested)
    assert short._run.batch.is_tested and not plain._run.batch.is_tested
    monkeypatch.setattr(shell_module, "half_products", failing(half_products, lambda: True))
    for peer in (plain, short):
        peer.start([ONE])
        result = peer.run_inner(effect(ONE, micro=1), should_stop=never, on_progress=silent)
        assert result is not None and result.half_batch is None
    assert torch.equal(plain.pseudo_gradient(ONE), short.pseudo_gradient(ONE))


def test_what_waits_on_the_host_is_saved_and_reset_there() -> None:
    plain, short = trained(), trained()
    short._instances[TWO].leave_device()
    assert_equal(plain, short)
    for peer in (plain, short):
        peer._instances[TWO].forget_moments()
        peer.discard(TWO)
    assert_equal(plain, short)
    assert on_device(short) == [ONE]
    for peer in (plain, short):
        train_round(peer, effect(TWO, 1))
    assert_equal(plain, short)


def test_a_snapshot_is_restored_where_the_others_leave_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, short = trained(), trained()
    saved = plain.snapshot(TWO)
    plain.restore(TWO, *saved)
    make = failing(inner_optimizer, lambda: ONE in on_device(short))
    monkeypatch.setattr(hosting_module, "inner_optimizer", make)
    short.restore(TWO, *saved)
    assert on_device(short) == [TWO]
    monkeypatch.undo()
    assert_equal(plain, short)


def assert_equal(plain: Hosting, short: Hosting) -> None:
    for instance in (ONE, TWO):
        (expected, counters), (found, counters_found) = plain.snapshot(instance), short.snapshot(instance)
        assert all(torch.equal(expected[name], found[name]) for name in expected) and counters == counters_found
