"""``zeusrun.current()``: the choices for a training script, and its reports."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

from zeusrun.sidecar.events import ADAPT_STATE, Asked, Reported
from zeusrun.sidecar.writer import EventWriter
from zeusrun.target import meets_target
from zeusrun.worker.collectives import from_all_ranks, has_gloo_group, is_grouped
from zeusrun.worker.failure import failed_in_restart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.utils.data import Dataset

    from zeusrun.sidecar.events import Event
    from zeusrun.worker.adapt.control import Control
    from zeusrun.worker.adapt.loader import AdaptiveLoader

SIGTERM_EXIT_CODE = 143  # 128 + SIGTERM: ended by one that zeusrun did not send

_BY_SCRIPT_S = 1.0


class RunContext:
    """One rank's view of its trial, read from the environment that the launcher set.

    Attributes:
        active: Whether zeusrun started this process.
        rank: This process among all, from 0.
        world_size: Number of processes.
        job: Name of the recurring job; ``None`` outside zeusrun.
        trial: Identity of this trial; ``None`` outside zeusrun.
        checkpoint_dir: Where this trial saves its checkpoints; ``None`` outside zeusrun.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.rank = int(environment.get("RANK", "0"))
        self.world_size = int(environment.get("WORLD_SIZE", "1"))
        self.job = environment.get("ZEUSRUN_JOB")
        self.trial = environment.get("ZEUSRUN_TRIAL")
        self.active = self.trial is not None
        checkpoint_dir = environment.get("ZEUSRUN_CHECKPOINT_DIR")
        self.checkpoint_dir = Path(checkpoint_dir) if checkpoint_dir else None
        self.control: Control | None = None  # changes the batch size; ``None``: it is fixed
        self._environment = environment
        self._epoch = 0
        self._reports = 0
        self._asked: set[str] = set()
        self.consumed: Callable[[], int | None] = lambda: None  # samples of the optimizer steps
        self._unsent: list[Event] = []
        self._sending = threading.RLock()
        self._stopping = False
        self.external_sigterm = False  # one that zeusrun did not send has ended the training
        self.grouped = self._gloo = False  # seen in a process group; in one over gloo
        self.is_grown = False  # in one with processes that zeusrun has not started
        self._listening = False
        self._pid = 0
        self._writer: EventWriter | None = None
        self.run_dir = run_dir = environment.get("ZEUSRUN_RUN_DIR")
        self._stop_file = os.path.join(run_dir, "stop") if run_dir else None  # noqa: PTH118

    def local_batch_size(self, default: int) -> int:
        """Return this rank's samples per optimizer step; ``default`` outside zeusrun."""
        global_batch_size = self._ask_for("batch_size")
        return int(global_batch_size) // self.world_size if global_batch_size else default

    @property
    def share(self) -> int | None:
        """What ``local_batch_size`` returns; for hooks, so it is not recorded as asked for."""
        return int(self._environment.get("ZEUSRUN_BATCH_SIZE") or 0) // self.world_size or None

    def micro_batch_size(self, default: int) -> int:
        """Return this rank's samples per forward pass; ``default`` outside zeusrun."""
        self._ask_for("batch_size")
        return int(self._environment.get("ZEUSRUN_MICRO_BATCH_SIZE") or default)

    def accumulation_steps(self, default: int = 1) -> int:
        """Return the micro-batches in an optimizer step; ``default`` outside zeusrun."""
        return int(self._environment.get("ZEUSRUN_ACCUMULATION_STEPS") or default)

    def global_batch_size(self, default: int) -> int:
        """Return the samples per optimizer step over all ranks; ``default`` outside zeusrun."""
        return int(self._ask_for("batch_size") or default)

    def learning_rate(self, default: float) -> float:
        """Return the learning rate for the batch size; ``default`` if the job names none."""
        return float(self._ask_for("learning_rate") or default)

    def _ask_for(self, choice: str) -> str | None:
        """Return the launcher's choice, and record that the script has asked for it."""
        self._say_asked(choice)
        return self._environment.get(f"ZEUSRUN_{choice.upper()}")

    def _say_asked(self, choice: str) -> None:
        if self.active and self.rank == 0 and choice not in self._asked:
            self._asked.add(choice)
            self._unsent.append(Asked(time.monotonic(), choice))
            with contextlib.suppress(OSError):  # sent again with the first report
                self.send()

    def loader(self, dataset: Dataset[Any], batch_size: int, **options: Any) -> AdaptiveLoader:  # noqa: ANN401 - of a DataLoader
        """Return a ``DataLoader`` for training whose batch size may change between steps.

        It divides the samples among the ranks, draws them in another order in each epoch, and
        yields each sample once an epoch. Every rank must iterate over it in its main thread.

        Args:
            dataset: One with a length.
            batch_size: Of this rank; for outside zeusrun, as ``default`` elsewhere.
            options: ``shuffle`` (``True``), ``seed`` (0), ``drop_last`` (``False``), and those of a
                ``DataLoader``, without those that choose the samples of a batch.

        Raises:
            TypeError: If the dataset has no length.
            ValueError: If there are fewer samples than ranks, an option chooses the samples of a
                batch, or the ranks have different data.
            RuntimeError: If a class of the job file's policy cannot be created.
        """
        from zeusrun.worker.adapt.loader import AdaptiveLoader  # noqa: PLC0415 - imports torch

        return AdaptiveLoader(
            self, self.control, dataset, self.local_batch_size(batch_size), **options
        )

    def epochs(self, default: int, done: int = 0) -> Iterator[int]:
        """Yield 1, 2, 3, … until the last epoch, the target, or a stop by zeusrun.

        Every rank must iterate over it; it ends after the same epoch on every rank.

        Args:
            default: Number of epochs outside zeusrun.
            done: Epochs in the checkpoint that the script has restored; begin with ``done + 1``.
        """
        last = int(self._environment.get("ZEUSRUN_MAX_EPOCHS") or default)
        for epoch in range(done + 1, last + 1):
            if self.should_stop():
                return
            self._epoch = epoch
            yield epoch

    def report(self, epoch: int | None = None, **metrics: SupportsFloat) -> None:
        """Report the metrics after an epoch.

        Only rank 0 writes; the values of other ranks and outside zeusrun are ignored.

        Args:
            epoch: Epochs completed; by default the current one of ``epochs``, else one more than
                at the last report.
            metrics: Numbers, NaN included, or anything but text that ``float`` takes, such as a
                tensor of one number.

        Raises:
            TypeError: If a metric is not a number.
            ValueError: If it is an array of more than one number.
        """
        self.look_for_groups()
        if not self.active or self.rank != 0:
            return
        values = {name: _number(name, value) for name, value in metrics.items()}
        self._reports += 1
        completed = (self._epoch or self._reports) if epoch is None else int(epoch)
        self.report_for(Reported(time.monotonic(), completed, values, samples=self.consumed()))

    def report_for(self, event: Reported) -> None:
        """Record metrics; on rank 0 only."""
        met = any(self.meets_target(name, value) for name, value in event.metrics.items())
        # Before training, it does not count; the launcher knows of steps.
        if met and event.epoch > 0 and not event.each_step and event.steps != 0:
            self._stopping = True
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
        """Write the reports that are not written yet; raises ``OSError`` if the disk refuses."""
        with self._sending:  # loggers may have threads of their own
            while self._unsent:
                if self._writer is None:
                    self._writer = EventWriter(self._environment["ZEUSRUN_SIDECAR"])
                self._writer.write(self._unsent[0])
                del self._unsent[0]

    def should_stop(self) -> bool:
        """Whether training should end now: at the target, or because zeusrun stops it.

        A collective call with the same answer on every rank, so every rank must call it.
        ``epochs`` calls it before each epoch; only a loop of your own needs it.
        """
        return self.should_stop_and(0.0)[0]

    def should_stop_and(self, value: float) -> tuple[bool, float]:
        """Return whether training should end now, as ``should_stop``, and rank 0's value."""
        if not self.active:
            return False, value
        self._listen()
        self._say_asked("stop")
        self.look_for_groups()
        answers = from_all_ranks((self._stopping or self._stop_requested(), value))
        self._stopping = any(stop for stop, _ in answers)
        return self._stopping, answers[0][1]

    def look_for_groups(self) -> None:
        """Remember that there is a process group, which the script may leave before its end."""
        if not self.grouped and is_grouped():
            self.grouped, self._gloo = True, has_gloo_group()

    def had_group(self, *, gloo: bool = False) -> bool:
        """Whether this process is or was seen in a process group, or in one over gloo."""
        try:
            self.look_for_groups()
            return self._gloo or has_gloo_group() if gloo else self.grouped
        except Exception:  # noqa: BLE001 - at the end, the script may have changed anything
            return self.grouped

    @property
    def grace_period_s(self) -> float:
        """Seconds that a rank has to end."""
        return float(self._environment.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))

    @property
    def max_epochs(self) -> int | None:
        """The epochs after which the training ends; ``None`` outside zeusrun."""
        return int(self._environment.get("ZEUSRUN_MAX_EPOCHS") or 0) or None

    @property
    def batch_size_to_replace(self) -> int | None:
        """The samples of one rank that a hook replaces by the choice; ``None`` for no such hook."""
        given = self._environment.get("ZEUSRUN_GIVEN_BATCH_SIZE")
        return int(given) // self.world_size if given else None

    @property
    def chosen_learning_rate(self) -> float | None:
        """What ``learning_rate`` returns; for hooks, so it is not recorded as asked for."""
        return float(self._environment.get("ZEUSRUN_LEARNING_RATE") or 0) or None

    @property
    def learning_rate_to_replace(self) -> float | None:
        """The learning rate that a hook replaces by the choice; ``None`` for no such hook."""
        given = self._environment.get("ZEUSRUN_GIVEN_LEARNING_RATE")
        return float(given) if given else None

    @property
    def statistics(self) -> str | None:
        """The section ``watch`` of the job file, as JSON; ``None`` without it."""
        return self._environment.get("ZEUSRUN_WATCH")

    @property
    def adaptation(self) -> str | None:
        """How the batch size changes, as JSON; ``None`` if it is fixed."""
        return self._environment.get("ZEUSRUN_ADAPT")

    @property
    def adaptation_state(self) -> Path | None:
        """The file with the state of a batch size that changes; ``None`` outside zeusrun."""
        run_dir = self._environment.get("ZEUSRUN_RUN_DIR")
        return Path(run_dir, ADAPT_STATE) if run_dir else None

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the ranks did so before torchrun restarted them."""
        restart = int(self._environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return restart > 0 and failed_in_restart(self._error_path, "out_of_memory") == restart - 1

    @property
    def _error_path(self) -> str:
        return os.path.join(self._environment["ZEUSRUN_RUN_DIR"], "error.json")  # noqa: PTH118

    @property
    def epoch(self) -> int | None:
        """The present epoch of ``epochs``, from 1; ``None`` if the script does not use it."""
        return self._epoch or None

    @property
    def metric(self) -> str | None:
        """The metric of the job; ``None`` outside zeusrun."""
        return self._environment.get("ZEUSRUN_METRIC")

    def meets_target(self, metric: str, value: float) -> bool:
        """Whether a reported value ends the training."""
        environment = self._environment
        if metric != environment.get("ZEUSRUN_METRIC") or (
            environment.get("ZEUSRUN_ON_TARGET") != "stop"
        ):
            return False
        mode = environment.get("ZEUSRUN_MODE", "max")
        return meets_target(value, float(environment["ZEUSRUN_TARGET"]), mode)

    def _listen(self) -> None:
        """Turn SIGTERM into a stop, once the script has asked whether to stop."""
        if self._listening or threading.current_thread() is not threading.main_thread():
            return
        self._listening = True
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return  # the script's own handler wins
        self._pid = os.getpid()
        signal.signal(signal.SIGTERM, self._on_sigterm)
        others = signal.set_wakeup_fd(-1)
        if others != -1:
            signal.set_wakeup_fd(others)  # it belongs to an event loop of the script
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        # A forked child is no rank: it must not write its signals into this pipe, and needs the
        # default handler. A SIGTERM that it gets meanwhile is blocked, as Python would lose it.
        # The mask belongs to the thread that forks.
        before = threading.local()

        def hold() -> None:
            before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

        def resume() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

        def forget() -> None:
            signal.set_wakeup_fd(-1)  # the thread that forked is the main one of the child
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:  # not the script's own by now
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            resume()

        os.register_at_fork(before=hold, after_in_parent=resume, after_in_child=forget)
        threading.Thread(target=self._watch_sigterm, args=(reader,), daemon=True).start()

    def _stop_requested(self) -> bool:
        return self._stop_file is not None and os.path.exists(self._stop_file)  # noqa: PTH110

    def _on_sigterm(self, _signal: int, _frame: object) -> None:
        if os.getpid() != self._pid:  # a forked child is no rank
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        self._stopping = True
        self.external_sigterm = not self._stop_requested()

    def _watch_sigterm(self, reader: int) -> None:
        """End the rank after a SIGTERM that zeusrun did not send, even if the main thread hangs.

        If torchrun sent it because another rank failed, the rank ends at once (torchrun would wait
        30 s, whatever grace the job has); otherwise after the grace of the job. A rank that the
        script has started gets it from the script, or soon a stop by zeusrun, too.
        """
        while os.read(reader, 1) != bytes([signal.SIGTERM]):
            pass
        restart = int(self._environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
        deadline_t = time.monotonic() + (_BY_SCRIPT_S if self.is_grown else self.grace_period_s)
        while not self._stop_requested():  # else zeusrun ends the rank
            if time.monotonic() > deadline_t or failed_in_restart(self._error_path) == restart:
                os._exit(SIGTERM_EXIT_CODE)
            time.sleep(0.1)


@functools.cache
def current_run() -> RunContext:
    """Return the one ``RunContext`` of this process."""
    return RunContext(dict(os.environ))


def _number(name: str, value: SupportsFloat) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError(f"zeusrun: metric {name!r} is {value!r}, not a number")
    try:
        return float(value.detach() if hasattr(value, "detach") else value)  # else torch may warn
    except (TypeError, ValueError) as error:
        raise type(error)(f"zeusrun: metric {name!r} is not one number: {error}") from None
