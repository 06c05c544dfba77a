"""Submits in the order they came, by tickets that die with their holders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from zeusrun.errors import HistoryError
from zeusrun.launcher.queue.tickets import Tickets, read_waiting


def test_tickets_are_numbered_in_order_and_gone_when_they_are_let_go(tmp_path):
    tickets = Tickets(tmp_path)
    with tickets:
        first, second = tickets.take("a"), tickets.take("b", "running")
        assert [(t.number, t.job, t.state) for t in tickets.present()] == [
            (1, "a", "waiting"),
            (2, "b", "running"),
        ]
    assert [ticket.job for ticket in read_waiting(tmp_path)] == ["a"]
    assert read_waiting(tmp_path, "b") == []
    first.release()
    first.release()
    with tickets:
        assert [t.number for t in tickets.present()] == [2]
        third = tickets.take("c")
    assert third.ticket.number == 3
    for held in (second, third):
        held.release()
    assert sorted(path.name for path in (tmp_path / "submits").iterdir()) == ["lock"]


def test_the_ticket_of_a_killed_submit_counts_no_more(tmp_path):
    program = (
        "import os, sys; from pathlib import Path\n"
        "from zeusrun.launcher.queue.tickets import Tickets\n"
        "with Tickets(Path(sys.argv[1])) as tickets: tickets.take('a')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, tmp_path], check=False).returncode == -9
    assert (tmp_path / "submits" / "1.json").exists()
    with Tickets(tmp_path) as tickets:
        assert tickets.present() == []
        held = tickets.take("b")
        assert [ticket.job for ticket in tickets.present()] == ["b"]
    held.release()


def test_a_number_whose_ticket_is_seen_is_not_given_again(tmp_path, monkeypatch):
    tickets = Tickets(tmp_path)
    with tickets:
        first = tickets.take("a")
    taken = []
    real = Path.unlink

    def unlink(path, **options):
        real(path, **options)
        if not taken and str(path).endswith("1.lock"):
            taken.append(None)
            # Somebody who does not wait for the lock comes in between.
            taken[0] = Tickets(tmp_path).take("b")

    monkeypatch.setattr(Path, "unlink", unlink)
    first.release()
    monkeypatch.undo()
    second = taken[0]
    assert second.ticket.number == 2
    with tickets:
        assert [ticket.job for ticket in tickets.present()] == ["b"]
    second.release()


def test_a_home_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "submits").write_text("in the way")
    with pytest.raises(HistoryError, match=r"cannot be written: .*ZEUSRUN_HOME"), Tickets(tmp_path):
        pass
    assert read_waiting(tmp_path) == []


@pytest.mark.parametrize(
    "damage", [None, {"job": 7}, {"gpus": [["a"]]}, {"version": None}], ids=str
)
def test_a_damaged_ticket_keeps_nobody_from_coming(tmp_path, damage):
    tickets = Tickets(tmp_path)
    with tickets:
        held = tickets.take("a", "running")
        path = tmp_path / "submits" / "1.json"
        whole = json.loads(path.read_text())
        path.write_text("{" if damage is None else json.dumps({**whole, **damage}))
        assert tickets.present() == []
        other = tickets.take("b")
        assert [ticket.job for ticket in tickets.present()] == ["b"]
    held.release()
    other.release()
