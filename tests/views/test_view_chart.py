"""The curves of the terminal, dot by dot, and the run at a glance."""

import io

import pytest
from rich.console import Console, RenderableType

from adloco_p2p.views import progress, run_losses, table_rows
from adloco_p2p.views.chart import LABEL, Chart, Series, Sparkline
from adloco_p2p.views.status import Status
from tests.views.golden import status_at
from tests.views.synthetic import THIS, TOKENS_PER_SAMPLE, events, replay


def drawn(renderable: RenderableType, *, is_ascii: bool = False) -> list[str]:
    file: io.TextIOBase = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if is_ascii else "utf-8")
    console = Console(file=file, width=60, color_system=None)  # type: ignore[arg-type]
    with console.capture() as capture:
        console.print(renderable)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_bar_is_as_high_as_its_value() -> None:
    assert drawn(Sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8)) == ["\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"]
    assert drawn(Sparkline([7.0, 0.0], 8), is_ascii=True) == ["#_"]
    assert drawn(Sparkline([2.0, 2.0, 2.0], 8), is_ascii=True) == ["---"]


def test_values_that_share_a_column_are_averaged() -> None:
    assert drawn(Sparkline([0, 2, 14, 14, 8, 6], 3), is_ascii=True) == ["_#-"]  # 1, 14, 7: the last is 6/13 of the way up


def test_a_rising_line_goes_from_corner_to_corner() -> None:
    lines = drawn(Chart([Series(name="up", color="green", points=[(0, 1.0), (9, 2.0)])], LABEL + 1 + 10, 12), is_ascii=True)
    assert lines[0].split() == ["*", "up"]
    assert [line[LABEL + 1 :].strip("* ") for line in lines[1:11]] == [""] * 10
    assert [line[LABEL + 1 :].index("*") for line in lines[1:11]] == list(range(9, -1, -1))
    assert [line[:LABEL].strip() for line in (lines[1], lines[6], lines[10])] == ["2", "1.44", "1"]
    assert lines[11].split() == ["0", "9"]


def test_braille_has_eight_dots_a_cell() -> None:
    points = [(0, 0.0), (1, 0.0)]
    flat = Chart([Series(name="flat", color="green", points=points)], LABEL + 1 + 1, 3)
    assert drawn(flat)[1].strip().split()[-1] in {"\u2824", "\u2812"}  # two dots beside each other, in the middle


def test_one_point_is_a_dot_and_the_later_series_is_above() -> None:
    both = [Series(name=name, color="green", points=[(3, 1.0)]) for name in ("a", "b")]
    text = "\n".join(drawn(Chart(both, LABEL + 6, 5), is_ascii=True)[1:-1])
    assert text.count("+") == 1 and "*" not in text


def test_the_losses_are_those_of_the_rounds() -> None:
    status = replay(events())
    trained = run_losses.training_losses(status)
    assert [number for number, _ in trained] == list(range(24))
    both = [status.results[9, instance].loss for instance in (0, 1, 2) if (9, instance) in status.results]
    assert trained[9][1] == pytest.approx(sum(loss for loss in both if loss is not None) / len(both))
    heldout = dict(run_losses.heldout_losses(status))
    known = [result.heldout_loss for (number, _), result in status.results.items() if number == 9]
    assert heldout[9] == min(loss for loss in known if loss is not None)


def test_the_swarm_is_as_fast_as_its_plan_over_the_time_of_a_round() -> None:
    status = status_at("progress", 14, 2)
    plan = status.current_plan
    assert plan is not None
    ends = sorted({result.round: result.elapsed_seconds for result in status.results.values() if result.round < 14}.items())
    seconds = (ends[-1][1] - ends[-6][1]) / 5
    assert progress.swarm_tokens_per_second(status) == pytest.approx(plan.samples * TOKENS_PER_SAMPLE / seconds)
    assert progress.swarm_tokens_per_second(Status()) is None


def test_the_standing_names_place_and_part() -> None:
    status = status_at("progress", 14, 2)
    assert table_rows.standing(status) == "this peer: 1st of 3, 50% of the work"
    assert status.peer == THIS and table_rows.standing(Status()) == ""


def test_without_colours_two_curves_have_marks_of_their_own() -> None:
    """As with NO_COLOR=1: the same dots would not tell them apart."""
    one, other = (
        Series(name=name, color="green", points=[(0, level), (9, level)]) for name, level in (("up", 2.0), ("low", 1.0))
    )
    console = Console(file=io.StringIO(), width=60, no_color=True, force_terminal=True)
    with console.capture() as capture:
        console.print(Chart([one, other], LABEL + 1 + 10, 12))
    assert {"*", "+"} <= {*capture.get()}
    with console.capture() as capture:
        console.print(Chart([one], LABEL + 1 + 10, 12))
    assert "*" not in capture.get(), "one curve alone keeps its dots"
