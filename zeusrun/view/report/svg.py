"""Writes a figure as a file, or as a small SVG that takes its colours from the page."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

from zeusrun.plain_text import plain_text, storable_text
from zeusrun.view.report.canvas import LIGHT, STAND_INS, label_text, named_colours

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from zeusrun.view.report.canvas import Palette

FORMATS = ("png", "svg", "pdf")
_TITLE = 24  # pixels above a figure
_VARIABLES = {colour: f"var(--{name})" for name, colour in named_colours(STAND_INS).items()}
_VARIABLE = re.compile(r"var\(--(\w+)\)")
_COLOUR = re.compile(r"#[0-9a-f]{6}")
_NUMBER = re.compile(r"-?\d+\.\d+")
_GROUP = re.compile(r"[\w.]+_\d{1,9}")  # an id that only names what is drawn; others are hashes
_FONT = re.compile(r"font:[^;]*?([\d.]+)px.*")
_SPACE = re.compile(r"\s*([A-Za-z])\s*")
_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
# Of a file that a page shows as an image: on a phone, it has half its size.
_STYLE = (
    "<style>text{font-family:system-ui,-apple-system,Segoe UI,Roboto,sans-serif}"
    "@media (max-width:480px){text{font-size:13px!important}}</style>"
)
_NOTHING = {"Date": None, "Creator": None, "Format": None, "Type": None}


def figure_bytes(figure: Figure, form: str, title: str) -> bytes:
    """Return a figure with a title as a PNG, SVG or PDF file; call it within ``drawing``."""
    from matplotlib.transforms import Bbox  # noqa: PLC0415 - optional, and slow to import

    target = io.BytesIO()
    width, height = figure.get_size_inches()
    style: dict[str, Any] = {
        "fontsize": 12.0,
        "fontweight": "bold",
        "va": "bottom",
        "color": LIGHT.ink,
    }
    figure.text(10 / (72 * width), 1 + 5 / (72 * height), label_text(title), **style)
    whole = Bbox.from_extents(0, 0, width, height + _TITLE / 72)  # the title stands above
    metadata = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else {}
    figure.savefig(target, format=form, dpi=200, metadata=metadata, bbox_inches=whole)
    return target.getvalue()


def inline_svg(figure: Figure, name: str, label: str) -> str:
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
    # Our own document, from matplotlib: it has no entities.
    root = ET.fromstring(target.getvalue())  # noqa: S314
    _shrink(root, decimals=1)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": plain_text(storable_text(label)),
    }
    return ET.tostring(root, encoding="unicode")


def svg_file(inline: str, palette: Palette) -> bytes:
    """Return what ``inline_svg`` made as a file of its own, in the colours of a theme."""
    colours = named_colours(palette)
    text = _VARIABLE.sub(lambda found: colours.get(found[1], palette.ink), inline)
    head, end, rest = text.partition(">")
    width, height = head.partition('viewBox="0 0 ')[2].partition('"')[0].split()
    size = f' xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    return f"{head}{size}{end}{_STYLE}{rest}".encode()


def _shrink(element: ET.Element, decimals: int) -> None:
    element.tag = element.tag.removeprefix(_SVG)
    if element.tag == "defs":
        decimals = 2  # a dot is small
    found = {key: _attribute(key, value, decimals) for key, value in element.attrib.items()}
    element.attrib = {key.replace(_HREF, "href"): new for key, new in found.items() if new}
    if element.tag != "text":
        element.text = None
    for child in list(element):
        if child.tag.endswith(("metadata", "style")):
            element.remove(child)
            continue
        _shrink(child, decimals)
        child.tail = None
    styles = {child.attrib.get("style") for child in element}
    if len(element) > 1 and len(styles) == 1 and {child.tag for child in element} == {"use"}:
        style = styles.pop()
        if style:
            element.attrib["style"] = style
            for child in element:
                del child.attrib["style"]


def _attribute(key: str, value: str, decimals: int) -> str | None:
    """Return an attribute as the page needs it; ``None`` if it does not."""
    if key == "style":
        parts = [part.strip().replace(": ", ":") for part in value.split(";")]
        # The page chooses the font. Before matplotlib 3.9, "font" held its size, too.
        parts = [_FONT.sub(r"font-size:\1px", part) for part in parts]
        kept = [part for part in parts if part and not part.startswith("font-family")]
        return _COLOUR.sub(lambda found: _VARIABLES.get(found[0], found[0]), ";".join(kept))
    if (key == "id" and _GROUP.fullmatch(value)) or value.startswith("rotate(-0 "):
        return None
    if key in {"d", "x", "y", "points", "transform", "width", "height"}:
        value = _NUMBER.sub(lambda found: f"{round(float(found[0]), decimals):g}", value)
    return _SPACE.sub(r"\1", value).strip() if key == "d" else value
