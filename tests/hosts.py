"""Two hosts on one machine: network namespaces that a cable joins, each with a name of its own.

Needs root and ``iproute2``; sshd needs Debian's ``openssh-server``. Process ids are those of this
machine, so a test can kill and inspect what it started on a host. The namespaces have no names in
the file system: they are gone with their last process. One process holds each host. When its
standard input ends, because the test is done or was killed, it kills everything on the host.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

NIC = "eth0"
ADDRESSES = ("10.77.0.1", "10.77.0.2")  # namespaces are apart: all workers can use the same
_MARK = "zeusrun-hosts-"  # the source of a mount of each host; then the pid of the test process

# The mounts of /sys hide the interfaces of the machine and keep its control groups.
_SET_UP = """
set -e
hostname "$NAME"
mount --bind "$HOSTS_FILE" /etc/hosts
if mountpoint -q /sys/fs/cgroup; then
  mount --rbind /sys/fs/cgroup "$SPARE"
  mount -t sysfs "$MARK" /sys
  mount --move "$SPARE" /sys/fs/cgroup
else
  mount -t sysfs "$MARK" /sys
fi
if [ -n "$PRIVATE" ]; then mount -t tmpfs -o mode=700 tmpfs "$PRIVATE"; fi
ip link set lo up
exec "$PYTHON" -ISc "$HOLD"
"""
_HOLD = """
import os, sys, time
print("ready", flush=True)
sys.stdin.read()
mine, me = os.readlink("/proc/self/ns/net"), os.getpid()
deadline = time.monotonic() + 10
while time.monotonic() < deadline:
    found = 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/ns/net") == mine and int(name) != me:
                found += 1
                os.kill(int(name), 9)
        except OSError:
            pass
    if not found:
        break
    time.sleep(0.005)
"""


@functools.cache
def missing(*, sshd=False) -> str | None:
    """Return what keeps this machine from having two hosts; ``None`` if nothing does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "unshare", "nsenter", "hostname", "mountpoint"):
        if shutil.which(program) is None:
            return f"the program {program} is not installed (Debian: iproute2, util-linux)"
    if sshd and not (_sshd() and shutil.which("ssh")):
        return "sshd is not installed (Debian: openssh-server)"
    trial = "mount -t sysfs none /sys && ip link add zt0 type veth peer name zt1"
    command = ["unshare", "--net", "--uts", "--mount", "sh", "-c", trial]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else None


