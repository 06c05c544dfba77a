"""What pages have in common: the document around them, its addresses and figures, and lists.

The order, the search and the page of a list stand in the address: a view is a link.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from zeusrun import __version__
from zeusrun.history.sql.survey import Wanted
from zeusrun.plugins import how_to_add
from zeusrun.server.refusals import LOG
from zeusrun.view.report import page as report_page
from zeusrun.view.report.markup import Html, join, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.requests import HTTPConnection

    from zeusrun.view.report.facts import JobReport

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
    "Vary": "Cookie, Authorization",
}
"""Of every page."""


@dataclass(frozen=True)
class Links:
    """The addresses of the server, relative to a page, so that they hold behind any path prefix.

    ``depth`` is how many folders deep the page is: 1 for ``/job/digits``.
    """

    depth: int = 0

    def to(self, path: str) -> str:
        """Return the address of a path, which begins without a slash."""
        return "../" * self.depth + path or "./"

    def job(self, job: str) -> str:
        """Return the address of a job's page."""
        return self.to(f"job/{quote(job, safe='')}")

    def run(self, trial: str) -> str:
        """Return the address of a run's page."""
        return self.to(f"run/{quote(trial, safe='')}")

    def link_run(self, trial: str) -> Html:
        """Return the id of a run as a link."""
        return tag("a", trial, href=self.run(trial))

    def link_job(self, job: str) -> Html:
        """Return the name of a job as a link."""
        return tag("a", job, href=self.job(job))


