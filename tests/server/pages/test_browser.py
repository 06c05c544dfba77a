"""The pages in a real browser: Chromium, straight and behind nginx with a path prefix."""

from __future__ import annotations

import contextlib
import importlib.util
import time

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from tests.factories import REACHED, begin, build_trial
from tests.server.pages.conftest import fetch, serve
from tests.server.pages.values import LIVE, fill, named
from tests.server.test_proxies import behind_nginx, certificate  # noqa: F401
from tests.view.report.test_browser import CHROMIUM, FLAGS, NEEDED
from tests.view.report.values import run

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDED)),
        reason='needs playwright and axe: pip install -e ".[browser]"',
    ),
]
COMPARED = []
PATHS = ["", "job/job", "runs?sort=-cost", "run/job-2-1", "run/job-4-1", *COMPARED, "machines"]
PATHS += ["run/nosuch-1-1"]


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def site(store):
    """Return a filled store and the address of its pages."""
    fill(store)
    with serve(store) as port:
        yield store, f"http://127.0.0.1:{port}/"


@pytest.fixture
def visit(browser):
    """Open a page; return it and what happened that should not: messages, errors, requests."""
    contexts = []

    def open_page(address, path, width=1280, theme="light", **options):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, **options
        )
        contexts.append(context)
        page, seen = context.new_page(), []
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda r: r.url.startswith((address, "data:")) or seen.append(r.url))
        page.goto(address + path)
        return page, seen

    yield open_page
    for context in contexts:
        context.close()


def show_everything(page):
    page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")


