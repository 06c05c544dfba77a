"""The page of a report: well-formed, escaped, and loading nothing."""

from __future__ import annotations

import html
import json
import operator
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tests.view.report.values import noise_curve, resized, run, run_by_samples
from zeusrun.bandit.problem import ArmBelief
from zeusrun.energy.power_trace import PowerSpan, PowerTrace
from zeusrun.reasons import Stall
from zeusrun.trial import EnergySource, Stage, TrialStatus
from zeusrun.view.belief import Belief
from zeusrun.view.columns import Column
from zeusrun.view.report.canvas import (
    DARK,
    LIGHT,
    STAND_INS,
    drawing,
    inline_svg,
    shift,
)
from zeusrun.view.report.facts import JobReport, build_facts, build_power
from zeusrun.view.report.figures import (
    DRAWN_RUNS,
    FIGURES,
    draw,
)
from zeusrun.view.report.markup import Html, escape, moment, table, tag
from zeusrun.view.report.page import (
    draw_picture,
    job_page,
    reports_json,
)
from zeusrun.view.report.sections import Frame, job_sections
from zeusrun.view.units import UNKNOWN

EVIL = "</script><script>alert('$x$ & \x00\x1b[31m \u202e')</script>\ud800"
VOID = {"meta", "link"}


class Checker(HTMLParser):
    """Checks that elements nest, and gathers ids, references and texts."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.refers, self.tags = [], [], [], []

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        for key, value in attributes:
            if key == "id":
                self.ids.append(value)
            self.refers += (
                re.findall(r"#([\w-]+)", value or "") if key in {"href", "clip-path"} else []
            )
            assert not (key in {"src", "href"} and re.match(r"\w+:", value) and value != "data:,")
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name


def check(text):
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    assert set(checker.refers) <= set(checker.ids)
    return checker


def trace(points=30):
    spans = tuple(
        PowerSpan(10.0 * n, 500.0, 600.0 + n, 700.0 + n, 800.0 if n < 9 else None, n % 7 == 0)
        for n in range(points)
    )
    return PowerTrace(spans, 2, whole=False, throttled={"hw_slowdown": 0.1, "new_reason": 0.2})


@pytest.fixture(scope="module")
def report():
    evil = {"metric": EVIL, "reason": EVIL, "variant": EVIL, "gpu_model": EVIL}
    stalls = (Stall(62.0, 0.4, "rank 1", EVIL),)
    trials = [
        run(1, 32, price=0.1, currency=EVIL, carbon_g=5.0),
        run(2, 64, 0.5, status=TrialStatus.STOPPED, **evil),
        run(2, 128, 0.7, attempt=2, stalls=stalls, **evil),
        run(3, 128, 0.7, noise_curve=noise_curve(), power_limit_w=300.0),
        run(4, 128, 0.7, noise_curve=noise_curve(9.0), **evil),
        resized(5, 32),
    ]
    arms = (
        ArmBelief(global_batch_size=32, trials=1, reached=1, chance=0.0, verdict=EVIL),
        ArmBelief(global_batch_size=64, trials=0, reached=0, chance=1.0, verdict=EVIL),
    )
    power = (build_power(trials[0], trace()), build_power(trials[3], trace(1)))
    return JobReport(build_facts(EVIL, trials), Belief(arms, (EVIL, EVIL), EVIL), power)


def page_of(reports):
    return job_page(reports, "today")


@pytest.mark.parametrize("count", [1, 2])
def test_the_page_is_well_formed_and_whatever_a_name_holds_is_text(report, count):
    text = page_of([report] * count)
    checker = check(text)
    assert checker.tags.count("script") == 1  # the own one, which the policy names
    assert checker.tags.count("h1") == 1
    assert not re.search("[\x00\x1b\u202e]", text)
    text.encode()
    assert checker.tags.count("svg") >= 5 * count
    assert "alert(&#x27;$x$ &amp; " in text


def test_every_figure_has_a_label_and_a_table(report):
    text = page_of([report])
    figures = re.findall(r'<svg viewBox="0 0 (\d+) [^"]*" role="img" aria-label="[^"]{40,}"', text)
    assert figures == ["680"] * len(FIGURES)
    assert len(re.findall(r"<table>", text)) >= len(FIGURES)
    assert len(re.findall(r"<caption>", text)) == len(re.findall(r"<table>", text))


def test_the_only_colours_of_a_figure_are_those_of_the_theme(report):
    with drawing():
        figure = draw("cost", report, STAND_INS)
        svg = inline_svg(figure, "name", 'a "label" <b>')
    ET.fromstring(svg)
    assert not re.search(r"#[0-9a-f]{6}", svg)
    assert {f"var(--{name})" for name in ("muted", "grid", "s0", "s7")} <= set(
        re.findall(r"var\(--\w+\)", svg)
    )
    assert "DejaVu" not in svg
    assert not re.search(r"\d\.\d{3}", svg)


def test_figures_are_deterministic_and_a_thousand_dots_are_small():
    def svg(count):
        trials = [run(n, (32, 64)[n % 2], 1 + n % 17 / 20) for n in range(1, count + 1)]
        with drawing():
            report = JobReport(build_facts("job", trials))
            return inline_svg(draw("cost", report, STAND_INS), "a", "label")

    assert svg(40) == svg(40)
    assert len(svg(1000)) < 120_000


def test_without_anything_to_draw_there_is_no_figure_but_a_page():
    facts = build_facts("job", [run(1, 32, None, cost_j=None, curve=(), status=TrialStatus.LOST)])
    assert [draw(name, JobReport(facts), LIGHT) for name in FIGURES] == [None] * len(FIGURES)
    text = page_of([JobReport(facts, Belief(missing="unknown: no job file"))])
    check(text)
    assert "unknown: no job file" in text
    assert "<figure>" not in text


def test_the_changes_of_the_ranks_are_a_table():
    text = page_of([JobReport(build_facts("job", [resized(1)]))])
    cells = re.findall(r"<td[^>]*>([^<]*)", text[text.index("Changes of the ranks") :])
    rows = ["1", "0", "2.0 s", UNKNOWN, "320"], ["2", "100", "2.9 s", "65 ms", "480"]
    for row in (*rows, ["1", "250", "50 ms", "110 ms", "160"]):
        assert cells[:5] == row
        cells = cells[5:]


@pytest.mark.parametrize("steps", [None, 0, 200, 10**9])
def test_ranks_are_drawn_whatever_is_known_of_the_steps(steps):
    with drawing():
        figure = draw("ranks", JobReport(build_facts("job", [resized(steps=steps)])), STAND_INS)
        above, below = figure.axes
        assert above.get_xlim() == below.get_xlim() == (0, max(250, steps or 0))
        inline_svg(figure, "ranks", "label")


@pytest.mark.parametrize("cost", [0.0, 1e-12, 1e29, 1e300])
def test_odd_costs_are_drawn_or_left_out(cost):
    facts = build_facts("job", [run(1, 32, cost / 3.6e6), run(2, 64), run(3, 64)])
    with drawing():
        for name in ("cost", "curves", "arms"):
            inline_svg(draw(name, JobReport(facts), STAND_INS), name, "label")


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_of_a_figure_lies_outside_of_it(report, name):
    trials = [run(n, 2**n, n / 9, noise_curve=noise_curve(2**n)) for n in range(3, 15)]
    trials += [resized(n, 64) for n in (15, 16, 17)]
    trials += [run(18, 64, None, status=TrialStatus.FAILED)]
    legend = JobReport(build_facts("job", trials), None, report.power)  # of several lines
    with drawing():
        for each in (report, legend if name != "power" else report):
            figure = draw(name, each, LIGHT)
            box = figure.get_tightbbox(FigureCanvasAgg(figure).get_renderer())
            size = figure.get_size_inches()
            assert -0.03 <= box.x0 < box.x1 <= size[0] + 0.03, name
            assert -0.03 <= box.y0 < box.y1 <= size[1] + 0.03, name


def recurrences(report):
    """Return the section of the recurrences."""
    frame = Frame(lambda _: Html("<svg></svg>"))
    return next(body for name, _, body in job_sections(report, frame) if name == "recurrences")


def test_a_figure_names_its_values_and_recurrences_of_unknown_cost():
    trials = [run(1, 32), run(2, 64, 0.5), run(3, 64, 0.5)]
    trials += [run(4, 128, None, status=TrialStatus.FAILED, cost_j=None)]
    trials += [run(n, 32, 2.0, stage=Stage.FORCED) for n in (5, 6)]
    report = JobReport(build_facts("job", trials))
    svg = draw_picture(report, "cost")
    box = [float(each) for each in re.search('viewBox="([^"]*)"', svg)[1].split()]
    points = json.loads(html.unescape(svg.partition("<metadata>")[2].partition("</metadata>")[0]))
    names = [name for *_, name in points]
    assert "recurrence 2 · batch size 64 · 1.80 MJ of cost" in names
    assert "recurrence 4 · batch size 128 · FAILED · unknown cost" in names
    assert all(0 <= x <= box[2] and 0 <= y <= box[3] for x, y, _ in points)
    section = recurrences(report)
    assert "A cross at the bottom marks an unknown cost (1 recurrence)." in section
    assert "end before the last 3: these cannot be compared with the default." in section
    forced = JobReport(build_facts("job", [*trials[:3], *trials[4:]]))
    section = recurrences(forced)
    assert "the last 2: these are not compared, because their batch size was forced." in section


def test_a_recurrence_that_ended_without_a_model_has_saved_nothing():
    trials = [run(1, 32), run(2, 64, 0.5), run(3, 64, 0.1, status=TrialStatus.FAILED)]
    report = JobReport(build_facts("job", [*trials, run(4, 64, 0.5)]))
    assert "1 recurrence ended without a model: saved nothing, took 360 kJ." in recurrences(report)


def test_elements_escape_texts_and_keep_html():
    assert (
        tag("p", "<b>", Html("<i>x</i>"), class_='a"b')
        == '<p class="a&quot;b">&lt;b&gt;<i>x</i></p>'
    )
    assert escape(escape("&")) == "&amp;"


def test_a_column_of_which_nothing_is_known_is_left_out():
    rows = [
        {"run": UNKNOWN, "cost": UNKNOWN, "time": "1 s"},
        {"run": "b", "cost": UNKNOWN, "time": ""},
    ]
    columns = [Column(name, operator.itemgetter(name)) for name in rows[0]]
    heads = re.findall(r'<th scope="col"[^>]*>([^<]*)', table("caption", columns, rows))
    assert heads == ["run", "time"]
    assert table("caption", columns, []) == ""


def test_a_heading_of_a_sorted_table_is_a_link_and_shows_the_direction():
    columns = [Column(name, operator.itemgetter(name)) for name in ("run", "cost", "why")]
    headings = {"cost": ("?sort=cost", "descending"), "run": ("?sort=run", None)}
    text = table(
        "caption", columns, [dict.fromkeys(("run", "cost", "why"), "1")], heading=headings.get
    )
    assert '<th scope="col"><a href="?sort=run">run</a></th>' in text
    assert 'class="n" aria-sort="descending"><a href="?sort=cost">cost</a></th>' in text
    assert ">why</th>" in text


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        (
            "2026-03-01T23:30:00+02:00",
            '<time datetime="2026-03-01T21:30:00Z">2026-03-01 21:30</time>',
        ),
        (None, UNKNOWN),
        ("no time, and much more", "no time, and muc"),
    ],
)
def test_a_time_says_which_moment_it_is(recorded, shown):
    assert moment(recorded) == shown


def test_what_recurrences_saved_has_a_range():
    trials = [run(n, 32, 1.0) for n in range(1, 5)] + [run(n, 64, 0.4) for n in range(5, 16)]
    text = page_of([JobReport(build_facts("job", trials))])
    found = re.search(r"<table><caption>Recurrences.*?</table>", text, re.DOTALL)
    saved = re.findall(r'<span class="folds">([^<]*)</span>', found[0])
    assert saved
    assert all(re.fullmatch(r"\S+\s% \(\S+\sto\s\S+\s%\)", each) for each in saved)


def test_a_text_without_end_is_cut():
    assert len(escape("x" * 1_000_000)) == 2000


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_colours_are_readable(palette):
    """WCAG 2.2: 4.5 for text, 3 for what a figure shows."""

    def contrast(colour):
        high, low = sorted([luminance(colour), luminance(palette.surface)], reverse=True)
        return (high + 0.05) / (low + 0.05)

    assert min(map(contrast, (palette.ink, palette.muted, palette.good, palette.bad))) >= 4.5
    assert min(map(contrast, palette.sizes)) >= 3
    assert palette.size(0, 1) == palette.sizes[0]
    assert [palette.sizes.index(palette.size(at, 12)) for at in (0, 11)] == [0, 7]


def test_a_figure_names_only_the_batch_sizes_that_it_draws():
    trials = [run(1, 32), run(2, 64, None, cost_j=None, status=TrialStatus.LOST, curve=())]
    facts = build_facts("job", trials)
    with drawing():
        for name in ("cost", "curves"):
            figure = draw(name, JobReport(facts), LIGHT)
            assert [text.get_text() for text in figure.legends[0].get_texts()] == ["32"]


def test_a_single_dot_stands_in_the_middle_of_its_row():
    assert (shift(0, 1), shift(0, 2)) == (0.0, -0.3)
    with drawing():
        panel = draw("arms", JobReport(build_facts("job", [run(1, 32)])), LIGHT).axes[0]
    assert list(panel.lines[0].get_ydata()) == [0.0]


@pytest.mark.long  # figures of ten jobs
def test_of_many_jobs_all_are_listed_and_those_that_ran_last_are_shown():
    reports = [
        JobReport(
            build_facts(f"job-{n}", [run(1, 32, started_at=f"2026-01-{n:02}T01:00:00+00:00")])
        )
        for n in (12, *range(1, 12))
    ]
    text = page_of(reports)
    check(text)
    assert all(f"job-{n}</" in text for n in range(1, 13))
    assert set(re.findall(r'class="job"[^>]*>(job-\d+)', text)) == {
        f"job-{n}" for n in range(3, 13)
    }
    assert "the 10 jobs that ran last. `zeusrun report JOB`" in text


def test_runs_that_are_no_dots_are_named_below_the_figure():
    trials = [run(1, 32), *(run(n, 32, shared=True) for n in (2, 3))]
    text = page_of([JobReport(build_facts("job", trials))])
    assert "cannot be compared: shared its devices (2 runs)." in text


def test_of_a_long_job_the_newest_runs_are_dots_and_the_page_says_so():
    trials = [run(n, 32) for n in range(1, DRAWN_RUNS + 2)]
    pages = [page_of([JobReport(build_facts("job", part))]) for part in (trials[:-1], trials)]
    dots = [page.count("<use ") for page in pages]
    assert dots[0] >= 2 * DRAWN_RUNS
    assert abs(dots[1] - dots[0]) < 20  # ticks
    assert "Every run whose cost can be compared is a dot" in pages[0]
    assert f"The dots are the newest {DRAWN_RUNS} recurrences" in pages[1]
    assert f"The newest {DRAWN_RUNS} runs of each batch size are dots" in pages[1]


def test_curves_by_samples_have_an_axis_of_samples_with_short_numbers():
    facts = build_facts("job", [run_by_samples(n, 32 * n, 2_000_000 * n) for n in (1, 2)])
    with drawing():
        drawn = draw("curves", JobReport(facts), LIGHT)
        FigureCanvasAgg(drawn).draw()
    panel = drawn.axes[0]
    assert panel.get_xlabel() == "samples"
    labels = [label.get_text() for label in panel.get_xticklabels()]
    assert {"0", "1M", "4M"} <= set(labels)
    text = page_of([JobReport(facts)])
    assert ">4,000,000</td>" in text
    assert ">epochs<" not in text


def draw_noise(*trials):
    with drawing():
        figure = draw("noise", JobReport(build_facts("job", trials)), LIGHT)
        FigureCanvasAgg(figure).draw()
    return figure


def test_noise_scales_are_lines_with_their_ranges_and_lower_bounds_are_dotted():
    trials = [run(1, 32), run(2, 64, noise_curve=noise_curve()), run(3, 64)]
    figure = draw_noise(*trials)
    (panel,) = figure.axes
    solid, dotted = panel.lines
    assert [line.get_linestyle() for line in (solid, dotted)] == ["-", ":"]
    x = [0.75 + n for n in range(6)]
    assert list(solid.get_xdata()) == list(dotted.get_xdata()) == x
    assert [y for y in solid.get_ydata() if y == y] == [80, 160, 320, 640]  # noqa: PLR0124 - NaN
    assert list(dotted.get_ydata())[-2:] == [0.7 * 1280, 0.7 * 2560]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["64"]
    assert (panel.get_xlabel(), panel.get_yscale()) == ("epoch", "log")
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert {"100", "200", "500", "1k", "2k"} <= set(labels)
    assert not any("$" in text for text in labels)
    low, high = panel.get_ylim()
    assert not [y for y in panel.yaxis.get_minorticklocs() if low < y < high]


def test_noise_scales_of_a_job_by_samples_are_against_samples():
    curve = noise_curve(data=500_000)
    panel = draw_noise(run_by_samples(1, 32, 3_000_000, noise_curve=curve)).axes[0]
    assert panel.get_xlabel() == "samples"
    assert "1M" in [label.get_text() for label in panel.get_xticklabels()]


def test_the_section_of_noise_scales_has_a_table_and_says_what_they_are_not():
    trials = [run(n, 32 * n, noise_curve=noise_curve(40 * n, known=3 + n)) for n in (1, 2, 3)]
    text = page_of([JobReport(build_facts("job", trials))])
    check(text)
    assert "Noise scale</h" in text
    assert ">at least 1,790</td>" in text
    assert ">7,680 (5,380 to 11,500)</td>" in text
    assert "Do not use the noise scale as a batch size." in text
    assert "Noise scale</h" not in page_of(
        [JobReport(build_facts("job", [run(1, 32), run(2, 64)]))]
    )


TRIALS = [run(1, 32, price=0.31, currency="EUR", carbon_g=400.0), run(2, 64, 0.5)]


def test_sums_of_which_a_part_is_unknown_or_estimated_are_marked():
    trials = [run(1, 32, energy_source=EnergySource.ESTIMATED), run(2, 32, None, cost_j=None)]
    text = page_of([JobReport(build_facts("job", trials))])
    assert "at least 1.00 kWh, estimated, known for 1 of 2 runs" in text
    text = page_of([JobReport(build_facts("job", [*trials, run(3, 32)]))])
    assert ", partly estimated, " in text
    text = page_of([JobReport(build_facts("job", TRIALS))])
    assert "at least 400 g CO2e, known for 1 of 2 runs" in text
    assert "at least 0.31 EUR, known for 1 of 2 runs" in text
    assert "estimated" not in text


def test_a_text_of_any_bytes_can_be_written():
    trials = [run(1, 32, metric="a\ud800\x1b[31m", gpu_model="\udcff", reason="\ud800" * 9)]
    facts = build_facts("job", trials)
    assert json.loads(reports_json([JobReport(facts)]).encode())["jobs"][0]["metric"][:2] == "a?"


def test_json_has_everything():
    report = JobReport(build_facts("job", TRIALS))
    found = json.loads(reports_json([report]))
    (job,) = found["jobs"]
    assert job["saves"] is None  # two runs show nothing
    assert set(job["savings"]["net"]) == {"value", "low", "high"}
    assert [each["recurrence"] for each in job["recurrences"]] == [1, 2]
    assert job["net"]["energy_j"]["high"] > 0
    assert job["sizes"][0]["label"] == "32"


@pytest.mark.parametrize(
    "metric",
    [
        's style="x:1;a:onclick=alert(1) b;x:',
        "font: 5px",
        'm id="a_1" xlink:href',
        "#1b1f24 0.123456",
    ],
)
def test_the_name_of_a_metric_stays_text_in_a_figure(metric):
    facts = build_facts("job", [run(n, 32, metric=metric) for n in range(1, 4)])
    page = page_of([JobReport(facts, Belief((), (), ""), ())])
    svgs = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    texts = [each.text for svg in svgs for each in ET.fromstring(svg).iter("text")]
    assert metric in texts
    assert all("onclick" not in each.attrib for svg in svgs for each in ET.fromstring(svg).iter())
