"""The notices of a submit, and their delivery to a real server and a real command."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import psutil
import pytest

from tests.factories import build_trial, load_job
from tests.runs import start_and_wait, wait_for
from zeusrun.errors import LaunchError
from zeusrun.launcher.attempts.recurrence import SubmitResult
from zeusrun.notify.notices import (
    _letter,
    _log,
    build_notices,
    deliver_all,
    failure_notice,
    lost_notices,
)
from zeusrun.trial import CurvePoint, EnergySource, Interruption, Outcome, TrialStatus

SLEEP = ["sleep", f"60.{os.getpid()}"]  # nobody else's


def trial(number, status=TrialStatus.REACHED, **outcome):
    cost = {"cost_j": 100.0, "time_s": 1.0, "epochs": 1, "energy_j": 1.0}
    cost["energy_source"] = EnergySource.ESTIMATED
    return build_trial(number).finish(
        Outcome(status, "so it ended", "2027-01-01T01:00:00Z", **{**cost, **outcome})
    )


def events(earlier, *trials, code=0):
    result = SubmitResult(trials[0].recurrence, trials, code)
    return {notice.event: notice for notice in build_notices([*earlier, *trials], result)}


def test_a_target_reached_as_usual_is_one_event():
    (notice,) = events([trial(n) for n in range(1, 6)], trial(6)).values()
    assert notice.event == "reached"
    assert notice.text == "job-6-1 reached its target: so it ended, cost 100 J"
    assert (notice.trial, notice.recurrence, notice.status) == ("job-6-1", 6, "REACHED")


def test_a_run_that_lost_time_to_an_interruption_is_no_regression():
    curve = tuple(CurvePoint(n, t, 10.0 * t, 0.1) for n, t in enumerate((5.0, 10.0, 905.0), 1))
    lost = {"curve": curve, "epochs": 2, "max_power_w": 10.0, "time_s": 905.0, "energy_j": 9050.0}
    earlier = [trial(n, max_power_w=10.0) for n in range(1, 6)]
    cut = (Interruption(900.0, 2),)
    found = events(earlier, trial(6, cost_j=9050.0, interruptions=cut, **lost))
    assert list(found) == ["reached"]
    assert "regression" in events(earlier, trial(6, cost_j=9050.0, **lost))


@pytest.mark.parametrize(
    ("status", "code", "event"),
    [
        (TrialStatus.MISSED, 4, "missed"),
        (TrialStatus.STOPPED, 4, "missed"),
        (TrialStatus.FAILED, 3, "failed"),
        (TrialStatus.OOM, 3, "failed"),
        (TrialStatus.STOPPED, 124, "failed"),
    ],
)
def test_a_failed_submit_is_one_notice(status, code, event):
    (notice,) = events([trial(1)], trial(2, status), code=code).values()
    assert (notice.event, notice.exit_code, notice.reason) == (event, code, "so it ended")


@pytest.mark.parametrize(
    ("status", "code"), [(TrialStatus.CANCELLED, 130), (TrialStatus.PREEMPTED, 75)]
)
def test_a_cancelled_or_preempted_submit_has_no_notice(status, code):
    assert events([], trial(1, status), code=code) == {}


def test_a_lost_trial_is_one_notice():
    (notice,) = lost_notices([trial(1, TrialStatus.LOST)])
    assert (notice.event, notice.trial, notice.exit_code) == ("lost", "job-1-1", None)
    assert notice.text == "job-1-1 was lost: so it ended"


def test_a_run_that_reaches_its_target_again_has_recovered():
    found = events([trial(1), trial(2, TrialStatus.FAILED)], trial(3))
    assert set(found) == {"reached", "recovered"}
    assert "again, after job-2-1 (FAILED)" in found["recovered"].text
    assert "recovered" not in events([trial(2, TrialStatus.CANCELLED)], trial(3))
    assert "recovered" not in events([], trial(1, TrialStatus.MISSED), trial(1))


def test_a_run_far_dearer_than_its_batch_size_usually_is_a_regression():
    earlier = [trial(n, cost_j=95.0 + n) for n in range(1, 8)]
    found = events(earlier, trial(9, cost_j=300.0))
    assert found["regression"].usual_cost_j == pytest.approx(99, rel=0.01)
    assert "3.0 times what batch size 32 usually does" in found["regression"].text
    assert "regression" not in events(earlier, trial(9, cost_j=110.0))
    assert "regression" not in events(earlier, trial(9, cost_j=20.0))
    other = [dataclasses.replace(each, eta_knob=0.1) for each in earlier]
    assert "regression" not in events(other, trial(9, cost_j=300.0))


def test_a_submit_that_never_began_a_trial_has_failed():
    notice = failure_notice("job", LaunchError("torch is not installed"))
    assert (notice.event, notice.exit_code, notice.trial) == ("failed", 5, None)
    assert notice.text == "job did not run: torch is not installed"


@pytest.fixture
def server():
    """Listen on loopback; answers with the codes given, then with 200."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.headers["Content-Type"], json.loads(body)))
            code = codes.pop(0) if codes else 200
            self.send_response(code)
            if code == 302:
                self.send_header("Location", "/elsewhere")
            if code == 299:  # takes its time over the header
                self.flush_headers()
                with contextlib.suppress(ConnectionError):
                    for _ in range(30):
                        self.wfile.write(b"X-Slow: 1\r\n")
                        time.sleep(0.1)
                return
            self.end_headers()

        def do_GET(self):
            got.append(("GET", self.path))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments):
            pass

    got, codes = [], []
    listening = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
    thread.start()
    listening.got, listening.codes = got, codes
    listening.url = f"http://127.0.0.1:{listening.server_port}/hook"
    yield listening
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture
def leave(tmp_path):
    def write(name="1.json", **letter):
        whole = {
            "version": 1,
            "notice": {"event": "missed", "job": "job", "trial": "job-1-1", "text": "it missed"},
            "url": None,
            "command": [],
            "timeout_s": 5.0,
            "tries": 0,
        }
        (tmp_path / name).write_text(json.dumps({**whole, **letter}))

    return write


