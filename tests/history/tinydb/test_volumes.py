"""Trials that moved out of the main file: still there, in order, and out of the way."""

from __future__ import annotations

import json
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import tinydb
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.history import (
    PREEMPTED,
    REACHED,
    HistoryContract,
    begin,
    build_trial,
)
from tests.history.tables import read_plain, without_sum, write_plain
from zeusrun.errors import HistoryError
from zeusrun.history.base import Conflict
from zeusrun.history.tinydb.storage import (
    VERSION,
    empty_tables,
    encode_tables,
    read_header,
    seal,
    volume_path,
)
from zeusrun.history.tinydb.store import StoredTrials, TinyDBHistory
from zeusrun.trial import TrialStatus


class TestTinyDBHistoryInVolumes(HistoryContract):
    @pytest.fixture
    def history(self, tmp_path):
        return TinyDBHistory(tmp_path / "home" / "history", volume_trials=1)


def run(history, count, first=1):
    """Begin and finish so many trials; returns them."""
    trials = []
    for number in range(first, first + count):
        begin(history, build_trial(number), last=1)
        trials.append(history.finish(f"digits-{number}-1", REACHED))
    return trials


@pytest.fixture
def history(tmp_path):
    """Eleven trials: 1 to 3, 4 to 6 in volumes of three, the rest in the main file."""
    history = TinyDBHistory(tmp_path, volume_trials=3)
    run(history, 11)
    return TinyDBHistory(tmp_path, volume_trials=3)


TRIALS = [build_trial(number).finish(REACHED) for number in range(1, 12)]


def volume(tmp_path, number):
    return tmp_path / "digits.volumes" / f"{number:06d}.json"


def main_trials(tmp_path):
    return list(json.loads((tmp_path / "digits.json").read_text())["trials"])


def test_the_oldest_trials_are_in_volumes_and_the_newest_in_the_main_file(history, tmp_path):
    assert main_trials(tmp_path) == ["7", "8", "9", "10", "11"]
    assert sorted(path.name for path in (tmp_path / "digits.volumes").iterdir()) == [
        "000001.json",
        "000002.json",
    ]
    assert history.trials("digits") == TRIALS


def test_a_volume_is_plain_tinydb_and_its_owner_s_alone(history, tmp_path):
    database = tinydb.TinyDB(volume(tmp_path, 2), access_mode="r")
    assert [*map(without_sum, database.table("meta").all())] == [{"version": VERSION}]
    stored = [*map(without_sum, database.table("trials").all())]
    assert stored == [trial.to_json() for trial in TRIALS[3:6]]
    database.close()
    assert stat.S_IMODE(volume(tmp_path, 2).stat().st_mode) == 0o600
    assert stat.S_IMODE(volume(tmp_path, 2).parent.stat().st_mode) == 0o700


def test_what_fits_in_two_volumes_stays_in_one_file(tmp_path):
    history = TinyDBHistory(tmp_path, volume_trials=3)
    run(history, 6)
    begin(history)
    assert not (tmp_path / "digits.volumes").exists()


def test_a_file_of_any_size_is_sealed_by_one_write(tmp_path):
    run(TinyDBHistory(tmp_path), 11)
    history = TinyDBHistory(tmp_path, volume_trials=2)
    assert history.trials("digits") == TRIALS
    twelfth = begin(history)
    assert main_trials(tmp_path) == ["9", "10", "11", "12"]
    assert history.trials("digits") == [*TRIALS, twelfth]


@pytest.mark.parametrize("last", [0, 1, 5, 6, 8, 9, 11, 20])
def test_only_the_volumes_needed_are_opened(history, tmp_path, last):
    if last <= 5:
        volume(tmp_path, 2).unlink()
    if last <= 8:
        volume(tmp_path, 1).unlink()
    assert history.trials("digits", last) == TRIALS[max(0, 11 - last) :]
    if last > 8:
        volume(tmp_path, 1).unlink()
        with pytest.raises(HistoryError, match=r"000001\.json.*it is missing"):
            TinyDBHistory(tmp_path).trials("digits", last)


def test_a_trial_is_found_wherever_it_is(history):
    for trial in TRIALS:
        assert history.find(trial.trial) == trial
    assert history.find("digits-12-1") is None
    assert history.find("digits-5-2") is None


def test_a_forgotten_trial_is_so_for_others_and_for_an_earlier_state_of_the_history(
    history, tmp_path
):
    other = TinyDBHistory(tmp_path, volume_trials=3)
    history.forget("digits-2-1", forgotten=True)
    for reader in (history, other, TinyDBHistory(tmp_path)):
        forgotten = [trial.trial for trial in reader.trials("digits") if trial.forgotten]
        assert forgotten == ["digits-2-1"]
    restored = history.restore("digits", TRIALS)  # the run directories do not know of it
    assert (restored.trials, restored.lost) == (11, ())
    assert history.find("digits-2-1").forgotten


