"""Verbs about decisions: the ledger of agreed plans, their reasons, and the simulator.

They read the ledger from the journal of a working directory, without disturbing a running peer.
"""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adloco_p2p.commands.console import say, say_exactly, say_json
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.ledger.admission import Ruling
from adloco_p2p.core.ledger.ledger import Ledger, chain, unconnected
from adloco_p2p.core.ledger.validation import num_emergencies, verify_ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.course import in_words
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.ledger_entry import Decree, Evidence, LedgerEntry
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import MAX_ROSTER
from adloco_p2p.core.model.words import plural
from adloco_p2p.errors import ConfigError, StorageError
from adloco_p2p.views.units import one_line

_SEEDS = re.compile(r"(\d+)(?:-(\d+))?")
EXIT_BROKEN = 1
"""The exit code for a ledger or a simulated run that breaks its promises."""


def show(arguments: argparse.Namespace) -> int:
    """Print one plan a line, or the result of `verify`."""
    if arguments.action == "verify":
        return verify(arguments)
    if arguments.action == "bans":
        return bans(arguments)
    written = read_journal(arguments.workdir)
    for plan, entry in [(written.genesis, None), *((entry.plan, entry) for entry in written.entries)]:
        if arguments.json:
            say_json(_document(plan, entry))
            continue
        instances = "  ".join(f"instance {p.instance}: batch {p.requested_batch} {p.mode}" for p in plan.instances)
        merges = "".join(f"  merge {' + '.join(map(str, m.sources))} -> {m.target}" for m in plan.merges)
        votes = "" if entry is None else f"  {plural(len(entry.certificate.votes), 'vote')}"
        digest = canonical.digest(plan)
        say(f"round {plan.round:<4} {digest[:12]}  {plural(len(plan.roster), 'peer')}{votes}  {instances}{merges}")
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Recompute every decision and check every signature."""
    from adloco_p2p.storage.journal import unread_bytes

    written = read_journal(arguments.workdir)
    genesis, entries, problems = written.genesis, written.entries, written.problems()
    votes = sum(len(entry.certificate.votes) for entry in entries)
    reports = sum(len(entry.reports) for entry in entries)
    emergencies = num_emergencies(genesis, entries)
    evidence = [(entry.plan.round, made) for entry in entries for made in entry.value.statements if isinstance(made, Evidence)]
    if arguments.json:
        counts = {"plans": len(entries), "votes": votes, "reports": reports, "emergency_entries": emergencies}
        counts["bans_by_evidence"] = len(evidence)
        say_json({"run": written.run.digest, "is_sound": not problems, **counts, "problems": problems})
        return EXIT_BROKEN if problems else 0
    for problem in problems:
        say(problem)
    if problems:
        return EXIT_BROKEN
    say(
        f"sound: {plural(len(entries), 'plan')} after the first, {plural(votes, 'vote')} and {plural(reports, 'report')}, every"
        " decision recomputed;"
        f" emergency entries (by less than half of those entitled to vote): {emergencies}"
    )
    if cut := unread_bytes(arguments.workdir / "journal.bin"):
        say(
            f"the file ends within a record: {plural(cut, 'byte')} at its end were not read; a node at work may be writing them"
        )
    for round_number, made in evidence:
        say(f"round {round_number}: evidence bans {made.subject}, which {made.reason}")
    return 0


def bans(arguments: argparse.Namespace) -> int:
    """List the peers that are banned now: by which signer or evidence, when, and why."""
    _, ledger = read_ledger(arguments.workdir)
    in_force = list(ledger.admissions.bans().values())
    if arguments.json:
        say_exactly(json.dumps([ban_fields(ruling) for ruling in in_force]))
        return 0
    for line in ban_lines(in_force) or ["nobody is banned"]:
        say(line)
    return 0


def ban_lines(rulings: Sequence[Ruling]) -> list[str]:
    """Return lines about the bans, for people."""
    lines = []
    for ruling in rulings:
        made = ruling.statement
        why = f": {one_line(made.reason)}" if made.reason else ""
        lines.append(f"banned {made.subject} in round {ruling.position} by {_origin(made)}{why}")
    return lines


def ban_fields(ruling: Ruling) -> dict[str, object]:
    """Return the fields of a ban, for machines."""
    made = ruling.statement
    return {
        "peer": made.subject,
        "round": ruling.position,
        "kind": "evidence" if isinstance(made, Evidence) else "statement",
        "signer": None if isinstance(made, Evidence) else made.signer,
        "reason": made.reason,
    }


def _origin(made: Decree) -> str:
    return "evidence" if isinstance(made, Evidence) else made.signer


def explain(arguments: argparse.Namespace) -> int:
    """Explain in words and numbers why a round was planned as it was."""
    written = read_journal(arguments.workdir)
    genesis, entries = written.genesis, written.entries
    plans = {plan.round: plan for plan in (genesis, *(entry.plan for entry in entries))}
    plan = plans.get(arguments.round)
    if plan is None:
        raise ConfigError(f"ROUND {arguments.round}: the ledger holds rounds 0 to {max(plans)}", code="E200")
    entry = next((entry for entry in entries if entry.plan.round == plan.round), None)
    if arguments.json:
        say_json(_document(plan, entry))
        return 0
    say(f"round {plan.round}, plan {canonical.digest(plan)[:16]}, after {plan.parent[:16]}")
    if entry is not None:
        voters = ", ".join(vote.peer[-8:] for vote in entry.certificate.votes)
        say(f"  agreed by {len(entry.certificate.votes)} of {len(plans[plan.round - 1].roster)} peers: {voters}")
        for request in entry.value.joined:
            say(f"  joined: {request.peer}")
        for peer in entry.value.departed:
            say(f"  departed: {peer}")
        for made in entry.value.statements:
            say(f"  {_decree_words(made)}")
    if ordered := in_words(plan.course, plan.round):
        say(f"  {ordered}")
    for fork in plan.forks:
        say(f"  instance {fork.source} was copied to {', '.join(map(str, fork.targets))}: the warm-up is over")
    for merge in plan.merges:
        shares = ", ".join(f"{s} with weight {w:.3f}" for s, w in zip(merge.sources, merge.weights, strict=True))
        say(f"  merged into instance {merge.target}: {shares}. {merge.reason}")
    if plan.probe is not None:
        say(f"  to be measured after the round, for a merge: {plan.probe.reason}")
    for item in plan.instances:
        _explain_instance(item, entry)
    if plan.is_last:
        say("  the last plan: nothing is trained any more")
    return 0


def simulate(arguments: argparse.Namespace) -> int:
    """Run a simulated swarm; returns 0 only if every invariant held."""
    from adloco_p2p.sim.simulate import everyday_seed, summary
    from adloco_p2p.sim.simulate import simulate as run_seeds

    seeds = _seeds(arguments.seeds)
    limits = {"loss": 0.5, "liars": 0.5, "churn": 1.0, "partition": 3600.0}
    problems = [
        f"--{name} {getattr(arguments, name):g}: from 0 to {limit:g} is accepted"
        for name, limit in limits.items()
        if not 0 <= getattr(arguments, name) <= limit
    ]
    problems += [f"--peers {peers}: at most {MAX_ROSTER}" for peers in arguments.peers or () if peers > MAX_ROSTER]
    if problems:
        raise ConfigError(*problems, code="E200")
    results = [everyday_seed(seed) for seed in seeds] if arguments.everyday else []
    results += [
        result
        for peers in arguments.peers or ()
        for result in run_seeds(
            peers=peers,
            rounds=arguments.rounds,
            seeds=seeds,
            loss=arguments.loss,
            churn=arguments.churn,
            partition_seconds=arguments.partition,
            liars=arguments.liars,
        )
    ]
    if arguments.json:
        say_exactly(json.dumps([canonical.to_plain(result) for result in results]))
    else:
        say(summary(results))
    return EXIT_BROKEN if any(result.violation is not None for result in results) else 0


def _seeds(text: str) -> range:
    match = _SEEDS.fullmatch(text)
    seeds = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    if not seeds:
        raise ConfigError(f"--seeds {text}: one number, or a first and a last one as in 1-100", code="E200")
    return seeds


# --- inside ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLedger:
    """A run, and what the agreement wrote about it in a peer's journal."""

    run: RunConfig
    records: Sequence[object]
    genesis: RoundPlan
    entries: Sequence[LedgerEntry]
    """The entries after the first plan, in order."""

    @classmethod
    def of(cls, run: RunConfig, records: Sequence[object]) -> "RecordedLedger":
        from adloco_p2p.runtime.adapters.plan_rule import genesis_of

        genesis = genesis_of(run)
        return cls(run=run, records=records, genesis=genesis, entries=chain(records, genesis))

    def problems(self) -> list[str]:
        """Return what is wrong with the ledger, after recomputing every decision and checking every signature."""
        from adloco_p2p.runtime.adapters.plan_rule import decide_by
        from adloco_p2p.swarm.p2p.identity import is_signed

        problems = verify_ledger(self.genesis, self.entries, decide_by(self.run.rules), is_signed)
        lost = unconnected(self.records, self.genesis)
        return [*problems, *(f"round {entry.plan.round}: it follows no plan of this ledger" for entry in lost)]


