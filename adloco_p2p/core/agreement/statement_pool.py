"""Signers' statements, and evidence, on their way into the ledger: every peer passes them on until a plan carries them."""

from collections import Counter

from adloco_p2p.core.ledger.admission import in_order
from adloco_p2p.core.ledger.desk import Desk
from adloco_p2p.core.ledger.evidence import standing_problem
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import MAX_STATEMENTS, NOBODY, Decree, Evidence, Verify
from adloco_p2p.core.model.scalars import Digest, PeerId

MAX_PENDING = 32
"""The number of statements of one signer that may wait for a plan, so that no signer takes the place of another."""


MAX_FALSE = 2
"""The number of false pieces of evidence of one sender that are computed per plan; its further evidence is refused unseen."""


class StatementPool:
    """The pending statements and evidence of one peer."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._pending: dict[Digest, Decree] = {}
        self._false: Counter[PeerId] = Counter()
        """The number of false pieces of evidence since the newest plan, by the sending member; all strangers are NOBODY."""
        self._judged_at = 0
        """The length of the ledger for which `_false` counts."""

    def receive(self, decree: Decree, ledger: Ledger, *, sender: PeerId, is_member: bool) -> str:
        """`note` a decree that a peer passed on. Evidence takes milliseconds to compute, so false evidence of one sender, and
        of all strangers together, is limited first. Return why it was refused; empty if it was not."""
        if not isinstance(decree, Evidence):
            return self.note(decree, ledger)
        if len(ledger.digests) != self._judged_at:
            self._false, self._judged_at = Counter(), len(ledger.digests)
        source = sender if is_member else NOBODY
        if self._false[source] >= MAX_FALSE:
            return f"{MAX_FALSE} pieces of evidence from there were refused since the last plan"
        wrong = self.note(decree, ledger)
        self._false[source] += bool(wrong) and not standing_problem(decree, ledger)
        return wrong

    def note(self, decree: Decree, ledger: Ledger) -> str:
        """Keep a decree until the ledger has it. Return why it cannot stand there; empty if it can."""
        digest = canonical.digest_once(decree)
        if digest in self._pending or (isinstance(decree, Evidence) and self._is_accused(decree)):
            return ""
        if not isinstance(decree, Evidence) and self._num_statements(decree.signer) >= MAX_PENDING:
            return f"{MAX_PENDING} statements of {decree.signer} wait for a plan"
        wrong = Desk(ledger, verify=self._verify).problem(decree)
        if not wrong:
            self._pending[digest] = decree
        return wrong

    def pending(self, ledger: Ledger) -> tuple[Decree, ...]:
        """Return the statements and evidence that the next plan may carry, in the order of the plan."""
        if not self._pending:
            return ()
        self._pending = {digest: known for digest, known in self._pending.items() if not _is_over(known, ledger)}
        desk = Desk(ledger, verify=None)
        fit = [decree for decree in in_order(self._pending.values()) if not desk.problem(decree)]
        fit.sort(key=lambda decree: decree.action != "resume")  # a paused run needs nothing else to go on
        return tuple(in_order(fit[:MAX_STATEMENTS]))

    def _num_statements(self, signer: PeerId) -> int:
        return sum(not isinstance(known, Evidence) and known.signer == signer for known in self._pending.values())

    def _is_accused(self, evidence: Evidence) -> bool:
        """Return whether evidence about the same peer waits already: one is enough, and limits the pool by the seats."""
        return any(isinstance(known, Evidence) and known.subject == evidence.subject for known in self._pending.values())


def _is_over(decree: Decree, ledger: Ledger) -> bool:
    """Return whether the decree is in the ledger, or can no longer get there."""
    if isinstance(decree, Evidence):
        return bool(standing_problem(decree, ledger))
    return decree.signer not in ledger.plans[-1].signers or ledger.admissions.has(decree)
