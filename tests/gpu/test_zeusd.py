"""The client of zeusd, against a server of our own. ``nvml_suite.py`` has both with NVML."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading

import pytest

from tests.gpu.fake_zeusd import running_zeusd
from zeusrun.errors import DeviceError, LimitRefusedError
from zeusrun.gpu.zeusd import Zeusd, find_zeusd


@pytest.fixture
def limits_mw():
    return {}


@pytest.fixture(params=["today", "0.5.0", "0.4"])
def server(request, tmp_path, limits_mw):
    def set_limit(gpu, milliwatts):
        if milliwatts <= 300_000:
            limits_mw[gpu] = milliwatts
        return milliwatts <= 300_000

    with running_zeusd(tmp_path / "sock", set_limit, version=request.param) as server:
        yield server


@pytest.fixture
def zeusd(server, tmp_path):
    return Zeusd(tmp_path / "sock")


def test_a_limit_is_set_in_milliwatts_on_the_gpu_of_that_index(zeusd, limits_mw):
    zeusd.set_power_limit_w(1, 199.9995, 2)
    zeusd.set_power_limit_w(0, 150.5, 2)
    assert limits_mw == {1: 200_000, 0: 150_500}


def test_a_refused_value_is_an_error_with_what_it_said(zeusd, limits_mw):
    with pytest.raises(DeviceError, match="400 Invalid power limit 301000") as caught:
        zeusd.set_power_limit_w(0, 301.0, 2)
    assert not isinstance(caught.value, LimitRefusedError)
    assert limits_mw == {}


@pytest.mark.parametrize("status", [401, 403])
def test_a_user_without_rights_is_refused(server, zeusd, status):
    server.answer = status
    with pytest.raises(LimitRefusedError, match=rf"sock\) answered {status}"):
        zeusd.set_power_limit_w(0, 200.0, 2)


def test_a_daemon_that_fails_is_an_error(server, zeusd):
    server.answer = 500
    with pytest.raises(DeviceError, match="answered 500"):
        zeusd.set_power_limit_w(0, 200.0, 2)


@pytest.mark.parametrize("server", ["0.5.0", "0.4"], indirect=True)
@pytest.mark.parametrize(
    "discovered",
    [
        *(None, "[]", "no JSON", '{"gpu_ids": null}', '{"gpus": [{"name": "A100"}]}'),
        *('{"gpus": [{"id": Infinity}]}', '{"gpu_ids": [-Infinity]}', "[" * 200_000),
    ],
    ids=lambda text: str(text)[:30],
)
def test_a_daemon_that_sees_other_gpus_is_not_asked(server, zeusd, limits_mw, discovered):
    server.gpu_ids = (0, 1, 2)
    server.discovered = discovered
    with pytest.raises(LimitRefusedError, match=r"has 3 GPUs and this process 2|does not list"):
        zeusd.set_power_limit_w(0, 200.0, 2)
    assert limits_mw == {}


@pytest.mark.parametrize("server", ["0.2"], indirect=True)
def test_a_daemon_that_is_too_old_to_list_its_gpus_is_not_asked(server, zeusd, limits_mw):
    with pytest.raises(LimitRefusedError, match=r"does not list its GPUs; zeusd 0\.3 and later do"):
        zeusd.set_power_limit_w(0, 200.0, 2)
    assert limits_mw == {}


def test_a_daemon_that_hangs_is_given_up_and_may_carry_out_yet_what_it_was_asked_for_before(
    server, tmp_path
):
    server.hang.clear()
    with pytest.raises(DeviceError, match=r"does not answer in 0\.05 s; restart it") as caught:
        Zeusd(tmp_path / "sock", timeout_s=0.05).set_power_limit_w(0, 200.0, 2)
    assert not isinstance(caught.value, LimitRefusedError)


def test_a_dead_socket_is_given_up(tmp_path):
    path = tmp_path / "dead"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    with pytest.raises(LimitRefusedError, match=r"dead\) does not answer: Connection refused"):
        Zeusd(path).set_power_limit_w(0, 200.0, 2)


class Endless(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(1000)
        with contextlib.suppress(OSError):
            self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                self.request.sendall(b" " * 65536)


def test_an_answer_without_an_end_is_not_read_to_it(tmp_path):
    path = tmp_path / "sock"
    with socketserver.UnixStreamServer(str(path), Endless) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(LimitRefusedError, match="does not list its GPUs"):
            Zeusd(path, timeout_s=60.0).set_power_limit_w(0, 200.0, 2)
        thread.join()


class Nonsense(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(1000)
        self.request.sendall(b"who is there?\r\n\r\n")


def test_something_else_than_http_is_given_up(tmp_path):
    path = tmp_path / "sock"
    with socketserver.UnixStreamServer(str(path), Nonsense) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(LimitRefusedError, match="does not answer: BadStatusLine"):
            Zeusd(path).set_power_limit_w(0, 200.0, 2)
        thread.join()


@pytest.mark.parametrize("server", ["today"], indirect=True)
def test_a_daemon_is_found_where_the_environment_says(server, tmp_path, limits_mw):
    found = find_zeusd({"ZEUSD_SOCK_PATH": str(tmp_path / "sock")})
    found.set_power_limit_w(0, 200.0, 2)
    assert limits_mw == {0: 200_000}


def test_without_a_socket_there_is_no_daemon(tmp_path):
    (tmp_path / "file").touch()
    assert find_zeusd({"ZEUSD_SOCK_PATH": str(tmp_path / "file")}) is None
    assert find_zeusd({"ZEUSD_SOCK_PATH": str(tmp_path / "absent")}) is None


# PCI addresses


@pytest.mark.parametrize("server", ["today"], indirect=True)
def test_where_addresses_are_told_they_say_which_gpu_is_which(server, zeusd, limits_mw):
    server.gpu_ids, server.buses = (0, 1, 2), {0: 0x41, 1: 0x81, 2: 0x01}
    zeusd.set_power_limit_w(0, 200.0, 2, pci=(0, 0x81, 0))
    assert limits_mw == {1: 200_000}


@pytest.mark.parametrize("server", ["today"], indirect=True)
def test_a_gpu_that_the_daemon_does_not_have_is_named_by_its_address(server, zeusd, limits_mw):
    with pytest.raises(LimitRefusedError, match=r"does not have GPU 0, at PCI 0000:81:00\.0"):
        zeusd.set_power_limit_w(0, 200.0, 2, pci=(0, 0x81, 0))
    assert limits_mw == {}


@pytest.mark.parametrize(
    ("server", "pci"), [("today", None), ("0.5.0", (0, 1, 0))], indirect=["server"]
)
def test_where_either_side_does_not_tell_addresses_the_numbers_must_agree(zeusd, limits_mw, pci):
    zeusd.set_power_limit_w(0, 200.0, 2, pci=pci)
    assert limits_mw == {0: 200_000}
    with pytest.raises(LimitRefusedError, match="has 2 GPUs and this process 3"):
        zeusd.set_power_limit_w(0, 250.0, 3, pci=pci)


# Token


@pytest.mark.parametrize("server", ["today"], indirect=True)
def test_the_token_of_the_environment_is_sent(server, tmp_path, limits_mw):
    server.token = "a.b.c"
    where = {"ZEUSD_SOCK_PATH": str(tmp_path / "sock")}
    with pytest.raises(LimitRefusedError, match=r"answered 401 .*from ZEUSD_TOKEN"):
        find_zeusd(where).set_power_limit_w(0, 200.0, 2)
    find_zeusd({**where, "ZEUSD_TOKEN": "a.b.c\n"}).set_power_limit_w(0, 200.0, 2)
    assert limits_mw == {0: 200_000}
    with pytest.raises(LimitRefusedError, match="ZEUSD_TOKEN is not a token") as caught:
        find_zeusd({**where, "ZEUSD_TOKEN": "a\nb"}).set_power_limit_w(0, 200.0, 2)
    assert "a\nb" not in str(caught.value)
