"""The colours of figures and pages, for light and dark themes."""

from __future__ import annotations

from typing import NamedTuple


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