def left(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def test_a_notice_is_posted_once_and_gone(server, leave, tmp_path):
    leave(url=server.url)
    deliver_all(tmp_path, (0.0,))
    deliver_all(tmp_path, (0.0,))
    ((kind, body),) = server.got
    assert kind == "application/json"
    assert body["text"] == "it missed"
    assert left(tmp_path) == []


def test_a_server_that_fails_is_tried_again(server, leave, tmp_path):
    server.codes += [500, 503]
    leave(url=server.url)
    deliver_all(tmp_path, (0.0, 0.0, 0.0))
    assert len(server.got) == 3
    assert left(tmp_path) == ["failed.log"]
    assert "it missed: POST: HTTP Error 500" in (tmp_path / "failed.log").read_text()


def test_a_redirected_notice_is_not_taken_for_delivered(server, leave, tmp_path):
    server.codes += [302]
    leave(url=server.url)
    deliver_all(tmp_path, (0.0,))
    assert left(tmp_path) == ["1.json", "failed.log"]
    assert [kind for kind, _ in server.got] == ["application/json"]  # nothing was got elsewhere
    assert "POST: HTTP Error 302" in (tmp_path / "failed.log").read_text()


@pytest.mark.long  # waits for 3 s
def test_a_server_that_drips_holds_no_other_notice_up(server, leave, tmp_path):
    server.codes += [299]
    leave(url=server.url, timeout_s=0.5)
    deliver_all(tmp_path, (0.0,))
    assert "it took longer than 0.5 s" in (tmp_path / "failed.log").read_text()


def test_what_a_command_leaves_in_the_background_is_not_waited_for(leave, tmp_path):
    leave(command=["/bin/sh", "-c", f"{shlex.join(SLEEP)} & echo received"], timeout_s=20.0)
    deliver_all(tmp_path, (0.0,))
    assert left(tmp_path) == []

    def sleeping():
        found = psutil.process_iter(["cmdline"])
        return [each for each in found if each.info["cmdline"] == SLEEP]

    for each in wait_for(sleeping, what="the command's child"):  # just forked, it is a shell
        each.kill()


def test_what_is_not_known_is_empty_for_a_command(leave, tmp_path):
    received = tmp_path / "received.txt"
    notice = {"event": "failed", "job": "job", "trial": None, "text": "no GPU"}
    leave(notice=notice, command=["/bin/sh", "-c", f'echo "[$ZEUSRUN_TRIAL]" > {received}'])
    deliver_all(tmp_path, (0.0,))
    assert received.read_text() == "[]\n"


def test_what_cannot_be_delivered_is_kept_for_later_and_given_up_in_the_end(leave, tmp_path):
    leave(url="http://127.0.0.1:9/nobody")
    for _ in range(2):
        deliver_all(tmp_path, (0.0, 0.0, 0.0))
        assert left(tmp_path) == ["1.json", "failed.log"]
    deliver_all(tmp_path, (0.0, 0.0, 0.0))
    assert left(tmp_path) == ["failed.log"]
    assert len((tmp_path / "failed.log").read_text().splitlines()) == 9


def test_a_command_gets_the_notice_only_once(server, leave, tmp_path):
    server.codes += [500]
    received = tmp_path / "received"
    program = (
        "import os, sys; print(os.environ['ZEUSRUN_EVENT'], sys.stdin.read(), file=open(%r, 'a'))"
    )
    leave(url=server.url, command=[sys.executable, "-c", program % str(received)])
    deliver_all(tmp_path, (0.0, 0.0))
    (line,) = received.read_text().splitlines()
    event, body = line.split(" ", 1)
    assert (event, json.loads(body)["trial"]) == ("missed", "job-1-1")
    assert len(server.got) == 2


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["/there/is/none"], "/there/is/none: No such file"),
        ([sys.executable, "-c", "import sys; sys.exit('oh no')"], "ended with exit code 1: oh no"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "it took longer than 0.2 s"),
    ],
)
def test_a_command_that_fails_is_in_the_log(leave, tmp_path, command, said):
    leave(command=command, timeout_s=0.2 if "sleep" in command[-1] else 20.0)
    deliver_all(tmp_path, (0.0,))
    assert said in (tmp_path / "failed.log").read_text()


