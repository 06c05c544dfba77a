"""The page in a real browser: Chromium, with nothing but the file."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys

import pytest

from tests.factories import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NEEDED = ("playwright", "axe_playwright_python")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDED)),
        reason='needs playwright and axe: pip install -e ".[browser]"',
    ),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Return the address of the report of a made-up history."""
    folder = tmp_path_factory.mktemp("report")
    home = folder / "home"
    made = [sys.executable, str(ROOT / "benchmarks" / "report.py"), "--example", str(home)]
    subprocess.run(made, check=True, capture_output=True)
    report = [sys.executable, "-m", "zeusrun", "report", "-o"]
    environment = {"ZEUSRUN_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    path = folder / "job.html"
    subprocess.run([*report, str(path)], check=True, env=environment)
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def visit(browser):
    """Open a page; return it and what happened that should not: messages, errors, requests."""
    contexts = []

    def open_page(address, width=1280, theme="light", **options):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, **options
        )
        contexts.append(context)
        page, seen = context.new_page(), []
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda request: request.url == address or seen.append(request.url))
        page.goto(address)
        return page, seen

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_loads_quickly_without_a_request_or_a_message_and_axe_finds_nothing_serious(
    visit, address, theme
):
    from axe_playwright_python.sync_playwright import Axe

    page, seen = visit(address, theme=theme)
    timing = "performance.getEntriesByType('navigation')[0].loadEventEnd"
    loads_ms = [page.evaluate(timing) for _ in range(3) if page.reload()]
    assert 0 < min(loads_ms) < 1000  # the best of three, because the machine may be busy
    page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    found = Axe().run(page).response["violations"]
    serious = [each for each in found if each["impact"] in {"serious", "critical"}]
    assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []
    assert [request for request in seen if not request.startswith("data:")] == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_nothing_but_figures_and_tables_scrolls_sideways(visit, address, width):
    page, _ = visit(address, width)
    page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_text_of_a_figure_can_be_read_on_a_phone(visit, address):
    page, _ = visit(address, 390)
    sizes = page.evaluate(
        "[...document.querySelectorAll('figure svg text')].map((each) =>"
        " each.getScreenCTM().a * parseFloat(getComputedStyle(each).fontSize))"
    )
    assert min(sizes) > 9
    box = page.locator("figure .scroll").first
    assert box.evaluate("(each) => each.scrollWidth > each.clientWidth")


def test_a_wide_table_uses_the_empty_page_and_its_dates_do_not_wrap(visit, address):
    for width, hidden in ((1280, False), (390, True)):
        page, _ = visit(address, width)
        page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
        box = page.locator("details .scroll").first
        assert box.evaluate("(each) => each.scrollWidth > each.clientWidth") is hidden
        lines = """(all) => all.map((each) => {
          const range = document.createRange();
          range.selectNodeContents(each);
          return range.getClientRects().length;
        })"""
        assert max(box.locator("td.date").evaluate_all(lines)) == 1


def test_the_keyboard_reaches_the_content_and_opens_a_table(visit, address):
    page, _ = visit(address)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.get_attribute("open") is not None


def test_it_has_the_theme_of_the_system_shows_values_and_can_be_printed(visit, address):
    page, _ = visit(address, theme="dark")
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(colour) != dark
    page.locator("figure .scroll").first.focus()
    page.keyboard.press("ArrowRight")
    assert "recurrence 1 " in page.locator("figure output").first.inner_text()
    page.emulate_media(media="print")
    assert page.locator("figure svg").first.is_visible()
