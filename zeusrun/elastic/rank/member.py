"""A process of an elastic training: which generation it trains in, and how it joins the next.

A planned change begins after a step that rank 0 announces two steps before it. If a rank dies, the
others get an error within their step, or wait until one of them closes its connections. Then all
make that step again, unless one of them has completed it: the others take over its state.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.elastic.rank.beat import begin_beat
from zeusrun.elastic.rank.board import BY_EPOCHS, BY_STEPS, FIXED, Board
from zeusrun.elastic.rank.sizes import RankSchedule, RanksObservation, RanksPolicy, Scale
from zeusrun.elastic.rank.tracked import Tracked
from zeusrun.sidecar.events import Adapted, Regrouped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from zeusrun.elastic.rank.board import Generation
    from zeusrun.sidecar.step_clock import StepClock
    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.hooks.observer import Observer

_NOTICED_S = 20.0  # within which a rank that has failed has ended, and the agent has seen it
_POLL_S = 0.001
_AHEAD = 2  # steps, by which a change is announced


class Member:
    """This process in an elastic training.

    Args:
        environment: The environment of this rank; its rank and world size change with each
            generation.
        given: The settings of the number of ranks, and of the values that depend on it.
        observer: Counts the samples so far.
        clock: Counts the steps; ``None`` if steps cannot be counted.

    Attributes:
        tracked: The objects whose state a newcomer receives.
        is_opening: Whether it is making a process group.
        is_lost: Whether the present step has failed because another rank is gone.
        is_made: Whether the optimizer had stepped by then, so that the step is complete.
        parts: What a newcomer receives besides the state of the objects: each function returns its
            part, or takes over the argument if that is not ``None``.
        observer: The argument.
        board: The messages of the agent and of the other ranks.
        scale: The batch size that follows the number of ranks, if it does.
    """

    def __init__(
        self,
        environment: WorkerEnvironment,
        given: Mapping[str, Any],
        observer: Observer,
        clock: StepClock | None,
    ) -> None:
        self.observer, self.tracked = observer, Tracked()
        self.is_opening = self.is_lost = self.is_made = False
        self.parts: dict[str, Callable[[Any], Any]] = {"observer": observer.exchange}
        if clock is not None:
            self.parts["clock"] = clock.exchange
        self._environment, self._slot = environment, environment.slot or 0
        self.board = Board(Path(environment.plan.run_dir or ""))
        self._place = self.board.place(self._slot)
        self._number, self._is_newcomer = environment.since, environment.since > 0
        self._is_refused = self._has_begun = False
        self._is_first = True
        self._asked = self._made = 0  # questions; steps of optimizers within the present step
        self._step_t = self._paused_t = time.monotonic()  # when a step began, or a pause
        self.parts["questions"] = self._exchange_questions
        self._is_whole = not self._is_newcomer  # whether it has a state that others may take over
        self._schedule, self.scale = RankSchedule(given.get("steps")), Scale(given, environment)
        self._policy = RanksPolicy(given.get("policy"), self._warn)
        begin_beat(self.board, self._place)

    # Process groups

    def open(self, *, joins: bool = False) -> None:
        """Make the default process group of the script; a newcomer ``joins`` the others later."""
        from zeusrun.elastic.rank.groups import open_echo  # noqa: PLC0415 - imports torch

        self.is_opening = True
        try:
            if self._is_newcomer and not joins:
                open_echo(self._environment.rank, self._environment.world_size)
                return
            while not self._join_newest():
                pass
        finally:
            self.is_opening = False

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Return the context of a step, which survives the loss of another rank."""
        self._place.is_in_step, self._made, self._step_t = 1, 0, time.monotonic()
        try:
            yield
        except RuntimeError as error:
            if not self._take_loss(error):
                raise
            self.is_made = self._made > 0
        finally:
            self._place.is_in_step = 0

    def count_step(self, *_: Any) -> None:
        """Count that an optimizer has stepped."""
        self._made += 1

    def refuse(self, why: str) -> None:
        """Say once that the ranks cannot change."""
        if not self._is_refused:
            self._is_refused, self._place.mode = True, FIXED
            self._warn(f"the number of ranks cannot change: {why}")

    def _warn(self, problem: str) -> None:
        self._record("", problem)

    def _record(self, why: str, problem: str | None = None) -> None:
        size = self.scale.apply(self._environment.plan.batch_size or 1)
        epoch = max(1, self._place.epoch, self._environment.epoch or 0)
        rate = None if self.scale.rates is None else self.scale.rates.learning_rate
        how = self._place.steps, epoch, size, rate, why, problem
        self._environment.record_on_0(Adapted(time.monotonic(), *how))

    def _set_mode(self, mode: int) -> None:
        """Say how the ranks can change, unless something of the script would not follow."""
        from zeusrun.elastic.rank.state import find_obstacle  # noqa: PLC0415 - imports torch

        if self._is_first and not self.tracked.models:
            self._is_first = False  # a pass for the shapes of the data; the next one decides
            return
        if (why := find_obstacle(self.tracked)) is not None:
            self.refuse(why)
        self._place.mode = FIXED if self._is_refused else mode
        if not self._has_begun:
            self._has_begun = True
            self._follow()

    def _follow(self) -> None:
        """Let the batch size follow the ranks; not before the epoch is known."""
        if (reason := self.scale.follow()) is not None and self._has_begun:
            self._record(reason)

    def enter(self) -> None:
        """Begin a pass over the training data; a newcomer joins the others here."""
        if not self._is_newcomer:
            self._set_mode(BY_STEPS)
            return
        self._place.mode, self._has_begun = BY_STEPS, True
        self._place.is_ready = 1
        while self._slot not in self.board.members:
            time.sleep(_POLL_S)
        self._change()

    @property
    def is_alone(self) -> bool:
        """Whether it is a newcomer that has not joined the others."""
        return self._is_newcomer and not self.is_opening

    def begin_epoch(self, loader: int, epoch: int, *, is_training: bool) -> bool:
        """Begin a pass of an unedited script; return whether the ranks have changed.

        Rank 0 announces a change for its next epoch, so that the all-reduces of this one are in
        between. A newcomer joins when it begins the same epoch.
        """
        if self._is_newcomer:
            return self._join_in_epoch(loader, epoch)
        place = self._place
        if not is_training or place.mode == BY_STEPS:
            return False
        place.loader, place.epoch = loader, epoch
        self._set_mode(BY_EPOCHS)
        self._follow_sizes(epoch)
        return self._switch(epoch, 1)

    def _join_in_epoch(self, loader: int, epoch: int) -> bool:
        while True:
            generation = self.board.read_generation(self.board.newest)
            head = self.board.place(generation.members[0] if generation.members else self._slot)
            if head.loader != loader:
                return False
            announced, at = self.board.switch
            # An announcement binds, also if another generation has followed: see ``_switch``.
            is_due = self._slot in generation.members and announced > head.generation
            if is_due and epoch >= at:
                self._place.mode, self._has_begun = BY_EPOCHS, True
                self._change()
                return True
            if epoch <= (at - 1 if is_due else head.epoch):
                return False  # the others have begun it
            self._place.is_ready = 1
            time.sleep(_POLL_S)

    def agree_on_stop(self, wishes: bool) -> bool:
        """Return whether the training stops now; rank 0 decides for this call on all ranks.

        No collective call: a rank may be lost while the others are between two steps.
        """
        self._asked += 1
        while not self._is_newcomer:
            decided, stops_at = self.board.decision
            if decided >= self._asked:
                return bool(0 < stops_at <= self._asked)
            if self._environment.rank == 0:
                self.board.decide(self._asked, stops=wishes)
            elif self._has_lost_head():
                self._change()
            time.sleep(_POLL_S)
        return False

    def _has_lost_head(self) -> bool:
        head = self.board.read_generation(self._number).members[0]
        return head not in self.board.members and not self.board.place(head).is_alive

    def _exchange_questions(self, asked: int | None) -> int:
        self._asked = self._asked if asked is None else asked
        return self._asked

    def after_step(self, rest: int = 0) -> bool:
        """Count a completed step; return whether the ranks have changed after it.

        They do not if the ``rest`` of the epoch has fewer samples than there would be ranks.
        """
        self._place.steps += 1
        self._follow_sizes(self._environment.epoch or 0)
        return self._switch(self._place.steps, _AHEAD, rest)

    def _follow_sizes(self, epoch: int) -> None:
        """Let rank 0 order the number of ranks that is due; the others only follow the schedule."""
        step, ranks = self._step, self._environment.world_size
        due, is_head = self._schedule.take(step), self._environment.rank == 0
        if due is not None and is_head:
            self.board.order(due, "the schedule")
        seen = RanksObservation(ranks, step, epoch, self.observer.consumed, time.monotonic())
        if is_head and (wanted := self._policy.ask(seen)) is not None:
            self.board.order(wanted, "a policy")

    @property
    def _step(self) -> int:
        """Optimizer steps so far."""
        clock = self.parts.get("clock")
        return self._place.steps if clock is None else int(clock(None)[0])

    def _switch(self, now: int, ahead: int, rest: int = 0) -> bool:
        newest = self.board.newest
        if newest == self._number:
            return False
        number, at = self.board.switch
        # It is binding if another one has followed since: others may have left for it already.
        is_due = number > self._number and now >= at
        if is_due and 0 < rest < len(self.board.read_generation(number).members):
            return False
        if number != newest and self._environment.rank == 0:
            self.board.announce(newest, now if is_due else now + ahead)
        if is_due:
            self._change()
        return is_due

    def recover(self) -> None:
        """Join the ranks that are left after one was lost."""
        self._place.steps += self.is_made
        self.tracked.end_step(is_made=self.is_made)
        self._change()
        self.is_lost = self.is_made = False

    def _take_loss(self, error: RuntimeError) -> bool:
        """Whether an error within a step is that another rank is gone."""
        from zeusrun.elastic.rank.groups import close_group  # noqa: PLC0415 - imports torch

        close_group()  # so that those who wait for this rank get an error, too
        if "gloo" not in str(error):  # torch has no class for it
            return False
        self.is_lost = self._wait_for_another(self._number)
        return self.is_lost

    # Generations

    def _change(self) -> None:
        self._paused_t = self._step_t if self.is_lost else time.monotonic()
        self.open(joins=True)
        self.observer.change_ranks()

    def _join_newest(self) -> bool:
        """Join the newest generation; return whether it is complete: not if a member has died."""
        from zeusrun.elastic.rank import groups  # noqa: PLC0415 - imports torch

        generation = self.board.read_generation(self.board.newest)
        self._end_collectives()
        groups.close_group()
        if self._slot not in generation.members:
            raise SystemExit  # this process is not needed any more
        if not self._meet(generation, "joins"):
            return False
        rank, size = generation.members.index(self._slot), len(generation.members)
        try:
            groups.open_group(groups.open_store(self.board, generation, rank), rank, size)
            if self._number or self._is_newcomer:
                self._agree(rank, size)
            if not self._meet(generation, "has_state"):
                return False
            for model in self.tracked.models:
                groups.replace_group(model)
        except RuntimeError as error:
            if not self._wait_for_another(generation.number):
                raise RuntimeError(f"the ranks could not connect: {error}") from error
            return False
        before = self._environment.world_size if self._number and not self._is_newcomer else 0
        self._environment.rank, self._environment.world_size = rank, size
        self._number, self._is_newcomer = generation.number, False
        self._place.generation = generation.number
        now_t, (members, why) = time.monotonic(), (generation.members, generation.why)
        paused_s = now_t - self._paused_t if before else None
        how = generation.since_t, paused_s, before, self._step
        self._environment.record_on_0(Regrouped(now_t, self._number, members, why, *how))
        self._follow()
        return True

    def _end_collectives(self) -> None:
        """Wait until all ranks have left the last collective, before connections are closed.

        gloo raises an error in a rank that only then notices that its collective is complete.
        """
        from torch import distributed  # noqa: PLC0415 - the script has imported it

        if self._is_newcomer or not self._number or not distributed.is_initialized():
            return  # a rank was lost, and its connections are closed
        members = self.board.read_generation(self._number).members
        places = [self.board.place(slot) for slot in members]
        deadline_t = time.monotonic() + _NOTICED_S
        while time.monotonic() < deadline_t and all(each.is_alive for each in places):
            self._place.joins = self.board.newest  # also if a newcomer has died meanwhile
            if all(each.joins > self._number for each in places):
                return
            time.sleep(_POLL_S)

    def _meet(self, generation: Generation, where: str) -> bool:
        """Wait until all members are as far; return whether they are: not if one has died.

        ``where``: ``joins`` or ``has_state`` of ``Place``.
        """
        setattr(self._place, where, generation.number)
        places = [self.board.place(slot) for slot in generation.members]
        while any(getattr(place, where) < generation.number for place in places):
            if self.board.newest != generation.number:
                return False
            time.sleep(_POLL_S)
        return True

    def _wait_for_another(self, number: int) -> bool:
        deadline_t = time.monotonic() + _NOTICED_S
        while self.board.newest == number and time.monotonic() < deadline_t:
            time.sleep(_POLL_S)
        return self.board.newest != number

    def _agree(self, rank: int, size: int) -> None:
        """Give all members the state of the one that is furthest."""
        import torch  # noqa: PLC0415 - the script has imported it
        from torch import distributed  # noqa: PLC0415

        from zeusrun.elastic.rank import state  # noqa: PLC0415 - imports torch

        own_random = state.random_states()
        steps = self._place.steps if self._is_whole else -1
        mine = torch.tensor([steps, self._made, state.digest(own_random)])
        all_ = [torch.empty_like(mine) for _ in range(size)]
        distributed.all_gather(all_, mine)
        rows = [each.tolist() for each in all_]
        furthest = max(row[:2] for row in rows)
        if furthest[0] < 0:
            raise RuntimeError("no rank has the state of the training")
        behind = [number for number, row in enumerate(rows) if row[:2] != furthest]
        if not behind:
            return
        source = next(number for number, row in enumerate(rows) if row[:2] == furthest)
        are_equal = len({row[2] for row in rows if row[0] >= 0}) == 1
        if rank == source:
            own_parts = {name: part(None) for name, part in self.parts.items()}
            more = (own_random if are_equal else None, own_parts)
            state.send_state(self.tracked, more, behind)
        if rank not in behind:
            return
        self._is_whole = False  # until all has arrived
        states, (shared, parts) = state.receive_state(self.tracked, source)
        for other, content in zip(self.tracked.others, states, strict=True):
            other.load_state_dict(content)
        if shared is not None:
            state.set_random_states(shared)
        for name, part in parts.items():
            self.parts[name](part)
        (self._place.steps, self._made), self._is_whole = furthest, True
