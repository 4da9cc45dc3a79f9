"""Switch mode: the table and the worked numbers of docs/mathematics.md, 5 and 12 G."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.rules import SwitchRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.switch_mode import granted_batch, plan_batch


def effective(requested: int, limit: int, rules: SwitchRules) -> int:
    plan, why = plan_batch(requested, micro_batch_limit=limit, rules=rules)
    assert why
    return HostShare(
        peer=PeerId("p"),
        batch_samples=granted_batch(requested, plan, rules=rules),
        inner_steps=1,
        micro_batch_size=plan.micro_batch_size,
        accumulation_steps=plan.accumulation_steps,
        first_sample=0,
    ).effective_batch


@pytest.mark.parametrize(
    ("policy", "requested", "size", "steps", "mode", "used"),
    [
        ("paper", 10, 10, 1, "single", 10),
        ("paper", 16, 16, 1, "single", 16),
        ("paper", 17, 16, 1, "capped", 16),
        ("paper", 32, 16, 1, "capped", 16),
        ("paper", 33, 16, 3, "accumulate", 48),
        ("paper", 100, 16, 7, "accumulate", 112),
        ("exact", 16, 16, 1, "single", 16),
        ("exact", 32, 16, 1, "capped", 16),
        ("exact", 33, 11, 3, "accumulate", 33),
        ("exact", 100, 15, 7, "accumulate", 100),
        ("always", 10, 10, 1, "single", 10),
        ("always", 17, 16, 2, "accumulate", 32),
        ("never", 10, 10, 1, "single", 10),
        ("never", 100, 16, 1, "capped", 16),
    ],
)
def test_acceptance_g(policy: str, requested: int, size: int, steps: int, mode: str, used: int) -> None:
    rules = SwitchRules(policy=policy)  # type: ignore[arg-type]
    plan, _ = plan_batch(requested, micro_batch_limit=16, rules=rules)
    assert (plan.micro_batch_size, plan.accumulation_steps, plan.mode) == (size, steps, mode)
    assert effective(requested, 16, rules) == used


@given(
    st.integers(1, 5000),
    st.integers(1, 300),
    st.sampled_from(["exact", "paper", "always", "never"]),
    st.sampled_from([1.0, 1.5, 2.0]),
)
def test_passes_fit_and_the_effective_batch_is_what_the_policy_promises(
    requested: int, limit: int, policy: str, multiple: float
) -> None:
    rules = SwitchRules(policy=policy, multiple=multiple)  # type: ignore[arg-type]
    plan, _ = plan_batch(requested, micro_batch_limit=limit, rules=rules)
    used = effective(requested, limit, rules)
    assert 1 <= plan.micro_batch_size <= limit
    assert (plan.mode == "accumulate") == (plan.accumulation_steps > 1)
    if plan.mode == "capped":
        assert used == limit < requested and (policy == "never" or requested <= multiple * limit)
    elif policy == "exact":
        assert used == requested
        assert plan.micro_batch_size * plan.accumulation_steps - requested < plan.accumulation_steps
    else:
        assert requested <= used < requested + limit