def test_a_trial_is_looked_for_in_the_volumes_that_may_hold_it(history, tmp_path):
    volume(tmp_path, 1).unlink()
    assert history.find("digits-5-1") == TRIALS[4]
    assert history.find("digits-99-1") is None
    with pytest.raises(HistoryError, match=r"000001\.json"):
        history.find("digits-2-1")


@pytest.mark.parametrize("name", ["digits-2-1", "digits-5-1"])
def test_a_sealed_trial_never_changes_and_keeps_its_id(history, name):
    with pytest.raises(ValueError, match="never changes"):
        history.finish(name, replace(REACHED, cost_j=1.0))
    recurrence = int(name.split("-")[1])
    with pytest.raises(ValueError, match=f"a trial {name} already"):
        begin(history, build_trial(recurrence), last=1)
    assert history.trials("digits") == TRIALS


def test_a_second_attempt_of_a_sealed_recurrence_can_begin(history):
    again = begin(history, build_trial(5, 2))
    assert history.trials("digits") == [*TRIALS, again]


def test_what_can_still_change_stays_in_the_main_file_and_keeps_its_place(tmp_path):
    history = TinyDBHistory(tmp_path, volume_trials=1)
    running = begin(history)
    run(history, 1, first=2)
    begin(history)
    preempted = history.finish("digits-3-1", PREEMPTED)
    run(history, 5, first=4)
    assert main_trials(tmp_path) == ["1", "3", "7", "8"]
    expected = [running, TRIALS[1], preempted, *TRIALS[3:8]]
    for last in range(9):
        assert TinyDBHistory(tmp_path).trials("digits", last) == expected[8 - last :]
    resumed = begin(history, preempted.resume("2025-06-02T12:00:00Z"))
    finished = [history.finish(trial.trial, REACHED) for trial in (running, resumed)]
    assert main_trials(tmp_path) == ["7", "8"]
    expected[0], expected[2] = finished
    for last in range(9):
        assert TinyDBHistory(tmp_path).trials("digits", last) == expected[8 - last :]
    run(history, 3, first=9)
    assert [trial.recurrence for trial in history.trials("digits")] == list(range(1, 12))


def test_a_reader_in_the_middle_of_a_seal_sees_one_moment(history, tmp_path):
    stored = StoredTrials(tmp_path / "digits.json", "digits", {})
    run(history, 4, first=12)
    assert stored.newest(None) == TRIALS
    assert len(history.trials("digits")) == 15


def test_another_process_sees_what_this_one_sealed(history, tmp_path):
    other = TinyDBHistory(tmp_path, volume_trials=3)
    assert other.trials("digits") == TRIALS  # and it has read the volumes
    more = run(history, 6, first=12)
    assert other.trials("digits") == [*TRIALS, *more]


def test_a_volume_that_nobody_names_is_not_read_and_written_over(history, tmp_path):
    volume(tmp_path, 3).write_text("left by the dead")
    assert history.trials("digits") == TRIALS
    more = run(history, 6, first=12)
    assert TinyDBHistory(tmp_path).trials("digits") == [*TRIALS, *more]


def damage(path, how):
    tables = json.loads(path.read_text())
    if how == "missing":
        path.unlink()
        return
    if how == "short":
        del tables["trials"][min(tables["trials"])]
    elif how == "of another job":
        for record in tables["trials"].values():
            record["job"] = "mnist"
    elif how == "twice":
        tables["trials"][min(tables["trials"])] = TRIALS[9].to_json()
    elif how == "number of another":
        tables["trials"]["9"] = tables["trials"].pop(min(tables["trials"]))
    path.write_text("{" if how == "truncated" else json.dumps(tables))


HOW = ["missing", "truncated", "short", "of another job", "twice", "number of another"]


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_volume_is_named_where_it_is_needed(history, tmp_path, how):
    damage(volume(tmp_path, 1), how)
    for use in (
        lambda: history.trials("digits"),
        lambda: history.trials("digits", 9),
        lambda: history.find("digits-2-1"),
        lambda: begin(history),
        lambda: history.finish("digits-2-1", REACHED),
    ):
        with pytest.raises(HistoryError, match=r"000001\.json.*`zeusrun repair --restore digits`"):
            use()


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_volume_is_not_in_the_way_of_what_does_not_need_it(history, tmp_path, how):
    damage(volume(tmp_path, 1), how)
    assert history.trials("digits", 8) == TRIALS[3:]
    assert history.find("digits-5-1") == TRIALS[4]
    begin(history, lambda trials: build_trial(trials[-1].recurrence + 1), last=8)
    history.finish("digits-12-1", REACHED)
    run(history, 6, first=13)  # and more is sealed
    assert [trial.recurrence for trial in history.trials("digits", 8)] == list(range(11, 19))
    assert not list(tmp_path.rglob("*.corrupt-*"))


