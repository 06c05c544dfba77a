"""Starting, stopping and sweeping real processes, where no torchrun is needed for it."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from tests.factories import ROOT
from tests.runs import has_ended
from tests.runs import run_torchrun as run
from zeusrun.errors import LaunchError
from zeusrun.launcher.processes import torchrun
from zeusrun.launcher.processes.command import Command
from zeusrun.launcher.processes.descendants import end_processes, processes_of_run
from zeusrun.launcher.processes.guard import is_readable
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.launcher.processes.torchrun import StopLevel, prepare_to_stop, write_stop
from zeusrun.launcher.rundir.layout import RunPaths, create_run
from zeusrun.sidecar.orders import ENDING


@pytest.fixture
def paths(tmp_path):
    return create_run(tmp_path, "job", "job-1-1")


def python(paths, text, **changes):
    """Build the command of a little Python program that knows its run directory."""
    environment = {**os.environ, "ZEUSRUN_RUN_DIR": str(paths.run_dir)}
    program = "import os, pathlib, signal, subprocess, sys, time\n" + dedent(text)
    values = {"argv": (sys.executable, "-c", program), "env": environment, "cwd": Path.cwd()}
    return Command(**{**values, **changes})


def go_on():
    return StopLevel.NONE


def once(paths, name, level):
    """Return an ``on_tick`` that asks for a level once the program has made a file."""
    return lambda: level if (paths.run_dir / name).exists() else StopLevel.NONE


READY = "pathlib.Path(os.environ['ZEUSRUN_RUN_DIR'], 'ready').touch()\n"
FOR_EVER = "while True: time.sleep(600)\n"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


def survivors(paths):
    return [each for each in processes_of_run(str(paths.run_dir)) if each.is_running()]


def test_a_run_gives_its_exit_code_and_its_output_is_in_the_log(paths):
    text = "print('out'); print('err', file=sys.stderr); sys.exit(7)"
    exit_ = run(python(paths, text), paths, grace_period_s=1, on_tick=go_on)
    assert (exit_.code, exit_.outlived) == (7, ())
    assert sorted(paths.torchrun_log.read_text().split()) == ["err", "out"]
    assert not paths.stop.exists()


@pytest.fixture
def many_descriptors():
    """Open so many files that the next descriptor is one that ``select`` would refuse."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_run_may_begin_with_many_open_files(paths, many_descriptors):
    assert run(python(paths, ""), paths, grace_period_s=1, on_tick=go_on).code == 0


def test_waiting_has_no_longest_time():
    reader, writer = os.pipe()
    os.close(writer)
    assert is_readable(reader, 1e12)
    os.close(reader)


def test_a_run_has_the_environment_folder_and_session_given_and_no_input(paths, tmp_path):
    text = """
        print(os.environ["MINE"], os.getcwd(), os.getsid(0) == os.getpid(), sys.stdin.read() == "")
    """
    command = python(paths, text, env={"MINE": "ä"}, cwd=tmp_path)
    run(command, paths, grace_period_s=1, on_tick=go_on)
    assert paths.torchrun_log.read_text() == f"ä {tmp_path} True True\n"


def test_what_cannot_be_started_is_a_launch_error_that_names_it(paths):
    with pytest.raises(LaunchError, match="could not be started: /no/such/folder") as caught:
        run(python(paths, "", cwd=Path("/no/such/folder")), paths, grace_period_s=1, on_tick=go_on)
    assert caught.value.exit_code == 5


def test_told_to_stop_a_program_sees_the_stop_file_and_is_not_signalled(paths):
    text = """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        pathlib.Path(os.environ["ZEUSRUN_RUN_DIR"], "ready").touch()
        while not os.path.exists(os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "stop")):
            time.sleep(0.01)
    """
    on_tick = once(paths, "ready", StopLevel.ASK)
    assert run(python(paths, text), paths, grace_period_s=1, on_tick=on_tick).code == 0


