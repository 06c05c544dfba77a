"""The two hosts of ``tests/hosts.py``: what they share, what they do not, and that they go away."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import TwoHosts, sweep
from tests.runs import has_ended, wait_for

ASK = "import socket; socket.create_connection(('b', 5000), timeout=0.3).close()"
LISTEN = """
import socket
server = socket.create_server(("", 5000))
print("listening", flush=True)
while True:
    server.accept()[0].close()
"""
OWNER = """
import os, signal, subprocess, sys, time
from tests.hosts import TwoHosts
with TwoHosts(sys.argv[1], sshd=True) as hosts:
    child = hosts.b.start(["sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
    child.stdout.readline()
    if sys.argv[2:]:
        os.kill(hosts.b._holder.pid, signal.SIGKILL)
    print(child.pid, hosts.b._sshd.pid, flush=True)
    time.sleep(600)
"""


def test_each_host_has_its_name_its_address_and_its_interfaces(tmp_path):
    with TwoHosts(tmp_path) as hosts:
        for host, other in ((hosts.a, hosts.b), (hosts.b, hosts.a)):
            assert host.run(["hostname"]).stdout.strip() == host.name
            names = host.run(["getent", "hosts", host.name, other.name]).stdout.split()
            assert names == ["127.0.1.1", host.name, other.address, other.name]
            assert host.run(["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]
            shown = host.run(["ip", "-4", "-o", "addr", "show", "dev", "eth0"]).stdout
            assert f" {host.address}/24 " in shown
    assert socket.gethostname() not in ("a", "b")


def test_a_command_has_the_environment_the_folder_and_the_pid_that_it_is_given(tmp_path):
    with TwoHosts(tmp_path / "hosts") as hosts:
        env = {"PATH": os.environ["PATH"], "ONLY": "this"}
        script = ["sh", "-c", "pwd; echo $ONLY $HOME; exit 7"]
        done = hosts.b.run(script, env=env, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (7, f"{tmp_path}\nthis\n")
        child = hosts.b.start(["sleep", "600"])
        wait_for(lambda: hosts.b.pids() == [child.pid])
        assert hosts.a.pids() == []
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(300) == -signal.SIGTERM
        hosts.b.start(["sleep", "600"])
        wait_for(hosts.b.pids)  # nsenter may not have entered yet
        hosts.b.kill()
        wait_for(lambda: hosts.b.pids() == [])


@pytest.mark.parametrize("shared", [True, False])
def test_a_home_may_be_private_and_all_other_files_are_shared(tmp_path, shared):
    home = tmp_path / "home"
    with TwoHosts(tmp_path / "hosts", home=home, shared_files=shared) as hosts:
        for host in (hosts.a, hosts.b):
            done = host.run(["sh", "-c", f"mkdir -p {home}; touch {home}/$(hostname)"])
            assert done.returncode == 0, done.stderr
        both = ["a", "b"]
        assert hosts.a.run(["ls", home]).stdout.split() == (both if shared else ["a"])
        assert hosts.b.run(["ls", home]).stdout.split() == (both if shared else ["b"])
        assert hosts.b.path(home / "b").exists()
        assert (home / "b").exists() == shared
        hosts.a.run(["touch", tmp_path / "elsewhere"])
        assert hosts.b.run(["ls", tmp_path / "elsewhere"]).returncode == 0


def test_a_cut_cable_carries_nothing_until_it_is_mended(tmp_path):
    with TwoHosts(tmp_path) as hosts:
        hosts.shape(200)
        server = hosts.b.start([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE)
        assert server.stdout.readline() == b"listening\n"

        def reached():
            return hosts.a.run([sys.executable, "-c", ASK]).returncode == 0

        assert reached()
        hosts.cut()
        assert not reached()
        hosts.mend()
        wait_for(reached)


def test_ssh_runs_a_command_on_the_other_host_without_the_environment_of_the_caller(tmp_path):
    with TwoHosts(tmp_path, sshd=True) as hosts:
        for host, other in ((hosts.a, hosts.b), (hosts.b, hosts.a)):
            command = [*hosts.ssh_command, other.name, "hostname; echo $SECRET; cat; exit 5"]
            done = host.run(command, input="from here", env={**os.environ, "SECRET": "x"})
            assert (done.returncode, done.stdout) == (5, f"{other.name}\n\nfrom here"), done.stderr
            assert done.stderr == ""
        assert hosts.a.run([*hosts.ssh_command, "c", "true"]).returncode == 255


def test_nothing_is_left_when_the_test_fails(tmp_path):
    children = []

    def failing_test():
        with TwoHosts(tmp_path, sshd=True) as hosts:
            script = "setsid sleep 600 & echo $!; wait"
            for host in (hosts.a, hosts.b):
                children.append(host.start(["sh", "-c", script], stdout=subprocess.PIPE))
                children.append(int(children[-1].stdout.readline()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()
    assert [child.returncode for child in children[::2]] == [-signal.SIGKILL] * 2
    wait_for(lambda: all(map(has_ended, children[1::2])))
    assert "zeusrun-hosts-" not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize("killed", ["the test", "the test and a holder"])
def test_nothing_is_left_when_the_test_is_killed(tmp_path, killed):
    with TwoHosts(tmp_path / "mine", sshd=True):  # or skip
        pass
    command = [sys.executable, "-c", OWNER, str(tmp_path / "its"), *killed.split()[2:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert [has_ended(pid) for pid in pids] == [False, False]
        owner.kill()
    if killed != "the test":  # only the next hosts can end what is left
        sweep()
    wait_for(lambda: all(map(has_ended, pids)))
