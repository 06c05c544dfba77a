"""``zeusrun serve --demo``: a made-up history that says so, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")
pytest.importorskip("uvicorn")

from tests.runs import wait_for
from tests.server.pages.conftest import fetch
from zeusrun.server import demo
from zeusrun.server.run import listen
from zeusrun.server.settings import demo_settings

MARK = "Demo: nothing here was measured"


def test_every_page_says_that_it_is_made_up_and_nothing_is_left(zeusrun, tmp_path):
    (tmp_path / "temporary").mkdir()
    own = {"TMPDIR": str(tmp_path / "temporary"), "ZEUSRUN_DATABASE_URL": "sqlite:////nope/x.db"}
    child = zeusrun.start("serve", "--demo", "--port", "0", **own)
    lines = []
    while not lines or not lines[-1].startswith("Ctrl-C"):
        lines.append(child.stdout.readline())
        assert lines[-1], lines
    text = "".join(lines)
    assert text.startswith("zeusrun serve: starting\nzeusrun serves a made-up history on http")
    assert "Nothing in it was measured." in text
    port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", text)[1])
    first = fetch(port, "/")
    for path in ("/", "/job/forecast", "/run/forecast-48-1", "/machines"):
        page = fetch(port, path)
        assert (page.status, MARK in page.text) == (200, True)
    assert MARK in fetch(port, "/job/nosuch").text
    assert all(f"job/{job}" in first.text for job in demo.JOBS)
    assert first.text.count('class="card"') == 3
    assert list((tmp_path / "temporary").iterdir())
    child.send_signal(signal.SIGTERM)
    assert child.wait(300) == 0
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not zeusrun.home.exists()


def test_its_sums_are_known_and_it_has_saved_something(tmp_path):
    from tests.server.conftest import serving

    with demo.made_up_database() as url, serving(database_url=url) as server:

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
        with demo.made_up_database() as url:
            seen.append(Path(url.removeprefix("sqlite:///")))
            assert seen[0].is_file()
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        use()
    assert not seen[0].parent.exists()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    "flags",
    [
        ("--database-url", "sqlite:////tmp/x.db"),
        ("--host", "0.0.0.0", "--insecure"),
        ("--workers", "2"),
    ],
)
def test_flags_that_do_not_fit_are_refused(cli, flags):
    code, out, err = cli("serve", "--demo", *flags)
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    named = ", ".join(sorted(flag for flag in flags if flag.startswith("--")))
    assert last.endswith(f"leave out {named}")


def test_a_wrong_port_is_refused(cli, zeusrun):
    code, out, err = cli("serve", "--demo", "--port", "99999")
    assert (code, out) == (2, "")
    assert "--port" in err
    assert not zeusrun.home.exists()


def test_its_settings_are_those_of_flags_and_it_listens_here(tmp_path):
    settings = demo_settings(f"sqlite:///{tmp_path}/x.db", {"port": 0, "access_log": True})
    assert (settings.demo, settings.host, settings.access_log) == (True, "127.0.0.1", True)
    listening = listen(settings)
    listening.listener.close()
    assert listening.is_new
