"""Ledgers of many hosts with real names and signatures, as honest peers make them."""

import hashlib
import os
import re
import sys
import time
import tracemalloc
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import change_of, check_entry
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.effects import Persist
from adloco_p2p.core.model.electorate import electorate
from adloco_p2p.core.model.gradient_statistics import HalfBatchStatistics, PseudoGradientStatistics
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.ledger_entry import Head, LedgerEntry, SignedReport, Value, Verify
from adloco_p2p.core.model.messages import MAX_ENTRY_BYTES, Entries, Heartbeat
from adloco_p2p.core.model.plan import RoundPlan, roster_of
from adloco_p2p.core.model.report import InstanceReport, Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.rules import BatchRules, InstanceRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.decode import decode
from adloco_p2p.runtime.adapters.plan_rule import decide_by
from adloco_p2p.sim.synthetic_reports import certificate_of
from adloco_p2p.swarm.p2p.identity import Identity, is_signed, signature
from adloco_p2p.swarm.transport.pieces import deflated, in_pieces

RUN = Digest("ab" * 32)
FORGOTTEN: dict[Digest, LedgerEntry] = {}
"""What these ledgers are asked to recall: nothing, they are too short to forget an entry."""
CAPACITY = Capacity(
    samples_per_second=41.23456789012345, micro_batch_limit=16, max_instances=8, upload_bytes_per_second=1234567.8901234567
)


def rules_for(num_instances: int) -> Rules:
    return Rules(
        work=WorkRules(rounds=10_000, inner_steps=32),
        instances=InstanceRules(count=num_instances, start="same"),
        batch=BatchRules(initial_batch=1024, max_batch=1024),
    )


def identities(count: int) -> dict[PeerId, Identity]:
    """By name; the keys are the same in every run."""
    made = [Identity(Ed25519PrivateKey.from_private_bytes(number.to_bytes(32))) for number in range(1, count + 1)]
    return {identity.peer_id: identity for identity in sorted(made, key=lambda identity: identity.peer_id)}


