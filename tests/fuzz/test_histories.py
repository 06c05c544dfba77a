"""Bad history files and bad records of trials: trials that can be shown and chosen by, or an error."""

from __future__ import annotations

import io
import json
import shutil

import numpy as np
import pytest
from hypothesis import strategies as st
from rich.console import Console

from tests.factories import begin
from tests.factories import build_trial as trial
from tests.fuzz.mutations import CHANGES, change, mutated, pieces, run_inputs
from zeusrun.analysis.savings import find_savings
from zeusrun.bandit.differences import describe_kept
from zeusrun.bandit.problem import Problem
from zeusrun.bandit.registry import create_policy
from zeusrun.bandit.reinterpret import read_history
from zeusrun.errors import HistoryError
from zeusrun.history.rules import encode_trial
from zeusrun.history.tinydb.storage import volume_path
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.rundir.layout import create_run, read_live, read_outcome
from zeusrun.lever import Lever
from zeusrun.trial import Hardware, Outcome, Trial, TrialStatus
from zeusrun.view.report.facts import JobReport, build_facts
from zeusrun.view.report.page import reports_json
from zeusrun.view.sheets import trial_sheet
from zeusrun.view.tables import history_table, savings_block

NOW = "2025-06-01T13:00:00.000+00:00"


def problem(trials):
    sizes = {16, 32, 64, *(each.global_batch_size for each in trials)}
    return Problem(
        candidates=(16, 32, 64),
        default=32,
        metric="accuracy",
        mode="max",
        target=0.5,
        max_epochs=5,
        eta_knob=0.5,
        cost_factor=2.0,
        recurrence=1 + max((each.recurrence for each in trials), default=0),
        hardware=Hardware(1, "GPU", 1),
        energy_measured=True,
        learning_rates=dict.fromkeys(sizes),
        max_power_w=300.0,
        levers=(Lever("power", 80.0), Lever("power", 100.0)),
    )


def use(trials):
    """Do with trials what submit, history, show and report do."""
    records = [each.to_json() for each in trials]
    json.dumps(records, allow_nan=False)
    assert [Trial.from_json(record) for record in records] == trials
    asked = problem(trials)
    describe_kept(asked, trials)
    asked, runs = read_history(asked, trials)
    for name in ("auto", "zeus", "grid"):
        policy, rng = create_policy(name), np.random.default_rng(0)
        policy.choose(asked, runs, rng)
        policy.explain(asked, runs, rng)
    console = Console(file=io.StringIO(), width=100)
    console.print(history_table("job", trials, 30))
    for each in trials[:2]:
        console.print(trial_sheet(each, None, run_dir_exists=False))
    savings_block(find_savings(trials))
    if any(each.status.finished for each in trials):
        report = JobReport(build_facts("job", trials))
        reports_json([report]).encode()


def read(folder, content):
    """Read a history; ``None`` where it is refused."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "job.json").write_bytes(content)
    try:
        return TinyDBHistory(folder).trials("job")
    except HistoryError:
        return None


def test_the_corpus_holds_good_histories(tmp_path):
    found = [read(tmp_path / "history", piece) for piece in pieces("histories")]
    assert [None if trials is None else len(trials) for trials in found] == [0, 4, None, 1]
    use(found[1])


def test_any_history_is_trials_that_can_be_used_or_an_error(tmp_path):
    def histories(content):
        trials = read(tmp_path / "history", content)
        if trials is not None:
            use(trials)

    run_inputs(histories, mutated("histories"))


def test_a_history_takes_another_trial_or_is_refused_whatever_it_holds(tmp_path):
    def written_histories(content):
        if read(tmp_path / "history", content) is None:
            return
        history = TinyDBHistory(tmp_path / "history")
        begin(history, trial(trial="job-777-1", recurrence=777))
        done = history.finish("job-777-1", Outcome(TrialStatus.LOST, "its launcher died", NOW))
        assert history.trials("job")[-1] == done

    run_inputs(written_histories, mutated("histories"))


@pytest.fixture
def sealed(tmp_path):
    """Return a history whose two oldest trials are in volumes, and the paths of its files."""
    history = TinyDBHistory(tmp_path / "sealed", volume_trials=1)
    for number in range(1, 5):
        name = f"job-{number}-1"
        begin(history, trial(trial=name, recurrence=number))
        history.finish(name, Outcome(TrialStatus.LOST, "its launcher died", NOW))
    main = tmp_path / "sealed" / "job.json"
    return main, main.read_bytes(), volume_path(main, 1), volume_path(main, 1).read_bytes()


def test_any_volume_is_trials_or_an_error_and_so_is_a_main_file_with_volumes(sealed):
    main, whole_main, volume, whole_volume = sealed
    assert len(TinyDBHistory(main.parent).trials("job")) == 4

    def volumes(content, changes, of_main):
        for path in main.parent.glob("job.json*"):
            path.unlink()
        corpus = [whole_main if of_main else whole_volume]
        content = content if content and not of_main else corpus[0]
        for each in changes:
            content = change(content, each, corpus)
        main.write_bytes(content if of_main else whole_main)
        volume.write_bytes(whole_volume if of_main else content)
        try:
            trials = TinyDBHistory(main.parent).trials("job")
        except HistoryError:
            return
        use(trials)

    run_inputs(volumes, st.just(b"") | mutated("histories"), CHANGES, st.booleans())


@pytest.fixture
def paths(tmp_path):
    return create_run(tmp_path, "job", "job-1-1")


def test_any_live_record_is_a_running_trial_or_none(paths):
    def live_records(content):
        paths.live.write_bytes(content)
        live = read_live(paths)
        if live is not None:
            json.dumps(live.to_json(), allow_nan=False)
            use([live.trial])

    run_inputs(live_records, mutated("live_records"))


def test_any_record_beside_a_run_is_an_outcome_or_none(paths):
    def records(content):
        paths.trial.write_bytes(content)
        outcome = read_outcome(paths)
        if outcome is not None:
            recovered = trial().finish(outcome)
            encode_trial(recovered)
            use([recovered])

    run_inputs(records, mutated("records"))
