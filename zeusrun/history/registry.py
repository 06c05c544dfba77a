"""Opens histories by name or by the address of a server.

``ZEUSRUN_HISTORY`` names the one of all jobs, else ``zeusrun connect`` has named it in the home. A
job file may name another one. The home remembers it, so that every verb finds the job's runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import uuid4

from zeusrun.errors import HistoryError, UsageError, writes_to
from zeusrun.files.home import ADDRESS_FILE, shared_directory
from zeusrun.files.private import make_folder, read_file, replace_file
from zeusrun.history import rules
from zeusrun.history.base import History
from zeusrun.job_name import is_job_name
from zeusrun.plugins import BUILT_IN, create_plugin, load_built_in
from zeusrun.redaction import hide_password

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Unpack

    from zeusrun.history.base import Restoration, Snapshot
    from zeusrun.history.shared.spool import Spool
    from zeusrun.history.shared.store import Offline, SharedHistory
    from zeusrun.trial import Outcome, Trial

HISTORY_VARIABLE = "ZEUSRUN_HISTORY"
_DATABASE = re.compile(r"(sqlite|postgres|postgresql)(\+\w+)?://")
_MAX_BYTES = 4096


def open_history(
    home: Path,
    environment: Mapping[str, str],
    *,
    own: Mapping[str, str] | None = None,
    show: Callable[[str], None] = lambda _text: None,
) -> History:
    """Open the history of each job, to read it.

    Args:
        home: The home of zeusrun.
        environment: Its ``ZEUSRUN_HISTORY`` names the history of all jobs without one of their own.
        own: Histories of jobs, by the name of the job, besides those that the home remembers.
        show: Shows a sentence to the user, such as that a server does not respond.

    Raises:
        UsageError: If no history has the name, or it needs what is not installed. The methods of
            what is returned raise ``HistoryError`` if that is so for the history of one job.
    """
    chosen = {**chosen_histories(home), **(own or {})}

    name, from_ = find_default(home, environment)

    def open_(each: str) -> History:
        job = next((job for job, known in chosen.items() if known == each != name), None)
        source = from_ if job is None else f" (from the job file of {job})"
        try:
            return open_named(home, environment, each, show=show, source=source)
        except UsageError as error:  # that of one job is no reason not to read the others
            kind = UsageError if job is None else HistoryError
            raise kind(f"{error}{source}") from None

    return JobHistories(open_, name, chosen) if chosen else open_(name)


def find_default(home: Path, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of the history of all jobs without one of their own.

    Also return its source, for messages: it is empty for the environment.

    Raises:
        HistoryError: If the file of ``zeusrun connect`` cannot be read: runs would otherwise be
            recorded in another history.
    """
    if named := environment.get(HISTORY_VARIABLE):
        return named, ""
    path = home / ADDRESS_FILE
    try:
        url = read_file(path, _MAX_BYTES).decode(errors="replace").strip()
        why = "" if url.startswith(("http://", "https://")) else "it contains no address"
    except FileNotFoundError:
        return "tinydb", ""
    except OSError as error:
        why = str(error.strerror)
    if why:
        raise HistoryError(
            f"{path} cannot be read: {why}; `zeusrun connect --replace` writes it again, and "
            "`zeusrun connect --forget` removes it"
        )
    return url, f" (from {path})"


class Options(TypedDict, total=False):
    """What ``SharedHistory`` takes besides; other histories need none of it."""

    wait_s: float
    offline: Offline
    show: Callable[[str], None]
    pause: Callable[[float], None] | None


def open_named(
    home: Path,
    environment: Mapping[str, str],
    name: str,
    *,
    source: str = "",
    **options: Unpack[Options],
) -> History:
    """Open one history by its name or URL; raises ``UsageError`` if there is none.

    ``source`` is what messages add to the address of a server, such as who has named it.
    """
    if name in BUILT_IN["zeusrun.histories"]:
        made: History = load_built_in("zeusrun.histories", name)(home)
        return made
    if name.startswith(("http://", "https://")) or _DATABASE.match(name):
        return open_shared(home, environment, name, source=source, **options)
    history: History | None = create_plugin("zeusrun.histories", name, History, home)
    if history is None:
        raise UsageError(
            f"the history is {hide_password(name)!r}, but no installed plugin has that name; name "
            f"a server (its address begins with https:// or http://), or unset {HISTORY_VARIABLE} "
            "to use zeusrun's own history (docs/python-api.md describes plugins)"
        )
    return history


def open_shared(
    home: Path,
    environment: Mapping[str, str],
    url: str,
    *,
    source: str = "",
    **options: Unpack[Options],
) -> SharedHistory:
    """Open the history of a server by its address, as ``open_named`` does."""
    from zeusrun.history.http.client import HttpHistory, read_token  # noqa: PLC0415 - 20 ms
    from zeusrun.history.shared.store import SharedHistory  # noqa: PLC0415 - most have a local one

    if _DATABASE.match(url):
        raise UsageError(
            "zeusrun uses a database only through a server: run `zeusrun serve --database-url URL` "
            "on a machine that reaches the database, and give the address of the server "
            "(https://...) instead"
        )
    remote = HttpHistory(url, read_token(home, environment, url), source)
    folder = shared_directory(home) / _folder_name(url)
    with contextlib.suppress(OSError):  # the home is read-only
        _note(folder / "url", url)
    return SharedHistory(remote, folder, url, **options)


