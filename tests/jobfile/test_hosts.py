"""Lists of hosts, as job files, other launchers and schedulers write them."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zeusrun.jobfile.hosts import Host, parse_host, parse_hostfile, parse_hosts

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,20}", fullmatch=True)
ADDRESSES = st.ip_addresses().map(str)
USERS = st.from_regex(r"([A-Za-z_][A-Za-z0-9_.-]{0,8}@)?", fullmatch=True)
HOSTS = st.builds(
    lambda user, name, slots: Host(user + name, slots),
    USERS,
    NAMES | ADDRESSES,
    st.none() | st.integers(1, 99_999),
)
LISTS = st.lists(HOSTS, min_size=1, max_size=6, unique_by=lambda host: host.address.lower())


def written(host, by_word=False):
    """Return a host as a user writes it: with ``:4``, or with ``slots=4``."""
    user, at, address = host.name.rpartition("@")
    name = f"{user}{at}[{address}]" if ":" in address else host.name
    if host.slots is None:
        return name
    return f"{name} slots={host.slots} max_slots=9" if by_word else f"{name}:{host.slots}"


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("a", Host("a", None)),
        ("b:4", Host("b", 4)),
        ("10.0.0.2:4", Host("10.0.0.2", 4)),
        ("[fe80::1]:2", Host("fe80::1", 2)),
        ("me@[fe80::1%eth0]", Host("me@fe80::1%eth0", None)),
        ("user@b.example.org:4", Host("user@b.example.org", 4)),
        ("gpu_node-1", Host("gpu_node-1", None)),
    ],
)
def test_a_host_is_a_name_or_an_address_with_slots(text, host):
    assert parse_host(text) == host


def test_the_address_of_a_host_is_without_the_user():
    assert parse_host("user@b:4").address == "b"
    assert parse_host("b:4").address == "b"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be written as a, b:4, "),
        ("-oProxyCommand=x", "must be written as"),
        ("me@-x", "must be written as"),
        ("a b", "must be written as"),
        ("a;reboot", "must be written as"),
        ("$(x)", "must be written as"),
        ("a\n", "must be written as"),
        ("b:", "must be written as"),
        ("b:x", "must be written as"),
        ("b:\N{ARABIC-INDIC DIGIT FOUR}", "must be written as"),
        ("b:0", "must be written as"),
        ("fe80::1", "must be written as"),
        ("[b]:4", "must be written as"),
        ("[1:2]:4", "must be written as"),
        ("4", "must be written as"),
        ("4:4", "must be written as"),
    ],
)
def test_what_is_no_host_is_refused_in_one_sentence(text, words):
    with pytest.raises(ValueError, match=words) as error:
        parse_host(text)
    assert "\n" not in str(error.value)


@given(st.text(max_size=12))
def test_no_host_is_an_option_or_more_than_one_word_to_a_shell(text):
    try:
        name = parse_host(text).name
    except ValueError:
        return
    assert name[0] != "-"
    assert not set(name) & set(" \t\n'\"\\$`;&|<>()*?{}[]!#~")


@given(LISTS)
def test_every_list_reads_back(hosts):
    assert parse_hosts(map(written, hosts)) == tuple(hosts)


def test_a_host_that_a_list_names_twice_is_refused():
    with pytest.raises(ValueError, match=r"given more than once: a; write the number of .* a:2"):
        parse_hosts(["a", "b", "me@A:2"])


@given(LISTS, st.data())
def test_every_hostfile_reads_back(hosts, data):
    separators = st.sampled_from(["\n", "\r\n", "\n\n", "  # a comment\n", ",", " ", ", ", "\t"])
    text = data.draw(st.sampled_from(["", "# hosts\n", "\n"]))
    for host in hosts:
        text += written(host, data.draw(st.booleans())) + data.draw(separators)
    assert parse_hostfile(text) == tuple(hosts)


@given(st.lists(st.sampled_from("abc"), min_size=1))
def test_a_line_for_each_slot_is_counted(names):
    """As in PBS_NODEFILE and LSB_DJOB_HOSTFILE."""
    hosts = parse_hostfile("\n".join(names))
    assert [host.name for host in hosts] == list(dict.fromkeys(names))
    for host in hosts:
        assert (host.slots or 1) == names.count(host.name)
        assert (host.slots is None) == (names.count(host.name) == 1)


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("a slots=4 max_slots=8\nb slots = 2", (4, 2)),  # Open MPI
        ("a:4,b:2", (4, 2)),  # kungfu-run -H
        ("a slots=1\nb\na slots=3\nb", (4, 2)),
        ("a.example.org\nb", (None, None)),
    ],
)
def test_the_hostfiles_of_other_tools_are_read(text, slots):
    assert tuple(host.slots for host in parse_hostfile(text)) == slots


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: there is no host; write one on each line"),
        ("# nobody\n\n", "line 1: there is no host"),
        ("a\n\nb:x", "line 3: a host must be written as a, b:4"),
        ("a\nb 4", "line 2: a host must be written as .* not '4'"),
        ("slots=4 a", "line 1: a host must stand before its settings"),
        ("a slots=0", "line 1: a host must have its slots once, such as b slots=4"),
        ("a:2 slots=2", "line 1: a host must have its slots once"),
        ("a slots=x # c", "not 'a slots=x'"),
    ],
)
def test_a_wrong_hostfile_is_refused_with_its_line(text, words):
    with pytest.raises(ValueError, match=words):
        parse_hostfile(text)


@given(st.text())
def test_any_text_is_hosts_or_an_error_with_a_line(text):
    try:
        hosts = parse_hostfile(text, "hosts.txt:")
    except ValueError as error:
        assert str(error).startswith("hosts.txt:")
    else:
        assert len({host.address.lower() for host in hosts}) == len(hosts) > 0


@given(st.ip_addresses(v=6))
def test_an_ipv6_address_needs_brackets(address):
    assume(address != ipaddress.ip_address("::"))
    with pytest.raises(ValueError, match="must be written as"):
        parse_host(str(address))
