"""Chooses a trial while the shared history of its job does not respond. Writes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from zeusrun.bandit.power import first_limit_w
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.tally import build_tally, likeliest_arm
from zeusrun.files.home import runs_directory
from zeusrun.history.rules import offline_name
from zeusrun.jobfile.fingerprint import take_fingerprint
from zeusrun.launcher.choose import Choice, NothingLeft, decide, draft_trial
from zeusrun.launcher.problem import build_problem, common_limit_w
from zeusrun.trial import Decision, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Observation
    from zeusrun.bandit.problem import Problem
    from zeusrun.launcher.choose import Attempt
    from zeusrun.launcher.context import Submission
    from zeusrun.trial import Trial

_AWAY = "the shared history does not respond"


def choose_offline(
    submission: Submission, trials: Sequence[Trial], made: Sequence[Attempt]
) -> Choice | NothingLeft:
    """Choose the cheapest batch size that is known here; ``trials`` are those of the local copy.

    The recurrence of the trial is a guess, and its id has none: the server gives it one. A further
    attempt needs the server, because it belongs to a recurrence, so this one has no bound.
    """
    if made:
        return NothingLeft(f"there is no further attempt, because {_AWAY}")
    problem, runs = read_history(build_problem(submission, trials), trials)
    if submission.forced_batch_size is None:
        decision = _cheapest(problem, runs)
    else:
        decision = decide(submission, problem, runs, 1)
    limit_w, now = common_limit_w(submission), take_fingerprint(submission.spec)
    uuid = uuid4().hex
    name = offline_name(submission.spec.name, uuid)
    trial = replace(
        draft_trial(submission, problem, decision, 1, limit_w, fingerprint=now.parts),
        trial=name,
        uuid=uuid,
        run_dir=str(runs_directory(submission.home, submission.spec.name) / name),
    )
    return Choice(trial, problem, tuple(runs), decision, limit_w=limit_w, earlier=tuple(trials))


def _cheapest(problem: Problem, runs: Sequence[Observation]) -> Decision:
    tally = build_tally(problem, runs)
    means = {arm: sum(costs) / len(costs) for arm, costs in tally.costs_j.items() if costs}
    means = {arm: mean for arm, mean in means.items() if arm in tally.fitting}
    proven = likeliest_arm(tally)
    if not means and proven is not None:
        arm = proven[0]
        why = f"{_AWAY}, and no cost is known here: {arm} has reached the target"
        return Decision(arm, Stage.EXPLOIT, why, first_limit_w(problem, runs, arm))
    if not means:
        fits = problem.default in tally.fitting or not tally.fitting
        arm = problem.default if fits else tally.fitting[-1]
        what = "the default" if fits else "the largest that fits in memory"
        why = f"{_AWAY}, and no cost is known here: {arm} is {what}"
        return Decision(arm, Stage.EXPLORE, why, first_limit_w(problem, runs, arm))
    arm = min(means, key=lambda arm: (means[arm], arm))
    why = f"{_AWAY}, and {arm} is the cheapest batch size that is known here"
    return Decision(arm, Stage.EXPLOIT, why, first_limit_w(problem, runs, arm))
