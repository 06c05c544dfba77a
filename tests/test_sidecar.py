"""The sidecar: what a worker writes is what the launcher reads, whatever happens to the file."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.files.tail import MAX_LINE_BYTES, TOO_LONG, LineTail
from zeusrun.metrics.base import SidecarReader, decode_event
from zeusrun.sidecar.events import (
    Adapted,
    Ended,
    EventWriter,
    Loading,
    Observed,
    Reported,
    Spawned,
    Started,
    Watched,
    encode_event,
)
from zeusrun.sidecar.plan import RankPlan
from zeusrun.sidecar.step_clock import StepClock, read_step_clock

moments = st.floats(0, 1e12)
counts = st.integers(0, 2**40)
events = st.one_of(
    st.builds(Started, moments, counts, counts),
    st.builds(Loading, moments),
    st.builds(Spawned, moments, counts, st.none() | counts, st.booleans()),
    st.builds(Ended, moments, counts, counts, st.booleans()),
    st.builds(
        *(Adapted, moments, counts, counts, counts),
        *(st.none() | st.floats(0, 1), st.text(max_size=100), st.none() | st.text(max_size=100)),
    ),
    st.builds(
        *(Observed, moments, counts, st.none() | counts, counts, st.none() | counts),
        st.lists(st.floats(0, 1), max_size=3).map(tuple),
        *(st.booleans(), st.none() | counts, st.none() | counts, counts),
    ),
    st.builds(
        *(Watched, moments, counts, counts),
        st.dictionaries(st.text(), st.floats(-1e300, 1e300)),
        *(st.text(max_size=100), st.none() | st.text(max_size=100), counts, st.none() | counts),
    ),
    st.builds(Reported, moments, counts, st.dictionaries(st.text(), st.floats())),
)


@given(events)
def test_an_event_survives_the_wire_as_one_line_of_strict_json(event):
    line = encode_event(event)
    assert line.count(b"\n") == 1
    json.loads(line, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))
    back = decode_event(line)
    if isinstance(event, Reported):
        assert (back.t, back.epoch, back.metrics.keys()) == (
            event.t,
            event.epoch,
            event.metrics.keys(),
        )
        for name, value in event.metrics.items():
            assert back.metrics[name] == value or math.isnan(back.metrics[name])
            assert math.isnan(back.metrics[name]) == math.isnan(value)
    else:
        assert back == event


@given(st.binary(max_size=300))
def test_any_bytes_give_an_event_or_a_value_error(line):
    try:
        decode_event(line)
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "object"),
        (b'{"v": 1}', "event"),
        (b'{"event": "reported", "t": 1, "epoch": 1, "metrics": []}', "metrics"),
        (b'{"event": "reported", "t": 1, "epoch": 1, "metrics": {"a": "x"}}', "'a'"),
        (b'{"event": "reported", "t": 1, "epoch": true, "metrics": {}}', "epoch"),
        (b'{"event": "reported", "t": 1, "epoch": -1, "metrics": {}}', "epoch"),
        (b'{"event": "started", "t": NaN, "rank": 0, "pid": 1}', "'t'"),
    ],
)
def test_a_bad_line_says_what_is_wrong_with_it(line, word):
    with pytest.raises(ValueError, match=word):
        decode_event(line)


def test_a_rank_counts_as_grouped_unless_its_worker_says_otherwise():
    line = b'{"event":"ended","t":1,"rank":0,"code":0%s}'
    given = (b"", b',"grouped":true', b',"grouped":"x"', b',"grouped":false')
    assert [decode_event(line % each).grouped for each in given] == [True, True, True, False]


def test_a_name_that_is_no_unicode_loses_only_its_bad_letters():
    event = decode_event(encode_event(Reported(1.0, 1, {"a\ud800": 0.5, "b": 1.0})))
    assert event.metrics == {"a?": 0.5, "b": 1.0}


def test_python_spelling_of_nan_is_read():
    line = b'{"event":"reported","t":1,"epoch":1,"metrics":{"a":NaN,"b":-Infinity}}'
    event = decode_event(line)
    assert math.isnan(event.metrics["a"])
    assert event.metrics["b"] == -math.inf


def test_an_integer_beyond_all_floats_is_no_metric():
    line = b'{"event":"reported","t":1,"epoch":1,"metrics":{"a":1%s}}'
    with pytest.raises(ValueError, match="metric 'a' is not a number"):
        decode_event(line % (b"0" * 400))


def test_an_event_of_an_unknown_kind_is_left_to_newer_versions():
    assert decode_event(b'{"v": 2, "event": "gradient_noise_scale", "t": 1}') is None


def reported(epoch, **metrics):
    return Reported(float(epoch), epoch, metrics or {"accuracy": 0.5})


def test_the_reader_follows_a_file_that_appears_and_grows(tmp_path):
    reader = SidecarReader(tmp_path / "metrics.jsonl")
    assert reader.read() == []
    writer = EventWriter(reader.path)
    writer.write(reported(1))
    assert reader.read() == [reported(1)]
    assert reader.read() == []
    writer.write(reported(2))
    writer.write(reported(3))
    assert reader.read() == [reported(2), reported(3)]
    assert reader.warnings == []
    writer.close()


def test_a_torn_last_line_is_held_until_it_is_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    line = encode_event(reported(1))
    path.write_bytes(line[:20])
    reader = SidecarReader(path)
    assert reader.read() == []
    with path.open("ab") as file:
        file.write(line[20:])
    assert reader.read() == [reported(1)]


def test_a_torn_last_line_of_a_dead_writer_is_one_warning_with_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode_event(reported(1)) + encode_event(reported(2))[:20])
    reader = SidecarReader(path)
    assert reader.read(final=True) == [reported(1)]
    assert reader.warnings == ["metrics.jsonl:2: not JSON; line ignored"]


def test_a_whole_last_line_without_newline_counts_at_the_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode_event(reported(1)).rstrip())
    assert SidecarReader(path).read(final=True) == [reported(1)]


def test_a_truncated_file_is_read_from_its_new_beginning(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode_event(reported(1)) + encode_event(reported(2)))
    reader = SidecarReader(path)
    reader.read()
    path.write_bytes(encode_event(reported(3)))
    assert reader.read() == [reported(3)]


def test_a_replaced_file_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode_event(reported(1)) + b'{"torn')
    reader = SidecarReader(path)
    reader.read()
    other = tmp_path / "other"
    other.write_bytes(encode_event(reported(2)) + encode_event(reported(3)) + b"\n" * 50)
    os.replace(other, path)
    assert reader.read() == [reported(2), reported(3)]
    assert reader.warnings == []


def test_nul_bytes_left_by_a_crash_are_skipped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b"\0" * 4096 + encode_event(reported(1)) + b"\0\0\n" + encode_event(reported(2))
    )
    reader = SidecarReader(path)
    assert reader.read() == [reported(1), reported(2)]
    assert reader.warnings == []


def test_a_megabyte_line_is_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        encode_event(reported(1, **{"x" * (1 << 20): 1.0})) + encode_event(reported(2))
    )
    first, second = SidecarReader(path).read()
    assert len(next(iter(first.metrics))) == 1 << 20
    assert second == reported(2)


def test_a_line_beyond_all_bounds_is_one_warning_and_the_next_line_is_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"x" * (MAX_LINE_BYTES * 3) + b"\n" + encode_event(reported(1)))
    reader = SidecarReader(path)
    assert reader.read() == [reported(1)]
    assert len(reader.warnings) == 1
    assert LineTail(path).read_lines()[0] == TOO_LONG


def test_a_file_of_garbage_is_a_handful_of_warnings(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"garbage\n" * 10_000)
    reader = SidecarReader(path)
    assert reader.read() == []
    assert len(reader.warnings) == 6
    assert reader.warnings[1] == "metrics.jsonl:2: not JSON; line ignored"


@given(st.lists(st.binary(max_size=40), max_size=20), st.lists(st.integers(0, 60), max_size=20))
def test_however_a_file_grows_the_tail_gives_the_same_lines(tmp_path_factory, parts, cuts):
    path = tmp_path_factory.mktemp("tail") / "file"
    content = b"\n".join(parts)
    tail, seen, at = LineTail(path), [], 0
    for cut in cuts:
        with path.open("ab") as file:
            file.write(content[at : at + cut])
        at += cut
        seen += tail.read_lines()
    with path.open("ab") as file:
        file.write(content[at:])
    while rest := tail.read_lines(final=True):
        seen += rest
    expected = content.split(b"\n")
    assert seen == (expected if expected[-1] else expected[:-1])


def test_a_backlog_is_passed_over_up_to_its_last_whole_lines(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    tail = LineTail(path)
    size = path.stat().st_size
    assert tail.skip_backlog(size) == 0
    assert tail.skip_backlog(20) == size - 20
    assert tail.read_lines() == [b"line 998", b"line 999"]
    assert tail.skip_backlog(0) == 0


def test_the_backlog_of_a_replaced_file_is_counted_from_its_beginning(tmp_path):
    path, other = tmp_path / "log", tmp_path / "other"
    path.write_bytes(b"old\n" * 100)
    tail = LineTail(path)
    tail.read_lines()
    other.write_bytes(b"new one\n" * 100)
    other.rename(path)
    assert tail.skip_backlog(16) == 784
    assert tail.read_lines() == [b"new one"]
    assert LineTail(tmp_path / "absent").skip_backlog(0) == 0


def test_lines_of_several_processes_do_not_mix(tmp_path):
    path = tmp_path / "metrics.jsonl"
    program = (
        "import sys\nfrom zeusrun.sidecar.events import Reported\n"
        "from zeusrun.sidecar.events import EventWriter\n"
        "writer = EventWriter(sys.argv[1])\n"
        "for epoch in range(500): writer.write(Reported(1.0, epoch, {sys.argv[2] * 200: 1.0}))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in "abcd"
    ]
    assert [child.wait() for child in children] == [0] * 4
    reader = SidecarReader(path)
    assert len(reader.read(final=True)) == 2000
    assert reader.warnings == []


def test_the_step_clock_counts_across_processes_and_restarts(tmp_path):
    path = tmp_path / "rank0"
    assert read_step_clock(path) is None
    clock = StepClock(path)
    assert read_step_clock(path) is None
    clock.tick()
    first = read_step_clock(path)
    assert first.steps == 1
    assert first.first_step_t == first.last_step_t > 0
    StepClock(path).tick()
    second = read_step_clock(path)
    assert second.steps == 2
    assert second.first_step_t == first.first_step_t
    assert second.last_step_t >= first.last_step_t


def test_waits_go_on_after_a_restart_and_may_be_unknown(tmp_path):
    path = tmp_path / "rank0"
    for _ in range(2):
        clock = StepClock(path)
        clock.tick()
        clock.waits_s[0] += 1.5
        clock.waits_s[1] += 0.25
    assert read_step_clock(path).waits_s == (3.0, 0.5)
    for value in (float("inf"), float("nan"), -1.0):
        clock.waits_s[0] = value
        assert read_step_clock(path).waits_s == (None, 0.5)
    later = StepClock(tmp_path / "rank1")
    clock.waits_s[0] = 7.0
    assert later.exchange(clock.exchange(None)) == clock.exchange(None)
    later.tick()
    assert read_step_clock(tmp_path / "rank1").waits_s == (7.0, 0.5)


def test_a_clock_file_cut_short_is_no_steps(tmp_path):
    path = tmp_path / "rank0"
    path.write_bytes(b"\1" * 7)
    assert read_step_clock(path) is None


def test_a_step_clock_notes_where_in_the_training_the_log_has_grown(tmp_path, monkeypatch):
    size = iter([5, 5, 9, 9, 9])
    monkeypatch.setattr(os, "lseek", lambda *_: next(size))
    clock = StepClock(tmp_path / "rank0")
    for samples, passes, others in ((8, 1, 0), (16, 1, 0), (24, 1, 1), (32, 1, 1), (40, 2, 2)):
        clock.tick(samples, passes, others)
    count = read_step_clock(tmp_path / "rank0")
    assert (count.steps, count.samples, count.passes, count.others) == (5, 40, 2, 2)
    assert [(log_bytes, place[1:]) for log_bytes, place in count.notes] == [
        (5, (0, 0, 0, 0)),  # steps, samples, passes, other passes before
        (9, (2, 16, 1, 1)),
        (9, (4, 32, 1, 2)),  # a pass begins
    ]


def test_a_restart_counts_samples_anew_and_steps_and_passes_on(tmp_path):
    StepClock(tmp_path / "rank0").tick(8, 1)
    again = StepClock(tmp_path / "rank0")
    assert read_step_clock(tmp_path / "rank0").samples == 0
    again.tick(16, 1)
    count = read_step_clock(tmp_path / "rank0")
    assert (count.steps, count.samples, count.passes) == (2, 16, 2)


def test_a_rank_that_prints_elsewhere_notes_no_place_of_the_log(tmp_path, monkeypatch):
    """Its output is not where the metric is read: in a pipe, or a file of the script's own."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank0.log").write_text("a line of the parent")
    (tmp_path / "clock").mkdir()
    monkeypatch.setattr(os, "lseek", lambda *_: 10_000)
    clock = StepClock(tmp_path / "clock" / "rank0")
    clock.tick(8, 1)
    clock.tick(16, 1)
    notes = read_step_clock(tmp_path / "clock" / "rank0").notes
    assert [log_bytes for log_bytes, _ in notes] == [0]  # a pass begins


