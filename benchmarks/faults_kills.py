"""SIGKILL at random moments of a submit, to any of its processes or to two at once."""

from __future__ import annotations

import contextlib
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psutil
from faults_audit import audit, read_json, read_written
from faults_home import GONE_S, JOB, PATIENCE_S, Experiment, Finding, describe, wait_for, wait_until
from faults_scene import (
    EARLIER,
    PHASES,
    RANKS,
    Plan,
    Scene,
    cast,
    draw,
    measure_phases,
    open_scene,
    read_phase,
)

from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.processes.torchrun import TICK_S
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.trial import Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_ABSENT_S = 2.0  # so long after the start-up a victim may be awaited


def run_kills(
    folder: Path, library: Path, seed: int, kills: int, jobs: int
) -> Iterator[Experiment]:
    """Kill so many times, some at a time; the n-th experiment has the seed ``seed + n``.

    One in which the victim was not there to be killed is not counted, and follows another.
    """
    usual_s = measure_phases(folder, library, jobs)
    hits, given, most = 0, 0, 3 * kills + 10
    with ThreadPoolExecutor(jobs) as pool:
        while hits < kills and given < most:
            wanted = range(given, given + kills - hits)
            given += len(wanted)
            tasks = [
                pool.submit(kill_once, folder / f"kill-{seed + n}", library, seed + n, usual_s)
                for n in wanted
            ]
            for task in tasks:
                experiment = task.result()
                hits += experiment is not None
                if experiment is not None:
                    yield experiment


def kill_once(
    folder: Path, library: Path, seed: int, usual_s: Mapping[str, float]
) -> Experiment | None:
    """Carry out the plan of a seed; ``None`` if its victims were never there together.

    Args:
        folder: To be made.
        library: The fake NVML.
        seed: Of the plan.
        usual_s: The lengths of the phases.
    """
    scene = open_scene(folder, library, seed + 100, draw(seed))
    try:
        hit = _wait_and_kill(scene, usual_s)
        if hit is None:
            return None
        phase, seen = hit
        return _look_after(scene, seed, phase, seen)
    finally:
        scene.launcher.kill()
        scene.launcher.wait()
        scene.home.end()


def _wait_and_kill(
    scene: Scene, usual_s: Mapping[str, float]
) -> tuple[str, set[psutil.Process]] | None:
    """Kill at the moment planned; return the phase that it fell into, and who was there."""
    plan = scene.plan
    aim = PHASES.index(plan.aim)
    while (phase := read_phase(scene)) is not None and PHASES.index(phase) < aim:
        time.sleep(0.005)
    time.sleep(plan.share * usual_s[plan.aim])
    give_up_t = time.monotonic() + usual_s[PHASES[1]] + _ABSENT_S
    while (phase := read_phase(scene)) is not None and time.monotonic() < give_up_t:
        parts = cast(scene.home, scene.launcher.pid)
        if all(parts.get(victim) for victim in plan.victims):
            for victim in plan.victims:
                for process in parts[victim]:
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(signal.SIGKILL)
            return phase, {process for each in parts.values() for process in each}
        time.sleep(0.02)
    return None


def _look_after(scene: Scene, seed: int, phase: str, seen: set[psutil.Process]) -> Experiment:
    """See what a kill has left, run the job once more, and see what that makes of it."""
    plan, home, gpus = scene.plan, scene.home, scene.gpus
    findings: list[Finding] = []
    code = wait_for(scene.launcher)
    if code is None:
        findings.append(Finding("wrong", f"the launcher went on for {PATIENCE_S:g} s and more"))
    elif "launcher" not in plan.victims and (code == 1 or code < 0):
        text = f"the launcher ended with {code}: {home.complaint('killed')}"
        findings.append(Finding("wrong", text))
    gone_s, left = _check_gone(scene, seen)
    findings += left
    expected, lost = _true_endings(scene)
    live = {name: read_json(home.runs / name / "live.json") for name in lost}

    next_t = time.monotonic()
    code = home.run("next", "submit", home.write_job(RANKS, 0.05), "--json")
    next_s = time.monotonic() - next_t
    if code != 0:
        findings.append(Finding("wrong", f"the next submit: {code}: {home.complaint('next')}"))
    for trial in (home.last_line("next") or {"trials": []})["trials"]:
        expected[trial["trial"]] = {TrialStatus(trial["status"])}
    if gpus.changed_w():
        findings.append(Finding("limits", f"{gpus.changed_w()} W after the next submit"))
    found, trials = audit(home, scene.earlier, expected)
    findings += [*found, *_check_kept(scene, trials, live)]
    if len(trials) <= EARLIER:
        findings.append(Finding("lost", "the next submit has left no trial"))
    victims = " and ".join(plan.victims)
    return Experiment(
        fault=f"SIGKILL to {'two at once' if len(plan.victims) > 1 else victims}",
        label=f"{victims} killed, {phase}{', a limit held' if plan.holds_limit else ''}",
        replay=f"--kills 1 --jobs 1 --seed {seed}",
        findings=tuple(findings),
        home=home.folder,
        facts={"phase": phase, "victims": plan.victims, "gone_s": gone_s, "next_s": next_s},
    )


