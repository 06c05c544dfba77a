"""A run that adapts its batch size, as the launcher sees, records, compares and shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bandit.test_reinterpret import NOW, learned
from tests.factories import REACHED, build_trial
from tests.launcher.values import after, report
from zeusrun.bandit.differences import describe_kept
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.stopping import is_repeat
from zeusrun.launcher.rundir.layout import RunPaths, reopen_run
from zeusrun.launcher.supervision.outcome import observed_batch_size
from zeusrun.launcher.supervision.remarks import find_remarks
from zeusrun.metrics.seen import Seen
from zeusrun.sidecar.events import Adapted, Observed
from zeusrun.trial import (
    Decision,
    Hardware,
    SizeChange,
    Stage,
    Trial,
    TrialStatus,
    join_changes,
    join_parts,
)
from zeusrun.trial.values import NoisePoint
from zeusrun.view.units import path_text

PATH = (SizeChange(1, 64), SizeChange(3, 128), SizeChange(7, 256))


def adapted(t, epoch, batch_size, problem=None):
    return Adapted(t, epoch * 10, epoch, batch_size, 0.1, "because", problem)


def observed(samples):
    return [Observed(105.0, rank, samples, 1, 2) for rank in (0, 1)]


GROWN = [adapted(101.0, 1, 64), adapted(103.0, 3, 128)]
GOAL = build_trial(metric="accuracy", global_batch_size=64, world_size=2, variant="mine:Policy")


def test_the_path_is_the_first_batch_size_and_every_change():
    assert after(*GROWN).batch_sizes == PATH[:2]
    assert after().batch_sizes == ()
    # A restart repeats an epoch and goes on with what it had.
    again = after(*GROWN, adapted(104.0, 4, 256), adapted(105.0, 4, 128), adapted(106.0, 7, 256))
    assert again.batch_sizes[-1] == SizeChange(7, 256)


def test_a_problem_is_no_change():
    progress = after(*GROWN, adapted(104.0, 4, 128, problem="it raised"))
    assert (progress.batch_sizes, progress.problems) == (PATH[:2], ("it raised",))


def test_a_size_that_it_grew_to_and_that_does_not_fit_says_nothing_of_the_first():
    oom = replace(REACHED, status=TrialStatus.OOM, batch_sizes=PATH)
    grown = GOAL.finish(oom)
    problem = replace(NOW, variant="mine:Policy", hardware=Hardware(2), max_power_w=None)
    assert [run.arm for run in read_history(problem, [grown])[1]] == [256]
    assert not is_repeat(Decision(64, Stage.EXPLORE, ""), [grown])
    assert is_repeat(Decision(256, Stage.EXPLORE, ""), [grown])


def test_changes_of_two_parts_are_joined_without_repetition():
    assert join_changes(PATH, PATH) == PATH
    assert join_changes(PATH, [SizeChange(5, 128), SizeChange(8, 512)]) == (
        *PATH[:2],
        SizeChange(8, 512),
    )
    assert join_changes(PATH[:1], [SizeChange(4, 64)]) == PATH[:1]


def test_an_outcome_joins_the_path_of_the_parts():
    first = replace(REACHED, status=TrialStatus.PREEMPTED, batch_sizes=PATH[:2])
    trial = replace(build_trial().finish(first), preemptions=1)
    assert join_parts(trial, replace(REACHED, batch_sizes=PATH[2:])).batch_sizes == PATH


def test_an_outcome_joins_the_noise_scales_of_the_parts():
    points = [NoisePoint(n, n / 100, 3.0, 4.0, 6.0) for n in (90, 190)]
    first = replace(REACHED, status=TrialStatus.PREEMPTED, noise_curve=tuple(points))
    first = replace(first, samples=200, progress=2.0, gradients_of="ranks")
    trial = replace(build_trial().finish(first), preemptions=1)
    joined = join_parts(
        trial, replace(REACHED, noise_curve=(NoisePoint(50, 0.5, 5.0, None, None),))
    )
    assert joined.noise_curve == (*points, NoisePoint(250, 2.5, 5.0, None, None))
    assert joined.gradients_of == "ranks"


def test_a_trial_keeps_its_path():
    trial = build_trial().finish(replace(REACHED, batch_sizes=PATH))
    assert Trial.from_json(trial.to_json()) == trial
    with pytest.raises(ValueError, match="no measurement"):
        Trial.from_json({**trial.to_json(), "batch_sizes": [[1, "64"]]})


def test_a_preempted_run_keeps_the_state_of_its_batch_size(tmp_path):
    paths = RunPaths(tmp_path / "run")
    paths.run_dir.mkdir()
    (paths.run_dir / "adapt.json").write_text("{}")
    (paths.run_dir / "metrics.jsonl").write_text("")
    reopen_run(paths)
    assert (paths.run_dir / "adapt.json").exists()
    assert not (paths.run_dir / "metrics.jsonl").exists()


@pytest.mark.parametrize(("samples", "size"), [(32, 64), (64, 64), (None, None), (8, 16)])
def test_a_batch_size_that_follows_the_plan_is_no_contradiction(samples, size):
    progress = after(*GROWN, *observed(samples), report(106.0, 1, 0.1))
    assert observed_batch_size(GOAL, progress) == size
    told = "batch size" in find_remarks(progress, GOAL, stops_at_target=True)
    assert told == (size == 16)


def test_a_script_without_the_loader_is_told_how_to_use_it():
    remark = find_remarks(after(report(106.0, 1, 0.1)), GOAL, stops_at_target=True)["adapt"]
    assert "run.loader(...)" in remark
    assert "adapt" not in find_remarks(
        after(*GROWN, report(106.0, 1, 0.1)), GOAL, stops_at_target=True
    )
    fixed = replace(GOAL, variant=None)
    assert "adapt" not in find_remarks(after(report(106.0, 1, 0.1)), fixed, stops_at_target=True)


def test_what_the_policy_could_not_do_is_told():
    progress = after(*GROWN, adapted(104.0, 4, 128, problem="it raised"), report(106.0, 1, 0.1))
    assert find_remarks(progress, GOAL, stops_at_target=True)["adapt"] == "it raised"


def test_steps_of_an_adapting_run_say_nothing_of_the_length_of_an_epoch():
    other = build_trial(global_batch_size=32, world_size=2, variant="mine:Policy").finish(
        replace(REACHED, steps=9000)
    )
    progress = replace(after(*GROWN, report(106.0, 1, 0.1)), steps=10)
    remarks = find_remarks(progress, GOAL, stops_at_target=True, earlier=[other])
    assert "samples an epoch" not in remarks
    adapting = learned(0.5, 0.96, variant="mine:Policy", steps=1000)
    problem, _ = read_history(replace(NOW, variant="mine:Policy"), [adapting])
    assert problem.samples_per_epoch is None


def test_adapting_runs_are_compared_with_each_other_by_their_whole_cost():
    small = learned(0.5, 0.96, variant="mine:Policy")
    large = replace(learned(0.9, 0.96, variant="mine:Policy"), global_batch_size=32)
    fixed = learned(0.96)
    adapts = replace(NOW, variant="mine:Policy")
    runs = read_history(adapts, [small, large, fixed])[1]
    assert [run.arm for run in runs] == [small.global_batch_size, 32]
    assert all(run.cost_j is not None for run in runs)
    assert describe_kept(adapts, [small, large, fixed]) == [
        "1 run adapted its batch size in another way: left out"
    ]


def test_the_path_is_shown_whole_or_its_end():
    assert path_text(PATH) == "64 → 128 at epoch 3 → 256 at epoch 7"
    assert path_text(PATH, last=1) == "64 → … → 256 at epoch 7"
    assert path_text(PATH[:1]) == "64"
    assert path_text(()) is None


def test_a_continued_run_is_not_judged_before_its_first_report():
    begun = replace(after(), seen={("accuracy", "earlier part"): Seen(0.0, 0.0, 0)})
    asked = {"stops_at_target": True, "to_ask_for": ["batch_size"]}
    assert find_remarks(begun, GOAL, **asked) == {}
    reported = after(report(105.0, 4, 0.1), start=begun)
    assert set(find_remarks(reported, GOAL, **asked)) == {"adapt", "never asked for batch_size"}
