"""Plots of characters: axes, marks, colours, ASCII."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.analysis.plots import Plot, Series
from zeusrun.errors import UsageError
from zeusrun.view.console import PlainConsole
from zeusrun.view.terminal_plot import build_axis, draw_plot


@pytest.fixture(autouse=True)
def _plotext():
    pytest.importorskip("plotext")


PLOT = Plot(
    "job: cost",
    ("recurrence", ""),
    "J",
    [Series("one", [(1, 100.0), (2, 300.0)]), Series("two", [(3, 200.0)]), Series("none", [])],
    ("mean", 250.0),
    notes=["left out: 1 run"],
)


def render(plot, encoding="utf-8", width=60, **options):
    console = PlainConsole(file=io.StringIO(), width=width, **options)
    console.print(draw_plot(plot, width, encoding), soft_wrap=True)
    return console.file.getvalue()


def test_a_plot_has_title_legend_axes_and_notes():
    lines = render(PLOT).splitlines()
    assert lines[0] == "job: cost"
    assert lines[1] == "● one   ▲ two   ┈┈ mean"
    assert lines[-2].strip() == "recurrence"
    assert lines[-1] == "left out: 1 run"
    canvas = "\n".join(["", *lines[2:]])
    assert (canvas.count("●"), canvas.count("▲")) == (2, 1)
    assert all(f"\n{label:>5}┤" in canvas for label in ("0 J", "100 J", "200 J", "300 J"))
    assert max(map(len, lines)) <= 60
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("width", [24, 32])
def test_a_plot_fits_a_narrow_screen(width):
    long = PLOT._replace(
        title="a job with a long name: cost of each recurrence", notes=["left out: 12 runs"]
    )
    lines = render(long, width=width).splitlines()
    assert max(map(len, lines)) <= width
    canvas = "\n".join(lines)
    assert (canvas.count("●"), canvas.count("▲")) == (3, 2)  # with those of the legend
    assert "300 J┤" in canvas


def test_colour_adds_nothing_but_colour():
    coloured = render(PLOT, force_terminal=True, color_system="standard", no_color=False)
    assert "\x1b[36m●" in coloured
    plain = render(PLOT)
    assert [line.count("●") for line in coloured.splitlines()] == [
        line.count("●") for line in plain.splitlines()
    ]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "no such", None])
def test_ascii_has_a_mark_for_each_series(encoding):
    rows = PLOT._replace(series=[*PLOT.series[:2], Series("median", [(2, 1)], "median")])
    text = render(rows._replace(rows=["32 ×3", "64 ×1"], level=None), encoding)  # noqa: RUF001
    assert text.isascii()
    assert "o one   ^ two   | median" in text
    assert "32 x3|" in text


@pytest.mark.parametrize("count", [1, 2, 9])
def test_each_row_has_a_line(count):
    names = [str(2**n) for n in range(count)]
    plot = Plot("t", ("cost", "J"), "", [Series("a", [(5.0, n + 1) for n in range(count)])])
    lines = render(plot._replace(rows=names)).splitlines()
    for name in names:
        (line,) = [line for line in lines if line.split("┤")[0].strip() == name]
        assert "●" in line


def test_one_point_is_enough():
    assert "●" in render(Plot("t", ("epoch", ""), "", [Series("a", [(1, 0.5)])]))


@pytest.mark.parametrize(
    ("values", "unit", "labels"),
    [
        ([1, 23], "", ["5", "10", "15", "20"]),
        ([1, 2], "", ["1", "2"]),
        ([0.52, 0.97], "", ["0.6", "0.7", "0.8", "0.9"]),
        ([40.0, 410.0], "J", ["0 J", "100 J", "200 J", "300 J", "400 J"]),
        ([900.0, 4100.0], "J", ["0 kJ", "1 kJ", "2 kJ", "3 kJ", "4 kJ"]),
        ([0.0, 300.0], "s", ["0 min", "1 min", "2 min", "3 min", "4 min", "5 min"]),
        ([3.0], "", ["3"]),
        ([0.5], "", ["0.5"]),
    ],
)
def test_ticks_are_round_numbers_in_one_unit(values, unit, labels):
    assert list(build_axis(values, unit, 5).labels) == labels


@given(
    st.lists(st.floats(-1e30, 1e30, allow_subnormal=False), min_size=1, max_size=5),
    st.sampled_from(["", "J", "W", "s", "samples"]),
)
def test_every_value_is_within_its_axis(values, unit):
    axis = build_axis(values, unit, 5)
    assert axis.low < axis.high
    assert len(axis.ticks) == len(axis.labels) <= 8
    assert all(axis.low <= value <= axis.high + 1e-9 for value in values)


def test_without_plotext_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match="needs plotext; install zeusrun with its extra 'plot'"):
        draw_plot(PLOT, 80)
