"""Members that lie, or are silent, at the end of a run and while others wait for a state: scenarios of the simulated world."""

from collections.abc import Callable
from dataclasses import replace

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.model.messages import AverageDigest, FinalClaim, Heartbeat, RunComplete
from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.peer.completion import COMPLETION_SECONDS
from adloco_p2p.sim.adversary import Liar, Outgoing, Sent, at_once
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.identities import name_of, sign, signed_by
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.world import small_rules
from benchmarks.adversary import members
from benchmarks.adversary.arena import Arena, Result, Setting, fight
from benchmarks.adversary.members import DEAD_STATE
from benchmarks.adversary.scenario import Check, Outcome, Play, Scenario, judged, played

FIVE = Setting(rounds=8)
LIAR = 4
"""The number of the founder that lies."""
LAST_SECONDS = 330.0
"""The most seconds after the last plan: the longest wait of finished peers (`PENDING_SECONDS`), and the last round."""


def final_message(machine: Machine, plan: Digest, state: Digest | None, counted: Digest | None = None) -> RunComplete:
    """Return the member's signed claim that it came to this state, and that a majority agreed to it."""
    claim = signed_by(machine.peer, FinalClaim(peer=machine.peer, plan=plan, state=state, is_agreed=True))
    return RunComplete(plan=plan, state=state, claims=(claim,), counted=counted)


def claims(state: Callable[[PeerId], Digest]) -> Outgoing:
    """A strategy: the member claims, and keeps claiming, a final state of its own with a majority's agreement. The state may
    differ by receiver. By its own word it counts the same claims as each receiver."""

    def sends(machine: Machine, peer: PeerId, message: object) -> Sent:
        if not isinstance(message, RunComplete) or message.plan is None:
            return at_once(message)
        last = _last_of(machine, peer)
        lie = final_message(machine, message.plan, state(peer), None if last is None else last.counted)
        return at_once(replace(lie, is_answer=message.is_answer))

    return sends


def _last_of(machine: Machine, peer: PeerId) -> RunComplete | None:
    assert machine.process is not None
    return machine.process.peer._finishing._completion._ended.get(peer)


