"""Tables: as Lightning's own logger writes them, and as timm and Ultralytics do."""

from __future__ import annotations

import os
import time

import pytest

from tests.contracts.source import MetricSourceContract
from tests.metrics.reading import append, open_source, values_of


class TestCsv(MetricSourceContract):
    misses_its_file = True

    @pytest.fixture
    def source(self, tmp_path):
        return open_source(tmp_path, source="csv", path="log.csv")

    @pytest.fixture
    def report(self, tmp_path):
        return lambda epoch, **metrics: append(tmp_path / "log.csv", self.lines(epoch, metrics))

    def lines(self, epoch, metrics):
        header = "epoch,accuracy,loss\n" if epoch == 1 else ""
        return f"{header}{epoch},{metrics['accuracy']!r},{metrics.get('loss', '')}\n"

    @pytest.fixture
    def begin_report(self, tmp_path):
        def begin(epoch, **metrics):
            line = self.lines(epoch, metrics)
            append(tmp_path / "log.csv", line[:3])
            return lambda: append(tmp_path / "log.csv", line[3:])

        return begin

    @pytest.fixture
    def spoil(self, tmp_path):
        return lambda: append(tmp_path / "log.csv", "Traceback\n")


@pytest.mark.long  # it imports Lightning
@pytest.mark.filterwarnings("ignore")
def test_the_table_of_lightnings_logger_is_read_while_it_is_rewritten_and_deleted(tmp_path):
    logs = pytest.importorskip("lightning.fabric.loggers.csv_logs")
    source = open_source(tmp_path, source="csv", path="logs/**/metrics.csv")
    found, names = [], set()

    def read():
        for event in source.read():
            names.update(event.metrics)
            if "accuracy" in event.metrics:
                found.append((event.epoch, event.metrics["accuracy"]))

    for epochs in ([0, 1, 2], [1, 2]):  # the second training resumes the first: the file is deleted
        writer = logs._ExperimentWriter(str(tmp_path / "logs" / "version_0"))
        read()
        for epoch in epochs:
            # What Lightning's Trainer hands to its logger.
            writer.log_metrics({"train_loss": 1 / (epoch + 1), "epoch": epoch}, 10 * epoch + 5)
            writer.save()
            read()
            writer.log_metrics({"accuracy": 0.25 * (epoch + 1), "epoch": epoch}, 10 * epoch + 9)
            writer.save()
            read()
    first = [(0, 0.25), (1, 0.5), (2, 0.75)]
    assert found == [*first, *first[1:]]
    assert names == {"train_loss", "accuracy"}
    assert (source.read(final=True), list(source.warnings)) == ([], [])


def test_timms_summary_has_its_header_again_after_a_resume(tmp_path):
    path = tmp_path / "output" / "20250601-120000-resnet50" / "summary.csv"
    source = open_source(
        tmp_path, "top1", source="csv", path="output/*/summary.csv", name="eval_top1"
    )
    path.parent.mkdir(parents=True)
    header = "epoch,train_loss,eval_loss,eval_top1,eval_top5,lr\n"
    path.write_text(header + "0,6.9,6.8,1.5,5.0,0.1\n1,6.5,6.4,3.25,9.5,0.2\n")
    assert values_of(source, "top1") == [(0, 1.5), (1, 3.25)]
    append(path, header + "2,6.0,5.9,6.5,15.0,0.3\n")
    assert values_of(source, "top1") == [(2, 6.5)]
    assert list(source.warnings) == []


@pytest.mark.parametrize(
    "again",
    ["epoch,acc,0,1\n2,0.5,7,8\n", "epoch,0,1,2,acc\n2,7,8,9,0.5\n", "acc,epoch\n0.5,2\n",
     "epoch,0,acc\n2,7,0.5\n", "epoch,0,1,acc\n2,7,8,0.5\n"],
)  # fmt: skip
def test_a_header_with_names_that_are_numbers_may_come_again_in_another_order(tmp_path, again):
    source = open_source(tmp_path, "acc", source="csv", path="m.csv")
    (tmp_path / "m.csv").write_text("epoch,0,1,acc\n1,7,8,0.25\n" + again)
    assert values_of(source, "acc") == [(1, 0.25), (2, 0.5)]
    assert list(source.warnings) == []


def test_of_two_columns_with_one_name_neither_is_read_and_both_are_named(tmp_path):
    source = open_source(tmp_path, "acc", source="csv", path="m.csv")
    (tmp_path / "m.csv").write_text("epoch,acc,acc,,\n1,0.5,0.95,,\n")
    assert values_of(source, "acc", final=True) == []
    assert "the columns 2 and 3 are both named 'acc'" in source.warnings[0]


