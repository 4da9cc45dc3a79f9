"""Hosting: repetition, swapping, saving, adoption, forks and merges."""

import json
from dataclasses import replace
from typing import Literal

import pytest
import torch

from adloco_p2p.config.run_config import AveragingConfig, ModelConfig, RunConfig
from adloco_p2p.core.model.lineage import Fork, Merge
from adloco_p2p.core.model.rules import GuardRules, InstanceRules, MergeRules
from adloco_p2p.errors import ConfigError, LocalProtocolError, StorageError
from adloco_p2p.numerics.digest import state_digests
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.instance import Instance
from tests.training.by_hand import of
from tests.training.small_run import ONE, RUN, THREE, TWO, SyntheticFeed, effect, hosting, never, silent, train_round, with_run

DROPOUT = with_run(
    model=ModelConfig(
        architecture={"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.1, "embd_pdrop": 0.1}
    )
)

BFLOAT16_STATE = with_run(outer=replace(RUN.outer, state="bfloat16"))
MIXED_STATE = with_run(outer=replace(RUN.outer, state="mixed"))


def started(*instances: int, run: object = RUN) -> Hosting:
    peer = hosting(run)  # type: ignore[arg-type]
    peer.start(instances or (ONE,))  # type: ignore[arg-type]
    return peer


def everything(peer: Hosting, instance: int = ONE) -> dict[str, list[float]]:
    tensors, meta = peer.snapshot(instance)  # type: ignore[arg-type]
    return {**{name: tensor.tolist() for name, tensor in tensors.items()}, **meta}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "run", [RUN, DROPOUT, BFLOAT16_STATE, MIXED_STATE], ids=["llama", "gpt2 with dropout", "bfloat16", "mixed"]
)
def test_two_runs_are_bit_identical(run: object) -> None:
    torch.manual_seed(1)
    first = started(run=run)
    for round_number in range(2):
        train_round(first, effect(round=round_number))
    torch.manual_seed(2)
    second = started(run=run)
    for round_number in range(2):
        train_round(second, effect(round=round_number))
    assert everything(first) == everything(second)


@pytest.mark.parametrize(
    "run",
    [RUN, BFLOAT16_STATE, MIXED_STATE, with_run(averaging=AveragingConfig(fragments=2))],
    ids=["whole", "bfloat16 state", "mixed state", "fragments"],
)
def test_digests_are_those_of_the_state_after_every_kind_of_end(run: RunConfig) -> None:
    """They are hashed while the state is written, and remembered."""
    peer = started(run=replace(run, guard=GuardRules(enabled=True), work=replace(run.work, rounds=8)))
    seen = []
    for number, value in enumerate((None, 0.1, float("nan"), 0.2)):
        peer.run_inner(effect(round=number), should_stop=never, on_progress=silent)
        averaged = peer.pseudo_gradient(ONE).clone() if value is None else torch.full((peer.num_averaged(number),), value)
        assert peer.apply_outer(ONE, averaged, round=number) == (value is None or value == value)
        seen.append(peer.digests(ONE))
        assert seen[-1] == state_digests(*peer.state(ONE))
    assert seen[1] == seen[2] and len({*seen}) == 3
    assert peer.rewind(ONE, seen[0][1]) and peer.digests(ONE) == seen[0] == state_digests(*peer.state(ONE))
    peer.adopt(ONE, *(vector.clone() + 1 for vector in peer.state(ONE)))
    assert peer.digests(ONE) == state_digests(*peer.state(ONE)) != seen[0]


def test_conversations_are_refused_by_a_model_that_mixes_the_texts_of_a_row() -> None:
    opt = ModelConfig(
        architecture={
            "model_type": "opt",
            "hidden_size": 32,
            "ffn_dim": 32,
            "num_attention_heads": 2,
            "word_embed_proj_dim": 32,
        }
    )
    hosting(with_run(model=opt))
    for data in (replace(RUN.data, attention="document"), replace(RUN.data, messages_column="messages")):
        with pytest.raises(ConfigError, match="opt lets a text read"):
            hosting(with_run(model=opt, data=data))
        hosting(with_run(data=data))


