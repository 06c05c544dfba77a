"""The power limits of all hosts as one: a limit is held on each of them or on none."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from zeusrun.errors import DeviceError, LaunchError, ZeusrunError
from zeusrun.lever import POWER, Lever

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from typing_extensions import Self

    from zeusrun.gpu.power_limits.holder import LimitHolder
    from zeusrun.run_on.hosts.channel import Message


class RemoteLimits:
    """The power limits of another host, which its launcher holds; see ``LimitHolder``."""

    def __init__(self, host: str, call: Callable[..., Message]) -> None:
        """Prepare; ``call`` asks the node launcher, and returns its answer."""
        self._host, self._call = host, call
        self.levers: tuple[Lever, ...] | None = None  # ``None``: it has no GPU to limit
        self.refused: str | None = None
        self.taken: str | None = None

    def take(self, state: Mapping[str, Any]) -> None:
        """Take the state of the limits there."""
        watts = state["levers"]
        self.levers = None if watts is None else tuple(Lever(POWER, each) for each in watts)
        self.refused, self.taken = (
            None if text is None else f"host {self._host}: {text}"
            for text in (state["refused"], state["taken"])
        )

    def enter(self, mode: str) -> None:
        """Let the node take the locks of its GPUs; ``mode`` is ``power_limit.mode``."""
        self.take(self._call("hold_limits", mode=mode))

    def set(self, watts: float | None, trial: str | None) -> None:
        """Hold a limit for a trial, or check it without one; restore for ``None``."""
        if self.levers is not None:
            self.take(self._call("limit", watts=watts, trial=trial))


class JoinedLimits:
    """The power limits of all hosts as one ``LimitHolder``: a limit is held on each or on none.

    ``own`` is that of this host, ``None`` without a GPU to limit. The node launchers restore the
    limits of their hosts when the submit ends, also if the head or a node dies.
    """

    def __init__(self, own: LimitHolder | None, remote: Sequence[RemoteLimits], mode: str) -> None:
        self._own, self._remote, self._mode = own, remote, mode
        self._unrestored: str | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:  # if a host is busy, nothing stays locked here
            if self._own is not None:
                stack.enter_context(self._own)
            for limits in self._remote:
                limits.enter(self._mode)
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for limits in self._remote:
            try:
                limits.set(None, None)
            except ZeusrunError as failure:  # its launcher tries again when it ends
                self._unrestored = str(failure)
        if self._own is not None:
            self._own.__exit__(*error)

    @property
    def levers(self) -> tuple[Lever, ...]:
        """The limits that every GPU accepts, ascending."""
        found = [
            each.levers for each in (self._own, *self._remote) if each and each.levers is not None
        ]
        first = found[0] if found else ()
        return tuple(lever for lever in first if all(lever in each for each in found))

    @property
    def refused(self) -> str | None:
        """Why the limits are not changed, on the first host of which that is true."""
        return self._first("refused")

    @property
    def taken(self) -> str | None:
        """A sentence on a limit that somebody else has set meanwhile."""
        return self._first("taken")

    @property
    def unrestored(self) -> str | None:
        """What could not be restored."""
        return self._unrestored if self._own is None else self._own.unrestored or self._unrestored

    def _first(self, name: str) -> str | None:
        found = (getattr(each, name) for each in (self._own, *self._remote) if each is not None)
        return next((text for text in found if text is not None), None)

    def hold(self, lever: Lever, trial: str) -> None:
        """Hold a limit on every GPU; see ``LimitHolder.hold``."""
        try:
            if self._own is not None:
                self._own.hold(lever, trial)
            for limits in self._remote:
                limits.set(lever.value, trial)
        except ZeusrunError as error:
            with contextlib.suppress(DeviceError):
                self.restore()
            raise error if isinstance(error, DeviceError) else DeviceError(str(error)) from error

    def keep_guarded(self) -> None:
        """Keep the guard of this host running; the other launchers keep theirs."""
        if self._own is not None:
            self._own.keep_guarded()

    def check(self, lever: Lever) -> None:
        """Raise a ``DeviceError`` for a limit that cannot be set; change nothing."""
        if self._own is not None:
            self._own.check(lever)
        for limits in self._remote:
            limits.set(lever.value, None)

    def restore(self) -> None:
        """Restore the original limits everywhere; raises ``DeviceError``."""
        try:
            with contextlib.ExitStack() as stack:  # whatever fails, the others are restored
                if self._own is not None:
                    stack.callback(self._own.restore)
                for limits in self._remote:
                    stack.callback(limits.set, None, None)
        except LaunchError as error:
            raise DeviceError(str(error)) from error
