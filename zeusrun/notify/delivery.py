"""Delivers the notices in a folder: ``python -m zeusrun.notify.delivery FOLDER``.

It tries each notice three times, and again with each later notice; it gives up after nine tries.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from zeusrun.clock import timestamp
from zeusrun.errors import HistoryError
from zeusrun.files.atomic import replace_file
from zeusrun.files.lock import FileLock
from zeusrun.files.private import open_for_writing, read_file
from zeusrun.files.version import check_version
from zeusrun.launcher.processes.programs import run_bounded
from zeusrun.plain_text import plain_text

_PAUSES_S = (0.0, 2.0, 15.0)
_GIVE_UP = 9
_MAX_BYTES = 1 << 20
VERSION = 1
"""The version of the files with notices."""
_VARIABLES = ("event", "job", "trial", "text")  # a command gets them as ZEUSRUN_EVENT and so on


def deliver_all(folder: Path, pauses_s: tuple[float, ...] = _PAUSES_S) -> None:
    """Deliver the notices in a folder, and those that arrive meanwhile."""
    lock = FileLock(folder / "lock")
    tried: set[Path] = set()
    # List again after each release: the sender of a new notice found the lock taken.
    while fresh := sorted(set(folder.glob("*.json")) - tried):
        if not lock.acquire():
            return  # another process delivers, and lists the folder again
        try:
            for path in fresh:
                tried.add(path)
                _deliver(path, pauses_s)
        finally:
            lock.release()


def _deliver(path: Path, pauses_s: tuple[float, ...]) -> None:
    try:
        letter = json.loads(read_file(path, _MAX_BYTES))
        check_version(letter, VERSION, path)
        content = json.dumps(letter["notice"]).encode()
        letter["tries"], letter["timeout_s"] = int(letter["tries"]), float(letter["timeout_s"])
        values = {name: letter["notice"][name] for name in _VARIABLES}
        event = {f"ZEUSRUN_{n.upper()}": str(v) for n, v in values.items() if v is not None}
    except HistoryError as error:  # the newer zeusrun delivers it
        _log(path.parent / "failed.log", str(error))
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        path.unlink(missing_ok=True)  # not a notice
        return
    for pause_s in pauses_s:
        time.sleep(pause_s)
        letter["tries"] += 1
        try:
            problem = _try(letter, content, event)
        except Exception as error:  # noqa: BLE001 - the other notices must still be delivered
            problem = f"{type(error).__name__}: {error}"
        if not problem:
            path.unlink(missing_ok=True)
            return
        _log(path.parent / "failed.log", f"{letter['notice']['text']}: {problem}")
    if letter["tries"] >= _GIVE_UP:
        path.unlink(missing_ok=True)
    else:
        with suppress(OSError):
            replace_file(path, json.dumps(letter).encode())


def _try(letter: dict[str, Any], content: bytes, event: dict[str, str]) -> str:
    """Deliver to the URL and the command unless they have the notice; return the problems."""
    problems, timeout_s = {}, letter["timeout_s"]
    if letter["url"]:
        problems["url"] = _post(letter["url"], content, timeout_s)
    if letter["command"]:
        problems["command"] = _run(letter["command"], content, event, timeout_s)
    letter |= {way: None for way, problem in problems.items() if not problem}
    return "; ".join(filter(None, problems.values()))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a redirected POST becomes a GET without content."""

    def redirect_request(self, *_: object) -> None:
        """Follow no redirect; it becomes an HTTP error."""


def _post(url: str, content: bytes, timeout_s: float) -> str:
    headers = {"Content-Type": "application/json", "User-Agent": "zeusrun"}
    request = urllib.request.Request(url, content, headers)  # noqa: S310 - the job file's own, http(s)
    problem = f"POST: it took longer than {timeout_s:g} s"

    def post() -> None:
        nonlocal problem
        try:
            urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout_s).close()
            problem = ""
        except Exception as error:  # noqa: BLE001 - any error is a reason
            problem = f"POST: {error}"

    # The timeout of a socket limits each read, and no timeout limits name resolution: a slow server
    # would delay all other notices.
    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return problem


def _run(command: list[str], content: bytes, event: dict[str, str], timeout_s: float) -> str:
    try:
        code, complaint = run_bounded(command, content, {**os.environ, **event}, timeout_s)
    except OSError as error:  # TimeoutError is one
        return f"{command[0]}: {error.strerror or error}"
    return "" if code == 0 else f"{command[0]} ended with {code}: {complaint[-500:]}"


def _log(path: Path, text: str) -> None:
    with suppress(OSError):
        if path.exists() and path.stat().st_size > _MAX_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with open(open_for_writing(path, flags), "ab") as file:  # noqa: PTH123 - a descriptor
            line = plain_text(text).replace("\n", " ")
            file.write(f"{timestamp()} {line}\n".encode(errors="replace"))


if __name__ == "__main__":
    deliver_all(Path(sys.argv[1]))
