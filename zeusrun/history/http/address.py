"""Addresses of servers."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from zeusrun.errors import UsageError
from zeusrun.redaction import MASK, hide_password


def check_url(url: str) -> SplitResult:
    """Return the parts of a server's address; raises ``UsageError`` if it is not usable."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        usable = usable and not ("@" in parts.netloc or parts.query or parts.fragment)
    except ValueError:  # a port that is no number, or a wrong IPv6 address
        usable = None
    if not usable:
        raise UsageError(
            f"{hide_login(url)!r} is not the address of a zeusrun server, such as "
            "https://zeus.example.org: it must not contain a user name, a password, '?' or '#'. A "
            "token stands in ZEUSRUN_TOKEN or in the file 'token' of ZEUSRUN_HOME"
        )
    return parts


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and no other."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def hide_login(url: str) -> str:
    """Return a URL without what may be a password or a token."""
    return hide_password(re.sub(r"//\S*@", f"//{MASK}@", url))
