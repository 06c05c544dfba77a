"""Changes batch size and learning rate: decided on rank 0, done on all ranks in the same step."""

from __future__ import annotations

import math
import time
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Adapted
from zeusrun.worker.adapt.policies import PolicyRunner, TrainingObservation, clip_restored
from zeusrun.worker.adapt.state import AdaptationState, restore_state, write_state
from zeusrun.worker.environment import from_all_ranks, is_grouped
from zeusrun.worker.stats.noise import GAUSSIAN99

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.worker.adapt.policies import BatchSizeProposal, Plan
    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.stats.noise import NoiseScale


class Control:
    """Changes the batch size of a training.

    Args:
        environment: This rank.
        plan: The section of the job file.
        noise: Returns the averages of the noise scale; ``None`` if it is not measured.

    Attributes:
        batch_size: The present one, over all ranks; 0 before the first epoch.
        rates: Changes the learning rate with the batch size.
    """

    def __init__(
        self, environment: WorkerEnvironment, plan: Plan, noise: Callable[[], NoiseScale | None]
    ) -> None:
        self._environment, self._noise = environment, noise
        self.plan = replace(plan, limits=replace(plan.limits, ranks=environment.world_size))
        self.batch_size = 0
        self.rates = Rates()
        self._state = AdaptationState()
        self._first = 0  # batch size
        self._largest_full: float = math.inf  # the largest batch size that the data fill
        self._epoch = 0
        self._postponed = False  # whether a decision waits for the next epoch
        self._loader: object = None  # the one that yields the batches of this epoch now
        self._set_epoch: int | None = None  # this epoch, if the script has set it
        self._stepped = False  # whether this epoch has taken a step
        self._has_trained = False  # whether any has, since this start
        self._policy: PolicyRunner  # set by ``prepare``
        self._warnings: set[str] = set()

    def prepare(self, batch_size: int) -> None:
        """Set the first batch size, over all ranks, and import the user's own classes.

        Raises:
            RuntimeError: If a class cannot be created. No rank has trained by then.
        """
        if self._first:
            return
        self._first = self.batch_size = batch_size
        self._policy = PolicyRunner(self.plan.policies, self._warn)

    def is_training(self, loader: object, epoch: int | None) -> bool:
        """Whether a loader that begins to yield batches yields those of an epoch's training.

        It does not if this epoch has taken steps, or if another loader yields its batches.
        """
        other_is_active = self._loader is not None and self._loader is not loader
        is_trained = epoch is not None and epoch == self._epoch and self._stepped
        return not (other_is_active or is_trained)

    def begin_epoch(
        self, loader: object, epoch: int | None, samples: int, *, drop_last: bool
    ) -> int:
        """Decide at the beginning of an epoch, and return its number, from 1.

        Args:
            loader: Yields its batches.
            epoch: Its number, if the script has set it.
            samples: In the epoch.
            drop_last: Whether a batch that is not full is left out.

        Raises:
            ValueError: If the ranks disagree at the first epoch.
        """
        self._loader, self._stepped = loader, False
        if epoch is not None and epoch == self._set_epoch:  # begun again, before its first step
            return epoch
        ranks = self._environment.world_size
        self._largest_full = max(samples // ranks * ranks, self._first) if drop_last else math.inf
        is_first = not self._has_trained  # a look at one batch, next(iter(loader)), comes before
        is_new = self._epoch == 0
        if is_first and self._can_communicate:
            self._restore(epoch, samples)
        self._set_epoch = epoch
        self._epoch = epoch or self._epoch + 1
        if is_new:
            self.call_policy("before_train")
        self.call_policy("before_epoch")
        plan = self.plan
        is_due = (
            (plan.unit == "epoch" and (self._epoch - 1) % plan.interval == 0)
            or self._postponed
            or plan.policies[0] == "schedule"  # the schedule names its epochs
        )
        self._postponed = False
        if is_due or is_first:
            self._decide(is_first=is_first, is_due=is_due)
        return self._epoch

    def after_step(self, samples: int, *, last: bool) -> bool:
        """Count a step with its samples; return whether the batch size changes now.

        ``last``: the epoch ends with this step, so a decision waits for the next epoch.
        """
        state = self._state
        self._stepped = self._has_trained = True
        state.step += 1
        state.samples += samples
        self.call_policy("after_step")
        is_due = self.plan.unit == "step" and state.step % self.plan.interval == 0
        self._postponed = is_due and last
        return is_due and not last and self._decide(is_first=False, is_due=True)

    def end_pass(self, loader: object) -> None:
        """End a pass of a loader: it yields no more batches, or the script has left the loop."""
        if self._loader is loader:
            self._loader = None

    def end(self) -> None:
        """End the training."""
        if self._epoch:
            self.call_policy("after_train")

    def observe(self) -> TrainingObservation:
        """Return what a policy decides from; on rank 0 only."""
        state, noise = self._state, self._noise()
        return TrainingObservation(
            batch_size=self.batch_size,
            first_batch_size=self._first,
            epoch=self._epoch,
            step=state.step,
            samples=state.samples,
            noise=None if noise is None else noise.estimate(GAUSSIAN99),
            least_noise=state.least_noise,
        )

    def call_policy(self, method: str) -> None:
        """Call a method of the user's own classes, on rank 0."""
        if self._environment.rank == 0:
            self._policy.call(method, self.observe)

    @property
    def _can_communicate(self) -> bool:
        """Whether rank 0 can send a decision to the other ranks."""
        return self._environment.world_size == 1 or is_grouped()

    def _decide(self, *, is_first: bool, is_due: bool) -> bool:
        """Decide on rank 0 and apply it on all ranks; return whether the batch size changes.

        Without ``is_due``, the policy is not asked, but the ranks still agree on the batch size.
        """
        if not self._can_communicate:
            self._warn(
                "the batch size cannot change, because the ranks are in no process group "
                "(torch.distributed); let the script call init_process_group before it trains"
            )
            return False
        before, reason = self.batch_size, ""
        size, factor = before, self.rates.factor
        if self._environment.rank == 0:
            try:
                self.rates.read()
                proposal = self._ask_policy() if is_due else None
                if proposal is not None:
                    size, reason = int(proposal.batch_size), proposal.reason
                size = self._limit(size)
                factor = find_factor(self.plan.learning_rate, size / self._first)
            except Exception as error:  # noqa: BLE001 - the other ranks wait for a decision
                size, factor = before, self.rates.factor
                text = f"{type(error).__name__}: {error}"
                self._warn(f"the batch size stays, because the policy failed ({text}); report it")
        self.batch_size, self.rates.factor = from_all_ranks((size, factor))[0]
        is_changed = self.batch_size != before
        if self._environment.rank == 0:
            if is_first and not is_changed:
                is_new = self.batch_size == self._first
                reason = "the run begins with it" if is_new else "the restart continues with it"
            self._save()
            if is_first or is_changed:
                self._record(reason)
        return is_changed

    def _ask_policy(self) -> BatchSizeProposal | None:
        """Return what the policy proposes within the limits; ``None`` to keep the batch size."""
        observation, state = self.observe(), self._state
        noise, least = observation.noise, state.least_noise
        if noise is not None and noise.high and (least is None or noise.high < least[1]):
            state.least_noise = (noise.low, noise.high)
            observation = replace(observation, least_noise=state.least_noise)
        return self._policy.propose(observation, self.plan.limits)

    def _limit(self, size: int) -> int:
        """Return the batch size, or the largest that fits in memory and that the data fill."""
        fitting = min(self.plan.limits.maximum, self._state.fitting or math.inf)
        size = int(min(size, max(fitting, self._first)))
        if size <= self._largest_full:
            return size
        self._warn(
            f"the batch size stays below {size}, because the data are fewer than that, and "
            "drop_last leaves out a batch that is not full"
        )
        return int(self._largest_full)

    def _restore(self, epoch: int | None, samples: int) -> None:
        """Continue with the state that an earlier start of this run had at this epoch."""
        state = restore_state(
            self._environment, self._first, epoch=epoch, samples=samples, warn=self._warn
        )
        self._state, self._epoch, self.batch_size = state or AdaptationState(), 0, self._first
        self.rates.factor = 1.0
        if state is not None and state.changes:
            self.rates.factor = state.factor
            last_epoch, size = state.changes[-1]
            self.batch_size = clip_restored(size, self._first, self.plan.limits)
            self._epoch = 0 if epoch is not None else last_epoch - 1

    def _save(self) -> None:
        state = self._state
        if not state.changes or state.changes[-1][1] != self.batch_size:
            state.changes.append((self._epoch, self.batch_size))
        state.factor = self.rates.factor
        write_state(self._environment.adaptation_state, state, self._first)

    def _warn(self, problem: str) -> None:
        """Record a sentence for the user, once."""
        if problem not in self._warnings:
            self._warnings.add(problem)
            self._record("", problem)

    def _record(self, reason: str, problem: str | None = None) -> None:
        step, epoch, rate = self._state.step, max(1, self._epoch), self.rates.learning_rate
        event = Adapted(
            time.monotonic(), step, epoch, self.batch_size, rate, why=reason, problem=problem
        )
        self._environment.record_on_0(event)


def find_factor(rule: str, ratio: float) -> float:
    """Return the factor of the learning rate: ``none``, ``linear`` or ``sqrt`` in the batch size.

    ``ratio``: the batch size divided by the first one.
    """
    return {"linear": ratio, "sqrt": math.sqrt(ratio)}.get(rule, 1.0)


class Rates:
    """Changes the learning rate of every optimizer while the batch size differs from the first one.

    The change lasts for one optimizer step at a time. So the script's scheduler and its checkpoints
    contain the unchanged values.

    Attributes:
        factor: Of the learning rate.
        scheduled: The learning rate that the script has set for the first parameter group; ``None``
            before the first step.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self.scheduled: float | None = None
        self._first: Callable[[], Any] = lambda: None  # weak reference to the first optimizer
        self._changes: list[tuple[Any, Any, Any]] = []  # group, old and new rate

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of the first parameter group in a step."""
        return None if self.scheduled is None else self.scheduled * self.factor

    def before(self, optimizer: Any) -> None:
        """Change the rates of an optimizer that is about to step."""
        if self._first() is None:
            self._first = weakref.ref(optimizer)
        if self._first() is optimizer:
            self.read()
        for group in optimizer.param_groups:
            if self.factor != 1 and "lr" in group:
                old, group["lr"] = group["lr"], group["lr"] * self.factor
                self._changes.append((group, old, group["lr"]))

    def read(self) -> None:
        """Read the learning rate: a scheduler may have changed it since the last step."""
        groups = getattr(self._first(), "param_groups", None)
        rate = groups[0].get("lr") if groups else None
        if rate is not None:
            self.scheduled = float(rate)

    def after(self) -> None:
        """Restore the rates, unless the step itself has changed them."""
        for group, old, new in self._changes:
            if group.get("lr") is new:
                group["lr"] = old
        self._changes = []
