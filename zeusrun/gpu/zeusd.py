"""A client of ``zeusd``, the daemon of the Zeus project that may set power limits for others.

It speaks HTTP over a Unix socket; source: the documentation of zeusd. Zeusrun uses one that runs
already and never starts one.
"""

from __future__ import annotations

import json
import socket
import stat
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import DeviceError, LimitRefusedError
from zeusrun.gpu.pid_namespace import in_first_pid_namespace

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET_VARIABLE = "ZEUSD_SOCK_PATH"
DEFAULT_SOCKET = "/run/zeusd/zeusd.sock"
_TIMEOUT_S = 3.0  # a limit takes it milliseconds; a daemon that hangs must not hold up training


class Zeusd:
    """A daemon behind a socket."""

    def __init__(
        self,
        socket_path: Path,
        timeout_s: float = _TIMEOUT_S,
        *,
        in_container: bool | None = None,
    ) -> None:
        """Remember where it is; nothing is asked yet.

        Args:
            socket_path: Its Unix socket.
            timeout_s: Seconds to wait for each answer.
            in_container: Whether this process may see other GPUs than the daemon does; ``None``:
                find out.
        """
        self.socket_path = socket_path
        self._timeout_s = timeout_s
        self._in_container = not in_first_pid_namespace() if in_container is None else in_container

    def set_power_limit_w(self, nvml_index: int, watts: float, gpu_count: int) -> None:
        """Have a GPU held to ``watts``.

        The daemon knows GPUs by NVML's index in its own view, and a container may number them
        otherwise: then another one's limit would be set. So the count must agree, and a daemon
        that tells none (0.2) is not asked from a container; the caller reads the limit back.

        Args:
            nvml_index: NVML's number for the GPU in this process.
            watts: The limit.
            gpu_count: How many GPUs NVML has in this process.

        Raises:
            LimitRefusedError: If the daemon cannot be asked, does not let this user, or sees other
                GPUs than this process: then nothing is changed.
            DeviceError: If it refuses the limit, or was asked and does not answer: then it may
                change it yet.
        """
        self._check_view(gpu_count)
        milliwatts = round(watts * 1000)
        query = f"gpu_ids={nvml_index}&power_limit_mw={milliwatts}&block=true"
        status, text = self._request("POST", f"/gpu/set_power_limit?{query}")
        if status == HTTPStatus.NOT_FOUND:  # zeusd 0.2
            body = json.dumps({"power_limit_mw": milliwatts, "block": True})
            status, text = self._request("POST", f"/gpu/{nvml_index}/set_power_limit", body)
        if status == HTTPStatus.OK:
            return
        said = f"{self} answered {status} {text.strip()[:200]}".rstrip()
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
            raise LimitRefusedError(said)
        raise DeviceError(f"{said}, so the power limit of GPU {nvml_index} is not {watts:g} W")

    def _check_view(self, gpu_count: int) -> None:
        status, text = self._request("GET", "/discover")
        if status != HTTPStatus.OK and self._in_container:
            raise LimitRefusedError(
                f"{self} does not tell which GPUs it has, and a container may number them otherwise"
            )
        if status != HTTPStatus.OK:
            return
        try:
            known = len(json.loads(text)["gpu_ids"])
        except (ValueError, KeyError, TypeError):
            raise LimitRefusedError(f"{self} does not tell which GPUs it has") from None
        if known != gpu_count:
            raise LimitRefusedError(
                f"{self} has {known} GPUs and this process {gpu_count}, so that it may number them "
                "otherwise"
            )

    def _request(self, method: str, target: str, body: str | None = None) -> tuple[int, str]:
        from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 - 20 ms, seldom needed

        connection = HTTPConnection("localhost", timeout=self._timeout_s)
        headers = {} if body is None else {"Content-Type": "application/json"}
        sent = False
        try:
            connection.sock = self._connect()
            sent = method == "POST"
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        except (OSError, HTTPException) as error:
            why = getattr(error, "strerror", None) or repr(error)
            if sent:  # it may carry it out yet: nobody may take the limit for unchanged
                raise DeviceError(f"{self} took a limit and does not answer: {why}") from error
            raise LimitRefusedError(f"{self} does not answer: {why}") from error
        finally:
            connection.close()

    def _connect(self) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.settimeout(self._timeout_s)
        try:
            connected.connect(str(self.socket_path))
        except OSError:
            connected.close()
            raise
        return connected

    def __str__(self) -> str:
        return f"zeusd ({self.socket_path})"


def find_zeusd(environment: Mapping[str, str]) -> Zeusd | None:
    """Look for a daemon.

    Args:
        environment: Read for ``ZEUSD_SOCK_PATH``; without it the default path is tried.

    Returns:
        The daemon, whether it answers or not; ``None`` if there is no socket.
    """
    path = Path(environment.get(SOCKET_VARIABLE) or DEFAULT_SOCKET)
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return None
    return Zeusd(path) if is_socket else None
