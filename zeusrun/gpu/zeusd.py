"""A client of ``zeusd``, the daemon of the Zeus project that sets power limits for other users.

It uses HTTP over a Unix socket; source: the documentation of zeusd, "HTTP API Reference". zeusrun
never starts a zeusd.
"""

from __future__ import annotations

import json
import re
import socket
import stat
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.errors import DeviceError, LimitRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.gpu.cuda_visible import PciAddress

# What zeusd's own client reads, and the token that it sends.
SOCKET_VARIABLE, TOKEN_VARIABLE = "ZEUSD_SOCK_PATH", "ZEUSD_TOKEN"
DEFAULT_SOCKET = "/run/zeusd/zeusd.sock"
_MAX_ANSWER_BYTES = 1 << 20
_TIMEOUT_S = 3.0  # usually milliseconds; a hanging daemon must not delay training
_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.[0-9a-f]", re.IGNORECASE)


@dataclass(frozen=True)
class Zeusd:
    """A daemon behind a Unix socket."""

    path: Path
    timeout_s: float = _TIMEOUT_S
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"zeusd ({self.path})"

    def set_power_limit_w(
        self, nvml_index: int, watts: float, gpu_count: int, pci: PciAddress | None = None
    ) -> None:
        """Let the daemon set the power limit of a GPU. The caller reads the limit back.

        The daemon numbers GPUs as its own NVML does. A container may number them differently, and
        then the wrong GPU would get the limit. If the daemon lists PCI addresses, they identify the
        GPU. Otherwise it must have ``gpu_count`` GPUs, as NVML has in this process.

        Raises:
            LimitRefusedError: If the daemon does not run, does not permit it, or sees other GPUs
                than this process. Nothing was changed then.
            DeviceError: If it refuses the limit, or does not answer in time. It may then still set
                this limit, or an earlier one.
        """
        number = self._number_of(nvml_index, gpu_count, pci)
        query = f"gpu_ids={number}&power_limit_mw={round(watts * 1000)}&block=true"
        status, text = self._request("POST", f"/gpu/set_power_limit?{query}")
        if status == HTTPStatus.OK:
            return
        answer = f"{self} answered {status} {text.strip()[:200]}".rstrip()
        if status == HTTPStatus.UNAUTHORIZED:
            answer += f" (it takes a token with the scope gpu-control from {TOKEN_VARIABLE})"
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
            raise LimitRefusedError(answer)
        raise DeviceError(f"{answer}, so the power limit of GPU {nvml_index} is not {watts:g} W")

    def _number_of(self, nvml_index: int, gpu_count: int, pci: PciAddress | None) -> int:
        """Return the daemon's number for a GPU."""
        status, text = self._request("GET", "/discover")
        try:
            numbers = _read_gpus(json.loads(text)) if status == HTTPStatus.OK else {}
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            numbers = {}
        if not numbers:
            raise LimitRefusedError(f"{self} does not list its GPUs; zeusd 0.3 and later do")
        addresses = {address: number for number, address in numbers.items() if address is not None}
        if pci is not None and len(addresses) == len(numbers):
            if pci not in addresses:
                where = "{:04x}:{:02x}:{:02x}.0".format(*pci)
                raise LimitRefusedError(f"{self} does not have GPU {nvml_index}, at PCI {where}")
            return addresses[pci]
        if len(numbers) != gpu_count or nvml_index not in numbers:
            raise LimitRefusedError(
                f"{self} has {len(numbers)} GPUs and this process {gpu_count}, so it may number "
                "them differently"
            )
        return nvml_index

    def _request(self, method: str, target: str) -> tuple[int, str]:
        from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 - 20 ms, seldom needed

        connection = HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(self.timeout_s)
        headers = {}
        if self.token:
            if not self.token.isascii() or not self.token.isprintable():
                raise LimitRefusedError(
                    f"{TOKEN_VARIABLE} is not a token: it must be printable ASCII"
                )
            headers["Authorization"] = f"Bearer {self.token}"
        sent = False
        try:
            connection.sock.connect(str(self.path))
            sent = method == "POST"
            connection.request(method, target, headers=headers)
            response = connection.getresponse()
            return response.status, response.read(_MAX_ANSWER_BYTES).decode("utf-8", "replace")
        except (OSError, HTTPException) as error:
            why = getattr(error, "strerror", None) or repr(error)
            if sent:  # it may still set the limit, so do not assume that it is unchanged
                raise DeviceError(f"{self} was sent a limit and does not answer: {why}") from error
            if isinstance(error, TimeoutError):  # it may still set a limit sent before
                limit_s = f"{self.timeout_s:g} s"
                raise DeviceError(f"{self} does not answer in {limit_s}; restart it") from error
            raise LimitRefusedError(f"{self} does not answer: {why}") from error
        finally:
            connection.close()


def find_zeusd(environment: Mapping[str, str]) -> Zeusd | None:
    """Return the daemon that an environment names, or the one at the default socket, if any."""
    token = environment.get(TOKEN_VARIABLE, "").strip() or None
    path = Path(environment.get(SOCKET_VARIABLE) or DEFAULT_SOCKET)
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return None
    return Zeusd(path, token=token) if is_socket else None


def _read_gpus(discovered: Any) -> dict[int, PciAddress | None]:  # noqa: ANN401 - any JSON
    """Read the GPUs of ``/discover``: PCI addresses by number.

    zeusd 0.3 and 0.4 list ``gpu_ids``; 0.5 lists ``gpus`` with ``id``, later ``pci_address``, too.
    """
    if "gpus" not in discovered:
        return {int(number): None for number in discovered["gpu_ids"]}
    return {int(gpu["id"]): _read_pci(gpu.get("pci_address")) for gpu in discovered["gpus"]}


def _read_pci(text: str | None) -> PciAddress | None:
    found = None if text is None else _PCI.fullmatch(text)
    return None if found is None else (int(found[1], 16), int(found[2], 16), int(found[3], 16))
