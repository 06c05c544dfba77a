"""The section ``elastic`` inside a rank: the ranks may change between passes or steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.elastic.rank import hook
from zeusrun.elastic.rank.epochs import Epochs
from zeusrun.elastic.rank.member import Member
from zeusrun.worker.agent import LoaderControl, RankAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from types import ModuleType

    from zeusrun.worker.batches import Batches, MicroBatch
    from zeusrun.worker.hooks.install import Hooks
    from zeusrun.worker.hooks.observer import Observer
    from zeusrun.worker.passes import Pass


def join(hooks: Hooks, given: Mapping[str, Any]) -> RankAgent:
    """Return the agent of an elastic rank.

    A process that a rank has started gets an agent that does nothing.
    """
    environment = hooks.environment
    if environment.slot is None or not hooks.launched:
        return RankAgent()
    member = Member(environment, given, hooks.observer, hooks.clock)
    return ElasticAgent(member, Epochs(environment, member), hooks.observer)


class ElasticAgent(RankAgent):
    """Changes the ranks of a training between passes or steps.

    Args:
        member: This process as a member of the training.
        epochs: Handles the passes of an unedited script.
        observer: Finds the loader that feeds the steps.
    """

    modules = frozenset(hook.MODULES)
    must_hook = True

    def __init__(self, member: Member, epochs: Epochs, observer: Observer) -> None:
        self._member, self._epochs, self._observer = member, epochs, observer
        self.rates = member.scale.rates
        self.loader_control = _ElasticControl(member)

    @property
    def is_alone(self) -> bool:
        """Whether this process is a new rank that has not joined the others yet."""
        return self._member.is_alone

    def hook(self, module: ModuleType) -> None:
        """See ``RankAgent.hook``."""
        hook.install(module, self._member)

    def begin_pass(self, part: Pass, loader: Any) -> None:
        """See ``RankAgent.begin_pass``. The ranks of an unedited script may change here."""
        if self._epochs.begin(loader, is_training=part.feed is self._observer.training):
            self._observer.change_ranks()
        part.limit = 1 if self.is_alone else None

    def agree_on_stop(self, *, wishes: bool) -> bool:
        """See ``RankAgent.agree_on_stop``."""
        return self._member.agree_on_stop(wishes)

    def step(self) -> AbstractContextManager[None]:
        """See ``RankAgent.step``."""
        return self._member.step()


class _ElasticControl(LoaderControl):
    """Divides the batches of ``run.loader`` among the present ranks."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def is_training(self, loader: object, epoch: int | None) -> bool:
        """See ``LoaderControl.is_training``. An evaluation is also divided among the ranks."""
        del loader, epoch
        return True

    def enter(self, exchange: Callable[[Any], Any]) -> None:
        """See ``LoaderControl.enter``. A new rank joins the others here."""
        self._member.parts["loader"] = exchange
        self._member.enter()

    def after_batch(self, micro: MicroBatch, batches: Batches) -> bool:
        """See ``LoaderControl.after_batch``."""
        member = self._member
        if member.is_lost:
            if member.is_made:
                batches.position = micro.end
            member.recover()  # if the step was not made, the ranks repeat it
            return True
        super().after_batch(micro, batches)
        return micro.is_last and member.after_step(batches.rest)

    def sizes(self, first: int, limit: int | None) -> tuple[int, int | None]:
        """See ``LoaderControl.sizes``."""
        del limit
        return self._member.scale.apply(first), self._member.scale.per_device_max

    def change_ranks(self) -> None:
        """See ``LoaderControl.change_ranks``."""
        self._member.observer.change_ranks()
