import pytest

from adloco_p2p.views import units


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (float("nan"), "-"), (0, "0"), (7, "7"), (0.25, "0.25"), (999, "999"), (999.7, "1.00k"), (98_400, "98.4k")],
)
def test_count(value: float | None, text: str) -> None:
    assert units.count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-1.0, "0.0 s"),
        (9.84, "9.8 s"),
        (59.94, "59.9 s"),
        (59.99, "1m00s"),
        (272, "4m32s"),
        (7500, "2h05m"),
        (1e6, "11d13h"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert units.duration(seconds) == text


def test_sizes_are_decimal() -> None:
    assert units.size(34_500_000) == "34.5 MB"
    assert units.size(0) == "0 B"


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (40, "the two smallest requests"),
        (25, "the two smallest requests"),
        (24, "the two smallest..."),
        (19, "the two smallest..."),
        (18, "the two..."),
        (6, "the..."),
        (2, "th"),
        (0, ""),
    ],
)
def test_shorten_cuts_at_words(width: int, text: str) -> None:
    assert units.shorten("the two smallest requests", width) == text


def test_text_from_others_cannot_control_the_terminal() -> None:
    assert units.one_line("fine\x1b[2J\nor\tnot\u202e") == "fine?[2J or not?"


def test_what_was_trained_apart_has_a_short_name() -> None:
    assert units.instances((0, 63, 999_999)) == "0 + 63 + 999999"
    assert units.instances((0, 1_000_000, 1_417_042)) == "0 + apart-0 + apart-42"


def test_text_in_any_language_keeps_its_spaces_and_loses_what_draws() -> None:
    for kept in (
        "a\tb\n",
        "\u00c0\u00a0bient\u00f4t\u202f!",
        "\u4f60\u3000\u597d",
        "\u0645\u06cc\u200c\u062e",
        "\U0001f469\u200d\U0001f52c",
    ):
        assert units.printable(kept) == kept
    assert units.printable("a\r\nb\r\n") == "a\nb\n", "a model that learned from such files writes them"
    drawing = "\x00\x07\r\x1b\x7f\x9b\u00ad\u200e\u202e\u2028\u2066\ud800\ue000"
    assert set(units.printable(drawing)) == {"\N{REPLACEMENT CHARACTER}"}
