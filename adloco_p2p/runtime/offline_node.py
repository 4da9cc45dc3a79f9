"""The node of a peer that is alone: the same loop and the same plans as in a swarm, without a network."""

from collections.abc import Sequence

from adloco_p2p.core.agreement.fixed_roster import FixedRosterAgreement
from adloco_p2p.core.model.effects import Stop
from adloco_p2p.core.model.events import Started
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.peer.peer import Peer
from adloco_p2p.core.planning.round_plan import next_plan
from adloco_p2p.runtime.adapters.metrics_endpoint import node_endpoint
from adloco_p2p.runtime.node.background import in_background
from adloco_p2p.runtime.node.loop import Node, Ports
from adloco_p2p.runtime.services import LocalPeer, control_server, live_figures, shown
from adloco_p2p.swarm.in_memory import MemorySwarm


class NothingToJournal:
    """The journal of a peer that is alone, which stays empty: there is no agreement to remember, and checkpoints suffice."""

    def append(self, record: object) -> None:
        raise AssertionError(f"a peer alone journals nothing: {record}")


async def train_alone(local: LocalPeer) -> Stop:
    """Train the run to its end, or until the user stops it."""
    rules = local.run.rules

    def decide(plan: RoundPlan, reports: Sequence[Report]) -> RoundPlan:
        return next_plan(plan, reports, rules)

    if local.durable is None:
        local.event_log.rewind(0)  # an earlier process may have ended before the first checkpoint; its rounds are repeated
    durable = local.durable if local.durable is not None else local.begin()
    averaging = local.run.averaging
    swarm = MemorySwarm(codec=averaging.codec, aggregation=averaging.aggregation, division=averaging.division)
    port = swarm.port(local.me)
    node = Node(
        peer=Peer(me=local.me, cadence=local.cadence, agreement=FixedRosterAgreement(decide=decide)),
        ports=Ports(
            engine=local.engine,
            checkpoints=local.checkpoints,
            averaging=port,
            messenger=port,
            states=port,
            journal=NothingToJournal(),
            events=local.sink,
            scorer=local.scorer,
        ),
    )
    services = (control_server(node, local, None), node_endpoint(local.embedding.config, local.view))
    async with shown(local, node, services):
        local.embedding.workdir.enter(None)
        with in_background(node, live_figures(local, None)):
            return await node.run(Started(durable=durable, capacity=local.capacity))