def test_a_column_in_percent_is_a_share_if_the_target_is_one(tmp_path):
    source = open_source(tmp_path, "acc", target=0.7, source="csv", path="m.csv", name="acc (%)")
    (tmp_path / "m.csv").write_text("epoch,acc (%)\n1,35\n")
    assert values_of(source, "acc") == [(1, 0.35)]


def test_of_what_should_be_low_the_target_may_be_in_percent_as_the_column_says(tmp_path):
    low = {"target": 0.8, "mode": "min", "source": "csv", "path": "m.csv"}
    source = open_source(tmp_path, "err_pct", **low)
    (tmp_path / "m.csv").write_text("epoch,err_pct\n1,3.1\n2,0.7\n")
    assert values_of(source, "err_pct") == [(1, 3.1), (2, 0.7)]


def test_ultralytics_results_have_spaces_in_their_header_and_count_from_1(tmp_path):
    source = open_source(
        tmp_path, "map", source="csv", path="results.csv", name="metrics/mAP50-95(B)"
    )
    header = f"{'epoch':>23},{'train/box_loss':>23},{'metrics/mAP50-95(B)':>23}\n"
    row = "                      1,                 1.2345,                0.12345\n"
    (tmp_path / "results.csv").write_text(header + row)
    (event,) = source.read()
    assert (event.epoch, event.metrics) == (1, {"train/box_loss": 1.2345, "map": 0.12345})


def test_what_was_there_before_the_run_is_ignored_and_the_file_may_go_on(tmp_path):
    old, used = tmp_path / "old.csv", tmp_path / "used.csv"
    for path in (old, used):
        path.write_text("epoch,accuracy\n1,0.9\n2,0.95\n")
    source = open_source(tmp_path, source="csv", path="*.csv")
    assert values_of(source) == []
    append(used, "1,0.25\n")
    assert values_of(source) == [(1, 0.25)]
    # Rewritten in place, as if a column had appeared: the old rows are still old.
    used.write_text("epoch,accuracy,loss\n1,0.9,\n2,0.95,\n1,0.25,\n2,0.5,1.0\n")
    assert values_of(source) == [(2, 0.5)]
    assert list(source.warnings) == []


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_a_file_that_the_run_begins_anew_has_no_old_rows(tmp_path, how):
    path = tmp_path / "log.csv"
    path.write_text("epoch,accuracy\n1,0.25\n")
    source = open_source(tmp_path, source="csv", path="log.csv")
    if how == "replaced":
        path.rename(tmp_path / "log.csv.1")
    path.write_text("epoch,accuracy\n1,0.25\n2,0.5\n3,0.75\n" if how == "replaced" else "")
    found = values_of(source)
    if how == "truncated":
        path.write_text("epoch,accuracy\n1,0.25\n2,0.5\n3,0.75\n")
        found += values_of(source)
    assert found == [(1, 0.25), (2, 0.5), (3, 0.75)]


def test_the_newest_of_two_files_counts_and_that_is_said_once(tmp_path):
    source = open_source(tmp_path, source="csv", path="v*/log.csv")
    for number, rows in enumerate(["1,0.1\n", "1,0.2\n"]):
        (tmp_path / f"v{number}").mkdir()
        (tmp_path / f"v{number}" / "log.csv").write_text(f"epoch,accuracy\n{rows}")
        assert values_of(source) == [(1, float(rows[2:]))]
    append(tmp_path / "v0" / "log.csv", "2,0.3\n")
    assert values_of(source) == []
    text = "metrics.path matches 2 files of this run; only the newest is read, v1/log.csv"
    assert list(source.warnings) == [f"metrics.source csv: {text}"]


def test_values_may_be_nan_and_blank_and_no_numbers(tmp_path):
    source = open_source(tmp_path, source="csv", path="log.csv")
    (tmp_path / "log.csv").write_text(
        "epoch,accuracy,note\n1,nan,first\n2,,second\n3,-inf,\n4,n/a,\n5,0.5,x\n"
    )
    values = values_of(source)
    assert str(values) == "[(1, nan), (3, -inf), (5, 0.5)]"
    assert list(source.warnings) == [
        "metrics.source csv: column 'accuracy' is 'n/a', which is not a number"
    ]


def test_a_column_that_never_comes_is_named_after_three_epochs(tmp_path):
    source = open_source(tmp_path, source="csv", path="log.csv", epoch="ep")
    (tmp_path / "log.csv").write_text("ep,acc,loss\n1,0.5,1\n2,0.5,1\n")
    source.read()
    assert list(source.warnings) == []
    append(tmp_path / "log.csv", "3,0.5,1\n")
    source.read()
    (warning,) = source.warnings
    assert warning == (
        "metrics.source csv: there is no column 'accuracy' so far, only acc, loss. Correct "
        "objective.metric, or name its column in metrics.name"
    )


