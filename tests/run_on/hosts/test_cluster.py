"""The hosts of a submit: started by real fan-outs, joined by hand, and refused with a reason."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.factories import AS_SSH, load_job
from tests.run_on.hosts.ends import prepare
from tests.runs import wait_for
from zeusrun.errors import BusyError, LaunchError, UsageError
from zeusrun.jobfile.hosts import Host
from zeusrun.jobfile.run_on_section import RunOn
from zeusrun.launcher.processes.fan_out import FanOutProcess
from zeusrun.run_on.hosts import cluster as module
from zeusrun.run_on.hosts import remote_node
from zeusrun.run_on.hosts import verbs as node_commands
from zeusrun.run_on.hosts.channel import PREAMBLE, Channel, ChannelError, authenticate
from zeusrun.run_on.hosts.cluster import TOKEN_VARIABLE, Cluster, _number_of, listen, open_cluster
from zeusrun.run_on.hosts.network import Endpoint, list_interfaces
from zeusrun.run_on.hosts.node_launcher import NodeLauncher
from zeusrun.run_on.hosts.remote_node import RemoteNode


def job(tmp_path, **changes):
    run_on = {"hosts": ["localhost", "b"], "nic": "lo", "fan_out": AS_SSH, **changes}
    return load_job(tmp_path, run_on=run_on)


def opened(spec, signals, show):
    return open_cluster(spec, spec.run_on, signals, lambda event: show(event.text))


def refused(tmp_path, kind=LaunchError, **changes):
    with pytest.raises(kind) as told:
        opened(job(tmp_path, **changes), [], pytest.fail)
    return str(told.value)


def test_a_fan_out_starts_a_launcher_on_each_other_host(tmp_path):
    cluster, own = opened(job(tmp_path, hosts=["localhost:2", "b:2"]), [], pytest.fail)
    try:
        (node,) = cluster.nodes
        assert (node.name, node.number, own) == ("b", 1, 2)
        assert cluster.slots == {"localhost": 2, "b": 2}
        prepare(node, tmp_path, ranks=2, first=2)
        cluster.parts = [(2, Endpoint("lo", "127.0.0.1"))] * 2
        first, second = cluster.places()
        assert (first.ranks, second.ranks) == (2, 2)
        assert first.endpoint == second.endpoint
        assert re.fullmatch(r"127\.0\.0\.1:\d+", first.endpoint)
        assert (first.number, second.number, first.hosts, second.hosts) == (0, 1, 2, 2)
    finally:
        cluster.close()
    assert cluster.processes[0]._process.returncode == 0
    assert node.lost is None


def test_this_host_must_be_among_them(tmp_path):
    text = refused(tmp_path, UsageError, hosts=["b", "192.0.2.1"])
    assert text == (
        f"this host, {socket.gethostname()}, is not one of the job's hosts: b, 192.0.2.1. Submit on one "
        "of them, or add it to run_on"
    )


def test_one_machine_has_one_name(tmp_path):
    text = refused(tmp_path, UsageError, hosts=["localhost:2", "b", "127.0.0.1"])
    assert text == "localhost and 127.0.0.1 are both this host; name it once, with its slots"


def test_alone_on_the_list_it_needs_nobody(tmp_path):
    cluster, _ = opened(job(tmp_path, hosts=["localhost"]), [], pytest.fail)
    assert cluster.nodes == ()
    cluster.close()


@pytest.mark.parametrize(
    ("fan_out", "said"),
    [
        (
            "/nonexistent/ssh {host}",
            r"^run_on.fan_out: /nonexistent/ssh could not be started: No such file",
        ),
        (
            "sh -c 'echo noise; echo first >&2; echo no route to host >&2; exit 255' {host}",
            r"^host b cannot be reached \(sh exited with code 255: no route to host\)\. It needs zeusrun",
        ),
        ("sh -c 'kill -9 $$' {host}", r"^host b cannot be reached \(sh was ended by SIGKILL\)"),
        ("sh -c 'exit 0' {host}", r"^host b cannot be reached \(sh exited with code 0\)"),
    ],
)
def test_a_fan_out_that_fails_is_told(tmp_path, fan_out, said):
    assert re.search(said, refused(tmp_path, fan_out=fan_out))


def test_one_of_several_that_fails_ends_the_others(tmp_path):
    fan_out = """sh -c '[ $0 = c ] && exit 3; eval "exec $*"' {host}"""
    text = refused(tmp_path, hosts=["localhost:2", "b", "c"], fan_out=fan_out)
    assert text.startswith("host c cannot be reached")


def test_secrets_among_the_arguments_are_not_sent_to_a_joined_host(tmp_path):
    run_on = {"hosts": ["localhost", "b"], "nic": "lo", "fan_out": "join"}
    spec = load_job(tmp_path, run_on=run_on, args=["--api-key", "hf_0123456789"])
    with pytest.raises(UsageError, match="args contain a secret"):
        opened(spec, [], pytest.fail)


@pytest.mark.parametrize(
    ("section", "asked"),
    [
        ({"hosts": ["localhost", "b"]}, True),
        ({"hosts": ["localhost", "b"], "fan_out": "/usr/bin/ssh -4 {host}"}, True),
        ({"hosts": ["localhost", "b"], "fan_out": "rsh {host}"}, False),
        ({"hosts": ["localhost", "b"], "fan_out": "join"}, False),
        ({"slurm": {}}, False),
        ({"kubernetes": {"image": "a", "resources": {"cpu": 1, "memory": "1Gi"}}}, False),
    ],
)
def test_only_where_ssh_reaches_the_hosts_a_name_may_be_an_alias_of_it(section, asked, slurm):
    with pytest.raises(LaunchError) as told:
        module._find_own(RunOn.model_validate(section), "nobody.invalid")
    assert ("ssh" in str(told.value)) is asked
    assert bool(slurm.calls("scontrol")) is ("slurm" in section)


def test_slurm_knows_the_address_of_a_name_that_has_none_here(slurm):
    slurm.place("n2.invalid", "127.0.0.2")
    run_on = RunOn.model_validate({"slurm": {}})
    assert module._find_own(run_on, "n2.invalid") == Endpoint("lo", "127.0.0.1")
    assert slurm.calls("scontrol") == [["scontrol", "--oneliner", "show", "node", "n2.invalid"]]
    module._find_own(run_on, "127.0.0.2")
    assert len(slurm.calls("scontrol")) == 1  # a name with an address is not asked for


def descriptors():
    return sorted(os.readlink(f"/proc/self/fd/{each}") for each in own_descriptors())


def own_descriptors():
    found = os.listdir("/proc/self/fd")
    return [each for each in found if os.path.lexists(f"/proc/self/fd/{each}")]


def open_and_close(tmp_path, _monkeypatch):
    cluster, _ = opened(job(tmp_path), [], pytest.fail)
    prepare(cluster.nodes[0], tmp_path)
    cluster.close()


def fail_to_open(tmp_path, _monkeypatch):
    refused(tmp_path, hosts=["localhost:2", "b", "c"], fan_out="""sh -c '[ $0 = c ]' {host}""")
    refused(tmp_path, fan_out="/nonexistent/ssh {host}")


def wait_for_strangers(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    signals, ends = [], []

    def show(text):
        if found := re.search(r"zeusrun join (\S+):(\d+)$", text):
            ends.append(socket.create_connection((found[1], int(found[2]))))
            ends[0].sendall(b"x" * 64)
        elif "was refused" in text:
            signals.append(15)

    with pytest.raises(BusyError):
        opened(job(tmp_path, fan_out="join"), signals, show)
    ends[0].close()


def join_a_stranger(_tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with listen("127.0.0.1", None) as server:
        thread = threading.Thread(target=lambda: server.accept()[0].sendall(b"x" * 64))
        thread.start()
        with pytest.raises(LaunchError, match="the other end is not zeusrun") as told:
            node_commands.join_head(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    errors.append(told.value)  # with its frames, and what is in them


errors = []


@pytest.mark.parametrize("use", [open_and_close, fail_to_open, wait_for_strangers, join_a_stranger])
def test_no_descriptor_is_left_open(tmp_path, monkeypatch, use):
    use(tmp_path, monkeypatch)  # the first time, Python opens some of its own
    before = descriptors()
    for _ in range(3):
        use(tmp_path, monkeypatch)
    assert descriptors() == before


# zeusrun join


class Joiner:
    """A person who runs what the submit shows, first with a wrong token."""

    def __init__(self, zeusrun):
        self.zeusrun, self.shown, self.children = zeusrun, [], []

    def __call__(self, text):
        self.shown.append(text)
        if found := re.search(r"(\w+)=(\S+) zeusrun join (\S+)$", text):
            name, self.token, self.endpoint = found.groups()
            assert name == TOKEN_VARIABLE
            self.join("guess")
        elif "did not join" in text:
            self.join(self.token)

    def join(self, token):
        self.children.append(self.zeusrun.start("join", self.endpoint, **{TOKEN_VARIABLE: token}))


@pytest.mark.torchrun  # its version is that of this process
def test_hosts_join_by_hand_with_the_token_only(tmp_path, zeusrun, monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    joiner = Joiner(zeusrun)
    cluster, _ = opened(job(tmp_path, fan_out="join"), [], joiner)
    try:
        (node,) = cluster.nodes
        assert not node.channel.is_private
        prepare(node, tmp_path)
        assert len(node.ranks) == 1
    finally:
        cluster.close()
    refused, joined = joiner.children
    assert joined.wait(300) == 0
    assert refused.wait(300) == 5
    assert "the token is wrong" in refused.stdout.read()
    waiting, did_not, joined_from = joiner.shown
    assert joined_from == "host b joined from 127.0.0.1"
    assert waiting.startswith("waiting for b; run there: ")
    assert "did not join: its token is wrong" in did_not


def test_other_programs_do_not_join_and_a_signal_ends_the_wait(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "of the user")
    signals, shown = [], []

    def show(text):
        shown.append(text)
        if found := re.search(r"zeusrun join (\S+):(\d+)$", text):
            with socket.create_connection((found[1], int(found[2]))) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + b"x" * len(PREAMBLE))
                threading.Timer(0.1, signals.append, [15]).start()

    with pytest.raises(BusyError, match=r"^job: ended by SIGTERM before it began$"):
        opened(job(tmp_path, fan_out="join"), signals, show)
    assert "of the user" not in "".join(shown)
    assert re.fullmatch(
        r"a connection from 127\.0\.0\.1 was refused: the other end is not zeusrun", shown[1]
    )


@pytest.fixture
def nobody_joins(monkeypatch):
    monkeypatch.setattr(module, "_PERSON_S", -1.0)


def test_an_empty_token_is_none(tmp_path, monkeypatch, nobody_joins):
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    shown = []
    with pytest.raises(LaunchError, match="b did not join within"):
        opened(job(tmp_path, fan_out="join"), [], shown.append)
    (line,) = shown
    assert re.search(rf"{TOKEN_VARIABLE}=\S{{22}} zeusrun join ", line)


def test_who_waits_for_nobody_refuses_to_wait(cli, zeusrun):
    path = zeusrun.job(run_on={"hosts": ["localhost", "b"], "nic": "lo", "fan_out": "join"})
    for words in (["explain", path], ["submit", path, "--dry-run"]):
        code, _, errors = cli(*words)
        assert code == 2
        assert "only `zeusrun submit` waits for other hosts" in " ".join(errors.split())


def test_a_quiet_submit_says_how_to_join(cli, zeusrun, nobody_joins):
    path = zeusrun.job(run_on={"hosts": ["localhost", "b"], "nic": "lo", "fan_out": "join"})
    code, shown, _ = cli("submit", path, "--quiet")
    assert code == 5
    assert "· waiting for b; run there: " in " ".join(shown.split())


def test_who_sends_a_byte_now_and_then_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(module, "_HANDSHAKE_S", 0.1)
    head, other = socket.socketpair()
    done = threading.Event()

    def drip():
        for byte in PREAMBLE + bytes(16):
            if done.wait(0.02):
                return
            other.sendall(bytes([byte]))

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(ChannelError, match="the other end is not zeusrun"):
        module.open_channel(head, "secret", 1, head=True)
    done.set()
    thread.join()
    other.close()


class Person:
    """Joins two hosts in threads, the second late, while the first leaves and joins again."""

    def __init__(self, monkeypatch):
        self.seen, self.launchers, self.signals = [], [], []
        monkeypatch.setattr(module, "RemoteNode", self._see)
        monkeypatch.setattr(module, "_POLL_S", 0.02)
        # The head waits so long for the end of a connection: a thread, unlike a process, keeps it.
        monkeypatch.setattr(remote_node, "_STALE_S", 0.05)
        self._thread = threading.Thread(target=self._run)

    def _see(self, *arguments):
        self.seen.append(RemoteNode(*arguments))
        return self.seen[-1]

    def __call__(self, text):
        if found := re.search(r"zeusrun join (\S+):(\d+)$", text):
            self.endpoint = found[1], int(found[2])
            self._thread.start()

    def _run(self):
        launcher, thread = self._join()
        begun_t = launcher._heard_t
        try:
            wait_for(lambda: launcher._heard_t > begun_t, 30.0, "a ping")
        except BaseException:
            self.signals.append(signal.SIGTERM)  # nobody else ends the wait
            raise
        launcher._leaving = True
        thread.join()
        wait_for(lambda: self.seen[0].lost)
        socket.create_connection(self.endpoint).close()  # the head has looked when it is refused
        self._join()
        self._join()

    def _join(self):
        sock = socket.create_connection(self.endpoint)
        auth = authenticate(sock.fileno(), "of the user", head=False)
        descriptor = sock.detach()
        launcher = NodeLauncher(Channel(descriptor, descriptor, 0, auth))
        thread = threading.Thread(target=launcher.serve)
        thread.start()
        self.launchers.append(thread)
        return launcher, thread

    def wait(self):
        for thread in (self._thread, *self.launchers):
            thread.join(30.0)
            assert not thread.is_alive()


@pytest.mark.usefixtures("hosts")  # it catches signals, as the launchers in threads need it
def test_while_one_host_is_late_another_is_pinged_and_may_leave_and_join_again(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(TOKEN_VARIABLE, "of the user")
    person = Person(monkeypatch)
    spec = job(tmp_path, hosts=["localhost:2", "b", "c"], fan_out="join")
    cluster, _ = opened(spec, person.signals, person)
    try:
        assert [(node.number, node.lost) for node in cluster.nodes] == [(1, None), (2, None)]
        assert [node.name for node in person.seen] == ["b", "b", "c"]
    finally:
        cluster.close()
    person.wait()


def test_a_host_that_joins_has_the_number_of_its_address():
    hosts = [Host("nobody.invalid", None), Host("a..b", None), Host("127.0.0.1", None)]
    assert _number_of("127.0.0.1", hosts, {}) == 3
    assert _number_of("192.0.2.1", hosts, {}) == 1
    assert _number_of("127.0.0.1", hosts, {1: None, 3: None}) == 2


@pytest.mark.parametrize(
    ("endpoint", "code", "said"),
    [
        ("here", 2, "here is not HOST:PORT"),
        (":1", 2, "is not HOST:PORT"),
        ("a:b", 2, "is not HOST:PORT"),
        ("127.0.0.1:1", 5, "127.0.0.1:1 cannot be reached: "),
        ("127.0.0.1:99999", 5, "127.0.0.1:99999 cannot be reached: "),
        ("a..b:29400", 5, "a..b:29400 cannot be reached: "),
        ("[::1]:1", 5, "cannot be reached: "),
    ],
)
def test_an_endpoint_that_cannot_be_joined_is_told(cli, monkeypatch, endpoint, code, said):
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    monkeypatch.setattr(node_commands, "_CONNECT_S", 0.02)
    monkeypatch.setattr(node_commands, "_AGAIN_S", 0.01)
    exit_code, _, errors = cli("join", endpoint)
    assert exit_code == code
    assert said in " ".join(errors.split())


def test_join_needs_a_token(cli, monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "stdin", open("/dev/null"))  # noqa: SIM115
    exit_code, _, errors = cli("join", "127.0.0.1:1")
    assert exit_code == 2
    assert TOKEN_VARIABLE in errors


def test_what_listens_there_must_be_zeusrun(cli, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer():
            sock, _ = server.accept()
            with sock:
                sock.sendall(b"220 smtp.example ESMTP\r\n" * 4)
                sock.shutdown(socket.SHUT_WR)
                sock.recv(100)

        thread = threading.Thread(target=answer)
        thread.start()
        exit_code, _, errors = cli("join", f"127.0.0.1:{port}")
        thread.join()
    assert exit_code == 5
    assert "the other end is not zeusrun" in " ".join(errors.split())


# zeusrun node


def test_a_fan_out_may_print_before_and_gets_only_a_number_and_its_own_session(hosts):
    node, process = hosts.start(
        number=4, words=["sh", "-c", 'echo "Welcome $USER"; exec "$@"', "sh"]
    )
    child = process._process
    words = Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")
    assert words[1:] == [b"-P", b"-m", b"zeusrun", b"node", b"4", b""][sys.version_info < (3, 11) :]
    assert os.getsid(child.pid) == child.pid
    node.close()
    assert child.wait(300) == 0
    assert node.lost is None


def test_a_launcher_that_nobody_answers_ends_with_its_input():
    done = subprocess.run(
        [sys.executable, "-m", "zeusrun", "node", "1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.startswith(PREAMBLE)
    assert done.stderr == b""


@pytest.fixture
def fan_out():
    """Start a fan-out; its pipes are closed with the test, as its caller does."""
    with contextlib.ExitStack() as stack:

        def start(*words, number=1):
            process = FanOutProcess(words, number)
            for descriptor in (process.reading, process.writing):
                stack.callback(os.close, descriptor)
            return process

        yield start


def test_a_fan_out_that_does_not_end_is_killed(fan_out):
    process = fan_out("sh", "-c", "exec sleep 600")
    process.end(at_once=True)
    assert process._process.returncode == -9


def test_how_it_ended_is_unknown_once_its_errors_are_closed(fan_out):
    process = fan_out("true")
    process.end(at_once=False)
    assert process.explain_end() == ""


# The end


def test_close_leaves_every_node(hosts, fan_out):
    first, second = hosts.serve("b", 1), hosts.serve("c", 2)
    processes = [fan_out("true", number=number) for number in (1, 2)]
    cluster = Cluster(RunOn(hosts=("a", "b", "c")), (first, second), processes)
    cluster.watch()
    cluster.close()
    assert (first.lost, second.lost) == (None, None)


def test_the_rendezvous_is_on_a_port_of_the_range():
    with listen("127.0.0.1", None) as sock:
        port = sock.getsockname()[1]
    other = (2, Endpoint("eth0", "10.77.0.2"))
    run_on = RunOn(hosts=("a", "b"), port_range=f"{port}-{port + 1}")
    first, second = Cluster(run_on, parts=[(2, Endpoint("lo", "127.0.0.1")), other]).places()
    assert first.endpoint == second.endpoint == f"127.0.0.1:{port}"
    assert (second.ranks, second.address, second.nic, second.number) == (2, "10.77.0.2", "eth0", 1)
    if "::1" in list_interfaces()["lo"]:
        parts = [(2, Endpoint("lo", "::1")), other]
        assert Cluster(RunOn(hosts=("a", "b")), parts=parts).places()[0].endpoint[:6] == "[::1]:"
