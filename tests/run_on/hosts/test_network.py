"""Interfaces, addresses and ports of the machine that runs the tests."""

from __future__ import annotations

import contextlib
import socket

import pytest

from zeusrun.errors import LaunchError
from zeusrun.run_on.hosts.cluster import listen
from zeusrun.run_on.hosts.network import (
    Endpoint,
    find_endpoint,
    is_own_name,
    list_interfaces,
)

NOWHERE = "192.0.2.1"  # RFC 5737: for documentation


def test_the_loopback_is_an_interface_with_ipv4_first():
    assert list_interfaces()["lo"][0] == "127.0.0.1"


@pytest.mark.parametrize("peer", ["localhost", "127.0.0.2", "a..b", "no-such-host.invalid"])
def test_a_named_interface_is_used(peer):
    assert find_endpoint("a", "lo", peer) == Endpoint("lo", "127.0.0.1")


def test_the_loopback_is_refused_where_it_leads_nowhere():
    with pytest.raises(LaunchError, match=rf"run_on.nic: lo of host a does not lead to {NOWHERE}"):
        find_endpoint("a", "lo", NOWHERE)


def test_a_wrong_interface_is_told_with_the_host_and_those_that_it_has():
    with pytest.raises(LaunchError) as told:
        find_endpoint("b", "bogus0", "a")
    assert "host b has no interface bogus0; it has " in str(told.value)
    for name in list_interfaces():
        assert name in str(told.value)
    assert "run_on.nic" in str(told.value)


def test_without_a_name_the_interface_is_the_one_that_leads_to_the_peer():
    assert find_endpoint("a", None, "127.0.0.1") == Endpoint("lo", "127.0.0.1")


@pytest.mark.parametrize("peer", ["a..b", "x" * 70, "nobody.invalid", "300.1.1.1"])
def test_a_peer_without_an_address_is_told(peer):
    with pytest.raises(LaunchError, match=rf"host b has no route to {peer}: .*run_on.nic"):
        find_endpoint("b", None, peer)


@pytest.mark.parametrize("by_ssh", [True, False])
def test_a_hint_speaks_of_ssh_only_where_it_is_used(by_ssh):
    with pytest.raises(LaunchError) as told:
        find_endpoint("b", None, "nobody.invalid", by_ssh=by_ssh)
    assert ("ssh" in str(told.value)) is by_ssh
    assert "; correct the name, or" in str(told.value)
    assert str(told.value).endswith("name the network interface under run_on.nic in the job file")


def own_names():
    addresses = [address for each in list_interfaces().values() for address in each]
    return ["localhost", "127.0.0.1", "127.9.9.9", socket.gethostname(), *addresses]


@pytest.mark.parametrize("name", own_names())
def test_names_and_addresses_of_this_host_are_its_own(name):
    assert is_own_name(name)


@pytest.mark.parametrize("name", [NOWHERE, "nobody.invalid", "a..b", "x" * 70, "2001:db8::1"])
def test_other_names_are_not(name):
    assert not is_own_name(name)


@pytest.fixture
def span():
    """Three ports in a row that are free."""
    for first in range(20_000, 30_000, 7):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 3):
                stack.enter_context(listen("127.0.0.1", (port, port)))
            return first, first + 2
    pytest.skip("no three ports are free")
    return None


def free_port(address, within):
    with listen(address, within) as sock:
        return sock.getsockname()[1]


def test_the_first_free_port_of_a_range_is_taken(span):
    first, last = span
    assert free_port("127.0.0.1", span) == first
    with listen("127.0.0.1", (first, first)), listen("127.0.0.1", (first + 1, first + 1)):
        assert free_port("127.0.0.1", span) == last


def test_a_range_without_a_free_port_is_told(span):
    first, last = span
    with contextlib.ExitStack() as stack:
        for port in range(first, last + 1):
            stack.enter_context(listen("127.0.0.1", (port, port)))
        with pytest.raises(
            LaunchError,
            match=rf"no port of 127.0.0.1 is free within run_on.port_range, {first}-{last}",
        ):
            free_port("127.0.0.1", span)


def test_without_a_range_any_port_will_do():
    port = free_port("127.0.0.1", None)
    with listen("127.0.0.1", (port, port)):
        assert port != free_port("127.0.0.1", None)


def test_an_address_of_another_host_has_no_port():
    with pytest.raises(LaunchError, match=rf"no port of {NOWHERE} is free$"):
        free_port(NOWHERE, None)