def test_terminate_is_a_sigterm_and_a_stop_file(paths):
    on_tick = once(paths, "ready", StopLevel.TERMINATE)
    command = python(paths, READY + FOR_EVER)
    assert run(command, paths, grace_period_s=60, on_tick=on_tick).code == -signal.SIGTERM
    assert paths.stop.exists()


def test_terminate_is_sent_once_however_often_it_is_asked_for(paths):
    text = """
        got = []
        signal.signal(signal.SIGTERM, lambda *_: got.append(1))
        pathlib.Path(os.environ["ZEUSRUN_RUN_DIR"], "ready").touch()
        while not got: time.sleep(0.01)
        while not os.path.exists(os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "enough")):
            time.sleep(0.01)
        sys.exit(len(got))
    """
    ticks = []

    def on_tick():
        ticks.append(1)
        if len(ticks) == 12:
            (paths.run_dir / "enough").touch()
        level = StopLevel.TERMINATE if len(ticks) % 2 else StopLevel.NONE
        return once(paths, "ready", level)()

    assert run(python(paths, text), paths, grace_period_s=60, on_tick=on_tick).code == 1


HANDLES = "signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))\n"


def test_while_the_ranks_are_asked_to_end_torchrun_is_not_told_and_killed_after_the_grace(paths):
    asked = []
    exit_ = run(
        python(paths, HANDLES + READY + FOR_EVER),
        paths,
        grace_period_s=0.5,
        on_tick=once(paths, "ready", StopLevel.TERMINATE),
        end_ranks=lambda: asked.append(1) or True,
    )
    assert exit_.code == -signal.SIGKILL
    assert len(asked) > 1
    assert paths.torchrun_log.read_text() == ""
    assert survivors(paths) == []


def test_once_no_rank_can_be_asked_torchrun_is_told_and_nobody_asked_again(paths):
    text = HANDLES.replace("print('told', flush=True)", "sys.exit(7)") + READY + FOR_EVER
    answers = [True, True, False]
    exit_ = run(
        python(paths, text),
        paths,
        grace_period_s=60,
        on_tick=once(paths, "ready", StopLevel.TERMINATE),
        end_ranks=lambda: answers.pop(0),
    )
    assert (exit_.code, answers) == (7, [])


def test_on_a_full_disk_a_program_is_told_that_it_is_ended(paths, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def on_tick():
        monkeypatch.setattr("zeusrun.launcher.rundir.layout.replace_file", refuse)
        return once(paths, "ready", StopLevel.TERMINATE)()

    command = python(paths, READY + FOR_EVER)
    assert run(command, paths, grace_period_s=60, on_tick=on_tick).code == -signal.SIGTERM
    assert paths.stop.read_bytes() == ENDING
    assert not paths.stop_ending.exists()


def test_a_run_leaves_nothing_that_it_was_prepared_for(paths):
    run(python(paths, ""), paths, grace_period_s=1, on_tick=go_on)
    assert {path.name for path in paths.run_dir.iterdir()} == {"logs", "clock", "checkpoints"}


def test_what_ignores_terminate_is_killed_when_its_grace_is_over(paths, monkeypatch):
    monkeypatch.setattr(torchrun, "_MARGIN_S", 0.2)
    ticks = []

    def on_tick():
        ticks.append(1)
        assert len(ticks) < 300, "nobody kills it"
        return once(paths, "ready", StopLevel.TERMINATE)()

    exit_ = run(python(paths, DEAF + READY + FOR_EVER), paths, grace_period_s=0, on_tick=on_tick)
    assert exit_.code == -signal.SIGKILL
    assert survivors(paths) == []


def test_kill_ends_even_what_ignores_sigterm_and_all_its_children(paths):
    text = DEAF + "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    text += "start_new_session=True)\n" + READY + FOR_EVER
    on_tick = once(paths, "ready", StopLevel.KILL)
    exit_ = run(python(paths, text), paths, grace_period_s=600, on_tick=on_tick)
    assert exit_.code == -signal.SIGKILL
    assert len(exit_.outlived) == 1
    assert survivors(paths) == []


