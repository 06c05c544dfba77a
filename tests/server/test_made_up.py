"""``benchmarks/made_up.py``: a made-up history that says so, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")
pytest.importorskip("uvicorn")

from benchmarks import made_up
from tests.runs import wait_for
from tests.server.pages.conftest import fetch

MARK = "Demo: nothing here was measured"


def test_every_page_says_that_it_is_made_up_and_nothing_is_left(zeusrun, tmp_path):
    (tmp_path / "temporary").mkdir()
    own = {"TMPDIR": str(tmp_path / "temporary"), "ZEUSRUN_DATABASE_URL": "sqlite:////nope/x.db"}
    child = subprocess.Popen(
        [sys.executable, made_up.__file__, "--port", "0"],
        env={**zeusrun.environment, **own},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        _look_at(child, tmp_path / "temporary")
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert not zeusrun.home.exists()


def _look_at(child, folder):
    lines = []
    while not lines or not lines[-1].startswith("Ctrl-C"):
        lines.append(child.stdout.readline())
        assert lines[-1], lines
    text = "".join(lines)
    assert text.startswith("A made-up history is on http")
    assert "Nothing in it was measured." in text
    port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", text)[1])
    first = fetch(port, "/")
    for path in ("/", "/job/forecast", "/run/forecast-48-1", "/machines"):
        page = fetch(port, path)
        assert (page.status, MARK in page.text) == (200, True)
    assert MARK in fetch(port, "/job/nosuch").text
    assert all(f"job/{job}" in first.text for job in made_up.JOBS)
    now = first.text.partition('id="now"')[2].partition("</section>")[0]
    assert now.count("<tr data-key=") == 3
    assert re.search("[1-9][0-9]* epochs of at most 30", first.text)
    assert list(folder.iterdir())
    child.send_signal(signal.SIGTERM)
    assert child.wait(300) == 0
    assert list(folder.iterdir()) == []


def test_its_sums_are_known_and_it_has_saved_something(tmp_path):
    from tests.server.conftest import serving

    with made_up.made_up_database() as url, serving(database_url=url) as server:

        def read():
            text = server.get("/").body.decode()
            return None if "data-pending" in text else text

        text = wait_for(read, what="all sums")
    assert ">Saved " in text
    assert MARK not in text  # with the settings of another server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_removes_the_database(number):
    before, seen = signal.getsignal(number), []

    def use():
        with made_up.made_up_database() as url:
            seen.append(Path(url.removeprefix("sqlite:///")))
            assert seen[0].is_file()
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        use()
    assert not seen[0].parent.exists()
    assert signal.getsignal(number) is before