def test_dropout_differs_between_rounds() -> None:
    """Its seed names the round: the same samples give another pseudo-gradient."""
    peer = started(run=DROPOUT)
    deltas = []
    for round_number in range(2):
        work = replace(effect(steps=1, first_sample=0), round=round_number)
        peer.start([ONE])
        peer.run_inner(work, should_stop=never, on_progress=silent)
        deltas.append(peer.pseudo_gradient(ONE).clone())
    assert not torch.equal(*deltas)


def test_swapping_instances_changes_nothing() -> None:
    together = started(ONE, TWO)
    for round_number in range(2):
        for instance in (ONE, TWO):
            train_round(together, effect(instance, round_number))
    for instance in (ONE, TWO):
        alone = started(instance)
        for round_number in range(2):
            train_round(alone, effect(instance, round_number))
        assert everything(together, instance) == everything(alone, instance)
    assert together.digests(ONE) != together.digests(TWO)


def test_work_in_progress_survives_another_instance() -> None:
    """One instance trains while the pseudo-gradient of the other is being averaged."""
    peer = started(ONE, TWO)
    peer.run_inner(effect(ONE), should_stop=never, on_progress=silent)
    delta = peer.pseudo_gradient(ONE)
    before = delta.clone()
    peer.run_inner(effect(TWO), should_stop=never, on_progress=silent)
    assert torch.equal(delta, before)
    assert torch.equal(peer.pseudo_gradient(ONE), before)


@pytest.mark.parametrize(
    "run", [RUN, DROPOUT, BFLOAT16_STATE, MIXED_STATE], ids=["llama", "gpt2 with dropout", "bfloat16", "mixed"]
)
def test_save_and_resume_equals_uninterrupted(run: object) -> None:
    whole, first = started(run=run), started(run=run)
    for round_number in range(4):
        train_round(whole, effect(round=round_number))
    for round_number in range(2):
        train_round(first, effect(round=round_number))
    tensors, meta = first.snapshot(ONE)
    meta = json.loads(json.dumps(meta))
    train_round(first, effect(round=2))  # must not reach into the snapshot
    feed = SyntheticFeed()
    resumed = hosting(run, feed=feed)  # type: ignore[arg-type]
    resumed.restore(ONE, tensors, meta)
    assert feed.cursor == {ONE: 40}
    for round_number in (2, 3):
        train_round(resumed, effect(round=round_number))
    assert everything(resumed) == everything(whole)


def test_a_mixed_state_has_exact_parameters_and_a_momentum_of_two_bytes() -> None:
    """In the first step the momentum that is rounded is not read again, so the parameters are those of float32."""
    exact, mixed = started(run=RUN), started(run=MIXED_STATE)
    averaged = torch.linspace(-0.01, 0.01, exact.num_parameters)
    for peer in (exact, mixed):
        peer.run_inner(effect(round=0), should_stop=never, on_progress=silent)
        assert peer.apply_outer(ONE, averaged, round=0)
    (outer, momentum), (its_outer, its_momentum) = exact.state(ONE), mixed.state(ONE)
    assert torch.equal(outer, its_outer) and not torch.equal(momentum, its_momentum.float())
    assert torch.allclose(momentum, its_momentum.float(), rtol=2.0**-7, atol=0.0)
    assert its_outer.nbytes + its_momentum.nbytes == 6 * mixed.num_parameters


def test_resume_keeps_the_adoption_warmup() -> None:
    donor = started()
    peer = hosting()
    peer.adopt(ONE, *donor.state(ONE))
    train_round(peer, effect(steps=3))
    tensors, meta = peer.snapshot(ONE)
    resumed = hosting()
    resumed.restore(ONE, tensors, meta)
    for host in (peer, resumed):
        train_round(host, effect(round=1, steps=3))
    assert everything(peer) == everything(resumed)
    assert meta["adoption_steps"] == 3


