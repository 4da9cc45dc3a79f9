"""The parts of `python -m benchmarks.robustness`: hosts trained at once are the product's, liars send what their names say."""

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from adloco_p2p.numerics.aggregate import Aggregate, aggregate
from adloco_p2p.numerics.aggregation.robust import Robust
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.training.learning_rate import learning_rate_schedule
from benchmarks.robustness import attacks
from benchmarks.robustness.attacks import ATTACKS, Scene
from benchmarks.robustness.cells import GROUPS, Cell
from benchmarks.robustness.report import Records, attack_table, honest_table, left_out_table
from benchmarks.robustness.training import Trainees
from tests.training.small_run import ARCHITECTURE, ME, ONE, RUN, VOCAB_SIZE, SyntheticFeed, effect, hosting, never, silent

ONE_LAYER = replace(
    RUN,
    model=replace(RUN.model, architecture={**ARCHITECTURE, "num_hidden_layers": 1}),
    data=replace(RUN.data, sequence_length=32),
)


def step_by_step(feed: SyntheticFeed, *, first_sample: int, steps: int, batch: int) -> Batch:
    """The rows of inner steps of `batch` rows each: the synthetic feed pads by the place in what is taken."""
    stream = feed.open(instance=ONE, peer=ME, round=0, first_sample=first_sample)
    rows = [stream.take(batch) for _ in range(steps)]
    return Batch(input_ids=torch.cat([row.input_ids for row in rows]), labels=torch.cat([row.labels for row in rows]))


@pytest.mark.parametrize("batch", [1, 2])
def test_hosts_trained_at_once_do_what_each_does_alone(batch: int) -> None:
    """Two rounds of three hosts: moments, warm-up and clipping of the gradient are those of the product."""
    feed = SyntheticFeed(is_padded=True)
    alone = [hosting(ONE_LAYER, feed=feed) for _ in range(3)]
    for peer in alone:
        peer.start([ONE])
    trainees = Trainees(ONE_LAYER, vocab_size=VOCAB_SIZE, num_hosts=3)
    assert torch.equal(trainees.start, alone[0].state(ONE)[0])
    for number in range(2):
        outer = alone[0].state(ONE)[0]
        works = [effect(ONE, number, batch=batch, micro=batch, steps=6, first_sample=1000 * number + 100 * m) for m in range(3)]
        deltas = []
        for peer, work in zip(alone, works, strict=True):
            peer.run_inner(work, should_stop=never, on_progress=silent)
            deltas.append(peer.pseudo_gradient(ONE).clone())
        rows = [step_by_step(feed, first_sample=work.share.first_sample, steps=6, batch=batch) for work in works]
        schedule = learning_rate_schedule(works[0], inner=ONE_LAYER.inner, initial_batch=ONE_LAYER.batch.initial_batch)
        found = outer - trainees.inner_round(outer, rows, schedule, batch=batch)
        for ours, theirs in zip(found, deltas, strict=True):
            assert float((ours - theirs).norm()) <= 1e-3 * float(theirs.norm())
        for peer in alone:
            peer.apply_outer(ONE, sum(deltas, torch.zeros_like(outer)) / 3, round=number)


# --- liars -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scene() -> Scene:
    generator = torch.Generator().manual_seed(5)
    shared = torch.randn(400, generator=generator)
    honest = shared + torch.randn(6, 400, generator=generator)
    own = shared + torch.randn(2, 400, generator=generator)
    return Scene(
        honest=honest,
        own=own,
        homewards=torch.randn(400, generator=generator),
        before=shared + torch.randn(400, generator=torch.Generator().manual_seed(6)),
        generator=generator,
        averaged=lambda liars: averaged(torch.cat([honest, liars])).vector,
    )


def averaged(sent: torch.Tensor) -> Aggregate:
    return aggregate(list(sent), [1] * 8, [32] * 8, rule=Robust(), codec=codec_named("float32"))


def cosine(left: torch.Tensor, right: torch.Tensor) -> float:
    return float(left @ right / left.norm() / right.norm())


@pytest.mark.parametrize("name", list(ATTACKS))
def test_every_liar_sends_a_vector(name: str, scene: Scene) -> None:
    sent = ATTACKS[name](scene)
    assert sent.shape == scene.own.shape
    assert bool(torch.isfinite(sent).all())


