"""The API: what it answers, and how it refuses; over a real server and SQLite."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from tests.factories import DONE, REACHED, build_trial

UUID = "0123456789abcdef0123456789abcdef"


def test_a_trial_begins_is_renewed_ends_and_is_read(server):
    trial = build_trial(uuid=UUID)
    begun = server.begin(trial)
    assert (begun.status, begun.json["trial"]) == (201, trial.to_json())
    assert server.get(f"/api/v1/trials/{UUID}/lease").json == {"live": None}
    beat = server.ask("PUT", f"/api/v1/trials/{UUID}/lease", {"live": {"power_w": 250.5}})
    assert (beat.status, beat.json) == (200, {"cancel": False})
    assert server.get("/api/v1/trials/job-1-1/lease").json["live"] == {"power_w": 250.5}
    assert server.get("/api/v1/jobs/job/unfinished").json["trials"] == [trial.to_json()]
    ended = server.ask("POST", f"/api/v1/trials/{UUID}/outcome", REACHED.to_json())
    assert (ended.status, ended.json["trial"]) == (200, trial.finish(REACHED).to_json())
    assert server.get("/api/v1/trials/job-1-1").json == ended.json
    assert server.get("/api/v1/jobs").json == {"jobs": ["job"]}


def test_a_trial_is_chosen_in_its_turn(server):
    first = server.ask("POST", "/api/v1/jobs/job/turns", {}).json
    assert first == {"number": 1, "ahead": 0, "waiting": 1}
    second = server.ask("POST", "/api/v1/jobs/job/turns", {"number": 0}).json
    assert second == {"number": 2, "ahead": 1, "waiting": 2}
    version = server.get("/api/v1/jobs/job/trials").json["version"]
    body = {"trial": build_trial(uuid=UUID).to_json(), "after": version}
    early = server.ask("POST", "/api/v1/jobs/job/trials", {**body, "turn": 2})
    assert (early.status, early.code) == (409, "conflict")
    assert server.ask("DELETE", "/api/v1/jobs/job/turns/1").status == 204
    assert server.ask("POST", "/api/v1/jobs/job/trials", {**body, "turn": 2}).status == 201
    assert server.ask("DELETE", "/api/v1/jobs/job/turns/0").status == 422


def test_a_running_trial_is_asked_to_cancel(server):
    server.begin(build_trial(uuid=UUID))
    asked = server.ask("POST", f"/api/v1/trials/{UUID}/cancel")
    assert (asked.status, asked.json) == (200, {"asked": True})
    beat = server.ask("PUT", f"/api/v1/trials/{UUID}/lease", {})
    assert beat.json == {"cancel": True}
    server.ask("POST", f"/api/v1/trials/{UUID}/outcome", REACHED.to_json())
    assert server.ask("POST", f"/api/v1/trials/{UUID}/cancel").json == {"asked": False}
    assert server.ask("POST", "/api/v1/trials/job-2-1/cancel").status == 404


def test_a_client_reads_only_what_has_changed(server):
    for number in (1, 2, 3):
        server.begin(build_trial(number))
    whole = server.get("/api/v1/jobs/job/trials?last=2").json
    assert [each["trial"] for each in whole["trials"]] == ["job-2-1", "job-3-1"]
    assert (whole["total"], whole["whole"]) == (3, True)
    server.ask("POST", "/api/v1/trials/job-2-1/outcome", DONE.to_json())
    news = server.get(f"/api/v1/jobs/job/trials?after={whole['version']}").json
    assert [each["trial"] for each in news["trials"]] == ["job-2-1"]
    assert (news["total"], news["whole"]) == (3, False)
    nothing = server.get(f"/api/v1/jobs/job/trials?after={news['version']}").json
    assert (nothing["trials"], nothing["version"]) == ([], news["version"])
    future = f"{nothing['version'].partition(':')[0]}:999"
    anew = server.get(f"/api/v1/jobs/job/trials?after={future}").json
    assert (len(anew["trials"]), anew["whole"]) == (3, True)
    assert anew["version"] == news["version"]  # who reads changes nothing


def test_the_same_request_again_changes_nothing(server):
    trial = build_trial(uuid=UUID)
    version = server.version("job")
    first, second = (server.begin(trial, after=version) for _ in range(2))
    assert (first.status, second.status) == (201, 201)
    assert first.json == second.json
    ends = [server.ask("POST", f"/api/v1/trials/{UUID}/outcome", DONE.to_json()) for _ in range(2)]
    assert [each.status for each in ends] == [200, 200]
    assert server.get("/api/v1/jobs/job/trials").json["total"] == 1


def test_a_trial_that_was_chosen_from_an_old_version_is_a_conflict(server):
    version = server.version("job")
    server.begin(build_trial(1), after=version)
    late = server.begin(build_trial(2), after=version)
    assert (late.status, late.code) == (409, "conflict")
    assert "has changed" in late.message


def test_a_report_for_a_finished_trial_is_refused_and_the_first_one_stays(server):
    server.begin(build_trial())
    server.ask("POST", "/api/v1/trials/job-1-1/outcome", DONE.to_json())
    other = replace(DONE, reason="something else")
    again = server.ask("POST", "/api/v1/trials/job-1-1/outcome", other.to_json())
    assert (again.status, again.code) == (422, "invalid")
    assert again.message == "trial job-1-1 is REACHED already and never changes"
    assert server.get("/api/v1/trials/job-1-1").json["trial"]["reason"] == DONE.reason


def test_any_machine_may_report_a_trial_and_its_own_host_stays(server):
    """As when a launcher's results are delivered by another one that shares its disk."""
    server.begin(build_trial(host="gpu1"))
    ended = server.ask("POST", "/api/v1/trials/job-1-1/outcome", DONE.to_json())
    assert (ended.status, ended.json["trial"]["host"]) == (200, "gpu1")


