"""Shows where the seconds of hosts go, by phase and purpose, in a simulated swarm that loses hosts again and again.

A host that has sent its part waits for the last of the others, or for a failed attempt to be noticed. `Account` takes the
phases that the peers log; `table` gives the seconds of each purpose per round and host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.model.effects import Effect
from adloco_p2p.core.model.events import Event
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import Phase as PhaseLog
from adloco_p2p.core.peer.agreement_port import Agreement
from adloco_p2p.core.peer.peer import Cadence, Peer

DOWN, BETWEEN = "down", "between rounds"
LATE_SECONDS = 5.0
"""A host is late that begins its inner steps so much later than the first one."""
COMPUTES, LOST, USELESS = "computes, counted", "computes, killed", "computes, not in the average"
WAITS_LATE, WAITS_PUNCTUAL = "waits for one that began late", "waits for the slowest"
TRANSFERS, FAILS, PAUSES = "transfers", "in an attempt that fails", "pauses after one that failed"
STANDS_BY = "waits for an average of others"


@dataclass(frozen=True, slots=True)
class Stay:
    """The stay of one host in one phase, in seconds of virtual time."""

    begin: float
    end: float
    phase: str
    round: int
    next_phase: str

    def overlap(self, begin: float, end: float) -> float:
        return max(0.0, min(self.end, end) - max(self.begin, begin))


@dataclass(slots=True)
class Account:
    """The phases of all hosts."""

    changes: dict[PeerId, list[tuple[float, str, int]]] = field(default_factory=dict)
    """For each host its changes: instant, phase, round."""

    def note(self, peer: PeerId, now: float, phase: str, round: int = -1) -> None:
        phase = BETWEEN if phase == Phase.DONE else phase
        self.changes.setdefault(peer, []).append((now, phase, round))

    def peer(self, *, me: PeerId, cadence: Cadence, agreement: Agreement) -> Peer:
        """Return a peer whose phases are noted here."""
        account = self

        class Noted(Peer):
            def handle(self, event: Event, now: float) -> list[Effect]:
                effects = super().handle(event, now)
                for effect in effects:
                    if isinstance(effect, PhaseLog):
                        account.note(me, now, effect.phase, effect.round)
                return effects

        return Noted(me=me, cadence=cadence, agreement=agreement)

    def stays(self, end: float) -> dict[PeerId, list[Stay]]:
        found = {}
        for peer, changes in self.changes.items():
            following = [*changes[1:], (end, "", -1)]
            found[peer] = [
                Stay(begin, max(begin, after), phase, round, next_phase)
                for (begin, phase, round), (after, next_phase, _) in zip(changes, following, strict=True)
            ]
        return found


def table(account: Account, counted: Mapping[PeerId, set[int]], begin: float, end: float) -> dict[str, float]:
    """Return the host seconds of each purpose between two instants. `counted`: for each host the rounds whose samples count."""
    stays = account.stays(end)
    training = [stay for each in stays.values() for stay in each if stay.phase == Phase.TRAINING]
    firsts = {number: min(stay.begin for stay in training if stay.round == number) for number in {s.round for s in training}}
    seconds: dict[str, float] = {}

    def add(purpose: str, amount: float) -> None:
        seconds[purpose] = seconds.get(purpose, 0.0) + amount

    for peer, each in stays.items():
        last = {stay.round: stay for stay in each if stay.phase == Phase.TRAINING}
        before = ""
        for stay in each:
            if stay.phase == Phase.TRAINING:
                is_counted = stay is last[stay.round] and stay.round in counted.get(peer, set())
                purpose = COMPUTES if is_counted else LOST if stay.next_phase == DOWN else USELESS
                add(purpose, stay.overlap(begin, end))
            elif stay.phase == Phase.AVERAGING:
                others = [other for other in training if other.round == stay.round]
                for purpose, amount in _waits(stay, others, firsts, begin, end).items():
                    add(purpose, amount)
            elif stay.phase == Phase.RETRYING:
                add(PAUSES if before == Phase.AVERAGING else STANDS_BY, stay.overlap(begin, end))
            else:
                add(stay.phase, stay.overlap(begin, end))
            before = stay.phase
    return seconds


def _waits(stay: Stay, others: Sequence[Stay], firsts: Mapping[int, float], begin: float, end: float) -> dict[str, float]:
    """Return the parts of an attempt: the wait for the last host that completes its inner steps, then the transfer."""
    until = {False: stay.begin, True: stay.begin}
    for other in others:
        is_late = other.begin > firsts[other.round] + LATE_SECONDS
        if other.next_phase == Phase.AVERAGING and other.end <= stay.end:
            until[is_late] = max(until[is_late], other.end)
    punctual = Stay(stay.begin, until[False], "", 0, "")
    late = Stay(until[False], max(until.values()), "", 0, "")
    rest = Stay(max(until.values()), stay.end, "", 0, "")
    purpose = TRANSFERS if stay.next_phase in (Phase.COMMITTING, Phase.APPLYING) else FAILS
    return {
        WAITS_PUNCTUAL: punctual.overlap(begin, end),
        WAITS_LATE: late.overlap(begin, end),
        purpose: rest.overlap(begin, end),
    }
