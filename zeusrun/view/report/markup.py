"""Builds HTML from values. Every text is escaped: a name or a reason may contain anything."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from zeusrun.plain_text import plain_text, storable_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Html(str):
    """Text that is HTML already; any other ``str`` is escaped."""

    __slots__ = ()


def escape(text: str) -> Html:
    """Return a text as HTML; control characters and marks of direction are spelt."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(plain_text(storable_text(text))))


def tag(name: str, *children: str, **attributes: str | int | None) -> Html:
    """Return an element; ``class_`` and ``aria_label`` mean ``class`` and ``aria-label``."""
    pairs = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    return Html(f"<{name}{''.join(pairs)}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Html:
    """Return parts one after the other."""
    return Html("".join(map(escape, parts)))


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    texts: Sequence[int] = (0,),
) -> Html:
    """Return a table that scrolls by itself if it is too wide; the first cell names its row.

    ``texts`` are the columns of words; numbers are aligned right.
    """
    sides = [None if at in texts else "n" for at in range(len(heads))]
    head = tag("tr", *(_cell("th", t, side, "col") for t, side in zip(heads, sides, strict=True)))
    lines = []
    for row in rows:
        first, *rest = zip(row, sides, strict=True)
        cells = [_cell("th", *first, "row"), *(_cell("td", text, side) for text, side in rest)]
        lines.append(tag("tr", *cells))
    body = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *lines))
    return scrolling(body, caption)


def _cell(name: str, text: str, side: str | None, scope: str | None = None) -> Html:
    return tag(name, text, scope=scope, class_=side)


def scrolling(content: Html, label: str) -> Html:
    """Return content that scrolls by itself, also by the keyboard."""
    return tag("div", content, class_="scroll", tabindex=0, role="group", aria_label=label)


def details(summary: str, *children: str) -> Html:
    """Return what is shown once somebody opens it."""
    return tag("details", tag("summary", summary), *children)


def figure(name: str, svg: str | None, caption: str, *tables: Html) -> Html:
    """Return a figure, its caption and its tables; without a figure, only the tables."""
    drawn = (
        () if svg is None else (scrolling(Html(svg), f"Figure: {name}"), tag("figcaption", caption))
    )
    return join((tag("figure", *drawn) if drawn else "", *tables))
