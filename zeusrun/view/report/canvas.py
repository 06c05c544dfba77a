"""The parts of all figures: colours, panels, legends, dots; and how a figure becomes an SVG.

Sizes are in pixels.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import math
import re
import statistics
import threading
import warnings
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from zeusrun.plain_text import plain_text, storable_text
from zeusrun.view.report.markup import Html, tag
from zeusrun.view.units import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 680  # of every figure
LEFT, RIGHT = 38, 10
TEXT, SMALL = 10.0, 9.0
_FAR = 30.0  # if the largest value is so many times the median, the axis is logarithmic
_LABEL = 22  # letters of a name in a legend
_GOLDEN = 0.618034  # spreads dots evenly, and the same way every time
_LOCK = threading.Lock()  # the settings of matplotlib apply to the whole process


class Palette(NamedTuple):
    """Colours by role. ``sizes`` are those of batch sizes, the smallest one first."""

    ink: str
    muted: str
    grid: str
    surface: str
    good: str
    bad: str
    sizes: tuple[str, ...]

    def size(self, index: int, count: int) -> str:
        """Return the colour of a batch size, as far from the others as possible."""
        last = len(self.sizes) - 1
        return self.sizes[round(index * last / max(1, count - 1))]


LIGHT = Palette(
    ink="#1d2026",
    muted="#5a616e",
    grid="#e4e6ea",
    surface="#ffffff",
    good="#0b6e4f",
    bad="#a4480f",
    sizes=(
        *("#4a3fa3", "#2a6fc9", "#0b869c", "#1d8a4b"),
        *("#768200", "#b37100", "#c24d1a", "#a62a5e"),
    ),
)
DARK = Palette(
    ink="#e7e9ed",
    muted="#a1a8b5",
    grid="#2f343d",
    surface="#15171c",
    good="#6ad0a5",
    bad="#f2a56b",
    sizes=(
        *("#a99dff", "#6fabf6", "#46c2d4", "#62cd8b"),
        *("#c1cb4d", "#efb34c", "#f4905f", "#ef82b0"),
    ),
)
# Colours that stand for CSS variables until the SVG is written into a page.
STAND_INS = Palette(
    *("#010001", "#010002", "#010003", "#010004", "#010005", "#010006"),
    sizes=tuple(f"#01010{index}" for index in range(len(LIGHT.sizes))),
)


def named_colours(palette: Palette) -> dict[str, str]:
    """Return the colours by their names in CSS: ``ink``, and so on, and ``s0`` for a batch size."""
    named = {name: colour for name, colour in palette._asdict().items() if name != "sizes"}
    return {**named, **{f"s{index}": colour for index, colour in enumerate(palette.sizes)}}


class Dot(NamedTuple):
    """A run, or a recurrence: where it stands, and whether it reached the target."""

    x: float
    y: float
    size: int  # index of the batch size
    reached: bool = True


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draw and write within this: the user's own style of matplotlib has no effect."""
    import matplotlib as mpl  # noqa: PLC0415 - optional, and slow to import

    with _LOCK, mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rc("svg", fonttype="none", hashsalt="zeusrun")
        mpl.rc("text", parse_math=False)  # a dollar in a name is a dollar
        mpl.rc("font", size=TEXT)
        warnings.simplefilter("ignore")  # a font without a letter of a name
        yield


def blank(height: float) -> Figure:
    """Return an empty figure of a height in pixels."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    return Figure(figsize=(WIDTH / 72, height / 72))


def add_panel(
    figure: Figure,
    palette: Palette,
    place: tuple[float, float, float, float],
    grid: Literal["x", "y"] = "y",
) -> Axes:
    """Add a panel; ``place``: left, top, width and height in pixels."""
    left, top, width, height = place
    whole = figure.get_figheight() * 72
    box = (left / WIDTH, 1 - (top + height) / whole, width / WIDTH, height / whole)
    panel = figure.add_axes(box)
    panel.patch.set_visible(False)
    panel.spines[:].set_visible(False)
    panel.tick_params(colors=palette.muted, length=0, labelsize=SMALL)
    panel.grid(axis=grid, color=palette.grid, lw=0.8)
    panel.set_axisbelow(True)
    panel.locator_params(nbins=5)
    return panel


def set_title(panel: Axes, text: str, palette: Palette) -> None:
    """Write what a panel shows above its left end."""
    panel.set_title(label_text(text), loc="left", fontsize=TEXT, color=palette.muted, pad=6, x=0.0)


def set_label(
    panel: Axes, text: str, palette: Palette, size: float = TEXT, pad: float | None = None
) -> None:
    """Write what a panel is drawn against below it."""
    panel.set_xlabel(text, color=palette.muted, fontsize=size, labelpad=pad)


def add_legend(
    figure: Figure, names: Sequence[str], palette: Palette, used: Collection[int]
) -> None:
    """Name the colours at the top: of all ``names``, those that are ``used``."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - optional, and slow to import

    shown = sorted(used)
    if not shown:
        return
    handles = [
        Line2D([], [], marker="o", ls="", ms=6.5, mew=0, color=palette.size(at, len(names)))
        for at in shown
    ]
    legend = figure.legend(
        handles,
        [label_text(names[at], _LABEL) for at in shown],
        ncols=_columns([names[at] for at in shown]),
        loc="upper left",
        frameon=False,
        fontsize=TEXT,
        labelcolor=palette.ink,
        handletextpad=0.1,
        columnspacing=2.0,  # on a phone, letters are larger
        borderpad=0.0,
        borderaxespad=0.0,
        bbox_to_anchor=((LEFT - 8) / WIDTH, 1.0 - 3 / (72 * figure.get_figheight())),
    )
    legend.set_in_layout(False)


