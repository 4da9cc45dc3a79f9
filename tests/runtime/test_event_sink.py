"""What goes over the network, told after every finished round, and never twice."""

from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.model.telemetry import Checkpoint, Finished, Log, Round, Stamped, Traffic
from adloco_p2p.runtime.node.event_sink import CountingSink, Sink
from adloco_p2p.swarm.transport import traffic as meters
from tests.views.synthetic import events, stamped


class Kept:
    def __init__(self) -> None:
        self.events: list[Stamped] = []

    def append(self, stamped: Stamped) -> None:
        self.events.append(stamped)

    def start(self) -> None: ...

    def recall(self, events: object) -> None: ...

    def update(self, stamped: Stamped) -> None: ...

    def stop(self) -> None: ...


def ended(round: int, instance: int = 0) -> Log:
    made = next(event for event in events() if event["event"] == "round")
    event = stamped({**made, "round": round, "instance": instance}).event
    assert isinstance(event, Round) and event.instance == InstanceId(instance)
    return event


def test_traffic_is_counted_once_and_by_kind() -> None:
    kept, traffic = Kept(), meters.Traffic()
    traffic.gossip.sent_bytes = 9  # before the first round, as in joining
    sink = CountingSink(Sink(log=kept, view=kept), traffic.totals)
    sink.write(Checkpoint(round=0))
    sink.write(ended(0))
    traffic.averaging.sent_bytes, traffic.averaging.received_bytes = 100, 120
    sink.write(ended(1))
    sink.write(ended(1, instance=1))  # nothing was sent since
    traffic.state.received_bytes += 5
    sink.write(Finished(round=2, heldout_loss=None, samples=0, tokens=0, bytes_sent=0, bytes_received=0, seconds=1.0))
    nothing = {"averaging": 0, "gossip": 0, "state": 0}
    assert [stamped.event for stamped in kept.events if isinstance(stamped.event, Traffic)] == [
        Traffic(round=0, sent={**nothing, "gossip": 9}, received=nothing),
        Traffic(round=1, sent={**nothing, "averaging": 100}, received={**nothing, "averaging": 120}),
        Traffic(round=2, sent=nothing, received={**nothing, "state": 5}),
    ]
