"""MLflow's two local stores, written by MLflow itself."""

from __future__ import annotations

import shutil
import time

import pytest

from tests.contracts.source import MetricSourceContract
from tests.metrics.reading import open_source, values_of


@pytest.fixture(scope="module")
def new_database(tmp_path_factory):
    """A store without runs; making one takes a second, and the import of mlflow two."""
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    SqlAlchemyStore(f"sqlite:///{path}", str(path.parent / "artifacts")).engine.dispose()
    return path


@pytest.fixture(params=["mlflow.db", "mlruns"])
def store(request, tmp_path, new_database, monkeypatch):
    """An empty store in the working directory."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    path = tmp_path / request.param
    if request.param == "mlruns":
        from mlflow.store.tracking.file_store import FileStore

        yield FileStore(str(path))
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    shutil.copy(new_database, path)
    store = SqlAlchemyStore(f"sqlite:///{path}", str(tmp_path / "artifacts"))
    yield store
    store.engine.dispose()


def begin(store, start_ms=None):
    ms = round(time.time() * 1000) + 1 if start_ms is None else start_ms
    run = store.create_run("0", "user", ms, [], "run")
    return run.info.run_id


def log(store, run, step, **metrics):
    from mlflow.entities import Metric

    for name, value in metrics.items():
        ms = round(time.time() * 1000) + step
        store.log_metric(run, Metric(name, value, ms, step))


class TestMlflow(MetricSourceContract):
    misses_its_file = True

    @pytest.fixture
    def source(self, tmp_path):
        return open_source(tmp_path, source="mlflow", epoch="step")

    @pytest.fixture
    def run(self, store, source):
        return [store]

    @pytest.fixture
    def report(self, run):
        def write(epoch, **metrics):
            if len(run) == 1:
                run.append(begin(run[0]))
            log(run[0], run[1], epoch, **metrics)

        return write

    @pytest.fixture
    def begin_report(self):
        return None

    @pytest.fixture
    def spoil(self, run, tmp_path):
        if not (tmp_path / "mlruns").exists():
            pytest.skip("the database holds only numbers")

        def write():
            (path,) = tmp_path.glob("mlruns/0/*/metrics/accuracy")
            with path.open("a") as file:
                file.write("unknown\n")

        return write


def test_the_newest_run_that_began_after_the_trial_counts(store, tmp_path):
    log(store, begin(store, 1000), 1, accuracy=0.9)
    source = open_source(tmp_path, source="mlflow")
    assert values_of(source) == []
    now_ms = round(time.time() * 1000)
    run = begin(store, now_ms + 1)
    log(store, run, 0, accuracy=float("nan"))
    log(store, run, 10, accuracy=0.25)
    assert str(values_of(source)) == "[(0, nan), (1, 0.25)]"
    second = begin(store, now_ms + 2)
    log(store, second, 10, accuracy=0.5)
    assert values_of(source) == [(1, 0.5)]
    (warning,) = source.warnings
    assert warning.startswith("metrics.source mlflow: 2 runs have begun; only the newest is read, ")
    assert second in warning


def test_what_is_no_store_is_named(tmp_path):
    source = open_source(tmp_path, source="mlflow", path="my.db")
    (tmp_path / "my.db").write_text("no database, but long enough to be taken for one" * 30)
    source.read()
    (warning,) = source.warnings
    assert warning.endswith(f"{tmp_path / 'my.db'} cannot be read: file is not a database")


def test_a_database_that_is_locked_is_read_later(tmp_path, new_database):
    import sqlite3

    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    source = open_source(tmp_path, source="mlflow")
    shutil.copy(new_database, tmp_path / "mlflow.db")
    store = SqlAlchemyStore(f"sqlite:///{tmp_path / 'mlflow.db'}", str(tmp_path))
    log(store, begin(store), 5, accuracy=0.5)
    store.engine.dispose()
    with sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert values_of(source) == []
        other.execute("COMMIT")
    other.close()
    assert values_of(source) == [(1, 0.5)]
    assert list(source.warnings) == []


@pytest.mark.parametrize("line", ["1 0.5 nan", "1 0.5 inf", "²² 0.5 1", "9" * 5000 + " 0.5 1", "1"])
def test_a_damaged_line_of_a_folder_ends_no_run(tmp_path, line):
    source = open_source(tmp_path, source="mlflow")
    run = tmp_path / "mlruns" / "0" / "run"
    (run / "metrics").mkdir(parents=True)
    (run / "meta.yaml").write_text(f"start_time: {round(time.time() * 1000) + 1000}\n")
    (run / "metrics" / "accuracy").write_text(f"{line}\n1700000000000 0.5 1\n", encoding="utf-8")
    assert [value for _, value in values_of(source)][-1:] == [0.5]
    assert len(source.warnings) <= 1