def test_attacks_are_what_they_are_called(scene: Scene) -> None:
    sent = {name: attack(scene)[0] for name, attack in ATTACKS.items()}
    assert torch.equal(sent["flip x10"], -10 * scene.own[0])
    assert float(sent["scale 1e3"].norm()) == pytest.approx(1e3 * float(scene.own[0].norm()), rel=1e-5)
    assert not sent["zero"].any()
    assert torch.equal(sent["copied"], scene.honest[0])
    for name in ("noise", "hidden", "drift", "replayed"):
        assert float(sent[name].norm()) == pytest.approx(scene.median_norm, rel=1e-4)
    assert cosine(sent["hidden"], scene.mean) == pytest.approx(-1.0, abs=1e-5)
    assert abs(cosine(sent["noise"], scene.mean)) < 0.2
    assert cosine(sent["replayed"], scene.before) == pytest.approx(1.0, abs=1e-5)
    assert not ATTACKS["replayed"](replace(scene, before=torch.zeros(400))).any(), "nothing was averaged before the first round"


def test_colluders_stay_within_the_honest(scene: Scene) -> None:
    farthest = float(torch.cdist(scene.honest, scene.honest).max())
    minmax = ATTACKS["minmax"](scene)[0]
    assert float((minmax - scene.honest).norm(dim=1).max()) == pytest.approx(farthest, rel=1e-3)
    assert cosine(minmax, scene.mean) < 1
    drift = ATTACKS["drift"](scene)[0]
    honest = sorted(cosine(vector, scene.mean) for vector in scene.honest)
    assert honest[0] - 1e-4 <= cosine(drift, scene.mean) <= honest[-1]
    assert cosine(drift, scene.homewards) > 0.3


def test_the_edge_is_that_of_the_rule(scene: Scene) -> None:
    """No other attack leads the average back as far, and an honest host is nearer to the honest mean."""
    sent = ATTACKS["edge"](scene)
    reached = {name: float(scene.averaged(attack(scene)) @ scene.homewards) for name, attack in ATTACKS.items()}
    assert reached["edge"] == max(reached.values()) > reached["drift"]
    assert averaged(torch.cat([scene.honest, sent])).decision.left_out == ()
    assert cosine(sent[0], scene.mean) < min(cosine(vector, scene.mean) for vector in scene.honest) - 0.1


def test_colluders_that_share_a_vector_out_send_nothing_in_common() -> None:
    vector = torch.tensor([3.0, -4.0, 0.0, 1.0])
    one, other = attacks._shared_out(vector, 2)
    assert one.tolist() == pytest.approx([0.0, -4.0 * (26 / 17) ** 0.5, 0.0, (26 / 17) ** 0.5 * 1.0], rel=1e-5)
    assert float(one @ other) == 0.0 and float(other.norm()) == pytest.approx(26**0.5)


# --- cells and tables ------------------------------------------------------------------------------------------------


def test_every_cell_has_what_it_is_compared_with() -> None:
    for name, group in GROUPS.items():
        cells = list(group())
        known = set(cells) | set(GROUPS["clean"]())
        assert all(cell.baseline in known for cell in cells), name
        assert len(set(cells)) == len(cells), name


def record(seed: int, loss: float | None, **changes: Any) -> dict[str, Any]:
    cell = Cell(**changes)
    return {
        "cell": asdict(cell),
        "seed": seed,
        "loss": loss,
        "left_out": [[6, 7], []],
        "least_ratio": [0.5, 0.2],
        "nearest": [0.4, 0.6],
    }


def test_a_table_by_hand() -> None:
    records = Records(
        [
            *(record(seed, 2.5, liars=2) for seed in (1, 2, 3)),
            *(record(seed, 2.5 + 0.01 * seed, liars=2, attack="hidden", rule="robust") for seed in (1, 2, 3)),
            record(1, None, liars=2, attack="hidden", rule="mean"),
            record(2, 2.6, liars=2, attack="hidden", rule="mean"),
        ]
    )
    columns = {f"`{rule}`": Cell(liars=2, rule=rule) for rule in ("mean", "clip", "robust")}
    assert attack_table(records, columns) == [
        "| attack | `mean` | `clip` | `robust` |",
        "| --- | --- | --- | --- |",
        "| hidden | destroyed (1 of 2) |  | +0.020 +- 0.025 (3) |",
    ]


def test_who_was_left_out_by_hand() -> None:
    """Hosts 6 and 7 were, in one round of two; in the first run only 7 lies."""
    found = Records(
        [record(1, 2.5, liars=1, attack="zero", rule="robust"), record(1, 2.5, liars=2, attack="zero", rule="robust")]
    )
    assert left_out_table(found)[2:] == ["| zero | 4 | 3 of 6 | 1 of 26 |"]


def test_who_came_near_to_being_left_out_by_hand() -> None:
    lines = honest_table(Records([record(1, 2.5, rule="robust"), record(2, 2.5, rule="robust")]))
    assert lines[2:] == ["| float32, even | 4 | 0.20 | 0.40 | 4 |"]
