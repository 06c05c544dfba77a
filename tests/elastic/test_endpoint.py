"""The HTTP endpoint of an elastic training, over a real socket of this machine."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.elastic.control import serve
from zeusrun.elastic.rank.board import Board, Generation
from zeusrun.elastic.section import Elastic
from zeusrun.errors import LaunchError

ELASTIC = Elastic(min=2, max=4)
FIRST = 3
STOPS = []


def stop():
    STOPS.append("stopped")


def free_port(family=socket.AF_INET, host="127.0.0.1"):
    with socket.socket(family) as free:
        free.bind((host, 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The board and the port of a running endpoint."""
    port = free_port()
    with (
        contextlib.closing(Board(tmp_path_factory.mktemp("run"), create=True)) as board,
        serve(f"127.0.0.1:{port}", board, ELASTIC, FIRST, stop),
    ):
        yield board, port


@pytest.fixture
def board(server):
    """The board, with two ranks."""
    board, _ = server
    board.publish(Generation(2, (0, 5), "a user wants 2"))
    board.place(0).pid, board.place(5).pid = 100, 105
    return board


def request(port, method, path, body=None, *, headers=None, host="127.0.0.1"):
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=300)) as connection:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        assert answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(answer.read())


@pytest.fixture
def ask(server, board):
    """Ask the endpoint; returns the status and the content of the answer."""
    return lambda *arguments, **options: request(server[1], *arguments, **options)


def orders(board):
    return board.wanted[0]


def test_get_says_who_trains(ask, board):
    board.order(2, "a user")
    assert ask("GET", "/config") == (
        200,
        {
            "generation": 2,
            "size": 2,
            "wanted": 2,
            "min": 2,
            "max": 4,
            "ranks": [
                {"rank": 0, "process": 0, "pid": 100},
                {"rank": 1, "process": 5, "pid": 105},
            ],
        },
    )


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_size_is_an_order(ask, board, method):
    before = orders(board)
    status, content = ask(method, "/config", '{"size": 4}')
    assert (status, content["wanted"], content["size"]) == (202, 4, 2)
    assert board.wanted == (before + 1, 4, "the endpoint")


def test_delete_asks_for_the_ranks_of_the_start(ask, board):
    assert ask("DELETE", "/config")[0] == 202
    assert board.wanted[1:] == (FIRST, "the endpoint")


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_stop_cancels_the_run_as_the_user_does(ask, board, method):
    STOPS.clear()
    assert ask(method, "/stop")[0] == 202
    assert STOPS == ["stopped"]
    board.publish(Generation(3, ()))
    assert (ask("GET", "/config")[1]["size"], ask("GET", "/config")[1]["ranks"]) == (0, [])


def test_before_the_ranks_have_started_there_are_none(tmp_path):
    port = free_port()
    with serve(f"127.0.0.1:{port}", Board(tmp_path, create=True), ELASTIC, FIRST, stop):
        _, content = request(port, "GET", "/config")
    assert (content["generation"], content["size"], content["ranks"]) == (0, 0, [])
    assert content["wanted"] == FIRST


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in ("/", "/stop", "/config/", "/config?size=3", "/../config")),
        *((method, path) for method in ("PUT", "POST") for path in ("/", "/config/3")),
        *(("DELETE", path) for path in ("/", "/stop")),
    ],
)
def test_there_are_no_other_paths(ask, board, method, path):
    before = orders(board)
    assert ask(method, path, '{"size": 3}') == (404, {"error": "there are /config and /stop"})
    assert orders(board) == before


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ('{"size": 1}', "size must be a number from 2 to 4, not 1"),
        ('{"size": 5}', "size must be a number from 2 to 4, not 5"),
        ('{"size": 0}', "size must be a number from 2 to 4, not 0"),
        ('{"size": -2}', "size must be a number from 2 to 4, not -2"),
        ('{"size": 3.0}', "size must be a number from 2 to 4, not 3.0"),
        ('{"size": "3"}', "size must be a number from 2 to 4, not '3'"),
        ('{"size": true}', "size must be a number from 2 to 4, not True"),
        ('{"size": 1e999}', "size must be a number from 2 to 4, not inf"),
        ("{}", "must be JSON"),
        ("[3]", 'a request must be JSON, such as {"size": 3}'),
        ("3", 'a request must be JSON, such as {"size": 3}'),
        ("", "must be JSON"),
        ('{"size": 3', "must be JSON"),
        (b'{"\xff": 3}', "must be JSON"),
        ("[" * 4000, "recursion|must be JSON"),
        ('{"size": 3}' + " " * 4096, "a request may have 4096 bytes, not 4107"),
    ],
)
def test_what_is_no_size_is_refused_and_changes_nothing(ask, board, body, sentence):
    before = orders(board)
    status, content = ask("PUT", "/config", body)
    assert status == 400
    assert list(content) == ["error"]
    assert re.search(sentence, content["error"])
    assert orders(board) == before


@pytest.mark.parametrize("length", ["-1", "many", str(10**30)])
def test_a_length_that_cannot_be_is_refused_at_once(ask, board, length):
    before = orders(board)
    status, _ = ask("PUT", "/config", None, headers={"Content-Length": length})
    assert status == 400
    assert orders(board) == before


def test_a_method_that_is_unknown_is_refused(server):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server[1])) as connection:
        connection.request("PATCH", "/config", '{"size": 3}')
        assert connection.getresponse().status == 501


@given(body=st.binary(max_size=200) | st.text(max_size=50).map(str.encode))
def test_no_request_ends_the_endpoint_and_only_a_size_is_an_order(server, body):
    board, port = server
    before = orders(board)
    status, _ = request(port, "POST", "/config", body)
    assert status == 202 if orders(board) > before else status == 400


def test_a_client_that_goes_is_no_news_for_the_terminal(server, board, capfd):
    for sent in (b"", b"PUT /config HTTP/1.1\r\nContent-Length: 100\r\n\r\n{", b"\0\xff\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server[1])) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
            client.sendall(sent)
    assert request(server[1], "GET", "/config")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_taken_port_is_a_launch_error_that_names_it(server, tmp_path):
    listen = f"127.0.0.1:{server[1]}"
    endpoint = serve(listen, Board(tmp_path, create=True), ELASTIC, FIRST, stop)
    with pytest.raises(LaunchError, match=rf"elastic\.listen: {listen}: .*another port"):
        endpoint.__enter__()


def test_a_name_that_is_no_address_is_a_launch_error(tmp_path):
    endpoint = serve("no.such.invalid:9100", Board(tmp_path, create=True), ELASTIC, FIRST, stop)
    with pytest.raises(LaunchError, match=r"elastic\.listen: no\.such\.invalid:9100"):
        endpoint.__enter__()


def test_it_listens_on_an_address_of_ipv6(tmp_path):
    try:
        port = free_port(socket.AF_INET6, "::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serve(f"[::1]:{port}", Board(tmp_path, create=True), ELASTIC, FIRST, stop):
        assert request(port, "GET", "/config", host="::1")[0] == 200


def test_its_port_is_free_once_it_is_left(tmp_path):
    board, port = Board(tmp_path, create=True), free_port()
    for _ in range(2):
        with serve(f"127.0.0.1:{port}", board, ELASTIC, FIRST, stop):
            assert request(port, "DELETE", "/config")[0] == 202
    with pytest.raises(OSError, match="refused"):
        request(port, "GET", "/config")