def test_the_step_of_another_optimizer_is_no_step_of_its_own(tmp_path):
    clock = StepClock(tmp_path / "rank0")
    clock.tick()
    clock.tick(counts=False)
    assert read_step_clock(tmp_path / "rank0").steps == 1


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
PLANS = st.builds(
    RankPlan,
    job=st.none() | TEXTS,
    trial=TEXTS,
    run_dir=st.none() | TEXTS,
    batch_size=st.none() | st.integers(1),
    learning_rate=st.none() | st.floats(allow_nan=False),
    target=st.none() | st.floats(allow_nan=False),
    ranks=st.none() | st.integers(1),
    parts=st.dictionaries(TEXTS, st.dictionaries(TEXTS, st.none() | st.integers() | TEXTS)),
)


@given(PLANS)
def test_a_rank_reads_the_plan_that_the_launcher_wrote(plan):
    variables = plan.variables()
    assert all(name.startswith("ZEUSRUN_") for name in variables)
    assert RankPlan.read({"PATH": "/bin", **variables}) == plan


def test_outside_zeusrun_nothing_is_planned():
    others = {"ZEUSRUN_RANKS": "all", "ZEUSRUN_PARTS": "x", "ZEUSRUN_ATTEMPT": "a"}
    assert RankPlan.read({"PATH": "/bin", "ZEUSRUN_HOME": "/h", **others}) == RankPlan()
    assert RankPlan().variables() == {}


@pytest.mark.parametrize(
    ("changes", "value", "met"),
    [
        ({}, 0.5, True),
        ({}, 0.4, False),
        ({}, float("nan"), False),
        ({"on_target": "continue"}, 0.5, False),
        ({"metric": "loss"}, 0.5, False),
        ({"mode": "min"}, 0.4, True),
    ],
)
def test_a_value_of_the_metric_may_end_the_training_at_once(changes, value, met):
    plan = RankPlan(
        **{"metric": "accuracy", "target": 0.5, "mode": "max", "on_target": "stop"} | changes
    )
    assert plan.meets_target("accuracy", value) == met