class LargeSwarm:
    """`count` hosts that agreed on the plans of two rounds; the second plan is made from a report of each. Of all, or of the
    `majority` alone that ends the vote in a roster of more than `Timing.direct_limit`, are the votes in a certificate."""

    def __init__(self, count: int, *, num_instances: int, votes: Literal["all", "majority"] = "all") -> None:
        self.rules = rules_for(num_instances)
        self._votes = votes
        self.identities = identities(count)
        self.genesis = genesis(RUN, [(peer, CAPACITY) for peer in self.identities], self.rules)
        self.ledger = Ledger(self.genesis, recall=FORGOTTEN.__getitem__)
        self.grow()
        self.grow()

    def grow(self) -> LedgerEntry:
        """The next plan, from a report of each."""
        reported = self.ledger.reported
        self._append([self._signed(self.report(peer, reported)) for peer in self.identities] if reported is not None else ())
        self.ledger.forget_old()
        return self.ledger.entries[-1]

    @property
    def entries(self) -> list[LedgerEntry]:
        return self.ledger.entries

    def agreement(
        self,
        me: PeerId,
        *,
        knows_all: bool,
        identity: Identity | None = None,
        verify: Verify = is_signed,
        draw: Callable[[], float] = lambda: 0.5,
    ) -> GossipAgreement:
        """A peer's, that has the whole ledger in its journal, or none of it. `identity`: of one that is no host."""
        own = identity or self.identities[me]
        made = GossipAgreement(
            me,
            genesis=self.genesis,
            records=tuple(self.entries) if knows_all else (),
            recall={entry.value.plan: entry for entry in self.entries}.__getitem__,
            contacts=(),
            capacity=CAPACITY,
            decide=decide_by(self.rules),
            sign=lambda payload: signature(own, payload),
            verify=verify,
            draw=draw,
            timing=Timing(),
        )
        made.start((self.genesis,), (), 0.0)
        return made

    def report(self, peer: PeerId, plan: RoundPlan) -> Report:
        """With every number as long as numbers are."""
        items = tuple(_item(peer, item) for item in plan.instances if any(share.peer == peer for share in item.hosts))
        return Report(peer=peer, round=plan.round, plan=canonical.digest_once(plan), capacity=CAPACITY, instances=items)

    def _signed(self, report: Report) -> SignedReport:
        unsigned = SignedReport(report=report, signature="")
        return replace(unsigned, signature=self._sign(report.peer, unsigned.payload))

    def _append(self, reports: Sequence[SignedReport]) -> None:
        parent, digest = self.ledger.plans[-1], self.ledger.digests[-1]
        value = Value(
            round=parent.round + 1,
            parent=digest,
            reports=tuple(canonical.digest_once(signed) for signed in reports),
            joined=(),
            departed=(),
            plan=Digest(""),
        )
        told = tuple(signed.report for signed in reports)
        plan: RoundPlan = decide_by(self.rules)(parent, told, change_of(value, told, self.ledger, lambda *_: True))
        value = replace(value, plan=canonical.digest_once(plan))
        ballot = Ballot(attempt=0, peer=roster_of(parent)[0])
        voters = electorate(parent)
        voters = voters if self._votes == "all" else voters[: len(voters) // 2 + 1]
        about = (value.parent, canonical.digest_once(value))
        certificate = certificate_of(voters, about, ballot=ballot, sign=self._sign)
        self.ledger.append(LedgerEntry(plan=plan, value=value, reports=tuple(reports), certificate=certificate))

    def _sign(self, peer: PeerId, payload: bytes) -> str:
        return signature(self.identities[peer], payload)


def _item(peer: PeerId, item: InstancePlan) -> InstanceReport:
    share = next(share for share in item.hosts if share.peer == peer)
    state = canonical.digest(["state", item.instance])
    return InstanceReport(
        instance=item.instance,
        samples=share.samples,
        tokens=share.samples * 1023,
        inner_steps=share.inner_steps,
        batch_samples=share.effective_batch,
        accumulation_steps=share.accumulation_steps,
        train_seconds=61.234567890123456,
        loss=3.1415926535897931,
        heldout_loss=3.2345678901234567,
        contributors=sum(1 << place for place, host in enumerate(item.hosts) if host.samples),
        pseudo_gradient=PseudoGradientStatistics(
            own_sqnorm=0.0012345678901234567, inner_product=0.00023456789012345678, averaged_sqnorm=0.00034567890123456789
        ),
        half_batch=HalfBatchStatistics(
            num_steps=4,
            batch_samples=max(1, share.effective_batch),
            covariance_trace=12.345678901234567,
            true_sqnorm=0.12345678901234567,
            mean_sqnorm=1.2345678901234567,
            inner_variance=0.23456789012345678,
            orthogonal_trace=11.234567890123456,
        ),
        digest=state,
        state_digest=state,
    )


def reading_seconds(swarm: LargeSwarm) -> float:
    """Of the processor, for a joiner to decode and verify the second entry; the least of three times."""
    first, second = swarm.entries
    payload, decide, found = canonical.encode(second), decide_by(swarm.rules), []
    for _ in range(3):
        ledger = Ledger(swarm.genesis, recall=FORGOTTEN.__getitem__)
        ledger.append(first)
        begun = time.process_time()
        entry = decode(LedgerEntry, payload, max_bytes=MAX_ENTRY_BYTES)
        assert check_entry(entry, ledger=ledger, decide=decide, verify=is_signed) == ""
        found.append(time.process_time() - begun)
    return min(found)


class ProcessorTime:
    """Of this process, by what it was spent on. Parts of parts count in both."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.seconds[what] += time.process_time() - begun

    def is_signed(self, peer: PeerId, payload: bytes, signature: str) -> bool:
        begun = time.process_time()
        is_good = is_signed(peer, payload, signature)
        self.seconds["signatures"] += time.process_time() - begun
        return is_good


def join(count: int, num_rounds: int) -> None:
    """What a newcomer takes to read the ledger of so many rounds, an entry per message: inflate, decode, check and follow each
    of them, and encode it for the journal. Prints the time per round for every 20 of them."""
    spent = ProcessorTime()
    joiner, server, travelling, last = _before_joining(count, num_rounds, spent)
    spent.seconds.clear()
    num_followed = 0
    for number, pieces in enumerate(travelling, 1):
        with spent.of("all"):
            with spent.of("zlib"):
                payload = b"".join(zlib.decompress(piece) for piece in pieces)
            with spent.of("decoding"):
                message = decode(Entries, payload, max_bytes=MAX_ENTRY_BYTES)
            taken = joiner.receive(server, message, 0.0)
            with spent.of("journal"):
                records = [canonical.encode(outcome.record) for outcome in taken if isinstance(outcome, Persist)]
        num_followed += len(records)
        if number % 20 == 0 or number == num_rounds:
            since = number - (number - 1) % 20
            parts = ", ".join(f"{what} {1000 * taken / (number - since + 1):.1f}" for what, taken in spent.seconds.items())
            print(f"rounds {since} to {number} of {count} hosts, ms of the processor per round: {parts}", flush=True)
            spent.seconds.clear()
    assert joiner.ledger.digests[-1] == last and num_followed == num_rounds


def _before_joining(
    count: int, num_rounds: int, spent: ProcessorTime
) -> tuple[GossipAgreement, PeerId, list[list[bytes]], Digest]:
    """The newcomer, a server, its messages in pieces as they travel, and the end of its ledger. Nothing else of the swarm is
    left: the newcomer's own objects are those that the garbage collector looks at."""
    swarm = LargeSwarm(count, num_instances=1, votes="majority")
    newcomer = Identity(Ed25519PrivateKey.from_private_bytes((1 << 32).to_bytes(32)))
    server = next(iter(swarm.identities))
    joiner = swarm.agreement(newcomer.peer_id, identity=newcomer, knows_all=False, verify=spent.is_signed)
    end = Head(round=num_rounds, digest=Digest("ff" * 32), samples=0)
    joiner.receive(server, Heartbeat(beat=1, roster=Digest("ff" * 32), heard=(), head=end, have=0), 0.0)
    travelling = []
    for number in range(1, num_rounds + 1):
        entry = swarm.entries[number - 1] if number <= 2 else swarm.grow()
        travelling.append([deflated(piece) for piece in in_pieces(canonical.encode(Entries(entries=(entry,))))])
    return joiner, server, travelling, swarm.ledger.digests[-1]


def signature_seconds(count: int) -> tuple[float, float]:
    """Of the clock, for each of so many signatures of as many peers: verified one after the other, and by a thread per core."""
    signers = list(identities(count).values())
    payloads = [b"%064d" % number for number in range(count)]
    signed = [(each.peer_id, text, signature(each, text)) for each, text in zip(signers, payloads, strict=True)]
    assert all(is_signed(*each) for each in signed)  # the keys are known once
    num_threads = os.cpu_count() or 1

    def verify_some(first: int) -> None:
        for each in signed[first::num_threads]:
            is_signed(*each)

    begun = time.perf_counter()
    for each in signed:
        is_signed(*each)
    between = time.perf_counter()
    with ThreadPoolExecutor(num_threads) as threads:
        list(threads.map(verify_some, range(num_threads)))
    return (between - begun) / count, (time.perf_counter() - between) / count


def held_bytes(swarm: LargeSwarm) -> int:
    """Of an entry in memory, beside others with the same members: hashes and signatures of its own."""
    payload = canonical.encode(swarm.entries[1])
    decode(LedgerEntry, payload, max_bytes=MAX_ENTRY_BYTES)  # names and words are there once
    own = re.sub(rb"[0-9a-f]{64,}", lambda found: hashlib.shake_128(found[0]).hexdigest(len(found[0]) // 2).encode(), payload)
    tracemalloc.start()
    entry = decode(LedgerEntry, own, max_bytes=MAX_ENTRY_BYTES)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert entry.plan.roster
    return held


def main() -> None:
    """Prints what an entry of so many hosts takes, as in docs/consensus.md; with `--join ROUNDS HOSTS` what a newcomer takes to
    read the ledger of so many rounds; with `--signatures COUNT` what verifying a signature takes, the best of five times."""
    if sys.argv[1:2] == ["--signatures"]:
        in_turn, by_threads = map(min, zip(*(signature_seconds(int(sys.argv[2])) for _ in range(5)), strict=True))
        print(f"microseconds per signature: {1e6 * in_turn:.0f} in turn, {1e6 * by_threads:.0f} by {os.cpu_count()} threads")
        return
    if sys.argv[1:2] == ["--join"]:
        num_rounds, count = map(int, sys.argv[2:])
        join(count, num_rounds)
        return
    head = f"{'hosts':>6}{'instances':>11}{'entry, kB':>11}{'plan':>8}{'votes':>8}{'deflated':>10}{'held, kB':>10}"
    print(f"{head}{'largest report, B':>19}{'to read, ms':>13}")
    for count, num_instances in ((8, 1), (100, 1), (100, 3), (256, 1), (300, 2), (1000, 1), (1000, 4)):
        swarm = LargeSwarm(count, num_instances=num_instances)
        entry = swarm.entries[1]
        sizes = [canonical.size(part) / 1000 for part in (entry, entry.plan, entry.certificate)]
        sizes.append(sum(len(deflated(piece)) for piece in in_pieces(canonical.encode(entry))) / 1000)
        largest = max(canonical.size(signed.report) for signed in entry.reports)
        columns = [f"{size:.0f}" for size in sizes]
        columns.append(f"{held_bytes(swarm) / 1000:.0f}")
        head = f"{count:>6}{num_instances:>11}{columns[0]:>11}{columns[1]:>8}{columns[2]:>8}{columns[3]:>10}{columns[4]:>10}"
        print(f"{head}{largest:>19}{1000 * reading_seconds(swarm):>13.1f}")


if __name__ == "__main__":
    main()
