"""The client of zeusd, against a server of our own. ``nvml_suite.py`` has both with NVML."""

from __future__ import annotations

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


@pytest.fixture(params=["today", "0.2"])
def server(request, tmp_path, limits_mw):
    def set_limit(gpu, milliwatts):
        if milliwatts <= 300_000:
            limits_mw[gpu] = milliwatts
        return milliwatts <= 300_000

    with running_zeusd(tmp_path / "sock", set_limit, version=request.param) as server:
        yield server


@pytest.fixture
def zeusd(server, tmp_path):
    return Zeusd(tmp_path / "sock", in_container=False)


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


@pytest.mark.parametrize("server", ["today"], indirect=True)  # 0.2 does not tell its GPUs
@pytest.mark.parametrize("discovered", [None, "[]", "no JSON", '{"gpu_ids": null}'])
def test_a_daemon_that_sees_other_gpus_is_not_asked(server, zeusd, limits_mw, discovered):
    server.gpu_ids = (0, 1, 2)
    server.discovered = discovered
    with pytest.raises(LimitRefusedError, match=r"has 3 GPUs and this process 2|does not tell"):
        zeusd.set_power_limit_w(0, 200.0, 2)
    assert limits_mw == {}


@pytest.mark.parametrize("server", ["0.2"], indirect=True)
def test_a_daemon_that_does_not_tell_its_gpus_is_not_asked_from_a_container(
    server, tmp_path, limits_mw
):
    with pytest.raises(LimitRefusedError, match="a container may number them otherwise"):
        Zeusd(tmp_path / "sock", in_container=True).set_power_limit_w(0, 200.0, 2)
    assert (server.fileno() > 0, limits_mw) == (True, {})


def test_a_daemon_that_hangs_is_given_up(server, tmp_path):
    server.hang.clear()
    with pytest.raises(LimitRefusedError, match="does not answer"):
        Zeusd(tmp_path / "sock", timeout_s=0.05).set_power_limit_w(0, 200.0, 2)


def test_a_dead_socket_is_given_up(tmp_path):
    path = tmp_path / "dead"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    with pytest.raises(LimitRefusedError, match=r"dead\) does not answer: Connection refused"):
        Zeusd(path).set_power_limit_w(0, 200.0, 2)


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
