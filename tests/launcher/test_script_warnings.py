"""Warnings about a script: before it starts, from its text, and while it runs."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.factories import REACHED, build_trial, load_job
from tests.launcher.values import LAUNCHED, after, ended, report, started
from zeusrun.launcher.events import Messages
from zeusrun.launcher.script_warnings import (
    find_choices_to_ask_for,
    find_script_warnings,
    read_job_script,
)
from zeusrun.launcher.supervision.remarks import (
    Remarks,
    describe_schedule,
    describe_waits,
    find_remarks,
)
from zeusrun.metrics.advance import advance
from zeusrun.metrics.progress import settle
from zeusrun.metrics.seen import Ranks
from zeusrun.sidecar.events import (
    Applied,
    Asked,
    Built,
    Hooked,
    Observed,
    Reported,
    Scheduled,
    Spawned,
    Watched,
)
from zeusrun.trial import CurvePoint, TrialStatus

LOST = TrialStatus.LOST


@pytest.fixture
def warnings(tmp_path):
    def find(text="print('training')", **changes):
        (tmp_path / "train.py").write_text(text)
        script = changes.pop("script", str(tmp_path / "train.py"))
        return find_script_warnings(load_job(tmp_path, script, **{"env": None, **changes}))

    return find


def test_a_save_after_the_loop_is_told_of_before_training_unless_the_script_may_finish(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("for epoch in range(9):\n    train()\ntorch.save(model, 'model.pt')")
    *_, told = find_script_warnings(load_job(tmp_path, str(script)))
    assert told.startswith(f"line 3 of {script} saves after the training loop")
    assert "objective: {on_target: continue}" in told
    job = load_job(tmp_path, str(script), objective={"on_target": "continue"})
    assert "saves after" not in "".join(find_script_warnings(job))


def test_a_batch_size_that_nothing_takes_is_told_with_the_line_to_write(warnings):
    (warning,) = warnings()
    assert warning.startswith(
        "the batch size seems never to reach the script: the job file has no ${batch_size}"
    )
    assert 'args: [--batch-size, "${batch_size}"]' in warning
    assert "local_batch_size" not in warning
    (warning,) = warnings(launch={"nproc_per_node": 2}, batch_size={"candidates": [16, 32]})
    assert '"${local_batch_size}" if the script means that of each rank' in warning


@pytest.mark.parametrize(
    "taken",
    [
        {"args": ["--batch-size", "${batch_size}"]},
        {"env": {"BATCH": "${local_batch_size}"}},
        {"text": "import os; os.environ['ZEUSRUN_BATCH_SIZE']"},
        {"text": "import zeusrun"},
        {"args": ["${micro_batch_size}"]},
        {"text": "import os; os.environ['ZEUSRUN_MICRO_BATCH_SIZE']"},
        {"batch_size": {"candidates": [32]}},
        {"text": "\udcff".encode("utf-8", "surrogateescape").decode("latin-1") + "zeusrun"},
    ],
    ids=[
        "argument",
        "variable",
        "environment",
        "import",
        "micro",
        "micro environment",
        "one candidate",
        "no ASCII",
    ],
)
def test_whatever_takes_it_is_enough(warnings, taken):
    assert warnings(**taken) == []


def test_a_batch_size_that_adapts_needs_the_loader(warnings):
    job = {"adapt": {"batch_size": {"policy": "noise-scale"}}}
    (warning,) = warnings("import zeusrun", **job)
    assert warning.startswith("the batch size seems not to adapt")
    assert warnings("import zeusrun\nloader = run.loader(data, 8)", **job) == []


def test_a_limit_of_samples_that_nothing_heeds_is_told(warnings):
    job = {"args": ["${local_batch_size}"], "batch_size": {"per_device_max": 8}}
    (warning,) = warnings(**job)
    assert warning.startswith("batch_size.per_device_max (8) seems to have no effect")
    assert warnings("from transformers import Trainer", **job) == []
    assert warnings(**{**job, "args": ["${micro_batch_size}", "${accumulation_steps}"]}) == []


def test_a_learning_rate_is_looked_for_in_the_same_way(warnings):
    job = {"args": ["--batch-size", "${batch_size}"], "learning_rate": {"base": 0.1}}
    (warning,) = warnings(**job)
    assert warning.startswith("the learning rate seems never to reach the script")
    assert warnings(**{**job, "args": [*job["args"], "${learning_rate}"]}) == []


def test_modules_are_looked_at_and_what_cannot_be_read_is_not_blamed(warnings, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("print('training')")
    module = {"script": None, "module": "package", "workdir": str(tmp_path)}
    assert len(warnings(**module)) == 1
    (tmp_path / "package" / "__main__.py").write_bytes(b"\xff")
    assert warnings(**module) == []
    assert warnings(**{**module, "module": "package.nowhere"}) == []
    (tmp_path / "package" / "__main__.py").unlink()
    os.mkfifo(tmp_path / "package" / "__main__.py")
    assert warnings(**module) == []


def test_what_only_a_question_to_zeusrun_gives_is_known(tmp_path):
    def find(text="import zeusrun", **changes):
        (tmp_path / "train.py").write_text(text)
        script = str(tmp_path / "train.py")
        job = load_job(tmp_path, script, env=None, **changes)
        return find_choices_to_ask_for(job, read_job_script(job))

    assert find() == {"batch_size"}
    assert find(learning_rate={"base": 0.1}) == {"batch_size", "learning_rate"}
    assert find("import zeusrun, os; os.environ['ZEUSRUN_BATCH_SIZE']") == frozenset()
    assert find("print('training')") == frozenset()  # warned of before
    assert find(args=["${batch_size}"]) == frozenset()
    assert find(instrument=False) == frozenset()


@pytest.mark.parametrize(
    ("wait_s", "time_s", "workers", "told"),
    [
        (
            41.0,
            100.0,
            2,
            "41 % of the training waited for data, with 2 loader workers on 16 cores;",
        ),
        (41.0, 100.0, 1, "with 1 loader worker on 16 cores; `loader: {workers: tune}` tries"),
        (41.0, 100.0, 0, "with no loader workers on 16 cores; `loader: {workers: tune, from_zero"),
        (200.0, 3600.0, 2, "6 % of the training waited"),
        (14.0, 100.0, 2, None),
        (20.0, 50.0, 2, None),
        (29.0, 100.0, 2, None),
        (190.0, 7200.0, 2, None),
        (0.0, 100.0, 2, None),
        (None, 100.0, 2, None),
        (41.0, 100.0, None, None),
    ],
)
def test_waits_for_data_are_told_only_where_they_matter(wait_s, time_s, workers, told):
    seen = Observed(5.0, 0, 32, 1, workers=workers)
    progress = replace(
        after(started(LAUNCHED.launched_t), seen),
        training_t=1.0,
        now_t=1.0 + time_s,
        waits_s=(wait_s, 0.0),
    )
    text = describe_waits(progress, 16)
    assert text is None if told is None else told in text
    found = find_remarks(progress, build_trial(), stops_at_target=True, cores=16)
    assert found.get("waits") == text
    assert "waits" not in find_remarks(progress, build_trial(), stops_at_target=True)  # it is tuned


def remarks(*events, stops_at_target=True, **given):
    return find_remarks(after(*events), build_trial(), stops_at_target=stops_at_target, **given)


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ({"metric": "val_loss"}, "is not written, so it is max, but lower values of 'val_loss'"),
        ({"metric": "val_loss", "mode": "max"}, "objective.mode is max, but lower values"),
        ({"metric": "acc", "mode": "min"}, "objective.mode is min, but higher values"),
        ({"metric": "val_loss", "mode": "min"}, None),
        ({"metric": "foo"}, None),
        ({"metric": "acc"}, None),
    ],
)
def test_a_mode_that_does_not_fit_the_metric_is_told(warnings, objective, said):
    found = warnings("zeusrun", objective={"target": 0.5, **objective})
    assert [said in text for text in found] == ([] if said is None else [True])


def test_a_good_script_gives_no_cause():
    assert remarks() == {}
    assert remarks(report(101.0, 1, 0.1), report(102.0, 2, 0.6)) == {}


def test_a_report_without_the_metric_names_what_it_has():
    (text,) = remarks(report(101.0, 1, loss=2.0, acuracy=0.1)).values()
    assert text.startswith("the first report has no 'accuracy'; it has acuracy, loss.")
    assert remarks(report(101.0, 1, loss=2.0), report(102.0, 2, 0.1)) == {}


def test_a_script_that_trains_past_the_target_is_told_what_to_change():
    past = [report(100.5, 1, 0.1), report(101.0, 2, 0.6), report(102.0, 3, 0.7)]
    (text,) = remarks(*past).values()
    assert "`if run.should_stop(): break`" in text
    assert remarks(*past, stops_at_target=False) == {}
    past = [Asked(100.2, "stop"), *past]
    read = replace(after(*past), source="stdout")  # printed, it is known a moment later
    assert find_remarks(read, build_trial(), stops_at_target=True) == {}
    read = replace(after(*past, report(103.0, 4, 0.7)), source="stdout")
    assert "trains on" in find_remarks(read, build_trial(), stops_at_target=True)


def test_a_script_that_never_asks_for_a_choice_is_told_once_it_reports():
    to_ask_for = {"batch_size", "learning_rate"}
    assert remarks(to_ask_for=to_ask_for) == {}
    first = report(101.0, 1, 0.1)
    told = remarks(Asked(100.5, "learning_rate"), first, to_ask_for=to_ask_for)
    (text,) = told.values()
    assert text.startswith("the script has never asked for the batch size")
    assert "run.local_batch_size(default=...), or pass ${batch_size} in args" in text
    both = [Asked(100.5, "learning_rate"), Asked(100.6, "batch_size"), first]
    assert remarks(*both, to_ask_for=to_ask_for) == {}


def compared(
    steps,
    epochs,
    then_steps,
    *,
    batch_size=32,
    then_batch_size=64,
    now=(),
    passes=0,
    counted=False,
    **then,
):
    """Return what is told of a run after so many steps, beside one that took so many in 4 epochs."""
    curve = tuple(CurvePoint(n, float(n), None, 0.1) for n in range(1, 5))
    outcome = replace(REACHED, whole_steps=then_steps, curve=curve, epochs=4)
    earlier = replace(build_trial(global_batch_size=then_batch_size).finish(outcome), **then)
    progress = replace(after(report(101.0, 1, 0.1)), steps=steps, epochs=epochs)
    progress = replace(progress, passes=passes, counted=counted)
    trial = build_trial(2, global_batch_size=batch_size, **dict(now))
    return find_remarks(progress, trial, stops_at_target=True, earlier=[earlier])


@pytest.mark.parametrize(
    ("steps", "epochs", "then_steps"),
    [
        (400, 4, 200),  # the batch size arrives: half of it, twice the steps
        (460, 4, 200),  # the data have grown
        (4, 4, 4),  # one step an epoch, whatever the batch size
        (0, 1, 200),
        (None, 1, 200),
    ],
)
def test_an_epoch_that_takes_in_as_much_as_before_is_no_cause(steps, epochs, then_steps):
    assert compared(steps, epochs, then_steps) == {}


def test_an_epoch_that_has_just_begun_or_is_a_report_is_no_contradiction():
    assert compared(1, 1, 400) == {}  # the line of the first batch
    for steps, epochs, told in ((507, 1, False), (508, 1, True), (158, 2, False), (157, 2, True)):
        assert bool(compared(steps, epochs, 400)) is told
    assert compared(100 * 3, 3, 400, passes=3) == {}  # its loader will be observed
    assert compared(100 * 3, 3, 400, counted=True) == {}


@pytest.mark.parametrize("epochs", [3, 4, 5])
@pytest.mark.parametrize("sizes", [(32, 64), (64, 32), (16, 256)])
def test_as_many_steps_an_epoch_with_another_batch_size_are_a_contradiction(epochs, sizes):
    size, then_size = sizes
    told = compared(100 * epochs, epochs, 400, batch_size=size, then_batch_size=then_size)
    (text,) = told.values()
    assert text.startswith(
        f"an epoch takes about 100 steps of batch size {size} now, and took 100 of {then_size} in "
        "job-1-1: the batch size may not reach the training"
    )


@pytest.mark.parametrize(
    "then", [{"curve": ()}, {"preemptions": 1}, {"forgotten": True}, {"status": LOST}]
)
def test_only_whole_runs_with_another_batch_size_are_compared_with(then):
    assert compared(4000, 4, 400, **then) == {}


def test_a_run_with_the_same_batch_size_is_not_compared_with():
    assert compared(400, 4, 4000, then_batch_size=32) == {}


def test_the_steps_of_a_resumed_run_are_of_its_last_part_alone():
    assert compared(400, 4, 400, now={"preemptions": 1}) == {}


def test_a_target_that_the_first_report_meets_is_doubted():
    first = report(101.0, 1, 0.6)
    (text,) = remarks(first).values()
    assert text == (
        "the first report already meets the target: accuracy 0.6 ≥ 0.5. "
        "Is objective.mode (max) right?"
    )
    longer = build_trial().finish(replace(REACHED, epochs=2))  # under the same mode
    assert remarks(first, earlier=[longer]) == {}
    assert remarks(first, earlier=[replace(longer, epochs=1)]) != {}
    assert remarks(first, earlier=[replace(longer, mode="min")]) != {}
    for known in ({"max_epochs": 1}, {"preemptions": 1}):
        assert find_remarks(after(first), build_trial(**known), stops_at_target=True) == {}


def test_only_the_first_report_and_after_one_epoch_says_something_of_the_mode():
    assert remarks(report(101.0, 1, 0.1), report(102.0, 1, 0.6)) == {}  # it came within an epoch
    assert remarks(report(101.0, 2, 0.6)) == {}


def observed(samples, rates=(), rank=0):
    return Observed(101.0, rank, samples, 1, None, rates)


@pytest.mark.parametrize(
    ("events", "goal", "texts"),
    [
        pytest.param(
            [observed(16), observed(16, rank=1)],
            {},
            [],
            id="the chosen batch size",
        ),
        pytest.param(
            [observed(8), observed(8, rank=1)],
            {},
            [
                (
                    "the script trains with batch size 16 (2 ranks x 8), not with the 32 that zeusrun "
                    "chose, so this run teaches nothing about 32. Pass ${local_batch_size} in args "
                    "(${batch_size} if the script itself divides it among the ranks), or write  "
                    "batch_size: {apply: dataloader}"
                )
            ],
            id="another batch size",
        ),
        pytest.param(
            [replace(observed(16, rank=rank), alone=True) for rank in (0, 1)],
            {},
            [
                (
                    "each rank trains a model of its own: the script uses no process group "
                    "(torch.distributed). Give it the option with which its ranks train together "
                    "(transformers on a CPU: --use_cpu; Lightning: as many devices as ranks), or write  "
                    "launch: {nproc_per_node: 1}"
                ),
                "its ranks train alone, so this run teaches nothing about 32",
            ],
            id="ranks that train alone",
        ),
        pytest.param([observed(8)], {}, [], id="one rank has not said yet"),
        pytest.param([observed(None), observed(None, rank=1)], {}, [], id="not observed"),
        pytest.param(
            [observed(16, (0.1,)), observed(16, (0.1,), rank=1)],
            {"learning_rate": 0.2},
            [
                (
                    "the optimizer was built with learning rate 0.1, not with the 0.2 that zeusrun "
                    "chose. Pass ${learning_rate} in args, or write  learning_rate: {apply: optimizer} "
                    "with that rate as base; ignore this if the script scales it on purpose"
                )
            ],
            id="another learning rate",
        ),
        pytest.param(
            [observed(None, (0.01, 0.2))], {"learning_rate": 0.2}, [], id="one of its groups"
        ),
        pytest.param([observed(None, (0.20000001,))], {"learning_rate": 0.2}, [], id="rounded"),
        pytest.param(
            [Hooked(101.0, "transformers", "99.1", "AttributeError: gone")],
            {},
            [
                (
                    "zeusrun's hook does not fit transformers 99.1 (AttributeError: gone), so it sees "
                    "nothing there; docs/hooks.md has the versions that were tried. Call run.report, or "
                    "name a file or a pattern under metrics (docs/metrics.md)"
                )
            ],
            id="a hook that does not fit",
        ),
        pytest.param(
            [
                Reported(101.0, 1, {"accuracy": 0.25}, "mlflow"),
                Reported(102.0, 1, {"accuracy": 0.3}, "wandb"),
                Reported(103.0, 1, {"accuracy": 0.3}, "wandb"),
            ],
            {},
            [
                (
                    "wandb and mlflow report different values of accuracy in one epoch, 0.3 and "
                    "0.25; mlflow counts. To use the other, name it in metrics.source"
                )
            ],
            id="two sources that differ",
        ),
        pytest.param(
            [report(101.0, 3, 0.1), report(102.0, 1, 0.2)],
            {},
            [
                (
                    "the epoch of accuracy went back from 3 to 1, and no rank was restarted: the "
                    "new values replace those of epochs 1 to 3. If the script counts from the start "
                    "in every phase, let it report an epoch that only grows"
                )
            ],
            id="an epoch that goes back",
        ),
        pytest.param(
            [Reported(101.0, 1, {"loss": 2.0}, "transformers")], {}, [], id="a training loss"
        ),
    ],
)
def test_what_was_seen_is_compared_with_what_was_chosen(events, goal, texts):
    trial = build_trial(**goal)
    progress = after(*events)
    assert list(find_remarks(progress, trial, stops_at_target=True).values()) == texts


def test_an_observed_batch_size_ends_the_guessing():
    seen = (observed(16), observed(16, rank=1), report(101.0, 1, 0.1))
    remarks = find_remarks(
        after(*seen), build_trial(), stops_at_target=True, to_ask_for={"batch_size"}
    )
    assert remarks == {}


def test_a_hook_that_found_no_loader_is_not_suggested_again():
    progress = after(observed(8), observed(8, rank=1))
    (text,) = find_remarks(
        replace(progress, replaced=64), build_trial(), stops_at_target=True
    ).values()
    assert text.endswith(
        "batch_size.apply: dataloader changes the first data loader with a batch size of 32, which "
        "is the share of batch_size.default, and that must feed the first step. Make the default "
        "the batch size of the script, build the loader that trains first, or pass "
        "${local_batch_size} in args"
    )


def test_a_hook_that_changed_another_loader_is_not_suggested_again():
    changed = Applied(100.0, "batch_size", 32, 16, "train.py:4")
    progress = after(changed, observed(8), observed(8, rank=1))
    (text,) = find_remarks(
        replace(progress, replaced=64), build_trial(), stops_at_target=True
    ).values()
    assert "changed the data loader at train.py:4, but the training uses another one" in text
    assert "or write" not in text


def test_a_hook_that_found_no_loader_says_so_where_nothing_is_observed():
    start = replace(after(), now_t=101.0, replaced=64)

    def told(*events):
        progress = start
        for event in events:
            progress = advance(progress, event, build_trial(), lambda *_: None)
        return [*find_remarks(progress, build_trial(), stops_at_target=True).values()]

    changed = Applied(100.0, "batch_size", 32, 16, "train.py:4")
    taken_back, nothing = replace(changed, chosen=32), Applied(100.0, "batch_size", 32, 32, "")
    assert told(changed) == told() == []
    assert told(changed, taken_back, nothing) == told(nothing)
    (text,) = told(nothing)
    assert text.startswith(
        "batch size 32 does not reach the training. Nothing is applied, not the learning rate "
        "either (one in args stays as it was passed), so this run teaches nothing about 32. "
        "batch_size.apply: dataloader changes the first"
    )
    # Without an optimizer, the second report shows it, and no warning is of the learning rate.
    reports = report(101.0, 1, 0.1), report(102.0, 2, 0.1)
    assert told(reports[0]) == []
    assert told(*reports) == told(nothing)


def test_time_that_counts_from_the_start_of_the_script_is_told():
    def told(*events, **changes):
        progress = replace(after(*events), **changes)
        return [*find_remarks(progress, build_trial(), stops_at_target=True)]

    begun, reports = started(100.0), [report(101.0, 1, 0.1), report(102.0, 2, 0.1)]
    assert told(begun, reports[0]) == []  # it may be an evaluation before training
    assert told(begun, *reports) == ["time"]
    assert told(begun, reports[0], ended(103.0), ended(103.0, rank=1)) == ["time"]
    assert told(begun, Asked(100.5, "stop"), *reports) == []
    assert told(begun, Built(100.5), *reports) == []
    assert told(begun, *reports, stepping_s=(100.5, 101.5)) == []  # of backward passes
    assert told(*reports) == []  # without hooks


def test_a_batch_size_above_the_samples_of_a_pass_is_told():
    seen = Observed(100.0, 0, 500, 1, None, (), False, 1000, 1)
    progress = after(seen, replace(seen, rank=1))
    trial = build_trial(global_batch_size=4096)
    (text,) = find_remarks(progress, trial, stops_at_target=True).values()
    assert text.startswith(
        "a pass over the data has fewer samples than the 4096 that zeusrun chose"
    )
    assert "a step has 1000" in text
    assert "Remove the candidates above 1000" in text


def test_a_run_that_goes_on_from_another_ones_checkpoint_is_told():
    seen = Observed(100.0, 0, 32, 1, None, (), False, 1000, 1)
    told = replace(report(101.0, 5, 0.1), samples=1000)
    remarks = find_remarks(after(seen, told), build_trial(), stops_at_target=True)
    assert remarks["continued"].startswith("the first report is of epoch 5, but the run has passed")


def test_a_hook_that_hands_it_out_is_enough(warnings):
    assert warnings(batch_size={"default": 16, "candidates": [16, 32], "apply": "dataloader"}) == []


def test_what_a_model_cannot_show_of_its_gradients_is_told_once_for_each():
    refused = Watched(1.0, 0, 1234, {}, problem="its parameters are sharded")
    nothing = Watched(1.0, 1, 0, {}, problem="call zeusrun.watch(model)")
    measured = Watched(1.0, 2, 1234, {"noise_scale": 3.0})
    failed = Watched(1.0, 0, 0, {}, problem="out of memory", rank=1)
    progress = after(refused, nothing, measured, failed)
    remarks = find_remarks(progress, build_trial(), stops_at_target=False)
    assert remarks == {
        "watch 1 0": "watch: model 0 on rank 1: out of memory",
        "watch 0 0": "watch: model 0 (1,234 parameters): its parameters are sharded",
        "watch 0 1": "watch: nothing is measured: call zeusrun.watch(model)",
    }


ALONE = replace(LAUNCHED, ranks=Ranks(1))  # as with launch.nproc_per_node: 1


def told(*events, now_t=110.0, goal=(), **given):
    """Return what is told of a script on one process that starts others, once they have stepped."""
    progress = replace(after(*events, start=ALONE), now_t=now_t)
    trial = build_trial(**{"world_size": 1, **dict(goal)})
    return find_remarks(progress, trial, stops_at_target=True, **given)


def test_training_processes_of_the_script_are_told_once_all_have_stepped():
    both = [Spawned(101.0 + n, 500 + n, 2, followed=True) for n in (0, 0.5)]
    assert told(*both, now_t=102.0) == told(*both, now_t=102.4) == {}
    assert told(*both)["spawned"] == (
        "the script started training processes of its own; zeusrun has hooks there, but it takes "
        "them for one process: GPUs and ${local_batch_size} are those of one. Remove the option that "
        "starts them, and write  launch: {nproc_per_node: 2}. Without such an option, keep "
        "nproc_per_node: 1, and pass ${batch_size/2} for the share of each process "
        "(docs/training-script.md)"
    )
    found = [Spawned(101.0, 500 + n, 2) for n in (0, 1)]
    sees = (
        "the script started training processes of its own; zeusrun has no hooks in some of them, so "
        "it may miss their steps and batch size, and it reads only metrics that they print or write "
        "to a file. "
    )
    assert told(*found)["spawned"].startswith(f"{sees}Remove the option that starts them")
    assert told(Spawned(101.0, 500))["spawned"] == (
        f"{sees}Let the script train in the processes that zeusrun starts: launch.nproc_per_node "
        "(docs/training-script.md)"
    )
    assert told(Spawned(101.0, 500, 1, followed=True)) == {}  # all is seen


def test_the_batch_of_processes_of_the_script_is_the_sum_over_all_of_them_or_unknown():
    parts = [observed(16), observed(16, rank=1)]
    both = [Spawned(101.0, 500 + n, 2, followed=True) for n in (0, 1)]
    assert told(*both, *parts).keys() == {"spawned"}  # 32, as chosen
    text = told(*both, *parts, goal={"global_batch_size": 16})["batch size"]
    assert "trains with batch size 32 (2 ranks x 16), not with the 16 that zeusrun chose" in text
    assert text.endswith(
        "Use  launch: {nproc_per_node: 2}  to divide it, or pass ${batch_size/2} in args"
    )
    for seen in ([*both, parts[0]], [both[0], Spawned(101.0, 501), *parts]):
        assert told(*seen, goal={"global_batch_size": 16}).keys() == {"spawned"}


def test_a_report_of_processes_whose_steps_are_not_seen_is_not_said_to_precede_them():
    first = report(102.0, 0, 0.6)
    assert "before the first step" in told(first)["at once"]
    assert "at once" not in told(Spawned(101.0, 500), first)


def test_a_hook_does_not_end_a_training_with_processes_of_the_script():
    past = [Reported(102.0 + n, 1 + n, {"accuracy": 0.6}, "transformers") for n in (0, 1)]
    assert after(*past, start=ALONE).listens
    assert not after(Spawned(101.0, 500, 2, followed=True), *past, start=ALONE).listens


def logged(**how):
    return Reported(101.0, 1, {"accuracy": 0.9}, "tensorboard", **how)


def test_a_mean_of_values_is_said_to_be_one():
    assert "logs 2 values of accuracy in an evaluation" in remarks(logged(parts=2))["mean"]
    assert "mean" not in remarks(logged())


def test_a_metric_of_every_step_reaches_no_target_and_that_is_said():
    event = logged(each_step=True)
    assert after(event).reached is None
    assert settle(after(logged()), final=True).reached is not None
    assert "in every step of the training" in remarks(event)["each step"]


COSINE, CYCLE = "CosineAnnealingLR", "OneCycleLR"


@pytest.mark.parametrize(
    ("size", "event", "changes", "told"),
    [
        (
            256,
            (COSINE, 938, 24),
            {},
            "with 256 they have 240, so the run ends after 26 % of the sc",
        ),
        (32, (COSINE, 938, 188), {}, "with 32 they have 1880, so the schedule ends in epoch 5 of"),
        (32, (CYCLE, 938, 188), {}, "epoch 5 of 10, where its next step raises an error. Let"),
        (256, (COSINE, 100, 3), {}, "with 256 they have 30, so the run ends after 30 % of the"),
        (64, (COSINE, 938, 94), {}, None),
        (256, (COSINE, 30, 3), {}, None),
        (256, (COSINE, 240, 24), {}, None),  # the script computes it
        (256, (COSINE, 480, 24), {}, None),  # the same, for more epochs
        (256, (COSINE, 938, 24), {"variant": "adapt noise_scale"}, None),
        (256, (COSINE, 938, 24), {"default_batch_size": None}, None),
    ],
)
def test_a_schedule_of_the_steps_of_the_default_is_told_of_with_another_batch_size(
    size, event, changes, told
):
    asked = {"global_batch_size": size, "default_batch_size": 64, "max_epochs": 10, **changes}
    found = describe_schedule(Scheduled(9.0, *event), build_trial(**asked))
    assert (found is None) == (told is None)
    assert (told or "") in (found or "")
    name, steps, _ = event
    start = f"{name} is set for {steps} steps, those of 10 epochs with the default batch size (64)"
    assert (found or start).startswith(start)


def test_each_kind_is_warned_of_once_while_it_runs(tmp_path):
    (tmp_path / "train.py").write_text("print('training')")
    messages, trial = Messages(lambda _: None), build_trial(default_batch_size=64)
    remarks = Remarks(load_job(tmp_path), replace(trial, global_batch_size=256), (), messages)
    for _ in range(2):
        remarks.take(Scheduled(9.0, COSINE, 938 * trial.max_epochs, 240))
        remarks.take(started(9.0))
        remarks.advance(after(Watched(1.0, 0, 1234, {}, problem="its parameters are sharded")))
    assert [text.split()[0] for text in messages.warnings] == [COSINE, "watch:"]