def known_servers(home: Path) -> dict[str, Path]:
    """Return the folder of each server that this home has used, by the address of the server."""
    folders: list[Path] = []
    with contextlib.suppress(OSError):
        # The folder "jobs" is not a server's, and a job may have the name "url".
        folders = sorted(each for each in shared_directory(home).iterdir() if each.name != "jobs")
    return {url: each for each in folders if (url := _read_note(each / "url")) is not None}


def waiting_spools(home: Path, besides: Collection[str] = ()) -> dict[str, Spool]:
    """Return the spools with waiting or refused writes, by the address of the server.

    Servers whose addresses are in ``besides`` are left out.
    """
    used = {_folder_name(name) for name in besides}
    folders = {url: each for url, each in known_servers(home).items() if each.name not in used}
    from zeusrun.history.shared.spool import Spool  # noqa: PLC0415 - as above

    spools = {url: Spool(folder / "spool") for url, folder in folders.items()}
    return {url: spool for url, spool in spools.items() if spool or spool.list_refused()}


def chosen_histories(home: Path) -> dict[str, str]:
    """Return the histories that job files have named, by the name of the job."""
    with contextlib.suppress(OSError):
        files = sorted((shared_directory(home) / "jobs").iterdir())
        found = {each.name: _read_note(each) for each in files if is_job_name(each.name)}
        return {job: name for job, name in found.items() if name}
    return {}


def remember_choice(home: Path, job: str, name: str | None) -> None:
    """Remember the history that a job file names; ``None`` if it names none.

    Raises:
        HistoryError: If the home cannot be written.
    """
    path = shared_directory(home) / "jobs" / job
    with writes_to(path):
        if name is not None:
            _note(path, name)
        else:
            path.unlink(missing_ok=True)


def _folder_name(url: str) -> str:
    """Return the folder name of a server; a slash at the end of the address makes no difference."""
    url = url.rstrip("/")
    host = re.sub(r"[^A-Za-z0-9.]+", "-", url.partition("://")[2])[:40].strip("-.")
    return f"{host}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _note(path: Path, text: str) -> None:
    """Write a short file, if it does not contain the text already."""
    if _read_note(path) != text:
        make_folder(path.parent)
        fresh = path.with_name(f".{path.name}.{uuid4().hex}")  # no job has such a name
        replace_file(path, f"{text}\n".encode(), fresh=fresh, durable=False)


def _read_note(path: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        return read_file(path, _MAX_BYTES).decode().strip()
    return None


class JobHistories(History):
    """The histories of all jobs, for verbs that read and repair. Each is opened on its first use.

    A launcher opens only the history of its own job, so methods for launchers are missing here.
    """

    def __init__(
        self, open_: Callable[[str], History], name: str, chosen: Mapping[str, str]
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            open_: Opens a history by its name.
            name: That of the history of all jobs that are not in ``chosen``.
            chosen: Names of histories by job.
        """
        self._open, self._name, self._chosen = open_, name, chosen
        self._opened: dict[str, History] = {}

    def _of(self, job: str | None) -> History:
        """Return the history of a job; ``None``: of what can be no job's."""
        name = self._chosen.get(job or "", self._name)
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name]

    def _of_trial(self, trial: str) -> History:
        return self._of(rules.job_of(trial) or rules.offline_job(trial))

    def jobs(self) -> list[str]:
        """See ``History.jobs``. Jobs with a history of their own count without asking it."""
        return sorted({*self._of(None).jobs(), *self._chosen})

    def trials(self, job: str, last: int | None = None) -> list[Trial]:
        """See ``History.trials``."""
        return self._of(job).trials(job, last)

    def count(self, job: str) -> int:
        """See ``History.count``."""
        return self._of(job).count(job)

    def unfinished(self, job: str) -> list[Trial]:
        """See ``History.unfinished``."""
        return self._of(job).unfinished(job)

    def find(self, trial: str) -> Trial | None:
        """See ``History.find``."""
        return self._of_trial(trial).find(trial)

    def snapshot(self, job: str, last: int | None = None) -> Snapshot:
        """See ``History.snapshot``."""
        return self._of(job).snapshot(job, last)

    def begin(self, trial: Trial, *, after: str, turn: int = 0) -> Trial:
        """See ``History.begin``."""
        return self._of(trial.job).begin(trial, after=after, turn=turn)

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``."""
        return self._of_trial(trial).finish(trial, outcome)

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """See ``History.forget``."""
        return self._of_trial(trial).forget(trial, forgotten=forgotten)

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """See ``History.add``; ``trials`` are of one job."""
        return self._of(trials[0].job).add(trials) if trials else []

    def address(self, job: str) -> str | None:
        """See ``History.address``."""
        return self._of(job).address(job)

    def ask_to_cancel(self, trial: str) -> bool:
        """See ``History.ask_to_cancel``."""
        return self._of_trial(trial).ask_to_cancel(trial)

    def live(self, trial: str) -> dict[str, Any] | None:
        """See ``History.live``."""
        return self._of_trial(trial).live(trial)

    def restore(self, job: str, found: Sequence[Trial]) -> Restoration:
        """See ``History.restore``."""
        return self._of(job).restore(job, found)
