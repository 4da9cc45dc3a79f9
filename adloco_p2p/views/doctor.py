"""The doctor's report: what was found, and for everything that is not well its cause and what mends it."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from adloco_p2p.core.finding import Finding
from adloco_p2p.error_codes import ERROR_CODES

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}
_WORDS = {"ok": "ok", "warning": "warn", "failed": "FAIL", "skipped": "-"}


def render(findings: Sequence[Finding]) -> RenderableType:
    """A table, then one paragraph per trouble, then one line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        verdict = Text(_WORDS[finding.verdict], style=_STYLES[finding.verdict])
        table.add_row(verdict, finding.check, Text(finding.found, style="dim" if finding.verdict == "skipped" else ""))
    troubles = [finding for finding in findings if finding.code is not None]
    return Group(table, *(_trouble(finding) for finding in troubles), Text(), _summary(findings))


def _trouble(finding: Finding) -> RenderableType:
    assert finding.code is not None
    entry = ERROR_CODES[finding.code]
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    lines.add_row(Text("cause", style="dim"), entry.cause)
    lines.add_row(Text("do", style="dim"), Text(entry.remedy, style="bold"))
    head = Text(f"{finding.code}  {finding.check}: {entry.title}", style=_STYLES[finding.verdict])
    return Group(Text(), head, Padding(lines, (0, 0, 0, 6)))


def _summary(findings: Sequence[Finding]) -> Text:
    failed = sum(finding.verdict == "failed" for finding in findings)
    warned = sum(finding.verdict == "warning" for finding in findings)
    if failed:
        return Text(f"{failed} of {len(findings)} checks failed: the node cannot take part like this", style=_STYLES["failed"])
    if warned:
        return Text(f"the node can take part; {warned} of {len(findings)} checks could be better", style=_STYLES["warning"])
    return Text("all is well", style=_STYLES["ok"])


def show(findings: Sequence[Finding]) -> None:
    """To the terminal, or plain where there is none."""
    Console(highlight=False, soft_wrap=False).print(render(findings))


def document(findings: Sequence[Finding], *, exit_code: int) -> dict[str, object]:
    """For programs; keys are kept over versions."""
    return {
        "exit_code": exit_code,
        "findings": [
            {
                "check": finding.check,
                "verdict": finding.verdict,
                "found": finding.found,
                "code": finding.code,
                "cause": ERROR_CODES[finding.code].cause if finding.code else None,
                "remedy": ERROR_CODES[finding.code].remedy if finding.code else None,
            }
            for finding in findings
        ],
    }
