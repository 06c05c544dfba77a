"""``connect``: let this home use the history of a server, by a code of ``zeusrun token create``."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from zeusrun.commands.options import AsJson, answer, tell
from zeusrun.errors import ExitCode, UsageError, writes_to
from zeusrun.files.home import ADDRESS_FILE, trusted_home
from zeusrun.files.private import make_folder, replace_file
from zeusrun.history.http.client import TOKEN_FILE, TOKEN_VARIABLE, HttpHistory, read_address
from zeusrun.history.registry import HISTORY_VARIABLE, open_shared, waiting_spools
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.maintenance.doctor import attempt, check_server
from zeusrun.view.upkeep import doctor_sheet

if TYPE_CHECKING:
    from pathlib import Path


def connect(
    address: Annotated[
        str | None, Argument(metavar="ADDRESS", help="The server: https://zeus.example.org.")
    ] = None,
    code: Annotated[
        str | None, Argument(metavar="CODE", help="What `zeusrun token create` printed.")
    ] = None,
    *,
    replace: Annotated[
        bool, Option("--replace", help="Replace the token and the address of this home.")
    ] = False,
    forget: Annotated[
        bool, Option("--forget", help="Remove both, and use the history of this home again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let this machine use the history of a server.

    The code is exchanged for a token. Job files and ZEUSRUN_HISTORY may still name another history.
    """
    home = trusted_home(os.environ)
    if forget:
        if address is not None or replace or as_json:
            raise UsageError("--forget takes nothing else")
        typer.echo(_forget(home))
        return
    if address is None or code is None:
        raise UsageError(
            "give the address of the server and a code: `zeusrun token create` on the server "
            "prints the whole command"
        )
    url, path = address.rstrip("/"), home / TOKEN_FILE
    known = read_address(home)
    if path.exists() and not replace and known != url:
        raise UsageError(
            f"{path} contains a token already; give --replace to replace it, or set ZEUSRUN_HOME "
            "to another directory. The code was not used"
        )
    _check_writable(home)  # before the code is used
    with closing(HttpHistory(url)) as remote:
        try:
            token = remote.connect(code, socket.gethostname())
        except ValueError as error:
            raise UsageError(f"the server {url} refuses the code: {error}") from None
    with writes_to(path):
        path.unlink(missing_ok=True)  # that of another server is not sent to this one
    _write(home / ADDRESS_FILE, url)
    _write(path, token)
    _warn(home, url)
    checks = attempt(
        "server",
        lambda: check_server(
            open_shared(home, os.environ, url, source=f" (from {home / ADDRESS_FILE})")
        ),
    )
    record = {"server": url, "home": str(home), "checks": [vars(check) for check in checks]}
    if not as_json:
        typer.echo(f"The home {home} uses {url} from now on, with a token of its own in {path}.")
    answer(record, doctor_sheet(checks), as_json=as_json)
    if any(check.well is False for check in checks):
        raise typer.Exit(ExitCode.LAUNCH)


def _write(path: Path, text: str) -> None:
    with writes_to(path):
        replace_file(path, f"{text}\n".encode())


def _check_writable(home: Path) -> None:
    """Raise ``HistoryError`` if the home cannot be written."""
    probe = home / f".{ADDRESS_FILE}.probe"
    with writes_to(home):
        make_folder(home)
        replace_file(probe, b"")
        probe.unlink()
    for path in (home / ADDRESS_FILE, home / TOKEN_FILE):
        with writes_to(path):
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def _warn(home: Path, url: str) -> None:
    """Say what is still used instead of the server or its token, and what it does not have yet."""
    if (os.environ.get(HISTORY_VARIABLE) or url).rstrip("/") != url:
        tell(f"{HISTORY_VARIABLE} names another history and takes precedence: unset it")
    if TOKEN_VARIABLE in os.environ:
        tell(f"{TOKEN_VARIABLE} takes precedence over the new token: unset it")
    if TinyDBHistory(home / "history").jobs():
        tell("earlier runs may not be on the server: `zeusrun history --import` copies them")


def _forget(home: Path) -> str:
    """Remove what ``connect`` has written; return what was done."""
    if not (home / ADDRESS_FILE).exists():
        raise UsageError(f"the home {home} is not connected to a server: nothing is removed")
    if waiting_spools(home):
        tell(
            "results wait for the server: `zeusrun doctor` lists them; connect again to deliver "
            "them with the next submit"
        )
    for name in (ADDRESS_FILE, TOKEN_FILE):
        with writes_to(home / name):
            (home / name).unlink(missing_ok=True)
    return (
        f"The home {home} uses its own history again, and its token is removed. On the server, "
        "`zeusrun token revoke` ends the token."
    )
