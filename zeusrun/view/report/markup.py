"""Builds HTML from values. Every text is escaped: a name or a reason may contain anything."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from zeusrun.plain_text import plain_text, storable_text
from zeusrun.view.units import UNKNOWN, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_LONGEST = 2000  # characters of a text; a longer one comes from a script or a damaged record
# Headings of columns of words, which are aligned left.
_WORDS = {
    *("when", "status", "why", "its batch sizes", "power over time", "throttled"),
    *("host", "model", "next run", "last run"),
}


class Html(str):
    """Text that is HTML already; any other ``str`` is escaped."""

    __slots__ = ()


def escape(text: str) -> Html:
    """Return a text as HTML; a very long one is cut, control characters are spelt."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(plain_text(storable_text(shortened(text, _LONGEST)))))


def tag(name: str, *children: str, **attributes: str | int | None) -> Html:
    """Return an element; ``class_`` and ``aria_label`` mean ``class`` and ``aria-label``."""
    pairs = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    return Html(f"<{name}{''.join(pairs)}>{join(children)}</{name}>")


def coloured(text: str, good: bool | None) -> Html:
    """Return a text in the colour of what is good or bad; ``None``: neither."""
    return tag("span", text, class_=None if good is None else "good" if good else "bad")


def join(parts: Iterable[str]) -> Html:
    """Return parts one after the other."""
    return Html("".join(map(escape, parts)))


def table(
    caption: str, rows: Sequence[Mapping[str, str]], keys: Sequence[str] | None = None
) -> Html:
    """Return a table that scrolls by itself if it is too wide; without rows, nothing.

    Every row has the same columns, by their headings; the first cell names its row. A column of
    which nothing is known is left out. Numbers are aligned right. ``keys`` name the rows for a
    script that updates the table.
    """
    if not rows:
        return Html()
    first, *others = rows[0]
    heads = [first, *(name for name in others if any(row[name] != UNKNOWN for row in rows))]
    sides = {name: None if name in {first, *_WORDS} else "n" for name in heads}
    sides |= {"when": "date"}
    head = tag("tr", *(tag("th", name, scope="col", class_=sides[name]) for name in heads))
    lines = []
    for number, row in enumerate(rows):
        cells = [tag("td", row[name], class_=sides[name]) for name in heads[1:]]
        key = None if keys is None else keys[number]
        lines.append(tag("tr", tag("th", row[first], scope="row"), *cells, data_key=key))
    body = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *lines))
    return _scrolling(body, caption)


def pairs(values: Iterable[tuple[str, str]], **attributes: str | None) -> Html:
    """Return names with their values; one that is unknown is left out."""
    known = (
        tag("div", tag("dt", name), tag("dd", text)) for name, text in values if text != UNKNOWN
    )
    return tag("dl", *known, **attributes)


def _scrolling(content: Html, label: str) -> Html:
    """Return content that scrolls by itself, also by the keyboard."""
    return tag("div", content, class_="scroll", tabindex=0, role="group", aria_label=label)


def details(summary: str, *children: str) -> Html:
    """Return what is shown once somebody opens it."""
    return tag("details", tag("summary", summary), *children)


def figure(svg: str | None, caption: str, *tables: Html) -> Html:
    """Return a figure, its caption and its tables; without a figure, only the tables."""
    if svg is None:
        return join(tables)
    return join((tag("figure", Html(svg), tag("figcaption", caption)), *tables))
