"""The section ``loader`` inside a rank: gives the loader of the training other numbers of workers.

It does so between two passes. The first rank of a host decides, and the others follow. The order of
the samples stays that of the script.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from zeusrun.files.private import read_file, replace_file
from zeusrun.loader.rank.limits import count_cores, count_that_fit
from zeusrun.loader.rank.rescue import Rescue
from zeusrun.loader.rank.safe import BY_A_THREAD, State, is_shuffled, why_left_alone
from zeusrun.loader.rank.tuner import Arm, Measured, Measurement, Tuner
from zeusrun.sidecar.events import LoaderWorkers
from zeusrun.worker.agent import RankAgent
from zeusrun.worker.hooks.imports import replaces

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks
    from zeusrun.worker.passes import Pass

_LONG = 50  # batches of a pass
_WARM = 3  # steps of a longer pass that are no part of a measurement


def join(hooks: Hooks, given: Mapping[str, Any]) -> LoaderAgent:
    """Return the agent that sets the number of workers of the training's loader."""
    return LoaderAgent(hooks, given)


class LoaderAgent(RankAgent):
    """Sets the number of workers of the loader that feeds the optimizer steps."""

    modules: ClassVar[frozenset[str]] = frozenset({"torch.utils.data.dataloader"})

    def __init__(self, hooks: Hooks, given: Mapping[str, Any]) -> None:
        self._observer, self._environment, self._given = hooks.observer, hooks.environment, given
        self._launched_pid = os.getpid() if hooks.launched else None
        self._leads, self._ranks = True, 1
        folder = Path(self._environment.plan.run_dir or "")
        self._path, self._stop = folder / "loader.json", folder / "loader.stop"
        self._tuner: Tuner | None = None  # ``None`` before the first pass
        self._own: Arm | None = None  # for which the tuner was made
        self._limits: str | None = None  # of its search
        self._found: dict[Arm, Measured] = {}
        self._arm: Arm | None = None  # of the next pass; in the present one:
        self._present: Arm | None = None
        self._states: weakref.WeakKeyDictionary[Any, State] = weakref.WeakKeyDictionary()
        self._rescue = Rescue(self._give_up)
        self._has_given_up = False
        self._told: set[str] = set()
        self._since_t = self._begun_t = 0.0  # of the present arm, and of its pass
        self._pass: Pass | None = None  # ``None`` once it is decided what follows
        self._state: State | None = None
        self._begins: State | None = None  # that of the loader whose pass begins just now
        self._fit = 0  # workers that memory allows
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
                    iterator = iterate(loader)
                except Exception as error:  # no memory for another process, or no copy of the data
                    if state.present == state.own:
                        raise
                    state.draw_again()
                    self._give_up(loader, f"{loader.num_workers} workers could not start: {error}")
                    iterator = iterate(loader)
            state.follow(iterator)
            return iterator

    def _try_to_begin(self, loader: Any) -> State | None:
        """Begin a pass over the loader of the training; ``None`` if nothing of it is changed."""
        self._begins = None
        try:
            if self._find_place() is not None:
                self._begins = self._begin(loader)
        except Exception as error:  # noqa: BLE001 - whatever the script has made of its loader
            self._tell(f"the number of workers cannot be set: {type(error).__name__}: {error}")
        return self._begins

    def _is_training(self, loader: Any) -> bool:
        """Whether a loader feeds the steps; as long as that is unknown, whether it may do so.

        A script may build one for each pass.
        """
        feed = self._observer.training
        known = None if feed is None else feed.loader()
        return is_shuffled(loader) if known is None else known is loader

    def _find_place(self) -> tuple[int, int] | None:
        """Return the number of this rank on its machine, and how many there are.

        ``None``: the script has started this process, and not as one of a group.
        """
        if torch.utils.data.get_worker_info() is not None:
            return None
        if self._environment.is_grown:
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        rank, ranks = (os.environ.get(f"LOCAL_{name}") for name in ("RANK", "WORLD_SIZE"))
        return (int(rank or 0), int(ranks or 1)) if os.getpid() == self._launched_pid else None

    def _begin(self, loader: Any) -> State | None:
        """Decide on the arm of the pass that is about to begin."""
        state = self._states.get(loader)
        if state is not None:
            state.is_within = not state.is_free()
            if state.is_within:
                self._tell("a pass within another pass has the script's own number of workers")
                return state
        if self._has_given_up or not self._is_training(loader):
            if state is not None:
                state.apply(state.own)
            return None
        if state is None:
            why = why_left_alone(loader, self._given)
            if why is not None:
                self._tell(f"the number of workers stays as it is: {why}")
                return None
            state = self._states[loader] = State(loader)
        if self._state is not None and self._state is not state and self._state.is_free():
            self._state.apply(self._state.own)
        self._state = state
        self._choose(state)
        return state

    def _choose(self, state: State) -> None:
        """Choose the arm of the pass that is about to begin, and set it."""
        if self._stop.exists():  # a worker has died, here or in another rank
            self._has_given_up, self._arm = True, state.own
        elif self._tuner is None or self._own != state.own:
            self._tuner = self._open(state.own)
            self._arm, self._pass = self._tuner.arm, None
            self._measurement = Measurement(self._arm.workers)
        elif self._leads:
            self._decide()
        else:
            self._follow()
        arm = self._arm or state.own
        self._begun_t, self._fit = time.monotonic(), arm.workers
        self._change(arm, self._begun_t)
        state.apply(arm)
        self._rescue.watch(state)

    def _open(self, own: Arm) -> Tuner:
        rank, self._ranks = self._find_place() or (0, 1)
        self._leads = rank == 0
        if self._leads:
            self._path.unlink(missing_ok=True)
        self._own = own
        given, start = self._given, self._given["start"]
        died = min((number for number in given["never"] if number > own.workers), default=math.inf)
        if given["workers"] != "tune":
            number = int(min(given["workers"], died - 1))
            if number < given["workers"]:
                self._tell(f"of {died} workers one died in an earlier run, so there are {number}")
            return Tuner(own._replace(workers=number), 0, known=1.0)
        most = given["max_workers"] or max(1, count_cores() // self._ranks)
        highest = given["max_workers"] or max(most, own.workers)
        self._limits = f"{own.workers} of {most}"
        most = int(min(most, died - 1))
        if start is None or start[0] > highest:
            return Tuner(own._replace(workers=min(max(1, own.workers), highest)), most)
        workers, stays, wait, settled = start
        measured = {
            Arm(workers, stays or own.stays): Measured(step_s, 0.0, wait, 0.0)
            for workers, stays, step_s, wait in given["measured"]
            if workers <= highest
        }
        known = wait if settled == self._limits else None
        return Tuner(Arm(workers, stays or own.stays), most, known, measured)

    def begin_pass(self, part: Pass, loader: Any) -> None:
        """Measure a pass over a loader whose workers are set."""
        del loader
        if self._begins is not None and not self._begins.is_within:
            self._begins, self._pass, self._step_t = None, part, 0.0

    def count_step(self, optimizer: Any) -> None:
        """Measure a step of the pass."""
        del optimizer
        part, now_t = self._pass, time.monotonic()
        if part is None or self._observer.current is not part or not self._leads:
            return
        others, length = self._observer.others, self._count_steps(part)
        is_long = (part.feed.length or 0) > _LONG  # so it has more than one step
        if part.steps == (_WARM if is_long else 1) and self._searches:  # it takes 10 to 20 ms
            self._fit = count_that_fit(self._state.workers if self._state else (), self._ranks)
        if not self._step_t:
            self._first_s = now_t - self._begun_t
        elif others == self._others and part.steps > (_WARM if length > 4 * _WARM else 1):
            self._measurement.add_interval(now_t - self._step_t)
        self._step_t, self._others = now_t, others
        if self._ranks > 1 and part.steps + 1 == length:
            self._decide()  # before the others can end the pass
        if part.feed.length and part.steps > part.feed.length + 1:
            self._tell("its iterator never ends, so it can have no other number of workers")

    @property
    def _searches(self) -> bool:
        return self._tuner is not None and not self._tuner.is_settled

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
        if math.isinf(part.all_waited_s):
            self._tell(f"the number of workers stays as it is: {BY_A_THREAD}")
        if tuner.arm.stays and self._is_first:  # in it, those that stay from now on have started
            self._measurement, result = Measurement(tuner.arm.workers), None
        self._is_first = result is not None
        if result is not None and self._state is not None:
            arm, self._found[tuner.arm] = tuner.arm, result
            self._arm = tuner.take(result, self._fit, may_stay=self._state.is_still)
            self._say(arm)
            self._measurement = Measurement(self._arm.workers)
        if self._ranks > 1:
            with contextlib.suppress(OSError):  # a full disk: the others go on as they are
                replace_file(self._path, json.dumps(self._arm).encode(), durable=False)

    def _follow(self) -> None:
        """Take the arm on which the first rank of this host has decided, mostly a step earlier."""
        with contextlib.suppress(OSError, ValueError):
            self._arm = Arm(*json.loads(read_file(self._path, 1000)))

    def conclude(self) -> None:
        """Measure the last pass."""
        if self._leads and not self._has_given_up and self._tuner is not None:
            self._decide()
            if self._tuner.is_settled:
                self._change(self._tuner.arm, time.monotonic())

    def _change(self, arm: Arm, now_t: float) -> None:
        """Record the arm from now on, if it is another one."""
        if arm != self._present:
            self._present, self._since_t = arm, now_t
            self._say(arm)

    def _give_up(self, loader: Any, why: str) -> None:
        """Return to the script's own number for the rest of the run."""
        state = self._states[loader]
        self._has_given_up, self._arm = True, state.own
        self._say(self._present or state.own, died=True)
        state.apply(state.own)
        self._tell(f"{why}; the script's own number is used for the rest of the run")
        self._change(state.own, time.monotonic())
        with contextlib.suppress(OSError):
            self._stop.touch()

    def _say(self, arm: Arm, *, died: bool = False) -> None:
        step_s, _, wait, _ = self._found.get(arm, (None,) * 4)
        ends = self._tuner is not None and self._tuner.is_settled and arm == self._tuner.arm
        settled = self._limits if ends else None
        event = LoaderWorkers(self._since_t, *arm, step_s, wait, died, settled)
        if died or self._environment.rank == 0:
            self._environment.record(event)

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            event = LoaderWorkers(time.monotonic(), 0, stays=False, problem=problem)
            self._environment.record(event)
