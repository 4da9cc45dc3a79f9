"""The simulated world of `adloco_p2p/sim/world.py` with devices that train and links of a stated profile.

Peers, agreement, journals and fetched states are those of every other simulated swarm; `clock.py` gives the times. By default
messages take no time and nothing fails, so a run lasts as long as its computing and its transfers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import torch

from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.core.peer.peer import Cadence
from adloco_p2p.numerics.batch import Feed
from adloco_p2p.sim.device import DeviceTraits
from adloco_p2p.sim.event_queue import EventQueue
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.world import Parts
from adloco_p2p.sim.world import World as Swarm
from benchmarks.method.device import Setting, State, TorchDevice
from benchmarks.method.links import ProfileLinks
from benchmarks.method.mutual_merges import with_mutual_merges
from benchmarks.method.steps import GrowingSteps

CALM = Faults(delay_seconds=(0.0, 0.0), skew_seconds=0.0, uplink_bytes_per_second=float("inf"), faults_end_at=0.0)
LONG = 1e9
"""Seconds, longer than any run."""
PATIENT = Timing(heartbeat_seconds=LONG, lease_seconds=LONG, attempt_seconds=LONG, grace_seconds=LONG, straggler_seconds=LONG)
"""A timing for a world where nobody dies and nobody is watched: plans wait for all reports."""
ALL_REACHED = 16
"""The most peers that gossip surely reaches without heartbeats, which fetch what it missed."""
CROWDED = replace(PATIENT, heartbeat_seconds=5.0)
"""The timing of more peers."""

OnApplied = Callable[["World", RoundPlan, InstanceId, torch.Tensor], None]
"""Called once per instance and round with the outer parameters [P] that all its hosts now have."""


class World:
    """A simulated swarm that trains; `run()` trains to the end of the run."""

    def __init__(
        self, setting: Setting, feed: Feed, *, on_applied: OnApplied, faults: Faults = CALM, timing: Timing = PATIENT
    ) -> None:
        """`faults`: by default none, and averages wait however long they take. With faults, averages have the deadlines of
        production, and `timing` must let peers notice the faults."""
        run, count = setting.run, len(setting.speeds)
        self.setting = setting
        self.plans: dict[int, RoundPlan] = {}
        self._rule = GrowingSteps(rules=run.rules, exponent=setting.steps_exponent, most=setting.most_steps)
        self._feed = feed
        self._has_faults = faults is not CALM
        self._on_applied = on_applied
        self._applied: dict[tuple[int, InstanceId], Digest] = {}
        self._places = {name_of(place): place for place in range(count)}
        self._ended_at = 0.0
        """When the newest outer step or evaluation ended."""
        self._computing_seconds = 0.0
        self.swarm = Swarm(
            run.seed,
            peers=count,
            rounds=0,  # the rules say when the run ends
            faults=faults,
            timing=timing,
            rules=run.rules,
            parts=Parts(
                device=self._make_device,
                capacity=Capacity(
                    samples_per_second=0.0,
                    micro_batch_limit=setting.micro_batch_limit,
                    max_instances=setting.max_instances,
                ),
                links=self._make_links,
                rule=self._decide,
                cadence=Cadence(
                    work=run.work,
                    evaluation_period=0,
                    checkpoint_period=1 if self._has_faults else 1 << 30,
                    is_delayed=run.outer.overlap != "none",
                    state_bytes=round(setting.profile.state_bytes),
                ),
            ),
        )
        self.swarm.limit_seconds = LONG
        self.plans[0] = self.swarm.genesis

    def run(self) -> None:
        """Train to the end of the run. Raises Violation where the swarm breaks a promise."""
        self.swarm.run()

    @property
    def seconds(self) -> float:
        """The seconds of the run."""
        return self._ended_at

    @property
    def utilisation(self) -> float:
        """The part of that time in which a peer did inner steps, on average."""
        return self._computing_seconds / (len(self._places) * self._ended_at)

    @property
    def bytes_per_peer(self) -> float:
        """The bytes that a peer sent, on average: pseudo-gradients in float32 and fetched states; messages are not counted."""
        return self._links.bytes_per_peer()

    def averaged(self, round: int) -> tuple[float, float]:
        """Return when the averages of the round were there, in seconds, and the bytes that a peer had sent by then."""
        at = self._links.averaged_at[round]
        return at, self._links.bytes_per_peer(before=at)

    # --- parts of the swarm ------------------------------------------------------------------------------------------

    def _make_links(self, queue: EventQueue) -> ProfileLinks:
        self._links = ProfileLinks(self.setting.profile, queue, places=self._places, have_deadlines=self._has_faults)
        return self._links

    def _make_device(self, traits: DeviceTraits, random: Random) -> TorchDevice:
        del random
        place = self._places.setdefault(traits.peer, len(self._places))
        device = TorchDevice(
            self.setting,
            self._feed,
            traits.peer,
            speed=self.setting.speeds[place] if place < len(self.setting.speeds) else 1.0,
            clock=lambda: self.swarm.queue.now,
            on_trained=self._trained,
            on_outer=self._outer,
        )
        self._links.num_parameters = device.num_parameters
        return device

    def _decide(self, parent: RoundPlan, reports: Sequence[Report], change: RosterChange) -> RoundPlan:
        plan = with_mutual_merges(self._rule.decide(parent, reports, change), every=self.setting.merged_every)
        self.plans[plan.round] = plan
        return plan

    # --- what devices did --------------------------------------------------------------------------------------------

    def _trained(self, seconds: float) -> None:
        self._computing_seconds += seconds

    def _outer(self, number: int, instance: InstanceId, state: State) -> None:
        """Measure the first of an instance's hosts that gets there; the others must have the same bytes."""
        self._ended_at = self.swarm.time
        if (number, instance) not in self._applied:
            self._applied[number, instance] = state.digest
            self._on_applied(self, self.plans[number], instance, state.outer)
        assert self._applied[number, instance] == state.digest, (
            f"instance {instance} differs between hosts after round {number}"
        )