def links_of(request: HTTPConnection) -> Links:
    """Return the addresses for the page that was asked for."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return Links(path.count("/") - 1)


class Page(NamedTuple):
    """What is different on each page; ``pending``: something is still being computed."""

    title: str
    content: Html
    place: str = ""
    sections: tuple[tuple[str, str], ...] = ()
    pending: bool = False


class NotFoundError(Exception):
    """There is no such page; the message is for people."""


def build_document(
    page: Page,
    links: Links,
    account: Html | None = None,
    *,
    job: str | None = None,
    version: str | None = None,
) -> str:
    """Return the whole document of a page; ``account`` stands in its header.

    ``version`` is that of the job which it shows, ``None`` for all jobs: the browser asks for the
    page again once that has changed.
    """
    sheet, script = (links.to(f"static/{name}?v={_digest(name)}") for name in STATIC)
    head = (
        Html(f'<link rel="stylesheet" href="{sheet}">'),
        Html(f'<script src="{script}"></script>'),
    )
    attributes: dict[str, str | None] = {
        "class_": "wide" if page.place else None,
        "data_pending": "yes" if page.pending else None,
    }
    if version is not None:
        about = "" if job is None else f"?job={quote(job, safe='')}"
        attributes |= {"data_version": version, "data_watch": links.to(f"version{about}")}
    header, title = _header(page, links, account), f"{page.title} · zeusrun"
    zone = tag("span", "Times are in UTC.", id="zone")
    note = join((zone, f" zeusrun {__version__}."))
    return report_page.build_shell(
        title, head, header, page.sections, page.content, note=note, **attributes
    )


def _header(page: Page, links: Links, account: Html | None) -> Html:
    places = [("", "Jobs"), ("runs", "Runs"), ("machines", "Machines")]
    items = []
    for path, name in places:
        current = "page" if page.place == name else None
        items.append(tag("li", tag("a", name, href=links.to(path), aria_current=current)))
    state = tag("span", id="state", role="status", data_keep="yes")
    brand = tag("a", "zeusrun", href=links.to(""), class_="brand")
    pages = tag("nav", tag("ul", *items), aria_label="Pages")
    return tag("header", brand, pages, state, account or "", class_="top")


STATIC = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
}
"""What lies under ``/static``, with its media type."""


@functools.cache
def static_text(name: str) -> str:
    """Return what lies under ``/static/<name>``."""
    of_report = report_page.style_sheet if name == "page.css" else report_page.figure_script
    return f"{of_report()}\n" + Path(__file__).with_name(name).read_text(encoding="utf-8")


@functools.cache
def _digest(name: str) -> str:
    return hashlib.sha256(static_text(name).encode()).hexdigest()[:12]


NO_FIGURES = f"Figures need matplotlib where the server runs; {how_to_add('report')}"


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def pictures_of(shown: JobReport, kept: dict[str, Html | None]) -> Callable[[str], Html | None]:
    """Return a function that draws the figures of a report; see ``Frame.picture``.

    ``kept`` has the figures that were drawn before. A figure that cannot be drawn is ``None``.
    """

    def picture(name: str) -> Html | None:
        if name not in kept:
            try:
                kept[name] = report_page.draw_picture(shown, name)
            except (ImportError, ValueError, ArithmeticError) as error:
                LOG.warning("a figure cannot be drawn: %s", error)
                kept[name] = None
        return kept[name]

    return picture if can_draw() else lambda _name: None


def message_page(links: Links, title: str, text: str) -> Page:
    """Return a page that says something, with a link to the first one."""
    back = tag("p", tag("a", "All jobs", href=links.to("")))
    return Page(title, join((tag("h1", title), tag("p", text, class_="lead"), back)))


_Row = TypeVar("_Row")
_LONGEST = 200  # largest number of characters of a search
_MOST_PAGES = 10**6
_TEXTS = frozenset({"job", "status", "host", "gpu"})  # sorted from A to Z first


@dataclass(frozen=True)
class Listing:
    """The search, order and page of a list, as an address of a page describes them.

    Attributes:
        address: The address of the page, relative to itself.
        place: The id of the section with the list.
        search: The text of the search; empty for all.
        sort: The key by which the list is sorted; one of ``sorts``, whose first is the default.
        descending: Whether the largest value comes first.
        page: The number of the page of the list, from 1.
        choices: A further choice of the page: its name, and its values; the first is the default.
        chosen: One of these values.
    """

    address: str
    place: str
    sorts: Sequence[str]
    search: str
    sort: str
    descending: bool
    page: int
    choices: tuple[str, Sequence[str]] = ("", ())
    chosen: str = ""

    def link(
        self,
        page: int = 1,
        sort: str | None = None,
        *,
        descending: bool = True,
        chosen: str | None = None,
    ) -> str:
        """Return the address of the same search on another page, or in another order or choice."""
        if sort is None:
            sort, descending = self.sort, self.descending
        query = {"q": self.search} if self.search else {}
        name, values = self.choices
        if (chosen := chosen or self.chosen) != (values[0] if values else ""):
            query[name] = chosen
        if (sort, descending) != (self.sorts[0], _begins_high(self.sorts[0])):
            query["sort"] = f"-{sort}" if descending else sort
        if page > 1:
            query["page"] = str(page)
        return f"{self.address}{'?' if query else ''}{urlencode(query)}#{self.place}"

    def heading(self, column: str) -> tuple[str, str | None] | None:
        """Return the address of the other order of a column, and the present one if it is sorted.

        ``None``: nothing can be sorted by it.
        """
        sort = column.lower().replace(" ", "-")
        if sort not in self.sorts:
            return None
        is_own = sort == self.sort
        descending = not self.descending if is_own else _begins_high(sort)
        now = ("descending" if self.descending else "ascending") if is_own else None
        return self.link(sort=sort, descending=descending), now

    def choose(self, label: str) -> Html:
        """Return the links to the values of the further choice."""
        links = [
            tag(
                "a",
                value.replace("-", " "),
                href=self.link(chosen=value),
                aria_current="true" if value == self.chosen else None,
            )
            for value in self.choices[1]
        ]
        spaced = [each for link in links for each in (" ", link)]
        return tag("nav", tag("p", label, *spaced), aria_label=label, class_="pages choice")

    def pages(self, label: str, total: int, shown: int) -> Html:
        """Return the links to the pages before and after; nothing if there is one."""
        page, last = self._pages(total, shown)
        if last == 1:
            return Html()
        parts: list[str] = [f"Page {page:,} of {last:,}"]
        parts += [tag("a", "first", href=self.link())] if page > 2 else []
        parts += [tag("a", "previous", href=self.link(page - 1))] if page > 1 else []
        parts += [tag("a", "next", href=self.link(page + 1))] if page < last else []
        spaced = [each for part in parts for each in (part, " ")]
        return tag("nav", tag("p", *spaced), aria_label=label, class_="pages")

    def page_of(self, rows: Sequence[_Row], shown: int) -> Sequence[_Row]:
        """Return the rows of this page, of ``shown`` on each; beyond the last one, of that."""
        page, _ = self._pages(len(rows), shown)
        return rows[(page - 1) * shown : page * shown]

    def _pages(self, total: int, shown: int) -> tuple[int, int]:
        """Return the number of this page and that of the last one."""
        last = max(1, -(-total // shown))
        return min(self.page, last), last

    def form(self, label: str, hint: str) -> Html:
        """Return the search form, which keeps the order; ``hint`` names what a search finds."""
        kept = parse_qsl(self.link().partition("?")[2].partition("#")[0])
        hidden = join(
            tag("input", type="hidden", name=name, value=value)
            for name, value in kept
            if name != "q"
        )
        field = tag("input", id="q", type="search", name="q", value=self.search, autocomplete="off")
        address = f"{self.address}#{self.place}"
        return tag(
            "form",
            hidden,
            tag("label", tag("span", hint), field),
            tag("button", "Search"),
            tag("a", "show all", href=address) if self.search else "",
            action=address,
            class_="find",
            role="search",
            aria_label=label,
        )

    def wanted(self) -> Wanted:
        """Return the request to the database for the runs of this list."""
        words = tuple(dict.fromkeys(self.search.split()))[:_MOST_WORDS]
        return Wanted(self.sort, self.descending, self.page, words)


_MOST_WORDS = 6  # largest number of words of a search; each is compared with every run


def _begins_high(sort: str) -> bool:
    """Whether the first click on a heading sorts from the largest to the smallest."""
    return sort not in _TEXTS


def read_listing(
    query: Mapping[str, str],
    address: str,
    place: str,
    sorts: Sequence[str],
    choices: tuple[str, Sequence[str]] = ("", ()),
) -> Listing:
    """Return the list that an address describes; wrong values are replaced by the defaults."""
    name, values = choices
    chosen = query.get(name, "")
    if chosen not in values:
        chosen = values[0] if values else ""
    search, order, page = (query.get(name, "").strip() for name in ("q", "sort", "page"))
    search = search[:_LONGEST] if search.isprintable() else ""
    sort, descending = order.removeprefix("-"), order.startswith("-")
    if sort not in sorts:
        sort, descending = sorts[0], _begins_high(sorts[0])
    number = int(page) if page.isdecimal() and len(page) < _LONGEST else 1
    number = number if 1 <= number <= _MOST_PAGES else 1
    return Listing(address, place, sorts, search, sort, descending, number, choices, chosen)
