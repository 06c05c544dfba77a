"""Figures as files of their own: drawn once for each state of a job, in the colours of a theme."""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from zeusrun import __version__
from zeusrun.plugins import how_to_add
from zeusrun.view.report.canvas import DARK, LIGHT, STAND_INS, WIDTH, drawing
from zeusrun.view.report.figures import draw, figure_height
from zeusrun.view.report.markup import Html, join, tag
from zeusrun.view.report.svg import inline_svg, svg_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.view.report.facts import JobReport

THEMES = {"light": LIGHT, "dark": DARK}
NO_FIGURES = f"Figures need matplotlib where the server runs; {how_to_add('report')}"
_KEPT = 64  # figures, of about 20 kB


class Pictures:
    """Draws figures and keeps the newest; safe for threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._lock = threading.Lock()  # matplotlib's settings are those of the whole process

    def read(self, name: str, report: JobReport, version: str, theme: str) -> bytes | None:
        """Return a figure as an SVG file; ``None`` if nothing is known to draw.

        Args:
            name: One of ``FIGURES``.
            report: What it shows.
            version: Differs for reports that differ.
            theme: One of ``THEMES``.
        """
        with self._lock:
            inline = self._kept.get((name, version))
            if inline is None:
                with drawing():
                    figure = draw(name, report, STAND_INS)
                    inline = "" if figure is None else inline_svg(figure, name, name)
                self._kept[name, version] = inline
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
        return svg_file(inline, THEMES[theme]) if inline else None


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def figures_version(*parts: object) -> str:
    """Return a short text that differs if one of the parts does."""
    return hashlib.sha256(repr((__version__, parts)).encode()).hexdigest()[:16]


def picture_of(report: JobReport, address: str, version: str) -> Callable[[str, str], Html | None]:
    """Return what puts the figures of a report into a page; see ``Frame.picture``.

    Each is a request of its own, and its space is reserved. The style sheet shows that of the
    theme; a browser loads no other.
    """

    def picture(name: str, label: str) -> Html | None:
        height = figure_height(name, report) if can_draw() else None
        if height is None:
            return None
        images = (
            tag(
                "img",
                src=f"{address}/{name}.svg?theme={theme}&v={version}",
                width=WIDTH,
                height=round(height),
                alt=label,
                loading="lazy",
                decoding="async",
                class_=theme,
            )
            for theme in THEMES
        )
        return join(Html(image.removesuffix("</img>")) for image in images)

    return picture
