"""How many ranks a training wants, by KungFu's schedule or a class, and what follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from zeusrun.worker.agent import Rates, find_factor
from zeusrun.worker.user_class import create_policy, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.worker.environment import WorkerEnvironment


class RankSchedule:
    """The schedule of the number of ranks; ``text`` is that of ``elastic.steps``."""

    def __init__(self, text: str | None) -> None:
        entries = (entry.split(":") for entry in (text or "").split(",") if entry)
        self._entries = [(int(step), int(size)) for step, size in entries]
        self._taken: int | None = None  # the step of the entry that was returned last

    def take(self, step: int) -> int | None:
        """Return the number of ranks that is due after a step, once; else ``None``."""
        due = [(first, size) for first, size in self._entries if first <= step]
        if not due or due[-1][0] == self._taken:
            return None
        self._taken, size = due[-1]
        return size


class RanksObservation(NamedTuple):
    """What a policy of ranks decides from, after a step or at the beginning of an epoch.

    Attributes:
        ranks: The present number.
        step: Optimizer steps so far.
        epoch: The present one, from 1; 0 if it is not known.
        samples: Of all ranks so far; ``None`` if unknown.
        t: Monotonic seconds.
    """

    ranks: int
    step: int
    epoch: int
    samples: int | None
    t: float


class RanksPolicy:
    """A class of the user that wants a number of ranks: ``elastic.policy``.

    Args:
        name: Of the class, as module:Class; ``None`` for none.
        warn: Called with a sentence for the user.
    """

    def __init__(self, name: str | None, warn: Callable[[str], None]) -> None:
        self._name, self._warn = name, warn
        self._policy: Any = None
        self._wished: int | None = None

    def ask(self, seen: RanksObservation) -> int | None:
        """Return the number of ranks that the class newly wants; else ``None``.

        Raises ``RuntimeError`` if it cannot be created.
        """
        if self._name is None:
            return None
        if self._policy is None:  # only now: once the script runs, its folder is known
            self._policy = create_policy("elastic.policy", self._name, ["wanted_ranks"])
        problem, ranks = "", None
        try:
            ranks = self._policy.wanted_ranks(seen)
        except Exception as error:  # noqa: BLE001 - the user's class may do anything
            problem = f"raised {describe(error)}"
        if ranks is not None and (type(ranks) is not int or ranks < 0):
            problem = f"returned {describe(ranks)}, which is no number of ranks"
        if problem:
            self._warn(f"wanted_ranks of {self._name} {problem}; it is not called again")
            self._name = None
            return None
        if ranks in {None, self._wished}:
            return None
        self._wished = None if ranks is None else int(ranks)
        return self._wished


class Scale:
    """The batch size of a training, and its learning rate, where they follow the number of ranks.

    Args:
        given: The section ``elastic``, as far as ranks need it.
        environment: This rank; its world size changes.

    Attributes:
        rates: Changes the learning rate; ``None`` if the batch size stays.
        per_device_max: The most samples of a rank in a forward pass; ``None``: any number.
    """

    def __init__(self, given: Mapping[str, Any], environment: WorkerEnvironment) -> None:
        is_scaled = given.get("batch_size") == "scaled"
        self._environment, self._rule = environment, given.get("learning_rate", "none")
        self._ranks = given.get("ranks") or 1  # to which a batch size belongs
        self.per_device_max: int | None = given.get("per_device_max")
        self.rates = Rates() if is_scaled else None

    def apply(self, size: int) -> int:
        """Return a batch size for the present ranks."""
        if self.rates is None:
            return size
        return size * self._environment.world_size // self._ranks

    def follow(self) -> str | None:
        """Let the learning rate follow the present ranks; return why, unless it stays."""
        if self.rates is None:
            return None
        ranks = self._environment.world_size
        self.rates.factor = find_factor(self._rule, ranks / self._ranks)
        return f"there are {ranks} ranks" if ranks > 1 else "there is one rank"