def test_a_level_never_falls(paths):
    asked = iter([StopLevel.ASK, StopLevel.NONE, StopLevel.TERMINATE, StopLevel.NONE])

    def on_tick():
        return next(asked, StopLevel.NONE) if (paths.run_dir / "ready").exists() else go_on()

    command = python(paths, READY + FOR_EVER)
    assert run(command, paths, grace_period_s=60, on_tick=on_tick).code == -signal.SIGTERM
    assert paths.stop.exists()


def test_what_the_tick_raises_passes_through_and_the_run_is_ended(paths):
    def on_tick():
        if (paths.run_dir / "ready").exists():
            raise ArithmeticError("a bug in a tick")
        return StopLevel.NONE

    text = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    text += "start_new_session=True)\n" + READY + FOR_EVER
    with pytest.raises(ArithmeticError, match="a bug in a tick"):
        run(python(paths, text), paths, grace_period_s=60, on_tick=on_tick)
    assert survivors(paths) == []


def test_what_the_end_raises_passes_through_and_the_run_is_ended(paths):
    def on_tick():
        if (paths.run_dir / "ready").exists():
            raise ArithmeticError("a bug in a tick")
        return StopLevel.NONE

    def on_end():
        raise LookupError("a bug at the end")

    text = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    text += "start_new_session=True)\n" + READY + FOR_EVER
    with pytest.raises(LookupError, match="a bug at the end"):
        run(python(paths, text), paths, grace_period_s=60, on_tick=on_tick, on_end=on_end)
    left = survivors(paths)
    end_processes(left, at_once=True)
    assert left == []


LEAVES_A_DAEMON = """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            pathlib.Path(os.environ["ZEUSRUN_RUN_DIR"], "pid").write_text(str(os.getpid()))
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
        os._exit(0)
    while not os.path.exists(os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "pid")):
        time.sleep(0.01)
"""


def test_what_has_left_session_parent_and_environment_is_ended(paths):
    exit_ = run(python(paths, LEAVES_A_DAEMON), paths, grace_period_s=1, on_tick=go_on)
    pid = int((paths.run_dir / "pid").read_text())
    assert [name.rpartition(" ")[2] for name in exit_.outlived] == [f"({pid})"]
    assert has_ended(pid)


def test_a_child_that_goes_by_itself_has_not_outlived_the_run(paths):
    text = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(0.1)'])"
    assert run(python(paths, text), paths, grace_period_s=1, on_tick=go_on).outlived == ()


def test_the_processes_of_another_run_are_left_alone(paths, tmp_path):
    other = create_run(tmp_path, "job", "job-2-1")
    command = python(other, FOR_EVER)
    bystander = subprocess.Popen(command.argv, env=command.env)
    run(python(paths, "pass"), paths, grace_period_s=1, on_tick=go_on)
    assert bystander.poll() is None
    assert [each.pid for each in survivors(other)] == [bystander.pid]
    bystander.kill()
    bystander.wait()


def test_processes_that_are_gone_are_no_trouble(paths):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    gone = psutil.Process(child.pid)
    child.wait()
    assert end_processes([gone]) == ()


CATCHER = """
    import os, signal, sys
    from zeusrun.launcher.processes.signals import CaughtSignals
    {before}
    with CaughtSignals() as signals:
        for name in {send!r}:
            os.kill(os.getpid(), getattr(signal, name))
        print(*(signal.Signals(number).name for number in signals.received))
    print(signal.getsignal(signal.SIGHUP).name, signal.getsignal(signal.SIGTERM).name)
"""


def catch(send, before=""):
    program = dedent(CATCHER).format(send=send, before=before)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_signals_are_collected_in_order_and_the_handlers_put_back():
    assert catch(["SIGTERM", "SIGINT", "SIGHUP"]) == ["SIGTERM SIGINT SIGHUP", "SIG_DFL SIG_DFL"]