def find_serious(page):
    """Return what axe finds; the page's policy must be off."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    serious = [each for each in found if each["impact"] in {"serious", "critical"}]
    return [(each["id"], each["nodes"][0]["html"]) for each in serious]


def until(page, condition, timeout_s=10):
    """Wait for a condition; the page's policy forbids playwright's own way."""
    from playwright.sync_api import Error

    def holds():
        with contextlib.suppress(Error):  # it is on its way to another page
            return page.evaluate(condition)

    end_t = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end_t, condition
        page.wait_for_timeout(20)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_is_said_or_loaded_from_elsewhere(visit, site, theme):
    for path in PATHS:
        page, seen = visit(site[1], path, theme=theme, bypass_csp=True)
        show_everything(page)
        assert find_serious(page) == [], path
        page, seen = visit(site[1], path, theme=theme)
        show_everything(page)
        expected = [
            "Failed to load resource: the server responded with a status of 404 (Not Found)"
        ]
        assert seen == (expected if "nosuch" in path else []), path


@pytest.mark.parametrize("width", [320, 400, 768, 1280, 1920])
def test_nothing_but_tables_is_wider_than_the_page(visit, site, width):
    root = "document.documentElement"
    for path in PATHS:
        page, _ = visit(site[1], path, width)
        show_everything(page)
        assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth"), path


def test_the_saving_of_a_job_is_visible_on_a_phone(visit, site):
    page, _ = visit(site[1], "", 400)
    until(page, "!('pending' in document.body.dataset)")
    cell = "document.querySelector('tr[data-key=job] td .folds').getBoundingClientRect()"
    assert page.evaluate(f"{cell}.right <= innerWidth && {cell}.width > 0")
    assert "not shown (" in page.locator("tr[data-key=job]").inner_text().replace("\xa0", " ")


def test_times_are_those_of_the_browser_also_after_an_update(visit, site):
    store, address = site
    page, seen = visit(address, "run/job-4-1", timezone_id="Asia/Dubai")
    card = page.locator("#now time")
    assert card.inner_text() == "16:00:00"  # 12:00 in UTC, as sent
    assert "Asia/Dubai" in page.locator("#zone").inner_text()
    store.renew("job-4-1", {**LIVE, "updated_at": "2026-03-05T23:15:20+00:00"})
    until(page, "document.querySelector('#now time').textContent === '03:15:20'")
    page.goto(f"{address}runs")
    assert page.locator("tr[data-key=job-2-1] time").inner_text() == "2026-03-03 16:00"
    assert seen == []
    plain, _ = visit(address, "runs", timezone_id="Asia/Dubai", java_script_enabled=False)
    assert plain.locator("tr[data-key=job-2-1] time").inner_text() == "2026-03-03 12:00"
    assert plain.locator("#zone").inner_text() == "Times are in UTC."


def test_a_click_sorts_a_search_keeps_the_order_and_an_update_keeps_both(visit, site):
    store, address = site
    page, seen = visit(address, "job/job")
    page.locator("#runs th a", has_text="cost").click()
    until(page, "location.search === '?sort=-cost' && location.hash === '#runs'")
    assert page.locator("#runs th[aria-sort=descending]").inner_text() == "cost"
    page.locator("#q").fill("node-a")
    page.keyboard.press("Enter")
    until(page, "location.search === '?sort=-cost&q=node-a'")
    until(page, "document.getElementById('state').textContent === 'Live'")
    rows = "[...document.querySelectorAll('#runs tbody tr')].map((each) => each.dataset.key)"
    assert page.evaluate(rows) == ["job-1-1", "job-2-1"]
    store.add([run(6, 32, 9.0, host="node-a")])
    until(page, f"{rows}.join() === 'job-6-1,job-1-1,job-2-1'")
    assert seen == []


def test_a_figure_has_the_colours_of_the_theme_of_the_system(visit, site):
    page, _ = visit(site[1], "job/job", theme="dark")
    colour = "getComputedStyle(document.querySelector('figure svg text')).fill"
    dark = page.evaluate(colour)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(colour) != dark


def test_a_figure_shows_its_values_at_the_pointer_and_by_the_keyboard(visit, site):
    page, seen = visit(site[1], "job/job")
    value = page.locator("#recurrences output")
    assert "arrow keys" in value.inner_text()
    page.locator("#recurrences figure .scroll").focus()
    for key, shown in (
        ("ArrowRight", "recurrence 1 "),
        ("ArrowRight", "recurrence 2 "),
        ("ArrowLeft", "recurrence 1 "),
    ):
        page.keyboard.press(key)
        assert value.inner_text().startswith(shown)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.locator("#recurrences .ring").scroll_into_view_if_needed()
    ring = page.locator("#recurrences .ring").bounding_box()
    page.keyboard.press("ArrowRight")
    page.mouse.move(ring["x"] + ring["width"] / 2 + 3, ring["y"] + 8)
    assert value.inner_text().startswith("recurrence 1 ")
    assert seen == []


def test_the_keyboard_reaches_everything(visit, site):
    page, _ = visit(site[1], "")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    names = []
    for _ in range(16):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.textContent"))
    assert {"job-4-1", "job", "other"} <= set(names)
    page.locator("main a", has_text="other").focus()
    page.keyboard.press("Enter")
    until(page, "location.pathname === '/job/other'")


WATCH = """() => {
  window.changed = [];
  new MutationObserver((all) => all.forEach((each) => {
    const at = each.target.nodeType === 1 ? each.target : each.target.parentElement;
    window.changed.push(at.closest('[data-key], [id]')?.dataset.key || at.closest('[id]').id);
  })).observe(document.querySelector('main'),
    {subtree: true, childList: true, characterData: true, attributes: true});
  window.still = document.querySelector('tr[data-key=job-2-1]');
}"""


def test_a_page_updates_without_flicker(visit, site):
    store, address = site
    page, seen = visit(address, "job/job", width=390, reduced_motion="reduce")
    until(page, "document.getElementById('state').textContent === 'Live'")
    show_everything(page)
    details = page.locator("details").first
    page.locator("tr[data-key='job-2-1'] a").focus()
    page.wait_for_timeout(300)
    top = "document.activeElement.getBoundingClientRect().top"
    before = page.evaluate(top), page.locator("figure svg").first.inner_html()
    page.evaluate(WATCH)

    store.renew("job-4-1", {**LIVE, "power_w": 456.0, "whole_epochs": 3})
    until(page, "document.querySelector('#now').textContent.includes('456 W')")
    assert "3 epochs of at most 5" in page.locator("#now").inner_text()
    assert set(page.evaluate("window.changed")) == {"job-4-1"}
    assert page.evaluate(top) == before[0]
    assert page.locator("figure svg").first.inner_html() == before[1]

    store.finish("job-4-1", REACHED)
    begin(store, build_trial(5, global_batch_size=64, eta_knob=1.0))
    until(page, "document.querySelector('tr[data-key=job-5-1]')")
    assert page.evaluate("window.still === document.querySelector('tr[data-key=job-2-1]')")
    assert page.evaluate("document.activeElement.textContent") == "job-2-1"
    assert details.get_attribute("open") is not None
    assert page.locator("figure svg").first.inner_html() != before[1]
    assert page.locator("#now tbody tr").count() == 1
    assert abs(page.evaluate(top) - before[0]) < 60
    assert seen == []


def test_the_first_page_follows_new_jobs_and_keeps_what_is_typed(visit, site):
    store, address = site
    for number in range(14):
        store.add([named(f"extra-{number}", run(1, 32))])
    page, seen = visit(address, "")
    until(page, "document.getElementById('state').textContent === 'Live'")
    page.locator("#q").fill("extra-1")
    store.add([named("brand-new", run(1, 32))])
    until(page, "document.querySelector('tr[data-key=brand-new]')")
    assert page.locator("#q").input_value() == "extra-1"
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.press("Enter")
    until(page, "location.search === '?q=extra-1'")
    assert page.locator("tbody tr").count() == 5
    assert seen == []


def test_a_server_that_restarts_is_found_again(visit, store):
    fill(store)
    with serve(store) as port:
        page, _ = visit(f"http://127.0.0.1:{port}/", "")
        until(page, "document.getElementById('state').textContent === 'Live'")
    until(page, "document.getElementById('state').textContent === 'Reconnecting'", 20)
    assert page.locator("tr[data-key=job]").count() == 1
    store.add([named("later", run(1, 32))])
    with serve(store, port=port):
        until(page, "document.getElementById('state').textContent === 'Live'", 30)
        until(page, "document.querySelector('tr[data-key=later]')")


def test_without_scripts_everything_can_be_read(visit, site):
    page, _ = visit(site[1], "job/job", java_script_enabled=False)
    assert page.locator("h1").is_visible()
    assert page.locator("figure svg").first.is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_works_behind_nginx_under_a_path_for_whoever_signs_in(
    visit,
    behind_nginx,  # noqa: F811 - the fixture
    theme,
):
    server, https = behind_nginx
    token = server.create_token("job", write=False)
    prefix = f"https://127.0.0.1:{https.port}/zeusrun/"
    options = {"theme": theme, "ignore_https_errors": True}
    page, _ = visit(prefix, "login", bypass_csp=True, **options)
    assert find_serious(page) == []
    page.keyboard.type("wrong\n")
    until(page, "document.querySelector('[role=alert]')")
    assert find_serious(page) == []
    with server.history() as store:
        fill(store)
        page, seen = visit(prefix, "job/job", **options)
        until(page, "location.search === '?next=/zeusrun/job/job'")
        page.keyboard.type(f"{token}\n")
        until(page, "location.pathname === '/zeusrun/job/job'")
        show_everything(page)
        until(page, "document.getElementById('state').textContent === 'Live'")
        store.renew("job-4-1", {**LIVE, "power_w": 456.0})
        until(page, "document.querySelector('#now').textContent.includes('456 W')")
        page.locator("main a", has_text="job-2-1").first.click()
        until(page, "location.pathname === '/zeusrun/run/job-2-1'")
        page.locator("nav a", has_text="Machines").click()
        until(page, "location.pathname === '/zeusrun/machines'")
        page.locator("button", has_text="Sign out").focus()
        page.keyboard.press("Enter")
        until(page, "location.pathname === '/zeusrun/login'")
        assert seen == []


def test_a_page_of_a_long_history_is_small(store):
    store.add([run(n, (32, 64, 128)[n % 3], 1.0 + n / 5000) for n in range(1, 1501)])
    with serve(store) as port:
        for path in ("/", "/job/job", "/run/job-9-1"):
            assert len(fetch(port, path).text.encode()) < 330_000
