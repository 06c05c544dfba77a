"""Lets ``worker/child.py`` begin in the ranks that ``subprocess`` starts with this interpreter.

Such a rank is started through ``worker/started.py``, which runs its script as Python does. That is
known only for a script or a module with plain options of Python, so any other command stays as it
is, and so does every program that is no rank.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

STARTED = os.path.join(os.path.dirname(os.path.dirname(__file__)), "started.py")  # noqa: PTH118, PTH120

_OPTION = re.compile(r"-[BEOPbdqsu]+|-[WX].*")  # with none of them does a script begin otherwise
_START_RANKS = {
    "torchrun",
    "accelerate",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
}


def place_in(environment: Mapping[str, str]) -> tuple[str | None, ...]:
    """Return what the variables of torchrun say of a process."""
    return tuple(environment.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))


def reach_programs(subprocess: Any, own: tuple[str | None, ...]) -> None:
    """Start ranks, and programs that start ranks, through ``worker/started.py``.

    Args:
        subprocess: The module.
        own: The place with which this process began: a program that inherits it is no rank.
    """
    cls = subprocess.Popen
    start = cls.__init__

    @functools.wraps(start)
    def __init__(process: Any, args: Any, *others: Any, **options: Any) -> None:
        words = None
        with contextlib.suppress(Exception):  # whatever a script may pass
            if not others and not options.get("shell") and options.get("executable") is None:
                environment = options.get("env")
                words = _reach(args, os.environ if environment is None else environment, own)
        start(process, args if words is None else words, *others, **options)
        process.args = args

    cls.__init__ = __init__


def _reach(
    args: object, environment: Mapping[str, str], own: tuple[str | None, ...]
) -> list[str] | None:
    """Return the command that runs a program through ``started.py``; ``None`` to leave it alone."""
    if not isinstance(args, (list, tuple)) or not environment.get("ZEUSRUN_RUN_DIR"):
        return None
    words = [os.fspath(word) for word in args]
    program = shutil.which(words[0], path=environment.get("PATH")) or ""
    name = os.path.basename(program)  # noqa: PTH119
    if name in _START_RANKS:
        with open(program, encoding="utf-8") as file:  # noqa: PTH123
            words[:1] = [file.readline().removeprefix("#!").strip(), program]
    at = 1
    while _OPTION.fullmatch(words[at]):
        at += 2 if words[at] in {"-W", "-X"} else 1
    what = words[at + 1] if words[at] == "-m" else words[at]
    place = place_in(environment)
    is_rank = place != own and any(place[:2]) and int(place[2] or 1) > 1
    if what.startswith("-") or not what or what == STARTED or not _is_ours(words[0], environment):
        return None
    if is_rank or name in _START_RANKS or (words[at] == "-m" and what in _START_RANKS):
        return [*words[:at], STARTED, *words[at:]]
    return None


def _is_ours(python: str, environment: Mapping[str, str]) -> bool:
    """Whether a program is this interpreter: also ``python3`` beside ``python``, as in a venv."""
    path = shutil.which(python, path=environment.get("PATH")) or ""
    same_folder = os.path.dirname(path) == os.path.dirname(sys.executable)  # noqa: PTH120
    return same_folder and os.path.realpath(path) == os.path.realpath(sys.executable)
