"""Event files, as the writers of torch and of tensorboardX make them."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

from tests.contracts.source import MetricSourceContract
from tests.metrics.reading import open_source, values_of
from zeusrun.metrics.event_file import read_records, read_scalars


class Writer:
    """TensorBoard's own writer, its file copied in parts."""

    def __init__(self, folder):
        module = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
        self.real = folder / "real"
        self.writer = module.EventFileWriter(str(self.real))
        self.copy = folder / "runs" / "events.out.tfevents.1.host"
        self.copy.parent.mkdir()
        self.done = 0

    def add(self, step, tags):
        """Write values; return the new bytes of the file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto

        for tag, value in tags.items():
            if isinstance(value, str):
                tensor = TensorProto(dtype="DT_STRING", string_val=[value.encode()])
                summary = Summary.Value(tag=tag, tensor=tensor)
            else:
                summary = Summary.Value(tag=tag, simple_value=value)
            event = Event(wall_time=time.time(), step=step, summary=Summary(value=[summary]))
            self.writer.add_event(event)
        self.writer.flush()
        (path,) = self.real.iterdir()
        content = path.read_bytes()
        new, self.done = content[self.done :], len(content)
        return new

    def append(self, content):
        with self.copy.open("ab") as file:
            file.write(content)


class TestTensorBoard(MetricSourceContract):
    misses_its_file = True

    @staticmethod
    def stored(value):
        return ctypes.c_float(value).value

    @pytest.fixture
    def source(self, tmp_path):
        return open_source(tmp_path, source="tensorboard", path="runs", epoch="step")

    @pytest.fixture
    def writer(self, tmp_path):
        return Writer(tmp_path)

    @pytest.fixture
    def report(self, writer):
        return lambda epoch, **metrics: writer.append(writer.add(epoch, metrics))

    @pytest.fixture
    def begin_report(self, writer):
        def begin(epoch, **metrics):
            content = writer.add(epoch, metrics)
            writer.append(content[:-5])
            return lambda: writer.append(content[-5:])

        return begin

    @pytest.fixture
    def spoil(self, writer):
        return lambda: writer.append(writer.add(1, {"accuracy": "unknown"}))


def scalars_of(path):
    found, offset, descriptor = [], 0, os.open(path, os.O_RDONLY)
    while True:
        records, after = read_records(descriptor, offset)
        if after == offset:
            os.close(descriptor)
            return found
        found += [scalar for _, record in records for scalar in read_scalars(record)]
        offset = after


def test_the_reader_returns_what_tensorboards_own_does(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    import numpy as np
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(-1, 200):
            writer.add_scalar("train/loss", 1 / (step + 2), step * 1_000_003)
            writer.add_scalar("val/ä", float("nan") if step == 7 else step, step, new_style=True)
        writer.add_scalar("double", np.float64(0.1), 3, double_precision=True)
        writer.add_scalar("double/new", 0.1, 3, new_style=True, double_precision=True)
        writer.add_image("image", np.zeros((3, 256, 256)), 1)
        writer.add_histogram("weights", np.arange(9.0), 1)
        writer.add_text("note", "text", 1)
        writer.add_scalar("train/loss", 5.0, 7, walltime=1.5)
    (path,) = tmp_path.glob("*tfevents*")
    official = accumulator.EventAccumulator(
        str(path), {"scalars": 0, "tensors": 0, "images": 1, "histograms": 1}
    ).Reload()
    theirs = {
        tag: [(event.wall_time, event.step, event.value) for event in official.Scalars(tag)]
        for tag in official.Tags()["scalars"]
    }
    for tag in official.Tags()["tensors"]:
        events = official.Tensors(tag)
        if len(events[0].tensor_proto.float_val) + len(events[0].tensor_proto.double_val) == 1:
            theirs[tag] = [
                (e.wall_time, e.step, [*e.tensor_proto.float_val, *e.tensor_proto.double_val][0])
                for e in events
            ]
    ours = {}
    for scalar in scalars_of(path):
        if scalar.value is not None:
            row = (scalar.wall_time_s, scalar.step, scalar.value)
            ours.setdefault(scalar.tag, []).append(row)
    assert {"train/loss", "val/ä", "double", "double/new"} <= set(ours)
    assert {tag: repr(rows) for tag, rows in ours.items()} == {
        tag: repr(rows) for tag, rows in theirs.items()
    }


def test_a_tag_that_counts_epochs_is_waited_for(tmp_path):
    writer = Writer(tmp_path)
    source = open_source(tmp_path, source="tensorboard", path="runs/**", epoch="epoch")
    writer.append(writer.add(50, {"accuracy": 0.25}))
    assert values_of(source) == []
    writer.append(writer.add(50, {"epoch": 3}))
    assert values_of(source) == [(3, 0.25)]
    writer.append(writer.add(99, {"epoch": 4}))
    writer.append(writer.add(99, {"accuracy": 0.5}))
    assert values_of(source) == [(4, 0.5)]


def test_without_one_the_kth_value_is_epoch_k_and_has_its_own_time(tmp_path):
    writer = Writer(tmp_path)
    source = open_source(tmp_path, source="tensorboard", path="runs/*tfevents*", name="val/acc")
    source.read()
    for number, value in enumerate([0.25, 0.5, 0.75], 1):
        writer.append(writer.add(100 * number, {"loss": 1.0, "val/acc": value}))
    assert values_of(source) == [(1, 0.25), (2, 0.5), (3, 0.75)]


def test_a_file_of_before_the_run_is_ignored_and_its_new_part_is_not(tmp_path):
    writer = Writer(tmp_path)
    writer.append(writer.add(1, {"accuracy": 0.9}))
    source = open_source(tmp_path, source="tensorboard", path="runs")
    assert values_of(source) == []
    writer.append(writer.add(2, {"accuracy": 0.25}))
    assert values_of(source) == [(1, 0.25)]
    writer.copy.unlink()
    assert values_of(source) == []


def test_what_is_no_event_file_is_named_once(tmp_path):
    source = open_source(tmp_path, source="tensorboard", path="runs")
    (tmp_path / "runs").mkdir()
    path = tmp_path / "runs" / "a.tfevents"
    path.write_bytes(b"text, and no record of TensorBoard")
    for final in (False, False, True):
        assert source.read(final=final) == []
    where = "metrics.source tensorboard"
    assert list(source.warnings) == [
        f"{where}: {path} is not an event file, or is damaged; the rest of it is not read"
    ]


def test_a_long_record_that_is_half_written_has_nothing_read_twice(tmp_path):
    source, writer = open_source(tmp_path, source="tensorboard", path="runs"), Writer(tmp_path)
    image = writer.add(1, {"accuracy": 0.25}), writer.add(1, {"image": "x" * 200_000})
    writer.append(image[0] + image[1][:1000])
    assert values_of(source) == [(1, 0.25)]
    assert values_of(source) == []
    writer.append(image[1][1000:] + writer.add(2, {"accuracy": 0.5}))
    assert values_of(source) == [(2, 0.5)]
