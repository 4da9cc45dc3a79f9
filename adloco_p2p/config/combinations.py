"""Settings of a run that are valid one by one, but cannot work together or would silently do nothing. Each combination gets one
sentence, with a remedy."""

from collections.abc import Iterator
from math import ceil, sqrt

from adloco_p2p.config.input_combinations import input_combinations
from adloco_p2p.config.run_config import AVERAGING_PRESETS, OuterConfig, RunConfig
from adloco_p2p.core.model.instance_plan import MAX_HISTORY
from adloco_p2p.core.model.rules import DEFAULT_PRICE_MINUTES
from adloco_p2p.core.model.scalars import MAX_INSTANCES
from adloco_p2p.core.model.words import plural

MAX_HELDOUT_TOKENS = 1 << 28
"""The most tokens of all held-out rows together, which every host keeps in memory."""


def combinations(run: RunConfig) -> list[str]:
    """Return a sentence for every impossible combination in a run's configuration; empty where there is none."""
    return [
        *input_combinations(run),
        *_program(run),
        *_evaluation(run),
        *_optimizers(run),
        *_fragments(run),
        *_streaming(run),
        *_assessments(run),
        *_batch(run),
        *_work(run),
        *_instances(run),
        *_own_data(run),
        *_admission(run),
    ]


def _program(run: RunConfig) -> list[str]:
    """Find combinations that are impossible where a user's own program does the inner steps."""
    if not run.model.program:
        return []
    impossible = {
        "instances.count": (run.instances.count != 1, run.instances.count, "1"),
        "outer.overlap": (run.outer.overlap != "none", run.outer.overlap, "none"),
        "averaging.fragments": (run.averaging.fragments != 1, run.averaging.fragments, "1"),
        "guard.enabled": (run.guard.enabled, True, "false"),
        "averaging.assess_every": (run.averaging.assess_every > 0, run.averaging.assess_every, "0"),
        "model.pretrained": (
            run.model.pretrained is not None,
            run.model.pretrained,
            "none, the program loads weights",
        ),
        "work.samples": (run.work.samples is not None, run.work.samples, "none, with work.rounds instead"),
    }
    return [
        f"{key}: {value}, but a program does the inner steps (model.program {run.model.program}); accepted: {accepted}"
        for key, (is_wrong, value, accepted) in impossible.items()
        if is_wrong
    ]


def _evaluation(run: RunConfig) -> Iterator[str]:
    rows, length = run.evaluation.rows, run.data.sequence_length
    if rows * length > MAX_HELDOUT_TOKENS:
        yield (
            f"evaluation.rows: {rows} rows of {length} tokens; every host holds them all, {MAX_HELDOUT_TOKENS} tokens at most"
        )
    if run.evaluation.seed is not None and run.data.streaming:
        yield f"evaluation.seed: {run.evaluation.seed}; data.streaming gives the first held-out rows; leave it out"


def _optimizers(run: RunConfig) -> Iterator[str]:
    outer, averaging = run.outer, run.averaging
    if averaging.preset is not None and averaging.codec != (codec := AVERAGING_PRESETS[averaging.preset]["averaging.codec"]):
        yield (
            f"averaging.codec: {averaging.codec}, but averaging.preset {averaging.preset} means {codec};"
            " leave one of the two out"
        )
    if averaging.division == "named" and averaging.codec != "topk2":
        yield (
            f"averaging.division: named, but averaging.codec {averaging.codec} names no places;"
            " choose averaging.division all, or averaging.preset sparse"
        )
    if outer.kind == "average" and outer.learning_rate != 1:
        yield (
            f"outer.learning_rate: {outer.learning_rate} would be ignored: outer.kind average takes the mean of the models;"
            " leave it out, set it to 1, or choose sgd"
        )
    if run.inner.warmup_steps is not None and run.inner.warmup_samples is not None:
        yield (
            f"inner.warmup_steps: {run.inner.warmup_steps}, and inner.warmup_samples {run.inner.warmup_samples}: choose one,"
            " and set the other to null"
        )
    if outer.kind != "nesterov" and outer.momentum != 0:
        yield (
            f"outer.momentum: {outer.momentum} would be ignored: outer.kind is {outer.kind};"
            " leave it out, set it to 0, or choose nesterov"
        )


def _fragments(run: RunConfig) -> Iterator[str]:
    count = run.averaging.fragments
    if count == 1:
        return
    if run.work.rounds is None and run.outer.overlap != "streaming":
        yield (
            f"averaging.fragments: {count}, but the run ends by work.samples, and after its last round everything is averaged;"
            " give work.rounds instead, or set averaging.fragments to 1"
        )
    elif run.work.rounds is not None and count > run.work.rounds:
        length = plural(run.work.rounds, "round")
        yield f"averaging.fragments: {count} do not all have their turn in {length} (work.rounds); use fewer"
    if run.instances.count > 1:
        yield (
            f"averaging.fragments: {count}, but with instances.count {run.instances.count} forks and merges would lose what"
            " fragments learned since their last turn; set one of the two to 1"
        )
    if run.outer.overlap not in ("none", "streaming"):
        yield (
            f"averaging.fragments: {count}, and outer.overlap {run.outer.overlap}, which is for whole vectors;"
            " set outer.overlap to streaming or none, or averaging.fragments to 1"
        )
    if run.batch.is_tested and run.batch.statistic == "pseudo_gradient":
        yield (
            f"batch.statistic: with averaging.fragments {count} a pseudo-gradient is that of {count} rounds, not of one;"
            " set it to micro_batch, or batch.test to constant"
        )


