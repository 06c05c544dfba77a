"""A container: a program that gives a command its namespaces, files and rights, and waits for it.

The kubelet starts it as ``python -IS container.py SPEC LOG``, with no package of the tests: SPEC is
a JSON file, LOG the descriptor that the command writes to. It says on standard output, in lines of
JSON, that the command has started or cannot, and how it ended. It reads ``T`` (SIGTERM to the
command, which has process id 1) and ``K`` (SIGKILL, which the whole process id namespace gets) from
its standard input. When that ends, because the test is done or was killed, it kills the command.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, REMOUNT, BIND, DETACH = 1, 2, 4, 8, 32, 4096, 2
RECURSIVE, PRIVATE = 16384, 1 << 18
NEW_MOUNTS, NEW_UTS, NEW_IPC, NEW_PIDS, NEW_NETWORK = 1 << 17, 1 << 26, 1 << 27, 1 << 29, 1 << 30
_USUAL_CAPABILITIES = 0xA80425FB  # that containerd leaves to a container which drops none
_APART = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/lib/")  # not from the machine
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def _call(name, *arguments):
    kinds = {str: os.fsencode, int: ctypes.c_ulong}
    values = [kinds.get(type(each), lambda same: same)(each) for each in arguments]
    if getattr(_LIBC, name)(*values) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def mount(source, target, kind=None, flags=0, options=None):
    _call("mount", source, target, kind, flags, options)


def bind(source, target, *, read_only=True):
    mount(source, target, None, BIND | RECURSIVE)
    if read_only:
        protect(target)


def protect(target):
    mount(None, target, None, REMOUNT | BIND | READ_ONLY)


def under(path, folder):
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def mount_points():
    """Return the mounts of this machine that belong to the root of an image, parents first."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
        found = [line.split()[4] for line in stream]
    found = [re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), each) for each in found]
    found = list(dict.fromkeys(found))
    return ["/", *(each for each in found if each != "/" and not each.startswith(_APART))]


class Root:
    """The files of a container: those of this machine, on which it writes into a layer of its own.

    So nothing that is made here, a mount point or a changed mode, is seen outside of it.
    """

    def __init__(self, base, readable):
        self.path = f"{base}/root"
        self._readable = [each for each in readable if os.path.isdir(each)]
        self._layers, self._volumes = [], set()
        points = mount_points()
        mount(None, "/", None, RECURSIVE | PRIVATE)
        mount("tmpfs", base, "tmpfs", 0, "mode=755")
        os.mkdir(self.path)
        for number, point in enumerate(points):
            self._add_layer(base, number, point)
        for path in self._readable:
            for folder in (path, *map(str, Path(path).parents)):
                self._open(self.path + folder)

    def _add_layer(self, base, number, point):
        target = self.path + point
        if not os.path.isdir(point):
            with suppress(OSError):  # a file that hides another is no part of an image
                bind(point, target)
            return
        upper, work = f"{base}/upper{number}", f"{base}/work{number}"
        os.mkdir(upper)
        os.chmod(upper, os.stat(point).st_mode & 0o7777)
        os.mkdir(work)
        options = f"lowerdir={point},upperdir={upper},workdir={work}"
        try:
            mount("overlay", target, "overlay", 0, options)
        except OSError:
            if point == "/":
                raise
            return  # a file system of its own that cannot be part of the image
        self._layers.append(target)

    @staticmethod
    def _open(path):
        """Let every user enter a folder: a checkout may lie below /root, which has mode 700."""
        with suppress(OSError):  # it is hidden here, and is bound again after what hides it
            mode = os.stat(path).st_mode & 0o7777
            if mode & 0o055 != 0o055:
                os.chmod(path, mode | 0o055)

    def at(self, path, *, file=False):
        """Return where a path of the container is now; make it, without following its links out."""
        found = self.path + os.path.realpath(path)
        if not os.path.lexists(found):
            os.makedirs(os.path.dirname(found), exist_ok=True)
            if file:
                open(found, "xb").close()
            else:
                os.mkdir(found)
        return found

    def cover(self, path, options, *, layer=False):
        """Mount an empty tmpfs; the interpreter and the checkout stay where they are."""
        target = self.at(path)
        mount("tmpfs", target, "tmpfs", NO_SUID | NO_DEV, options)
        if layer:
            self._layers.append(target)
        self.keep(path)

    def keep(self, path):
        for each in self._readable:
            if under(each, os.path.realpath(path)) and each != path:
                bind(each, self.at(each))

    def add_devices(self):
        mount("proc", self.at("/proc"), "proc", NO_SUID | NO_DEV | NO_EXEC)
        mount("sysfs", self.at("/sys"), "sysfs", NO_SUID | NO_DEV | NO_EXEC | READ_ONLY)
        if os.path.ismount("/sys/fs/cgroup"):
            bind("/sys/fs/cgroup", self.at("/sys/fs/cgroup"))
        self.cover("/dev", "mode=755")
        devices = self.path + "/dev"
        names = [each for each in os.listdir("/dev") if each.startswith("nvidia")]
        for name in (*_DEVICES, *names):
            if not os.path.isdir(f"/dev/{name}"):
                bind(f"/dev/{name}", self.at(f"/dev/{name}", file=True), read_only=False)
        os.mkdir(f"{devices}/pts")
        mount("devpts", f"{devices}/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620")
        links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0"}
        for name, target in (links | {"stdout": "fd/1", "stderr": "fd/2"}).items():
            os.symlink(target, f"{devices}/{name}")
        self.cover("/dev/shm", "mode=1777,size=64m")

    def add_volume(self, path, source, *, read_only=False, mode=0o777, group=0):
        """Mount a folder or a file of this machine; an empty tmpfs if ``source`` is ``None``."""
        self._volumes.add(self.path + os.path.realpath(path))
        if source is None:
            self.cover(path, f"mode={mode:o},gid={group}")
        else:
            bind(source, self.at(path, file=not os.path.isdir(source)), read_only=read_only)
            self.keep(path)

    def enter(self, *, read_only):
        if read_only:
            for each in set(self._layers) - self._volumes:
                protect(each)
        os.chdir(self.path)
        _call("pivot_root", ".", ".")
        _call("umount2", ".", DETACH)
        os.chdir("/")


