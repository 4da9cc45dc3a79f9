"""Signers' statements on their way into the ledger: every peer passes them on until a plan carries them."""

from adloco_p2p.core.ledger.admission import Desk, in_order
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import MAX_STATEMENTS, Statement, Verify
from adloco_p2p.core.model.types import Digest

MAX_PENDING = 256
"""Statements that wait for a plan. Only signers make any."""


class StatementPool:
    """Of one peer."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._pending: dict[Digest, Statement] = {}

    def note(self, statement: Statement, ledger: Ledger) -> str:
        """Keep the statement, whichever peer passed it on, until the ledger has it. Why it cannot stand there; empty where it
        can."""
        digest = canonical.digest_once(statement)
        if digest in self._pending:
            return ""
        if len(self._pending) >= MAX_PENDING:
            return f"{MAX_PENDING} statements wait for a plan"
        wrong = Desk(parent=ledger.plans[-1], admissions=ledger.admissions, verify=self._verify).problem(statement)
        if not wrong:
            self._pending[digest] = statement
        return wrong

    def pending(self, ledger: Ledger) -> tuple[Statement, ...]:
        """What the next plan may carry, in its order."""
        if not self._pending:
            return ()
        parent = ledger.plans[-1]
        self._pending = {
            digest: known
            for digest, known in self._pending.items()
            if known.signer in parent.signers and not ledger.admissions.has(known)
        }
        desk = Desk(parent=parent, admissions=ledger.admissions, verify=None)
        fit = [statement for statement in in_order(self._pending.values()) if not desk.problem(statement)]
        fit.sort(key=lambda statement: statement.action != "resume")  # a paused run waits for nothing else
        return tuple(in_order(fit[:MAX_STATEMENTS]))
