"""Reports that tests make up are on whatever plan the book has."""

from dataclasses import replace

from adloco_p2p.core.model.report import Report
from adloco_p2p.core.peer.plan_book import PlanBook


def note(book: PlanBook, report: Report) -> None:
    """Note the report as one on the plan that the book has of its round."""
    book.note_states(replace(report, plan=book.digests[report.round]))