@pytest.mark.parametrize(
    "header",
    [
        {"volumes": 3},
        {"volumes": [3]},
        {"volumes": [[1, 3, 3, 1]]},
        {"volumes": [[1, 3, 3, 1, "x"]]},
        {"volumes": [[0, 3, 3, 1, 3]]},
        {"next_volume": 2},
        {"next_volume": None},
    ],
)
def test_a_header_that_does_not_say_which_volumes_there_are_is_damage(history, tmp_path, header):
    path = tmp_path / "digits.json"
    tables = json.loads(path.read_text())
    tables["meta"]["1"].update(header)
    path.write_text(json.dumps(tables))
    with pytest.raises(HistoryError, match=r"is damaged: its header "):
        history.trials("digits")
    history.restore("digits", [])
    assert history.trials("digits")[:6] == TRIALS[:6]


def test_jobs_named_like_the_volumes_of_another_stay_apart(tmp_path):
    history = TinyDBHistory(tmp_path, volume_trials=1)
    names = ["x", "x.json", "x.json.day-20250601", "x.volumes", "x.volumes.json", "x.volumes.tmp"]
    for number in range(1, 5):
        for name in names:
            begin(history, build_trial(number, job=name))
            history.finish(f"{name}-{number}-1", REACHED)
    assert history.jobs() == names
    for name in names:
        assert [t.trial for t in history.trials(name)] == [f"{name}-{n}-1" for n in range(1, 5)]


def test_fields_and_tables_that_a_newer_version_added_are_sealed_with_their_trials(tmp_path):
    history = TinyDBHistory(tmp_path, volume_trials=1)
    run(history, 2)
    path = tmp_path / "digits.json"
    tables = read_plain(path)
    tables["notes"] = {"1": {"text": "of a table unknown here"}}
    tables["meta"]["1"]["written_by"] = "1.9"
    tables["trials"]["1"]["carbon_g"] = 1.5
    write_plain(path, tables)
    run(history, 1, first=3)
    main = read_plain(path)
    assert main["notes"] == tables["notes"]
    assert main["meta"]["1"]["written_by"] == "1.9"
    assert json.loads(volume(tmp_path, 1).read_text())["trials"]["1"]["carbon_g"] == 1.5


statuses = st.lists(st.sampled_from(TrialStatus), max_size=30)


@settings(max_examples=30, deadline=None)
@given(statuses, st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_whatever_is_sealed_every_number_of_newest_trials_is_the_same(given_statuses, sizes):
    trials = [build_trial(n, status=s) for n, s in enumerate(given_statuses, start=1)]
    records = {str(number): trial.to_json() for number, trial in enumerate(trials, start=1)}
    tables, written = {**empty_tables(), "trials": records}, {}
    for size in sizes:
        sealed = seal(tables, size)
        assert not sealed.keys() & written.keys()
        assert all(len(volume["trials"]) == size for volume in sealed.values())
        written |= sealed
    volumes, following, _ = read_header(tables)
    assert [volume.number for volume in volumes] == list(written) == list(range(1, following))
    left = [record["status"] for record in tables["trials"].values()]
    changing = [TrialStatus.DISPATCHED, TrialStatus.PREEMPTED]
    assert sum(status not in changing for status in left) <= 2 * min(sizes[-1:])
    assert sum(s in changing for s in left) == sum(s in changing for s in given_statuses)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.json"
        path.write_bytes(encode_tables(tables))
        volume_path(path, 1).parent.mkdir()
        for number, content in written.items():
            volume_path(path, number).write_bytes(encode_tables(content))
        for last in [None, *range(len(trials) + 2)]:
            wanted = trials if last is None else trials[max(0, len(trials) - last) :]
            assert StoredTrials(path, "digits", {}).newest(last) == wanted


def test_a_volume_of_a_later_version_is_not_damage(history, tmp_path):
    volume(tmp_path, 1).write_text(json.dumps({"meta": {"1": {"version": VERSION + 1}}}))
    with pytest.raises(HistoryError, match="newer zeusrun"):
        history.trials("digits")


def test_a_volume_without_a_version_is_damaged(history, tmp_path):
    volume(tmp_path, 1).write_text('{"trials": {}}')
    with pytest.raises(HistoryError, match="no table 'meta'"):
        history.trials("digits")


def test_a_mark_that_another_process_sets_in_a_volume_is_a_conflict_and_is_read(tmp_path):
    history = TinyDBHistory(tmp_path, volume_trials=1)
    for number in range(1, 6):
        begin(history, build_trial(number))
        history.finish(f"digits-{number}-1", REACHED)
    before = history.snapshot("digits")
    TinyDBHistory(tmp_path, volume_trials=1).forget("digits-1-1", forgotten=True)
    assert (tmp_path / "digits.volumes" / "000001.json").exists()
    with pytest.raises(Conflict):
        history.begin(build_trial(6), after=before.version)
    after = history.snapshot("digits")
    assert after.trials[0] == replace(before.trials[0], forgotten=True)
    assert history.begin(build_trial(6), after=after.version)
