"""The section ``loader`` inside a rank: gives the loader of the training other numbers of workers.

It does so between two passes. The first rank of a host decides, and the others follow. The order of
the samples stays that of the script.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from zeusrun.files.private import read_file, replace_file
from zeusrun.loader.rank.limits import count_cores, count_that_fit
from zeusrun.loader.rank.rescue import Rescue
from zeusrun.loader.rank.safe import State, is_shuffled, list_facts, why_left_alone
from zeusrun.loader.rank.tuner import Arm, Measurement, Tuner
from zeusrun.sidecar.events import LoaderWorkers
from zeusrun.worker.agent import RankAgent
from zeusrun.worker.hooks.imports import replaces

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks
    from zeusrun.worker.passes import Pass

_WARM = 3  # steps of a longer pass that are no part of a measurement
_FOLLOW_S = 2.0  # until the first rank has decided; mostly it has, a step earlier


def join(hooks: Hooks, given: Mapping[str, Any]) -> LoaderAgent:
    """Return the agent that sets the number of workers of the training's loader."""
    return LoaderAgent(hooks, given)


class LoaderAgent(RankAgent):
    """Sets the number of workers of the loader that feeds the optimizer steps."""

    modules: ClassVar[frozenset[str]] = frozenset({"torch.utils.data.dataloader"})

    def __init__(self, hooks: Hooks, given: Mapping[str, Any]) -> None:
        self._observer, self._environment, self._given = hooks.observer, hooks.environment, given
        rank, ranks = (os.environ.get(f"LOCAL_{name}") for name in ("RANK", "WORLD_SIZE"))
        self._leads, self._ranks = not int(rank or 0), int(ranks or 1)
        folder = Path(self._environment.plan.run_dir or "")
        self._path, self._stop = folder / "loader.json", folder / "loader.stop"
        for path in (self._path, self._stop) if self._leads else ():
            path.unlink(missing_ok=True)  # of ranks before a restart
        self._tuner: Tuner | None = None  # ``None`` before the first pass
        self._arm: Arm | None = None  # of the next pass; in the present one:
        self._present: Arm | None = None
        self._states: weakref.WeakKeyDictionary[Any, State] = weakref.WeakKeyDictionary()
        self._rescue = Rescue(self._give_up)
        self._has_given_up = False
        self._told: set[str] = set()
        self._number = 0  # passes that have begun
        self._since_t = self._begun_t = 0.0  # of the present arm, and of its pass
        self._pass: Pass | None = None  # ``None`` once it is decided what follows
        self._state: State
        self._measurement = Measurement(0)
        self._step_t = self._first_s = 0.0  # the last step; until the first one
        self._others, self._is_first = 0, True  # whether it is the first pass of its arm

    def hook(self, module: ModuleType) -> None:
        """Set the workers of a loader before a pass over it, and survive one that dies."""
        iterate = module.DataLoader.__iter__
        self._rescue.hook(module)

        @replaces(module.DataLoader, "__iter__")
        def __iter__(loader: Any) -> Any:
            state = self._try_to_begin(loader)
            if state is None:
                return iterate(loader)
            with state.same_order():
                try:
                    return iterate(loader)
                except OSError as error:  # no memory for another process
                    if self._arm == state.own:
                        raise
                    state.draw_again()
                    self._give_up(loader, f"{loader.num_workers} workers could not start: {error}")
                return iterate(loader)

    def _try_to_begin(self, loader: Any) -> State | None:
        """Begin a pass over the loader of the training; ``None`` if nothing of it is changed."""
        try:
            if not self._has_given_up and self._is_training(loader):
                return self._begin(loader)
        except Exception as error:  # noqa: BLE001 - whatever the script has made of its loader
            self._tell(f"the number of workers cannot be set: {type(error).__name__}: {error}")
        return None

    def _is_training(self, loader: Any) -> bool:
        """Whether a loader feeds the steps; as long as that is unknown, whether it may do so.

        A script may build one for each pass.
        """
        feed = self._observer.training
        known = None if feed is None else feed.loader()
        return is_shuffled(loader) if known is None else known is loader

    def _begin(self, loader: Any) -> State | None:
        """Decide on the arm of the pass that is about to begin."""
        state = self._states.get(loader)
        if state is None:
            if (why := why_left_alone(loader, from_zero=self._given["from_zero"])) is not None:
                self._tell(f"the number of workers stays as it is: {why}")
                return None
            state = self._states[loader] = State(loader)
        if self._ranks > 1 and self._stop.exists():  # another rank has given up
            self._has_given_up, self._arm = True, state.own
        elif self._tuner is None:
            self._tuner = self._open(state.own)
            self._arm = self._tuner.arm
            self._measurement = Measurement(self._arm.workers)
        elif self._leads:
            self._decide()
        else:
            self._follow()
        arm = self._arm or state.own
        self._number += 1
        self._begun_t = time.monotonic()
        if arm != self._present:
            self._present, self._since_t = arm, self._begun_t
            self._say(arm)
        state.apply(arm, list_facts(loader.dataset))
        self._rescue.watch(loader, state)
        return state

    def _open(self, own: Arm) -> Tuner:
        given, start = self._given, self._given["start"]
        if given["workers"] != "tune":
            return Tuner(own._replace(workers=given["workers"]), 0, known=1.0)
        most = given["max_workers"] or max(1, count_cores() // self._ranks)
        never = [number for number in given["never"] if number > own.workers]
        if start is None or start[0] in never or start[0] > max(most, own.workers):
            return Tuner(own._replace(workers=max(1, own.workers)), most, None, never)
        return Tuner(Arm(start[0], start[1] or own.stays), most, start[2], never)

    def begin_pass(self, part: Pass, loader: Any) -> None:
        """Measure a pass over a loader whose workers are set."""
        if (state := self._states.get(loader)) is not None:
            self._pass, self._state, self._step_t = part, state, 0.0

    def count_step(self, optimizer: Any) -> None:
        """Measure a step of the pass."""
        del optimizer
        part, now_t = self._pass, time.monotonic()
        if part is None or self._observer.current is not part or not self._leads:
            return
        others, length = self._observer.others, self._count_steps(part)
        if not self._step_t:
            self._first_s = now_t - self._begun_t
        elif others == self._others and part.steps > (_WARM if length > 4 * _WARM else 1):
            self._measurement.add_interval(now_t - self._step_t)
        self._step_t, self._others = now_t, others
        if self._ranks > 1 and part.steps + 1 == length:
            self._decide()  # before the others can end the pass

    @staticmethod
    def _count_steps(part: Pass) -> int:
        """Return how many steps a pass probably has; 0 if unknown."""
        batches, length = part.last.batches, part.feed.length
        return -(-length // batches) if batches and length else 0

    def _decide(self) -> None:
        """Take in the pass that ends, and choose the arm of the next one."""
        part, tuner = self._pass, self._tuner
        if part is None or tuner is None or not part.steps:
            return
        self._pass = None
        self._measurement.add_pass(part.steps, self._first_s, part.all_waited_s)
        result = self._measurement.result
        if tuner.arm.stays and self._is_first:  # in it, those that stay from now on have started
            self._measurement, result = Measurement(tuner.arm.workers), None
        self._is_first = result is not None
        if result is not None:
            self._say(tuner.arm, result.step_s, result.wait)
            fit = count_that_fit(self._state.workers, self._ranks)
            self._arm = tuner.take(result, fit, may_stay=self._state.is_still)
            self._measurement = Measurement(self._arm.workers)
        if self._ranks > 1:
            content = json.dumps({"pass": self._number, "arm": self._arm}).encode()
            with contextlib.suppress(OSError):  # a full disk: the others go on as they are
                replace_file(self._path, content, durable=False)

    def _follow(self) -> None:
        """Take the arm on which the first rank of this host has decided."""
        until_t = time.monotonic() + _FOLLOW_S
        while time.monotonic() < until_t:
            with contextlib.suppress(OSError, ValueError):
                decided = json.loads(read_file(self._path, 1000))
                self._arm = Arm(*decided["arm"])
                if decided["pass"] >= self._number:
                    return
            time.sleep(0.005)

    def _give_up(self, loader: Any, why: str) -> None:
        """Return to the script's own number for the rest of the run."""
        state = self._states[loader]
        self._has_given_up, self._arm = True, state.own
        self._say(self._present or state.own, died=True)
        state.apply(state.own, state.facts)
        self._tell(f"{why}; the script's own number is used for the rest of the run")
        self._present, self._since_t = state.own, time.monotonic()
        self._say(state.own)
        with contextlib.suppress(OSError):
            self._stop.touch()

    def _say(
        self,
        arm: Arm,
        step_s: float | None = None,
        wait: float | None = None,
        *,
        died: bool = False,
    ) -> None:
        event = LoaderWorkers(self._since_t, *arm, step_s=step_s, wait=wait, died=died)
        if died or self._environment.rank == 0:
            self._environment.record(event)

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            event = LoaderWorkers(time.monotonic(), 0, stays=False, problem=problem)
            self._environment.record(event)
