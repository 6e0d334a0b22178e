"""Scales, ticks and escaping of the drawing module."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_realistic import realistic

from spectune.analysis.summary import summarize
from spectune.report import bars, charts, svg


def test_text_and_attributes_are_escaped():
    made = svg.el("text", "<b>&", class_='"x"', x=1.25)
    assert made == '<text class="&#34;x&#34;" x="1.2">&lt;b&gt;&amp;</text>'


@given(st.text(), st.text())
def test_any_text_gives_well_formed_xml(content, attribute):
    parsed = ElementTree.fromstring(str(svg.el("text", content, class_=attribute)))
    assert parsed.tag == "text"


def test_a_logarithmic_scale_puts_a_half_and_a_double_equally_far_from_one():
    scale = svg.Scale(0.25, 4, 0, 100, log=True)
    assert scale(1) == pytest.approx(50)
    assert scale(1) - scale(0.5) == pytest.approx(scale(2) - scale(1))


def test_values_outside_a_scale_land_on_its_edge():
    scale = svg.Scale(1, 2, 10, 20)
    assert (scale(-5), scale(99)) == (10, 20)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (38, 101, [40, 60, 80, 100]), (0.95, 2.4, [1, 1.5, 2])],
)
def test_ticks_are_round(low, high, ticks):
    assert svg.nice_ticks(low, high, about=5) == pytest.approx(ticks)


def test_one_is_always_a_tick_of_a_ratio_scale():
    for values in ([0.2, 0.3], [3.0, 9.0], []):
        scale = svg.ratio_scale(values, start=0, end=300)
        assert 1.0 in svg.ratio_ticks(scale, apart=40)


@given(st.lists(st.floats(min_value=0.01, max_value=100), max_size=6))
def test_ratio_ticks_never_touch(values):
    scale = svg.ratio_scale(values, start=0, end=300)
    places = [scale(tick) for tick in svg.ratio_ticks(scale, apart=40)]
    assert all(b - a >= 40 - 1e-6 for a, b in itertools.pairwise(places))


@pytest.mark.parametrize(
    "draw",
    [
        charts.speed_against_acceptance,
        charts.acceptance_by_position,
        bars.speedup_by_category,
        bars.where_time_went,
    ],
)
@pytest.mark.parametrize("width", [344.0, 860.0])
def test_charts_are_well_formed_and_stay_inside_their_frame(draw, width):
    made = draw(summarize(*realistic()), width=width, key="k")
    root = ElementTree.fromstring(str(made))
    frame = [float(v) for v in root.attrib["viewBox"].split()]
    for node in root.iter():
        for name, limit in (
            ("x", frame[2]),
            ("x1", frame[2]),
            ("x2", frame[2]),
            ("cx", frame[2]),
            ("cy", frame[3]),
        ):
            if name in node.attrib:
                assert -0.1 <= float(node.attrib[name]) <= limit + 0.1, (node.tag, node.attrib)


def test_an_interval_far_wider_than_its_value_does_not_stretch_the_scale():
    of, trials = realistic()
    load = summarize(of, trials).arms[1].first
    assert load is not None and load.speedup is not None
    wild = load.model_copy(update={"speedup": load.speedup.model_copy(update={"low": 1e-9, "high": 1e9})})
    scale = bars.speedup_scale([wild], start=0, end=100)
    assert scale.low > 0.1 and scale.high < 10
