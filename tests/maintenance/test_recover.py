"""A trial in several parts: what it takes altogether, and when it goes on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.factories import begin, build_trial
from tests.history.memory import MemoryHistory
from zeusrun.bandit.proof import is_resized
from zeusrun.choice.attempts import find_preempted
from zeusrun.errors import BusyError
from zeusrun.files.home import limits_directory
from zeusrun.launcher.events import FoundLost, Noted, Warned
from zeusrun.launcher.rundir.layout import Live, create_run, read_outcome, write_live, write_record
from zeusrun.launcher.rundir.ownership import RunLock
from zeusrun.launcher.supervision.outcome import cost_with_earlier
from zeusrun.launcher.supervision.unfinished import outcome_so_far
from zeusrun.maintenance import recover
from zeusrun.maintenance.recover import (
    Orphans,
    cancel_preempted,
    clean_up,
    presume_ended,
    recover_lost,
)
from zeusrun.maintenance.repair import find_and_repair
from zeusrun.maintenance.running import read_running
from zeusrun.reasons import ReasonCode
from zeusrun.sidecar.events import Built, Observed, Reported, Started, encode_event
from zeusrun.sidecar.step_clock import StepClock
from zeusrun.trial import (
    MOST_POINTS,
    CurvePoint,
    EnergySource,
    Interruption,
    Outcome,
    PowerPoint,
    TrialStatus,
    join_parts,
    thin_curve,
)
from zeusrun.trial.resizes import join_worlds
from zeusrun.trial.values import WorldChange

COUNTER, INTEGRATED = EnergySource.COUNTER, EnergySource.INTEGRATED
ESTIMATED = EnergySource.ESTIMATED
PREEMPTED = TrialStatus.PREEMPTED
TRIAL = build_trial()


def part(status=TrialStatus.REACHED, *, epochs=(), time_s=10.0, energy_j=100.0, **changes):
    """Return the outcome of a part that reported these epochs, one a second and for 10 J."""
    curve = tuple(
        CurvePoint(epoch, float(n), None if energy_j is None else 10.0 * n, epoch / 100)
        for n, epoch in enumerate(epochs, start=1)
    )
    values = {
        "startup_s": 2.0,
        "energy_source": COUNTER,
        "max_power_w": 300.0,
        "epochs": epochs[-1] if epochs else None,
        "steps": 50,
        "best_metric": max((point.value for point in curve), default=None),
        **changes,
    }
    return Outcome(
        status, "so", "2026-01-01T00:00:00Z",
        time_s=time_s, energy_j=energy_j, curve=curve, **values,
    )  # fmt: skip


def after(first, second):
    """Return the outcome of a trial that was preempted and then ended so."""
    return join_parts(TRIAL.finish(first).resume("2026-01-02T00:00:00Z"), second)


def test_a_trial_that_was_never_preempted_is_left_alone():
    outcome = part(epochs=(1, 2))
    assert join_parts(TRIAL, outcome) is outcome


def test_time_energy_steps_and_cost_are_those_of_all_parts():
    both = after(part(PREEMPTED, epochs=(1, 2)), part(epochs=(3, 4), time_s=5.0, energy_j=60.0))
    assert (both.status, both.time_s, both.energy_j) == (TrialStatus.REACHED, 15.0, 160.0)
    assert (both.steps, both.startup_s, both.epochs) == (100, 4.0, 4)
    knob = TRIAL.eta_knob
    assert both.cost_j == pytest.approx(knob * 160.0 + (1 - knob) * 300.0 * 15.0)
    assert [point[:3] for point in both.curve] == [
        (1, 1.0, 10.0), (2, 2.0, 20.0), (3, 11.0, 110.0), (4, 12.0, 120.0),
    ]  # fmt: skip


PRICED = {"price": 0.3, "currency": "EUR", "carbon_g": 200.0, "pue": 1.2}


def spent(outcome):
    return outcome.price, outcome.currency, outcome.carbon_g, outcome.pue


def test_price_and_carbon_are_those_of_all_parts():
    first, second = part(PREEMPTED, **PRICED), part(**{**PRICED, "price": -0.1})
    assert spent(after(first, second)) == (pytest.approx(0.2), "EUR", 400.0, 1.2)
    never_trained = part(time_s=None, energy_j=None, energy_source=None)
    assert spent(after(first, never_trained)) == (0.3, "EUR", 200.0, 1.2)


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"price": None, "currency": None}, (None, None, 400.0, 1.2)),
        ({"currency": "USD"}, (None, None, 400.0, 1.2)),
        ({"carbon_g": None}, (0.6, "EUR", None, 1.2)),
        ({"pue": 1.5}, (0.6, "EUR", 400.0, None)),
        ({"energy_source": ESTIMATED}, (None, None, None, 1.2)),
    ],
)
def test_a_price_that_is_unknown_in_one_part_is_unknown_in_all(changes, known):
    assert spent(after(part(PREEMPTED, **PRICED), part(**{**PRICED, **changes}))) == known


def test_an_estimate_of_no_energy_has_no_price():
    free = {"price": 0.0, "currency": "EUR", "carbon_g": 0.0, "pue": 1.2}
    outcome = join_parts(TRIAL, part(energy_j=0.0, energy_source=ESTIMATED, **free))
    assert spent(outcome)[:3] == (None, None, None)


def test_an_epoch_trained_again_counts_where_it_was_reported_last():
    both = after(part(PREEMPTED, epochs=(1, 2, 3)), part(epochs=(3, 4)))
    assert [point.epoch for point in both.curve] == [1, 2, 3, 4]
    assert both.curve[2].time_s == 11.0


def test_a_preemption_and_the_restarts_of_all_parts_are_told_in_seconds_of_training():
    first = part(PREEMPTED, epochs=(1, 2), interruptions=(Interruption(1.5, 1),))
    second = part(epochs=(3, 4), time_s=5.0, interruptions=(Interruption(3.0, 3),))
    both = after(first, second)
    assert both.interruptions == ((1.5, 1), (10.0, 2), (13.0, 3))
    at_once = after(first, part(epochs=(3, 4), interruptions=(Interruption(0.5, 0),)))
    assert at_once.interruptions == ((1.5, 1), (10.0, 2), (10.5, 2))
    never_trained = part(time_s=None, energy_j=None, energy_source=None)
    assert after(first, never_trained).interruptions == ((1.5, 1),)


def test_a_continued_run_begins_again_with_the_first_number_of_ranks():
    def began(time_s, epochs=2):  # its earlier part has no steps
        return WorldChange(time_s, epochs, 2, step=0)

    grown = (WorldChange(0.0, 0, 2), WorldChange(1.5, 1, 4))
    first = part(PREEMPTED, epochs=(1, 2), world_sizes=grown)
    steady = after(first, part(epochs=(3, 4)))
    assert steady.world_sizes == (*grown, began(10.0))
    again = after(first, part(epochs=(3, 4), world_sizes=grown))
    assert again.world_sizes == (*grown, began(10.0), WorldChange(11.5, 1, 4))
    at_once = (WorldChange(0.0, 0, 2), WorldChange(0.5, 0, 1))
    later = after(part(PREEMPTED, epochs=(1, 2)), part(epochs=(3, 4), world_sizes=at_once))
    assert later.world_sizes == (began(0.0, 0), WorldChange(10.5, 2, 1))  # from its start
    never_trained = part(time_s=None, energy_j=None, energy_source=None)
    assert after(first, never_trained).world_sizes == grown
    assert after(part(PREEMPTED, epochs=(1, 2)), part(epochs=(3, 4))).world_sizes == ()


def test_waits_add_up_and_a_part_that_did_not_train_waited_for_nothing():
    first = part(PREEMPTED, epochs=(1, 2), data_wait_s=3.0, evaluation_wait_s=1.0)
    both = after(first, part(epochs=(3, 4), data_wait_s=2.0, evaluation_wait_s=None))
    assert (both.data_wait_s, both.evaluation_wait_s) == (5.0, None)
    never_trained = part(time_s=None, energy_j=None, energy_source=None)
    assert after(first, never_trained).data_wait_s == 3.0


def test_a_number_of_ranks_that_stays_is_no_change():
    replaced = (WorldChange(0.0, 0, 2), WorldChange(1.0, 1, 2), WorldChange(2.0, 2, 4))
    assert join_worlds((), replaced) == (replaced[0], replaced[2])
    assert join_worlds((), replaced[:2]) == ()


def test_ranks_that_change_after_the_target_do_not_count():
    trial = TRIAL.finish(part(world_sizes=(WorldChange(0.0, 0, 2), WorldChange(9.0, 9, 4))))
    assert is_resized(trial)
    assert not is_resized(replace(trial, time_s=9.0))
    assert not is_resized(TRIAL.finish(part()))


def test_a_script_that_saved_nothing_begins_anew_and_pays_for_both():
    both = after(part(PREEMPTED, epochs=(1, 2, 3)), part(epochs=(1, 2)))
    assert [point.epoch for point in both.curve] == [1, 2]
    assert (both.epochs, both.time_s) == (2, 20.0)


def test_a_part_that_never_came_to_training_adds_nothing():
    nothing = part(PREEMPTED, time_s=None, energy_j=None, energy_source=None, whole_steps=None)
    whole = part(epochs=(1, 2))
    assert replace(after(nothing, whole), startup_s=2.0) == whole
    both = after(replace(whole, status=PREEMPTED), nothing)
    assert (both.time_s, both.energy_j, both.epochs) == (10.0, 100.0, 2)
    assert both.curve == whole.curve


def test_energy_that_was_not_measured_in_one_part_is_unknown_in_all():
    unknown = part(epochs=(3,), energy_j=None, energy_source=None)
    both = after(part(PREEMPTED, epochs=(1, 2)), unknown)
    assert (both.energy_j, both.energy_source, both.cost_j) == (None, None, None)
    assert [point.energy_j for point in both.curve] == [10.0, 20.0, None]
    assert both.time_s == 20.0


@pytest.mark.parametrize(
    ("first", "second", "source"),
    [
        (COUNTER, COUNTER, COUNTER),
        (COUNTER, INTEGRATED, INTEGRATED),
        (INTEGRATED, COUNTER, INTEGRATED),
        (ESTIMATED, ESTIMATED, ESTIMATED),
        (COUNTER, ESTIMATED, None),
    ],
)
def test_the_source_is_the_weaker_one_and_a_model_is_never_added_to_a_meter(first, second, source):
    both = after(part(PREEMPTED, energy_source=first), part(energy_source=second))
    assert both.energy_source is source
    assert (both.energy_j is None) == (source is None)


def test_a_restored_model_that_is_evaluated_again_takes_no_epoch_away():
    before = CurvePoint(0, 0.0, 0.0, 0.3)
    second = replace(part(epochs=(3, 4)), epochs=4)
    both = after(part(PREEMPTED, epochs=(1, 2)), replace(second, curve=(before, *second.curve)))
    assert ([point.epoch for point in both.curve], both.epochs) == ([1, 2, 3, 4], 4)
    cut = replace(part(PREEMPTED), epochs=0, curve=(before,))
    again = after(part(PREEMPTED, epochs=(1, 2)), cut)
    assert ([point.epoch for point in again.curve], again.epochs) == ([1, 2], 2)


def test_the_best_metric_is_that_of_all_parts():
    both = after(part(PREEMPTED, best_metric=0.9), part(best_metric=0.8))
    assert both.best_metric == (0.9 if TRIAL.mode == "max" else 0.8)


def test_a_profile_of_an_earlier_part_is_kept_where_the_last_has_none():
    points = (PowerPoint(150.0, 10.0, 140.0),)
    assert after(part(PREEMPTED, power_profile=points), part()).power_profile == points


@pytest.mark.parametrize(
    ("first", "second", "limit_w"),
    [
        ((10.0, 250.0), (5.0, 300.0), 250.0),
        ((5.0, 250.0), (10.0, 300.0), 300.0),
        ((5.0, 250.0), (None, None), 250.0),
        ((None, 250.0), (5.0, 300.0), 300.0),
        ((10.0, None), (5.0, 300.0), None),
    ],
)
def test_the_power_limit_is_that_of_the_longer_part(first, second, limit_w):
    begun = part(PREEMPTED, time_s=first[0], power_limit_w=first[1])
    ended = part(time_s=second[0], power_limit_w=second[1])
    resumed = replace(TRIAL, power_limit_w=first[1]).finish(begun).resume("2026-01-02T00:00:00Z")
    assert resumed.finish(join_parts(resumed, ended)).power_limit_w == limit_w


def trial(recurrence, attempt, status):
    return replace(
        TRIAL, recurrence=recurrence, attempt=attempt, status=status,
        trial=f"{TRIAL.job}-{recurrence}-{attempt}",
    )  # fmt: skip


def test_the_oldest_trial_that_nothing_has_overtaken_is_continued():
    old, new = trial(1, 1, PREEMPTED), trial(2, 1, PREEMPTED)
    assert find_preempted([]) is None
    assert find_preempted([old]) is old
    assert find_preempted([new, old]) is old
    assert find_preempted([trial(1, 1, TrialStatus.DISPATCHED), new]) is new  # it goes on already
    assert find_preempted([trial(1, 1, TrialStatus.REACHED), new]) is new
    assert find_preempted([old, trial(2, 1, TrialStatus.REACHED)]) is None
    assert find_preempted([replace(old, forgotten=True)]) is None
    assert find_preempted([old, replace(new, forgotten=True)]) is old
    last = trial(3, 1, PREEMPTED)
    assert find_preempted([old, trial(2, 1, TrialStatus.REACHED), last]) is last


def test_an_older_one_goes_on_after_the_newer_one_was_cancelled():
    older, newer = (build_trial(number).finish(part(PREEMPTED)) for number in (1, 2))
    assert find_preempted([older, newer]) == older
    cancelled = newer.finish(
        newer.ended_as(TrialStatus.CANCELLED, ReasonCode.CANCELLED_LATER, "by hand", "later")
    )
    assert find_preempted([older, cancelled]) == older


@pytest.mark.parametrize(("source", "known"), [(ESTIMATED, False), (COUNTER, True)])
def test_an_estimate_of_0_joules_is_unknown(source, known):
    outcome = replace(part(epochs=(1, 2), energy_j=0.0, energy_source=source), cost_j=9.0)
    outcome = replace(outcome, price=0.0, currency="EUR", carbon_g=0.0)
    outcome = replace(outcome, curve=(CurvePoint(1, 1.0, 0.0, 0.1), CurvePoint(2, 2.0, 5.0, 0.2)))
    found = join_parts(TRIAL, outcome)
    assert [point.energy_j for point in found.curve] == [0.0 if known else None, 5.0]
    assert (found.energy_j, found.energy_source) == ((0.0, COUNTER) if known else (None, None))
    assert found.cost_j == (9.0 if known else None)
    priced = (found.price, found.currency, found.carbon_g)
    assert priced == ((0.0, "EUR", 0.0) if known else (None, None, None))
    free = join_parts(replace(TRIAL, eta_knob=0.0), outcome)
    assert free.cost_j == (9.0 if known else 300.0 * 10.0)


def test_a_part_of_0_joules_does_not_make_the_others_unknown():
    first = part(PREEMPTED, epochs=(1,), energy_source=ESTIMATED)
    both = after(first, part(epochs=(2,), energy_j=0.0, energy_source=ESTIMATED))
    assert both.energy_j == 100.0


def test_the_cost_of_a_resumed_trial_is_that_of_all_its_parts():
    assert cost_with_earlier(TRIAL, 5.0) == 5.0
    cut = TRIAL.finish(replace(part(PREEMPTED), cost_j=100.0)).resume("2026-01-02T00:00:00Z")
    assert cost_with_earlier(cut, 5.0) == 105.0
    assert cost_with_earlier(cut, None) is None
    assert cost_with_earlier(replace(cut, cost_j=None), 5.0) is None


def test_a_killed_run_of_many_epochs_has_one_thinned_curve_of_what_was_read_and_what_was_not(
    tmp_path,
):
    paths = create_run(tmp_path, "job", "job-1-1")
    trial = replace(TRIAL, status=TrialStatus.DISPATCHED, run_dir=str(paths.run_dir))
    events = [Reported(100.0 + epoch, epoch, {trial.metric: 0.0}) for epoch in range(1, 3001)]
    paths.sidecar.write_bytes(b"".join(map(encode_event, events)))
    read = thin_curve([CurvePoint(n, n - 1.0, 10.0 * n, 0.0) for n in range(1, 2001)], 1.0, "max")
    so_far = replace(trial, time_s=1999.0, energy_j=20_000.0, epochs=2000, curve=read)
    write_live(paths, Live(so_far, 1, "host", "2026-01-01T00:00:00Z"))
    outcome = outcome_so_far(
        trial, paths, Outcome(TrialStatus.LOST, "killed", "2026-01-01T00:00:00Z")
    )
    epochs = [point.epoch for point in outcome.curve]
    assert epochs == sorted(set(epochs))
    assert (epochs[0], epochs[-1], outcome.epochs) == (1, 3000, 3000)
    assert len(epochs) <= MOST_POINTS + 1
    assert {point.energy_j is None for point in outcome.curve if point.epoch > 2000} == {True}
    assert not {point.energy_j for point in outcome.curve if point.epoch <= 2000} & {None}


@pytest.mark.parametrize(
    ("live_s", "live_cuts", "reported_cuts", "found"),
    [
        (9.0, 1, 0, (9.0, 1)),  # the launcher had seen all, and more steps than reports
        (None, 0, 1, (7.0, 1)),  # the launcher had read nothing yet
        (9.0, 1, 2, (9.0, 2)),  # those that it had seen came later
    ],
)
def test_a_killed_run_has_the_seconds_and_restarts_that_its_launcher_or_its_ranks_have_seen(
    tmp_path, live_s, live_cuts, reported_cuts, found
):
    paths, trial = create_run(tmp_path, "job", "job-1-1"), build_trial(run_dir=str(tmp_path))
    events = [Started(100.0, 0, 1, 0), Reported(103.0, 1, {"accuracy": 0.1})]
    events += [Started(104.0 + n, 0, 2 + n, 1 + n) for n in range(reported_cuts)]
    events.append(Reported(107.0, 2, {"accuracy": 0.2}))
    paths.sidecar.write_bytes(b"".join(map(encode_event, events)))
    seen = tuple(Interruption(5.0 + n, 1) for n in range(live_cuts))
    live = replace(trial, time_s=live_s, interruptions=seen)
    write_live(paths, Live(live, 1, "host", "2026-01-01T00:00:00Z"))
    outcome = outcome_so_far(trial, paths, Outcome(TrialStatus.LOST, "", "2026-01-01T00:00:00Z"))
    assert (outcome.time_s, len(outcome.interruptions)) == found


@pytest.mark.parametrize("number", [100, 1])
def test_a_killed_run_has_the_most_that_its_launcher_or_its_ranks_have_counted(tmp_path, number):
    """Both read the same events; the launcher may be behind, and knows its steps."""
    paths, trial = create_run(tmp_path, "job", "job-1-1"), build_trial(run_dir=str(tmp_path))
    events = [Reported(103.0, 2, {"accuracy": 0.1}, samples=10)]
    paths.sidecar.write_bytes(b"".join(map(encode_event, events)))
    clock = StepClock(paths.rank_clock(0))
    for _ in range(50):
        clock.tick()
    live = replace(trial, epochs=number, steps=number + 1, samples=number + 2, best_metric=0.3)
    live = replace(live, progress=0.5, warnings=("it was slow",))
    write_live(paths, Live(live, 1, "host", "2026-01-01T00:00:00Z"))
    outcome = outcome_so_far(trial, paths, Outcome(TrialStatus.LOST, "", "2026-01-01T00:00:00Z"))
    assert (outcome.epochs, outcome.samples) == (max(number, 2), max(number + 2, 10))
    assert (outcome.steps, outcome.progress) == (max(number + 1, 50), 0.5)
    assert outcome.best_metric == 0.1
    assert outcome.warnings == ("it was slow",)
    paths.sidecar.unlink()
    outcome = outcome_so_far(trial, paths, Outcome(TrialStatus.LOST, "", "2026-01-01T00:00:00Z"))
    assert (outcome.epochs, outcome.best_metric) == (number, 0.3)


def test_a_trial_whose_files_are_elsewhere_is_lost_once_nobody_holds_its_lease(tmp_path):
    paths, history = create_run(tmp_path / "elsewhere", "job", "job-1-1"), MemoryHistory()
    begin(history, replace(TRIAL, run_dir=str(paths.run_dir)))
    lock = RunLock(paths)
    assert lock.acquire()
    assert recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path) == []
    lock.release()
    shared = OtherMachines()
    begin(shared, replace(TRIAL, run_dir=str(paths.run_dir)))
    assert recover_lost(shared, "job", "2026-01-03T00:00:00Z", tmp_path) == []
    (lost,) = recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path)
    assert (lost.status, lost.reason_code) == (TrialStatus.LOST, ReasonCode.LAUNCHER_DIED)
    assert lost.reason.startswith("its run directory is not where zeusrun keeps its runs")


@pytest.mark.parametrize("held", [False, True])
def test_orphans_are_ended_and_those_of_a_living_launcher_never(tmp_path, monkeypatch, held):
    paths = [create_run(tmp_path, "job", f"job-{n}-1") for n in (1, 2)]
    other = create_run(tmp_path / "elsewhere", "job", "job-3-1")
    of_runs = {str(paths[0].run_dir): ["a"], str(paths[1].run_dir): [], str(other.run_dir): ["b"]}
    monkeypatch.setattr(recover, "scan_processes", lambda: SimpleNamespace(of_runs=of_runs))
    monkeypatch.setattr(recover, "end_group", lambda _paths: None)
    ended = SimpleNamespace(names=("a",), left=())
    monkeypatch.setattr(recover, "end_run", lambda _run_dir: ended)
    lock = RunLock(paths[0])
    assert not held or lock.acquire()
    found = [Orphans("job-1-1", ("a",))] * (not held)
    assert list(recover.end_orphans(tmp_path, "other")) == []
    both = [*found, Orphans("job-2-1", ("a",))]
    assert list(recover.end_orphans(tmp_path)) == both
    lock.release()


def test_what_dead_launchers_have_left_is_told(tmp_path, monkeypatch):
    paths, history, said = create_run(tmp_path, "job", "job-1-1"), MemoryHistory(), []
    begin(history, replace(TRIAL, run_dir=str(paths.run_dir)))
    names = tuple(f"python ({n})" for n in range(6))
    limits_directory(tmp_path).mkdir(parents=True)
    monkeypatch.setattr(
        "zeusrun.launcher.power.control.restore_limits",
        lambda _home: ([SimpleNamespace(text="a limit")], ["no"], []),
    )
    orphans = [Orphans("job-7-1", names), Orphans("job-8-1", names[:1], names[:5])]
    monkeypatch.setattr(recover, "end_orphans", lambda _home, _job: orphans)
    clean_up(history, tmp_path, "job", None, said.append)
    five = ", ".join(names[:5])
    assert said == [
        Noted("a limit"),
        Warned("no"),
        Noted(f"ended 6 orphan processes of job-7-1: {five}, …"),
        Noted("ended 1 orphan process of job-8-1: python (0)"),
        Warned(f"orphan processes of job-8-1 could not be killed: {five}; kill them"),
        Noted("job-1-1 is recorded as LOST: its launcher died"),
        FoundLost((history.find("job-1-1"),)),
    ]


@pytest.mark.parametrize(("uuid", "is_own"), [(TRIAL.uuid, True), ("another", False)])
def test_the_state_of_another_trial_in_its_run_directory_says_nothing_of_a_lost_one(
    tmp_path, uuid, is_own
):
    """A trial that began without its server had another name then, and the same uuid."""
    paths, history = create_run(tmp_path, "job", "job-1-1"), MemoryHistory()
    begin(history, replace(TRIAL, run_dir=str(paths.run_dir)))
    other = replace(TRIAL, trial="job-offline-1", uuid=uuid, time_s=99.0)
    write_live(paths, Live(other, 1, "host", "2026-01-01T00:00:00Z", preempted=True))
    (found,) = recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path)
    lost = (TrialStatus.LOST, None)
    assert (found.status, found.time_s) == ((PREEMPTED, 99.0) if is_own else lost)


def test_what_ranks_without_a_launcher_have_reported_says_nothing_of_the_batch_size(tmp_path):
    paths = create_run(tmp_path, "job", "job-1-1")
    changes = {"world_size": 2, "global_batch_size": 16, "status": TrialStatus.DISPATCHED}
    trial = replace(TRIAL, run_dir=str(paths.run_dir), **changes)
    seen = [Observed(100.0, rank, 8, 1, None, ()) for rank in (0, 1)]
    events = [Built(100.0), *seen, Reported(110.0, 1, {trial.metric: 0.0})]
    paths.sidecar.write_bytes(b"".join(map(encode_event, events)))
    outcome = outcome_so_far(trial, paths, Outcome(TrialStatus.LOST, "killed", "now"))
    assert outcome.observed_batch_size in {None, 16}
    assert (outcome.reason, outcome.finished_at, outcome.startup_s) == ("killed", "now", None)
    assert trial.finish(outcome).teaches


def test_parts_of_many_epochs_have_one_thinned_curve():
    first = part(PREEMPTED, epochs=range(1, MOST_POINTS + 1))
    joined = after(first, part(epochs=range(MOST_POINTS + 1, 2 * MOST_POINTS + 1)))
    assert len(joined.curve) <= MOST_POINTS + 1
    assert (joined.curve[0].epoch, joined.curve[-1].epoch) == (1, 2 * MOST_POINTS)


def by_samples(*values):
    """Return a curve with a point every 100 samples, one a second."""
    return tuple(CurvePoint(100 * n, float(n), 10.0 * n, v) for n, v in enumerate(values, 1))


def test_the_curve_by_samples_goes_on_with_the_samples_of_all_parts():
    first = part(PREEMPTED, epochs=(1,), samples=200, by_samples=by_samples(0.1, 0.2))
    second = part(epochs=(1,), samples=300, by_samples=by_samples(0.2, 0.3, 0.6))
    joined = after(first, second)
    assert joined.samples == 500
    assert [each.epoch for each in joined.by_samples] == [100, 200, 300, 400, 500]
    assert [each.time_s for each in joined.by_samples] == [1.0, 2.0, 11.0, 12.0, 13.0]
    assert [each.energy_j for each in joined.by_samples] == [10.0, 20.0, 110.0, 120.0, 130.0]


def test_a_restored_model_that_is_evaluated_again_is_no_point_by_samples_either():
    first = part(PREEMPTED, epochs=(1,), samples=200, by_samples=by_samples(0.1, 0.2))
    again = CurvePoint(0, 0.0, 0.0, 0.2)
    second = part(epochs=(1,), samples=100, by_samples=(again, *by_samples(0.6)))
    second = replace(second, curve=(again, *second.curve))
    assert [each.epoch for each in after(first, second).by_samples] == [100, 200, 300]


def test_a_part_that_reported_once_an_epoch_is_a_part_of_a_curve_by_samples():
    whole = part(PREEMPTED, epochs=(0, 1, 2), samples=600)  # it counts from 0
    within = part(epochs=(3,), samples=100, by_samples=by_samples(0.6))
    assert [each.epoch for each in after(whole, within).by_samples] == [200, 400, 600, 700]
    within = part(PREEMPTED, epochs=(1,), samples=200, by_samples=by_samples(0.1, 0.2))
    goes_on = part(epochs=(2, 3), samples=400, whole_samples=400)
    assert [each.epoch for each in after(within, goes_on).by_samples] == [100, 200, 400, 600]


def test_a_killed_run_has_the_samples_that_were_read_and_those_that_were_not(tmp_path):
    trial = build_trial(run_dir=str(tmp_path))
    paths = create_run(tmp_path, "job", trial.trial)
    reports = [Reported(float(n), 1, {"accuracy": 0.1}, samples=100 * n) for n in range(1, 5)]
    paths.sidecar.write_bytes(b"".join(map(encode_event, reports)))
    so_far = replace(trial, samples=200, by_samples=by_samples(0.1, 0.1), time_s=9.0)
    write_live(paths, Live(so_far, 1, "host", "2026-01-01T00:00:00Z"))
    outcome = outcome_so_far(trial, paths, Outcome(TrialStatus.LOST, "", "2026-01-01T00:00:00Z"))
    assert outcome.samples == 400
    assert [each.epoch for each in outcome.by_samples] == [100, 200, 300, 400]


class ContinuedHistory(MemoryHistory):
    """A trial is preempted and continued between the look of a submit and its lease."""

    def unfinished(self, job):
        seen = super().unfinished(job)
        for trial in seen:
            cut = self.finish(trial.trial, part(PREEMPTED, epochs=(1, 2)))
            begin(self, cut.resume("2026-01-02T00:00:00Z"))
        return seen


def test_a_lost_trial_that_was_continued_meanwhile_keeps_its_earlier_part(tmp_path):
    paths, history = create_run(tmp_path, "job", "job-1-1"), ContinuedHistory()
    begin(history, build_trial(run_dir=str(paths.run_dir)))
    (lost,) = recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path)
    assert (lost.status, lost.preemptions, lost.time_s) == (TrialStatus.LOST, 1, 10.0)


def test_trials_of_dead_launchers_are_presumed_ended_and_nothing_is_written(tmp_path):
    history, runs = MemoryHistory(), [create_run(tmp_path, "job", f"job-{n}-1") for n in (1, 2, 3)]
    for number, paths in enumerate(runs, 1):
        begin(history, build_trial(number, run_dir=str(paths.run_dir)))
    gone = begin(history, build_trial(4, run_dir=str(tmp_path / "runs" / "job" / "job-4-1")))
    write_record(runs[1], history.find("job-2-1").finish(part(epochs=(1, 2))))
    lock = RunLock(runs[2])
    assert lock.acquire()
    found = presume_ended(history, tmp_path, history.trials("job"))
    assert [each.status.value for each in found] == ["LOST", "REACHED", "DISPATCHED", "LOST"]
    assert gone.status is TrialStatus.DISPATCHED
    assert len(history.unfinished("job")) == 4
    assert read_outcome(runs[0]) is None
    lock.release()


def test_a_preempted_trial_that_went_on_meanwhile_is_not_cancelled(tmp_path):
    paths, history = create_run(tmp_path, "job", "job-1-1"), MemoryHistory()
    begin(history, build_trial(run_dir=str(paths.run_dir)))
    seen = history.finish("job-1-1", part(PREEMPTED, epochs=(1, 2)))
    begin(history, seen.resume("2026-01-02T00:00:00Z"))
    again = history.finish("job-1-1", part(PREEMPTED, epochs=(1, 2, 3), time_s=20.0))
    with pytest.raises(BusyError, match="recorded or continued by another process"):
        cancel_preempted(history, seen, tmp_path, "2026-01-03T00:00:00Z")
    assert history.find("job-1-1") == again
    lock = RunLock(paths)
    assert lock.acquire()
    with pytest.raises(BusyError, match="recorded or continued by another process"):
        cancel_preempted(history, again, tmp_path, "2026-01-03T00:00:00Z")
    lock.release()
    elsewhere = begin(history, build_trial(2, run_dir="elsewhere"))
    for trial in (again, history.finish(elsewhere.trial, part(PREEMPTED))):
        cancel_preempted(history, trial, tmp_path, "2026-01-03T00:00:00Z")
        assert history.find(trial.trial).status is TrialStatus.CANCELLED
    assert read_outcome(paths).status is TrialStatus.CANCELLED


TIMED_OUT = "slurm:12 ended as TIMEOUT"


class OtherMachines(MemoryHistory):
    """A history that other machines share."""

    def address(self, job):
        return f"there/{job}"


def allocated(home, history, allocation="slurm:12", *, saved=False, number=1, **changes):
    """Begin a trial whose launcher is dead, in a job of Slurm."""
    paths = create_run(home, "job", f"job-{number}-1")
    trial = build_trial(number, run_dir=str(paths.run_dir), allocation=allocation, **changes)
    begin(history, trial)
    write_record(paths, trial)
    if saved:
        paths.checkpoints.mkdir(exist_ok=True)
        (paths.checkpoints / "model.pt").touch()
    return trial, paths


@pytest.mark.parametrize("kind", [MemoryHistory, OtherMachines])
@pytest.mark.parametrize(
    "case",
    [
        ({"state": "CANCELLED"}, True, TrialStatus.CANCELLED, "slurm:12 ended as CANCELLED"),
        ({"state": "TIMEOUT"}, True, PREEMPTED, TIMED_OUT),
        ({"state": "TIMEOUT"}, False, TrialStatus.LOST, TIMED_OUT),
        ({"state": "PREEMPTED"}, False, PREEMPTED, "slurm:12 ended as PREEMPTED"),
        ({"state": "NODE_FAIL"}, True, PREEMPTED, "slurm:12 ended as NODE_FAIL"),
        ({"state": "NODE_FAIL"}, False, TrialStatus.LOST, "slurm:12 ended as NODE_FAIL"),
        ({"state": "COMPLETED"}, True, TrialStatus.LOST, "slurm:12 ended as COMPLETED"),
        ({"forgotten": True}, True, TrialStatus.LOST, "its launcher died"),
        ({"forgotten": True, "account": "TIMEOUT"}, True, PREEMPTED, TIMED_OUT),
        ({"forgotten": True, "account": "RUNNING"}, True, TrialStatus.LOST, "its launcher died"),
    ],
)
def test_the_end_of_its_job_of_slurm_says_how_a_trial_ended(tmp_path, slurm, kind, case):
    job, saved, status, reason = case
    history = kind()
    trial, _ = allocated(tmp_path, history, saved=saved)
    slurm.put("12", **job)
    (found,) = recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path)
    assert (found.status, found.reason) == (status, reason)
    cancelled = status is TrialStatus.CANCELLED
    code = ReasonCode.CANCELLED if cancelled else ReasonCode.LAUNCHER_DIED
    assert found.reason_code is code
    assert found.allocation == "slurm:12"
    assert history.find(trial.trial) == found


@pytest.mark.parametrize("kind", [MemoryHistory, OtherMachines])
@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", None])
def test_a_trial_whose_job_may_run_again_is_left_to_that(tmp_path, slurm, kind, state):
    history = kind()
    trial, paths = allocated(tmp_path, history)
    paths.leftovers[0].touch()
    if state is None:  # Slurm does not respond
        slurm.fail("squeue")
    else:
        slurm.put("12", state)
    assert recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path) == []
    others = recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path, "slurm:13")
    assert others == []
    assert history.find(trial.trial) == trial
    assert paths.leftovers[0].exists()


@pytest.mark.parametrize("kind", [MemoryHistory, OtherMachines])
def test_a_batch_step_that_starts_again_continues_its_own_trial(tmp_path, slurm, kind):
    """Nobody wrote that the trial was preempted: its node died."""
    history = kind()
    slurm.put("12", restarts=1)
    slurm.put("13")
    own, _ = allocated(tmp_path, history)
    other, _ = allocated(tmp_path, history, "slurm:13", number=2)
    (found,) = recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path, "slurm:12")
    assert (found.trial, found.status, found.reason) == (
        *(own.trial, PREEMPTED, "slurm:12 was started again"),
    )
    assert history.find(other.trial) == other


def test_a_local_trial_is_lost_whatever_slurm_says(tmp_path, slurm):
    history = MemoryHistory()
    allocated(tmp_path, history, None)
    (found,) = recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path, "slurm:12")
    assert (found.status, found.reason) == (TrialStatus.LOST, "its launcher died")
    assert slurm.calls() == []


def test_an_outcome_that_was_written_counts_more_than_the_end_of_its_job(tmp_path, slurm):
    history = MemoryHistory()
    trial, paths = allocated(tmp_path, history)
    write_record(paths, trial.finish(part(epochs=(1, 2))))
    slurm.put("12", "CANCELLED")
    (found,) = recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path)
    assert (found.status, found.epochs) == (TrialStatus.REACHED, 2)


@pytest.mark.parametrize(
    ("state", "saved", "status"),
    [
        ("CANCELLED", False, TrialStatus.CANCELLED),
        ("NODE_FAIL", False, PREEMPTED),
        ("TIMEOUT", True, PREEMPTED),
        ("TIMEOUT", False, TrialStatus.LOST),  # it would run into its limit again
    ],
)
def test_a_launcher_that_died_while_it_was_preempted(tmp_path, slurm, state, saved, status):
    history = MemoryHistory()
    trial, paths = allocated(tmp_path, history, saved=saved)
    write_live(paths, Live(trial, 1, "host", "2026-01-01T00:00:00Z", preempted=True))
    slurm.put("12", state)
    (found,) = recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path)
    assert (found.status, found.reason) == (status, f"slurm:12 ended as {state}")


def test_trials_of_many_jobs_are_checked_with_one_command(tmp_path, slurm):
    history = MemoryHistory()
    for number in range(1, 6):
        slurm.put(str(number), "PENDING")
        allocated(tmp_path, history, f"slurm:{number}", number=number)
    assert recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path) == []
    assert len(slurm.calls()) == 1


def test_a_repair_leaves_a_trial_to_its_job_of_slurm(tmp_path, slurm):
    history = MemoryHistory()
    allocated(tmp_path, history)
    ended, _ = allocated(tmp_path, history, "slurm:13", number=2)
    slurm.put("12", "PENDING")
    slurm.put("13", "CANCELLED")
    found = find_and_repair(history, tmp_path)
    trials = [(each.subject, each.state) for each in found if each.kind == "trial"]
    assert trials == [(ended.trial, "repaired")]


@pytest.mark.parametrize(("state", "alive"), [("PENDING", True), ("CANCELLED", False)])
def test_a_run_whose_job_waits_to_start_again_is_alive(tmp_path, slurm, state, alive):
    history = MemoryHistory()
    allocated(tmp_path, history)
    allocated(tmp_path, history, None, number=2)
    slurm.put("12", state)
    found = read_running(history, tmp_path, ["job"])
    assert [(live.trial.allocation, live.alive) for live in found] == [
        *(("slurm:12", alive), (None, False)),
    ]


def test_runs_of_many_jobs_are_shown_with_one_command(tmp_path, slurm):
    history = MemoryHistory()
    for number in range(1, 6):
        slurm.put(str(number))
        allocated(tmp_path, history, f"slurm:{number}", number=number)
    assert all(live.alive for live in read_running(history, tmp_path, ["job"]))
    assert len(slurm.calls()) == 1


@pytest.mark.parametrize(
    ("state", "own", "status"),
    [
        ("PENDING", None, TrialStatus.LOST),  # it will run again
        ("RUNNING", "slurm:13", TrialStatus.LOST),
        ("RUNNING", "slurm:12", PREEMPTED),
        ("CANCELLED", None, TrialStatus.CANCELLED),
    ],
)
def test_a_trial_whose_heartbeats_stopped_when_its_node_died(tmp_path, slurm, state, own, status):
    history = OtherMachines()
    trial, _ = allocated(tmp_path, history)
    expired = Outcome(
        TrialStatus.LOST, "no heartbeat", "2026-01-02T00:00:00Z",
        reason_code=ReasonCode.LEASE_EXPIRED,
    )  # fmt: skip
    history.finish(trial.trial, expired)
    slurm.put("12", state)
    slurm.put("13")
    recover_lost(history, "job", "2026-01-03T00:00:00Z", tmp_path, own)
    assert history.find(trial.trial).status is status
    preempted = find_preempted(history.trials("job"), own)
    assert (preempted is not None) is (status is PREEMPTED)
