"""Goes on with a pass over a loader after one of its workers has died.

The batches that are not there yet are read again, by as many workers as the script has.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import time
import weakref
from typing import TYPE_CHECKING, Any

from zeusrun.loader.rank.safe import apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from zeusrun.loader.rank.safe import State

_DIES_S = 1.0  # until the death of a process is seen
_NO_MEMORY = {-signal.SIGKILL, -signal.SIGBUS, -signal.SIGSEGV}
"""How a worker ends where memory lacks. Who ends a run sends other signals."""
_DIED = re.compile("DataLoader worker .*(exited unexpectedly|killed by signal)")


class Rescue:
    """Follows the iterators of loaders whose number of workers was changed.

    Args:
        give_up: Called with a loader and a sentence; then the loader has its own number again.
    """

    def __init__(self, give_up: Callable[[Any, str], None]) -> None:
        self._give_up = give_up
        self._watched: weakref.WeakKeyDictionary[Any, State] = weakref.WeakKeyDictionary()
        self._loaders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def watch(self, state: State) -> None:
        """Follow the iterators of a loader from now on."""
        self._watched[state.loader()] = state

    def hook(self, module: ModuleType) -> None:
        """Follow iterators with workers (``torch.utils.data.dataloader``)."""
        cls: Any = module._MultiProcessingDataLoaderIter
        begin, next_data, try_get_data = cls.__init__, cls._next_data, cls._try_get_data
        signals = module._utils.signal_handling

        def __init__(iterator: Any, loader: Any) -> None:
            begin(iterator, loader)
            state = self._watched.get(loader)
            if state is None or state.is_within:
                return
            state.workers = [worker.pid for worker in iterator._workers]
            if state.own != state.present:
                self._loaders[iterator] = weakref.ref(loader)
                # Else torch raises the error anywhere in the script, where nothing can be saved.
                signals._remove_worker_pids(id(iterator))
                iterator._worker_pids_set = False

        def _try_get_data(iterator: Any, *args: Any, **options: Any) -> Any:
            if iterator not in self._loaders or iterator._worker_pids_set:
                return try_get_data(iterator, *args, **options)
            # Only a signal can end the read of a message whose sender has died.
            signals._set_worker_pids(id(iterator), tuple(each.pid for each in iterator._workers))
            try:
                signals._error_if_any_worker_fails()
                return try_get_data(iterator, *args, **options)
            finally:
                signals._remove_worker_pids(id(iterator))

        def _next_data(iterator: Any) -> Any:
            try:
                return next_data(iterator)
            except (RuntimeError, OSError, EOFError) as error:
                loader = self._loaders.get(iterator, lambda: None)()
                if loader is None or not _has_died(iterator, error):
                    raise
                del self._loaders[iterator]
                if not self._go_on(module, iterator, loader, str(error)):
                    raise
            return iterator._next_data()

        cls.__init__, cls._next_data, cls._try_get_data = __init__, _next_data, _try_get_data

    def _go_on(self, module: ModuleType, iterator: Any, loader: Any, error: str) -> bool:
        """Let an iterator go on with other workers; return whether it can."""
        queued = iterator._zeusrun.queued
        if len(queued) != iterator._send_idx - iterator._rcvd_idx:
            return False
        pending, rest = [*queued], iterator._sampler_iter
        queued.clear()
        for worker in iterator._workers:  # whatever the dead one has left locked
            worker.kill()
            worker.join()
        iterator._shutdown = True
        if iterator._pin_memory:
            iterator._pin_memory_thread_done_event.set()  # it may wait for the end of a message
        self._give_up(loader, f"with {iterator._num_workers} loader workers, one died ({error})")
        name = "MultiProcessing" if loader.num_workers else "SingleProcess"
        iterator.__class__ = getattr(module, f"_{name}DataLoaderIter")
        with _over(loader, itertools.chain(pending, rest)) as sampler, apart(loader):
            iterator.__init__(loader)
        iterator._index_sampler = sampler  # of the next pass
        if loader.persistent_workers:
            loader._iterator = iterator
        return True


def _has_died(iterator: Any, error: Exception) -> bool:
    """Whether an error comes from a dead worker: what it has sent last may be lost with it."""
    if isinstance(error, RuntimeError) and not _DIED.match(str(error)):
        return False
    until_t = time.monotonic() + _DIES_S
    while all(worker.is_alive() for worker in iterator._workers):
        if time.monotonic() > until_t:
            return False
        time.sleep(0.01)
    return any(worker.exitcode in _NO_MEMORY for worker in iterator._workers)


@contextlib.contextmanager
def _over(loader: Any, indices: Iterable[Any]) -> Iterator[Any]:
    """Let an iterator begin that reads these; yield what chooses them otherwise."""
    name = "batch_sampler" if loader._auto_collation else "sampler"
    given = vars(loader)[name]
    vars(loader)[name] = indices
    try:
        yield given
    finally:
        vars(loader)[name] = given