def test_one_notice_that_cannot_be_delivered_keeps_no_other(server, leave, tmp_path):
    leave("1.json", url="http://127.0.0.1:port/x")
    leave("2.json", url=server.url)
    leave("3.json", command=[sys.executable, "-c", "\0"])
    deliver_all(tmp_path, (0.0,))
    assert len(server.got) == 1
    assert left(tmp_path) == ["1.json", "3.json", "failed.log"]


def test_what_nobody_can_read_is_removed(leave, tmp_path):
    (tmp_path / "1.json").write_text("{")
    (tmp_path / "2.json").write_text('{"notice": 3}')
    leave("3.json", tries=None)
    leave("4.json", timeout_s="soon")
    deliver_all(tmp_path, (0.0,))
    assert left(tmp_path) == []


def test_a_lost_run_is_notified_even_if_the_next_one_is_killed(zeusrun, server):
    notify = {"url": server.url}
    job = zeusrun.job("checkpoints.py", objective={"max_epochs": 1000}, notify=notify)
    first = start_and_wait(zeusrun, job)
    first.kill()
    first.communicate(timeout=300)
    second = start_and_wait(zeusrun, job, "job-2-1")
    wait_for(lambda: server.got)  # while the second runs
    second.kill()
    second.communicate(timeout=300)
    assert [(body["event"], body["trial"]) for _, body in server.got] == [("lost", "job-1-1")]


def test_a_job_without_its_gpus_is_notified(zeusrun, server):
    job = zeusrun.job(launch={"nproc_per_node": "gpu"}, notify={"url": server.url})
    assert zeusrun("submit", job).returncode == 5
    wait_for(lambda: server.got)
    ((_, notice),) = server.got
    assert (notice["event"], notice["exit_code"], notice["trial"]) == ("failed", 5, None)


def test_a_submit_notifies_by_command_and_url_without_waiting(zeusrun, server):
    received = zeusrun.folder / "received"
    script = zeusrun.folder / "tell.sh"
    script.write_text(f"#!/bin/sh\nsleep 1\ncat >> {received}\n")
    script.chmod(0o700)
    notify = {"command": ["./tell.sh"], "url": server.url, "on": ["failed", "recovered"]}
    done = zeusrun("submit", zeusrun.job("exits_7.py", attempts=1, notify=notify))
    assert done.returncode == 3
    wait_for(lambda: received.exists() and received.read_text().endswith("}"))
    (notice,) = [body for _, body in server.got]
    assert json.loads(received.read_text()) == notice
    assert (notice["event"], notice["exit_code"]) == ("failed", 3)
    assert "exited with code 7" in notice["text"]
    assert zeusrun("submit", zeusrun.job(notify={**notify, "command": []})).returncode == 0
    wait_for(lambda: len(server.got) == 2)
    assert server.got[1][1]["event"] == "recovered"
    folder = zeusrun.home / "notices"
    wait_for(lambda: [name for name in os.listdir(folder) if name.endswith(".json")] == [])
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_notice_holds_nothing_that_a_terminal_obeys(tmp_path):
    evil = "\x1b]0;not yours\x1b\\\x9b2J\u202e"
    spec = load_job(tmp_path, notify={"command": ["true"], "on": ["lost"]})
    lost = dataclasses.replace(trial(1, TrialStatus.LOST), reason=f"died {evil}")
    letter = _letter(spec, lost_notices([lost])[0])
    assert letter["notice"]["reason"] == r"died \x9b2J\u202e"
    assert letter["notice"]["text"] == r"job-1-1 was lost: died \x9b2J\u202e"
    path = tmp_path / "failed.log"
    _log(path, f"{evil}\nsecond line")
    assert path.read_text().endswith(r" \x9b2J\u202e second line" + "\n")
