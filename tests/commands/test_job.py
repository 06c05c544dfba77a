"""``validate``, ``schema`` and ``explain``, and what a dry run of ``submit`` shows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.factories import CHILDREN, DONE, PREEMPTED
from zeusrun.bandit.registry import POLICIES
from zeusrun.trial import CurvePoint, TrialStatus


def test_a_python_script_is_not_a_job_file(cli, zeusrun):
    (zeusrun.folder / "train.py").write_text("print(1)")
    code, _, err = cli("validate", "train.py")
    assert code == 2
    assert "is a Python script" in err


def test_a_folder_named_like_the_job_does_not_stand_in_its_way(cli, record, zeusrun):
    ran = record(1)
    zeusrun.job()
    (Path(ran.run_dir) / "job.yaml").write_text((zeusrun.folder / "job.yaml").read_text())
    (zeusrun.folder / "job").mkdir()
    code, out, _ = cli("explain", "job")
    assert code == 0
    assert "accuracy ≥ 0.5" in out


@pytest.mark.parametrize("policy", POLICIES)
def test_explain_shows_each_arm_and_what_comes_next(cli, record, zeusrun, policy):
    job = zeusrun.job(policy={"name": policy})
    code, out, _ = cli("explain", job)
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    named = [row[0] for row in rows if row and row[0] in {"16", "32", "64"}]
    assert named[-6:] == ["16", "32", "64"] * 2  # its numbers, then where it stands
    assert rows[0][:6] == ["job:", "the", "next", "run", "uses", "batch"]
    assert "100\u00a0%" in out
    record(1, world_size=1, max_epochs=5)
    beliefs = json.loads(cli("explain", job, "--json")[1])
    assert [(b["global_batch_size"], b["trials"]) for b in beliefs] == [(16, 0), (32, 1), (64, 0)]
    assert (beliefs[1]["reached"], beliefs[1]["epochs"]) == (1, pytest.approx(2, rel=0.05))
    low_j, high_j = beliefs[1]["cost_range_j"]
    assert low_j < beliefs[1]["cost_j"] < high_j
    assert sum(b["chance"] for b in beliefs) == pytest.approx(1)


def test_explain_leads_with_the_choice_its_cost_and_what_would_change_it(cli, record, zeusrun):
    job = zeusrun.job()
    first = cli("explain", job)[1]
    assert first.startswith("job: the next run uses batch size 32\n")
    assert "What it costs is not known yet." in first
    assert "simulate" not in first
    for number in range(1, 4):
        record(number, world_size=1, max_epochs=5)
    told = " ".join(cli("explain", job)[1].split())
    assert "It is expected to cost" in told
    assert "If the next run misses the target," in told
    assert "with other settings: zeusrun simulate JOB --set" in told
    assert "no attempt follows" in " ".join(cli("explain", job, "--set", "attempts=1")[1].split())


def test_explain_says_when_the_next_control_run_is(cli, record, zeusrun):
    job = zeusrun.job(policy={"control": 5})

    def told(*overrides):
        return " ".join(cli("explain", job, *overrides)[1].split())

    one = "One recurrence in 5 is a control run of the default, 32 (policy.control). "
    record(1, world_size=1, max_epochs=5)
    assert f"{one}The next control run is recurrence 5." in told()
    for number in (2, 3, 4):
        cheap = replace(DONE, time_s=1.0, energy_j=10.0, cost_j=25.0)
        record(number, cheap, world_size=1, max_epochs=5, global_batch_size=64)
    assert f"{one}The next run is a control run." in told()
    assert told().startswith("job: the next run uses batch size 32 One recurrence in 5 runs the")
    assert "draws at random" not in told("--set", "policy.name=zeus")
    beliefs = json.loads(cli("explain", job, "--json")[1])
    assert [belief["chance"] for belief in beliefs] == [0.0, 1.0, 0.0]
    oom = replace(DONE, status=TrialStatus.OOM, epochs=None, time_s=None)
    record(5, oom, world_size=1, max_epochs=5, global_batch_size=16)
    record(6, oom, world_size=1, max_epochs=5, global_batch_size=16)
    assert "no control runs (policy.control: 5), because memory or crashes rule out the" in told()


def test_explain_says_that_a_preempted_run_is_continued_first(cli, record, zeusrun):
    job = zeusrun.job()
    cut = record(1, PREEMPTED, world_size=1, max_epochs=5)
    (Path(cut.run_dir) / "job.yaml").write_text("name: job\n")
    told = cli("explain", job)[1]
    assert told.startswith("job: the next submit continues job-1-1 with batch size 32\n")


def test_explain_says_what_it_kept_of_trials_with_another_target(cli, record, zeusrun):
    learned = replace(DONE, curve=(CurvePoint(1, 2.0, 20.0, 0.3), CurvePoint(2, 4.0, 40.0, 0.6)))
    record(1, learned, world_size=1, max_epochs=5, target=0.4)
    out = cli("explain", zeusrun.job(policy={"name": "zeus"}))[1]
    assert "· history: 1 run had another target: read again from its learning curve" in out


def test_explain_by_name_takes_the_job_as_it_was_last_run(cli, record, zeusrun):
    from zeusrun.jobfile.spec import load_spec

    last = record(1, world_size=1, max_epochs=5)
    job = zeusrun.job()
    (Path(last.run_dir) / "job.yaml").write_text(load_spec(job).to_yaml())
    code, out, _ = cli("explain", job)
    assert cli("explain", "job")[:2] == (
        code,
        out + "  Settings: those of job-1-1.\n",
    )
    assert "known jobs: job; did you mean 'job'?" in cli("explain", "jobb")[2]
    assert "known jobs: job\n" in cli("explain", "nosuch")[2]


def test_explain_is_the_same_each_time(cli, record, zeusrun):
    job = zeusrun.job()
    record(1, world_size=1, max_epochs=5)
    assert cli("explain", job) == cli("explain", job)


def test_a_run_whose_launcher_is_dead_is_none_that_runs(cli, record, zeusrun):
    job = zeusrun.job()
    record(1, None, world_size=1, max_epochs=5)
    explained, planned = cli("explain", job)[1], cli("submit", job, "--dry-run")[1]
    assert "runs now" not in explained + planned
    assert "job-2-1  batch size 32" in planned


def test_a_dry_run_tells_command_and_environment_and_writes_nothing(cli, zeusrun):
    code, out, err = cli("submit", zeusrun.job(), "--dry-run", "--json")
    plan = json.loads(out)
    assert (code, err) == (0, "")
    assert plan["trial"]["trial"] == "job-1-1"
    assert plan["argv"][-1] == str(CHILDREN / "well.py")
    assert plan["env"]["ZEUSRUN_BATCH_SIZE"] == "32"
    assert not zeusrun.home.exists()


def test_a_dry_run_shows_the_command_in_the_words_of_a_user(cli, zeusrun):
    job = zeusrun.job(args=["--lr", "0.1"])
    shown = cli("submit", job, "--dry-run")[1]
    assert f"torchrun --nproc-per-node=1 {CHILDREN / 'well.py'} --lr 0.1\n" in shown
    assert "rdzv" not in shown
    whole = cli("submit", job, "--dry-run", "--verbose")[1]
    assert "--rdzv-id=job-1-1" in whole
    assert "  ZEUSRUN_BATCH_SIZE=32\n" in whole


def test_validate_names_job_and_batch_sizes(cli, zeusrun):
    code, out, _ = cli("validate", zeusrun.job())
    assert code == 0
    assert "'job'" in out
    assert "16, 32, 64" in out


def test_validate_refuses_with_exit_2_what_submit_would_refuse(cli, zeusrun):
    job = zeusrun.job(batch_size={"default": 48})
    for arguments in (["validate", job], ["submit", job], ["explain", job]):
        code, out, err = cli(*arguments)
        assert (code, out) == (2, "")
        assert f"{job}:" in err
        assert "48" in err


def test_validate_reads_the_csv_file_of_a_tariff(cli, zeusrun):
    job = zeusrun.job(price={"currency": "EUR", "csv": "prices.csv"})
    code, _, err = cli("validate", job)
    assert (code, "'price.csv'" in err, "there is no such file" in err) == (2, True, True)
    (zeusrun.folder / "prices.csv").write_text("2026-03-01T00:00Z,0.31\n")
    assert cli("validate", job)[0] == 0


def test_every_line_of_an_error_begins_with_the_program_and_the_place(cli, zeusrun):
    job = zeusrun.job(attempts=0, batch_size={"default": 48})
    lines = cli("validate", job)[2].splitlines()
    assert [line.startswith(f"zeusrun: {job}:") for line in lines] == [True, True]


def test_set_overrides_a_key(cli, zeusrun):
    job = zeusrun.job()
    assert "8, 32" in cli("validate", job, "--set", "batch_size.candidates=[8, 32]")[1]
    code, _, err = cli("validate", job, "--set", "batch_size.candidate=[8]")
    assert code == 2
    assert "did you mean" in err


def test_schema_is_a_json_schema(cli):
    code, out, _ = cli("schema")
    schema = json.loads(out)
    assert code == 0
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "batch_size" in schema["properties"]