def never_done(_machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Never be at the end, whatever the member is asked, and need the others for it."""
    return at_once(RunComplete(plan=None, is_answer=True) if isinstance(message, RunComplete) else message)


def silent_from(round: int) -> Outgoing:
    """A strategy: send nothing but heartbeats from this plan on."""

    def sends(machine: Machine, _peer: PeerId, message: object) -> Sent:
        is_silent = machine.process is not None and machine.process.agreement.ledger.head.round >= round
        return () if is_silent and not isinstance(message, Heartbeat) else at_once(message)

    return sends


@members.with_heartbeats
def done_from_the_start(machine: Machine, agreement: GossipAgreement, _peer: PeerId) -> Sent:
    """Claim to have ended each plan as the last one, with a state that nobody has."""
    return at_once(final_message(machine, agreement.consensus.slot.digest, DEAD_STATE))


class TwoFaces:
    """A liar that returns one average of the last round to half of the others and another one to the rest, votes for both, and
    then claims to have come to the state of each receiver. `is_late`: the second half gets its average only after a while.
    `withholds`: the liar is done at once, and claims nothing until the time of the others is nearly over."""

    def __init__(self, last_round: int, *, is_late: bool, withholds: bool) -> None:
        self.machine: Machine | None = None
        self.num_votes = 0
        self._last_round = last_round
        self._is_late = is_late
        self._withholds = withholds
        self._done: set[PeerId] = set()
        self._handed: dict[PeerId, object] = {}
        self._own_vote: AverageDigest | None = None

    def returned(self, host: PeerId, average: object) -> object:
        assert self.machine is not None
        process = self.machine.process
        if process is None or process.peer._state.opened < self._last_round:
            return average
        return self._handed.setdefault(host, hashed("one" if self._half(host) else "other", average))

    def __call__(self, machine: Machine, peer: PeerId, message: object) -> Sent:
        if isinstance(message, AverageDigest) and message.round == self._last_round and not message.is_void:
            self._own_vote = message
            return at_once(self._vote(machine, peer, message)) if peer in self._handed else ()
        if isinstance(message, Heartbeat) and self._own_vote is not None and peer in self._handed:
            return at_once(message, self._vote(machine, peer, self._own_vote))
        if isinstance(message, RunComplete) and message.plan is not None:
            last = _last_of(machine, peer)
            if last is None or last.plan != message.plan or (self._is_late and self._half(peer) and not message.is_answer):
                return ()
            lie = replace(final_message(machine, message.plan, last.state, last.counted), is_answer=message.is_answer)
            if not self._withholds:
                return at_once(lie)
            bare, is_first = replace(lie, claims=(), counted=DEAD_STATE), peer not in self._done
            self._done.add(peer)
            return (*at_once(bare), *(((COMPLETION_SECONDS - 1.5, lie),) if is_first else ()))
        return at_once(message)

    def _vote(self, machine: Machine, peer: PeerId, message: AverageDigest) -> AverageDigest:
        assert machine.process is not None
        plan = members.plan_of(machine, message.round)
        assert plan is not None
        vote = replace(message, digest=machine.process.device.average_digest(self._handed[peer]), backers=())
        self.num_votes += 1
        return replace(vote, signature=sign(machine.peer, vote.payload(plan, machine.peer)))

    @staticmethod
    def _half(host: PeerId) -> bool:
        return host in (name_of(0), name_of(1))


ONE_STATE = "the hosts came to one state"
WORLDS_TRIED = 16
"""Worlds that are tried; two of five split the hosts."""
MISSED = Outcome(sent="nothing", happened=f"{ONE_STATE} in {WORLDS_TRIED} worlds", has_passed=False)


def with_two_faces(*, is_late: bool = False, withholds: bool = False) -> Play:
    setting = replace(
        FIVE, rules=replace(small_rules(5, FIVE.rounds), instances=InstanceRules(count=1, start="same")), may_lose_model=True
    )

    def tried(seed: int) -> Outcome:
        faces = TwoFaces(setting.rounds - 1, is_late=is_late, withholds=withholds)

        def prepare(arena: Arena) -> None:
            faces.machine = arena.machines[name_of(LIAR)]

        result = fight(seed, setting, liars={LIAR: Liar(sends=faces, hands_out=faces.returned)}, prepare=prepare)
        missed = "" if len(set(_finals(result).values())) > 1 else ONE_STATE
        return judged(result, _one_model(result), missed, sent=f"{faces.num_votes} votes for two averages")

    def play(seed: int) -> Outcome:
        """Try one world after another, because in some of them the liar reduces nothing in the last round."""
        outcomes = (tried(seed + number) for number in range(WORLDS_TRIED))
        return next((outcome for outcome in outcomes if ONE_STATE not in outcome.happened), MISSED)

    return play


def _finals(result: Result) -> dict[PeerId, object]:
    """Return the final states that honest hosts have on their disks."""
    found: dict[PeerId, object] = {}
    for machine in result.arena.honest():
        durable = machine.disk.durable
        if durable is not None and durable.held:
            found[machine.peer] = machine.disk.states[durable.round, durable.held[0]]
    return found


def _one_model(result: Result) -> str:
    """Check that no two honest hosts end the run as finished with different models."""
    finals = _finals(result)
    processes = [machine.process for machine in result.arena.honest() if machine.process is not None]
    models = {finals[process.me] for process in processes if process.stop is not None and process.stop.is_finished}
    return f"{len(models)} models end the run as finished" if len(models) > 1 else ""


def at_the_end(sends: Outgoing, *checks: Check, prepare: Callable[[Arena], None] = lambda _: None) -> Play:
    return played(FIVE, {LIAR: Liar(sends=sends)}, _ends, *checks, prepare=prepare, is_idle_wrong=True)


def with_restarts(sends: Outgoing) -> Play:
    """Kill two honest hosts after the last plan came, and let them return."""

    def prepare(arena: Arena) -> None:
        def look() -> None:
            if max(arena.decided, default=0) < FIVE.rounds:
                arena.queue.after(0.5, look)
                return
            for machine in arena.honest()[:2]:
                arena.queue.after(1.0, machine.crash, "the attack's moment")

        arena.queue.after(0.5, look)

    def were_killed(result: Result) -> str:
        return "nobody was killed" if all(machine.life == 1 for machine in result.arena.honest()) else ""

    return at_the_end(sends, were_killed, prepare=prepare)


def _ends(result: Result) -> str:
    """Check that all honest hosts end the run soon, and with one model, which an honest device made."""
    stops = {machine.peer: machine.process for machine in result.arena.honest() if machine.process is not None}
    without = [peer[:4] for peer, process in stops.items() if process.stop is None or not process.stop.is_finished]
    if without:
        return f"ended without the model: {', '.join(without)}"
    last = max(process.stopped_at for process in stops.values()) - result.seconds
    return f"the last host ended {last:.0f} s after the last plan" if last > LAST_SECONDS else ""


ENDS: tuple[Scenario, ...] = (
    Scenario("an invented final state", at_the_end(claims(lambda _peer: DEAD_STATE))),
    Scenario("a final state for each host", at_the_end(claims(lambda peer: hashed("final", peer)))),
    Scenario("an invented final state and restarts", with_restarts(claims(lambda _peer: DEAD_STATE))),
    Scenario("two averages of the last round, and both states", with_two_faces()),
    Scenario("the same, the second state late", with_two_faces(is_late=True)),
    Scenario("the same, both at the end of the time", with_two_faces(withholds=True)),
    Scenario("never at the end of the run", at_the_end(never_done)),
    Scenario("at the end of the run from the start", at_the_end(done_from_the_start)),
    Scenario("silence from the last plan on", at_the_end(silent_from(FIVE.rounds))),
    Scenario("silence from the last plan on and restarts", with_restarts(silent_from(FIVE.rounds))),
)
