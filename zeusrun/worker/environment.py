"""What hooks, statistics and adapting need of the run: choices, sidecar, stop, the other ranks."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from zeusrun.sidecar.events import Asked, EventWriter
from zeusrun.sidecar.plan import RankPlan
from zeusrun.worker.ending import SIGTERM_EXIT_CODE, catch_sigterm
from zeusrun.worker.failure import failed_in_restart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zeusrun.sidecar.events import Event, Reported
    from zeusrun.worker.agent import RankAgent

_Value = TypeVar("_Value")
_BY_SCRIPT_S = 1.0
_INTERVAL_S = 1.0  # between two questions of all ranks whether to stop
_MAX_STEPS = 1000  # between them
_LATE_S = 10.0


class WorkerEnvironment:
    """One rank of a trial, read from the variables that the launcher has set.

    Attributes:
        plan: The decisions of the launcher for the trial.
        rank: This process among all, from 0; of a process that the script has started, its own.
        world_size: Number of processes.
        restart: How often torchrun has restarted the ranks.
        grace_period_s: Seconds that a rank has to end.
        active: Whether zeusrun started this process.
        agents: The agents that follow the training of this rank; empty until hooks are installed.
        epoch: The present one of ``Run.epochs``, from 1; ``None`` if the script does not use it.
        is_stopping: Whether the training should end.
        external_sigterm: Whether a SIGTERM that zeusrun did not send has ended the training.
        slot: The fixed number of this process in an elastic training; ``None`` in other trainings.
        since: The generation in which the others trained when it began; 0 at the start.
        grouped: Whether this process was seen in a process group.
        is_grown: Whether it is in one with processes that zeusrun has not started.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.plan = RankPlan.read(variables)
        self.rank = int(variables.get("RANK", "0"))
        self.world_size = int(variables.get("WORLD_SIZE", "1"))
        self.restart = int(variables.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.grace_period_s = float(variables.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
        self.active = self.plan.trial is not None
        slot = variables.get("ZEUSRUN_SLOT")
        self.slot = int(slot) if slot else None
        self.since = int(variables.get("ZEUSRUN_SINCE") or 0)
        self.agents: list[RankAgent] = []
        self.epoch: int | None = None
        self.is_stopping = self.external_sigterm = False
        self.grouped = self.is_grown = False
        self._has_gloo = False  # seen in a process group over gloo
        self._is_listening = False
        self._asked: set[str] = set()
        self._unsent: list[Event] = []
        self._sending = threading.RLock()
        self._writer: EventWriter | None = None

    @property
    def number(self) -> int:
        """The number of this process in files and events: its rank, or its slot."""
        return self.rank if self.slot is None else self.slot

    @property
    def share(self) -> int | None:
        """This rank's samples per optimizer step, as chosen."""
        return (self.plan.batch_size or 0) // self._ranks_at_start or None

    @property
    def batch_size_to_replace(self) -> set[int]:
        """The samples of one rank that a hook replaces by the choice; empty for no such hook.

        A script may divide its batch size by the present ranks, or give each the same as ever.
        """
        given = self.plan.given_batch_size
        return set() if given is None else {given // self._ranks_at_start, given // self.world_size}

    @property
    def _ranks_at_start(self) -> int:
        """The number of ranks among which batch sizes were divided; it may have changed since."""
        return self.plan.ranks or self.world_size

    @property
    def error_path(self) -> str:
        """The file that says which rank failed first."""
        return os.path.join(self.plan.run_dir or "", "error.json")  # noqa: PTH118

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the ranks did so before torchrun restarted them."""
        before = self.restart - 1
        return before >= 0 and failed_in_restart(self.error_path, "out_of_memory") == before

    def record_asked(self, choice: str) -> None:
        """Record that the script has asked for a choice of the launcher, once."""
        if self.active and self.rank == 0 and choice not in self._asked:
            self._asked.add(choice)
            self._unsent.append(Asked(time.monotonic(), choice))
            with contextlib.suppress(OSError):  # sent again with the first report
                self.send()

    def report(self, event: Reported) -> None:
        """Record metrics; on rank 0 only."""
        met = any(self.plan.meets_target(name, value) for name, value in event.metrics.items())
        # Before training, it does not count; the launcher knows of steps.
        if met and event.epoch > 0 and not event.each_step and event.steps != 0:
            self.is_stopping = True
        self.record(event)

    def record_on_0(self, event: Event) -> None:
        """Write an event that is the same on every rank."""
        if self.rank == 0:
            self.record(event)

    def record(self, event: Event) -> None:
        """Write an event to the sidecar, now or with the next one."""
        self._unsent.append(event)
        try:
            self.send()
        except OSError as error:  # a full disk must not end the training
            with contextlib.suppress(UserWarning):  # nor may python -W error
                warnings.warn(f"zeusrun could not record the metrics yet: {error}", stacklevel=4)

    def send(self) -> None:
        """Write the events that are not written yet; raises ``OSError`` if the disk refuses."""
        with self._sending:  # loggers may have threads of their own
            while self._unsent:
                if self._writer is None:
                    self._writer = EventWriter(self.plan.sidecar or "")
                self._writer.write(self._unsent[0])
                del self._unsent[0]

    def should_stop(self, value: float = 0.0) -> tuple[bool, float]:
        """Return whether training should end now, and rank 0's ``value``, on every rank.

        A collective call, so every rank must make it.
        """
        if not self.active:
            return False, value
        if not self._is_listening and threading.current_thread() is threading.main_thread():
            self._is_listening = True
            catch_sigterm(self._stop_by_sigterm, self._end_after_sigterm)
        self.record_asked("stop")
        self.look_for_groups()
        wishes = self.is_stopping or self._is_stop_requested()
        for agent in self.agents:
            if (agreed := agent.agree_on_stop(wishes=wishes)) is not None:
                self.is_stopping = agreed
                return agreed, value
        answers = from_all_ranks((wishes, value))
        self.is_stopping = any(stop for stop, _ in answers)
        return self.is_stopping, answers[0][1]

    def _stop_by_sigterm(self) -> None:
        self.is_stopping = True
        self.external_sigterm = not self._is_stop_requested()

    def _end_after_sigterm(self) -> None:
        """End the rank after a SIGTERM that zeusrun did not send.

        If torchrun sent it because another rank failed, the rank ends at once (torchrun would wait
        30 s, whatever grace the job has); otherwise after the grace of the job. A rank that the
        script has started gets it from the script, or soon a stop by zeusrun, too.
        """
        grace_s = _BY_SCRIPT_S if self.is_grown else self.grace_period_s
        deadline_t = time.monotonic() + grace_s
        while not self._is_stop_requested():  # else zeusrun ends the rank
            failed = failed_in_restart(self.error_path) == self.restart
            if failed or time.monotonic() > deadline_t:
                os._exit(SIGTERM_EXIT_CODE)
            time.sleep(0.1)

    def _is_stop_requested(self) -> bool:
        return bool(self.plan.run_dir) and os.path.exists(f"{self.plan.run_dir}/stop")  # noqa: PTH110

    def look_for_groups(self) -> None:
        """Remember that there is a process group, which the script may leave before its end."""
        if not self.grouped and is_grouped():
            self.grouped, self._has_gloo = True, has_gloo_group()

    def had_group(self, *, gloo: bool = False) -> bool:
        """Whether this process is or was seen in a process group, or in one over gloo."""
        try:
            self.look_for_groups()
            return self._has_gloo or has_gloo_group() if gloo else self.grouped
        except Exception:  # noqa: BLE001 - at the end, the script may have changed anything
            return self.grouped


@functools.cache
def current_environment() -> WorkerEnvironment:
    """Return the one ``WorkerEnvironment`` of this process."""
    return WorkerEnvironment(dict(os.environ))


class StopPoll:
    """Lets all ranks decide together whether to stop, about once a second, in the same step.

    It counts steps until the next collective; every rank counts to the same number.
    """

    def __init__(self, environment: WorkerEnvironment) -> None:
        self._environment = environment
        self._every = 1
        self._steps = 0
        self._since = time.monotonic()

    def after_step(self) -> bool:
        """Whether to stop now. A collective call in some steps: every rank calls it in each."""
        self._steps += 1
        return self._steps >= self._every and self.now()

    def now(self) -> bool:
        """Whether to stop now. A collective call, where every rank is sure to have this hook."""
        if self._environment.is_grown and not all_hooked():  # a signal ends the script
            return False
        now = time.monotonic()
        step_s = (now - self._since) / max(1, self._steps)
        stop, step_s = self._environment.should_stop(step_s)
        # At most four times as many as before: the first step is slower than the others.
        wanted = int(_INTERVAL_S / step_s) if step_s > 0 else _MAX_STEPS
        self._every = max(1, min(wanted, 4 * self._every, _MAX_STEPS))
        self._steps, self._since = 0, now
        return stop


def is_grouped() -> bool:
    """Whether this process is in a process group; torch is not imported for it."""
    # A torch that is built without it, or is being imported, has no such function.
    ask = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
    return ask is not None and bool(ask())


def has_gloo_group() -> bool:
    """Whether this process is in a process group over gloo."""
    if not is_grouped():
        return False
    from torch import distributed  # noqa: PLC0415 - the script has imported it

    world = distributed.distributed_c10d._world  # noqa: SLF001 - there is no public list of groups
    # Not get_backend(): that is "undefined" for a group that was made without naming a backend.
    return any("gloo" in distributed.get_backend_config(group) for group in world.pg_map)


def from_all_ranks(value: _Value) -> list[_Value]:
    """Return the value of every rank; without a process group, that of this one."""
    if not is_grouped():
        return [value]
    from torch import distributed  # noqa: PLC0415 - the script has imported it

    values = [value] * distributed.get_world_size()
    with _on_own_device():
        distributed.all_gather_object(values, value)
    return values


def announce_hooks() -> None:
    """Tell the others of the process group that this one has hooks. No collective call."""
    from torch.distributed import distributed_c10d as c10d  # noqa: PLC0415 - is imported

    with contextlib.suppress(Exception):  # torch has changed; then all_hooked says no
        c10d._get_default_store().set(f"zeusrun/{c10d.get_rank()}", "")  # noqa: SLF001 - only here


@functools.cache
def all_hooked() -> bool:
    """Whether every process of the group has hooks; if not, the first call takes 10 s.

    The answer is the same in each that has, as all have joined the group by then.
    """
    from torch.distributed import distributed_c10d as c10d  # noqa: PLC0415 - is imported

    deadline_t = time.monotonic() + _LATE_S
    with contextlib.suppress(Exception):  # torch has changed
        store, ranks = c10d._get_default_store(), range(c10d.get_world_size())  # noqa: SLF001
        while time.monotonic() < deadline_t:
            if store.check([f"zeusrun/{rank}" for rank in ranks]):
                return True
            time.sleep(0.01)
    return False


@contextlib.contextmanager
def _on_own_device() -> Iterator[None]:
    """Have collectives of objects use the GPU of the local rank.

    With NCCL, they use the current GPU, which is 0 on every rank of a script that never calls
    ``set_device``.
    """
    import torch  # noqa: PLC0415 - the script has imported it
    from torch import distributed  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        nccl_only = "nccl" in (backend := distributed.get_backend()) and "gloo" not in backend
        if nccl_only and torch.cuda.current_device() == 0:
            number = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
            stack.enter_context(torch.cuda.device(number))
        yield


def as_float(value: Any) -> float:  # noqa: ANN401 - of any library
    """Return a number, also of a tensor or an array with one element; raises what ``float`` does.

    torch warns of a tensor with a gradient, and numpy refuses an array with a dimension.
    """
    value = value.detach() if hasattr(value, "detach") else value
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", None) == 1:
        value = item()
    if isinstance(value, (str, bytes)):
        raise TypeError("it is a text")
    return float(value)
