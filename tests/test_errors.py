"""What the machine has run out of, in words."""

from __future__ import annotations

import errno
import os

import pytest

from zeusrun.errors import advice_on, describe_shortage


def fault(number, filename=None):
    return OSError(number, os.strerror(number), filename)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "there is not enough memory for zeusrun itself; end other programs"),
        (ImportError("x.so: failed to map segment from shared object"), "not enough memory"),
        (RuntimeError("can't start new thread"), "no thread can be started; end other processes"),
        (fault(errno.ENOMEM), "Cannot allocate memory; end other programs"),
        (fault(errno.EMFILE, "/a"), "/a: Too many open files; raise the limit of open files"),
        (fault(errno.ENOSPC, "/a"), "/a: No space left on device; free some space on that disk"),
    ],
)
def test_a_shortage_is_named_with_what_to_do(error, said):
    assert said in describe_shortage(error)


@pytest.mark.parametrize("error", [ValueError("x"), ImportError("no module"), fault(errno.ENOENT)])
def test_what_is_no_shortage_is_none(error):
    assert describe_shortage(error) is None


def test_the_advice_of_a_place_holds_where_nothing_is_short():
    assert advice_on(fault(errno.EACCES), "look there") == "look there"
    assert advice_on(fault(errno.EDQUOT), "look there") == "free some of your quota on that disk"
