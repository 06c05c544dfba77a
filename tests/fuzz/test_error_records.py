"""Bad ``error.json`` and logs of torchrun: a cause, or none."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.factories import build_trial as trial
from tests.fuzz.mutations import mutated, pieces, run_inputs
from zeusrun.launcher.rundir.failure import read_failure, read_traceback, torchrun_was_signalled
from zeusrun.launcher.rundir.layout import create_run
from zeusrun.plain_text import storable_text
from zeusrun.view.sheets import trial_sheet
from zeusrun.worker.failure import failed_in_restart, record_failure


@pytest.fixture
def paths(tmp_path):
    return create_run(tmp_path, "job", "job-1-1")


def test_the_corpus_holds_causes(paths):
    found = []
    for piece in pieces("error_records"):
        paths.error.write_bytes(piece)
        found.append(read_failure(paths, 0) is not None)
    assert found == [True, True, True, False]


def test_numbers_of_thousands_of_digits_in_a_log_are_no_causes(paths):
    for piece in pieces("torchrun_logs"):
        paths.torchrun_log.write_bytes(piece)
        failure = read_failure(paths, 0)
        assert failure is not None
        assert failure.rank in {None, 0, 1}


def test_any_record_and_log_is_a_cause_or_none(paths):
    def error_records(record, log):
        paths.error.write_bytes(record)
        paths.torchrun_log.write_bytes(log)
        failure = read_failure(paths, 0)
        if failure is not None:
            assert len(failure.reason) <= 500
            storable_text(failure.reason).encode()
        torchrun_was_signalled(paths)
        trace = read_traceback(paths)
        sheet = trial_sheet(trial(), trace, run_dir_exists=True)
        file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace")
        Console(file=file, width=100).print(sheet)

    run_inputs(error_records, mutated("error_records"), mutated("torchrun_logs"))


def test_a_rank_records_its_failure_whatever_is_there_already(paths):
    def recorded_failures(record):
        paths.error.write_bytes(record)
        found = failed_in_restart(str(paths.error))
        assert found is None or isinstance(found, int)
        record_failure(str(paths.error), 0, 1 << 60, ValueError("new"))
        if found is not None and found < 1 << 60:
            assert failed_in_restart(str(paths.error)) == 1 << 60

    run_inputs(recorded_failures, mutated("error_records"))
