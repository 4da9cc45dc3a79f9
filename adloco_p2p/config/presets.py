"""The settings of a run's `mode` and of its `averaging.preset`, which were measured together. The user's own settings override
them."""

from math import ceil
from typing import Any

from adloco_p2p.config.fields import flatten
from adloco_p2p.config.run_config import AVERAGING_PRESETS, BYTES_PER_VALUE, RunConfig

Settings = dict[str, Any]

_ONE_LINEAGE = {"batch.test": "constant", "instances.count": 1, "instances.start": "same", "merge.policy": "none"}
_MEASURED = {"batch.level": "inner", "batch.eta": 1.7, "inner.batch_scaling": "sqrt", "instances.count": 1}
"""The best settings of docs/results.md. More instances are for machines that are too small for one group."""

_EVERY_MODE = {"inner.decayed": "matrices"}
"""Losses are lower where the gains of norms do not decay (`docs/results/tuned.md`)."""

_MODES: dict[str, Settings] = {
    "adloco": {**_EVERY_MODE, **_MEASURED},
    "diloco": {**_EVERY_MODE, **_ONE_LINEAGE, "outer.kind": "nesterov", "outer.learning_rate": 0.7},
    "localsgd": {**_EVERY_MODE, **_ONE_LINEAGE, "outer.kind": "average"},
}

LARGEST_GROWTH = 3
"""The largest batch of a run as a multiple of the first one. Two and a half to three did best; larger ones cost loss and save
few rounds (`docs/results/method.md`)."""


LONG_ROUNDS, LONG_STEPS, LONG_MOMENTUM = 64, 32, 0.9
"""The outer Nesterov momentum of runs of at least so many rounds of so many inner steps: it ended lower or as low there. With
`sign` it does so in as many steps of shorter rounds, too; with float32 and a small model it ends higher in rounds of any other
length. It also ends higher in shorter runs (all in `docs/results/bytes.md`), where a batch that grows leaves fewer rounds
(`docs/results/method.md`), and where updates come late (`docs/results/time.md`)."""


def outer_momentum(inner_steps: int, *, is_long: bool) -> float:
    """Return the outer Nesterov momentum that suits H inner steps a round with dense averages. Short runs were measured with H
    up to 256 (`docs/results/tuned.md`)."""
    if is_long and inner_steps == LONG_STEPS:
        return LONG_MOMENTUM
    return 0.5 if inner_steps <= 32 else 0.7


def rounds_kept(bytes_per_value: float) -> int:
    """Return how many rounds have averages that are together as large as a state, at least 2 and at most 12. More would not
    help: a newcomer that needs longer to fetch a state also fetches averages more slowly than they are made."""
    return max(2, min(12, int(8 / bytes_per_value)))


def preset_of(written: Settings) -> dict[str, tuple[str, Any]]:
    """Return the settings of the presets, each with the preset's name, given the user's settings. A setting that depends on
    another one (the momentum on H, for example) follows the user's value of that. Empty where the mode itself is wrong, which
    validation reports."""
    defaults = flatten(RunConfig())
    mode = written.get("mode", defaults["mode"])
    if not isinstance(mode, str) or mode not in _MODES:
        return {}
    name = written.get("averaging.preset")
    of_averaging = AVERAGING_PRESETS.get(name, {}) if isinstance(name, str) else {}
    if mode == "localsgd":  # its outer step is the mean of the models, whatever the codec
        of_averaging = {key: value for key, value in of_averaging.items() if not key.startswith("outer.")}
    is_long = _is_long({**defaults, **_MODES[mode], **written})
    if not is_long:
        of_averaging = {key: value for key, value in of_averaging.items() if key != "outer.momentum"}
    preset = {**_MODES[mode], **of_averaging}
    known = {**defaults, **preset, **written}
    inner_steps = known["work.inner_steps"]
    if known["outer.kind"] == "average":
        preset["outer.learning_rate"] = 1.0
    if known["outer.kind"] in ("average", "sgd"):
        preset["outer.momentum"] = 0.0
    elif isinstance(inner_steps, int) and "outer.momentum" not in of_averaging:
        preset["outer.momentum"] = outer_momentum(inner_steps, is_long=is_long)
    if written.get("work.samples") is not None:
        preset["work.rounds"] = None
    if isinstance(pretrained := written.get("model.pretrained"), str) and "tokenizer.source" not in written:
        preset |= {"tokenizer.source": pretrained, "tokenizer.revision": written.get("model.revision")}
    codec = known["averaging.codec"]
    if isinstance(codec, str) and codec in BYTES_PER_VALUE and codec != defaults["averaging.codec"]:
        preset["work.rounds_kept"] = rounds_kept(BYTES_PER_VALUE[codec])
    if known["batch.test"] == "schedule":
        preset["inner.batch_scaling"] = "sqrt"
    if known["batch.statistic"] == "micro_batch":
        preset["batch.level"] = "inner"
    if known["batch.test"] != "constant" and isinstance(first := known["batch.initial_batch"], int):
        preset["batch.max_batch"] = LARGEST_GROWTH * first
    return {
        key: (f"averaging.preset {name}" if of_averaging.get(key, ...) == value else f"preset {mode}", value)
        for key, value in preset.items()
    }


def _is_long(known: Settings) -> bool:
    """Return whether the run is of the kind of `LONG_MOMENTUM`: it trains one new model with a constant batch, makes at least
    `LONG_ROUNDS` times `LONG_STEPS` inner steps in rounds of at most `LONG_STEPS`, and every average is of all and in time."""
    rounds, inner_steps = known["work.rounds"], known["work.inner_steps"]
    if known["work.samples"] is not None:
        rounds = most_rounds(known["work.samples"], known["batch.initial_batch"], inner_steps)
    if not isinstance(rounds, int) or not isinstance(inner_steps, int):
        return False
    is_one = known["instances.count"] == 1 and known["model.pretrained"] is None and known["batch.test"] == "constant"
    is_in_time = known["outer.overlap"] == "none" and known["averaging.fragments"] == 1
    return is_one and is_in_time and inner_steps <= LONG_STEPS and rounds * inner_steps >= LONG_ROUNDS * LONG_STEPS


def most_rounds(samples: Any, batch: Any, inner_steps: Any) -> int | None:
    """Return the most rounds that a run of so many samples can have: a batch that grows makes fewer. None where a value is
    wrong, which validation reports."""
    if not all(isinstance(value, int) and value > 0 for value in (samples, batch, inner_steps)):
        return None
    rounds: int = ceil(samples / (batch * inner_steps))
    return rounds
