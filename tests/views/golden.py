"""Golden screens and lines, for reading, and what the Grafana dashboard has from the metrics. `python -m tests.views.golden`
writes them again; read the difference."""

import functools
import io
import json
import re
from pathlib import Path

from rich.console import Console

from adloco_p2p.views.metrics import measures
from adloco_p2p.views.plain import PlainView
from adloco_p2p.views.screen import render
from adloco_p2p.views.status import Status
from tests.views.synthetic import events, replay, stamped

FOLDER = Path(__file__).parent / "golden"
DASHBOARD = Path(__file__).parents[2] / "peers" / "grafana" / "adloco-peer.json"
GRAFANA_UNITS = {
    "ratio": "percentunit",
    "seconds": "s",
    "bytes": "bytes",
    "bytes per second": "Bps",
    "celsius": "celsius",
    "watts": "watt",
}


def screen(status: Status, width: int, height: int) -> str:
    """The view as a terminal of that size shows it, in ASCII, without the blanks at the ends of lines."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(render(status, width, height))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def status_at(name: str, round_: int, instance: int, *, samples: int | None = None) -> Status:
    """The status just after the last event of that name in that round and instance."""
    made = events(samples=samples)
    wanted = [
        index
        for index, event in enumerate(made)
        if (event["event"], event.get("round"), event.get("instance")) == (name, round_, instance)
    ]
    return replay(made[: wanted[-1] + 1])


@functools.cache
def expected_files() -> dict[str, str]:
    stream = io.StringIO()
    view = PlainView(stream)
    for event in events():
        view.update(stamped(event))
    busy = status_at("progress", 14, 2)
    return {
        "plain.txt": stream.getvalue(),
        "first_round_80x24.txt": screen(status_at("progress", 0, 0), 80, 24),
        "failed_average_80x24.txt": screen(status_at("average_failed", 9, 1), 80, 24),
        "busy_80x24.txt": screen(busy, 80, 24),
        "busy_200x60.txt": screen(busy, 200, 60),
        "finished_80x24.txt": screen(replay(events()), 80, 24),
    }


def dashboard() -> str:
    """Each panel described by the meanings of its metrics, and in their unit where it computes nothing from them."""
    known = {measure.name: measure for measure in measures(Status())}
    made = json.loads(DASHBOARD.read_text("ascii"))
    for panel in made["panels"]:
        queries = [target["expr"] for target in panel["targets"]]
        asked = re.findall(r"adloco_[a-z_]+", " ".join(queries))
        drawn = [known[name] for name in dict.fromkeys(asked) if name in known]
        if drawn:
            panel["description"] = " ".join(measure.meaning for measure in drawn)
        if drawn and all(re.fullmatch(r"adloco_[a-z_]+\{[^}]*\}", query) for query in queries):
            panel["fieldConfig"]["defaults"]["unit"] = GRAFANA_UNITS.get(drawn[0].unit, "none")
    return json.dumps(made, indent=2) + "\n"


def write() -> None:
    for name, text in expected_files().items():
        (FOLDER / name).write_text(text, encoding="ascii")
    DASHBOARD.write_text(dashboard(), encoding="ascii")


if __name__ == "__main__":
    write()
