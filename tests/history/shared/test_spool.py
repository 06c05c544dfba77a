"""What waits for a shared history, on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from tests.factories import REACHED, ROOT, build_trial
from tests.runs import wait_for
from zeusrun.history.shared.spool import Spool

UUID = "0123456789abcdef" * 2


def test_what_waits_is_read_in_order(tmp_path):
    spool = Spool(tmp_path / "spool")
    assert not spool
    assert spool.entries() == []
    trials = [build_trial(number, uuid=f"{number:032x}") for number in range(1, 13)]
    for trial in trials:
        spool.put("finish", trial.finish(REACHED))
    spool.put("withdraw", trials[0].finish(REACHED))
    found = Spool(tmp_path / "spool").entries()
    assert spool
    assert [each.trial.recurrence for each in found] == [*range(1, 13), 1]
    assert [each.trial.uuid for each in found[:2]] == [trials[0].uuid, trials[1].uuid]
    assert [each.kind for each in found[-2:]] == ["finish", "withdraw"]


def test_what_is_delivered_waits_no_longer(tmp_path):
    spool = Spool(tmp_path)
    for number in (1, 2, 3):
        spool.put("finish", build_trial(number).finish(REACHED))
    first, *rest = spool.entries()
    spool.remove(first)
    spool.remove(first)
    assert spool.entries() == rest
    spool.put("begin", build_trial(4))
    assert [each.trial.recurrence for each in spool.entries()] == [2, 3, 4]


def test_what_is_refused_does_not_wait_and_stays_readable(tmp_path):
    spool = Spool(tmp_path)
    for _ in range(2):
        spool.put("finish", build_trial(1).finish(REACHED))
        path = spool.set_aside(spool.entries()[0].path, "the server says no")
        assert not spool
        assert path.with_suffix(".txt").read_text() == "the server says no\n"
    assert len(spool.list_refused()) == 2


def test_a_damaged_file_blocks_nothing(tmp_path):
    spool = Spool(tmp_path)
    for number in (1, 2, 3):
        spool.put("finish", build_trial(number).finish(REACHED))
    (tmp_path / "00000002.json").write_text('{"kind": "finish", "trial": {')
    (tmp_path / "notes.json").write_text("anything")
    assert [each.trial.recurrence for each in spool.entries()] == [1, 3]
    assert [path.name for path in spool.list_refused()] == ["00000002.json"]


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    def put(first):
        for number in range(first, first + 5):
            Spool(tmp_path).put("finish", build_trial(number).finish(REACHED))

    threads = [threading.Thread(target=put, args=(first,)) for first in (1, 101, 201, 301)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [each.trial.recurrence for each in Spool(tmp_path).entries()]
    assert len(set(numbers)) == 20
    for first in (1, 101, 201, 301):
        own = [number for number in numbers if first <= number < first + 5]
        assert own == list(range(first, first + 5))


WRITER = """
import sys
from pathlib import Path
from tests.factories import REACHED, build_trial
from zeusrun.history.shared.spool import Spool
for number in range(1, 10_000):
    Spool(Path(sys.argv[1])).put("finish", build_trial(number).finish(REACHED))
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_entries(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: len(list(tmp_path.glob("*.json"))) > 20)
    process.kill()
    written = [int(line) for line in process.stdout]
    process.wait()
    process.stdout.close()
    spool = Spool(tmp_path)
    found = [each.trial.recurrence for each in spool.entries()]
    assert found[: len(written)] == written
    assert len(found) <= len(written) + 1
    assert spool.list_refused() == []
    spool.put("finish", build_trial(99_999).finish(REACHED))
    assert spool.entries()[-1].trial.recurrence == 99_999


def test_one_process_delivers_at_a_time(tmp_path):
    spool = Spool(tmp_path)
    with spool.delivering(0.0) as alone:
        assert alone
        with Spool(tmp_path).delivering(0.05) as second:
            assert not second
    with spool.delivering(0.0) as again:
        assert again
