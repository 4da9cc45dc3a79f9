"""The doctor's report: one line per check, with the cause and remedy of every problem."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.text import Text

from adloco_p2p.error_codes import ERROR_CODES
from adloco_p2p.views.pieces import GAP
from adloco_p2p.views.units import printable
from adloco_p2p.views.wrapping import wrapped

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}
_WORDS = {"ok": "ok", "warning": "warn", "failed": "FAIL", "skipped": "-"}
_OUTCOME_WIDTH = max(map(len, _WORDS.values())) + GAP
Outcome = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check, which is one line of the doctor's report."""

    check: str
    """The subject of the check, in a word or two."""
    outcome: Outcome
    """A warning means that it works, but not well; a failure means that the node cannot take part."""
    found: str
    code: str | None = None
    """The entry with cause and remedy in the table of errors, where the outcome is a warning or worse."""

    def __post_init__(self) -> None:
        assert (self.code is not None) == (self.outcome in ("warning", "failed")), self


def render(results: Sequence[CheckResult], width: int) -> RenderableType:
    """Return a line per check, then a paragraph per problem, then a summary line."""
    longest = max((len(result.check) for result in results), default=0)
    troubles = [result for result in results if result.code is not None]
    return Group(
        *(_line(result, longest, width) for result in results),
        *(_trouble(result, width) for result in troubles),
        Text(),
        _summary(results),
    )


def _line(result: CheckResult, longest: int, width: int) -> RenderableType:
    outcome = (f"{_WORDS[result.outcome]:<{_OUTCOME_WIDTH}}", _STYLES[result.outcome])
    found = printable(result.found)  # it quotes other peers, such as the address at which they see this one
    style = "dim" if result.outcome == "skipped" else ""
    return _beside([outcome, (f"{result.check:<{longest + GAP}}", "")], found, style, width)


def _trouble(result: CheckResult, width: int) -> RenderableType:
    assert result.code is not None
    entry = ERROR_CODES[result.code]
    return Group(
        Text(),
        Text(f"{result.code}  {result.check}: {entry.title}", style=_STYLES[result.outcome]),
        _beside([("      cause  ", "dim")], entry.cause, "", width),
        _beside([("      do     ", "dim")], entry.remedy, "bold", width),
    )


def _beside(labels: Sequence[tuple[str, str]], words: str, style: str, width: int) -> Text:
    """Return the labels with words beside them, which keep to the right of them where they take several lines."""
    return Text.assemble(*labels, (wrapped(words, width, hanging=sum(len(label) for label, _ in labels)), style))


def _summary(results: Sequence[CheckResult]) -> Text:
    failed = sum(result.outcome == "failed" for result in results)
    warned = sum(result.outcome == "warning" for result in results)
    if failed:
        return Text(f"{failed} of {len(results)} checks failed: the node cannot take part like this", style=_STYLES["failed"])
    if warned:
        return Text(f"the node can take part; {warned} of {len(results)} checks could be better", style=_STYLES["warning"])
    return Text("all is well", style=_STYLES["ok"])


def show(results: Sequence[CheckResult]) -> None:
    """Print the report to the terminal, or plain where there is none."""
    console = Console(highlight=False)
    console.print(render(results, console.width), soft_wrap=True)


def document(results: Sequence[CheckResult], *, exit_code: int) -> dict[str, object]:
    """Return the report for programs; its keys are kept over versions."""
    return {
        "exit_code": exit_code,
        "results": [
            {
                "check": result.check,
                "outcome": result.outcome,
                "found": result.found,
                "code": result.code,
                "cause": ERROR_CODES[result.code].cause if result.code else None,
                "remedy": ERROR_CODES[result.code].remedy if result.code else None,
            }
            for result in results
        ],
    }


def exit_code(results: Sequence[CheckResult]) -> int:
    """Return the exit code of the first failure; 0 where there is none."""
    return next((int(result.code[1]) for result in results if result.outcome == "failed" and result.code), 0)
