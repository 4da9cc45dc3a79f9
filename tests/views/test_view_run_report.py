"""The report: files, numbers, and errors that name the file. How the pictures look is for eyes."""

import errno
import itertools
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import PathPatch

from adloco_p2p.cli import main
from adloco_p2p.errors import ConfigError
from adloco_p2p.storage.event_log import recorded_events
from adloco_p2p.views import figures
from adloco_p2p.views.markdown import code, escaped
from adloco_p2p.views.plain import line
from adloco_p2p.views.round_results import RoundResults
from adloco_p2p.views.run_report import (
    CAPTIONS,
    FORMATS,
    _figures,
    _instances,
    _sections,
    draw_report,
    markdown_page,
    save_figures,
    summarise,
)
from tests.views.synthetic import START, Made, events, replay, stamped


def summary(made: list[Made]) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads(json.dumps(summarise(replay(made)), allow_nan=False))
    return numbers


def test_the_files_are_there_and_the_page_embeds_them(tmp_path: Path) -> None:
    files = draw_report(map(stamped, events()), tmp_path / "report")
    assert [file.name for file in files] == [*CAPTIONS, "report.json", "report.md"]
    for file in files[: len(CAPTIONS)]:
        assert file.read_bytes().startswith(b"\x89PNG")
    page = files[-1].read_text()
    assert all(f"({name})" in page for name in CAPTIONS)
    assert "| 12 | merge | 0 + 1 -> 0 | 0.52 + 0.48 | the two smallest requests, 52 and 55 |" in page
    assert json.loads(files[-2].read_text()) == summary(events())


def test_a_full_disk_leaves_no_part_of_a_file_and_keeps_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    older = tmp_path / next(iter(CAPTIONS))
    older.write_text("older")
    monkeypatch.setattr(Path, "write_bytes", fill)
    for as_html in (False, True):
        with pytest.raises(OSError, match="No space left"):
            draw_report(map(stamped, events(6)), tmp_path, as_html=as_html)
    assert [(path, path.read_text()) for path in tmp_path.iterdir()] == [(older, "older")]


@pytest.mark.parametrize(("more", "shown"), [([], "{}: 29 files; begin with report.md"), (["--html"], "{}/report.html")])
def test_the_verb_names_the_folder_and_not_every_file(
    more: list[str], shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps(event) + "\n" for event in events(6)]
    (tmp_path / "events.jsonl").write_text("".join(lines))
    assert main(["report", "--workdir", str(tmp_path), "--output", str(tmp_path / "out"), *more]) == 0
    assert capsys.readouterr().out == f"{shown.format(tmp_path / 'out')}\n"


def without(*names: str) -> list[Made]:
    return [event for event in events(6) if event["event"] not in names]


def diverged() -> list[Made]:
    return [{**event, "loss": math.nan} if event["event"] == "round" else event for event in events(3, with_heldout=False)]


