"""Lines for logs and pipes: one per finished round and instance, one per decision and warning. They consist of `name value`
pairs in a fixed order with two spaces between them, so that they read well and cut well."""

import re
from collections.abc import Iterable
from functools import singledispatch
from typing import TextIO

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.course import AS_CONFIGURED, in_words
from adloco_p2p.core.model.scalars import float_sum
from adloco_p2p.core.model.telemetry import Log, Stamped
from adloco_p2p.views import own_part, progress, run_losses, traffic, units
from adloco_p2p.views.status import SLOW_PEER, Status
from adloco_p2p.views.status_fold import STATE_TOO_LATE, apply, replay
from adloco_p2p.views.wrapping import fitted

WAIT_SECONDS = 10.0
"""After so long a peer that waits for its work says again how far it is, then after twice as long each time."""
MAX_WAIT_SECONDS = (60.0, 600.0)
"""The longest such pause while a state arrives, and otherwise."""
_LABEL_WIDTH = 8
"""The first word of a line is padded to this width, so that the rest lines up."""


@singledispatch
def line(event: Log, status: Status) -> str | None:
    """Return what to print about the event, or None. `status` already contains it."""
    del event, status
    return None


class PlainView:
    """Prints each line at once as events come."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._status = Status()
        self._joining = ""
        self._told, self._pause_seconds = 0.0, WAIT_SECONDS
        self._is_slow = False

    def start(self) -> None:
        """Do nothing; this view needs no preparation, but has the methods of both views."""

    def recall(self, events: Iterable[Stamped]) -> None:
        """Take earlier events, without printing anything."""
        self._status = replay(events)

    def update(self, stamped: Stamped) -> None:
        self._status = apply(self._status, stamped)
        text = line(stamped.event, self._status)
        if text is not None:
            self._print(text.rstrip())
        self._say_wait(stamped.time)
        slow = self._status.warnings.get(SLOW_PEER, "")
        if slow and not self._is_slow:  # the seconds change with every round; one line is enough
            self._print(_joined("slow", units.one_line(slow)))
        self._is_slow = bool(slow)

    def _say_wait(self, now: float) -> None:
        """Print what this peer waits for, when that changes, and now and then how far it is."""
        status = self._status
        joining, arriving = own_part.joining(status), traffic.download_words(status)
        kind = own_part.waiting_kind(status) if joining else "state"
        if joining and _without_numbers(joining) != _without_numbers(self._joining):  # rounds pass; one line will do
            self._print(_joined(kind, joining))
            self._told, self._pause_seconds = now, WAIT_SECONDS
        elif not arriving and not (joining and kind == "joining"):  # a keeper, a bench and a ban are no wait
            self._told, self._pause_seconds = now, WAIT_SECONDS
        elif now - self._told >= self._pause_seconds:
            where = f"{progress.position(status)} is under way" if status.current_plan is not None else ""
            self._print(_joined(kind, *filter(None, [joining, arriving or where])))
            longest = MAX_WAIT_SECONDS[0 if arriving else 1]
            self._told, self._pause_seconds = now, min(2 * self._pause_seconds, longest)
        self._joining = joining

    def stop(self) -> None:
        self._stream.flush()

    def _print(self, text: str) -> None:
        print(fitted(text, self._stream), file=self._stream, flush=True)


# --- one function per event ------------------------------------------------------------------------------------------


def _without_numbers(words: str) -> str:
    return re.sub(r"\d+", "", words)


def _joined(label: str, *pairs: str) -> str:
    return "  ".join([label.ljust(_LABEL_WIDTH), *pairs])


def _at(status: Status, round: int) -> str:
    """Return `round 12/40`, padded to the longest; `round 12` where the number of rounds is not known."""
    if status.rounds is None:
        return f"round {round}".ljust(len("round 999"))
    return f"round {round}/{status.rounds}".ljust(len(f"round {status.rounds}/{status.rounds}"))


def _why(reason: str) -> str:
    return f"why: {units.one_line(reason)}"


@line.register
def _starting(event: telemetry.Starting, _status: Status) -> str:
    return _joined("starting", event.phase)


@line.register
def _started(event: telemetry.Started, status: Status) -> str:
    return _joined(
        "started",
        units.one_line(status.name),
        f"run {units.short_digest(status.run)}",
        f"peer {units.short_peer(status.peer)}",
        f"mode {status.mode}",
        f"rounds {status.rounds}" if status.samples is None else f"samples {units.count(status.samples)}",
        f"inner steps {status.inner_steps}",
        f"parameters {units.count(status.parameters)}",
        f"device {status.device}",
        *([f"micro-batch limit {status.micro_batch_limit}"] if status.micro_batch_limit else []),
        "from the beginning" if event.resumed_round is None else f"resumed at round {event.resumed_round}",
    )


@line.register
def _round(event: telemetry.Round, status: Status) -> str:
    accumulation = f" x{event.accumulation_steps}" if event.accumulation_steps > 1 else ""
    return "  ".join(
        [
            _at(status, event.round),
            f"instance {event.instance}",
            f"loss {units.loss(event.loss)}".ljust(10),
            f"heldout {units.loss(event.heldout_loss)}".ljust(13),
            *_by_data(event, status),
            f"batch {event.effective_batch} (asked {event.requested_batch})".ljust(22),
            f"mode {event.mode}{accumulation}".ljust(18),
            f"hosts {len(event.hosts)}",
            f"tokens {units.count(event.tokens)}".ljust(12),
            units.duration(float_sum(event.seconds.values())).ljust(6),
            f"eta {units.duration(progress.eta_seconds(status))}".ljust(10),
            _why(event.reason),
        ]
    )


def _by_data(event: telemetry.Round | telemetry.Finished, status: Status) -> list[str]:
    """Return the held-out loss on each data set, where instances have data of their own."""
    losses = zip(status.data_sets, event.heldout_losses, strict=False)
    text = ", ".join(f"{units.one_line(name)} {units.loss(loss)}" for name, loss in losses)
    return [f"on {text}"] if text else []


@line.register
def _plan(event: telemetry.Plan, status: Status) -> str | None:
    """Return a line only where signers ordered something new, or another protocol is to come or has come."""
    before = next((plan for plan in reversed(status.plans) if plan.round < event.round), None)
    if event.course != (before.course if before is not None else AS_CONFIGURED):
        words = in_words(event.course, event.round) or "all orders are withdrawn"
        return _joined("signers", _at(status, event.round), words)
    if before is None or (event.protocol, event.upgrade_round) == (before.protocol, before.upgrade_round):
        return None
    words = own_part.upgrade_words(event) or f"the run follows protocol {event.protocol}"
    return _joined("protocol", _at(status, event.round), words)


@line.register
def _merge(event: telemetry.Merge, status: Status) -> str:
    instances = f"instances {units.instances(event.sources)} -> {event.target}"
    return _joined("merge", _at(status, event.round), instances, f"weights {units.weights(event.weights)}", _why(event.reason))


@line.register
def _fork(event: telemetry.Fork, status: Status) -> str:
    return _joined("fork", _at(status, event.round), f"instances {event.source} -> {units.instances(event.targets)}")


@line.register
def _probe(event: telemetry.Probe, status: Status) -> str:
    instances = f"instances {units.instances(event.sources)} -> {event.target}"
    losses = ", ".join(units.loss(loss) for loss in event.source_losses)
    return _joined("probe", _at(status, event.round), instances, f"merged {units.loss(event.merged_loss)}", f"sources {losses}")


@line.register
def _task_scores(event: telemetry.TaskScores, status: Status) -> str:
    return _joined("tasks", _at(status, event.round), f"claimed by {units.one_line(event.peer)}", *run_losses.task_words(event))


@line.register
def _looked_at(event: telemetry.LookedAt, status: Status) -> str:
    found = f"score {event.score:.1f}" if event.score is not None and not event.reason else _why(event.reason)
    return _joined("looked", _at(status, event.round), f"at the work of {units.one_line(event.peer)}", found)


@line.register
def _average_failed(event: telemetry.AverageFailed, status: Status) -> str:
    attempt = f"{units.attempt_words(event.attempt)} failed"
    return _joined("failed", _at(status, event.round), f"instance {event.instance}", attempt, _why(event.reason))


@line.register
def _average_retried(event: telemetry.AverageRetried, status: Status) -> str:
    attempt, missing = units.attempt_words(event.attempt), " ".join(units.one_line(peer) for peer in event.without)
    what = f"of what {missing} had to reduce" if event.completes else f"without {missing}"
    pairs = [_at(status, event.round), f"instance {event.instance}", attempt, *([what] if missing else [])]
    return _joined("again", *pairs)


@line.register
def _round_void(event: telemetry.RoundVoid, status: Status) -> str:
    why = "no average got a majority; the work goes into the next round"
    return _joined("void", _at(status, event.round), f"instance {event.instance}", "no outer step", why)


@line.register
def _fast_forwarded(event: telemetry.FastForwarded, status: Status) -> str | None:
    if not status.results:  # a newcomer begins with the state of others
        is_late = status.counts[event.event] > 1 and status.is_seated
        return _joined("too late", _at(status, event.to_round), STATE_TOO_LATE) if is_late else None
    return _joined("behind", _at(status, event.to_round), f"goes on here instead of at {event.from_round}, with others' state")


@line.register
def _warning(event: telemetry.Warning, _status: Status) -> str:
    return _joined("warning" if event.active else "ended", f"{event.key}: {units.one_line(event.message)}")


@line.register
def _out_of_memory(event: telemetry.OutOfMemory, _status: Status) -> str:
    return _joined("memory", f"instance {event.instance}", f"micro-batch limit now {event.micro_batch_limit}")


@line.register
def _member(event: telemetry.Joined | telemetry.Left | telemetry.Suspected | telemetry.Returned, _status: Status) -> str:
    return _joined("peer", units.one_line(event.peer), event.event)


@line.register
def _ruled(event: telemetry.Ruled, status: Status) -> str:
    about, why = units.one_line(event.subject), _why(event.reason) if event.reason else ""
    return _joined("ruling", *filter(None, [_at(status, event.round), event.action, about, f"by {event.by}", why]))


@line.register
def _refused(event: telemetry.Refused, _status: Status) -> str:
    return _joined("refused", f"messages {event.count}", f"by peer {units.one_line(event.peer)}", _why(event.reason))


@line.register
def _clock(event: telemetry.Clock, _status: Status) -> str:
    others = f"the others' {event.offset_seconds:+.2f} s, give or take {event.uncertainty_seconds:.2f} s"
    return _joined("clock", others, units.plural(len(event.peers), "peer"))


@line.register
def _sample_text(event: telemetry.SampleText, status: Status) -> str:
    return _joined("sample", _at(status, event.round), f"instance {event.instance}", units.one_line(event.prompt + event.text))


@line.register
def _first_contribution(event: telemetry.FirstContribution, status: Status) -> str:
    return _joined("counted", _at(status, event.round), f"first counted contribution after {event.seconds:.1f} s")


@line.register
def _proving(event: telemetry.Proving, _status: Status) -> str:
    if event.is_over:
        return _joined("seat", f"paid with {units.count(event.attempts)} attempts in {units.duration(event.seconds)}")
    return _joined("seat", own_part.proving_words(event))


@line.register
def _stopping(event: telemetry.Stopping | telemetry.Pausing, _status: Status) -> str:
    return _joined(event.event, _why(event.reason))


@line.register
def _stood_still(event: telemetry.StoodStill, _status: Status) -> str:
    return _joined("woke", f"did not run for {units.duration(event.seconds)}: suspended, asleep, or the clock was set")


@line.register
def _paused(event: telemetry.Paused | telemetry.Resumed, _status: Status) -> str:
    return _joined(event.event, f"before round {event.round}")


@line.register
def _stopped(event: telemetry.Stopped, _status: Status) -> str | None:
    return _joined("finished", units.one_line(event.reason)) if event.is_finished else None


@line.register
def _finished(event: telemetry.Finished, status: Status) -> str:
    """Report that the last plan is carried out. Whether the model is that of the others is not known yet."""
    return _joined(
        "trained",
        progress.position(status).replace("round", "rounds", 1),
        f"heldout {units.loss(event.heldout_loss)}",
        *_by_data(event, status),
        f"perplexity {units.perplexity(event.heldout_loss)}",
        f"samples {units.count(event.samples)}",
        f"tokens {units.count(event.tokens)}",
        f"sent {units.size(event.bytes_sent)}",
        f"received {units.size(event.bytes_received)}",
        f"in {units.duration(event.seconds)}",
    )