def read_journal(workdir: Path) -> RecordedLedger:
    """Return this peer's journal. Raises ConfigError and StorageError where there is none."""
    from adloco_p2p.runtime.adapters.network_journal import journal_records
    from adloco_p2p.storage.workdir import read_run

    run = read_run(workdir)
    if run is None:
        raise ConfigError(f"--workdir {workdir}: holds no run", code="E204")
    if not (workdir / "journal.bin").exists():
        raise StorageError(
            f"{workdir}: no ledger yet; it begins with the first agreed plan (a run trained with --offline keeps none)",
            code="E407",
        )
    return RecordedLedger.of(run, journal_records(workdir / "journal.bin"))


def read_entries(workdir: Path, *, upto: int) -> tuple[RoundPlan, list[LedgerEntry]] | None:
    """Return the first plan, and the entries up to that of a round; None where the run was trained without the network."""
    if not (workdir / "journal.bin").exists():
        return None
    written = read_journal(workdir)
    return written.genesis, [entry for entry in written.entries if entry.plan.round <= upto]


def read_ledger(workdir: Path) -> tuple[RunConfig, Ledger]:
    """Return the run of a directory and its ledger, which is the first plan alone while the node loads its model after printing
    the link. Raises ConfigError and StorageError where the run has no ledger."""
    from adloco_p2p.storage.admission_files import read_address
    from adloco_p2p.storage.workdir import read_run

    run = read_run(workdir)
    if run is None or (workdir / "journal.bin").exists() or not read_address(workdir):
        written = read_journal(workdir)
    else:
        written = RecordedLedger.of(run, ())
    known = {entry.value.plan: entry for entry in written.entries}
    ledger = Ledger(written.genesis, recall=known.__getitem__)
    for entry in written.entries:
        ledger.append(entry)
    return written.run, ledger