def _streaming(run: RunConfig) -> Iterator[str]:
    outer, usual = run.outer, OuterConfig()
    if outer.overlap != "streaming":
        yield from (
            f"outer.{name}: {value} would be ignored: outer.overlap is {outer.overlap}; leave it out, or set outer.overlap to"
            " streaming"
            for name, value, default in (
                ("delay_steps", outer.delay_steps, usual.delay_steps),
                ("mixing", outer.mixing, usual.mixing),
            )
            if value != default
        )
        return
    if run.averaging.fragments == 1:
        yield (
            "outer.overlap: streaming, but averaging.fragments is 1, and only fragments are streamed;"
            " set averaging.fragments to 2 or more, or outer.overlap to forecast"
        )
    if outer.delay_steps >= run.work.inner_steps:
        yield (
            f"outer.delay_steps: {outer.delay_steps}, but a round has {run.work.inner_steps} inner steps (work.inner_steps);"
            " fewer than that are accepted"
        )


def _assessments(run: RunConfig) -> Iterator[str]:
    """Find combinations that are impossible where contributions are looked at."""
    averaging = run.averaging
    if not averaging.assess_every:
        return
    every = f"averaging.assess_every: {averaging.assess_every}"
    if run.data.streaming:
        yield (
            f"{every}, but with data.streaming no host knows which rows another one was given; set data.streaming to false,"
            " or averaging.assess_every to 0"
        )
    if averaging.fragments > 1:
        yield (
            f"{every}, but with averaging.fragments {averaging.fragments} a contribution is of several rounds, whose rows are"
            " not looked at; set one of the two to its default"
        )
    if averaging.division == "named":
        yield (
            f"{every}, but with averaging.division named no host knows the mean of the others from one contribution; set"
            " averaging.division to all, or averaging.assess_every to 0"
        )


def _batch(run: RunConfig) -> Iterator[str]:
    batch = run.batch
    if batch.initial_batch > batch.max_batch:
        yield (
            f"batch.initial_batch: {batch.initial_batch} is more than batch.max_batch, {batch.max_batch};"
            " lower it or raise the other"
        )
    if batch.window_rounds > MAX_HISTORY:
        yield f"batch.window_rounds: {batch.window_rounds}, but a plan carries at most {MAX_HISTORY} rounds"
    if batch.statistic == "micro_batch" and batch.level == "outer":
        yield (
            "batch.level: outer, but batch.statistic micro_batch measures the noise of one inner step;"
            " set batch.level to inner, or batch.statistic to pseudo_gradient"
        )
    yield from _stuck(run)
    yield from _ramp(run)


def _stuck(run: RunConfig) -> Iterator[str]:
    """The denominator contains the noise, all of it or a part, so the request is bounded whatever is measured
    (docs/mathematics.md, 4.4)."""
    batch = run.batch
    is_of_one_step = batch.statistic == "pseudo_gradient" and batch.level == "inner"
    level, part = run.work.inner_steps if is_of_one_step else 1, batch.floor_fraction
    cause, remedy = f"batch.floor_fraction {part}", "lower batch.floor_fraction"
    if batch.denominator == "naive":
        part, cause, remedy = 1.0, "batch.denominator naive", "set batch.denominator to unbiased"
    if batch.test == "norm" and part * batch.eta**2 >= level:
        yield (
            f"batch.eta: with {cause} the batch can never grow unless eta is below {sqrt(level / part):.3g}, and it is"
            f" {batch.eta}; lower it, or {remedy}"
        )


def _ramp(run: RunConfig) -> Iterator[str]:
    batch, length = run.batch, run.batch.ramp_samples
    if batch.test != "schedule":
        if length is not None:
            yield f"batch.ramp_samples: {length} would be ignored: batch.test is {batch.test}; leave it out, or choose schedule"
        return
    if batch.initial_batch == batch.max_batch:
        yield (
            f"batch.max_batch: {batch.max_batch} is batch.initial_batch, so batch.ramp {batch.ramp} would lead nowhere;"
            " raise it, or set batch.test to constant"
        )
    if length is not None and run.work.samples is not None and length > run.work.samples:
        yield (
            f"batch.ramp_samples: {length} is more than work.samples, {run.work.samples}, so the ramp would never end;"
            " lower it, or leave it out"
        )
    if batch.ramp == "seesaw":
        yield from _seesaw(run)