def test_unknown_jobs_have_no_trials_and_unknown_trials_are_not_found(server):
    assert server.get("/api/v1/jobs/nobody/trials").json["trials"] == []
    assert server.get("/api/v1/jobs/nobody/unfinished").json["trials"] == []
    bodies = {"outcome": DONE.to_json(), "forgotten": {"forgotten": True}}
    asked = [("POST", f"/{name}", body) for name, body in bodies.items()]
    asked += [("GET", "", None), ("GET", "/lease", None)]
    asked += [("PUT", "/lease", {"live": None}), ("PUT", "/trace", {})]
    for name in ("job-7-1", UUID, "what-is-this"):
        for method, path, body in asked:
            answer = server.ask(method, f"/api/v1/trials/{name}{path}", body)
            assert (answer.status, answer.code) == (404, "unknown"), (name, path)
            assert name in answer.message


def test_trials_are_imported_and_forgotten(server):
    trials = [build_trial(number).finish(DONE).to_json() for number in (1, 2)]
    for _ in range(2):
        stored = server.ask("POST", "/api/v1/jobs/job/imports", {"trials": trials})
        assert (stored.status, stored.json["trials"]) == (200, trials)
    for forgotten in (True, False):
        answer = server.ask("POST", "/api/v1/trials/job-1-1/forgotten", {"forgotten": forgotten})
        assert answer.json["trial"]["forgotten"] is forgotten


def test_a_run_that_began_offline_gets_a_number(server):
    server.begin(build_trial(1))
    offline = build_trial(1, uuid=UUID, trial=f"job-offline-{UUID[:8]}").finish(DONE)
    stored = server.ask("POST", "/api/v1/jobs/job/imports", {"trials": [offline.to_json()]})
    assert stored.json["trials"][0]["trial"] == "job-2-1"


def test_what_machines_report_is_kept(server):
    server.begin(build_trial())
    facts = {"gpus": [{"name": "Fake A100"}]}
    for path, body in (
        ("/api/v1/hosts/gpu1", facts),
        ("/api/v1/trials/job-1-1/trace", {"times_s": [0.0], "powers_w": [9.0]}),
        ("/api/v1/jobs/job/settings", {"settings": "name: job\n"}),
    ):
        assert server.ask("PUT", path, body).status == 204
    with server.history() as history:
        assert [(host, found) for host, _, found in history.hosts()] == [("gpu1", facts)]
        assert history.trace("job-1-1") == {"times_s": [0.0], "powers_w": [9.0]}
        assert history.settings("job") == "name: job\n"