def _columns(labels: Sequence[str]) -> int:
    """Return how many entries of a legend stand in a line."""
    widest = 38 + 6.5 * max(len(label_text(label, _LABEL)) for label in labels)
    return max(1, min(len(labels), int(WIDTH / widest)))


def legend_lines(labels: Sequence[str]) -> int:
    """Return how many lines a legend needs."""
    return math.ceil(len(labels) / _columns(labels)) if labels else 1


def scatter(
    panel: Axes, dots: Sequence[Dot], sizes: int, palette: Palette, size: float = 5.6
) -> None:
    """Draw dots in the colours of their batch sizes; crosses did not reach the target."""
    for index in sorted({dot.size for dot in dots}):
        for reached, style in ((True, "o"), (False, "x")):
            alike = [dot for dot in dots if dot.size == index and dot.reached is reached]
            if alike:
                panel.plot(
                    [dot.x for dot in alike],
                    [dot.y for dot in alike],
                    style,
                    color=palette.size(index, sizes),
                    ms=size,
                    mew=0.0 if reached else 1.2,
                    alpha=0.85,
                )


def annotate(panel: Axes, points: Iterable[tuple[float, float, str]]) -> None:
    """Name points of a panel, each with its two values, for a page that shows the nearest name."""
    vars(panel).setdefault(_NAMED, []).extend(points)


_NAMED = "zeusrun_points"
_MOST_POINTS = 800  # of a figure that are named


def _place_points(figure: Figure) -> Html:
    """Return the named points as JSON: ``[x, y, name]``, in pixels of the SVG element."""
    scale, height = 72 / figure.dpi, 72 * figure.get_figheight()
    found: list[tuple[float, float, str]] = []
    for panel in figure.axes:
        for x, y, name in vars(panel).get(_NAMED, ()):
            right, up = panel.transData.transform((x, y))
            if math.isfinite(right) and math.isfinite(up):
                found.append((round(right * scale, 1), round(height - up * scale, 1), name))
    step = -(-len(found) // _MOST_POINTS) or 1
    text = json.dumps(found[::step], separators=(",", ":"))
    return tag("metadata", Html(html.escape(text, quote=False))) if found else Html()


def label_text(text: str, width: int = 48) -> str:
    """Return a name in one line that a figure can show."""
    return shortened(" ".join(plain_text(storable_text(text)).split()), width)


def dashes(palette: Palette) -> dict[str, Any]:
    """Return the style of a line that is no run: a target, a limit, the default."""
    return {"color": palette.muted, "lw": 1.0, "ls": (0, (4, 3))}


def shift(number: int, count: int) -> float:
    """Return where one of ``count`` dots stands beside its line, from -0.3 to 0.3; one: 0."""
    return 0.0 if count == 1 else 0.6 * (number * _GOLDEN % 1.0 - 0.5)


def limit(panel: Axes, axis: Literal["x", "y"], values: Sequence[float]) -> None:
    """Begin an axis at 0; it is logarithmic if one value is far from the others."""
    known = [value for value in values if value > 0]
    if known and max(known) > _FAR * statistics.median(known):
        panel.set(**{f"{axis}scale": "log"})
    else:
        panel.set(**{f"{axis}lim": (0, 1.08 * max(known, default=1.0))})


_VARIABLES = {colour: f"var(--{name})" for name, colour in named_colours(STAND_INS).items()}
_NOTHING = {"Date": None, "Creator": None, "Format": None, "Type": None}


def inline_svg(figure: Figure, name: str, label: str) -> Html:
    """Return a figure as an SVG element for a page; call it within ``drawing``.

    Args:
        figure: Drawn with the colours of ``STAND_INS``; they become CSS variables.
        name: Makes every id unique in the page.
        label: For people who do not see it.
    """
    import matplotlib as mpl  # noqa: PLC0415 - optional, and slow to import

    target = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):  # of ids that are referred to
        figure.savefig(target, format="svg", transparent=True, metadata=_NOTHING)
    text = _TAG.sub(_shrink, _LEFT_OUT.sub("", target.getvalue()))
    head, _, inside = text.partition("<svg")[2].rpartition("</svg>")[0].partition(">")
    box = head.partition('viewBox="')[2].partition('"')[0]
    return tag(
        "svg", Html(inside), _place_points(figure), viewBox=box, role="img", aria_label=label
    )


def _attributes(style: re.Match[str]) -> str:
    """Return a style as attributes: the CSP of a server's pages permits no inline styles."""
    pairs = (part.partition(":") for part in style[1].split(";") if part.strip())
    found = {key.strip(): value.strip() for key, _, value in pairs}
    found.pop("font-family", None)  # the page chooses it
    return "".join(f' {key}="{value}"' for key, value in found.items())


def _shrink(element: re.Match[str]) -> str:
    """Return a tag made small; texts between tags, such as the name of a metric, stay."""
    text = element[0]
    for pattern, new in _IN_TAGS:
        text = pattern.sub(new, text)
    return _NUMBER.sub(lambda found: f"{round(float(found[0]), 2):g}", text)


_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_IN_TAGS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r' id="[\w.]+_\d{1,9}"'), ""),  # it only names what is drawn; others are hashes
    (re.compile("xlink:href"), "href"),
    (re.compile(r'font:[^;"]*?([\d.]+)px[^;"]*'), r"font-size: \1px"),  # before matplotlib 3.9
    (re.compile(r' style="([^"]*)"'), _attributes),
    (re.compile(r"#[0-9a-f]{6}"), lambda found: _VARIABLES.get(found[0], found[0])),
)
"""What makes the SVG of matplotlib small and fit for a page."""
_LEFT_OUT = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->|\s*\n\s*", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