def test_a_file_that_never_comes_is_missed_after_a_minute_of_training_once(tmp_path):
    from zeusrun.metrics.rows import SourceContext

    source = open_source(tmp_path, source="csv", path="log.csv")
    source.read()
    assert list(source.warnings) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceContext, "has_trained_a_minute", lambda *_: True)
        source.read()
    source.read(final=True)
    (warning,) = source.warnings
    assert warning == (
        "metrics.source csv: this run wrote no file that metrics.path (log.csv) matches so far; "
        "zeusrun keeps looking"
    )


def test_a_file_that_cannot_be_read_now_can_be_read_later(tmp_path):
    source = open_source(tmp_path, source="csv", path="log.csv")
    (tmp_path / "log.csv").write_text("epoch,accuracy\n1,0.5\n")
    assert values_of(source) == [(1, 0.5)]
    (tmp_path / "log.csv").unlink()
    assert values_of(source) == []
    (tmp_path / "log.csv").write_text("epoch,accuracy\n2,0.75\n")
    assert values_of(source) == [(2, 0.75)]


def test_without_epochs_the_kth_value_is_epoch_k_and_step_0_is_before_training(tmp_path):
    source = open_source(tmp_path, source="csv", path="log.csv")
    (tmp_path / "log.csv").write_text("step,accuracy,loss\n0,0.1,5\n100,,4\n200,0.2,3\n400,0.3,\n")
    assert values_of(source) == [(0, 0.1), (1, 0.2), (2, 0.3)]


def test_an_event_has_the_time_of_the_file_but_is_never_later_than_now(tmp_path):
    source = open_source(tmp_path, source="csv", path="log.csv")
    source.read()
    since_t, path = time.monotonic(), tmp_path / "log.csv"
    path.write_text("epoch,accuracy\n1,0.5\n")
    (event,) = source.read()
    assert since_t - 0.02 <= event.t <= time.monotonic()
    for seconds, rows in ((3600, "2,0.5\n"), (-3600, "3,0.5\n")):
        append(path, rows)
        os.utime(path, (time.time() + seconds,) * 2)
        (event,) = source.read()
        assert since_t - 0.02 <= event.t <= time.monotonic()


def test_the_path_may_hold_placeholders_whose_values_are_no_globs(tmp_path):
    folder = tmp_path / "out[1]"
    folder.mkdir()
    values = {"run_dir": str(folder), "trial": "job-1-1"}
    path = "${run_dir}/*-${trial}.csv"
    source = open_source(tmp_path, source="csv", path=path, values=values)
    (folder / "log-job-1-1.csv").write_text("epoch\taccuracy\n1\t0.5\n")
    assert values_of(source) == [(1, 0.5)]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    source = open_source(tmp_path, source="csv", path="log.csv", name="güte")
    found = []
    with (tmp_path / "log.csv").open("wb", buffering=0) as file:
        for row in ["\ufeffepoch,güte\r\n", "1,0.25\r\n", "2,0.5\r\n"]:
            content = row.encode()
            for part in (content[:3], content[3:]):
                file.write(part)
                found += source.read()
    found += source.read(final=True)
    assert [(event.epoch, event.metrics) for event in found] == [
        (1, {"accuracy": 0.25}),
        (2, {"accuracy": 0.5}),
    ]
    assert list(source.warnings) == []


@pytest.mark.parametrize(
    "before",
    [
        "# seed 1, of 3\nepoch,accuracy\n",
        "#\n\n# made by train.py\nepoch,accuracy\n",
        "\ufeff# made by train.py\nepoch,accuracy\n",
    ],
)
def test_comments_before_a_header_are_none(tmp_path, before):
    source = open_source(tmp_path, source="csv", path="log.csv")
    append(tmp_path / "log.csv", before + "1,0.5\n# the second\n2,0.75\n")
    assert values_of(source, final=True) == [(1, 0.5), (2, 0.75)]
    assert list(source.warnings) == []


def test_a_row_may_begin_with_a_sign(tmp_path):
    source = open_source(tmp_path, source="csv", path="log.csv")
    append(tmp_path / "log.csv", "id,accuracy\n#1,0.5\n#2,0.75\n")
    assert [value for _, value in values_of(source, final=True)] == [0.5, 0.75]


def test_a_line_that_does_not_fit_the_header_is_told_with_it(tmp_path):
    source = open_source(tmp_path, source="csv", path="log.csv")
    append(tmp_path / "log.csv", "made by train.py\nepoch,accuracy\n1,0.5\n")
    assert values_of(source, final=True) == []
    assert "has 2 cells, but the header has 1 (made by train.py)" in "".join(source.warnings)
