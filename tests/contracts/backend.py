"""What zeusrun asks of a backend, see ``run_on/registry.py`` and ``Submitter``.

A test inherits the class. It sets ``BACKEND``, the name in the table, and ``SECTION``, the keys
that the job file needs at least. It has a fixture ``put``, which makes a job of the scheduler that
is ``queued``, ``running``, ``ended`` or ``gone``, and returns its name; and a fixture ``variables``
with what a command needs in its environment.
"""

from __future__ import annotations

import json

import pytest

from zeusrun.errors import LaunchError
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.run_on.registry import (
    backend_of,
    cancel_job,
    describe_job,
    end_job,
    explain_end,
    find_ended,
    interrupt_job,
    is_job,
    load,
    read_jobs,
)

STATES = ("queued", "running", "ended", "gone")


class BackendContract:
    BACKEND = ""
    SECTION: dict[str, object]

    @pytest.fixture
    def run(self, zeusrun, variables):
        """Run the command, with an executable job file for the last of its arguments."""

        def command(*arguments, job=None):
            paths = [] if job is None else [zeusrun.job(run_on={self.BACKEND: job})]
            done = zeusrun(*arguments, *paths, **variables)
            return done.returncode, done.stdout, done.stderr

        return command

    @pytest.mark.parametrize("state", STATES)
    def test_the_name_of_a_job_names_its_backend(self, put, state):
        name = put(state)
        assert backend_of(name) == self.BACKEND
        assert all(each.isprintable() and each not in " -'\"" for each in name[:1])

    @pytest.mark.parametrize("rest", ["", "--user=me", "-1", "a b", "a\n", "../1"])
    def test_no_option_and_no_path_is_a_name(self, rest):
        assert not is_job(f"{self.BACKEND}:{rest}")

    def test_each_job_has_a_state_and_says_whether_it_has_ended(self, put):
        names = {state: put(state) for state in STATES}
        jobs = read_jobs(names.values())
        assert jobs.keys() == set(names.values())
        ended = {state: jobs[name].has_ended for state, name in names.items()}
        assert ended == {"queued": False, "running": False, "ended": True, "gone": True}
        assert find_ended(names.values()) == {names["ended"], names["gone"]}

    @pytest.mark.parametrize("state", STATES)
    def test_a_job_is_described_in_a_sentence_that_names_it(self, put, state):
        name = put(state)
        for job in (read_jobs([name]).get(name), None):
            text = describe_job(name, job)
            assert text.startswith(name)
            assert "\n" not in text
            assert not text.endswith(".")

    @pytest.mark.parametrize("state", ["queued", "running"])
    def test_a_job_that_is_cancelled_ends(self, put, state):
        name = put(state)
        end_job(name, 30.0)
        assert read_jobs([name])[name].has_ended

    @pytest.mark.parametrize("state", ["ended", "gone"])
    def test_it_is_no_error_to_cancel_or_to_interrupt_what_has_ended(self, put, state):
        name = put(state)
        cancel_job(name)
        interrupt_job(name)

    @pytest.mark.parametrize("saved", [True, False])
    def test_a_job_that_is_gone_says_nothing_of_a_trial(self, put, saved):
        assert explain_end(put("gone"), saved=saved) is None

    def test_it_says_which_command_shows_a_job(self, put):
        look = load(self.BACKEND, "client").LOOK.format(*put("queued").partition(":")[2].split("/"))
        assert "{" not in look
        assert look.split()

    def test_its_section_is_one_of_the_job_file(self, run, zeusrun):
        path = zeusrun.job(run_on={self.BACKEND: self.SECTION})
        assert run("validate", path)[0] == 0
        code, _, errors = run("validate", job={**self.SECTION, "no_such_key": 1})
        assert (code, f"'no_such_key' under 'run_on.{self.BACKEND}'" in errors) == (2, True)
        code, _, errors = run("validate", job="text")
        assert (code, f"'run_on.{self.BACKEND}' must be a section" in errors) == (2, True)
        schema = json.loads(run("schema")[1])
        kinds = [each for name, each in schema["$defs"].items() if name == "RunOn"]
        assert self.BACKEND in kinds[0]["properties"]

    def test_a_dry_run_shows_what_it_would_submit_and_writes_nothing(self, run, zeusrun):
        code, shown, errors = run("submit", "--dry-run", job=self.SECTION)
        assert (code, errors) == (0, "")
        assert "zeusrun" in shown
        assert "inside" in shown
        assert not Tickets(zeusrun.home).present()
        assert not (zeusrun.home / "runs").exists()

    def test_a_detached_submit_is_queued_shown_and_cancelled_by_its_name(self, run, zeusrun):
        code, shown, errors = run("submit", "--detach", "--json", job=self.SECTION)
        assert code == 0, errors
        name = json.loads(shown)["queued"]
        assert backend_of(name) == self.BACKEND
        assert [each.allocation for each in Tickets(zeusrun.home).present()] == [name]
        assert name in " ".join(run("status")[1].split())
        assert run("cancel", name)[0] == 0
        assert read_jobs([name])[name].has_ended

    def test_a_candidate_that_the_job_does_not_have_is_refused_before_it_is_queued(self, run):
        code, _, errors = run("submit", "--batch-size", "7", job=self.SECTION)
        assert (code, "7" in errors) == (2, True)

    def test_a_job_of_a_newer_version_is_left_alone(self):
        for act in (cancel_job, interrupt_job):
            with pytest.raises(LaunchError, match="names no job of a scheduler that this version"):
                act(f"{self.BACKEND}x:1")