def test_what_can_never_succeed_is_refused_with_the_place_and_the_reason(server):
    good = build_trial().to_json()

    def begin(**changes):
        body = {"trial": {**good, **changes}, "after": server.version("job")}
        return server.ask("POST", "/api/v1/jobs/job/trials", body)

    for changes, words in (
        ({"job": "other", "trial": "other-1-1"}, "is of job 'other', not of 'job'"),
        ({"trial": "job-9-1"}, "ids are <job>-<recurrence>-<attempt>"),
        ({"uuid": "short"}, "32 hex digits expected"),
        ({"status": "REACHED"}, "is REACHED before it began"),
    ):
        answer = begin(**changes)
        assert (answer.status, answer.code) == (422, "invalid"), changes
        assert words in answer.message
    for changes in ({"target": "high"}, {"curve": 5}, {"status": "ASLEEP"}):
        answer = begin(**changes)
        assert (answer.status, answer.code) == (422, "unreadable"), changes
    for path, body, place in (
        ("/jobs/job/trials", {"trial": good}, "body.after: Field required"),
        ("/jobs/job/trials", [], "body: Input should be"),
        ("/jobs/-job/trials", {"trial": good, "after": ""}, "path.job: String should match"),
        ("/jobs/job/imports", {"trials": [good, 5]}, "body.trials.1: Input should be"),
        ("/trials/job-1-1/forgotten", {"forgotten": "perhaps"}, "body.forgotten: Input"),
    ):
        answer = server.ask("POST", f"/api/v1{path}", body)
        assert (answer.status, answer.code) == (422, "invalid"), path
        assert answer.message.startswith(place)


def test_half_of_a_surrogate_pair_comes_back_as_it_was_sent(server):
    """File names and output of scripts may be no UTF-8."""
    trial = build_trial(why="caf\udce9", metric="a\x00b")
    assert server.begin(trial).json["trial"] == trial.to_json()
    server.ask("PUT", "/api/v1/trials/job-1-1/lease", {"live": {"\udcff": "\ud800"}})
    assert server.get("/api/v1/trials/job-1-1/lease").json["live"] == {"\udcff": "\ud800"}
    refused = server.begin(build_trial(2, mode="max", stage="explore", trial="caf\udce9"))
    assert (refused.status, refused.code) == (422, "invalid")


def test_a_body_that_is_no_json_is_refused(server):
    kind = {"Content-Type": "application/json"}
    deep = b"[" * 100_000
    for raw in (b"{", b"\xff\xfe", b'{"live": NaN}', b'{"live": {"x": Infinity}}', deep, b""):
        server.begin(build_trial())
        answer = server.ask("PUT", "/api/v1/trials/job-1-1/lease", raw=raw, **kind)
        assert answer.status in {400, 422}, raw[:20]
        assert answer.code == "invalid"
    text = server.ask("PUT", "/api/v1/trials/job-1-1/lease", raw=b"{}", Content_Type="text/plain")
    assert text.status == 422


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.long)])
def test_many_launchers_of_one_job_at_once_all_begin_in_the_end(server, count):
    """Each chooses again after a conflict; no number is given twice, and no trial is lost."""
    conflicts, begun = [], []

    def launch(number):
        uuid = f"{number:032x}"
        while True:
            news = server.get("/api/v1/jobs/job/trials").json
            recurrence = max((each["recurrence"] for each in news["trials"]), default=0) + 1
            answer = server.begin(build_trial(recurrence, uuid=uuid), after=news["version"])
            if answer.status == 201:
                begun.append(answer.json["trial"]["trial"])
                return
            conflicts.append(answer.code)

    launchers = [threading.Thread(target=launch, args=(number,)) for number in range(count)]
    for launcher in launchers:
        launcher.start()
    for launcher in launchers:
        launcher.join()
    assert sorted(begun) == sorted(f"job-{number}-1" for number in range(1, count + 1))
    assert set(conflicts) <= {"conflict"}
    assert server.get("/api/v1/jobs/job/trials").json["total"] == count


def test_the_description_of_the_api_names_every_field_of_a_trial(server):
    found = server.get("/api/v1/openapi.json").json
    models = found["components"]["schemas"]
    named = {"$ref": "#/components/schemas/Trial"}
    assert models["NewTrial"]["properties"]["trial"] == named
    assert set(models["Trial"]["properties"]) == set(build_trial().to_json())
    finish = found["paths"]["/api/v1/trials/{trial}/outcome"]["post"]["requestBody"]
    assert finish["content"]["application/json"]["schema"]["$ref"].endswith("/Outcome")
    outcome = models["Outcome"]
    assert set(outcome["properties"]) == set(DONE.to_json())
    assert set(outcome["required"]) == {"status", "reason", "finished_at"}


def test_paths_that_do_not_exist_are_refused_in_the_same_form(server):
    for method, path, status in (("GET", "/nope", 404), ("DELETE", "/api/v1", 405)):
        answer = server.ask(method, path)
        assert (answer.status, set(answer.json)) == (status, {"error"})
    assert json.loads(answer.body)["error"]["code"] == "method"