def _seesaw(run: RunConfig) -> Iterator[str]:
    """Find combinations that part the batch from the learning rate: it grows where the rate falls, so the two belong
    together."""
    seesaw = "but batch.ramp seesaw follows the decay of the learning rate over the run"
    if run.batch.ramp_samples is not None:
        yield f"batch.ramp_samples: {run.batch.ramp_samples}, {seesaw}; leave it out, or choose the ramp linear or doubling"
    if run.inner.schedule == "constant":
        yield f"inner.schedule: constant, {seesaw}; set it to cosine, or choose the ramp linear or doubling"
    if run.inner.batch_scaling == "none":
        yield f"inner.batch_scaling: none, {seesaw}, by its root; set it to sqrt, or choose the ramp linear or doubling"


def _work(run: RunConfig) -> list[str]:
    work, first = run.work, _first_round_samples(run)
    if work.rounds is None and work.samples is None:
        return ["work.samples, work.rounds: both null, so the run would never end; set one of them"]
    if work.rounds is not None and work.samples is not None:
        return [
            f"work.samples: {work.samples}, but work.rounds is set too, to {work.rounds}, and a run has one end;"
            " leave one of them out"
        ]
    if work.samples is not None and work.samples < first:
        return [
            f"work.samples: {work.samples} is less than the first round takes, {first}; raise it, or lower work.inner_steps"
        ]
    return []


def _first_round_samples(run: RunConfig) -> int:
    """Return the samples of the first round, over all instances that begin the run."""
    count = 1 if run.instances.start == "fork" else min(run.instances.count, MAX_INSTANCES)
    return count * run.batch.initial_batch * run.work.inner_steps


def _most_rounds(run: RunConfig) -> int:
    """Return the most rounds that the run can have, since a growing batch makes fewer; 0 where the run has no end, which
    `_work` reports."""
    if run.work.samples is None:
        return run.work.rounds or 0
    return ceil(run.work.samples / _first_round_samples(run))


def _instances(run: RunConfig) -> Iterator[str]:
    instances, merge, rounds = run.instances, run.merge, _most_rounds(run)
    exactly, length = run.work.samples is None, plural(rounds, "round")
    length = f"has {length} (work.rounds)" if exactly else f"has at most {length} (work.samples)"
    if instances.count > MAX_INSTANCES:
        yield f"instances.count: {instances.count}, but a plan holds at most {MAX_INSTANCES}"
    if instances.count == 1 or rounds == 0:
        return
    if instances.start == "fork" and instances.fork_round >= rounds:
        yield (
            f"instances.fork_round: {instances.fork_round} never comes, because the run {length};"
            " fork earlier, or set instances.count to 1"
        )
    if instances.start == "different" and run.model.pretrained is not None:
        yield "instances.start: different means random weights, but model.pretrained gives them; use fork or same"
    if merge.policy == "worst_group" and merge.group_size > instances.count:
        yield (
            f"merge.group_size: {merge.group_size} instances cannot be folded into one where there are only {instances.count}"
            " (instances.count); lower it"
        )
    if merge.policy != "none" and merge.first_round > rounds:
        yield (
            f"merge.first_round: {merge.first_round} never comes, because the run {length};"
            " lower it, or set merge.policy to none"
        )


def _own_data(run: RunConfig) -> Iterator[str]:
    """Find mistakes in the data of instances: each instance has one known data set, and each data set an instance."""
    own, count, mixture = run.instances.data, run.instances.count, run.data.mixture
    if not own:
        return
    if not mixture:
        yield (
            "instances.data: names data sets of data.mixture, which is empty; list the files of each there, with a weight,"
            " or leave instances.data out"
        )
        return
    known = ", ".join(mixture)
    yield from (
        f"instances.data: {name} is no data set of data.mixture; accepted: {known}" for name in own if name not in mixture
    )
    if len(own) != count:
        yield f"instances.data: {len(own)} data sets for {count} instances (instances.count); name one for each"
    yield from (
        f"instances.data: {name} of data.mixture is no instance's; name it, or take it out of the mixture"
        for name in mixture
        if name not in own
    )
    if run.data.heldout_path is not None:
        yield (
            f"data.heldout_path: {run.data.heldout_path}, but with instances.data each data set is evaluated by itself;"
            " leave it out, so that data.heldout_fraction of each is held out"
        )
    if run.evaluation.rows < len(mixture):
        yield f"evaluation.rows: {run.evaluation.rows} rows for {len(mixture)} data sets (instances.data); raise it to that"


def _admission(run: RunConfig) -> list[str]:
    if run.admission.kind == "work" or run.admission.price_minutes == DEFAULT_PRICE_MINUTES:
        return []
    return [
        f"admission.price_minutes: {run.admission.price_minutes:g}, but with admission.kind={run.admission.kind} no seat costs"
        " computing; set admission.kind=work, or leave it out"
    ]