@pytest.mark.parametrize("codec", ["int8", "topk2", "sign"])
def test_what_a_codec_lost_survives_a_restart(codec: Literal["int8", "topk2", "sign"]) -> None:
    """The pseudo-gradient of the resumed host is that of the one that went on, to the last bit, and not that without it."""
    run = with_run(averaging=AveragingConfig(codec=codec, feedback=0.5))
    peers = [started(run=run) for _ in range(2)]
    for peer, lost in zip(peers, (0.25, None), strict=True):
        train_round(peer, effect(round=0), lost=lost)
    tensors, meta = peers[0].snapshot(ONE)
    assert of(tensors["residual"]) == 0.25
    assert tensors["residual"] is peers[0]._residual[ONE]  # no copy: a checkpoint's memory is counted
    resumed = hosting(run)
    resumed.restore(ONE, tensors, meta)
    for peer in (*peers, resumed):
        peer.run_inner(effect(round=1), should_stop=never, on_progress=silent)
    assert torch.equal(resumed.pseudo_gradient(ONE), peers[0].pseudo_gradient(ONE))
    assert torch.equal(resumed.pseudo_gradient(ONE), peers[1].pseudo_gradient(ONE) + 0.5 * 0.25)
    train_round(peers[0], effect(round=2), lost=0.5)
    assert of(tensors["residual"]) == 0.25


def test_what_a_codec_lost_stays_behind_where_an_instance_becomes_another() -> None:
    """A twin has lost nothing of its own, and a merged or fetched state is not the one that lacks it."""
    peer = trained_pair(MergeRules())
    train_round(peer, effect(TWO, round=1), lost=0.25)
    peer.transition([Fork(source=TWO, targets=(THREE,))], [])
    assert set(peer._residual) == {TWO}
    peer.transition([], [merge((0.5, 0.5))])
    assert not peer._residual
    train_round(peer, effect(TWO, round=2), lost=0.25)
    peer.adopt(TWO, *peer.state(TWO))
    assert not peer._residual