class Host:
    """One of the two hosts.

    Attributes:
        name: Its hostname. As on Debian the host itself resolves it to 127.0.1.1.
        address: Its address on the cable.
    """

    def __init__(self, name, address, holder) -> None:
        self.name, self.address = name, address
        self._holder = holder
        self._sshd: subprocess.Popen | None = None
        self._started: list[subprocess.Popen] = []

    def inside(self, argv, *, cwd=None) -> list[str]:
        """Return a command that runs ``argv`` here; the process id stays the same."""
        target = ["-t", str(self._holder.pid), "-n", "-u", "-m"]
        return ["nsenter", *target, f"--wdns={cwd or Path.cwd()}", "--", *map(str, argv)]

    def run(self, argv, *, cwd=None, **options) -> subprocess.CompletedProcess:
        """Run a command here; ``options`` are those of ``subprocess.run``, output is captured."""
        options = {"capture_output": True, "text": True, **options}
        return subprocess.run(self.inside(argv, cwd=cwd), check=False, **options)

    def start(self, argv, *, cwd=None, **options) -> subprocess.Popen:
        """Start a command here; it is killed and waited for when the hosts end."""
        child = subprocess.Popen(self.inside(argv, cwd=cwd), **options)
        self._started.append(child)
        return child

    def path(self, path) -> Path:
        """Return where this machine sees a file of the host, a private one too."""
        return Path(f"/proc/{self._holder.pid}/root") / Path(path).absolute().relative_to("/")

    def pids(self) -> list[int]:
        """Return the processes on the host, but the one that holds it and its listening sshd."""
        mine = os.readlink(f"/proc/{self._holder.pid}/ns/net")
        own = {self._holder.pid, self._sshd and self._sshd.pid}
        found = []
        for pid in _all_pids():
            with suppress(OSError):  # it has exited
                if pid not in own and os.readlink(f"/proc/{pid}/ns/net") == mine:
                    found.append(pid)
        return found

    def kill(self):
        """Kill all of ``pids``, as if the host had crashed; the cable stays up."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def do(self, script):
        """Run a shell script here that must succeed."""
        done = self.run(["sh", "-ec", script], cwd="/")
        if done.returncode:
            raise RuntimeError(f"host {self.name}: {script!r}: {done.stderr}")

    def start_sshd(self, folder: Path):
        """Start a server at port 22 of the host that accepts the key ``folder``/id; wait for it."""
        key, settings, log = (folder / f"{self.name}.{kind}" for kind in ("key", "conf", "log"))
        _generate_key(key)
        settings.write_text(
            f"ListenAddress {self.address}:22\nHostKey {key}\nPidFile none\n"
            f"AuthorizedKeysFile {folder}/id.pub\nPermitRootLogin prohibit-password\n"
            "UsePAM no\nStrictModes no\nUseDNS no\nPrintMotd no\nPasswordAuthentication no\n"
        )
        # By its own descriptor, since a private folder would hide the file from this machine.
        with log.open("wb") as stream:
            self._sshd = self.start([_sshd(), "-D", "-e", "-f", settings], stderr=stream)
        deadline = time.monotonic() + 10
        while b"Server listening" not in log.read_bytes():
            if self._sshd.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"sshd of host {self.name}: {log.read_text()}")
            time.sleep(0.005)

    def close(self):
        """Kill everything on the host and wait until it is gone."""
        self._holder.stdin.close()
        self._holder.wait(timeout=300)
        self._holder.stdout.close()
        for child in self._started:
            child.wait(timeout=300)
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()


class TwoHosts:
    """Hosts ``a`` and ``b``, as a context manager; the test is skipped where they cannot be.

    Args:
        folder: Where the files of the fixture go: ``/etc/hosts``, keys, logs.
        home: A folder that ``b`` has on a disk of its own unless ``shared_files``; all other files
            are shared with ``a``, which has the files of this machine.
        shared_files: Whether ``b`` sees in ``home`` what ``a`` writes there.
        sshd: Whether a real sshd listens on both.
        addresses: Of ``a`` and of ``b``, in one /24 network.

    Attributes:
        ssh_command: The words before the host's name, for a client on ``a`` or ``b``; with ``sshd``.
    """

    def __init__(
        self, folder, *, home=None, shared_files=True, sshd=False, addresses=ADDRESSES
    ) -> None:
        if not shared_files and home is None:
            raise ValueError("shared_files=False needs the folder home")
        self.folder = Path(folder)
        self._private = None if shared_files else Path(home)
        self._with_sshd = sshd
        self._addresses = addresses
        self.ssh_command = ["ssh", "-F", str(self.folder / "ssh_config")]

    def __enter__(self):
        if reason := missing(sshd=self._with_sshd):
            pytest.skip(reason)
        sweep()
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self.a = self._new_host("a", self._addresses, None)
            stack.callback(self.a.close)
            self.b = self._new_host("b", self._addresses[::-1], self._private)
            stack.callback(self.b.close)
            peer = self.b._holder.pid
            self.a.do(f"ip link add {NIC} type veth peer name {NIC} netns {peer}")
            for host in (self.a, self.b):
                host.do(f"ip addr add {host.address}/24 dev {NIC}; ip link set {NIC} up")
            if self._with_sshd:
                self._start_sshds()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def cut(self):
        """Pull the cable at ``b``: packets are lost, connections are not told."""
        self.b.do(f"ip link set {NIC} down")

    def mend(self):
        """Plug it in again."""
        self.b.do(f"ip link set {NIC} up")

    def shape(self, mbit):
        """Limit the cable to a rate in Mbit/s, in both directions."""
        for host in (self.a, self.b):
            host.do(f"tc qdisc replace dev {NIC} root tbf rate {mbit}mbit burst 64kb latency 50ms")

    def _new_host(self, name, addresses, private):
        own, other = addresses
        peer = "b" if name == "a" else "a"
        hosts_file = self.folder / f"{name}.hosts"
        hosts_file.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n{other} {peer}\n")
        spare = self.folder / "spare"
        spare.mkdir(exist_ok=True)
        if private is not None:
            private.mkdir(parents=True, exist_ok=True)
        values = {
            "NAME": name,
            "HOSTS_FILE": str(hosts_file),
            "PRIVATE": str(private or ""),
            "MARK": f"{_MARK}{os.getpid()}",
            "SPARE": str(spare),
            "PYTHON": sys.executable,
            "HOLD": _HOLD,
        }
        spaces = ["--net", "--uts", "--mount", "--propagation", "private"]
        holder = subprocess.Popen(
            ["unshare", *spaces, "sh", "-c", _SET_UP],
            env={**os.environ, **values},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl+C ends the tests, which end it
        )
        host = Host(name, own, holder)
        if holder.stdout.readline() != b"ready\n":
            host.close()
            raise RuntimeError(f"host {name} could not be set up")
        return host

    def _start_sshds(self):
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd insists on it
        _generate_key(self.folder / "id")
        (self.folder / "ssh_config").write_text(
            f"IdentityFile {self.folder}/id\nIdentitiesOnly yes\nBatchMode yes\n"
            f"UserKnownHostsFile {self.folder}/known_hosts\nGlobalKnownHostsFile none\n"
            "StrictHostKeyChecking accept-new\nLogLevel ERROR\nConnectTimeout 5\n"
        )
        for host in (self.a, self.b):
            host.start_sshd(self.folder)


def sweep():
    """Kill the processes of hosts whose test process is dead, and its holders with it."""
    for pid in _all_pids():
        with suppress(OSError):  # it has exited
            mounts = Path(f"/proc/{pid}/mounts").read_text(errors="replace")
            mark = re.search(rf"^{_MARK}(\d+) ", mounts, re.MULTILINE)
            if mark and not Path(f"/proc/{mark[1]}").exists():
                os.kill(pid, signal.SIGKILL)


def _all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _sshd():
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _generate_key(path):
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
