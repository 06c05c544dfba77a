"""Messages over real pipes and sockets: whole and in order, however the bytes arrive."""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import json
import os
import socket
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.run_on.hosts.ends import connect, frame
from tests.runs import wait_for
from zeusrun.run_on.hosts import channel as module
from zeusrun.run_on.hosts.channel import (
    PREAMBLE,
    Authenticator,
    Channel,
    ChannelError,
    authenticate,
)

MESSAGE = {"kind": "file", "node": 1, "data": "ä\udc80\n"}


@contextlib.contextmanager
def fed(*chunks):
    """Yield a channel that reads these chunks, one at a time, then the end."""
    reading, writing = os.pipe()
    done = threading.Event()
    thread = threading.Thread(target=feed, args=(writing, chunks, done))
    thread.start()
    channel = Channel(reading, os.open(os.devnull, os.O_WRONLY), 1)
    try:
        yield channel
    finally:
        done.set()
        thread.join()
        channel.close()


def feed(writing, chunks, done):
    unread = array.array("i", [0])
    for chunk in chunks:
        os.write(writing, chunk)
        while (
            not done.is_set() and not fcntl.ioctl(writing, termios.FIONREAD, unread) and unread[0]
        ):
            time.sleep(0)
    os.close(writing)


def received(channel):
    return list(iter(channel.receive, None))


def cut(data, places):
    places = sorted({place % len(data) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def sent(messages):
    """Return what a channel writes for messages."""
    reading, writing = os.pipe()
    channel = Channel(os.open(os.devnull, os.O_RDONLY), writing, 1)
    parts = []
    reader = threading.Thread(
        target=lambda: parts.extend(iter(lambda: os.read(reading, 1 << 16), b""))
    )
    reader.start()
    for message in messages:
        channel.send(**message)
    channel.close()
    reader.join()
    os.close(reading)
    return b"".join(parts)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"kind": st.text(max_size=8), "value": VALUES}), max_size=6
)


@settings(max_examples=20)
@given(MESSAGES, st.lists(st.integers(0, 1 << 20), max_size=12))
def test_any_messages_arrive_as_sent_however_the_pipe_cuts_them(messages, places):
    data = sent(messages)
    with fed(*(cut(data, places) if data else ())) as channel:
        assert received(channel) == [{**message, "node": 1} for message in messages]


def test_a_frame_may_be_cut_anywhere():
    data = frame(json.dumps(MESSAGE).encode())
    for place in range(1, len(data)):
        with fed(data[:place], data[place:] + data) as channel:
            assert received(channel) == [MESSAGE, MESSAGE]


def test_an_end_in_the_middle_of_a_frame_is_the_end():
    data = frame(json.dumps(MESSAGE).encode())
    for place in range(len(data)):
        with fed(data + data[:place]) as channel:
            assert received(channel) == [MESSAGE]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff" + b"x" * 100,
        b"bash: warning: setlocale: LC_ALL",
        (1 << 24 | 1).to_bytes(4, "big") + b"{}",
        frame(b""),
        frame(b"[]"),
        frame(b"{}"),
        frame(b"null"),
        frame(b'"kind node"'),
        frame(b'{"kind": "a"}'),
        frame(b'{"kind": 1, "node": 1}'),
        frame(b'{"kind": "a", "node": "1"}'),
        frame(b"\xff\xfe"),
        frame(b"[" * 100_000),
        frame(json.dumps(MESSAGE).encode()[:-1]),
        frame(json.dumps(MESSAGE).encode() + b"x"),
    ],
)
def test_what_is_no_message_is_an_error(data):
    with (
        fed(data[:4000], data[4000:]) as channel,
        pytest.raises(ChannelError, match="not a zeusrun message"),
    ):
        channel.receive()


@pytest.mark.parametrize(
    "noise",
    [
        b"",
        b"Welcome!\nLast login: today\n",
        b"\xff\xfe\0",
        PREAMBLE[:-2],
        PREAMBLE[:-2] * 2 + b"\n",
        b"zeusrun node: messages follow",
        b"x" * 60_000,
    ],
)
def test_noise_before_the_mark_is_skipped(noise):
    data = noise + PREAMBLE + frame(json.dumps(MESSAGE).encode())
    with fed(data) as channel:
        assert channel.skip_noise()
        assert received(channel) == [MESSAGE]


@pytest.mark.parametrize("noise", [b"", b"no such host\n", PREAMBLE[:-1], b"x" * 65_537 + PREAMBLE])
def test_without_a_mark_no_message_is_taken(noise):
    with fed(noise[:60_000], noise[60_000:]) as channel:
        assert not channel.skip_noise()


def test_sending_never_waits_for_a_reader_and_closing_writes_the_rest():
    head, node = connect()
    for number in range(300):
        node.send("line", number=number, text="x" * 4096)  # a pipe holds 64 KiB
    assert node.backlog > 1 << 20
    closing = threading.Thread(target=node.close)
    closing.start()
    assert head.skip_noise()
    assert [message["number"] for message in received(head)] == list(range(300))
    closing.join()
    assert node.backlog == 0
    head.close()


