"""What goes over the network, told after every finished round, and never twice."""

from typing import Any

from adloco_p2p.runtime.node.event_sink import CountingSink, Sink
from adloco_p2p.swarm.transport.traffic import Traffic


class Kept:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def append(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def start(self) -> None: ...

    def recall(self, events: object) -> None: ...

    def update(self, event: dict[str, Any]) -> None: ...

    def stop(self) -> None: ...


def test_traffic_is_told_once_and_by_kind() -> None:
    kept, traffic = Kept(), Traffic()
    traffic.gossip.sent_bytes = 9  # before the first round, as in joining
    sink = CountingSink(Sink(log=kept, view=kept), traffic.totals)
    sink.write("plan", {"round": 0})
    sink.write("round", {"round": 0})
    traffic.averaging.sent_bytes, traffic.averaging.received_bytes = 100, 120
    sink.write("round", {"round": 1})
    sink.write("round", {"round": 1})  # of another instance; nothing was sent since
    traffic.state.received_bytes += 5
    sink.write("finished", {})
    told = [{key: event[key] for key in ("round", "sent", "received")} for event in kept.events if event["event"] == "traffic"]
    nothing = {"averaging": 0, "gossip": 0, "state": 0}
    assert told == [
        {"round": 0, "sent": {**nothing, "gossip": 9}, "received": nothing},
        {"round": 1, "sent": {**nothing, "averaging": 100}, "received": {**nothing, "averaging": 120}},
        {"round": 1, "sent": nothing, "received": {**nothing, "state": 5}},
    ]
