"""Makes the pictures of the docs: the pages of a made-up history, and the demo in a terminal.

``python benchmarks/pictures.py`` needs the extras ``server``, ``report`` and ``browser``, and
Chromium. With ``--check`` it makes nothing and ends with 1 if the pages have changed since.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import uvicorn
from made_up import made_up_database
from rich.console import Console
from rich.text import Text

from zeusrun.history.sql.store import SqlHistory
from zeusrun.server.pages.reports import Reports
from zeusrun.server.run import build_config, listen
from zeusrun.server.settings import ServerSettings
from zeusrun.view.report.page import job_page

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGES = Path(__file__).parents[1] / "docs/images"
DIGEST = IMAGES / "pages.sha256"
JOB = "forecast"
# Name, address, width and height, theme; addresses that end in .html are files.
PICTURES = (
    ("server-jobs-1280", "", 1280, 1340, "light"),
    ("server-job-1280", f"job/{JOB}", 1280, 1310, "dark"),
    ("server-machines-1280", "machines", 1280, 1150, "light"),
    ("server-run-390", f"run/{JOB}-48-1", 390, 1950, "light"),
    ("job", f"job/{JOB}", 1280, 1310, "light"),
    ("report-1280", "report.html", 1280, 1150, "light"),
    ("report-1920", "report.html", 1920, 1080, "dark"),
    ("report-390", "report.html", 390, 1280, "light"),
)
_CHANGING = re.compile(r"<svg.*?</svg>|<time.*?</time>|[0-9a-f]{12,}|[\d.,]+", re.DOTALL)
_TERMINAL = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>make demo</title>
<style>{styles} text {{ font: 20px ui-monospace, Menlo, monospace; white-space: pre }}</style>
<rect width="100%" height="100%" rx="10" fill="#292929"/>
<g transform="translate(18, 18)">{matrix}</g></svg>
"""


@contextmanager
def serve() -> Iterator[tuple[str, Path]]:
    """Serve a made-up history; yield its address, and a folder with its report."""
    with made_up_database() as url, tempfile.TemporaryDirectory() as folder:
        with closing(SqlHistory(url)) as store:
            view = Reports(store).view(JOB)
            assert view is not None
            assert view.report is not None
            page = job_page([view.report], "2026-03-05 08:00")
            Path(folder, "report.html").write_text(page, encoding="utf-8")
        listening = listen(ServerSettings(database_url=url, port=0, demo=True))
        server = uvicorn.Server(build_config(listening.settings))
        thread = threading.Thread(target=server.run, args=([listening.listener],))
        thread.start()
        try:
            yield f"{listening.url}/", Path(folder)
        finally:
            server.should_exit = True
            thread.join()


def read_pages(address: str, folder: Path) -> str:
    """Return a digest of the pages, without what differs each time."""
    found = [(folder / "report.html").read_text(encoding="utf-8")]
    for path in dict.fromkeys(path for _, path, *_ in PICTURES if not path.endswith(".html")):
        while True:
            with urllib.request.urlopen(address + path) as answer:  # noqa: S310 - our own
                text = answer.read().decode()
            if "data-pending" not in text:
                break
            time.sleep(0.2)
        found.append(text)
        for static in re.findall(r'"([^"]*static/[^"]*)"', text):
            whole = urljoin(address + path, static)
            with urllib.request.urlopen(whole) as answer:  # noqa: S310 - our own
                found.append(answer.read().decode())
    return hashlib.sha256(_CHANGING.sub("", "".join(dict.fromkeys(found))).encode()).hexdigest()


def take(address: str, folder: Path) -> None:
    """Take the pictures."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - --check does without

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, path, width, height, theme in PICTURES:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            page.goto(folder.joinpath(path).as_uri() if path.endswith(".html") else address + path)
            while page.locator("[data-pending]").count():
                page.wait_for_timeout(200)
            page.wait_for_timeout(500)
            page.screenshot(path=IMAGES / f"{name}.png")
            page.close()


_MOVES = re.compile(r"(\n|\x1b\[2K|\x1b\[1A|\r|\x1b\[\?25[lh])")


def show_last(text: str) -> list[str]:
    """Return the lines that a terminal shows in the end: a live view writes over its own lines."""
    rows, at = [""], 0
    for piece in _MOVES.split(text.replace("\r\n", "\n")):
        if piece == "\n":
            at += 1
            rows += [""] * (at == len(rows))
        elif piece == "\x1b[2K":
            rows[at] = ""
        elif piece == "\x1b[1A":
            at -= 1
        elif not _MOVES.fullmatch(piece):
            rows[at] += piece
    return rows[:at]


def record_demo() -> None:
    """Run the demo in a terminal, and write what it shows as SVG."""
    with tempfile.TemporaryDirectory() as home:
        master, terminal = pty.openpty()
        env = {**os.environ, "ZEUSRUN_HOME": home, "COLUMNS": "92", "TERM": "xterm-256color"}
        command = [sys.executable, "-m", "zeusrun", "submit", "jobs/digits.yaml"]
        root = IMAGES.parents[1]
        child = subprocess.Popen(command, cwd=root, env=env, stdout=terminal, stderr=terminal)
        os.close(terminal)
        shown = b""
        while True:
            try:
                shown += os.read(master, 1 << 16)
            except OSError:  # it has ended
                break
        child.wait()
        os.close(master)
    console = Console(record=True, width=92, file=io.StringIO())
    console.print(Text("$ zeusrun submit jobs/digits.yaml", style="bold"))
    for line in show_last(shown.decode()):
        console.print(Text.from_ansi(line))
    console.save_svg(str(IMAGES / "demo.svg"), title="demo", code_format=_TERMINAL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    with serve() as (address, folder):
        digest = read_pages(address, folder)
        if given.check:
            is_old = DIGEST.read_text().strip() != digest
            if is_old:
                print("docs/images show older pages; make them again: make pictures")
            return int(is_old)
        take(address, folder)
    record_demo()
    DIGEST.write_text(f"{digest}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
