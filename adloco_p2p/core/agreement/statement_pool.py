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
"""Statements of one signer that wait for a plan: no signer takes the place of another."""


MAX_FALSE = 2
"""Evidence of one sender that is refused per plan, after its arithmetic; more of that sender waits for the next plan."""


class StatementPool:
    """Of one peer."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._pending: dict[Digest, Decree] = {}
        self._false: Counter[PeerId] = Counter()
        """Evidence that was refused since the newest plan, by the member that sent it; all strangers are NOBODY."""
        self._judged_at = 0
        """Length of the ledger then."""

    def receive(self, decree: Decree, ledger: Ledger, *, sender: PeerId, is_member: bool) -> str:
        """`note` the items that a peer passed on. Sums that are made again take milliseconds, so false evidence of one sender,
        and that of all strangers together, is bounded before them."""
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
        """Keep it until the ledger has it. Returns why it cannot stand there; empty where it can."""
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
        """The statements and evidence that the next plan may carry, in its order."""
        if not self._pending:
            return ()
        self._pending = {digest: known for digest, known in self._pending.items() if not _is_over(known, ledger)}
        desk = Desk(ledger, verify=None)
        fit = [decree for decree in in_order(self._pending.values()) if not desk.problem(decree)]
        fit.sort(key=lambda decree: decree.action != "resume")  # a paused run waits for nothing else
        return tuple(in_order(fit[:MAX_STATEMENTS]))

    def _num_statements(self, signer: PeerId) -> int:
        return sum(not isinstance(known, Evidence) and known.signer == signer for known in self._pending.values())

    def _is_accused(self, evidence: Evidence) -> bool:
        """There is evidence about the peer already; one is enough, and bounds what waits by the seats."""
        return any(isinstance(known, Evidence) and known.subject == evidence.subject for known in self._pending.values())


def _is_over(decree: Decree, ledger: Ledger) -> bool:
    """It is in the ledger, or can get there no more."""
    if isinstance(decree, Evidence):
        return bool(standing_problem(decree, ledger))
    return decree.signer not in ledger.plans[-1].signers or ledger.admissions.has(decree)