def test_a_signal_that_was_ignored_before_stays_ignored():
    ignore = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    assert catch(["SIGHUP", "SIGTERM"], ignore) == ["SIGTERM", "SIG_IGN SIG_DFL"]


def test_what_came_after_the_last_within_is_impatient_again():
    program = dedent("""
        import signal
        from zeusrun.launcher.processes.signals import CaughtSignals
        with CaughtSignals(impatient=True) as outer:
            with CaughtSignals() as inner, CaughtSignals():
                for _ in range(3):
                    signal.raise_signal(signal.SIGTERM)
                print(len(inner.received), len(outer.received), flush=True)
            signal.raise_signal(signal.SIGTERM)
        print("still here")
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"3 3\n"), done.stderr


def test_signals_are_caught_before_anything_large_is_imported():
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import zeusrun.__main__
        print(*sorted({"typing", "dataclasses", "inspect", "subprocess"} & set(sys.modules)))
    """
    argv = [sys.executable, "-I", "-S", "-c", dedent(program), str(ROOT)]
    assert subprocess.run(argv, capture_output=True, check=True).stdout == b"\n"


def test_under_nohup_a_hangup_does_not_stop_a_run(paths):
    """Nohup sets SIGHUP to be ignored, which a program inherits."""
    program = dedent("""
        import os, pathlib, signal, sys
        from zeusrun.launcher.processes.command import Command
        from zeusrun.launcher.rundir.layout import RunPaths
        from tests.runs import run_torchrun as run
        from zeusrun.launcher.processes.signals import CaughtSignals
        from zeusrun.launcher.supervision.stopping import StopRules, find_stop
        from zeusrun.launcher.processes.torchrun import StopLevel, prepare_to_stop, write_stop
        from zeusrun.metrics.progress import Progress
        paths = RunPaths(pathlib.Path(sys.argv[1]))
        with CaughtSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            def on_tick():
                order = find_stop(Progress(0.0, 0.0), StopRules(None, None, True), signals.received)
                return StopLevel.NONE if order is None else order.level
            command = Command((sys.executable, "-c", "print('trained')"), os.environ, paths.run_dir)
            sys.exit(run(command, paths, grace_period_s=1, on_tick=on_tick).code)
    """)
    argv = ["nohup", sys.executable, "-c", program, str(paths.run_dir)]
    done = subprocess.run(
        argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert paths.torchrun_log.read_text() == "trained\n"


def test_the_end_is_on_the_monotonic_clock(paths):
    before = time.monotonic()
    exit_ = run(python(paths, "pass"), paths, grace_period_s=1, on_tick=go_on)
    assert before <= exit_.ended_t <= time.monotonic()


def test_caught_signals_start_empty():
    with CaughtSignals() as signals:
        assert signals.received == []


def test_on_a_disk_without_room_for_a_byte_a_script_is_told_all_the_same(tmp_path, monkeypatch):
    def fill(path, content, **_):
        path.touch()
        if content:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    paths, full = RunPaths(tmp_path / "a"), RunPaths(tmp_path / "b")
    paths.run_dir.mkdir()
    full.run_dir.mkdir()
    prepare_to_stop(paths)
    monkeypatch.setattr("zeusrun.launcher.processes.torchrun.write_file", fill)
    monkeypatch.setattr("zeusrun.files.private._write", fill)
    write_stop(paths, ending=False)
    assert paths.stop.read_bytes() == b""
    write_stop(paths, ending=True)
    assert paths.stop.read_bytes() == ENDING
    prepare_to_stop(full)  # there was no room from the start
    with pytest.raises(OSError, match="No space left"):
        write_stop(full, ending=True)
    assert list(full.run_dir.iterdir()) == []


def test_a_script_that_has_deleted_what_was_prepared_is_told_all_the_same(tmp_path):
    write_stop(RunPaths(tmp_path), ending=True)
    assert [path.name for path in tmp_path.iterdir()] == ["stop"]
    assert RunPaths(tmp_path).stop.read_bytes() == ENDING
