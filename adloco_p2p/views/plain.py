"""Lines for logs and pipes: one per finished round and instance, one per decision and warning. `name value` pairs in a fixed
order, two spaces between them, so that the lines read well and cut well."""

from collections.abc import Callable, Iterable, Mapping
from typing import TextIO

from adloco_p2p.views import derived, units
from adloco_p2p.views.records import Event
from adloco_p2p.views.status import Status, apply, replay

_LABEL_WIDTH = 8
"""The first word of a line is padded to this, so that the rest lines up."""


def line(status: Status, event: Event) -> str | None:
    """Return what to print of the event, or none. `status` already contains it."""
    describe = _LINES.get(event["event"])
    return None if describe is None else describe(status, event).rstrip()


class PlainView:
    """Prints the lines as events come, each at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._status = Status()
        self._joining = ""

    def start(self) -> None:
        """Nothing to prepare; there for the sake of one way to use both views."""

    def recall(self, events: Iterable[Event]) -> None:
        """Earlier events; prints nothing."""
        self._status = replay(events)

    def update(self, event: Event) -> None:
        self._status = apply(self._status, event)
        text = line(self._status, event)
        if text is not None:
            print(text, file=self._stream, flush=True)
        joining = derived.joining(self._status)
        if joining and joining != self._joining:
            print(_joined("joining", joining), file=self._stream, flush=True)
        self._joining = joining

    def stop(self) -> None:
        self._stream.flush()


# --- one function per event ------------------------------------------------------------------------------------------


def _joined(label: str, *pairs: str) -> str:
    return "  ".join([label.ljust(_LABEL_WIDTH), *pairs])


def _at(status: Status, event: Event) -> str:
    """`round 12/40`, padded to the longest; `round 12` where the number of rounds is not known."""
    if status.rounds is None:
        return f"round {event['round']}".ljust(len("round 999"))
    return f"round {event['round']}/{status.rounds}".ljust(len(f"round {status.rounds}/{status.rounds}"))


def _why(reason: str) -> str:
    return f"why: {units.one_line(reason)}"


def _started(status: Status, event: Event) -> str:
    resumed = event["resumed_round"]
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
        f"micro-batch limit {status.micro_batch_limit}",
        "from the beginning" if resumed is None else f"resumed at round {resumed}",
    )


def _round(status: Status, event: Event) -> str:
    accumulation = f" x{event['accumulation_steps']}" if event["accumulation_steps"] > 1 else ""
    return "  ".join(
        [
            _at(status, event),
            f"instance {event['instance']}",
            f"loss {units.loss(event['loss'])}".ljust(10),
            f"heldout {units.loss(event['heldout_loss'])}".ljust(13),
            f"batch {event['effective_batch']} (asked {event['requested_batch']})".ljust(22),
            f"mode {event['mode']}{accumulation}".ljust(18),
            f"hosts {len(event['hosts'])}",
            f"tokens {units.count(event['tokens'])}".ljust(12),
            units.duration(sum(event["seconds"].values())).ljust(6),
            f"eta {units.duration(derived.eta_seconds(status))}".ljust(10),
            _why(event["reason"]),
        ]
    )


def _merge(status: Status, event: Event) -> str:
    sources = units.instances(tuple(event["sources"]))
    weights = f"weights {units.weights(tuple(event['weights']))}"
    return _joined("merge", _at(status, event), f"instances {sources} -> {event['target']}", weights, _why(event["reason"]))


def _fork(status: Status, event: Event) -> str:
    targets = units.instances(tuple(event["targets"]))
    return _joined("fork", _at(status, event), f"instances {event['source']} -> {targets}")


def _probe(status: Status, event: Event) -> str:
    losses = ", ".join(units.loss(loss) for loss in event["source_losses"])
    sources = units.instances(tuple(event["sources"]))
    merged = f"merged {units.loss(event['merged_loss'])}"
    return _joined("probe", _at(status, event), f"instances {sources} -> {event['target']}", merged, f"sources {losses}")


def _average_failed(status: Status, event: Event) -> str:
    attempt = f"averaging attempt {event['attempt']} failed"
    return _joined("failed", _at(status, event), f"instance {event['instance']}", attempt, _why(event["reason"]))


def _warning(_status: Status, event: Event) -> str:
    return _joined("warning" if event["active"] else "over", f"{event['key']}: {units.one_line(event['message'])}")


def _out_of_memory(_status: Status, event: Event) -> str:
    return _joined("memory", f"instance {event['instance']}", f"micro-batch limit now {event['micro_batch_limit']}")


def _member(_status: Status, event: Event) -> str:
    return _joined("peer", units.one_line(event["peer"]), event["event"])


def _clock(_status: Status, event: Event) -> str:
    others = f"the others' {event['offset_seconds']:+.2f} s, give or take {event['uncertainty_seconds']:.2f} s"
    return _joined("clock", others, f"{len(event['peers'])} peers")


def _first_contribution(status: Status, event: Event) -> str:
    return _joined("counted", _at(status, event), f"first counted contribution after {event['seconds']:.1f} s")


def _stopping(_status: Status, event: Event) -> str:
    return _joined(event["event"], _why(event["reason"]))


def _stood_still(_status: Status, event: Event) -> str:
    return _joined("woke", f"did not run for {units.duration(event['seconds'])}: suspended, asleep, or the clock was set")


def _paused(_status: Status, event: Event) -> str:
    return _joined(event["event"], f"before round {event['round']}")


def _finished(status: Status, event: Event) -> str:
    return _joined(
        "finished",
        derived.position(status).replace("round", "rounds", 1),
        f"heldout {units.loss(event['heldout_loss'])}",
        f"perplexity {units.perplexity(event['heldout_loss'])}",
        f"samples {units.count(event['samples'])}",
        f"tokens {units.count(event['tokens'])}",
        f"sent {units.size(event['bytes_sent'])}",
        f"received {units.size(event['bytes_received'])}",
        f"in {units.duration(event['seconds'])}",
    )


_LINES: Mapping[str, Callable[[Status, Event], str]] = {
    "starting": lambda _, event: _joined("starting", event["phase"]),
    "started": _started,
    "round": _round,
    "merge": _merge,
    "fork": _fork,
    "probe": _probe,
    "average_failed": _average_failed,
    "warning": _warning,
    "out_of_memory": _out_of_memory,
    "clock": _clock,
    "first_contribution": _first_contribution,
    "joined": _member,
    "left": _member,
    "suspected": _member,
    "returned": _member,
    "stopping": _stopping,
    "pausing": _stopping,
    "paused": _paused,
    "stood_still": _stood_still,
    "resumed": _paused,
    "finished": _finished,
}
