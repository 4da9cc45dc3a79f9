"""Attacks that were found by reading the code after the review, most of which succeeded once: scenarios of the simulated world,
and of the classes that they attack."""

import base64
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Literal

from adloco_p2p.core.agreement.entry_donors import MAX_REMEMBERED
from adloco_p2p.core.agreement.ledger_sync import LedgerExchange
from adloco_p2p.core.ledger.desk import Desk
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.effects import FetchState
from adloco_p2p.core.model.events import Commanded, StateServed
from adloco_p2p.core.model.hash_tree import leaf_hash, shard_hash
from adloco_p2p.core.model.ledger_entry import (
    Head,
    LedgerEntry,
    Pledge,
    ProvenSlice,
    Statement,
    Value,
    WrongSum,
    inputs_digest,
    receipt_content,
)
from adloco_p2p.core.model.messages import Heartbeat
from adloco_p2p.core.model.plan import REPORT_LAG
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.placement import LONGEST_FACTOR
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.sim.adversary import Sent, at_once
from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import short, signed_by, verify
from adloco_p2p.sim.links import STATE_BYTES
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.state_fetches import StateFetches
from adloco_p2p.sim.synthetic_reports import CAPACITY
from adloco_p2p.sim.world import Parts, World, rules_of_one, small_rules
from adloco_p2p.swarm.p2p.identity import Identity, is_signed, signature
from adloco_p2p.swarm.transfer.chunk_server import MAX_DOWNLOADS, TURN_SECONDS, Blob, ChunkServer
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.log_limiter import PERIOD_SECONDS, LogLimiter
from adloco_p2p.swarm.transport.pieces import MAX_PAYLOAD_BYTES
from benchmarks.adversary import members
from benchmarks.adversary.arena import ROUND_SECONDS, Arena, Result, Setting
from benchmarks.adversary.scenario import Outcome, Scenario, by_member, by_reports
from benchmarks.adversary.silence import SEVEN

# --- evidence --------------------------------------------------------------------------------------------------------

FLOAT32, TOPK2 = 1, 9
"""Codes of codecs."""


def evidence_about_itself(machine: Machine, round: int, plan: Digest) -> WrongSum:
    """Return evidence that the member's own receipt provides: it returned a mean in a codec in which no mean is returned."""
    sent = bytes(8)
    chunk = b"\2\0\0\0" + bytes(4) + b"\xff" * 8 + bytes(16 + 40 + 16)  # two values of `topk2`
    root = Digest(shard_hash(machine.peer, leaf_hash(0, sent)).hex())
    inputs = inputs_digest(FLOAT32, TOPK2, (root,), (1.0,))
    content = receipt_content(inputs, leaf_hash(0, chunk))
    receipt = Pledge(kind="reduction", peer=machine.peer, plan=plan, round=round, key=plan, content=content, signature="")
    return WrongSum(
        receipt=signed_by(machine.peer, receipt),
        sent_codec=FLOAT32,
        mean_codec=TOPK2,
        roots=(root,),
        coefficients=(1.0,),
        first=0,
        inputs=(ProvenSlice(data=base64.b64encode(sent).decode("ascii"), to_shard=""),),
        result=ProvenSlice(data=base64.b64encode(chunk).decode("ascii"), to_shard=""),
    )


