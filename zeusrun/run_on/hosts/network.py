"""The network interfaces of this host, and the addresses by which hosts reach each other."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from dataclasses import dataclass

import psutil

from zeusrun.errors import LaunchError

_ANY_PORT = 9  # of a datagram socket that sends nothing
_INTERNET = {socket.AF_INET, socket.AF_INET6}


@dataclass(frozen=True)
class Endpoint:
    """Where this host is reached: the name of the interface, and its address."""

    nic: str
    address: str


def list_interfaces() -> dict[str, list[str]]:
    """Return the addresses of each interface of this host, IPv4 first."""
    found: dict[str, list[str]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        internet = [each for each in addresses if each.family in _INTERNET]
        internet.sort(key=lambda each: each.family != socket.AF_INET)
        if internet:
            found[name] = [each.address for each in internet]
    return found


def find_endpoint(host: str, nic: str | None, peer: str, *, by_ssh: bool = False) -> Endpoint:
    """Return where this host is reached by ``peer``, a name or an address.

    Args:
        host: The name of this host, for messages.
        nic: The interface that the user names; ``None``: the one that leads to ``peer``.
        peer: Another host.
        by_ssh: Whether its name may be an alias of ssh, for messages.

    Raises:
        LaunchError: If there is no such interface, or no way to ``peer``.
    """
    interfaces = list_interfaces()
    if nic is not None:
        if nic not in interfaces:
            raise LaunchError(
                f"host {host} has no interface {nic}; it has {', '.join(interfaces)}. Correct "
                "run_on.nic in the job file"
            )
        if _is_loopback(interfaces[nic][0]) and not _is_loopback(resolve(peer) or "127.0.0.1"):
            raise LaunchError(f"run_on.nic: {nic} of host {host} does not lead to {peer}")
        return Endpoint(nic, interfaces[nic][0])
    address = _address_towards(host, peer, by_ssh=by_ssh)
    interface = next((name for name, found in interfaces.items() if address in found), None)
    if interface is None:
        raise LaunchError(f"host {host}: no interface has its address {address}; set run_on.nic")
    return Endpoint(interface, address)


def resolve(name: str) -> str | None:
    """Return the address of a name; ``None`` if it has none here."""
    with contextlib.suppress(OSError, UnicodeError):  # such as a..b
        return str(socket.getaddrinfo(name, None)[0][4][0])
    return None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def is_own_name(name: str) -> bool:
    """Whether a name or an address is of this host."""
    own_name = socket.gethostname()
    local = {address for each in list_interfaces().values() for address in each}
    if name in {"localhost", own_name, own_name.partition(".")[0], *local}:
        return True
    address = resolve(name)
    return address is not None and (address in local or _is_loopback(address))


def _address_towards(host: str, peer: str, *, by_ssh: bool) -> str:
    try:
        family, kind, _, _, target = socket.getaddrinfo(peer, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(target)  # finds the route; nothing is sent
            return str(sock.getsockname()[0])
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        advice = "name the network interface under run_on.nic in the job file"
        if isinstance(error, (socket.gaierror, UnicodeError)):
            advice = f"correct the name, or{', for an alias of ssh,' * by_ssh} {advice}"
        raise LaunchError(f"host {host} has no route to {peer}: {why}; {advice}") from error