def only_received() -> list[Made]:
    return [
        {**event, "loss": None, "samples": 0, "tokens": 0, "seconds": {}, "bytes_sent": 0}
        if event["event"] == "round"
        else event
        for event in events(2)
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: events(1),
        lambda: events(9, with_heldout=False),
        lambda: events(60),
        lambda: without("plan"),
        lambda: without("finished", "progress", "phase"),
        lambda: without("fork", "merge"),
        diverged,
        only_received,
    ],
    ids=["one round", "no held-out", "long", "no plans", "not finished", "no forks", "diverged", "only received"],
)
def test_odd_runs_have_a_report(make: Callable[[], list[Made]], tmp_path: Path) -> None:
    files = draw_report(map(stamped, make()), tmp_path)
    assert all(file.stat().st_size > 0 for file in files)
    json.loads(files[-2].read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_numbers() -> None:
    made = events()
    rounds = [event for event in made if event["event"] == "round"]
    numbers = summary(made)
    assert numbers["rounds"] == numbers["rounds_planned"] == 24
    assert numbers["samples"] == sum(event["samples"] for event in rounds)
    assert numbers["bytes_sent"] == sum(event["bytes_sent"] for event in rounds)
    assert numbers["heldout_loss"] == made[-1]["heldout_loss"]
    assert numbers["perplexity"] == pytest.approx(math.exp(made[-1]["heldout_loss"]))
    assert numbers["events"]["average_failed"] == 1
    training = sum(event["seconds"]["training"] for event in rounds)
    assert numbers["compute_utilisation"] == pytest.approx(training / made[-1]["seconds"])
    assert [each["round"] for each in numbers["compute_utilisation_by_round"]] == list(range(1, 24))
    fates = {row["instance"]: row["fate"] for row in numbers["instances"]}
    assert fates == {0: "lived to the end", 1: "merged into 0 before round 12", 2: "merged into 0 before round 20"}
    assert [(row["first_round"], row["end_round"]) for row in numbers["instances"]] == [(0, 24), (4, 12), (4, 20)]


def test_instances_with_data_of_their_own_show_the_loss_on_each_data_set() -> None:
    by_name: dict[str, dict[str, Any]] = {
        "started": {"data_sets": ["code.txt", "prose.txt"]},
        "finished": {"heldout_losses": [1.0, 1.5]},
    }
    made = [{**event, **by_name.get(str(event["event"]), {})} for event in events()]
    last = next(place for place, event in reversed([*enumerate(made)]) if event["event"] == "round")
    made[last] |= {"heldout_loss": 1.6, "heldout_losses": [1.25, 2.5]}
    numbers = summary(made)
    assert "1.600; code.txt 1.250; prose.txt 2.500" in str(_instances(numbers))
    assert numbers["heldout_by_data"] == {"code.txt": 1.0, "prose.txt": 1.5}
    assert numbers["instances"][0]["heldout_by_data"] == {"code.txt": 1.25, "prose.txt": 2.5}
    status = replay(made)
    assert "heldout 1.600  on code.txt 1.250, prose.txt 2.500" in str(line(stamped(made[last]).event, status))
    assert "  on code.txt 1.000, prose.txt 1.500  perplexity" in str(line(stamped(made[-1]).event, status))


def test_bans_are_listed_with_their_reason() -> None:
    assert "Bans" not in dict(_sections(replay(events(4)), summary(events(4))))
    ban: Made = {"event": "ruled", "time": START, "round": 3, "action": "ban", "subject": "..b", "by": "..a", "reason": "noise"}
    made = [*events(4), ban]
    assert dict(_sections(replay(made), summary(made)))["Bans"] == [("peer", "ban"), ("..b", "banned in round 3 by ..a: noise")]


def test_before_the_end_the_best_living_instance_counts() -> None:
    made = [event for event in events() if event["event"] != "finished"]
    upto = next(index for index, event in enumerate(made) if event["event"] == "round" and event["round"] == 6)
    numbers = summary(made[:upto])
    heldout = {event["instance"]: event["heldout_loss"] for event in made[:upto] if event["event"] == "round"}
    assert numbers["heldout_loss"] == min(value for value in heldout.values() if value is not None)
    assert not numbers["is_finished"]


def test_instances_share_the_samples_axis() -> None:
    by_samples, by_rounds, by_time = figures.abscissas(replay(events()))
    for abscissa in (by_samples, by_rounds, by_time):
        values = [abscissa.at_boundary[boundary] for boundary in range(25)]
        assert values[0] == 0
        assert values == sorted(values)
    assert by_samples.at_boundary[24] == summary(events())["samples"]


def test_labels_do_not_cover_each_other() -> None:
    placed = figures.spread([0.5, 0.51, 0.0, 0.99, 1.0, 0.5], 0.05)
    ordered = sorted(placed)
    assert all(high - low >= 0.05 - 1e-9 for low, high in itertools.pairwise(ordered))
    assert ordered[0] >= 0.0 and ordered[-1] <= 1.0
    crowd = sorted(figures.spread([0.5] * 64, 0.05))
    assert crowd[0] >= 0.0 and crowd[-1] <= 1.0 + 1e-9


def test_the_name_of_a_merge_stands_beside_its_curve() -> None:
    figure = figures.family(replay(events()))
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    names = [text.get_window_extent() for text in axes.texts if text.get_text().startswith("merge")]
    curves = [patch.get_path().transformed(patch.get_transform()) for patch in axes.patches if isinstance(patch, PathPatch)]
    assert names and curves
    assert not any(curve.intersects_bbox(name, filled=False) for curve in curves for name in names)


def test_the_key_of_the_batches_has_the_modes_that_occur() -> None:
    def key(modes: Iterable[str]) -> set[str]:
        status = replay(events())
        made = zip(status.results.items(), itertools.cycle(modes), strict=False)
        changed = replace(status, results=RoundResults({place: replace(result, mode=mode) for (place, result), mode in made}))
        return {text.get_text() for text in figures.batches(changed).texts} & {"single", "capped", "accumulate"}

    assert key(["single"]) == set()
    assert key(["single", "capped"]) == {"single", "capped"}


def test_a_run_without_rounds_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no round has finished"):
        draw_report(map(stamped, events()[:8]), tmp_path)


# --- the file of events ----------------------------------------------------------------------------------------------


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_text(text)
    return path


def test_events_come_back_from_the_file(tmp_path: Path) -> None:
    made = events()
    text = "".join(json.dumps(event) + "\n" for event in made)
    assert recorded_events(written(tmp_path, text)) == [*map(stamped, made)]
    assert recorded_events(written(tmp_path, text[:-9])) == [*map(stamped, made[:-1])]  # torn by a kill


@pytest.mark.parametrize("text", ["", '{"event": "plan"}\n', "[1]\n", 'nonsense\n{"event": "left", "time": 1, "peer": "Qm"}\n'])
def test_a_file_that_is_not_events_is_named(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=r"events\.jsonl"):
        recorded_events(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--workdir .*: no events of a run lie here \(nowhere\.jsonl is missing\)"):
        recorded_events(tmp_path / "nowhere.jsonl")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"(?m)folder: the events of the run cannot be read: Is a directory$"):
        recorded_events(tmp_path / "folder")


def test_events_of_another_version_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = events()
    older = {name: value for name, value in next(e for e in whole if e["event"] == "round").items() if name != "heldout_loss"}
    newer = {**whole[0], "invented": 1}
    path = written(tmp_path, "".join(json.dumps(event) + "\n" for event in [newer, older, {"event": "sunrise", "time": 1}]))
    assert recorded_events(path) == [stamped(whole[0])], "a field that is not known makes no event unreadable"
    assert [record.getMessage() for record in caplog.records] == ["2 events of another version were skipped"]
    path.write_text(path.read_text() + "{damaged\n")
    with pytest.raises(ConfigError, match="line 4: damaged: not an event"):
        recorded_events(path)


def test_only_a_report_needs_matplotlib() -> None:
    code = (
        "import sys, adloco_p2p.views.run_report, adloco_p2p.views.terminal, adloco_p2p.views.plain\n"
        "assert not {'matplotlib', 'torch', 'hivemind', 'grpc'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def drawn_losses(figure: Any) -> dict[str, int]:
    """Label of the horizontal axis -> held-out points, which the thick lines have."""
    (axes,) = figure.axes
    thick = [line for line in axes.get_lines() if line.get_linewidth() > 2.0]
    return {axes.get_xlabel(): sum(len(line.get_xdata()) for line in thick)}


def test_the_losses_of_all_peers_are_those_of_the_ledger() -> None:
    """This peer evaluated every third round; the ledger has each of them, and no clock."""
    own = replay(
        [{**event, "heldout_loss": None} if event["event"] == "round" and event["round"] % 3 else event for event in events(9)]
    )
    results = {
        key: replace(result, elapsed_seconds=0.0, samples=4 * result.samples)
        for key, result in replay(events(9)).results.items()
    }
    swarm = replace(replay(events(9)), peer="", results=RoundResults(results), unigram_entropy=None)
    alone, together = _figures(own, None), _figures(own, swarm)
    ((label, most),) = drawn_losses(together["loss_by_samples.png"]).items()
    ((own_label, fewer),) = drawn_losses(alone["loss_by_samples.png"]).items()
    assert label == "samples of all peers" and own_label == "samples of this peer"
    counted = [sum(result.heldout_loss is not None for result in each.results.values()) for each in (swarm, own)]
    assert [most, fewer] == counted and most > fewer > 0
    axes = together["loss_by_time.png"].axes[0]
    last = max(float(value) for line in axes.get_lines() for value in np.asarray(line.get_xdata(), dtype=float))
    assert last == pytest.approx(max(result.elapsed_seconds for result in own.results.values()))


def test_one_file_for_a_browser_needs_nothing_else(tmp_path: Path) -> None:
    made = [{**event, "name": "<script>alert(1)</script>"} if event["event"] == "started" else event for event in events(3)]
    written = {"event": "sample_text", "round": 2, "instance": 0, "prompt": "La ", "text": "citt\u00e0 <b>\n\u202e"}
    made.append({**written, "time": made[-1]["time"]})
    (page,) = draw_report(map(stamped, made), tmp_path, as_html=True)
    assert page.name == "report.html" and [path.name for path in tmp_path.iterdir()] == ["report.html"]
    named = tmp_path / "new" / "run.html"
    assert draw_report(map(stamped, made), named, as_html=True) == [named] and named.is_file()
    text = page.read_text("utf-8")
    assert text.count("<svg") == text.count("<figure>") == len(CAPTIONS)
    assert all(caption in text for caption in CAPTIONS.values())
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "<td>La</td><td>citt\u00e0 &lt;b&gt; \ufffd</td>" in text
    assert not re.findall(r"(?:src|href)=\"(?!#)", text.replace('xlink:href="#', ""))


def test_every_format_has_its_own_file(tmp_path: Path) -> None:
    drawn = {"family.png": figures.family(replay(events(2)))}
    files = save_figures(drawn, tmp_path, FORMATS)
    assert [file.name for file in files] == ["family.png", "family.svg", "family.pdf"]
    assert [file.read_bytes()[:4] for file in files] == [b"\x89PNG", b"<?xm", b"%PDF"]


NAMES = (
    "![p](http://a.example/p.png) <img src=http://a.example> [l](http://a.example) `c` http://b.example www.c.example",
    r"\<b>\`\[x](y) | a | <!-- *s* _e_ ~~d~~ $m$ &lt; acc_norm r&d user@d.example",
    "`` | x | ![](http://a.example/x) ` <script>",
)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_others_are_text_and_no_markup(name: str) -> None:
    """To a reader of Markdown: no HTML, no picture, no link, and as many cells."""
    page = markdown_page(name, [("", [("a", "b"), (name, name)]), ("", [(name,)])], {})
    page = page[: page.index("## Pictures")] + f"\n\n{code(name)}\n\n| a | b |\n|---|---|\n| {code(name)} | b |\n"
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(page)
    inline = [token for token in tokens if token.type == "inline"]
    kinds = {child.type for token in inline for child in token.children or []} | {token.type for token in tokens}
    assert not kinds & {"html_block", "html_inline", "image", "link_open", "em_open", "strong_open", "s_open"}
    assert sum(token.type == "td_open" for token in tokens) == 4
    shown = ["".join(child.content for child in token.children or []) for token in inline]
    assert shown.count(name) == 4, "heading, two cells and a sentence show it as it is"


def test_addresses_in_names_are_no_links_where_a_reader_makes_links_of_them() -> None:
    assert escaped("http://a.b www.a.b WWW.a.b x@a.b") == r"http\://a.b www\.a.b WWW\.a.b x\@a.b"
