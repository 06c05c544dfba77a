"""What benchmarks of the server need: a PostgreSQL, a zeusrun server and a small HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.history.sql.store import SqlHistory
from zeusrun.history.sql.tokens import create_token

if TYPE_CHECKING:
    from collections.abc import Mapping

START_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Postgres:
    """A PostgreSQL server with a new cluster in a directory of its own, durable as by default."""

    def __init__(self) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin")) or [
            Path(shutil.which("postgres") or "/").parent
        ]
        self._bin, self.port = found[-1], free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="zeusrun-pg-"))
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL does not run as root
            user = pwd.getpwnam("postgres")
            os.chown(self._directory, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "zeusrun")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "zeusrun", "zeusrun")

    @property
    def url(self) -> str:
        """Of the database."""
        return f"postgresql://zeusrun@127.0.0.1:{self.port}/zeusrun"

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        lock = self._data / "postmaster.pid"
        lock.unlink(missing_ok=True)
        command = [str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        command += ["-k", str(self._directory), "-c", "listen_addresses=127.0.0.1"]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, **self._as_user
            )
        ready = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        until_t = time.monotonic() + START_S
        while subprocess.run(ready, check=False).returncode:
            if time.monotonic() > until_t:
                raise SystemExit(f"PostgreSQL does not start; see {self._directory / 'log'}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it with all its processes, as a power failure of the process would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            time.sleep(0.1)  # its children detach from shared memory

    def close(self) -> None:
        """Kill it and remove its files."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), *arguments]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, cwd=self._directory, **self._as_user
        )


class Server:
    """``zeusrun serve`` in a process of its own."""

    def __init__(self, database_url: str, home: Path) -> None:
        self.port, self._home = free_port(), home
        self._database_url = database_url
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        history = SqlHistory(database_url)
        self.token, _ = create_token(history.engine, "*", can_write=True)
        history.close()

    @property
    def url(self) -> str:
        """Of the server."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        command = [sys.executable, "-m", "zeusrun", "serve", "--port", str(self.port)]
        command += ["--database-url", self._database_url]
        env = {**os.environ, "ZEUSRUN_HOME": str(self._home)}
        with (self._home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, start_new_session=True
            )
        until_t = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/readyz", timeout=2).close()  # noqa: S310 - loopback
            except OSError:
                if time.monotonic() > until_t or self._process.poll() is not None:
                    raise SystemExit((self._home / "server.log").read_text()) from None
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def restart(self) -> None:
        """Kill it and start it again, on the same port."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Kill it."""
        self.kill()


class Client:
    """One connection that stays open, with little work of its own: the server needs the cores."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:  # noqa: ANN401
        """Return the status and the JSON of an answer; raises ``OSError`` if there is none."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Authorization: Bearer {self._token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        try:
            writer.write(head.encode() + content)
            await writer.drain()
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            answer = await reader.readexactly(int(fields.get("content-length", 0)))
            if fields.get("connection") == "close":
                self.close()
            return int(lines[0].split()[1]), json.loads(answer) if answer else None
        except (asyncio.IncompleteReadError, OSError) as error:
            self.close()
            raise ConnectionError(str(error)) from error

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def draw_trial(job: str, recurrence: int, **values: object) -> dict[str, Any]:
    """Return the record of a new trial."""
    name = f"{job}-{recurrence}-1"
    return {
        "trial": name,
        "job": job,
        "recurrence": recurrence,
        "attempt": 1,
        "status": "DISPATCHED",
        "global_batch_size": 64,
        "world_size": 2,
        "started_at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "metric": "accuracy",
        "run_dir": f"/home/someone/.local/state/zeusrun/runs/{job}/{name}",
        "stage": "exploit",
        "why": "64 is expected to cost the least",
        "mode": "max",
        "target": 0.5,
        "max_epochs": 40,
        "eta_knob": 0.5,
        "default_batch_size": 64,
        "uuid": uuid.uuid4().hex,
        **values,
    }


def draw_outcome(epochs: int = 20) -> Mapping[str, Any]:
    """Return an outcome with a curve of so many epochs."""
    return {
        "status": "REACHED",
        "reason": f"accuracy 0.5 in epoch {epochs}",
        "finished_at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "time_s": 600.0,
        "energy_j": 120000.0,
        "energy_source": "counter",
        "max_power_w": 300.0,
        "cost_j": 150000.0,
        "epochs": epochs,
        "curve": [[n + 1, 30.0 * n, 6000.0 * n, 0.5 * n / epochs] for n in range(epochs)],
    }
