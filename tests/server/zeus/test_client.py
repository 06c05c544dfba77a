"""Zeus's released client, unchanged, over HTTP against a real server."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys

import pytest

from tests.factories import CHILDREN
from zeusrun.trial import TrialStatus

pytestmark = pytest.mark.long

COSTS = {"16": [8, 0.04], "32": [4, 0.04], "64": [5, 0.04], "128": [9, 0.04]}  # 32 is cheapest
SETTINGS = {
    "job_id": "digits",
    "job_id_prefix": "digits",
    "batch_sizes": [16, 32, 64, 128],
    "default_batch_size": 64,
    "target_metric": 1.0,
    "max_epochs": 40,
}


@pytest.fixture(scope="session")
def zeus_python(tmp_path_factory):
    """An interpreter with the released client: that of ZEUS_CLIENT_PYTHON, or a new one by pip."""
    if named := os.environ.get("ZEUS_CLIENT_PYTHON"):
        return named
    folder = tmp_path_factory.getbasetemp().parent / "zeus-client"
    with (folder.with_suffix(".lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of pytest use the same one
        python = folder / "bin" / "python"
        if not (folder / "ready").exists():
            install = [python, "-m", "pip", "install", "--quiet", "zeus==0.16.0", "pydantic<2"]
            for command in ([sys.executable, "-m", "venv", folder], [*install, "httpx"]):
                made = subprocess.run(command, check=False, capture_output=True, text=True)
                if made.returncode:
                    why = (made.stderr or made.stdout).strip().splitlines()[-1:]
                    pytest.skip(f"Zeus's client cannot be installed: {' '.join(why)}")
            (folder / "ready").touch()
    return python


@pytest.fixture
def train(zeus_python, plain_library, url):
    """Run steps of trainings with the released client; return what each of them saw."""

    def run(*steps, path="", **changes):
        plan = [[{"costs": COSTS, **training} for training in step] for step in steps]
        settings = {**SETTINGS, **changes}
        script = CHILDREN / "trains_for_zeus.py"
        ended = subprocess.run(
            [zeus_python, script, url + path, json.dumps(settings), json.dumps(plan)],
            env={
                "PATH": os.environ["PATH"],
                "LD_LIBRARY_PATH": str(plain_library),
                "FAKE_NVML": "gpus=1 clock_ms=-1 counter_ms=1",
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return [json.loads(line) for line in ended.stdout.splitlines()]

    return run


def test_it_has_the_fields_and_routes_that_the_server_knows(zeus_python):
    from zeusrun.server.auth import ZEUS_ROUTES
    from zeusrun.server.zeus.messages import Report, ReportResponse, TrialId, ZeusSettings

    shown = """
import json
from zeus.optimizer.batch_size import common
models = common.JobSpecFromClient, common.CreatedJob, common.TrainingResult, common.TrialId, \\
    common.ReportResponse
urls = [value for name, value in vars(common).items() if name.endswith("_URL")]
print(json.dumps([[sorted(model.__fields__) for model in models], urls]))
"""
    command = [zeus_python, "-c", shown]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    fields, urls = json.loads(done.stdout)
    known = (ZeusSettings, ZeusSettings, Report, TrialId, ReportResponse)
    assert fields == [sorted(model.model_fields) for model in known]
    assert len(urls) == 5
    assert all(ZEUS_ROUTES.fullmatch(url) for url in urls)


def test_it_converges_to_the_cheapest_batch_size(train, history):
    seen = train(*[[{}]] * 14)
    assert [each["trial"] for each in seen] == list(range(1, 15))
    assert all(each["error"] is None or "Train failed" in each["error"] for each in seen)
    assert [each["batch_size"] for each in seen[-3:]] == [32] * 3
    trials = history.trials("digits")
    assert [trial.global_batch_size for trial in trials] == [each["batch_size"] for each in seen]
    for trial, each in zip(trials, seen, strict=True):
        assert (trial.status is TrialStatus.REACHED) == each["converged"]
        assert trial.epochs == each["epochs"]
    assert trials[0].energy_j == pytest.approx(250 * trials[0].time_s, rel=0.2)
    assert trials[0].max_power_w == 400


def test_a_training_that_learns_too_slowly_is_stopped(train, history):
    slow = {"costs": dict.fromkeys(COSTS, (1000, 0.04))}
    first, stopped = train([{}], [slow])
    assert first["converged"]
    assert stopped["error"].startswith("ZeusBSOTrainFailError: Train failed: batch size")
    assert stopped["epochs"] < SETTINGS["max_epochs"]
    assert history.trials("digits")[-1].status is TrialStatus.STOPPED


def test_one_that_does_not_reach_the_target_in_time_has_missed_it(train, history):
    (missed,) = train([{"costs": dict.fromkeys(COSTS, (1000, 0.01))}], max_epochs=3)
    assert (missed["epochs"], "target" in missed["error"]) == (3, True)
    assert history.trials("digits")[0].status is TrialStatus.MISSED


def test_a_batch_size_that_dies_is_ruled_out(train, history):
    dying = {"dies_with": {"64": "error"}}
    seen = train(*[[dying]] * 4)
    assert [each["batch_size"] for each in seen[:2]] == [64, 64]
    assert all("MemoryError" in each["error"] for each in seen[:2])
    assert seen[2]["converged"]
    assert all(each["batch_size"] != 64 for each in seen[2:])
    assert [trial.status for trial in history.trials("digits", 4)[:2]] == [TrialStatus.FAILED] * 2


def test_a_batch_size_whose_process_is_killed_is_ruled_out_when_its_lease_expires(train, history):
    for number in (1, 2):  # one after the other: beside one that runs, another size is tried
        (killed,) = train([{"dies_with": {"64": "kill"}}])
        assert (killed["batch_size"], len(history.unfinished("digits"))) == (64, 1)
        history.renew(f"digits-{number}-1", lease_s=-1)
    (seen,) = train([{}])
    assert seen["converged"]
    assert seen["batch_size"] != 64
    assert [trial.status for trial in history.trials("digits")[:2]] == [TrialStatus.LOST] * 2


def test_a_training_that_gives_up_is_cut_short(train, history):
    train([{"gives_up": True}])
    assert history.trials("digits")[0].status is TrialStatus.CANCELLED


def test_clients_train_at_once(train, history):
    seen = train([{}] * 4, [{}] * 4)
    assert sorted(each["trial"] for each in seen[:4]) == [1, 2, 3, 4]
    assert sorted(each["trial"] for each in seen[4:]) == [5, 6, 7, 8]
    assert all(trial.status.finished for trial in history.trials("digits"))


def test_a_token_stands_in_the_url(train, history):
    from zeusrun.history.sql.tokens import create_token

    token = create_token(history.engine, "dig*", can_write=True, for_zeus=True)[0]
    (refused,) = train([{}])
    assert "status code 401" in refused["error"]
    assert '"message":"this server needs a token"' in refused["error"]
    (seen,) = train([{}], path=f"/zeus/{token}")
    assert seen["converged"]
    assert history.count("digits") == 1


def test_other_settings_are_refused_and_migrate_by_the_url(train, history):
    train([{}])
    (refused,) = train([{}], max_epochs=30)
    assert "ZeusBSORuntimError: Zeus server returned status code 409" in refused["error"]
    (migrated,) = train([{}], max_epochs=30, path="/migrate")
    assert migrated["epochs"]
    assert [trial.max_epochs for trial in history.trials("digits")] == [40, 30]
