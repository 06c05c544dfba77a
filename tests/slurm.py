"""A real Slurm of two nodes on one machine: munge, the controller, two slurmd, its database.

Needs root and Debian's ``slurm-wlm`` and ``munge``; accounting needs ``slurmdbd`` and
``mariadb-server``. No service of the machine is used: the cluster has a munge key, sockets and
ports of its own, on loopback. One process holds each daemon, and takes in whatever is left behind
by a process below it. When its standard input ends, because the test is done or was killed, it
kills everything below it. So a node is its holder, and a node that dies is a holder that is closed.
Each node has its name as hostname, and finds the other by name; files, addresses and process ids
are those of the machine.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests import leftovers

NODES = ("n1", "n2")
ADDRESSES = ("127.0.1.1", "127.0.1.2")  # to which the nodes, and no others, resolve their names
CPUS = 4  # of each node; the machine may have fewer
GPUS = 2  # of each node, for --gres=gpu:2; there is none behind them
_APART = ("unshare", "--uts", "--mount", "--propagation", "private")
_AS_NODE = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'
_PORTS = itertools.count(20000 + os.getpid() * 50 % 10000)  # others for each worker
_MARK = "zeusrun-slurm-"  # the folder of a cluster; then the pid of the test process

# The arguments are the folder of the cluster and a daemon. Without a daemon it kills the processes
# that have the settings of the cluster in their environment, and then removes the folder.
_HOLD = """
import ctypes, os, shutil, signal, sys, time
folder, *daemon = sys.argv[1:]
settings = f"SLURM_CONF={folder}/slurm.conf".encode()
me = os.getpid()

def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return int(stream.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0

def below():
    parents = {int(name): parent_of(name) for name in os.listdir("/proc") if name.isdecimal()}
    found, last = [], [me]
    while last:
        last = [pid for pid, parent in parents.items() if parent in last]
        found += last
    return sorted(found, key=lambda pid: pid != first)  # nobody is left to tell of a child's end

def marked():
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as stream:
                if settings in stream.read().split(b"\\0"):
                    found.add(int(name))
        except OSError:
            pass
    return found

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
signal.signal(signal.SIGCHLD, reap)
if daemon:
    environment = {**os.environ, "SLURM_CONF": f"{folder}/slurm.conf"}
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, 2, 1),
    ]
    first = os.posix_spawnp(daemon[0], daemon, environment, file_actions=actions)
    print(first, flush=True)
sys.stdin.read()
deadline = time.monotonic() + 10
while time.monotonic() < deadline:
    found = below() if daemon else marked()
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    reap()
    if not (found or daemon):
        shutil.rmtree(folder, ignore_errors=True)
    if not found and (daemon or not os.path.exists(folder)):
        break
    time.sleep(0.005)
