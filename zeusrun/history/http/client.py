"""A history on a zeusrun server. Each request is made once; ``SharedHistory`` tries again."""

from __future__ import annotations

import json
import re
import stat
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from zeusrun import __version__
from zeusrun.errors import HistoryError, UsageError
from zeusrun.files.home import ADDRESS_FILE
from zeusrun.files.private import read_file
from zeusrun.history import base, rules
from zeusrun.history.turns import Turn
from zeusrun.job_name import check_job_name
from zeusrun.plugins import check_extra, how_to_add
from zeusrun.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from zeusrun.history.http.transport import Answer
    from zeusrun.trial import Outcome

_Result = TypeVar("_Result")
TOKEN_VARIABLE = "ZEUSRUN_TOKEN"  # noqa: S105 - a name
TOKEN_FILE = "token"  # noqa: S105 - a name
_LIMIT_S = 60.0  # of a request that may read a whole history
_SHORT_S = 10.0  # of one that reads or writes a trial
_AGAIN = {408, 429, 502, 503, 504}  # the request may succeed a little later
_MAX_ADDED = 100  # trials in one request; one of 1,000 epochs has about 100 kB
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_TO_TLS = re.compile(rb"plain HTTP|HTTP request to an HTTPS")  # nginx, Apache; Caddy, Traefik
_IS_IT_A_SERVER = "is this the address of a zeusrun server of the same version?"
_ADVICE = (
    "`zeusrun token create` on the server makes one: run the `zeusrun connect` that it prints, "
    f"with --replace if there is a token already, set {TOKEN_VARIABLE} to the token, or write it "
    "into the file 'token' of ZEUSRUN_HOME"
)