def _document(plan: RoundPlan, entry: LedgerEntry | None) -> dict[str, object]:
    plain = canonical.to_plain(plan)
    return {
        "round": plan.round,
        "parent": plan.parent,
        "digest": canonical.digest(plan),
        "instances": plain["instances"],
        "forks": plain["forks"],
        "merges": plain["merges"],
        "roster": [roster_entry.peer for roster_entry in plan.roster],
        "newest_protocols": {roster_entry.peer: roster_entry.capacity.newest_protocol for roster_entry in plan.roster},
        "votes": [] if entry is None else [vote.peer for vote in entry.certificate.votes],
        "is_last": plan.is_last,
    }


def _decree_words(made: Decree) -> str:
    """Describe a decree of a plan, by a signer or by evidence."""
    if isinstance(made, Evidence):
        return f"evidence bans {made.subject}, which {made.reason}"
    about = [made.action.replace("_", " "), *([made.subject] if made.subject else [])]
    return f"signed by {made.signer[-8:]}: {' '.join(about)}{f': {one_line(made.reason)}' if made.reason else ''}"


def _explain_instance(item: InstancePlan, entry: LedgerEntry | None) -> None:
    batch = f"batch {item.effective_batch} of {item.requested_batch} asked for"
    say(f"  instance {item.instance}: {batch}, {plural(len(item.hosts), 'host')}. {item.reason}")
    for share in item.hosts:
        if share.samples == 0:
            say(f"    {share.peer[-8:]}: no work in this round")
            continue
        passes = f"{plural(share.accumulation_steps, 'pass', 'passes')} of {share.micro_batch_size}"
        say(f"    {share.peer[-8:]}: {plural(share.batch_samples, 'sample')} a step in {passes}, {share.inner_steps} steps")
    for sample in item.history:
        say(
            f"    measured in round {sample.round} ({sample.source}, batch {sample.batch_samples}): noise {sample.noise:.3g},"
            f" signal {sample.signal:.3g}, mean {sample.mean_sqnorm:.3g}"
        )
    for report in _reports(entry):
        for done in report.instances:
            if done.instance == item.instance and done.loss is not None:
                heldout = "" if done.heldout_loss is None else f", held-out loss {done.heldout_loss:.4f}"
                loss = f"{done.samples} samples, loss {done.loss:.4f}{heldout}"
                say(f"    {report.peer[-8:]} reported of round {report.round}: {loss}")


def _reports(entry: LedgerEntry | None) -> Sequence[Report]:
    return () if entry is None else [signed.report for signed in entry.reports]
