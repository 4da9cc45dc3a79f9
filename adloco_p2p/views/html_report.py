"""The report as one file that a browser opens anywhere, without a script, another file or a request."""

import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows: TypeAlias = list[tuple[str, ...]]
"""The rows of a table, the header first; a single cell is a sentence."""
Section: TypeAlias = tuple[str, Rows]
"""A title, which may be empty, and the rows under it."""

STYLE = """
:root { color-scheme: light; font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff }
body { max-width: 60rem; margin: 0 auto; padding: 1rem }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #ddd }
svg { width: 100%; height: auto }
figure { margin: 2rem 0 }
figcaption { color: #666 }
"""


def html_page(heading: str, sections: Sequence[Section], pictures: "Mapping[str, Figure]") -> str:
    """Return the page. `pictures`: figures by their captions."""
    parts = [f"<h1>{html.escape(heading)}</h1>"]
    for title, rows in sections:
        parts += [f"<h2>{html.escape(title)}</h2>"] if title else []
        parts.append(_table(rows))
    for caption, figure in pictures.items():
        parts.append(f"<figure>{_svg(figure)}<figcaption>{html.escape(caption)}</figcaption></figure>")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(heading)}</title><style>{STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _table(rows: Rows) -> str:
    if len(rows) == 1:
        return f"<p>{html.escape(rows[0][0])}</p>"
    lines = [_row("th", rows[0]) if any(rows[0]) else "", *(_row("td", row) for row in rows[1:])]
    return "\n".join(["<table>", *filter(None, lines), "</table>"])


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _svg(figure: "Figure") -> str:
    """Return the picture as an element of the page, without the header of a file."""
    written = io.StringIO()
    figure.savefig(written, format="svg", facecolor="white", metadata={"Date": None})
    text = written.getvalue()
    return text[text.index("<svg") :]