def join_network(bridge, number, address, gateway):
    """Plug this network namespace into the bridge of the namespace of process ``bridge``."""
    _call("unshare", NEW_NETWORK)
    there = ["nsenter", f"--net=/proc/{bridge}/ns/net"]
    plug = (
        f"link add v{number} type veth peer name eth0 netns 1\nlink set v{number} master br0 up\n"
    )
    here = f"link set lo up\naddr add {address}/16 dev eth0\nlink set eth0 up\n"
    here += f"route add default via {gateway}\n"
    for command, lines in (([*there, "ip", "-batch", "-"], plug), (["ip", "-batch", "-"], here)):
        subprocess.run(command, input=lines.encode(), check=True)


def give_up_rights(spec):
    """Become the user; the order is that of runc."""
    kept = 0 if spec["drop"] else _USUAL_CAPABILITIES
    for number in range(64):
        if not kept >> number & 1 and _LIBC.prctl(24, number, 0, 0, 0):  # PR_CAPBSET_DROP
            if ctypes.get_errno() not in {0, errno.EINVAL}:  # the kernel has no more of them
                raise OSError(ctypes.get_errno(), "PR_CAPBSET_DROP")
            break
    os.setgroups(spec["groups"])
    os.setresgid(*[spec["group"]] * 3)
    os.setresuid(*[spec["user"]] * 3)
    if spec["no_new_privileges"]:
        _call("prctl", 38, 1, 0, 0, 0)
    _call("prctl", 1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG, which a change of user clears


def run(spec, log):
    """Become the command; it is process 1 of its namespace."""
    os.setsid()
    _call("unshare", NEW_MOUNTS | NEW_UTS | NEW_IPC)
    if spec["network"]:
        join_network(*spec["network"])
    root = Root(spec["base"], spec["readable"])
    root.cover("/run", "mode=755", layer=True)
    root.cover("/tmp", "mode=1777", layer=True)
    root.add_devices()
    for volume in spec["volumes"]:
        root.add_volume(**volume)
    root.enter(read_only=spec["read_only"])
    socket.sethostname(spec["hostname"])
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them
    give_up_rights(spec)
    os.chdir(spec["folder"])
    nothing = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.set_inheritable(log, False)
    try:
        os.execvpe(spec["command"][0], spec["command"], spec["environment"])
    except FileNotFoundError:
        name = spec["command"][0]
        raise OSError(f'exec: "{name}": executable file not found in $PATH') from None


def say(**values):
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(values).encode() + b"\n")


def start(spec, log):
    """Start the command; return its process id, or ``None`` if it cannot be started."""
    reader, writer = os.pipe()  # ends when the command is executed
    _call("unshare", NEW_PIDS)
    pid = os.fork()
    if pid == 0:
        try:
            run(spec, log)
        except BaseException as error:  # noqa: BLE001 - to be reported
            os.write(writer, f"{error or type(error)}".encode())
        os._exit(128)
    os.close(writer)
    os.close(log)
    with open(reader, "rb") as stream:
        problem = stream.read().decode(errors="replace")
    if problem:
        os.waitpid(pid, 0)
        say(problem=problem)
        return None
    say(pid=pid)
    return pid


def main():
    with open(sys.argv[1], encoding="utf-8") as stream:
        spec = json.load(stream)
    pid = start(spec, int(sys.argv[2]))
    if pid is None:
        return
    ended = os.pidfd_open(pid)
    waiting = [0, ended]
    while ended not in (ready := select.select(waiting, [], [])[0]):
        order = os.read(ready[0], 1)
        os.kill(pid, signal.SIGTERM if order == b"T" else signal.SIGKILL)
        if not order:
            waiting = [ended]
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    say(exit=code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
