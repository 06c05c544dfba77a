"""Decides when the batch size changes: on rank 0, and on all ranks in the same step."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.sidecar.events import ADAPT_STATE, Adapted
from zeusrun.worker.adapt.own import OwnPolicies
from zeusrun.worker.adapt.plan import State, read_state, write_state
from zeusrun.worker.adapt.policies import MEASURING, POLICIES, Seen, Wish, admit, bound, decide
from zeusrun.worker.adapt.rates import Rates, find_factor
from zeusrun.worker.collectives import from_all_ranks, from_rank_0, is_grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.worker.adapt.plan import Plan, Run
    from zeusrun.worker.stats.noise import NoiseScale

_BLIND = 5  # decisions in a row without a noise scale that are worth a warning
_STEP_TIMES = 32  # of a batch size, to take the median of


class Control:
    """Changes the batch size of a training.

    Args:
        run: This rank's run.
        plan: The section of the job file.
        noise: Returns the averages of the noise scale; ``None`` if it is not measured.

    Attributes:
        batch_size: The present one, over all ranks; 0 before the first epoch.
        rates: What changes the learning rate with it.
    """

    def __init__(self, run: Run, plan: Plan, noise: Callable[[], NoiseScale | None]) -> None:
        self.run, self._noise = run, noise
        self.plan = replace(plan, limits=replace(plan.limits, ranks=run.world_size))
        self.batch_size = 0
        self.rates = Rates()
        self._state = State()
        self._first = 0  # batch size
        self._most: float = math.inf  # batch size that the data make
        self._epoch = 0
        self._noises: list[float] = []  # the noise scale of the steps of this epoch that know it
        self._steps = 0  # of this epoch
        self._times: dict[int, deque[float]] = {}
        self._ended_t: float | None = None  # the last step; ``None`` after a pause
        self._waits = False  # whether a decision waits for the next epoch
        self._leader: object = None  # the loader whose pass goes on
        self._stepped = False  # whether this epoch has taken a step
        self._own: OwnPolicies | None = None
        self._problems: set[str] = set()
        self._blind = 0  # decisions in a row without a noise scale

    def prepare(self, batch_size: int) -> None:
        """Take in the first batch size, over all ranks, and import the user's own classes.

        Raises:
            RuntimeError: If one of them cannot be made. No rank has trained by then.
        """
        if self._first:
            return
        self._first = self.batch_size = batch_size
        if not set(self.plan.policies) <= POLICIES.keys():
            self._own = OwnPolicies(self.plan.policies, self._say_problem)

    def leads(self, loader: object, epoch: int | None) -> bool:
        """Whether a pass of a loader that begins is the training of an epoch.

        It is not if the training of this epoch has taken steps, or goes on with another loader.
        """
        goes_on = self._leader is not None and self._leader is not loader
        trained = epoch is not None and epoch == self._epoch and self._stepped
        return not (goes_on or trained)

    def begin_epoch(
        self, loader: object, epoch: int | None, samples: int, *, drop_last: bool
    ) -> int:
        """Decide for an epoch that begins, and return its number, from 1.

        Args:
            loader: What yields its batches.
            epoch: Its number, if the script has told it.
            samples: In the epoch.
            drop_last: Whether a batch that is not full is left out.

        Raises:
            ValueError: If the ranks disagree at the first epoch.
        """
        self._leader, self._stepped = loader, False
        if epoch is not None and epoch == self._epoch:  # begun again, before its first step
            return epoch
        ranks = self.run.world_size
        self._most = max(samples // ranks * ranks, self._first) if drop_last else math.inf
        began = self._epoch > 0
        if not began:
            self._restore(epoch, samples)
        self._epoch = epoch or self._epoch + 1
        self._ended_t, self._noises, self._steps = None, [], 0
        if self._own is not None and self.run.rank == 0:
            if not began:
                self._own.call("before_train", self.seen())
            self._own.call("before_epoch", self.seen())
        plan = self.plan
        due = plan.unit == "epoch" and (self._epoch - 1) % plan.interval == 0
        due = due or self._waits or plan.policies[0] == "schedule"  # which names its epochs
        self._waits = False
        self._decide(first=not began, due=due)
        return self._epoch

    def before_step(self) -> None:
        """Have the user's own classes look at a step that begins."""
        if self._own is not None and self.run.rank == 0:
            self._own.call("before_step", self.seen())

    def after_step(self, samples: int, *, last: bool) -> bool:
        """Take in a step of so many samples; return whether the batch size changes now.

        ``last``: the epoch ends with it, so the decision waits for the next one.
        """
        state, now_t = self._state, time.monotonic()
        self._stepped = True
        state.step += 1
        state.samples += samples
        if self._ended_t is not None and samples == self.batch_size:
            times = self._times.setdefault(self.batch_size, deque(maxlen=_STEP_TIMES))
            times.append(now_t - self._ended_t)
        self._ended_t = now_t
        if self.run.rank == 0:
            noise = self._noise()
            value = None if noise is None else noise.value
            self._noises += [] if value is None else [value]
            self._steps += 1
            if self._own is not None:
                self._own.call("after_step", self.seen())
        due = self.plan.unit == "step" and state.step % self.plan.interval == 0
        self._waits = due and last
        return due and not last and self._decide(first=False, due=True)

    def leave(self, loader: object) -> None:
        """Take in that a pass of a loader is over, or given up."""
        if self._leader is loader:
            self._leader = None

    def end_epoch(self) -> None:
        """Take in the end of an epoch."""
        if self._noises:  # the other steps have the mean of those that know it
            whole = statistics.fmean(self._noises) * self._steps
            self._state.epoch_sums = [*self._state.epoch_sums[-1:], whole]
        if self._own is not None and self.run.rank == 0:
            self._own.call("after_epoch", self.seen())

    def end(self) -> None:
        """Take in the end of the training."""
        if self._own is not None and self.run.rank == 0 and self._epoch:
            self._own.call("after_train", self.seen())

    def seen(self) -> Seen:
        """Return what a decision is made from; on rank 0 only."""
        state, noise = self._state, self._noise()
        value = None if noise is None else noise.value
        rates = self.rates
        return Seen(
            batch_size=self.batch_size,
            first_batch_size=self._first,
            epoch=self._epoch,
            step=state.step,
            samples=state.samples,
            noise_scale=value,
            first_noise_scale=state.first_noise_scale,
            epoch_sums=tuple(state.epoch_sums),
            step_s={size: statistics.median(times) for size, times in self._times.items()},
            trace=None if noise is None else noise.trace.value,
            squared_gradient=None if noise is None else noise.squared_gradient.value,
            rate=None if rates.scheduled is None else (rates.scheduled, rates.highest),
        )

    @property
    def _agrees(self) -> bool:
        """Whether the ranks can tell each other what is decided."""
        return self.run.world_size == 1 or is_grouped()

    def _decide(self, *, first: bool, due: bool) -> bool:
        """Decide on rank 0 and apply it on all ranks; return whether the batch size changes."""
        if not (first or due):
            return False
        if not self._agrees:
            self._say_problem(
                "the batch size cannot change, because the ranks are in no process group "
                "(torch.distributed); let the script call init_process_group before it trains"
            )
            return False
        before, wish = self.batch_size, None
        decision: tuple[int, float] = before, self.rates.factor
        if self.run.rank == 0:
            try:
                self.rates.read()
                wish = self._choose() if due else None
                size = before if wish is None else int(wish.batch_size)
                decision = self._complete(self._limit(size))
            except Exception as error:  # noqa: BLE001 - the other ranks wait for a decision
                text = f"{type(error).__name__}: {error}"
                self._say_problem(f"the batch size stays, as the policy failed ({text}); report it")
        self.batch_size, self.rates.factor = from_rank_0(decision)
        changed = self.batch_size != before
        if self.plan.betas == "tokens":
            self.rates.power = self.batch_size / self._first
        if changed:
            self._ended_t = None
        if self.run.rank == 0:
            self._record(first=first, changed=changed, why="" if wish is None else wish.why)
        return changed

    def _choose(self) -> Wish | None:
        """Return what the policy decides; ``None`` to keep the batch size."""
        seen, limits = self.seen(), self.plan.limits
        if self._state.first_noise_scale is None:
            self._state.first_noise_scale = seen.noise_scale
        name = self.plan.policies[0]
        unknown = seen.trace is None if name == "norm-test" else seen.noise_scale is None
        unknown = unknown and name in MEASURING and seen.step > 0
        self._blind = self._blind + 1 if unknown else 0
        if self._blind == _BLIND:
            self._say_problem(
                f"policy {name} does not change the batch size as long as the noise scale is not "
                f"known, and after {_BLIND} decisions it is not (docs/training-watch.md says what it needs)"
            )
        if self._own is None:
            return decide(name, self.seen(), limits)
        wish = self._own.take_wish()
        if wish is None:
            return None
        return wish._replace(batch_size=bound(wish.batch_size, seen, limits, shrinks=True))

    def _limit(self, size: int) -> int:
        """Return a batch size that fits in memory, and that the data make."""
        fits = min(self.plan.limits.most, self._state.most or math.inf)
        size = int(min(size, max(fits, self._first)))
        if size <= self._most:
            return size
        self._say_problem(
            f"the batch size stays below {size}, because the data make no batch of it, and "
            "drop_last leaves out those that are not full"
        )
        return int(self._most)

    def _complete(self, size: int) -> tuple[int, float]:
        """Return a batch size and by what the learning rate is multiplied with it."""
        seen, rule, first = self.seen(), self.plan.learning_rate, self._first
        factor = find_factor(rule, size / first, first, seen.trace, seen.squared_gradient)
        return size, self.rates.factor if factor is None else factor

    def _record(self, *, first: bool, changed: bool, why: str) -> None:
        state = self._state
        if not state.changes or state.changes[-1][1] != self.batch_size:
            state.changes.append((self._epoch, self.batch_size))
        if first and not changed:
            why = "it begins with it" if self.batch_size == self._first else "it goes on with it"
        state.highest, state.factor = self.rates.highest, self.rates.factor
        write_state(self.run.adaptation_state, state, self._first)
        if first or changed:
            rate = self.rates.learning_rate
            self._say(
                Adapted(time.monotonic(), state.step, self._epoch, self.batch_size, rate, why)
            )

    def _restore(self, epoch: int | None, samples: int) -> None:
        """Go on with the state of an earlier start of this run, up to the epoch it resumes at.

        All ranks take rank 0's, as they count steps and epochs to the same decisions.
        """
        if not self._agrees:
            return
        state = self._read_state(epoch) if self.run.rank == 0 else None
        everyone = from_all_ranks((samples, epoch, state))
        _check_agreement("samples for run.loader", [samples for samples, _, _ in everyone])
        _check_agreement("for the first epoch", [epoch for _, epoch, _ in everyone])
        state = everyone[0][2]
        if state is not None:
            self._state = state
        if state is not None and state.changes:
            self.rates.highest, self.rates.factor = state.highest, state.factor
            last, size = state.changes[-1]
            self.batch_size = admit(size, self._first, self.plan.limits)
            self._epoch = 0 if epoch is not None else last - 1

    def _read_state(self, epoch: int | None) -> State | None:
        ran_out = self.run.ran_out_of_memory
        try:
            state = read_state(self.run.adaptation_state, self._first, epoch, ran_out=ran_out)
        except ValueError as error:
            self._say_problem(
                f"the batch size begins anew with {self._first}, because {ADAPT_STATE} in the run "
                f"directory is damaged ({error})"
            )
            return None
        if ran_out and state is not None and state.most is not None:
            self._say_problem(
                f"the batch size grows to {state.most} at most from here on, because the ranks ran "
                "out of memory with the next one"
            )
        return state

    def _say_problem(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.add(problem)
            step, rate = self._state.step, self.rates.learning_rate
            now_t, size = time.monotonic(), self.batch_size
            self._say(Adapted(now_t, step, max(1, self._epoch), size, rate, "", problem))

    def _say(self, event: Adapted) -> None:
        self.run.record_on_0(event)


def _check_agreement(what: str, values: Sequence[object]) -> None:
    """Raise ``ValueError`` on every rank if one has another value than rank 0."""
    other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
    if other is not None:
        raise ValueError(
            f"zeusrun: rank 0 has {values[0]} {what}, and rank {other} has {values[other]}: give "
            "every rank the same data, and load the checkpoint on every rank"
        )
