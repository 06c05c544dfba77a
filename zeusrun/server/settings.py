"""The settings of a server: flags, then the environment, then ``server.yaml``, then defaults."""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from zeusrun.errors import HistoryError, UsageError, home_advice
from zeusrun.history.sql.engine import parse_url
from zeusrun.job_name import is_job_pattern
from zeusrun.jobfile.section import Section, validate
from zeusrun.jobfile.yaml_reader import JobDocument, read_document

if TYPE_CHECKING:
    from collections.abc import Mapping

DATABASE_VARIABLE = "ZEUSRUN_DATABASE_URL"
SETTINGS_FILE = "server.yaml"


def _check_entry(entry: str) -> str:
    if not entry.strip("@ ") or not entry.isprintable() or entry != entry.strip():
        raise ValueError("must be a person, a group such as '@research', or '*' for everybody")
    return entry


def _check_pattern(jobs: str) -> str:
    if not is_job_pattern(jobs):
        raise ValueError(f"must be a job or a pattern of jobs such as 'team-*', not {jobs[:70]!r}")
    return jobs


def _check_header(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name):
        raise ValueError(f"must be the name of a header, such as X-Forwarded-User, not {name!r}")
    return name


_Entry = Annotated[str, AfterValidator(_check_entry)]
_Pattern = Annotated[str, AfterValidator(_check_pattern)]
_HeaderName = Annotated[str, AfterValidator(_check_header)]


class ServerSettings(Section):
    """The settings of a server; ``load_settings`` reads them."""

    database_url: str = Field(repr=False, description="SQLAlchemy's; see docs/server.md.")
    host: str = Field("127.0.0.1", min_length=1, description="The address to listen on.")
    port: int = Field(8787, ge=0, le=65535, description="The port to listen on.")
    path_prefix: str = Field("", description="The path of the server behind a proxy: /zeusrun.")
    workers: int = Field(1, ge=1, le=64, description="Processes.")
    ssl_certfile: str | None = Field(None, description="A certificate chain, for HTTPS.")
    ssl_keyfile: str | None = Field(None, description="Its private key.")
    require_token: bool = Field(
        False, description="Answer nobody without a token, even before one was made."
    )
    insecure: bool = Field(
        False, description="Listen to other machines without HTTPS, or without tokens."
    )
    trusted_proxies: str = Field(
        "127.0.0.1", description="Addresses of proxies whose X-Forwarded-For is believed."
    )
    auth_header: _HeaderName | None = Field(
        None, description="The header in which these proxies name the person."
    )
    groups_header: _HeaderName | None = Field(
        None, description="The header with the groups of this person, separated by commas."
    )
    people: dict[_Entry, _Pattern] = Field({}, description="Who may read which jobs.")
    access_log: bool = Field(False, description="Log every request.")
    demo: bool = Field(False, description="Say on each page that the history is made up.")

    @model_validator(mode="before")
    @classmethod
    def _close(cls, values: dict[str, Any]) -> dict[str, Any]:
        """If people sign in, every other request needs a token."""
        closed = {"require_token": values.get("require_token") or True}
        return {**values, **closed} if values.get("auth_header") else values

    @field_validator("path_prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        if not re.fullmatch(r"(/[\w-]+)*", prefix, re.ASCII):
            raise ValueError("must be a path such as /zeusrun, without a slash at its end")
        return prefix

    def build_url(self, host: str, port: int) -> str:
        """Return the address of a server that listens there; on all addresses, by its name."""
        if not host.strip("0.:"):
            host = socket.gethostname()
        scheme = "http" if self.ssl_certfile is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{self.path_prefix}"


def load_settings(
    home: Path, environment: Mapping[str, str], given: Mapping[str, Any] | None = None
) -> ServerSettings:
    """Return the settings; ``given`` are those of flags, ``None`` if a flag was not used.

    Raises:
        JobFileError: If the file is not usable.
        UsageError: If the environment or a flag is not.
        HistoryError: If this user may not read the home.
    """
    path = home / SETTINGS_FILE
    try:
        document = read_document(path) if path.is_file() else JobDocument(str(path))
    except OSError as error:
        why = f"{error.strerror}; {home_advice(error)}"
        raise HistoryError(f"{path} cannot be read: {why}") from None
    named = {"database_url": environment.get(DATABASE_VARIABLE) or None}
    for origin, values in ((DATABASE_VARIABLE, named), ("", given or {})):
        _put(document, values, origin)
    own = f"sqlite:///{home}/server/history.db"
    document.data.setdefault("database_url", own)
    settings = validate(ServerSettings, document)
    if (settings.ssl_certfile is None) != (settings.ssl_keyfile is None):
        raise UsageError("HTTPS needs both --ssl-certfile and --ssl-keyfile")
    if settings.demo:
        raise UsageError(f"demo is not a key of {SETTINGS_FILE}")
    _check_people(settings)
    if settings.database_url != own:
        _check_folder(settings.database_url)
    return settings


def _put(document: JobDocument, values: Mapping[str, Any], origin: str = "") -> None:
    """Let values, such as those of flags, replace those of the file."""
    for key, value in values.items():
        if value is not None:
            document.data[key] = value
            document.origins[key,] = origin or f"--{key.replace('_', '-')}"


def _check_people(settings: ServerSettings) -> None:
    """Raise ``UsageError`` if people cannot sign in, or if anybody could under any name."""
    if settings.auth_header is None:
        if settings.people or settings.groups_header:
            raise UsageError(
                "people and groups_header need auth_header: the header in which a proxy says who "
                "sends a request, such as X-Forwarded-User"
            )
        return
    if not settings.people:
        raise UsageError(
            f"auth_header needs people: say in {SETTINGS_FILE} who may read which jobs, such as "
            """people: {"@research": "team-*"}"""
        )
    if settings.auth_header.lower() == "authorization":
        raise UsageError("auth_header: Authorization is for tokens; name another header")
    groups = [name for name in settings.people if name.startswith("@")]
    if groups and settings.groups_header is None:
        raise UsageError(
            f"people: {groups[0]} is a group, so groups_header must name their header, such as "
            "X-Forwarded-Groups"
        )
    for each in settings.trusted_proxies.split(","):
        try:
            known = ipaddress.ip_network(each.strip()).prefixlen > 0
        except ValueError:
            known = False
        if not known:
            raise UsageError(
                f"auth_header is accepted from trusted_proxies, and {each.strip()!r} is not the "
                "address of a proxy: anybody could use any name. Give the addresses of your "
                "proxies, or networks in which there is nobody else, such as 127.0.0.1,10.0.5.0/24"
            )


def _check_folder(database_url: str) -> None:
    """Raise ``UsageError`` if the folder of a SQLite file is not there: its path was mistyped."""
    url = parse_url(database_url)
    if url.get_backend_name() == "sqlite":
        folder = Path(str(url.database)).parent
        try:
            next(folder.iterdir(), None)
        except OSError as error:
            raise UsageError(
                f"the folder {folder} of the database cannot be used: {error.strerror}; correct "
                "the URL, or create the folder for the user of the server"
            ) from None
