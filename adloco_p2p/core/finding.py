"""What a check of a machine or of a network comes to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's report."""

    check: str
    """What was looked at, in a word or two."""
    verdict: Verdict
    """A warning: it works, but not well. Failed: the node cannot take part."""
    found: str
    code: str | None = None
    """Entry of the table of errors, with cause and remedy; where the verdict is a warning or worse."""

    def __post_init__(self) -> None:
        assert (self.code is not None) == (self.verdict in ("warning", "failed")), self


def exit_code(findings: Sequence[Finding]) -> int:
    """That of the first failure; 0 where there is none."""
    return next((int(finding.code[1]) for finding in findings if finding.verdict == "failed" and finding.code), 0)
