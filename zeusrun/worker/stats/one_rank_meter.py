"""What both ways to measure gradients on one rank share: hooks, intervals, and giving up."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from zeusrun.worker.stats.numbers import DeferredNumbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from zeusrun.worker.stats.noise import Norms


class OneRankMeter(ABC):
    """Measures one model in some of its optimizer steps.

    A subclass registers hooks in ``_handles``, begins the first step, and has the three abstract
    methods. ``_end_step`` adds numbers to ``_deferred``, and ``_receive_numbers`` is called with
    them some steps later.

    Args:
        interval: Measure every so many optimizer steps.
        samples: Returns the samples since the last optimizer step; 0 if unknown.
        parts: The number of micro-batches in a step, if ``samples`` does not grow with each.
        scale: Returns by what the loss is multiplied.
        receive: Called with the norms of a step, and how they were measured.
        fail: Called once, with the reason, if this way cannot measure the model.
    """

    follows_copies = False  # steps of an optimizer that has copies of the parameters

    def __init__(
        self,
        *,
        interval: int,
        samples: Callable[[], int],
        parts: int,
        scale: Callable[[], float | Tensor],
        receive: Callable[[Norms, str], None],
        fail: Callable[[str], None],
    ) -> None:
        self._interval, self._samples, self._parts = interval, samples, parts
        self._scale, self._receive, self._fail = scale, receive, fail
        self._deferred = DeferredNumbers(self._receive_numbers)
        self._handles: list[Any] = []
        self._steps = 0
        self._is_on = False  # whether the present step is measured
        self._problem: str | None = None

    def close(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._is_on = [], False

    def after_step(self) -> None:
        """End an optimizer step."""
        if not self._handles:
            return
        if self._is_on:
            try:
                self._end_step()
            except Exception as error:  # noqa: BLE001 - the training goes on
                self._give_up(error)
        self._steps += 1
        self._begin_step()
        if self._problem is not None:  # only here, because a hook must not remove hooks
            self.close()
            self._fail(self._problem)

    def flush(self) -> None:
        """Receive all that is measured."""
        self._deferred.flush()

    @abstractmethod
    def _begin_step(self) -> None:
        """Decide whether to measure the next step, and set everything of a step to its start."""

    @abstractmethod
    def _end_step(self) -> None:
        """Compute the numbers of a step that is measured."""

    @abstractmethod
    def _receive_numbers(self, *numbers: Any) -> None:
        """Receive the numbers of a step, and what was added with them."""

    def _give_up(self, error: Exception) -> None:
        text = f"measuring ended with an error ({type(error).__name__}: {error})"
        self._problem = self._problem or text
        self._is_on = False


def hook(method: Callable[..., None]) -> Callable[..., None]:
    """Return a method of a meter as a hook: it runs in measured steps only, and never raises."""

    @functools.wraps(method)
    def guarded(meter: OneRankMeter, *arguments: Any) -> None:
        if meter._is_on:
            try:
                method(meter, *arguments)
            except Exception as error:  # noqa: BLE001 - the training goes on
                meter._give_up(error)

    return guarded
