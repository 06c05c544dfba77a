"""The settings of a server, which are the options of ``zeusrun serve``, and its database."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.history.sql.engine import parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping

DATABASE_VARIABLE = "ZEUSRUN_DATABASE_URL"


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server; ``docs/server.md`` describes them.

    ``demo``: each page says that the history is made up; there is no option for it.

    Raises:
        UsageError: If a server cannot have them.
    """

    database_url: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 8787
    path_prefix: str = ""
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    require_token: bool = False
    insecure: bool = False
    trusted_proxies: str = "127.0.0.1"
    access_log: bool = False
    demo: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"(/[\w-]+)*", self.path_prefix, re.ASCII):
            raise UsageError(
                "--path-prefix must be a path such as /zeusrun, without a slash at its end, not "
                f"{self.path_prefix!r}"
            )
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise UsageError("HTTPS needs both --ssl-certfile and --ssl-keyfile")


def find_database(home: Path, environment: Mapping[str, str], given: str | None = None) -> str:
    """Return the URL of the database: the given one, the environment's, or that of the home.

    Raises:
        UsageError: If it cannot be read, or the folder of a SQLite file is not there: the path was
            mistyped. The folder in the home is made if need be.
    """
    chosen = given or environment.get(DATABASE_VARIABLE)
    if not chosen:
        return f"sqlite:///{home}/server/history.db"
    url = parse_url(chosen)
    if url.get_backend_name() == "sqlite":
        folder = Path(str(url.database)).parent
        try:
            next(folder.iterdir(), None)
        except OSError as error:
            raise UsageError(
                f"the folder {folder} of the database cannot be used: {error.strerror}; correct "
                "the URL, or create the folder for the user of the server"
            ) from None
    return chosen
