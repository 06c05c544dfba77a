"""Checks a shared history: connection, version, token, clock, and what waits for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from zeusrun import __version__
from zeusrun.clock import local_time, read_clock
from zeusrun.errors import HistoryError
from zeusrun.history.http.address import is_loopback
from zeusrun.history.http.client import TOKEN_VARIABLE, HttpHistory, read_token
from zeusrun.history.registry import waiting_spools
from zeusrun.maintenance.doctor import Check

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from zeusrun.history.shared.spool import Spool
    from zeusrun.history.shared.store import SharedHistory

_MOST_APART_S = 60.0  # between two clocks; times of runs are compared across machines


def check_server(history: SharedHistory, environment: Mapping[str, str], home: Path) -> list[Check]:
    """Return the checks of one shared history."""
    checks, described = _check_connection(history)
    if isinstance(history.remote, HttpHistory):
        checks += _check_token(history.name, described.get("access"), environment, home)
    advice = "the next submit delivers them, or `zeusrun schedule tick` from cron"
    return [*checks, *_check_waiting(history.name, history.spool, advice)]


def check_unused(home: Path, used: Collection[str]) -> list[Check]:
    """Return the checks of what waits for other shared histories than those in use."""
    found = []
    for name, spool in waiting_spools(home, besides=used).items():
        advice = (
            "no job uses this address now; if the server has another one, `zeusrun repair "
            f"--restore JOB` adds the runs of this machine there; then remove {spool.folder}"
        )
        found += _check_waiting(name, spool, advice)
    return found


def _check_connection(history: SharedHistory) -> tuple[list[Check], dict[str, Any]]:
    """Return the checks, and what a server says of itself."""
    remote = history.remote
    described: dict[str, Any] = {}
    try:
        before, begun_t = read_clock(), time.monotonic()
        _, now = remote.identify()
        took_s = time.monotonic() - begun_t
        if isinstance(remote, HttpHistory):
            described = remote.describe()
        jobs = len(remote.jobs())
    except (HistoryError, ValueError) as error:
        return [Check("server", well=False, found=str(error))], {}
    version = described.get("version", __version__)
    of = f", zeusrun {version}" if described else ""
    count = "1 job" if jobs == 1 else f"{jobs} jobs"
    checks = [Check("server", well=True, found=f"{history.name}: {count}{of}, {took_s:.2f} s")]
    if version != __version__:
        found = f"the server runs zeusrun {version}, and this machine {__version__}"
        advice = "they work together if they are one version apart; update the older one"
        checks.append(Check("server", well=None, found=found, advice=advice))
    apart_s = now - (before + took_s / 2)
    if abs(apart_s) > max(_MOST_APART_S, took_s):
        ahead = "ahead of" if apart_s > 0 else "behind"
        found = f"the clock of {history.name} is {abs(apart_s):.0f} s {ahead} the clock here"
        checks.append(Check("clock", well=None, found=found, advice="synchronise both by NTP"))
    return checks, described


def _check_token(
    server: str, granted: object, environment: Mapping[str, str], home: Path
) -> list[Check]:
    """Return the checks of the token; ``granted`` is what the server says that it permits."""
    try:
        token = read_token(home, environment)
    except HistoryError as error:
        return [Check("token", well=False, found=str(error))]
    if token is None:
        return []
    where = TOKEN_VARIABLE if TOKEN_VARIABLE in environment else str(home / "token")
    checks = []
    parts = urlsplit(server)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        found = f"the token of {where} is sent to {server} without encryption"
        checks.append(Check("token", well=None, found=found, advice="let the server use https://"))
    if not isinstance(granted, dict):  # the server refuses it, or is older
        return checks
    if granted.get("token") is None:
        found = f"that of {where} is not used: the server needs none"
        return [*checks, Check("token", well=None, found=found)]
    name = f"{granted['token']} of {where}"
    if not granted.get("write"):
        found, advice = f"{name} may only read", "to submit, use one made with --write"
        return [*checks, Check("token", well=False, found=found, advice=advice)]
    found = f"{name} is for jobs called {granted.get('jobs')}"
    return [*checks, Check("token", well=True, found=found)]


def _check_waiting(name: str, spool: Spool, advice: str) -> list[Check]:
    checks = []
    waiting, refused = spool.entries(), spool.list_refused()
    if waiting:
        count = "1 write waits" if len(waiting) == 1 else f"{len(waiting)} writes wait"
        first = waiting[0].trial
        since = local_time(first.finished_at or first.started_at)
        oldest = first.trial if since is None else f"{first.trial} since {since:%Y-%m-%d %H:%M}"
        found = f"{count} for {name}, the oldest of {oldest}"
        checks.append(Check("spool", well=None, found=found, advice=advice))
    if refused:
        found = f"{name} has refused {len(refused)} results: {refused[0]}"
        advice = "the .txt file beside each says why; remove both files when you have read them"
        checks.append(Check("spool", well=False, found=found, advice=advice))
    return checks
