"""Builds HTML from values. Every text is escaped: a name or a reason may contain anything."""

from __future__ import annotations

import html
from datetime import timezone
from typing import TYPE_CHECKING, Any

from zeusrun.clock import local_time
from zeusrun.plain_text import plain_text, storable_text
from zeusrun.view.units import UNKNOWN, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.text import Text

    from zeusrun.view.columns import Column

_VOID = {"img", "input"}  # elements without an end
_LONGEST = 2000  # characters of a text; a longer one comes from a script or a damaged record


class Html(str):
    """Text that is HTML already; any other ``str`` is escaped."""

    __slots__ = ()


def escape(text: str) -> Html:
    """Return a text as HTML; a very long one is cut, control characters are spelt."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(plain_text(storable_text(shortened(text, _LONGEST)))))


def tag(name: str, /, *children: str, **attributes: str | int | None) -> Html:
    """Return an element; ``class_`` and ``aria_label`` mean ``class`` and ``aria-label``."""
    pairs = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    inside = "" if name in _VOID else f"{join(children)}</{name}>"
    return Html(f"<{name}{''.join(pairs)}>{inside}")


def section(title: str, *content: str, **attributes: str | int | None) -> Html:
    """Return a part of a page with its heading."""
    return tag("section", tag("h2", title), *content, **attributes)


def page_head(above: str, title: str, *below: str) -> Html:
    """Return the head of a page: a line, the title below the line, and the rest."""
    line = tag("p", above, class_="job")
    return join((line, tag("h1", title, class_="headline"), *below))


def coloured(text: str, good: bool | None) -> Html:
    """Return a text in the colour of what is good or bad; ``None``: neither."""
    return tag("span", text, class_=None if good is None else "good" if good else "bad")


def join(parts: Iterable[str]) -> Html:
    """Return parts one after the other."""
    return Html("".join(map(escape, parts)))


def moment(rfc3339: str | None = None, form: str = "%Y-%m-%d %H:%M") -> str:
    """Return a recorded time in UTC, which a script shows in the time zone of the browser."""
    time = None if rfc3339 is None else local_time(rfc3339, timezone.utc)
    if time is None:
        return UNKNOWN if rfc3339 is None else rfc3339[:16]
    return tag("time", time.strftime(form), datetime=f"{time:%Y-%m-%dT%H:%M:%SZ}")


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Any],
    key: Callable[[Any], str | None] = lambda _row: None,
    heading: Callable[[str], tuple[str, str | None] | None] = lambda _name: None,
) -> Html:
    """Return a table that scrolls by itself if it is too wide; without rows, nothing.

    The first column names the rows. Another one of which nothing is known is left out. ``key``
    names a row for a script that updates the table. ``heading`` returns the address of the
    table sorted by a column, and "ascending" or "descending" if it is; ``None``: it cannot be.
    """
    if not rows:
        return Html()
    texts = [[cell(column.value(row)) for row in rows] for column in columns]
    shown = [at for at, own in enumerate(texts) if not at or any(each != UNKNOWN for each in own)]
    short = {"when", "status"}  # no text of these wraps
    sides = ["date" if each.name in short else None if each.left else "n" for each in columns]
    sides[0] = None
    head = (_heading(columns[at].name, sides[at], heading(columns[at].name)) for at in shown)
    lines = []
    for number, row in enumerate(rows):
        cells = (tag("td", texts[at][number], class_=sides[at]) for at in shown[1:])
        first = tag("th", texts[0][number], scope="row")
        lines.append(tag("tr", first, *cells, data_key=key(row)))
    thead, tbody = tag("thead", tag("tr", *head)), tag("tbody", *lines)
    return _scrolling(tag("table", tag("caption", caption), thead, tbody), caption)


def _heading(name: str, side: str | None, sorting: tuple[str, str | None] | None) -> Html:
    if sorting is None:
        return tag("th", name, scope="col", class_=side)
    address, direction = sorting
    return tag("th", tag("a", name, href=address), scope="col", class_=side, aria_sort=direction)


def cell(value: str | Text) -> str:
    """Return a cell; one for a terminal loses its colour."""
    return value if isinstance(value, str) else value.plain


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
    drawn = _scrolling(Html(svg), caption)
    value = tag("output", data_keep="yes") if "<metadata>" in svg else ""  # see figure.js
    return join((tag("figure", drawn, value, tag("figcaption", caption)), *tables))