def accuses_itself(machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Send evidence against the member itself with every heartbeat."""
    if not isinstance(message, Heartbeat) or machine.process is None:
        return at_once(message)
    ledger = machine.process.agreement.ledger
    evidence = evidence_about_itself(machine, ledger.plans[-1].round, ledger.digests[-1])
    return at_once(replace(message, statements=(evidence,)))


# --- signers' orders -------------------------------------------------------------------------------------------------


def respelled_order(seed: int) -> Outcome:
    """A signer stops a run and resumes it. Then a stranger sends the old order again, with its signature in capitals."""
    author = Identity.from_seed(Random(seed).randbytes(32))
    run = Digest(hashed(seed))
    plan = genesis(run, [(author.peer_id, CAPACITY)], small_rules(1, 8), signers=[author.peer_id])
    ledger = Ledger(plan, recall=dict[Digest, LedgerEntry]().__getitem__)

    def order(action: Literal["stop", "resume"], serial: int) -> Statement:
        made = Statement(run=run, signer=author.peer_id, serial=serial, action=action, round=0, signature="")
        return replace(made, signature=signature(author, made.payload))

    stop = order("stop", 1)
    value = Value(round=1, parent=ledger.digests[0], reports=(), joined=(), departed=(), plan=run, statements=(stop,))
    ledger.admissions.note(value, position=1, members=())
    again = {
        spelled: Desk(ledger, verify=is_signed).problem(replace(stop, signature=spelled))
        for spelled in (stop.signature, stop.signature.upper(), f"{stop.signature} ")
    }
    taken = sum(not problem for problem in again.values())
    is_sound = not Desk(ledger, verify=is_signed).problem(order("resume", 2))
    happened = f"{taken} of them would stop the run again"
    return Outcome(sent=f"{len(again)} copies of an order", happened=happened, has_passed=is_sound and not taken)


# --- floods ----------------------------------------------------------------------------------------------------------

LONG_CHARS = 200_000
MOST_KEPT_BYTES = 1024
"""The most bytes that a peer keeps for each name whose heartbeat named the end of a ledger."""
HEARTBEATS_PER_SECOND = 20
"""The heartbeats of all strangers together (`STRANGER_KINDS`, `STRANGER_MESSAGES_PER_SECOND`)."""
MOST_LINES_PER_MINUTE = 60.0


class _Owner:
    """The owner of a ledger, as the exchange calls it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def follow_entry(self, entry: LedgerEntry, now: float) -> bool:
        raise NotImplementedError

    def follow_reorg(self, other: Ledger, now: float) -> None:
        raise NotImplementedError


def long_heads(_: int) -> Outcome:
    """Strangers name ends of ledgers that are as long as a message may be; a peer remembers those of thousands of names."""
    arena = Arena(0, Setting(), Parts())
    owner = _Owner(Ledger(arena.genesis, recall=dict[Digest, LedgerEntry]().__getitem__))
    exchange = LedgerExchange(lambda *_: arena.genesis, verify, period_seconds=1.0)
    for number in range(num_names := 64):
        head = Head(round=1, digest=Digest("e" * LONG_CHARS + str(number)), samples=1)
        beat = Heartbeat(beat=1, roster=owner.ledger.digests[0], heard=(), head=head, have=0)
        try:
            taken = decode(Heartbeat, canonical.encode(beat), max_bytes=MAX_PAYLOAD_BYTES)
        except RemoteProtocolError:
            continue
        exchange.announced(owner, PeerId(f"stranger{number}"), taken.head, now=0.0)
    kept = sum(len(donor.end.digest) for donor in exchange._donors._donors.values()) / num_names
    happened = f"{kept:.0f} bytes are kept of each, of {MAX_REMEMBERED} names at most"
    return Outcome(
        sent=f"{num_names} heartbeats of {LONG_CHARS // 1000} kB", happened=happened, has_passed=kept <= MOST_KEPT_BYTES
    )


def refusing_names(_: int) -> Outcome:
    """A stranger makes a name for each heartbeat, and refuses the answer in words of its own; each refusal may be logged."""
    refusals, seconds = LogLimiter(), 3600
    names = range(seconds * HEARTBEATS_PER_SECOND)
    lines = sum(
        refusals.count(PeerId(f"stranger{number}"), f"{number} " * 50, number / HEARTBEATS_PER_SECOND) > 0 for number in names
    )
    per_minute = lines * PERIOD_SECONDS / seconds
    happened = f"{per_minute:.0f} lines of the event file a minute"
    return Outcome(sent=f"{len(names)} refusals in an hour", happened=happened, has_passed=per_minute <= MOST_LINES_PER_MINUTE)


# --- states ----------------------------------------------------------------------------------------------------------


class _Reader:
    """A member's stream, as the donor sees it."""

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer
        self.is_ended = False

    def abort(self) -> None:
        self.is_ended = True


def held_places(_: int) -> Outcome:
    """As many members as a donor serves at a time read as slowly as they may, for ever; then another one asks, twice."""

    async def find(root: Digest) -> Blob | None:
        raise NotImplementedError

    names = frozenset(PeerId(f"member{number}") for number in range(MAX_DOWNLOADS + 1))
    server = ChunkServer(Endpoint(SimpleNamespace(peer_id="me"), members=lambda: names), "state", find)
    asks = [_Reader(name) for name in sorted(names)]
    blob = Blob(index=b"", chunks=())
    held = [server._take_place(stream, blob) for stream in asks[:-1]]  # type: ignore[arg-type]
    is_taken = server._take_place(asks[-1], blob)  # type: ignore[arg-type]
    for stream, running in server._downloads.items():  # two minutes pass
        server._downloads[stream] = replace(running, begun_at=running.begun_at - TURN_SECONDS)
    later = server._take_place(asks[-1], blob)  # type: ignore[arg-type]
    happened = f"a fifth member gets {'a place after two minutes' if later else 'none'}"
    has_passed = all(held) and not is_taken and later and sum(reader.is_ended for reader in asks) == 1
    return Outcome(sent=f"{len(held)} endless downloads", happened=happened, has_passed=has_passed)


HANDED_OVER = rules_of_one(8, probation_rounds=0)
LONGEST_HANDOVER = 600.0
"""The most virtual seconds until the run is over. At its end the others wait five minutes for the liar."""


def one_heir(seed: int) -> Outcome:
    """A founder leaves while three newcomers fetch its state; one of them claims at once that it has the state."""
    faults = Faults(uplink_bytes_per_second=STATE_BYTES / 14.0, faults_end_at=20.0)
    world = World(seed, peers=1, rounds=HANDED_OVER.work.rounds or 0, faults=faults, round_seconds=10.0, rules=HANDED_OVER)
    world.limit_seconds = 900.0
    (founder,) = world.machines.values()
    for number in range(3):
        world.queue.at(12.0 + 0.1 * number, world._join)

    def leaves() -> None:
        founder.is_gone = True
        founder.command(Commanded(command="drain"))

    world.queue.at(26.0, leaves)
    begin, claimed = StateFetches.begin, [0]

    def begins(self: StateFetches, effect: FetchState) -> None:
        liar = list(world.machines.values())[1]
        if self._machine is not liar:
            begin(self, effect)
            return
        liar.is_gone = True
        for donor in effect.from_peers:
            claimed[0] += 1
            served = StateServed(instance=effect.instance, round=effect.round, peer=liar.peer)
            world.queue.after(0.0, world.machines[donor].feed, served, world.machines[donor].process)

    StateFetches.begin = begins  # type: ignore[method-assign]
    try:
        world.run()
        happened, seconds = f"the run was over after {world.time:.0f} s", world.time
    except Violation as violation:
        happened, seconds = short(str(violation)), float("inf")
    finally:
        StateFetches.begin = begin  # type: ignore[method-assign]
    return Outcome(sent=f"{claimed[0]} claims", happened=happened, has_passed=bool(claimed[0]) and seconds <= LONGEST_HANDOVER)


# --- reports ---------------------------------------------------------------------------------------------------------


def as_equals(peers: int) -> Setting:
    """Return a setting in which every host gets the same part of the batch, however slow it claims to be."""
    rules = small_rules(peers, 12)
    return Setting(peers=peers, rounds=12, rules=replace(rules, work=replace(rules.work, share="equal")))


def expects_no_endless_round(result: Result) -> str:
    longest = max(entry.plan.expected_seconds for entry in result.arena.entries.values())
    return f"rounds of {longest:.0f} s are expected" if longest > 4.0 * LONGEST_FACTOR * ROUND_SECONDS else ""


def did_no_steps(report: Report) -> Report:
    """Report training in no steps at all: a round whose numbers of steps do not compare has no statistic of the noise."""
    return replace(report, instances=tuple(replace(item, inner_steps=0) for item in report.instances))


def measures_noise(result: Result) -> str:
    plans = [item for entry in result.arena.entries.values() for item in entry.plan.instances]
    rounds = {sample.round for item in plans for sample in item.history if sample.source == "pseudo_gradient"}
    missing = max(result.arena.entries) - REPORT_LAG - len(rounds)
    return f"{missing} rounds have no noise between the hosts' updates" if missing > MOST_UNMEASURED else ""


MOST_UNMEASURED = 3
"""The most rounds in which a host was late, or none was at work."""


EIGHT = Setting(peers=8, rounds=12, rules=replace(small_rules(8, 12), instances=InstanceRules(count=1, start="same")))


FOUND: tuple[Scenario, ...] = (
    Scenario("a start with a host that is none", by_member(members.starts_with_nobody)),
    Scenario("an attempt for each host", by_member(members.parts_attempts(), setting=SEVEN)),
    Scenario("each host invited alone", by_member(members.parts_attempts(alone=True), setting=SEVEN)),
    Scenario("each host left out by word", by_member(members.leaves_each_out, setting=SEVEN)),
    Scenario("a minority accused, and a void vote", by_member(members.accuses_and_votes_void)),
    Scenario("ballots driven apart", by_member(members.parts_ballots, setting=SEVEN)),
    Scenario("proposals driven apart", by_member(members.parts_proposals())),
    Scenario("choices announced apart", by_member(members.parts_proposals(is_announced=True))),
    Scenario("other reports for each peer", by_member(members.reports_otherwise_to_each)),
    Scenario("an order spelled anew", respelled_order),
    Scenario("evidence about itself that no rule has", by_member(accuses_itself)),
    Scenario("ends of ledgers without end", long_heads),
    Scenario("refusals under ever new names", refusing_names),
    Scenario("places held by slow readers", held_places),
    Scenario("one heir that claims the state", one_heir),
    Scenario(
        "no speed, and an equal share",
        by_reports(members.claims_no_speed, expects_no_endless_round, setting=as_equals(5)),
    ),
    Scenario("a report of no steps", by_reports(did_no_steps, measures_noise, setting=EIGHT)),
)
