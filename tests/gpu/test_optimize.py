"""Whole submits that choose power limits, on a machine of fake GPUs that all processes share."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.runs import wait_for
from zeusrun.launcher.processes.descendants import end_processes, processes_of_run

FOUND_W = 312.345


@pytest.fixture
def machine(gpu_machine):
    for gpu in range(2):
        gpu_machine.set_limit_w(gpu, FOUND_W)
    return gpu_machine


@pytest.fixture
def submit(zeusrun, machine):
    def run(job, *arguments, **variables):
        done = zeusrun("submit", job, "--json", *arguments, **machine.environment, **variables)
        last = done.stdout.splitlines()[-1:] or ["null"]
        return done.returncode, json.loads(last[0]), done.stderr

    return run


@pytest.fixture
def start(zeusrun, machine):
    """Start a submit; whatever is left of it at the end is ended."""
    yield lambda job, **variables: zeusrun.start("submit", job, **machine.environment, **variables)
    for process in zeusrun.started:
        process.kill()
        process.wait()
    for directory in (zeusrun.home / "runs").glob("*/*"):
        end_processes(processes_of_run(str(directory)), at_once=True)


def job(zeusrun, steps=2000, name="job", **changes):
    """A job whose steps take 20 ms at full power; its one epoch lasts ``steps`` of them."""
    arguments = changes.pop("args", ["--steps", str(steps), "--epochs-to-target", "1"])
    power_limit = changes.pop("power_limit", {"mode": "optimize"})
    changes = {"power_limit": power_limit, "policy": {"name": "fixed"}, **changes}
    return zeusrun.job("trains_on_gpu.py", name, args=arguments, **changes)


def changed(machine, gpu=0):
    return lambda: machine.limit_w(gpu) != FOUND_W


def as_found(machine, gpu=0):
    return lambda: machine.limit_w(gpu) == FOUND_W


def guards(zeusrun):
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if "zeusrun.gpu.power_limits.guard" in words and str(zeusrun.home) in words:
            found.append(process)
    return found


def kill_with_guard(zeusrun, process):
    """Kill a launcher and its guard, so that it can neither start another nor be outlived."""
    process.send_signal(signal.SIGSTOP)
    for guard in guards(zeusrun):
        guard.kill()
    process.kill()
    process.wait()


@pytest.mark.long
def test_the_cheapest_limit_is_found_over_two_trials_and_used_in_the_third(
    zeusrun, machine, submit
):
    _, first, _ = submit(job(zeusrun, steps=400))
    (trial,) = first["trials"]
    assert trial["status"] == "REACHED"
    measured = [point[0] for point in trial["power_profile"]]
    assert len(measured) <= 1  # some 8 s are enough for no more, on a busy machine for less
    assert machine.limit_w(0) == FOUND_W
    # In joules of cost at eta_knob 0.5, 180 W is best; 150 and 200 W cost less than 1 % more, and
    # their neighbours little; a busy machine does not tell them apart.
    best, again = (125.0, 150.0, 175.0, 200.0, 225.0), []
    trial["power_limit_w"] = None
    while trial["power_limit_w"] not in best and len(again) < 8:  # a busy machine takes longer
        _, second, _ = submit(job(zeusrun, steps=2200))
        (trial,) = second["trials"]
        again += [point[0] for point in trial["power_profile"]]
    assert trial["power_limit_w"] in best
    assert set(again) - set(measured)
    assert len({*measured, *again}) <= 5  # of 9 limits from 100 to 312.345 W
    assert trial["profiling_cost_j"] is not None
    assert machine.limit_w(0) == FOUND_W
    _, third, _ = submit(job(zeusrun, steps=600))
    (trial,) = third["trials"]
    measured = [point[0] for point in trial["power_profile"]]
    assert measured in ([], [trial["power_limit_w"]])  # a busy machine may measure none
    assert trial["power_limit_w"] in best
    limits = [float(row.split(",")[3]) for row in power_rows(trial)]
    held = [limit for limit in limits if limit != FOUND_W]
    assert trial["power_limit_w"] in held
    assert set(held) <= {*best}  # a busy machine may change its mind
    assert len(held) > 100  # from its first steps to its end
    assert not list((zeusrun.home / "gpus").glob("*.json"))


def power_rows(trial):
    return (Path(trial["run_dir"]) / "power.csv").read_text().splitlines()[1:]


@pytest.mark.long
def test_a_limit_is_never_above_the_one_found(zeusrun, machine, submit):
    machine.set_limit_w(0, 150.0)
    submit(job(zeusrun, steps=100, objective={"eta_knob": 0.0}))
    (trial,) = zeusrun.history()
    assert trial["power_limit_w"] == 150.0
    assert machine.limit_w(0) == 150.0


def test_after_sigterm_the_limits_are_as_found(zeusrun, machine, start):
    process = start(job(zeusrun))
    wait_for(changed(machine), what="a probe")
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 75
    assert machine.limit_w(0) == FOUND_W
    assert not list((zeusrun.home / "gpus").glob("*.json"))


def test_limits_are_as_found_before_the_training_has_taken_its_leave(zeusrun, machine, start):
    slow = job(zeusrun, args=["--steps", "2000", "--deaf"], launch={"grace_period_s": 20})
    process = start(slow)
    wait_for(changed(machine), what="a probe")
    process.send_signal(signal.SIGTERM)
    wait_for(as_found(machine), 15.0, "the limit found")
    assert process.poll() is None


def test_a_guard_that_died_alone_is_replaced_and_the_new_one_restores_after_a_sigkill(
    zeusrun, machine, start
):
    process = start(job(zeusrun))
    wait_for(changed(machine), what="a probe")
    (first,) = guards(zeusrun)
    first.kill()
    wait_for(lambda: [g for g in guards(zeusrun) if g != first], what="another guard")
    process.kill()
    wait_for(as_found(machine), what="the limit found")
    wait_for(lambda: not guards(zeusrun), what="the end of the guard")
    assert not list((zeusrun.home / "gpus").glob("*.json"))


@pytest.mark.long  # two deaths in one run
def test_a_cap_that_somebody_has_set_meanwhile_outlives_launcher_and_guard(zeusrun, machine, start):
    process = start(job(zeusrun))
    wait_for(changed(machine), what="a probe")
    process.send_signal(signal.SIGSTOP)
    machine.set_limit_w(0, 120.0)
    process.kill()
    wait_for(lambda: not guards(zeusrun), what="the end of the guard")
    assert machine.limit_w(0) == 120.0
    assert not list((zeusrun.home / "gpus").glob("*.json"))


@pytest.mark.long
def test_a_cap_that_somebody_sets_meanwhile_stays_and_is_what_the_trial_records(
    zeusrun, machine, start
):
    process = start(job(zeusrun, steps=150))
    wait_for(changed(machine), what="a probe")
    machine.set_limit_w(0, 120.0)
    process.communicate(timeout=300)
    (trial,) = zeusrun.history()
    assert machine.limit_w(0) == 120.0
    assert trial["power_profile"] in ([], None) or trial["power_profile"][0][0] is None
    assert trial["power_limit_w"] == 120.0
    assert any("stays at 120 W" in warning for warning in trial["warnings"])


@pytest.mark.long  # as the one below
def test_when_the_guard_dies_too_doctor_notices_and_repair_restores(zeusrun, machine, start):
    process = start(job(zeusrun))
    wait_for(changed(machine), what="a probe")
    kill_with_guard(zeusrun, process)
    assert machine.limit_w(0) != FOUND_W
    doctor = zeusrun("doctor", **machine.environment)
    assert "zeusrun repair" in doctor.stdout
    assert machine.uuid(0) in doctor.stdout
    repair = zeusrun("repair", "--json", **machine.environment)
    assert repair.returncode == 0, repair.stderr
    (limit,) = [each for each in json.loads(repair.stdout) if each["kind"] == "limit"]
    assert (limit["subject"], limit["state"]) == (machine.uuid(0), "repaired")
    assert "is restored to 312.345 W, the value before job-1-1" in limit["text"]
    assert machine.limit_w(0) == FOUND_W
    assert zeusrun("repair", **machine.environment).returncode == 0


def test_when_the_guard_dies_too_the_next_submit_restores(zeusrun, machine, start, submit):
    process = start(job(zeusrun))
    wait_for(changed(machine), what="a probe")
    kill_with_guard(zeusrun, process)
    other = zeusrun.job("well.py", "other", power_limit={"mode": "observe"})
    code, _, said = submit(other, CUDA_VISIBLE_DEVICES="1")
    assert code == 0
    assert "restored to 312.345 W" in said
    assert machine.limit_w(0) == FOUND_W


def test_a_second_job_on_the_same_gpu_is_refused_and_one_beside_it_is_not(
    zeusrun, machine, start, submit
):
    first = start(job(zeusrun), CUDA_VISIBLE_DEVICES="0")
    wait_for(changed(machine), what="a probe")
    code, _, said = submit(job(zeusrun, name="second"), CUDA_VISIBLE_DEVICES="0")
    assert code == 75
    assert "its GPUs are taken by job-1-1 since" in said
    # Where it would share the GPU, there is still its power limit, which only one can hold.
    shares = job(zeusrun, name="second", launch={"nproc_per_node": 1, "gpus": "shared"})
    code, _, said = submit(shares, CUDA_VISIBLE_DEVICES="0")
    assert code == 75
    assert "job-1-1" in said
    assert {trial["job"] for trial in zeusrun.history()} == {"job"}
    code, result, _ = submit(job(zeusrun, steps=60, name="third"), CUDA_VISIBLE_DEVICES="1")
    assert code == 0
    assert result["trials"][0]["status"] == "REACHED"
    assert machine.limit_w(1) == FOUND_W
    assert first.poll() is None


def test_without_permission_it_trains_measures_and_says_once_what_would_allow_it(
    zeusrun, machine, submit
):
    machine.set("permission", 0)
    code, result, said = submit(job(zeusrun, steps=400))
    (trial,) = result["trials"]
    assert code == 0
    assert said.count("CAP_SYS_ADMIN") == 1
    assert trial["power_limit_w"] == FOUND_W
    assert [point[0] for point in trial["power_profile"]] == [FOUND_W]


def test_a_fixed_limit_without_permission_is_refused_before_anything_starts(
    zeusrun, machine, submit
):
    machine.set("permission", 0)
    code, _, said = submit(job(zeusrun, power_limit={"mode": "fixed", "watts": 200}))
    assert code == 5
    assert "a power limit of 200 W cannot be held" in said
    assert "CAP_SYS_ADMIN" in said
    assert "mode: observe" in said
    assert zeusrun.history() == []


def test_observe_changes_nothing(zeusrun, machine, submit):
    code, result, _ = submit(job(zeusrun, steps=60, power_limit={"mode": "observe"}))
    (trial,) = result["trials"]
    assert code == 0
    assert trial["power_limit_w"] == FOUND_W
    assert {float(row.split(",")[3]) for row in power_rows(trial)} == {FOUND_W}


@pytest.mark.long
def test_one_limit_is_chosen_for_all_gpus_from_summed_power(zeusrun, machine, submit):
    machine.set_limit_w(1, 212.345)
    spec = job(zeusrun, steps=400, launch={"nproc_per_node": 2})
    code, result, _ = submit(spec)
    (trial,) = result["trials"]
    assert code == 0
    assert trial["gpu_count"] == 2
    assert trial["power_profile"]
    for limit_w, _, power_w in trial["power_profile"]:
        assert limit_w <= 212.345
        assert power_w == pytest.approx(2 * min(limit_w, 250.0), rel=0.05)
    assert (machine.limit_w(0), machine.limit_w(1)) == (FOUND_W, 212.345)


def test_a_gpu_lost_in_mid_run_makes_energy_unknown_and_says_so(zeusrun, machine, start):
    process = start(job(zeusrun, steps=150))
    wait_for(changed(machine), what="a probe")
    machine.set("lost", 0)
    process.communicate(timeout=300)
    (trial,) = zeusrun.history()
    assert trial["energy_j"] is None
    assert trial["cost_j"] is None
    assert any("lost" in warning for warning in trial["warnings"])
    machine.set("lost", -1)

    def is_repaired():  # not while the guard of the run holds the limit still
        assert zeusrun("repair", **machine.environment).returncode == 0
        return machine.limit_w(0) == FOUND_W

    wait_for(is_repaired, what="the limit as it was found")


@pytest.mark.long  # 5 s of training; energy/test_monitor.py has the rule
def test_a_foreign_process_on_the_gpu_marks_the_trial_as_shared(zeusrun, machine, submit):
    machine.set("foreign", os.getpid())
    _, result, said = submit(job(zeusrun, steps=200))
    (trial,) = result["trials"]
    assert trial["shared"] is True
    assert str(os.getpid()) in said


def test_on_a_mig_instance_limits_are_left_alone(zeusrun, machine, submit):
    machine.set("mig", 2)
    listed = f"MIG-1{machine.get('serial'):07d}-5555"
    code, result, said = submit(job(zeusrun, steps=60), CUDA_VISIBLE_DEVICES=listed)
    (trial,) = result["trials"]
    assert code == 0, said
    assert "MIG" in trial["gpu_model"]
    assert "power limits are not changed" in said
    assert machine.limit_w(0) == FOUND_W