class HttpHistory(base.Shared):
    """A history on a server; safe for threads.

    Requests are idempotent: a trial has a uuid of its own.
    """

    def __init__(self, url: str, token: str | None = None, source: str = "") -> None:
        """Prepare; nothing is sent yet.

        Args:
            url: The address of the server, such as ``https://zeus.example.org/prefix``.
            token: What it is asked with; ``None`` for a server that needs none.
            source: What messages add to the address.

        Raises:
            UsageError: If the address or the proxy is not usable, or urllib3 is missing or too old.
        """
        check_extra("a history on a server", "http", "urllib3")
        from urllib3 import HTTPResponse  # noqa: PLC0415 - an extra

        if not hasattr(HTTPResponse, "read1"):
            raise UsageError(f"a history on a server needs urllib3 2.2; {how_to_add('http')}")
        from zeusrun.history.http.transport import Transport  # noqa: PLC0415 - an extra, 50 ms

        self._transport = Transport(url, source)
        self.url = self._transport.url
        self._headers = {
            "Accept": "application/json",
            "User-Agent": f"zeusrun/{__version__}",
        }
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def describe(self) -> dict[str, Any]:
        """Return what the server says of itself: its API, version, clock and database."""
        return self._ask("GET", "", lambda found: {**found, "now": float(found["now"])})

    def connect(self, code: str, host: str) -> str:
        """Use a code of ``zeusrun token create`` for a machine; return its new token.

        The code is not sent to a server that is not one of zeusrun.
        """
        try:
            self._ask("GET", "/connect", lambda found: int(found["api"]))
        except base.RefusedError as error:
            text = f"{self.url} is not the address of a zeusrun server that has `connect`: {error}"
            raise base.RefusedError(f"{text}. The code was not used") from None
        body = {"code": code, "host": host}
        return self._ask("POST", "/connect", lambda found: str(found["token"]), body)

    def jobs(self) -> list[str]:
        """See ``History.jobs``."""
        return self._ask("GET", "/jobs", lambda found: list(map(str, found["jobs"])))

    def unfinished(self, job: str) -> list[Trial]:
        """See ``History.unfinished``."""
        check_job_name(job)
        return self._ask("GET", f"/jobs/{job}/unfinished", _read_trials)

    def find(self, trial: str) -> Trial | None:
        """See ``History.find``; a uuid is found, too."""
        try:
            return self._trial("GET", _path_of(trial))
        except base.UnknownTrialError:
            return None

    def changes(self, job: str, after: str | None, last: int | None = None) -> base.Changes:
        """See ``Shared.changes``."""
        check_job_name(job)
        asked = {"after": after, "last": last}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return self._ask("GET", f"/jobs/{job}/trials?{query}", _read_changes, limit_s=_LIMIT_S)

    def ask_turn(self, job: str, number: int = 0) -> Turn:
        """See ``History.ask_turn``."""
        check_job_name(job)
        names = Turn._fields
        return self._ask(
            "POST",
            f"/jobs/{job}/turns",
            lambda found: Turn(*(int(found[name]) for name in names)),
            {"number": number},
        )

    def leave_turn(self, job: str, number: int) -> None:
        """See ``History.leave_turn``."""
        check_job_name(job)
        self._ask("DELETE", f"/jobs/{job}/turns/{number}", dict)

    def begin(self, trial: Trial, *, after: str, turn: int = 0) -> Trial:
        """See ``History.begin``. The same trial again, as after a lost answer, changes nothing."""
        rules.check_new(trial)
        body = {"trial": rules.encode_trial(trial), "after": after, "turn": turn}
        return self._trial("POST", f"/jobs/{trial.job}/trials", body)

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``."""
        return self._change(trial, "outcome", outcome.to_json())

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """See ``History.forget``."""
        return self._change(trial, "forgotten", {"forgotten": forgotten})

    def renew(self, trial: str, live: dict[str, Any] | None = None) -> bool:
        """See ``History.renew``."""
        path = f"{_path_of(trial)}/lease"
        return self._ask("PUT", path, lambda found: found["cancel"] is True, {"live": live})

    def ask_to_cancel(self, trial: str) -> bool:
        """See ``History.ask_to_cancel``."""
        path = f"{_path_of(trial)}/cancel"
        return self._ask("POST", path, lambda found: found["asked"] is True)

    def live(self, trial: str) -> dict[str, Any] | None:
        """See ``History.live``."""
        found = self._ask("GET", f"{_path_of(trial)}/lease", lambda found: found.get("live"))
        return found if isinstance(found, dict) else None

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """See ``History.add``; many trials are sent in several requests, each all or none."""
        stored: list[Trial] = []
        encoded = [rules.encode_trial(trial) for trial in trials]
        for job, of_job in groupby(encoded, key=lambda record: record["job"]):
            records = list(of_job)
            for at in range(0, len(records), _MAX_ADDED):
                body = {"trials": records[at : at + _MAX_ADDED]}
                stored += self._ask("POST", f"/jobs/{job}/imports", _read_trials, body, _LIMIT_S)
        return stored

    def report_host(self, host: str, facts: dict[str, Any]) -> None:
        """See ``History.report_host``."""
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host[:200]!r} is no name of a machine that a URL can contain")
        self._ask("PUT", f"/hosts/{quote(host, safe='')}", dict, facts)

    def keep_trace(self, trial: str, trace: dict[str, Any]) -> None:
        """See ``History.keep_trace``."""
        self._ask("PUT", f"{_path_of(trial)}/trace", dict, trace)

    def keep_settings(self, job: str, settings: str) -> None:
        """See ``History.keep_settings``."""
        self._ask("PUT", f"/jobs/{job}/settings", dict, {"settings": settings})

    def _change(self, trial: str, what: str, body: dict[str, Any]) -> Trial:
        return self._trial("POST", f"{_path_of(trial)}/{what}", body)

    def _trial(self, method: str, path: str, body: dict[str, Any] | None = None) -> Trial:
        return self._ask(
            method, path, lambda found: _read_trials({"trials": [found["trial"]]})[0], body
        )

    def _ask(
        self,
        method: str,
        path: str,
        read: Callable[[dict[str, Any]], _Result],
        body: dict[str, Any] | None = None,
        limit_s: float = _SHORT_S,
    ) -> _Result:
        """Send a request; return what is read in the answer, or raise what a refusal means."""
        content, headers = None, self._headers
        if body is not None:
            try:
                content = json.dumps(body, allow_nan=False).encode()
            except (TypeError, ValueError) as error:
                raise ValueError(f"it cannot be stored: {error}") from error
            headers = {**headers, "Content-Type": "application/json"}
        answer = self._transport.send(method, f"/api/v1{path}", headers, content, limit_s)
        try:
            found = json.loads(answer.body) if answer.status != 204 else {}
        except (ValueError, RecursionError):
            found = None
        if not (200 <= answer.status < 300 and isinstance(found, dict)):
            raise _refusal(self.url, answer, found, path)
        try:
            return read(found)
        except (KeyError, TypeError, ValueError) as error:
            text = f"the answer of {self.url} cannot be read; {_IS_IT_A_SERVER}"
            raise HistoryError(text) from error


def read_token(home: Path, environment: Mapping[str, str], url: str) -> str | None:
    """Return the token of ``ZEUSRUN_TOKEN``, else of the file ``token`` of the home.

    A file that ``zeusrun connect`` has written is for that server alone, so that a job file which
    names another one does not send it there.

    Raises:
        HistoryError: If others can read the file, or there is no token in it.
    """
    token, path = environment.get(TOKEN_VARIABLE), home / TOKEN_FILE
    if token is None:
        if read_address(home) not in {None, url.rstrip("/")}:
            return None
        try:
            mode = path.stat().st_mode
            if stat.S_IMODE(mode) & 0o077:
                raise HistoryError(f"others can read the token in {path}; run: chmod 600 {path}")
            token = read_file(path, 4096).decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HistoryError(f"the token in {path} cannot be read: {error.strerror}") from error
    token = token.strip()
    if not (token.isascii() and token.isprintable()) or not token or " " in token:
        where = path if TOKEN_VARIABLE not in environment else TOKEN_VARIABLE
        raise HistoryError(f"there is no token in {where}: one line of letters and digits expected")
    return token


def read_address(home: Path) -> str | None:
    """Return which server ``zeusrun connect`` has named; ``None`` if none."""
    with suppress(OSError):
        return read_file(home / ADDRESS_FILE, 4096).decode(errors="replace").strip().rstrip("/")
    return None


def _refusal(url: str, answer: Answer, found: Any, path: str) -> Exception:  # noqa: ANN401 - JSON
    """Return what the answer to a refused request means."""
    status, code, message = answer.status, "", f"HTTP status {answer.status}"
    error = found.get("error") if isinstance(found, dict) else None
    if isinstance(error, dict):
        code, message = str(error.get("code")), str(error.get("message"))[:500]
    if status in _AGAIN or (status == 500 and not code):  # also one that is just being stopped
        refused = base.UnavailableError(f"the server {url} does not respond: {message}")
        refused.retry_after_s = _seconds(answer.headers.get("Retry-After"))
        return refused
    if code == "conflict":
        return base.Conflict(message)
    if code == "unknown" and path.startswith("/trials/"):
        return base.UnknownTrialError(message)
    if code in {"invalid", "size"}:
        return ValueError(message)
    kind = base.RefusedError if 300 <= status < 500 else HistoryError
    return kind(f"the server {url} refuses: {message}{_advice(answer, code)}")


def _advice(answer: Answer, code: str) -> str:
    """Return what to do about a refusal that waiting does not repair."""
    if answer.status in {401, 403}:
        return f"; {_ADVICE}"
    if 300 <= answer.status < 400:
        return f"; it redirects to {answer.headers.get('Location', 'elsewhere')}"
    if answer.status == 413:
        return "; a proxy before the server limits the size of a request: let it allow 32 MiB"
    if code not in {"", "route", "method"}:  # else perhaps the right server, with a wrong path
        return ""
    if _TO_TLS.search(answer.body):
        return "; it answers https, not http: correct its address"
    return f"; {_IS_IT_A_SERVER}"


def _path_of(trial: str) -> str:
    """Return the path of a trial; raises ``UnknownTrialError`` for what cannot be one."""
    if rules.is_uuid(trial) or rules.job_of(trial) is not None:
        return f"/trials/{quote(trial, safe='')}"
    raise rules.unknown_trial(trial)


def _read_changes(found: dict[str, Any]) -> base.Changes:
    trials, whole = tuple(_read_trials(found)), found["whole"] is True
    return base.Changes(trials, str(found["version"]), int(found["total"]), whole)


def _read_trials(found: dict[str, Any]) -> list[Trial]:
    records = [dict(record) for record in found["trials"]]
    try:
        return [Trial.from_json(record) for record in records]
    except ValueError as error:
        raise HistoryError(
            f"the server sent a trial that zeusrun {__version__} cannot read: {error}; update "
            "zeusrun here"
        ) from error


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdecimal() else None
