"""Numbers and foreign text as a person reads them."""

from __future__ import annotations

import pytest

from spectune.analysis.words import bounds_of_ratio, number, one_line, percent, seconds, times, visible
from spectune.domain.interval import Interval


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0.00"),
        (0.012, "0.012"),
        (1.2345, "1.23"),
        (12.345, "12.3"),
        (99.96, "100"),
        (1234.5, "1234"),
    ],
)
def test_numbers_have_three_digits(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0 %"),
        (0.0001, "<0.1 %"),
        (0.02, "2 %"),
        (0.0234, "2.3 %"),
        (0.956, "96 %"),
        (1.0, "100 %"),
    ],
)
def test_shares_are_percent(value, shown):
    assert percent(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0123, "12.3 ms"), (3.21, "3.21 s"), (200.4, "3 min 20 s"), (3904, "1 h 05 min")],
)
def test_times_have_their_unit(value, shown):
    assert seconds(value) == shown


def test_a_speedup_without_spread_has_no_brackets():
    assert times(Interval(value=1.5, low=None, high=None, n=1, unit="x")) == "1.50x"


def test_escape_sequences_vanish_and_controls_become_visible():
    assert visible("\x1b[31mred\x1b[0m \x1b]0;title\x07ok\x00\u202e") == "red ok\ufffd\ufffd"


def test_newlines_and_tabs_stay_in_text_and_vanish_from_a_line():
    assert visible("a\r\nb\tc") == "a\nb\tc"
    assert one_line("a\r\nb\tc") == "a b c"


def test_an_interval_that_says_nothing_is_shown_so() -> None:
    hopeless = Interval(value=1.2, low=0.0000012, high=62809.0, n=16, unit="x baseline")
    assert bounds_of_ratio(hopeless) == "[<0.01, >100]"