def test_a_residual_that_was_sent_goes_before_there_is_room_for_the_next_state(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = started(run=with_run(averaging=AveragingConfig(codec="int8", feedback=1.0)))
    train_round(peer, effect(), lost=0.25)
    there, new_outer = [], Instance.new_outer

    def noted(hosted: Instance) -> tuple[torch.Tensor, torch.Tensor]:
        there.append(ONE in peer._residual)
        return new_outer(hosted)

    monkeypatch.setattr(Instance, "new_outer", noted)
    train_round(peer, effect(round=1), lost=0.5)
    assert there == [False]
    assert of(peer._residual[ONE]) == 0.5


def test_a_foreign_checkpoint_is_refused() -> None:
    peer = started()
    tensors, meta = peer.snapshot(ONE)
    with pytest.raises(StorageError, match="residual is missing or not of this model"):
        peer.restore(ONE, {**tensors, "residual": torch.zeros(3)}, meta)
    with pytest.raises(StorageError, match="exp_avg is missing or not of this model"):
        peer.restore(ONE, {**tensors, "exp_avg": torch.zeros(3)}, meta)
    with pytest.raises(StorageError, match="counters"):
        peer.restore(ONE, tensors, {"optimizer_steps": "many"})


def test_pseudo_gradient_is_outer_minus_local() -> None:
    peer = started()
    outer, _ = peer.state(ONE)
    peer.run_inner(effect(), should_stop=never, on_progress=silent)
    local = peer._instances[ONE].local
    assert torch.equal(peer.pseudo_gradient(ONE), outer - local)
    assert torch.equal(peer.state(ONE)[0], outer)


def test_discard_returns_to_the_outer_parameters() -> None:
    peer = started()
    before = peer.digests(ONE)
    peer.run_inner(effect(), should_stop=never, on_progress=silent)
    peer.discard(ONE)
    assert peer.digests(ONE) == before
    assert float(peer.pseudo_gradient(ONE).abs().sum()) == 0.0


def test_a_round_starts_from_the_outer_parameters_even_after_an_abandoned_one() -> None:
    left, discarded = started(), started()
    for peer in (left, discarded):
        peer.run_inner(effect(), should_stop=never, on_progress=silent)
    discarded.discard(ONE)
    for peer in (left, discarded):
        train_round(peer, effect(round=1))
    assert left.digests(ONE) == discarded.digests(ONE)


def test_the_pseudo_gradient_after_a_void_round_spans_both_also_after_a_restart() -> None:
    peer = started()
    before = peer.digests(ONE)
    peer.run_inner(effect(), should_stop=never, on_progress=silent)
    first = peer.pseudo_gradient(ONE).clone()
    peer.carry_over(ONE, first, round=0)
    assert peer.digests(ONE) == before
    resumed = hosting(RUN, feed=SyntheticFeed())
    resumed.restore(ONE, *peer.snapshot(ONE))
    for each in (peer, resumed):
        each.run_inner(effect(round=1), should_stop=never, on_progress=silent)
        spanning = each.pseudo_gradient(ONE)
        assert torch.equal(spanning, each.state(ONE)[0] - each._instances[ONE].local)
        assert not torch.allclose(spanning, first)
    assert torch.equal(peer.pseudo_gradient(ONE), resumed.pseudo_gradient(ONE))


def test_a_void_round_is_added_to_the_steps_that_ran_ahead_of_its_end() -> None:
    peer, plain = started(), started()
    for each in (peer, plain):
        each.run_inner(effect(), should_stop=never, on_progress=silent)
    first = peer.pseudo_gradient(ONE).clone()
    for each in (peer, plain):
        each.run_inner(replace(effect(round=1), is_ahead=True), should_stop=never, on_progress=silent)
    ahead = plain.pseudo_gradient(ONE).clone()
    peer.carry_over(ONE, first, round=0)
    assert torch.allclose(peer.pseudo_gradient(ONE), first + ahead, atol=1e-7)


def test_average_mode_takes_the_trained_parameters() -> None:
    run = with_run(outer=replace(RUN.outer, kind="average"))
    peer = started(run=run)
    peer.run_inner(effect(), should_stop=never, on_progress=silent)
    local = peer._instances[ONE].local.clone()
    peer.apply_outer(ONE, peer.pseudo_gradient(ONE), round=0)
    assert torch.allclose(peer.state(ONE)[0], local, atol=1e-7)
    assert float(peer.state(ONE)[1].abs().sum()) == 0.0


def test_a_host_that_only_receives_ends_equal() -> None:
    trainer, receiver = started(), started()
    receiver.apply_outer(ONE, train_round(trainer, effect()), round=0)
    assert receiver.digests(ONE) == trainer.digests(ONE)


def test_different_starts_differ_and_equal_starts_do_not() -> None:
    same = started(ONE, TWO)
    assert same.digests(ONE) == same.digests(TWO)
    different = started(ONE, TWO, run=with_run(instances=InstanceRules(start="different")))
    assert different.digests(ONE) != different.digests(TWO)


def test_adoption_starts_from_zero_moments_and_warms_up() -> None:
    donor = started()
    train_round(donor, effect())
    joiner = started()
    train_round(joiner, effect())
    joiner.adopt(ONE, *donor.state(ONE))
    saved = everything(joiner)
    assert joiner.digests(ONE) == donor.digests(ONE)
    assert (saved["optimizer_steps"], saved["adoption_steps"]) == (0, 0)
    assert not any(saved["exp_avg"]) and not any(saved["exp_avg_sq"])
    # the first step is a sixth of what the donor's would be: AdamW's first step from zero moments has the length of its rate
    fresh = hosting()
    fresh.adopt(ONE, *donor.state(ONE))
    fresh._instances[ONE].adoption_steps = None
    lengths = [float(train_round(peer, effect(round=1, steps=1)).norm()) for peer in (joiner, fresh)]
    assert lengths[0] == pytest.approx(lengths[1] / 6, rel=1e-2)


def test_states_and_snapshots_are_never_written_to() -> None:
    """What is served or being saved stays as it was, while rounds and merges go on; and it is no copy."""
    peer = started(ONE, TWO)
    train_round(peer, effect())
    state, (saved, _) = peer.state(ONE), peer.snapshot(ONE)
    assert saved["outer"] is state[0] and saved["momentum"] is state[1]
    before = [vector.clone() for vector in (*state, *saved.values())]
    train_round(peer, effect(round=1))
    peer.transition([], [Merge(sources=(TWO, ONE), target=ONE, weights=(0.5, 0.5), reason="test")])
    train_round(peer, effect(round=2))
    assert all(torch.equal(*pair) for pair in zip(before, (*state, *saved.values()), strict=True))
    assert not torch.equal(peer.state(ONE)[0], state[0])


def test_a_state_that_is_only_kept_costs_the_device_nothing() -> None:
    peer = started()
    peer.adopt(TWO, *peer.state(ONE))
    assert peer._instances[TWO]._trained is None
    assert peer.digests(TWO) == peer.digests(ONE) and peer.evaluate(TWO) == peer.evaluate(ONE)
    peer.transition([], [Merge(sources=(TWO, ONE), target=ONE, weights=(0.5, 0.5), reason="test")])
    assert peer.hosted == (ONE,)


def test_forks_are_twins_that_share_nothing() -> None:
    peer = started()
    train_round(peer, effect())
    before = everything(peer)
    peer.transition([Fork(source=ONE, targets=(TWO, THREE))], [])
    assert peer.hosted == (ONE, TWO, THREE)
    assert everything(peer, TWO)["exp_avg"] == before["exp_avg"]
    assert peer.digests(TWO) == peer.digests(ONE)
    train_round(peer, effect(TWO, 1))
    assert everything(peer) == before
    assert everything(peer, THREE)["outer"] == before["outer"]


def trained_pair(rules: MergeRules) -> Hosting:
    peer = started(ONE, TWO, run=with_run(merge=rules))
    for instance in (ONE, TWO):
        train_round(peer, effect(instance))
    return peer


def merge(weights: tuple[float, float]) -> Merge:
    return Merge(sources=(ONE, TWO), target=TWO, weights=weights, reason="test")


def test_merge_is_the_weighted_mean_and_the_survivor_keeps_its_moments() -> None:
    peer = trained_pair(MergeRules(outer_momentum="mean", inner_state="keep"))
    one, two = everything(peer, ONE), everything(peer, TWO)
    peer.transition([], [merge((0.25, 0.75))])
    merged = everything(peer, TWO)
    assert peer.hosted == (TWO,)
    for name in ("outer", "momentum"):
        expected = 0.25 * torch.tensor(one[name]) + 0.75 * torch.tensor(two[name])
        assert torch.allclose(torch.tensor(merged[name]), expected, atol=1e-7)
    for name in ("exp_avg", "exp_avg_sq", "optimizer_steps", "adoption_steps"):
        assert merged[name] == two[name]
    assert float(peer.pseudo_gradient(TWO).abs().sum()) == 0.0  # the local parameters followed


def test_merge_rules_can_zero_momentum_and_moments() -> None:
    peer = trained_pair(MergeRules(outer_momentum="zero", inner_state="reset"))
    peer.transition([], [merge((0.5, 0.5))])
    merged = everything(peer, TWO)
    assert not any(merged["momentum"]) and not any(merged["exp_avg"]) and not any(merged["exp_avg_sq"])
    assert (merged["optimizer_steps"], merged["adoption_steps"]) == (0, 0)


def test_a_refused_merge_ends_the_source_and_leaves_the_survivor_as_it_is() -> None:
    peer = trained_pair(MergeRules(outer_momentum="zero", inner_state="reset"))
    two = everything(peer, TWO)
    peer.transition([], [merge((0.0, 1.0))])
    assert peer.hosted == (TWO,)
    assert everything(peer, TWO) == two


def test_a_target_that_was_fetched_starts_from_zero_moments() -> None:
    donor = trained_pair(MergeRules())
    peer = started(ONE)
    train_round(peer, effect(ONE))
    peer.adopt(TWO, *donor.state(TWO))
    for host in (donor, peer):
        host.transition([], [merge((0.5, 0.5))])
    assert peer.digests(TWO) == donor.digests(TWO)
    assert everything(peer, TWO)["adoption_steps"] == 0
    assert not any(everything(peer, TWO)["exp_avg"])


def test_a_merge_without_a_needed_source_is_our_bug() -> None:
    with pytest.raises(LocalProtocolError, match="instance 0 is not hosted here"):
        started(TWO).transition([], [merge((0.5, 0.5))])


def test_probe_measures_the_merge_without_doing_it() -> None:
    peer = trained_pair(MergeRules())
    before = everything(peer, ONE), everything(peer, TWO)
    verdict = peer.probe_merge(merge((0.25, 0.75)))
    assert (everything(peer, ONE), everything(peer, TWO)) == before
    assert verdict.source_losses == (peer.evaluate(ONE), peer.evaluate(TWO))
    peer.transition([], [merge((0.25, 0.75))])
    assert verdict.merged_loss == peer.evaluate(TWO)


def test_drop_forgets() -> None:
    peer = started(ONE, TWO)
    peer.drop(ONE)
    peer.drop(ONE)
    assert peer.hosted == (TWO,)
    with pytest.raises(LocalProtocolError, match="not hosted"):
        peer.evaluate(ONE)
