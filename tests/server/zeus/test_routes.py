"""Zeus's routes: status codes, answers, and what stands in the history afterwards."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection

import pytest

from tests.databases import lease_held
from tests.factories import ROOT, begin, build_trial
from tests.server.zeus.conftest import JOB
from zeusrun.history.sql.engine import writing
from zeusrun.history.sql.survey import read_running
from zeusrun.history.sql.zeus_jobs import ZeusJobs
from zeusrun.launcher.rundir.layout import Live
from zeusrun.reasons import ReasonCode
from zeusrun.server.zeus import routes
from zeusrun.server.zeus.job import LEASE_S
from zeusrun.trial import TrialStatus

INVALID = [
    {"default_batch_size": 100},
    {"default_batch_size": 0},
    {"batch_sizes": []},
    {"batch_sizes": [0, 64]},
    {"max_epochs": 0},
    {"eta_knob": 1.1},
    {"beta_knob": 0},
    {"max_power": 0},
    {"max_power": float("nan")},
    {"target_metric": float("inf")},
    {"number_of_gpus": 0},
    {"gpu_model": ""},
    {"job_id": "other"},
    {"job_id": "", "job_id_prefix": ""},
    {"job_id": "mnist\x00"},
    {"job_id": "mnist\ud800"},
    {"job_id": "mnist" + "x" * 200},
    {"batch_sizes": [10**30], "default_batch_size": 10**30},
]


class TestRegistering:
    def test_a_new_job_is_created_and_the_same_one_again_is_the_same(self, zeus):
        assert zeus.register().status_code == 201
        again = zeus.register(batch_sizes=[128, 64, 32, 64])  # in another order
        assert (again.status_code, again.json()["batch_sizes"]) == (200, [32, 64, 128])
        assert again.json()["mab_num_explorations"] == 2

    def test_other_settings_are_refused_with_what_differs_unless_they_are_to_migrate(self, zeus):
        zeus.register()
        refused = zeus.register(max_epochs=7)
        assert refused.status_code == 409
        assert "max_epochs is 7, not 10" in refused.json()["error"]["message"]
        assert "/migrate" in refused.json()["error"]["message"]
        migrated = zeus.send("POST", "/migrate/jobs", {**JOB, "max_epochs": 7})
        assert (migrated.status_code, migrated.json()["max_epochs"]) == (200, 7)
        assert zeus.register(max_epochs=7).status_code == 200

    def test_a_client_migrates_by_the_end_of_its_url(self, history, zeus, connect):
        zeus.register()
        zeus.train(zeus.begin(), epochs=2)
        migrating = connect("/migrate")
        assert migrating.register(target_metric=0.4).status_code == 200
        assert migrating.begin()["trial_number"] == 2
        (known, new) = history.trials("mnist")
        assert (known.target, new.target) == (0.9, 0.4)

    def test_invalid_settings_are_refused(self, zeus):
        for changes in INVALID:
            refused = zeus.register(**changes)
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid")

    def test_what_is_no_job_is_refused(self, zeus):
        for body in ("", "{", "[]", "null", '{"job_id": NaN}', "[" * 5000):
            assert zeus.send("POST", "/jobs", body).status_code in {400, 422}

    def test_without_an_id_the_server_makes_one(self, zeus):
        made = [zeus.register(job_id=None).json()["job_id"] for _ in range(2)]
        assert all(job_id.startswith("mnist-") for job_id in made)
        assert len(set(made)) == 2

    def test_ids_that_no_job_can_have_get_histories_of_their_own(self, zeus, history):
        ids = ["mnist/a", "mnist a", "mnist:ä", "mnist/../../etc", "mnist" + "-" * 80]
        for job_id in ids:
            assert zeus.register(job_id=job_id).status_code == 201
            assert zeus.begin(job_id)["job_id"] == job_id
        names = history.jobs()
        assert len(names) == len(ids)
        assert all(name.startswith("mnist") for name in names)

    def test_a_job_of_zeusrun_with_this_name_keeps_its_history(self, zeus, history):
        begin(history, build_trial(job="mnist"))
        zeus.register()
        trial = zeus.begin()
        assert history.count("mnist") == 1
        assert (
            zeus.send("POST", "/report", {**trial, "time": 1, "energy": 1, "metric": 1}).status_code
            == 422
        )
        assert zeus.report(trial, 1, 0.95)["converged"]
        assert not history.trials("mnist")[0].status.finished


class TestTraining:
    def test_a_training_that_reaches_the_target_is_stopped_and_recorded(self, zeus, history):
        zeus.register()
        trial = zeus.begin()
        assert trial == {"job_id": "mnist", "batch_size": 64, "trial_number": 1}
        assert not zeus.report(trial, 1, 0.5)["stop_train"]
        answer = zeus.report(trial, 2, 0.91)
        assert (answer["stop_train"], answer["converged"]) == (True, True)
        assert zeus.end(trial).json() is None
        (stored,) = history.trials("mnist")
        assert stored.status is TrialStatus.REACHED
        assert (stored.time_s, stored.energy_j, stored.epochs) == (20.0, 4000.0, 2)
        assert stored.cost_j == 0.5 * 4000 + 0.5 * 300 * 20
        assert [point.value for point in stored.curve] == [0.5, 0.91]

    def test_what_runs_is_known_while_it_runs(self, zeus, history):
        zeus.register()
        zeus.report(zeus.begin(), 1, 0.5)
        (running,) = history.unfinished("mnist")
        live = Live.from_json(history.live(running.trial))  # as `status` reads it
        assert (live.trial.epochs, live.last_metric, live.power_w) == (1, 0.5, 200.0)
        assert lease_held(history, running.trial)

    def test_the_last_epoch_without_the_target_is_a_miss(self, zeus, history):
        zeus.register(max_epochs=2)
        trial = zeus.begin()
        zeus.report(trial, 1, float("nan"))
        answer = zeus.report(trial, 2, 0.3)
        assert (answer["stop_train"], answer["converged"]) == (True, False)
        assert history.trials("mnist")[0].status is TrialStatus.MISSED
        assert zeus.begin()["batch_size"] != trial["batch_size"]

    def test_what_costs_beta_times_the_minimum_is_stopped(self, zeus, history):
        zeus.register(beta_knob=1.5)
        zeus.train(zeus.begin(), epochs=2)
        answer = zeus.train(zeus.begin(), epochs=8)
        assert (answer["stop_train"], answer["converged"]) == (True, False)
        assert "bound" in answer["message"]
        stopped = history.trials("mnist")[-1]
        assert stopped.status is TrialStatus.STOPPED
        assert stopped.cost_j <= 1.5 * history.trials("mnist")[0].cost_j

    def test_without_beta_nothing_is_stopped_for_its_cost(self, zeus):
        zeus.register(beta_knob=None)
        zeus.train(zeus.begin(), epochs=2)
        assert zeus.train(zeus.begin(), epochs=9, joules=1e6)["converged"]

    def test_the_target_counts_as_reached_whatever_it_cost(self, zeus):
        zeus.register()
        zeus.train(zeus.begin(), epochs=2)
        trial = zeus.begin()
        assert zeus.report(trial, 1, 0.95, energy=1e6)["converged"]

    def test_a_run_that_did_not_converge_never_lowers_the_minimum_cost(self, zeus, history):
        zeus.register()
        zeus.train(zeus.begin(), epochs=4)
        for _ in range(3):  # cheap, and short of the target
            trial = zeus.begin()
            zeus.report(trial, 1, 0.1, energy=1.0, time=0.01)
            zeus.end(trial)
        trial = zeus.begin()
        answers = [zeus.report(trial, n, 0.2 * n, n * 2000.0) for n in (1, 2, 3)]
        assert not any(answer["stop_train"] for answer in answers)

    def test_a_lower_metric_may_be_better(self, zeus):
        zeus.register(higher_is_better_metric=False, target_metric=0.1)
        trial = zeus.begin()
        assert not zeus.report(trial, 1, 0.5)["stop_train"]
        assert zeus.report(trial, 2, 0.05)["converged"]

    def test_reports_that_come_twice_late_or_after_the_end_change_nothing(self, zeus, history):
        zeus.register()
        trial = zeus.begin()
        zeus.report(trial, 2, 0.5)
        zeus.report(trial, 2, 0.5)
        assert not zeus.report(trial, 1, 0.99)["stop_train"]
        zeus.report(trial, 3, 0.95)
        (ended,) = history.trials("mnist")
        assert [point.epoch for point in ended.curve] == [2, 3]
        again = zeus.report(trial, 3, 0.95)
        assert (again["stop_train"], again["converged"]) == (True, True)
        assert zeus.report(trial, 4, 0.1)["converged"]
        assert history.trials("mnist") == [ended]

    def test_jobs_and_trials_that_do_not_exist_are_refused(self, zeus, history):
        begin(history, build_trial(job="mnist"))  # not of Zeus
        zeus.register(job_id="mnist-2")
        zeus.begin("mnist-2")
        taken = {"time": 1, "energy": 1, "metric": 1, "current_epoch": 1}

        def report(**named):
            known = {"job_id": "mnist-2", "batch_size": 64, "trial_number": 1}
            return zeus.send("POST", "/report", {**known, **named, **taken}).status_code

        assert zeus.send("GET", "/jobs/batch_size", job_id="other").status_code == 400
        assert zeus.send("GET", "/jobs/batch_size", job_id="\0").status_code == 400
        assert report(job_id="mnist") == report(trial_number=2) == report(batch_size=32) == 400
        assert report(trial_number=10**30) == 422
        ending = {"job_id": "mnist-2", "batch_size": 64, "trial_number": 9}
        assert zeus.end(ending).status_code == 404
        assert zeus.send("DELETE", "/jobs", job_id="other").status_code == 404


class TestDying:
    def test_a_batch_size_whose_process_dies_is_ruled_out_after_two(self, zeus, history):
        zeus.register()
        for number in (1, 2):
            trial = zeus.begin()
            assert (trial["trial_number"], trial["batch_size"]) == (number, 64)
            zeus.end(trial)
        assert [each.status for each in history.trials("mnist")] == [TrialStatus.FAILED] * 2
        sizes = []
        for _ in range(5):
            sizes.append(zeus.begin())
            zeus.train(sizes[-1], epochs=3)
        assert 64 not in {trial["batch_size"] for trial in sizes}
        assert "64 (its last 2 runs died)" in history.trials("mnist")[-1].why

    def test_an_expired_lease_counts_as_a_death(self, zeus, history):
        zeus.register()
        for number in (1, 2):
            assert zeus.begin()["batch_size"] == 64
            history.renew(f"mnist-{number}-1", lease_s=-1)
        assert zeus.begin()["batch_size"] != 64
        assert [each.status for each in history.trials("mnist", 3)][:2] == [TrialStatus.LOST] * 2

    def test_a_batch_size_that_always_ends_early_is_ruled_out(self, zeus, history):
        zeus.register()
        for _ in range(2):
            trial = zeus.begin()
            zeus.report(trial, 1, 0.2)
            zeus.end(trial)
        assert history.trials("mnist")[0].status is TrialStatus.CANCELLED
        assert zeus.begin()["batch_size"] != 64

    def test_one_that_has_reached_the_target_is_ruled_out_after_four(self, zeus):
        zeus.register(batch_sizes=[32, 64])
        zeus.train(zeus.begin(), epochs=2)
        deaths = 0
        while (trial := zeus.begin())["batch_size"] == 64:
            zeus.end(trial)
            deaths += 1
        assert deaths <= 4
        zeus.train(trial, epochs=2)

    def test_if_all_die_the_default_runs_again(self, zeus):
        zeus.register(batch_sizes=[32, 64])
        for _ in range(4):
            zeus.end(zeus.begin())
        assert zeus.begin()["batch_size"] == 64

    def test_late_reports_of_a_lost_training_are_taken(self, zeus, history):
        zeus.register()
        trial = zeus.begin()
        zeus.report(trial, 1, 0.2)
        history.renew("mnist-1-1", lease_s=-1)
        assert not zeus.report(trial, 2, 0.4)["stop_train"]  # before anybody has seen it
        history.renew("mnist-1-1", lease_s=-1)
        history.unfinished("mnist")  # records it as LOST
        assert not zeus.report(trial, 3, 0.5)["stop_train"]
        assert history.find("mnist-1-1").status is TrialStatus.LOST
        assert not zeus.report(trial, 4, 0.6)["stop_train"]
        assert zeus.report(trial, 5, 0.95)["converged"]
        (found,) = history.trials("mnist")
        assert found.status is TrialStatus.REACHED
        assert [point.epoch for point in found.curve] == [1, 2, 3, 4, 5]

    def test_trainings_whose_first_epoch_outlasts_the_lease_have_not_died(self, zeus, history):
        zeus.register()
        for number in (1, 2):
            trial = zeus.begin()
            assert trial["batch_size"] == 64
            history.renew(f"mnist-{number}-1", lease_s=-1)
            history.unfinished("mnist")  # records it as LOST
            assert not zeus.report(trial, 1, 0.2, time=5000.0)["stop_train"]
        assert zeus.begin()["batch_size"] == 64
        left_s = read_running(history.engine, "mnist-3-1")[0].lease_left_s
        assert left_s > 14_000  # three such epochs

    def test_a_lost_training_that_ends_late_died(self, zeus, history):
        zeus.register()
        trial = zeus.begin()
        history.renew("mnist-1-1", lease_s=-1)
        history.unfinished("mnist")
        assert zeus.end(trial).status_code == 200
        assert history.trials("mnist")[0].status is TrialStatus.FAILED


class TestConcurrency:
    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch):
        monkeypatch.setattr(routes, "PATIENCE_S", 300.0)  # a machine may be busy

    def test_concurrent_trainings_have_distinct_numbers(self, zeus, history):
        zeus.register()
        ready = threading.Barrier(8)

        def ask(_):
            ready.wait()
            return zeus.begin()["trial_number"]

        with ThreadPoolExecutor(8) as pool:
            numbers = sorted(pool.map(ask, range(8)))
        assert numbers == list(range(1, 9))
        assert history.count("mnist") == 8

    def test_concurrent_servers_do_not_disturb_each_other(self, connect, zeus):
        other = connect()
        zeus.register()
        ready = threading.Barrier(6)

        def ask(number):
            ready.wait()
            return (zeus, other)[number % 2].begin()["trial_number"]

        with ThreadPoolExecutor(6) as pool:
            assert sorted(pool.map(ask, range(6))) == [1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize("patience_s", [0.0, 0.3])
    def test_a_training_that_would_begin_too_late_does_not_begin(
        self, zeus, history, monkeypatch, patience_s
    ):
        zeus.register()
        monkeypatch.setattr(routes, "PATIENCE_S", patience_s)
        with ThreadPoolExecutor(1) as pool, writing(history.engine):  # another one writes
            asked = pool.submit(zeus.send, "GET", "/jobs/batch_size", job_id="mnist")
            time.sleep(1.5 * patience_s)
        busy = asked.result()
        assert (busy.status_code, "try again" in busy.text) == (503, True)
        assert history.count("mnist") == 0

    def test_a_training_of_a_client_that_has_gone_is_cancelled(self, zeus, url, history):
        zeus.register()
        with writing(history.engine), closing(HTTPConnection(url.removeprefix("http://"))) as gone:
            gone.request("GET", "/jobs/batch_size?job_id=mnist")
            time.sleep(0.5)  # it waits for the database
        until_t = time.monotonic() + 30.0
        while not (known := history.trials("mnist")) or not known[0].status.finished:
            assert time.monotonic() < until_t
            time.sleep(0.01)
        (trial,) = known
        assert (trial.status, trial.reason_code) == (TrialStatus.CANCELLED, ReasonCode.NOT_BEGUN)
        assert zeus.begin()["trial_number"] == 2

    def test_a_training_that_somebody_cancels_stops_at_its_next_report(self, zeus, history):
        zeus.register()
        trial = zeus.begin()
        assert history.ask_to_cancel("mnist-1-1")
        answer = zeus.report(trial, 1, 0.5)
        assert (answer["stop_train"], answer["converged"]) == (True, False)
        (stored,) = history.trials("mnist")
        assert (stored.status, stored.reason_code) == (TrialStatus.CANCELLED, ReasonCode.CANCELLED)

    def test_the_bound_and_the_lease_are_stored_with_the_trial(self, zeus, history, monkeypatch):
        zeus.register()
        monkeypatch.setattr(history.__class__, "renew", None)  # a second write would fail
        trial = f"mnist-{zeus.begin()['trial_number']}-1"
        assert history.live(trial)["lease_s"] == LEASE_S
        (running,) = read_running(history.engine, [1])
        assert running.lease_left_s > LEASE_S - 60.0

    def test_a_job_is_created_once(self, zeus):
        with ThreadPoolExecutor(4) as pool:
            codes = sorted(pool.map(lambda _: zeus.register().status_code, range(4)))
        assert codes == [200, 200, 200, 201]


class TestDeleting:
    def test_a_deleted_job_ends_and_a_new_one_learns_nothing_from_it(self, zeus, history):
        zeus.register()
        zeus.train(zeus.begin(), epochs=2)
        running = zeus.begin()
        assert zeus.send("DELETE", "/jobs", job_id="mnist").status_code == 200
        assert history.trials("mnist")[-1].status is TrialStatus.CANCELLED
        taken = {"time": 1, "energy": 1, "metric": 1, "current_epoch": 1}
        refused = zeus.send("POST", "/report", {**running, **taken})
        assert (refused.status_code, "unknown job" in refused.text) == (400, True)
        assert zeus.register().status_code == 201
        zeus.begin()
        newest = history.trials("mnist")[-1]
        assert (newest.recurrence, "nothing has reached" in newest.why) == (3, True)


class TestAccess:
    def test_every_route_needs_a_token_that_may_write_the_job(self, history, connect):
        from zeusrun.history.sql.tokens import create_token

        open_to_all = connect()
        open_to_all.register()
        trial = open_to_all.begin()
        report = {**trial, "time": 1, "energy": 1, "metric": 1, "current_epoch": 1}
        engine = history.engine
        may_not = [
            create_token(engine, "mnist", can_write=False)[0],
            create_token(engine, "other", can_write=True)[0],
            "unknown",
        ]
        for token, code in zip(may_not, (403, 403, 401), strict=True):
            zeus = connect(f"/zeus/{token}")
            answers = [
                zeus.register(),
                zeus.send("GET", "/jobs/batch_size", job_id="mnist"),
                zeus.send("POST", "/report", report),
                zeus.end(trial),
                zeus.send("DELETE", "/jobs", job_id="mnist"),
            ]
            assert [answer.status_code for answer in answers] == [code] * 5
            assert not any(token in answer.text for answer in answers)
        assert history.count("mnist") == 1

    def test_the_token_stands_in_the_path_and_changes_are_logged(self, history, connect, logged):
        from zeusrun.history.sql.tokens import create_token

        text, token = create_token(history.engine, "mn*", can_write=True)
        zeus = connect(f"/zeus/{text}")
        zeus.register()
        zeus.train(zeus.begin(), epochs=2)
        assert history.trials("mnist")[0].status is TrialStatus.REACHED
        migrating = connect(f"/zeus/{text}/migrate")
        assert migrating.register(max_epochs=7).status_code == 200
        zeus.begin()
        zeus.send("DELETE", "/jobs", job_id="mnist")
        assert [text for text in logged if token.id in text] == [
            f"{change}: token {token.id} from 127.0.0.1"
            for change in (
                "create zeus job mnist",
                "begin mnist-1-1",
                "finish mnist-1-1",
                "change zeus job mnist",
                "begin mnist-2-1",
                "delete zeus job mnist",
                "finish mnist-2-1",
            )
        ]

    def test_a_registration_that_comes_too_late_is_not_logged(
        self, history, zeus, logged, monkeypatch
    ):
        add = ZeusJobs.add

        def add_late(jobs, new):
            add(jobs, new)  # as another request does
            return add(jobs, new)

        monkeypatch.setattr(ZeusJobs, "add", add_late)
        assert zeus.register().status_code == 200
        assert not [text for text in logged if "create zeus job" in text]

    def test_the_description_lists_each_route_once(self, zeus):
        paths = zeus.http.get("/api/v1/openapi.json").json()["paths"]
        own = {path for path, routes in paths.items() if "zeus" in str(routes)}
        assert own >= {"/jobs", "/jobs/batch_size", "/report", "/trials"}
        assert not any("migrate" in path or "token" in path for path in paths)


def test_history_shows_zeus_trials_like_others(zeus, history, capsys):
    from rich.console import Console

    from zeusrun.view.tables import history_table

    zeus.register()
    zeus.train(zeus.begin(), epochs=2)
    zeus.begin()
    trials = history.trials("mnist")
    console = Console(width=100)
    console.print(history_table("mnist", trials, 30, count=2, running={}, width=100))
    shown = capsys.readouterr().out
    assert "64" in shown
    assert "reached" in shown.lower()


def test_the_job_of_the_page_on_clients_is_accepted(zeus):
    page = (ROOT / "docs" / "zeus-clients.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    session = {"ZeusMonitor": object, "JobSpec": dict, "BatchSizeOptimizer": dict}
    exec(block, session)
    gpus = {"max_power": 300, "number_of_gpus": 1, "gpu_model": "Fake A100"}
    assert zeus.send("POST", "/jobs", {**session["optimizer"]["job"], **gpus}).status_code == 201
