"""Members that lie, or are silent, at the end of a run and while others wait for a state: scenarios of the simulated world."""

from collections.abc import Callable
from dataclasses import replace

from adloco_p2p.core.model.messages import Heartbeat, RunComplete
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.machine import Machine, Outgoing
from adloco_p2p.sim.world import Parts
from benchmarks.adversary import members
from benchmarks.adversary.arena import Result, Setting, fight
from benchmarks.adversary.members import DEAD_STATE, Sent, at_once
from benchmarks.adversary.scenario import Outcome, Scenario, judged

FIVE = Setting(rounds=8)
LIAR = 4
"""Number of the founder that lies."""
LAST_SECONDS = 330.0
"""After the last plan: the longest wait of finished peers (`PENDING_SECONDS`), and the last round."""


def claiming(state: Callable[[PeerId], Digest]) -> Outgoing:
    """It has another final state than the others, agreed by a majority, and keeps to that; of the receiver's choice."""

    def sends(machine: Machine, peer: PeerId, message: object) -> Sent:
        del machine
        lies = isinstance(message, RunComplete) and message.plan is not None
        return at_once(replace(message, state=state(peer), is_agreed=True) if lies else message)  # type: ignore[type-var]

    return sends


def never_done(machine: Machine, peer: PeerId, message: object) -> Sent:
    """It is not at the end yet, whatever it is asked, and needs the others for it."""
    del machine, peer
    return at_once(RunComplete(plan=None, is_answer=True) if isinstance(message, RunComplete) else message)


def silent_from(round: int) -> Outgoing:
    """Nothing but heartbeats from this plan on."""

    def sends(machine: Machine, peer: PeerId, message: object) -> Sent:
        del peer
        is_silent = machine.process is not None and machine.process.agreement.ledger.head.round >= round
        return () if is_silent and not isinstance(message, Heartbeat) else at_once(message)

    return sends


def done_from_the_start(machine: Machine, peer: PeerId, message: object) -> Sent:
    """It has ended each plan as the last one, with a state that nobody has."""
    del peer
    if not isinstance(message, Heartbeat) or machine.process is None:
        return at_once(message)
    plan = machine.process.agreement.consensus.slot.digest
    return at_once(message, RunComplete(plan=plan, state=DEAD_STATE, is_agreed=True))


def at_the_end(*strategies: Outgoing, restarts: bool = False) -> Callable[[int], Outcome]:
    """`restarts`: two honest hosts are killed after the last plan came, and return."""

    def play(seed: int) -> Outcome:
        counted = [0]

        def counts(machine: Machine, peer: PeerId, message: object) -> Sent:
            sent = members.together(*strategies)(machine, peer, message)
            counted[0] += [own for _, own in sent] != [message]
            return sent

        def prepare(arena) -> None:  # type: ignore[no-untyped-def]
            def look() -> None:
                if max(arena.decided, default=0) < FIVE.rounds:
                    arena.queue.after(0.5, look)
                    return
                for machine in arena.honest()[:2]:
                    arena.queue.after(1.0, machine.crash, "the attack's moment")

            arena.queue.after(0.5, look)

        result = fight(seed, FIVE, parts=Parts(strategies={LIAR: counts}), prepare=prepare if restarts else None)
        missed = "nobody was killed" if restarts and all(machine.life == 1 for machine in result.arena.honest()) else ""
        return judged(
            result, _ends(result), missed, "" if counted[0] else "nothing was sent", sent=f"{counted[0]} lies or silences"
        )

    return play


def _ends(result: Result) -> str:
    """All honest hosts end the run, soon, and with one model, which an honest device made."""
    stops = {machine.peer: machine.process for machine in result.arena.honest() if machine.process is not None}
    without = [peer[:4] for peer, process in stops.items() if process.stop is None or not process.stop.is_finished]
    if without:
        return f"ended without the model: {', '.join(without)}"
    last = max(process.stopped_at for process in stops.values()) - result.seconds
    return f"the last host ended {last:.0f} s after the last plan" if last > LAST_SECONDS else ""


ENDS: tuple[Scenario, ...] = (
    Scenario(name="an invented final state", finding="", play=at_the_end(claiming(lambda _peer: DEAD_STATE))),
    Scenario(name="a final state for each host", finding="", play=at_the_end(claiming(lambda peer: hashed("final", peer)))),
    Scenario(
        name="an invented final state and restarts",
        finding="",
        play=at_the_end(claiming(lambda _peer: DEAD_STATE), restarts=True),
    ),
    Scenario(name="never at the end of the run", finding="", play=at_the_end(never_done)),
    Scenario(name="at the end of the run from the start", finding="", play=at_the_end(done_from_the_start)),
    Scenario(name="silence from the last plan on", finding="", play=at_the_end(silent_from(FIVE.rounds))),
    Scenario(
        name="silence from the last plan on and restarts", finding="", play=at_the_end(silent_from(FIVE.rounds), restarts=True)
    ),
)
