"""The check of the statements and evidence that a plan may carry, one after another, as they take effect."""

from adloco_p2p.core.ledger.evidence import evidence_problem
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.signers import change_problem, signers_after
from adloco_p2p.core.model.course import MAX_CHANGES
from adloco_p2p.core.model.ledger_entry import Decree, Evidence, Statement, Verify, WrongSum


class Desk:
    """The judge of statements and evidence, one after another, for the value after the end of `ledger`. `verify` is None if the
    signatures were checked before."""

    def __init__(self, ledger: Ledger, *, verify: Verify | None) -> None:
        parent = ledger.plans[-1]
        self._ledger = ledger
        self._run = parent.run
        self._verify = verify
        self._signers = parent.signers
        self._num_changes = len(parent.course.changes)
        self._banned = set(ledger.admissions.bans())
        """The banned peers, those included that the decrees accepted here ban."""
        self._has_wrong_sum = False

    def problem(self, decree: Decree) -> str:
        """Return why the decree cannot stand in the value; empty if it can, and then it counts for the next ones."""
        if isinstance(decree, Evidence):
            return self._problem_of_evidence(decree)
        about = f" about {decree.subject}" if decree.subject else ""
        wrong = self._problem_of(decree)
        if wrong:
            return f"the statement `{decree.action}`{about} {wrong}"
        self._signers = signers_after(self._signers, [decree])
        self._num_changes += decree.action == "change"
        if decree.action == "ban":
            self._banned.add(decree.subject)
        elif decree.action == "unban":
            self._banned.discard(decree.subject)
        return ""

    def _problem_of_evidence(self, evidence: Evidence) -> str:
        if isinstance(evidence, WrongSum) and self._has_wrong_sum:
            return f"the evidence about {evidence.subject} is the second wrong sum; a plan carries one, for its size"
        wrong = evidence_problem(evidence, self._ledger, self._verify)
        if not wrong:
            self._banned.add(evidence.subject)
        self._has_wrong_sum = self._has_wrong_sum or (isinstance(evidence, WrongSum) and not wrong)
        return wrong

    def _problem_of(self, statement: Statement) -> str:
        if statement.run != self._run or statement.signer not in self._signers:
            return "is not by a signer of this run"
        if statement.action == "ban" and statement.subject in self._signers:
            return "is about a signer"
        if statement.action == "unban" and statement.subject == statement.signer:
            return "is about its own signer; another signer can lift a ban by evidence"
        if statement.action == "add_signer" and statement.signer in self._banned:
            return "is by a signer that is banned; another signer can add one"
        if (statement.action == "change") != (statement.settings is not None):
            return "has settings that do not belong to it, or none"
        if statement.action == "change" and self._num_changes >= MAX_CHANGES:
            return f"is one of more than {MAX_CHANGES} changes that wait for their rounds"
        wrong = change_problem(statement, signers=self._signers, banned=self._banned)
        if wrong:
            return wrong
        if self._ledger.admissions.has(statement):
            return "is in the ledger already"
        is_signed = self._verify is None or self._verify(statement.signer, statement.payload, statement.signature)
        return "" if is_signed else "is not signed by its signer"