def _check_gone(scene: Scene, seen: set[psutil.Process]) -> tuple[float | None, list[Finding]]:
    """Return the seconds until nothing was left, and what was left for too long."""
    home, gpus, findings = scene.home, scene.gpus, []
    begun_t = time.monotonic()

    def alive() -> set[psutil.Process]:
        return home.processes() | {process for process in seen if _lives(process)}

    gone_s = wait_until(lambda: not alive(), GONE_S, TICK_S)
    if gone_s is None:
        left = sorted(alive(), key=lambda process: process.pid)
        findings.append(Finding("processes", f"alive {GONE_S:g} s later: {describe(left)}"))
        home.end()
    # With both dead, nobody is left to put the limits back but the next submit.
    unguarded = {"launcher", "guard"} <= set(scene.plan.victims)
    patience_s = max(0.0, GONE_S - (time.monotonic() - begun_t))
    if not unguarded and wait_until(lambda: not gpus.changed_w(), patience_s, TICK_S) is None:
        findings.append(Finding("limits", f"{gpus.changed_w()} W {GONE_S:g} s later"))
    return gone_s, findings


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _true_endings(scene: Scene) -> tuple[dict[str, set[TrialStatus]], list[str]]:
    """Return how each trial of the killed submit must end, and which of them are lost."""
    expected: dict[str, set[TrialStatus]] = {}
    lost = []
    trials = TinyDBHistory(scene.home.history_file.parent).trials(JOB)[EARLIER:]
    for number, trial in enumerate(trials):
        paths = RunPaths(scene.home.runs / trial.trial)
        if "launcher" in scene.plan.victims:
            told = read_json(paths.trial) or {}
            decided = TrialStatus(told.get("status", "DISPATCHED"))
            status = trial.status if trial.status.finished else decided
            if not status.finished:
                status = TrialStatus.LOST
                lost.append(trial.trial)
        else:
            status = TrialStatus.REACHED if number else _true_status(scene.plan, paths, trial)
        expected[trial.trial] = {status}
    return expected, lost


def _true_status(plan: Plan, paths: RunPaths, trial: Trial) -> TrialStatus:
    """Return how a trial ended whose launcher lived on, by what its ranks wrote."""
    if not {"watchdog", "agent", "rank 0", "rank 1"} & set(plan.victims):
        return TrialStatus.REACHED
    written = read_written(paths, trial.target)
    complete = written.reached and written.ended == set(range(trial.world_size))
    return TrialStatus.REACHED if complete else TrialStatus.FAILED


def _check_kept(
    scene: Scene, trials: Sequence[Trial], live: Mapping[str, dict[str, Any] | None]
) -> Iterator[Finding]:
    """Look for what a trial should have kept: what was reported, its joules, and who failed.

    Args:
        scene: The submit.
        trials: As they are at the end.
        live: What the launchers of those that are lost had last written of them, by id.
    """
    victims = scene.plan.victims
    ranks_only = all(victim.startswith("rank") for victim in victims)
    for trial in trials[EARLIER:]:
        named = any(victim in (trial.reason or "") for victim in victims)
        if trial.status is TrialStatus.FAILED and ranks_only and not named:
            yield Finding("wrong", f"{trial.trial} names another cause: {trial.reason}")
        if trial.trial not in live:
            continue
        epochs = read_written(RunPaths(scene.home.runs / trial.trial), trial.target).epochs
        if trial.epochs != epochs:
            yield Finding("wrong", f"{trial.trial} kept {trial.epochs} of {epochs} epochs")
        seen = live[trial.trial] or {}
        kept = {point.epoch: point.energy_j for point in trial.curve}
        for epoch, _time_s, energy_j, _value in seen.get("curve", []):
            if energy_j is not None and kept.get(epoch) != energy_j:
                text = f"{trial.trial} kept {kept.get(epoch)} of the {energy_j} J of epoch {epoch}"
                yield Finding("wrong", text)
        if seen.get("energy_j") is not None and trial.energy_j is None:
            yield Finding("wrong", f"{trial.trial} lost its {seen['energy_j']} J")
