"""Copies of a history, and a history put together from them, its volumes and its runs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.history import PREEMPTED, REACHED, begin, build_trial
from tests.history.tables import read_plain, write_plain
from tests.history.test_disk import fork, intercept, wait_for
from zeusrun.errors import HistoryError
from zeusrun.files.private import open_for_reading
from zeusrun.history.tinydb import storage
from zeusrun.history.tinydb.restore import merge
from zeusrun.history.tinydb.storage import VERSION
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.trial import TrialStatus

TRIALS = [build_trial(number).finish(REACHED) for number in range(1, 10)]


@pytest.fixture
def history(tmp_path):
    return TinyDBHistory(tmp_path, volume_trials=1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "digits.json"


def run(history, count, first=1):
    for number in range(first, first + count):
        begin(history, build_trial(number), last=1)
        history.finish(f"digits-{number}-1", REACHED)


def test_the_copies_of_days_that_earlier_versions_kept_do_not_matter(history, path):
    run(history, 2)
    before = history.snapshot("digits")
    for name in ("digits.json.day-20250601", "gone.json.day-20250601"):
        path.with_name(name).write_bytes(path.read_bytes())
    assert history.jobs() == ["digits"]
    assert history.snapshot("digits") == before
    run(history, 3, first=3)
    report = history.restore("digits", [])
    assert (report.copy, history.trials("digits")) == ("present", TRIALS[:5])


def test_a_damaged_history_is_put_together_from_copy_volumes_and_runs(history, path):
    run(history, 5)
    begin(history)
    path.write_bytes(b"{")
    report = history.restore("digits", [TRIALS[5], TRIALS[7], TRIALS[0]])
    (aside,) = path.parent.glob("*.corrupt-*")
    assert history.trials("digits") == [*TRIALS[:6], TRIALS[7]]
    assert report.copy == "bak"
    assert report.trials == 7
    assert report.found == ("digits-6-1", "digits-8-1")
    assert (report.aside, report.lost) == (aside, None)
    assert aside.read_bytes() == b"{"
    assert begin(history, lambda t: build_trial(9)) == build_trial(9)


def test_a_damaged_history_that_nobody_has_read_is_set_aside_by_restoring(history, path):
    run(history, 2)
    path.write_bytes(b"{")
    report = history.restore("digits", [])
    assert ".corrupt-" in report.aside.name
    assert report.aside.read_bytes() == b"{"
    assert report.lost is None
    assert any("was damaged" in problem for problem in report.problems)
    path.with_name("digits.json.bak").replace(path)
    assert len(history.trials("digits")) == 2  # the copy is not the damaged state


@pytest.mark.parametrize("left", ["copy", "volumes"])
def test_a_missing_history_may_have_lost_trials(tmp_path, left):
    history = TinyDBHistory(tmp_path, volume_trials=1)
    run(history, 4)
    path = tmp_path / "digits.json"
    path.unlink()
    if left == "volumes":
        path.with_name("digits.json.bak").unlink()
    report = history.restore("digits", [])
    assert 0 < report.trials <= 4
    assert (report.lost, report.problems) == (None, (f"{path} is missing",))


def test_without_any_copy_the_run_directories_are_what_there_is(history, path):
    report = history.restore("digits", [build_trial(3), TRIALS[1]])
    assert history.trials("digits") == [TRIALS[1], build_trial(3)]
    assert (report.copy, report.aside, report.lost) == (None, None, ())
    assert report.found == ("digits-2-1", "digits-3-1")
    assert report.unfinished == ("digits-3-1",)


def test_without_anything_a_history_starts_afresh(history, path):
    run(history, 1)
    for file in (path, path.with_name("digits.json.bak")):
        file.write_bytes(b"{")
    report = history.restore("digits", [])
    assert report.copy is None
    assert history.trials("digits") == []
    assert begin(history).recurrence == 1


def test_a_history_that_reads_is_what_a_restoration_starts_from(history, path):
    run(history, 4)
    report = history.restore("digits", [TRIALS[5]])
    assert report.copy == "present"
    assert (report.lost, report.problems) == ((), ())
    assert ".replaced-" in report.aside.name
    assert history.trials("digits") == [*TRIALS[:4], TRIALS[5]]


def test_without_a_copy_that_reads_the_volumes_and_the_runs_are_what_there_is(history, path):
    run(history, 4)
    for broken in ("digits.json", "digits.json.bak"):
        path.with_name(broken).write_bytes(b"{")
    report = history.restore("digits", [TRIALS[3]])
    assert report.copy is None
    assert report.problems[0].startswith(f"{path} was damaged")
    assert report.problems[1].startswith(f"{path}.bak was damaged")
    assert history.trials("digits") == [*TRIALS[:2], TRIALS[3]]


def test_a_copy_of_a_later_version_is_not_passed_over(history, path):
    run(history, 1)
    path.write_bytes(b"{")
    content = json.dumps({"meta": {"1": {"version": VERSION + 1}}})
    path.with_name("digits.json.bak").write_text(content)
    with pytest.raises(HistoryError, match="newer zeusrun"):
        history.restore("digits", [TRIALS[0]])
    assert path.read_bytes() == b"{"


def test_a_history_of_a_later_version_is_not_touched(history, path):
    run(history, 1)
    content = json.dumps({"meta": {"1": {"version": VERSION + 1}}})
    path.write_text(content)
    with pytest.raises(HistoryError, match="newer zeusrun"):
        history.restore("digits", TRIALS)
    assert path.read_text() == content


@pytest.mark.parametrize("content", [None, b"{", b'{"meta": {"1": {"version": 1}}, "trials": {}}'])
def test_the_trials_of_a_damaged_volume_come_from_the_run_directories(history, path, content):
    run(history, 6)
    volume = path.parent / "digits.volumes" / "000002.json"
    volume.unlink()
    if content is not None:
        volume.write_bytes(content)
    report = TinyDBHistory(path.parent).restore("digits", [TRIALS[1]])
    assert history.trials("digits") == TRIALS[:6]
    assert report.found == ("digits-2-1",)
    if content == b"{":
        assert any(str(volume) in problem for problem in report.problems)
        assert next(volume.parent.glob("*.corrupt-*")).read_bytes() == content
    assert TinyDBHistory(path.parent).restore("digits", []).problems == ()


def test_a_volume_that_the_disk_refuses_is_no_damage_and_nothing_is_restored(
    history, path, monkeypatch
):
    run(history, 5)
    before = path.read_bytes()

    def refuse(file):
        if file.endswith("000002.json"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), file)
        return open_for_reading(file)

    with monkeypatch.context() as patches:
        patches.setattr(storage.private, "open_for_reading", refuse)
        with pytest.raises(HistoryError, match=r"000002\.json"):
            TinyDBHistory(path.parent, volume_trials=1).restore("digits", [])
    assert path.read_bytes() == before
    assert len(TinyDBHistory(path.parent, volume_trials=1).trials("digits")) == 5


def test_what_a_damaged_volume_held_is_not_said_to_be_there(history, path):
    run(history, 5)
    (path.parent / "digits.volumes" / "000002.json").write_text("{")
    report = TinyDBHistory(path.parent, volume_trials=1).restore("digits", [])
    assert (report.trials, report.lost) == (4, None)


def test_a_restored_history_names_volumes_of_its_own(history, path):
    run(history, 6)
    old = {file: file.read_bytes() for file in (path.parent / "digits.volumes").iterdir()}
    reader = TinyDBHistory(path.parent)
    reader.trials("digits", 3)
    second = build_trial(1, 2).finish(REACHED)
    history.restore("digits", [second])  # so that all after it move on by one
    run(history, 3, first=7)
    for volume, content in old.items():
        assert volume.read_bytes() == content  # the copies name it
    expected = [TRIALS[0], second, *TRIALS[1:]]
    assert reader.trials("digits") == history.trials("digits") == expected
    assert TinyDBHistory(path.parent).trials("digits") == expected


def test_what_a_newer_minor_version_added_is_kept(history, path):
    run(history, 2)
    tables = read_plain(path)
    tables["notes"] = {"1": {"text": "of a table unknown here"}}
    tables["trials"]["1"]["carbon_g"] = 1.5
    write_plain(path, tables)
    history.restore("digits", [TRIALS[0]])
    assert read_plain(path)["notes"] == tables["notes"]
    assert read_plain(path)["trials"]["1"]["carbon_g"] == 1.5


@pytest.mark.parametrize(
    "wrong",
    [
        build_trial(3, job="other"),
        build_trial(3, trial="digits-4-1"),
        build_trial(3, target=float("nan")),
    ],
)
def test_what_is_no_trial_of_the_job_is_left_out_and_reported(history, wrong):
    run(history, 1)
    report = history.restore("digits", [wrong, TRIALS[1]])
    assert history.trials("digits") == TRIALS[:2]
    assert any("no trial of digits" in problem for problem in report.problems)


def test_a_field_that_cannot_be_rewritten_makes_a_state_unreadable_and_no_bug(history, path):
    run(history, 2)
    write_plain(path, read_plain(path))
    path.write_bytes(path.read_bytes().replace(b'"steps":84', b'"steps":84,"later":1e999'))
    report = history.restore("digits", [TRIALS[1]])
    assert report.copy == "bak"
    assert history.trials("digits") == TRIALS[:2]


def records(*trials):
    return [(trial, trial.to_json()) for trial in trials]


def test_a_finished_record_wins_over_a_dispatched_one_from_either_side():
    one, other = records(build_trial(1)), records(TRIALS[0])
    assert merge([one, other]) == merge([other, one]) == other


def test_of_two_finished_records_the_first_source_holds():
    lost = build_trial(1).finish(replace(REACHED, status=TrialStatus.LOST))
    assert merge([records(lost), records(TRIALS[0])]) == records(lost)
    assert merge([records(TRIALS[0]), records(lost)]) == records(TRIALS[0])


def test_a_trial_that_went_on_wins_over_what_it_was_when_preempted():
    preempted = build_trial(1).finish(PREEMPTED)
    resumed = preempted.resume("2025-06-02T12:00:00Z")
    ended = resumed.finish(REACHED)
    assert merge([records(preempted), records(resumed)]) == records(resumed)
    assert merge([records(resumed), records(preempted)]) == records(resumed)
    assert merge([records(resumed), records(ended), records(preempted)]) == records(ended)


numbered = st.builds(
    lambda n, a, done: build_trial(n, a).finish(REACHED) if done else build_trial(n, a),
    st.integers(1, 4),
    st.integers(1, 3),
    st.booleans(),
)


@given(st.lists(st.lists(numbered, max_size=8), max_size=4))
def test_what_is_merged_is_there_once_and_in_the_order_of_its_numbers(sources):
    merged = [trial for trial, _ in merge([records(*source) for source in sources])]
    keys = [(trial.recurrence, trial.attempt) for trial in merged]
    known = {(t.recurrence, t.attempt) for source in sources for t in source}
    ended = {(t.recurrence, t.attempt) for source in sources for t in source if t.status.finished}
    assert keys == sorted(known)
    assert {key for key, t in zip(keys, merged, strict=True) if t.status.finished} == ended


# The short tier has each state and each kind of error once.
@pytest.mark.parametrize(
    ("damaged", "lasting"),
    [
        pytest.param(False, False, id="good-once"),
        pytest.param(True, True, id="damaged-from then on"),
        pytest.param(False, True, id="good-from then on", marks=pytest.mark.long),
        pytest.param(True, False, id="damaged-once", marks=pytest.mark.long),
    ],
)
def test_an_io_error_at_any_step_of_restoring_loses_nothing(
    tmp_path, monkeypatch, damaged, lasting
):
    prepared = prepare(tmp_path / "prepared", damaged)
    for broken in range(1, 1000):
        directory = tmp_path / str(broken)
        shutil.copytree(prepared, directory)

        def fail(step, broken=broken):
            if step == broken or (lasting and step > broken):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patches:
            steps = intercept(patches, fail)
            try:
                TinyDBHistory(directory, volume_trials=1).restore("digits", TRIALS[5:7])
            except HistoryError as error:
                assert str(directory) in str(error)
            if len(steps) < broken:
                break
        check_restored_or_restorable(directory, damaged)
    assert broken > 20


@pytest.mark.long  # 11 s of CPU; the steps are those of the errors above
@pytest.mark.parametrize("damaged", [False, True], ids=["good", "damaged"])
def test_a_death_at_any_step_of_restoring_loses_nothing(tmp_path, monkeypatch, damaged):
    prepared = prepare(tmp_path / "prepared", damaged)
    for fatal in range(1, 1000):
        directory = tmp_path / str(fatal)
        shutil.copytree(prepared, directory)

        def work(directory=directory, fatal=fatal):
            def die(step):
                if step == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)

            intercept(monkeypatch, die)
            TinyDBHistory(directory, volume_trials=1).restore("digits", TRIALS[5:7])
            return 0

        code = wait_for(fork(work))
        check_restored_or_restorable(directory, damaged)
        if code == 0:
            break
    assert fatal > 20


def prepare(directory, damaged):
    """Five trials in a history with volumes; damaged ones know of the first four, and the copy."""
    run(TinyDBHistory(directory, volume_trials=1), 5)
    if damaged:
        (directory / "digits.json").write_bytes(b"{")
    return directory


def check_restored_or_restorable(directory, damaged):
    if damaged:
        kept = [file.read_bytes() for file in directory.glob("digits.json*")]
        assert b"{" in kept  # under whichever name
    try:
        before = TinyDBHistory(directory).trials("digits")
    except HistoryError:
        assert damaged
    else:
        assert len(before) in {5, 7}
    history = TinyDBHistory(directory, volume_trials=1)
    history.restore("digits", TRIALS[4:7])
    assert history.trials("digits") == TRIALS[:7]
    begin(history)
    assert not list(Path(directory).rglob("*.tmp"))


def test_a_volume_precedes_the_copy_whose_marks_are_older(tmp_path, path):
    TinyDBHistory(tmp_path, volume_trials=1000).add(TRIALS)
    history = TinyDBHistory(tmp_path, volume_trials=2)
    history.forget("digits-1-1", forgotten=True)  # this write seals the oldest into volumes
    path.write_bytes(path.read_bytes().replace(b'"digits-9-1"', b'"digits-8-1"', 1))
    report = history.restore("digits", TRIALS)
    assert "these records have changed" in report.problems[0]
    assert [trial.forgotten for trial in history.trials("digits")] == [True] + [False] * 8


def test_a_link_to_nothing_beside_a_copy_is_a_missing_history(tmp_path, path):
    history = TinyDBHistory(tmp_path)
    history.add(TRIALS[:4])
    history.add(TRIALS[4:])
    path.unlink()
    path.symlink_to(tmp_path / "gone" / "digits.json")
    with pytest.raises(HistoryError, match="is missing"):
        history.trials("digits")
    (tmp_path / "gone").mkdir()
    report = history.restore("digits", [])
    assert (report.copy, report.trials, report.lost) == ("bak", 4, None)
    assert "is missing" in report.problems[0]
    assert (tmp_path / "gone" / "digits.json").is_file()


def test_a_history_that_comes_just_now_is_no_damage(tmp_path, monkeypatch):
    path = tmp_path / "digits.json"
    asked = []

    def come_late(name):
        asked.append(name)
        if len(asked) == 1:
            path.write_bytes(b"{}")
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return open_for_reading(name)

    monkeypatch.setattr(storage.private, "open_for_reading", come_late)
    assert storage.read_bytes(path) == b"{}"
