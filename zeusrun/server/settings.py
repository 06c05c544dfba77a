"""The settings of a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a server."""

    database_url: str
    host: str = "127.0.0.1"
    port: int = 8787
    path_prefix: str = ""
    migrate: bool = False
    workers: int = 1
