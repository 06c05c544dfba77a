"""The history in an SQL database: both contracts over two databases."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.contracts.history import HistoryContract
from tests.contracts.shared import SharedContract
from tests.databases import clear, opened
from tests.factories import REACHED, begin, build_trial
from zeusrun.clock import read_clock


@pytest.fixture(scope="module")
def sqlite_history(empty_sqlite, tmp_path_factory):
    path = tmp_path_factory.mktemp("sqlite") / "history.db"
    path.write_bytes(empty_sqlite.read_bytes())
    yield from opened(f"sqlite:///{path}")


@pytest.fixture(scope="module")
def postgres_history(postgres, postgres_template):
    yield from opened(postgres.create_database(postgres_template))


class Over:
    """Gives the contracts what they need, over a history that all tests share."""

    shared = ""

    @pytest.fixture
    def history(self, request):
        history = request.getfixturevalue(self.shared)
        yield history
        clear(history)
        history.close()  # the next test opens a connection of its own

    @pytest.fixture
    def database(self, history):
        return history

    def test_the_longest_texts_fit_into_the_index(self, history):
        """A row of an index of PostgreSQL has at most 2,704 bytes."""
        drawn = random.Random(7)  # random, because repeated text would be compressed
        long = ["".join(chr(drawn.randrange(0x20000, 0x2A000)) for _ in range(300)) for _ in "abc"]
        texts = {"host": long[0], "gpu_model": long[1]}
        trial = begin(history, build_trial(**texts))
        ended = replace(REACHED, price=1.0, currency=long[2])
        assert history.finish(trial.trial, ended) == history.find(trial.trial)
        assert history.find(trial.trial).host == texts["host"]

    def test_it_has_an_identity_and_a_clock(self, history):
        incarnation, now = history.identify()
        assert history.changes("digits", None).version.startswith(f"{incarnation}:")
        assert abs(now - read_clock()) < 3600
        begin(history, build_trial())
        again = history.identify()
        assert again[0] == incarnation
        assert again[1] >= now


class TestSqlite(Over, HistoryContract, SharedContract):
    shared = "sqlite_history"


class TestPostgres(Over, SharedContract):
    shared = "postgres_history"


@pytest.mark.long
class TestPostgresHistory(Over, HistoryContract):
    shared = "postgres_history"