def test_a_close_does_not_wait_for_ever_for_a_reader(monkeypatch):
    monkeypatch.setattr(module, "_JOIN_S", 0.05)
    head, node = connect()
    node.send("line", text="x" * (1 << 20))
    node.close()
    assert head.skip_noise()
    assert head.receive() is None  # a part of a frame
    head.close()


def test_a_thread_that_reads_during_a_close_gets_the_end_and_nobody_keeps_a_descriptor(tmp_path):
    before = os.listdir("/proc/self/fd")
    head, node = connect()
    assert head.skip_noise()
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(head.receive)
        wait_for(head._receiving.locked)
        head.close()
        assert found.result(30.0) is None
    node.close()
    assert os.listdir("/proc/self/fd") == before


def test_a_closed_channel_may_be_closed_again():
    head, node = connect()
    node.close()
    assert head.skip_noise()
    assert head.receive() is None
    head.close()
    with open(os.devnull) as other:  # it may have the number of one of them
        head.close()
        node.close()
        assert head.receive() is None
        assert other.read() == ""


def test_sending_to_a_closed_end_does_nothing():
    head, node = connect()
    head.close()
    for _ in range(3):
        node.send("line", text="x")
    assert node.receive() is None
    node.close()


# Authentication


def authenticators(token="secret", other=None):
    """Return the authenticators of both ends of one socket, the head's first."""
    ends = socket.socketpair()
    made = {}

    def open_end(head):
        with ends[head]:
            made[head] = authenticate(
                ends[head].fileno(), (token, other or token)[head], head=bool(head)
            )

    threads = [threading.Thread(target=open_end, args=(head,)) for head in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made[1], made[0]


def test_what_one_end_signs_the_other_verifies_in_order():
    head, node = authenticators()
    for text in (b"a", b"", b"b" * 1000):
        assert node.verify(head.sign(text)) == text
        assert head.verify(node.sign(text)) == text


@given(st.binary(max_size=50), st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_found(payload, place, change):
    head, node = (
        Authenticator("t", b"1" * 16, b"2" * 16, head=True),
        Authenticator("t", b"2" * 16, b"1" * 16, head=False),
    )
    sealed = bytearray(head.sign(payload))
    sealed[place % len(sealed)] ^= change
    with pytest.raises(ChannelError):
        node.verify(bytes(sealed))


def test_a_message_that_is_cut_or_longer_is_found():
    for change in (
        lambda text: text[:-1],
        lambda text: text + b" ",
        lambda text: text[:31],
        lambda _: b"",
    ):
        head, node = authenticators()
        with pytest.raises(ChannelError):
            node.verify(change(head.sign(b"stop")))


def test_a_replayed_message_is_refused():
    head, node = authenticators()
    sealed = head.sign(b"stop")
    assert node.verify(sealed) == b"stop"
    with pytest.raises(ChannelError):
        node.verify(sealed)


def test_messages_in_another_order_are_refused():
    head, node = authenticators()
    head.sign(b"first")
    with pytest.raises(ChannelError):
        node.verify(head.sign(b"second"))


def test_a_message_of_another_connection_is_refused():
    (head, _), (_, node) = authenticators(), authenticators()
    with pytest.raises(ChannelError):
        node.verify(head.sign(b"stop"))


@pytest.mark.parametrize("end", [0, 1])
def test_a_message_that_is_sent_back_is_refused(end):
    own = authenticators()[end]
    with pytest.raises(ChannelError):
        own.verify(own.sign(b"stop"))


def test_another_token_is_refused_on_both_ends():
    head, node = authenticators("secret", "guess")
    with pytest.raises(ChannelError, match="the tokens of the two ends differ"):
        node.verify(head.sign(b"stop"))
    with pytest.raises(ChannelError, match="the tokens of the two ends differ"):
        head.verify(node.sign(b"hello"))


@pytest.mark.parametrize(
    "greeting", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"GET / HTTP/1.1\r\n\r\n" * 9, PREAMBLE]
)
def test_another_program_at_the_socket_is_told(greeting):
    own, other = socket.socketpair()
    with own, other:
        other.sendall(greeting)
        other.shutdown(socket.SHUT_WR)
        with pytest.raises(ChannelError, match="not zeusrun"):
            authenticate(own.fileno(), "secret", head=True)


def test_signed_messages_arrive_over_a_socket_and_garbage_does_not():
    ends = socket.socketpair()
    head_auth, node_auth = authenticators()
    descriptors = [end.detach() for end in ends]
    head = Channel(descriptors[0], descriptors[0], 1, head_auth)
    node = Channel(descriptors[1], descriptors[1], 1, node_auth)
    assert not head.is_private
    for number in range(100):
        head.send("line", number=number)
    assert [node.receive()["number"] for _ in range(100)] == list(range(100))
    os.write(descriptors[0], frame(b'{"kind": "stop", "node": 1}'))
    with pytest.raises(ChannelError):
        node.receive()
    head.close()
    node.close()
