"""The signers of a run: at first its author; signers add and remove others by statements in the ledger.

An invitation counts only while its signer still is one, since a lost key may have been stolen; the seats that it gave stay, and
so do the bans. A run always has a signer.
"""

from collections.abc import Collection, Iterable, Sequence

from adloco_p2p.core.model.ledger_entry import Decree, Statement
from adloco_p2p.core.model.plan import MAX_SIGNERS
from adloco_p2p.core.model.scalars import PeerId


def signers_after(signers: Sequence[PeerId], statements: Iterable[Decree]) -> tuple[PeerId, ...]:
    """Return the signers after these statements, which are in order; sorted."""
    known = dict.fromkeys(signers)
    for statement in statements:
        if statement.action == "add_signer":
            known[statement.subject] = None
        elif statement.action == "remove_signer":
            known.pop(statement.subject, None)
    return tuple(sorted(known))


def change_problem(statement: Statement, *, signers: Sequence[PeerId], banned: Collection[PeerId]) -> str:
    """Return why the signers cannot be changed by this statement; empty if they can, and for other statements."""
    if statement.action == "add_signer":
        if statement.subject in signers:
            return "is about a signer already"
        if statement.subject in banned:
            return "is about a banned peer"
        return f"would make more than {MAX_SIGNERS} signers" if len(signers) >= MAX_SIGNERS else ""
    if statement.action == "remove_signer":
        if statement.subject not in signers:
            return "is not about a signer"
        return "would leave the run without a signer" if len(signers) == 1 else ""
    return ""