"""


@functools.cache
def missing(*, accounting=False) -> str | None:
    """Return what keeps this machine from having a Slurm; ``None`` if nothing does."""
    if os.geteuid() != 0:
        return "a Slurm of several nodes on one machine needs root"
    needed = dict.fromkeys(("munged", "slurmctld", "slurmd", "sbatch"), "slurm-wlm munge")
    if accounting:
        names = ("slurmdbd", "mariadbd", "mariadb-install-db")
        needed |= dict.fromkeys(names, "slurmdbd mariadb-server")
    for name, packages in needed.items():
        if shutil.which(name, path=_path()) is None:
            return f"the program {name} is not installed (Debian: {packages})"
    done = subprocess.run([*_APART, "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else None


class _Daemon:
    """A daemon in the foreground, below a process that holds it.

    Attributes:
        name: Of its log, too.
        pid: Of the daemon itself.
    """

    def __init__(self, cluster, name, argv=()) -> None:
        self.name = name
        self.errors = cluster.folder / f"{name}.err"
        command = [sys.executable, "-ISc", _HOLD, cluster.private, *map(str, argv)]
        if name in NODES:
            node = (name, f"{cluster.private}/hosts")
            command = [*_APART, "sh", "-ec", _AS_NODE, "sh", *node, *command]
        with self.errors.open("ab") as log:
            self._holder = subprocess.Popen(
                command,
                env={**os.environ, "PATH": _path()},
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl+C ends the tests, which end it
            )
        self._pipes = {self._holder.stdin.fileno(), self._holder.stdout.fileno()}
        leftovers.shared_children.add(self._holder.pid)  # a node starts again between two tests
        leftovers.shared_descriptors.update(self._pipes)
        self.pid = int(self._holder.stdout.readline() or 0) if argv else 0

    def pids(self) -> list[int]:
        """Return the daemon and all processes that came from it."""
        return [each.pid for each in psutil.Process(self._holder.pid).children(recursive=True)]

    def wait_until(self, condition, seconds=30):
        """Wait until it serves; an error shows what it wrote."""
        deadline = time.monotonic() + seconds
        while not condition():
            if not Path(f"/proc/{self.pid}").exists() or time.monotonic() > deadline:
                tail = self.errors.read_text(errors="replace").splitlines()[-20:]
                raise RuntimeError("\n".join([f"{self.name} does not serve:", *tail]))
            time.sleep(0.01)

    def close(self):
        """Kill the daemon and everything that came from it; wait until they are gone."""
        with suppress(BrokenPipeError):
            self._holder.stdin.close()
        self._holder.wait(timeout=300)
        self._holder.stdout.close()
        leftovers.shared_children.discard(self._holder.pid)
        leftovers.shared_descriptors.difference_update(self._pipes)
        self._pipes.clear()


class SlurmCluster:
    """Slurm with the nodes ``n1`` and ``n2``, as a context manager; or the test is skipped.

    The nodes are in the partitions ``main`` (the default) and ``urgent``, whose jobs preempt those
    of ``main``: these are requeued.

    Args:
        folder: Where the logs of the daemons go, and the output of jobs that name no file.
        accounting: Whether slurmdbd runs, for ``sacct`` and ``sacctmgr``.
        cred_expire_s: How long a requeued job waits, and within what time a node must have started
            a step. Slurm takes anything below 5 as 120.
        kill_wait_s: Between the TERM and the KILL of a job that is cancelled or out of time.
        grace_s: How much longer a job that is preempted may run. Its tasks get TERM at once. Slurm
            looks every 30 s for jobs whose time is over: these get TERM, the batch step too.
        slurmd_timeout_s: How long a node may be silent before it is down.
        over_time_limit_min: How many minutes a job may exceed its time limit.
        scheduler_parameters: The value of ``SchedulerParameters``.
        send_user_signal: Whether a job that is preempted gets the signal of its ``--signal``, if it
            has one, in place of TERM.
        extra: More lines for ``slurm.conf``.

    Attributes:
        environment: What commands of Slurm and of zeusrun need in their environment.
        slurmctld_pid: The process of the controller.
    """

    def __init__(
        self,
        folder,
        *,
        accounting=False,
        cred_expire_s=5,
        kill_wait_s=5,
        grace_s=5,
        slurmd_timeout_s=5,
        over_time_limit_min=0,
        scheduler_parameters="batch_sched_delay=0,sched_interval=1,bf_interval=1,requeue_delay=0",
        send_user_signal=False,
        extra="",
    ) -> None:
        self.folder = Path(folder)
        self.accounting = accounting
        self._values = {
            "cred_expire_s": cred_expire_s,
            "kill_wait_s": kill_wait_s,
            "grace_s": grace_s,
            "slurmd_timeout_s": slurmd_timeout_s,
            "over_time_limit_min": over_time_limit_min,
            "scheduler_parameters": scheduler_parameters,
        }
        preempt = "SlurmctldParameters=preempt_send_user_signal\n" if send_user_signal else ""
        self._extra = preempt + extra
        self._nodes: dict[str, list[_Daemon]] = {name: [] for name in NODES}  # the last one serves

    def __enter__(self):
        if reason := missing(accounting=self.accounting):
            pytest.skip(reason)
        sweep()
        self.folder.mkdir(parents=True, exist_ok=True)
        # Not the folder of the test: sockets need short names, munge a folder that only root writes.
        self.private = tempfile.mkdtemp(prefix=f"{_MARK}{os.getpid()}-")
        os.chmod(self.private, 0o755)
        self.environment = {"SLURM_CONF": f"{self.private}/slurm.conf"}
        with ExitStack() as stack:
            self._stack = stack
            self._start("cluster")
            self._start_all()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def run(self, *argv, **options) -> subprocess.CompletedProcess:
        """Run a command; ``options`` are those of ``subprocess.run``, output is captured."""
        defaults = {"capture_output": True, "text": True, "cwd": self.folder, "timeout": 60}
        options = {**defaults, "env": {**os.environ, **self.environment}, **options}
        return subprocess.run([*map(str, argv)], check=False, **options)

    def do(self, *argv, **options) -> str:
        """Run a command that must succeed; return its output."""
        done = self.run(*argv, **options)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, argv))}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def submit(self, script, *options) -> str:
        """Give a shell script to sbatch; return the job's id."""
        return self.do("sbatch", "--parsable", *options, input=f"#!/bin/sh\n{script}\n")

    def field(self, job_id, name) -> str | None:
        """Return a field of ``scontrol show job``; ``None`` if there is none of this name."""
        shown = self.do("scontrol", "--oneliner", "show", "job", job_id).splitlines()[0]
        found = re.search(rf"(?:^| ){re.escape(name)}=(.*?)(?= [\w/:]+=| *$)", shown)
        return found and found[1]

    def state(self, job_id) -> str:
        """Return the state of a job in Slurm's word, such as ``RUNNING``."""
        return self.field(job_id, "JobState")

    def wait_for(self, job_id, states, timeout_s=300.0) -> str:
        """Wait until a job is in a state, or in one of several; return it."""
        wanted = {states} if isinstance(states, str) else set(states)
        deadline = time.monotonic() + timeout_s
        while (state := self.state(job_id)) not in wanted:
            if time.monotonic() > deadline:
                shown = self.do("scontrol", "show", "job", job_id)
                pytest.fail(f"job {job_id} is {state}, not {wanted}, after {timeout_s} s:\n{shown}")
            time.sleep(0.05)
        return state

    def nodes_idle(self) -> bool:
        """Return whether both nodes answer and run nothing."""
        shown = self.run("sinfo", "--noheader", "--partition=main", "--Node", "--format=%N %T")
        return shown.stdout.split("\n") == [*(f"{name} idle" for name in NODES), ""]

    def node_pids(self, name) -> list[int]:
        """Return the processes of a node: slurmd, slurmstepd and what jobs started there."""
        return [pid for each in self._nodes[name] for pid in each.pids()]

    def slurmd_pid(self, name) -> int:
        """Return the process of slurmd; if only this one dies, the jobs on the node go on."""
        return self._nodes[name][-1].pid

    def hasten(self, job_id):
        """Let a job that is being requeued start within 2 s, not after ``cred_expire_s``."""
        self.wait_for(job_id, "PENDING")
        seen = int(time.time())
        while int(time.time()) == seen:  # in the same second a node takes it for the one it killed
            time.sleep(0.05)
        self.do("scontrol", "update", f"JobId={job_id}", "StartTime=now")

    def kill_node(self, name, *, noticed=True):
        """Kill all processes of a node, as if the machine had lost its power.

        Args:
            name: Of the node.
            noticed: Whether the controller knows at once. It finds out by itself in 25 to 40 s.
        """
        while self._nodes[name]:
            self._nodes[name].pop().close()
        if noticed:
            self.do("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=killed")

    def start_node(self, name):
        """Start slurmd; a node that was killed comes back without its jobs."""
        slurmd = self._start(name, "slurmd", "-D", "-f", self._conf, "-N", name)
        self._nodes[name].append(slurmd)

    def clear(self):
        """Kill all jobs, start the nodes that were killed, and wait until both are idle."""
        self.do("scancel", f"--user={os.getuid()}")
        for name in NODES:
            for pid in self.node_pids(name):
                with suppress(OSError):  # it has exited
                    if Path(f"/proc/{pid}/comm").read_text() not in ("slurmd\n", "slurmstepd\n"):
                        os.kill(pid, signal.SIGKILL)
            if not self._nodes[name] or not Path(f"/proc/{self.slurmd_pid(name)}").exists():
                self.start_node(name)
        self._wait_for_nodes()

    @property
    def _conf(self):
        return f"{self.private}/slurm.conf"

    def _start(self, name, *argv):
        daemon = _Daemon(self, name, argv)
        self._stack.callback(daemon.close)
        return daemon

    def _start_all(self):
        names = ("control", *NODES, "database", "tables")
        ports = dict(zip(names, _free_ports(len(names)), strict=True))
        self._write_settings(ports)
        tables = self._start_tables(ports["tables"]) if self.accounting else None
        munged = self._start_munge()
        munged.wait_until(lambda: Path(f"{self.private}/munge/socket").exists())
        if tables is not None:
            tables.wait_until(lambda: _listens(ports["tables"]))
            database = self._start("slurmdbd", "slurmdbd", "-D")
            database.wait_until(lambda: _listens(ports["database"]))
            self.do("sacctmgr", "--immediate", "add", "cluster", "zeus")
        control = self._start("slurmctld", "slurmctld", "-D", "-f", self._conf)
        control.wait_until(lambda: _listens(ports["control"]))
        self.slurmctld_pid = control.pid
        for name in NODES:
            self.start_node(name)
        self._wait_for_nodes()

    def _wait_for_nodes(self):
        for name in NODES:
            self._nodes[name][-1].wait_until(self.nodes_idle)

    def _start_munge(self):
        folder = Path(self.private, "munge")
        folder.mkdir(mode=0o755)
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        files = {
            "key-file": key,
            "socket": folder / "socket",
            "pid-file": folder / "pid",
            "seed-file": folder / "seed",
        }
        options = [f"--{name}={path}" for name, path in files.items()]
        return self._start("munged", "munged", "--foreground", "--force", *options)

    def _start_tables(self, port):
        folder = f"{self.private}/tables"
        fast = ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=64M"]
        fast += ["--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0"]
        options = [f"--datadir={folder}", "--user=root", *fast]
        install = ["mariadb-install-db", "--no-defaults", *options]
        self.do(*install, "--skip-test-db", env={**os.environ, "PATH": _path()})
        return self._start(
            *("mariadbd", "mariadbd", "--no-defaults", *options, "--skip-grant-tables"),
            *("--skip-networking=0", "--bind-address=127.0.0.1", f"--port={port}"),
            *(f"--socket={folder}/socket", f"--pid-file={folder}/pid"),
        )

    def _write_settings(self, ports):
        private = Path(self.private)
        values = {
            **self._values,
            **{f"{name}_port": port for name, port in ports.items()},
            "folder": self.private,
            "logs": self.folder.absolute(),
            "host": socket.gethostname().partition(".")[0],
            "cpus": CPUS,
            "gpus": GPUS,
        }
        accounting = (
            _ACCOUNTING if self.accounting else "AccountingStorageType=accounting_storage/none"
        )
        text = f"{_SETTINGS}\n{accounting}\n{self._extra}"
        (private / "slurm.conf").write_text(text.format_map(values))
        (private / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        hosts = ["127.0.0.1 localhost", f"127.0.0.1 {values['host']}"]
        hosts += map(" ".join, zip(ADDRESSES, NODES, strict=True))
        (private / "hosts").write_text("\n".join(hosts) + "\n")
        # Slurm wants a device for each GPU, and does not open it.
        devices = ("/dev/null", "/dev/zero")[:GPUS]
        gres = [f"NodeName={each} Name=gpu File={device}" for each in NODES for device in devices]
        (private / "gres.conf").write_text("\n".join(gres) + "\n")
        database = private / "slurmdbd.conf"
        database.touch(mode=0o600)
        database.write_text(_DATABASE.format_map(values))
        for folder in ("state", *NODES):
            (private / folder).mkdir()


_SETTINGS = """
ClusterName=zeus
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire={cred_expire_s}
SlurmctldPort={control_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={logs}/slurmctld.log
SlurmdLogFile={logs}/%n.log
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters={scheduler_parameters}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
JobRequeue=1
KillWait={kill_wait_s}
OverTimeLimit={over_time_limit_min}
SlurmdTimeout={slurmd_timeout_s}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
NodeName=n1 NodeAddr=127.0.0.1 Port={n1_port} CPUs={cpus} Gres=gpu:{gpus} State=UNKNOWN
NodeName=n2 NodeAddr=127.0.0.1 Port={n2_port} CPUs={cpus} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s}
PartitionName=urgent Nodes=n1,n2 PriorityTier=10 PreemptMode=OFF
"""
_ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={host}
AccountingStoragePort={database_port}
AccountingStoragePass={folder}/munge/socket
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
"""
_DATABASE = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={database_port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={tables_port}
StorageUser=root
StorageLoc=slurm
PidFile={folder}/slurmdbd.pid
"""


@pytest.fixture
def slurm_cluster(tmp_path):
    """A Slurm for one test: it is up in 0.2 s."""
    with SlurmCluster(tmp_path / "slurm") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def _slurm_dbd(tmp_path_factory):
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), accounting=True) as cluster:
        yield cluster


@pytest.fixture
def slurm_dbd(_slurm_dbd):
    """A Slurm with accounting for all tests of a module: it takes 3 s. No job is left by others."""
    yield _slurm_dbd
    _slurm_dbd.clear()


def sweep():
    """Kill the processes of clusters whose test process is dead, and remove their folders."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # it has exited
            environ = Path(f"/proc/{pid}/environ").read_text(errors="replace")
            mounts = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")
            mark = re.search(rf"(?:^|\0)SLURM_CONF=[^\0]*/{_MARK}(\d+)-", environ)
            mark = mark or re.search(rf"/{_MARK}(\d+)-\S+ /etc/hosts ", mounts)  # on a node
            if mark and not Path(f"/proc/{mark[1]}").exists():
                os.kill(int(pid), signal.SIGKILL)
    for folder in Path(tempfile.gettempdir()).glob(f"{_MARK}*-*"):
        owner = folder.name.removeprefix(_MARK).partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _path():
    return f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin"


def _free_ports(count):
    """Return ports below those that the kernel gives to clients, so that they stay free."""
    found = []
    while len(found) < count:
        port = next(_PORTS)
        with suppress(OSError), socket.create_server(("", port)):
            found.append(port)
    return found


def _listens(port):
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
