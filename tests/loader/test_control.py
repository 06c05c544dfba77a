"""What the launcher prints of the workers of a loader."""

from __future__ import annotations

from dataclasses import replace

from zeusrun.launcher.events import Messages
from zeusrun.loader.control import Changes
from zeusrun.sidecar.events import LoaderWorkers


def printed(*events):
    lines = []
    agent = Changes(Messages(lambda event: lines.append(event.text)))
    for event in events:
        agent.take(event)
    return lines


def test_a_change_names_the_number_of_which_the_share_is():
    first = LoaderWorkers(0.0, 2, stays=False, step_s=0.02, wait=0.02)
    after = LoaderWorkers(5.0, 1, stays=True)
    assert printed(first, after) == [
        "loader workers 2 → 1 that stay: with 2, 2 % of the time waited for data"
    ]


def test_a_search_that_ends_at_the_most_workers_says_so_once():
    ended = LoaderWorkers(0.0, 2, stays=False, step_s=0.02, wait=0.93, settled="1 of 2")
    (text,) = printed(ended, ended)
    assert text.startswith("93 % of the time waits for data with the most loader workers of this")
    assert not printed(replace(ended, settled="1 of 4"))
    assert not printed(replace(ended, wait=0.1))
