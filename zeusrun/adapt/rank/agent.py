"""The section ``adapt`` inside a rank: sets the batch size of ``run.loader`` and learning rates.

Rank 0 decides, and all ranks change both in the same step.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from zeusrun.adapt.rank.policies import Limits, PolicyRunner, TrainingObservation, clip_restored
from zeusrun.adapt.rank.state import AdaptationState, restore_state, state_path, write_state
from zeusrun.gradients.rank.noise import GAUSSIAN99
from zeusrun.sidecar.events import Adapted
from zeusrun.worker.agent import LoaderControl, RankAgent, Rates, find_factor
from zeusrun.worker.environment import from_all_ranks, is_grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.adapt.rank.policies import BatchSizeProposal
    from zeusrun.gradients.rank.agent import WatchedModels
    from zeusrun.gradients.rank.noise import NoiseScale
    from zeusrun.worker.batches import Batches, MicroBatch
    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.hooks.install import Hooks


def join(hooks: Hooks, given: Mapping[str, Any]) -> AdaptAgent:
    """Return the agent that changes the batch size by the policy of the section."""
    watch = cast("WatchedModels | None", hooks.parts.get("watch"))

    def noise() -> NoiseScale | None:
        return None if watch is None else watch.noise

    return AdaptAgent(Control(hooks.environment, given, noise))


class AdaptAgent(RankAgent):
    """Changes the batch size, and with it the learning rate, while a training runs."""

    def __init__(self, control: Control) -> None:
        self.loader_control = self._control = control
        self.rates = control.rates

    def conclude(self) -> None:
        """See ``RankAgent.conclude``."""
        self._control.end()


class Control(LoaderControl):
    """Changes the batch size of a training.

    Args:
        environment: This rank.
        given: What the section of the job file gives to its rank side.
        noise: Returns the averages of the noise scale; ``None`` if it is not measured.

    Attributes:
        batch_size: The present one, over all ranks; 0 before the first epoch.
        rates: Changes the learning rate with the batch size.
    """

    def __init__(
        self,
        environment: WorkerEnvironment,
        given: Mapping[str, Any],
        noise: Callable[[], NoiseScale | None],
    ) -> None:
        self._environment, self._given, self._noise = environment, given, noise
        self._limits = Limits.read(given, environment.world_size)
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
        """See ``LoaderControl.prepare``. No rank has trained before this call."""
        if self._first:
            return
        self._first = self.batch_size = batch_size
        self._policy = PolicyRunner(self._given["policies"], self._warn)

    def is_training(self, loader: object, epoch: int | None) -> bool:
        """See ``LoaderControl.is_training``.

        ``False`` if this epoch has taken steps, or if another loader yields the training batches.
        """
        from torch import is_grad_enabled  # noqa: PLC0415 - the script has imported it

        other_is_active = self._loader is not None and self._loader is not loader
        is_trained = epoch is not None and epoch == self._epoch and self._stepped
        return is_grad_enabled() and not (other_is_active or is_trained)

    def begin_epoch(
        self, loader: object, epoch: int | None, samples: int, *, drop_last: bool
    ) -> int:
        """See ``LoaderControl.begin_epoch``. Decides on the batch size.

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
            self._call_policy("before_train")
        self._call_policy("before_epoch")
        given = self._given
        is_due = (
            (given["unit"] == "epoch" and (self._epoch - 1) % given["interval"] == 0)
            or self._postponed
            or given["policies"][0] == "schedule"  # the schedule names its epochs
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
        self._call_policy("after_step")
        is_due = self._given["unit"] == "step" and state.step % self._given["interval"] == 0
        self._postponed = is_due and last
        return is_due and not last and self._decide(is_first=False, is_due=True)

    def before_step(self) -> None:
        """See ``LoaderControl.before_step``."""
        self._call_policy("before_step")

    def after_batch(self, micro: MicroBatch, batches: Batches) -> bool:
        """See ``LoaderControl.after_batch``."""
        super().after_batch(micro, batches)
        return micro.is_last and self.after_step(micro.step_samples, last=batches.is_over)

    def after_epoch(self) -> None:
        """See ``LoaderControl.after_epoch``."""
        self._call_policy("after_epoch")

    def sizes(self, first: int, limit: int | None) -> tuple[int, int | None]:
        """See ``LoaderControl.sizes``."""
        if self.batch_size != first or limit is None:
            limit = self._limits.per_device_max
        return self.batch_size, limit

    def end_pass(self, loader: object) -> None:
        """See ``LoaderControl.end_pass``."""
        if self._loader is loader:
            self._loader = None

    def end(self) -> None:
        """End the training."""
        if self._epoch:
            self._call_policy("after_train")

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

    def _call_policy(self, method: str) -> None:
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
                factor = find_factor(self._given["learning_rate"], size / self._first)
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
        return self._policy.propose(observation, self._limits)

    def _limit(self, size: int) -> int:
        """Return the batch size, or the largest that fits in memory and that the data fill."""
        fitting = min(self._limits.maximum, self._state.fitting or math.inf)
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
            self.batch_size = clip_restored(size, self._first, self._limits)
            self._epoch = 0 if epoch is not None else last_epoch - 1

    def _save(self) -> None:
        state = self._state
        if not state.changes or state.changes[-1][1] != self.batch_size:
            state.changes.append((self._epoch, self.batch_size))
        state.factor = self.rates.factor
        write_state(state_path(self._environment), state, self._first)

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
