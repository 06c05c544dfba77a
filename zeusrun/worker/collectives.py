"""What the ranks of a training tell each other; torch is not imported for it."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_Value = TypeVar("_Value")
_LATE_S = 10.0


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
            own = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
            stack.enter_context(torch.cuda.device(own))
        yield
