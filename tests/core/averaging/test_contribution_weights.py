"""How much newcomers weigh in an average, and that they reduce nothing for others."""

from dataclasses import replace

from adloco_p2p.core.averaging.attempt import contribution_weights
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.round_plan import genesis
from tests.core.averaging.assignments import attempts_of
from tests.core.core_values import RUN, capacity, peer

NAMES = tuple(peer(index) for index in range(4))


def test_weights_are_samples_times_standing_where_standings_differ() -> None:
    samples = {peer(0): 96, peer(1): 32, peer(2): 32}
    assert contribution_weights(samples, {peer(0): 256, peer(1): 256, peer(2): 64}) == {
        peer(0): 24_576,
        peer(1): 8_192,
        peer(2): 2_048,
    }
    assert contribution_weights(samples, {peer(2): 64})[peer(2)] == 2_048, "a host that left counts in full"


def test_where_all_stand_alike_weights_are_samples() -> None:
    samples = {peer(0): 96, peer(1): 0}
    assert contribution_weights(samples, {}) == samples
    assert contribution_weights(samples, dict.fromkeys(samples, 1)) == samples


def plan_with(**seats: dict[str, object]) -> RoundPlan:
    plan = genesis(RUN, [(name, capacity()) for name in NAMES], Rules())
    entries = tuple(replace(entry, **seats.get(str(entry.peer), {})) for entry in plan.roster)  # type: ignore[arg-type]
    return replace(plan, roster=entries)


def test_a_newcomer_weighs_less_and_reduces_nothing() -> None:
    full = attempts_of(plan_with()).average()
    newcomer: dict[str, object] = {"probation": 3, "standing": 64}
    average = attempts_of(plan_with(**{str(peer(1)): newcomer})).average()
    samples = dict(full.weights)
    assert full.shares == ()
    assert dict(average.weights) == {name: samples[name] * (64 if name == peer(1) else 256) for name in NAMES}
    assert average.shares == (1.0, 0.0, 1.0, 1.0)


def test_newcomers_reduce_where_no_full_member_can_be_dialled() -> None:
    behind: dict[str, object] = {"capacity": replace(capacity(), is_reachable=False)}
    newcomer: dict[str, object] = {"probation": 3, "standing": 64}
    names: dict[PeerId, dict[str, object]] = {peer(0): behind, peer(1): newcomer, peer(2): behind, peer(3): behind}
    assert attempts_of(plan_with(**{str(name): seat for name, seat in names.items()})).average().shares == (0.0, 1.0, 0.0, 0.0)
