"""``zeusrun measure`` as a user runs it: any command, its own streams and signals, and its joules."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pexpect
import pytest
import typer

from tests.gpu import fixtures
from tests.gpu.simulated import SimulatedDevice
from zeusrun.commands import measure as verb

build_library, plain_library = fixtures.build_library, fixtures.plain_library
gpu_machine = fixtures.gpu_machine

PYTHON = (sys.executable, "-c")
DRAW_W = 250.0
"""Of each fake GPU with ``work=0``, whatever runs."""


@pytest.fixture
def busy_machine(gpu_machine):
    gpu_machine.set("work", 0)
    return gpu_machine


@pytest.fixture
def measure(zeusrun):
    """Measure a command; return its exit code, the JSON, and what it printed before."""

    def run(*command, options=(), **env):
        done = zeusrun("measure", "--json", *options, "--", *command, **env)
        *printed, last = done.stdout.splitlines()
        return done.returncode, json.loads(last), printed

    return run


def test_the_exit_code_is_that_of_the_command(zeusrun):
    assert zeusrun("measure", "--", "true").returncode == 0
    done = zeusrun("measure", "--", *PYTHON, "raise SystemExit(7)")
    assert done.returncode == 7
    assert "exit code 7" in done.stderr


def test_a_command_ended_by_a_signal_has_the_exit_code_of_a_shell(measure):
    code, measured, _ = measure(*PYTHON, "import os; os.kill(os.getpid(), 9)")
    assert (code, measured["exit_code"]) == (128 + 9, 128 + 9)


def test_a_command_that_is_not_there_is_told_in_one_sentence(zeusrun):
    done = zeusrun("measure", "--", "no-such-command")
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == (
        "zeusrun: no-such-command: command not found; is it installed, and its folder in PATH?\n"
    )


def test_a_file_that_cannot_be_executed_is_told_in_one_sentence(zeusrun, tmp_path):
    plain = tmp_path / "plain.txt"
    plain.write_text("text")
    done = zeusrun("measure", "--", plain)
    assert (done.returncode, done.stdout) == (126, "")
    assert done.stderr == f"zeusrun: {plain}: cannot be executed: Permission denied\n"


def test_a_script_whose_interpreter_is_missing_is_told_apart(zeusrun, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = zeusrun("measure", "--", script)
    assert done.returncode == 127
    assert "interpreter" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--"], ["--no-such-option", "true"]])
def test_without_a_command_or_with_an_unknown_option_it_is_a_usage_error(zeusrun, arguments):
    done = zeusrun("measure", *arguments)
    assert (done.returncode, done.stdout) == (2, "")


def test_what_follows_the_command_is_its_own(zeusrun):
    program = "import sys; print(sys.argv[1:])"
    for start in (["measure"], ["measure", "--"]):
        done = zeusrun(*start, *PYTHON, program, "--json", "--", "--help", "$HOME; ls *")
        assert done.stdout == "['--json', '--', '--help', '$HOME; ls *']\n"
        assert "✓" in done.stderr


def test_its_three_streams_are_untouched(zeusrun):
    program = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data); "
    program += "sys.stderr.write('complaint\\n')"
    done = subprocess.run(
        zeusrun.argv("measure", "--", *PYTHON, program),
        input=b"\x00\xff no newline",
        capture_output=True,
        env=zeusrun.environment,
        check=True,
    )
    assert done.stdout == b"\x00\xff no newline"
    assert done.stderr.startswith(b"complaint\n")


def test_descriptors_that_the_user_opened_for_it_reach_it(zeusrun):
    reader, writer = os.pipe()
    with os.fdopen(reader) as told:
        done = subprocess.run(
            zeusrun.argv("measure", "--", *PYTHON, f"import os; os.write({writer}, b'here')"),
            pass_fds=[writer],
            capture_output=True,
            env=zeusrun.environment,
            check=False,
        )
        os.close(writer)
        assert told.read() == "here"
    assert done.returncode == 0


def test_json_is_the_last_line_even_if_the_command_leaves_its_own_open(zeusrun):
    done = zeusrun("measure", "--json", "--", *PYTHON, "print('loss 0.5', end='')")
    first, last = done.stdout.splitlines()
    assert first == "loss 0.5"
    assert json.loads(last)["exit_code"] == 0
    assert done.stderr == ""


def test_without_a_gpu_the_cpu_time_of_the_command_is_what_is_metered(measure):
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    _, measured, _ = measure(
        *PYTHON, burn, CUDA_VISIBLE_DEVICES="", ZEUSRUN_CPU_WATTS_PER_CORE="10"
    )
    if measured["energy_source"] != "estimated":
        pytest.skip("this machine counts the energy of its CPU")
    assert 4.5 < measured["energy_j"] < 20
    assert measured["time_s"] >= 0.5
    assert measured["mean_power_w"] == pytest.approx(measured["energy_j"] / measured["time_s"])
    assert measured["shared"] is None
    assert [device["uuid"] for device in measured["devices"]] == ["cpu"]


def test_every_visible_gpu_is_metered_by_both_accounts(measure, busy_machine):
    _, measured, _ = measure("sleep", "1", **busy_machine.environment)
    time_s = measured["time_s"]
    assert set(measured) == {
        "exit_code",
        "time_s",
        "energy_j",
        "energy_source",
        "energy_counter_j",
        "energy_integrated_j",
        "mean_power_w",
        "max_power_w",
        "shared",
        "devices",
        "warnings",
    }
    assert time_s >= 1.0
    # One step of the counter is a tenth of it.
    for name in ("energy_j", "energy_counter_j", "energy_integrated_j"):
        assert measured[name] == pytest.approx(2 * DRAW_W * time_s, rel=0.11)
    assert (measured["energy_source"], measured["max_power_w"]) == ("counter", 800.0)
    assert measured["mean_power_w"] == pytest.approx(measured["energy_j"] / time_s)
    assert [d["uuid"] for d in measured["devices"]] == [busy_machine.uuid(n) for n in range(2)]
    assert sum(d["energy_j"] for d in measured["devices"]) == pytest.approx(measured["energy_j"])
    assert measured["warnings"] == []


def test_only_the_gpus_that_cuda_sees_are_metered(measure, busy_machine):
    _, measured, _ = measure("sleep", "1", **busy_machine.environment, CUDA_VISIBLE_DEVICES="1")
    assert [device["uuid"] for device in measured["devices"]] == [busy_machine.uuid(1)]
    assert measured["max_power_w"] == 400.0


def test_the_cpu_is_metered_instead_where_that_is_asked_for(measure, busy_machine):
    _, measured, _ = measure("true", options=["--cpu"], **busy_machine.environment)
    assert [device["uuid"] for device in measured["devices"]] == ["cpu"]


def test_without_a_counter_sampled_power_is_integrated(measure, busy_machine):
    busy_machine.set("counter", 0)
    _, measured, _ = measure("sleep", "1", **busy_machine.environment)
    assert (measured["energy_source"], measured["energy_counter_j"]) == ("integrated", None)
    assert measured["energy_j"] == pytest.approx(2 * DRAW_W * measured["time_s"], rel=0.05)


def test_a_command_shorter_than_a_step_of_the_counter_has_no_known_energy(measure, busy_machine):
    _, measured, _ = measure("true", **busy_machine.environment)
    if measured["time_s"] >= 0.1:
        pytest.skip("this machine is too slow to be that short")
    for name in ("energy_j", "energy_source", "energy_counter_j", "mean_power_w"):
        assert measured[name] is None, name
    assert [device["energy_j"] for device in measured["devices"]] == [None, None]
    (warning,) = measured["warnings"]
    assert "unknown" in warning


def test_a_command_of_a_few_steps_of_the_counter_says_how_roughly_it_is_known(
    zeusrun, busy_machine
):
    done = zeusrun("measure", "--", "sleep", "0.4", **busy_machine.environment, COLUMNS="200")
    assert "! the command ended after 0." in done.stderr
    assert "only roughly known" in done.stderr


def test_processes_that_are_not_the_commands_are_told(measure, busy_machine):
    busy_machine.set("foreign", os.getpid())
    _, measured, _ = measure("sleep", "1", **busy_machine.environment)
    assert measured["shared"] is True
    (warning,) = measured["warnings"]
    assert str(os.getpid()) in warning


def test_a_gpu_lost_meanwhile_makes_energy_unknown_and_never_smaller(measure, busy_machine):
    lose = "import ctypes, time; nvml = ctypes.CDLL('libnvidia-ml.so.1'); "
    lose += f"nvml.fake_nvml_open({str(busy_machine.state_path).encode()!r}); "
    lose += "time.sleep(0.5); nvml.fake_nvml_set(b'lost', ctypes.c_long(1)); time.sleep(0.5)"
    code, measured, _ = measure(*PYTHON, lose, **busy_machine.environment)
    assert code == 0
    assert (measured["energy_j"], measured["energy_source"]) == (None, None)
    assert measured["devices"][0]["energy_j"] > 0
    assert measured["devices"][1]["energy_j"] is None
    assert any("GPU is lost" in warning for warning in measured["warnings"])


def test_people_read_time_energy_source_power_and_each_gpus_share(zeusrun, busy_machine):
    done = zeusrun("measure", "--", "sleep", "1", **busy_machine.environment)
    assert done.stdout == ""
    head, spent, first, second, accounts, *rest = done.stderr.splitlines()
    assert head == "✓ sleep 1"
    assert " J counter · mean " in spent
    assert spent.endswith(" W of at most 800 W")
    assert busy_machine.uuid(0) in first
    assert busy_machine.uuid(1) in second
    assert re.search(r"counter [1-9]\d* J · integrated [1-9]\d* J", accounts)
    assert accounts.endswith(" %)")
    assert rest == []


# Says when it is ready, then counts what it is told in half a second from the first.
COUNTS = """
import signal, sys, time
seen = []
signal.signal(signal.{name}, lambda number, frame: seen.append(number))
print("ready", flush=True)
while not seen: time.sleep(0.01)
end = time.monotonic() + 0.5
while time.monotonic() < end: time.sleep(0.01)
print("told", len(seen), flush=True)
sys.exit(9)
"""


PASSED_ON = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]


@pytest.mark.parametrize("name", PASSED_ON)
def test_a_signal_goes_to_the_command_and_what_was_measured_is_reported(zeusrun, name):
    process = zeusrun.start("measure", "--json", "--", *PYTHON, COUNTS.replace("{name}", name))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(getattr(signal, name))
    out, _ = process.communicate(timeout=300)
    told, *_, last = out.splitlines()
    assert told == "told 1"
    assert (process.returncode, json.loads(last)["exit_code"]) == (9, 9)


def test_ctrl_c_on_a_terminal_reaches_the_command_once(zeusrun):
    program, *arguments = zeusrun.argv("measure", "--", *PYTHON, COUNTS.replace("{name}", "SIGINT"))
    child = pexpect.spawn(
        program, arguments, env=zeusrun.environment, encoding="utf-8", timeout=300
    )
    child.expect("ready")
    child.sendintr()
    child.expect("told 1")
    child.expect("exit code 9")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 9


def test_ctrl_c_that_ends_the_command_is_reported_as_a_shell_has_it(zeusrun):
    program, *arguments = zeusrun.argv("measure", "--", "sleep", "60")
    child = pexpect.spawn(
        program, arguments, env=zeusrun.environment, encoding="utf-8", timeout=300
    )
    while "sleep" not in {p.name() for p in children(child.pid)}:
        pass
    child.sendintr()
    child.expect("exit code 130")
    child.expect(pexpect.EOF)
    child.close()
    assert (child.exitstatus, child.signalstatus) == (130, None)


def children(pid):
    import psutil

    return psutil.Process(pid).children()


def test_the_command_finds_signals_blocked_and_ignored_as_this_process_did(zeusrun):
    program = """
for line in open("/proc/self/status"):
    name, _, mask = line.partition(":")
    if name in {"SigBlk", "SigIgn"}:
        print(name, int(mask, 16) & 0x7FFFFFFF)  # above are those of the C library
"""
    plain = subprocess.run(
        [*PYTHON, program], capture_output=True, text=True, check=True, env=zeusrun.environment
    )
    assert zeusrun("measure", "--", *PYTHON, program).stdout == plain.stdout


@pytest.mark.parametrize("wrapper", ["timeout 60", "setsid"])
def test_ctrl_c_reaches_a_command_that_has_left_our_process_group(zeusrun, wrapper):
    program, *arguments = zeusrun.argv(
        "measure", "--", *wrapper.split(), *PYTHON, COUNTS.replace("{name}", "SIGINT")
    )
    child = pexpect.spawn(
        program, arguments, env=zeusrun.environment, encoding="utf-8", timeout=300
    )
    child.expect("ready")
    child.sendintr()
    child.expect(r"told \d")  # timeout passes it on twice
    child.expect("exit code 9")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 9


def test_a_terminal_that_closes_reaches_the_command_of_a_session_leader(zeusrun, tmp_path):
    told = tmp_path / "told"
    program = COUNTS.replace("{name}", "SIGHUP").replace(
        'print("told", len(seen), flush=True)', f"open({str(told)!r}, 'w').write(str(len(seen)))"
    )
    result = tmp_path / "result"
    command = shlex.join(zeusrun.argv("measure", "--json", "--", *PYTHON, program))
    # The shell becomes zeusrun, which so leads the session, as under `ssh -t` and in a tmux pane.
    arguments = ["-c", f"exec {command} > {result}"]
    child = pexpect.spawn(
        "/bin/sh", arguments, env=zeusrun.environment, encoding="utf-8", timeout=300
    )
    while not (result.exists() and "ready" in result.read_text()):
        time.sleep(0.01)
    os.close(child.child_fd)
    os.waitpid(child.pid, 0)
    assert told.read_text() == "1"
    assert json.loads(result.read_text().splitlines()[-1])["exit_code"] == 9


# Is told a signal just before it starts a command, which so comes while it does.
EARLY = """
import contextlib, os, signal, sys
from zeusrun.launcher.processes.programs import run_foreground
@contextlib.contextmanager
def told():
    os.kill(os.getpid(), signal.{name})
    yield
print(run_foreground(["sleep", "60"], os.environ, told()).code)
"""


@pytest.mark.parametrize("name", PASSED_ON)
def test_a_signal_that_comes_while_the_command_starts_goes_to_the_command(name):
    done = subprocess.run(
        [*PYTHON, EARLY.replace("{name}", name)], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{128 + getattr(signal, name)}\n", done


def test_the_result_is_told_before_the_devices_are_let_go(monkeypatch, capfd):
    class SlowToClose(SimulatedDevice):
        def close(self):
            os.write(1, b"closed\n")

    devices = [SlowToClose(time.monotonic)]
    monkeypatch.setattr("zeusrun.commands.measure.job_devices", lambda *_: (devices, None))
    for as_json in (True, False):
        with pytest.raises(typer.Exit):
            verb.measure(["true"], as_json=as_json, cpu=False)
    first, second, last = capfd.readouterr().out.strip().splitlines()
    assert json.loads(first)["exit_code"] == 0
    assert (second, last) == ("closed", "closed")


# The signal cannot be sent: the command is another user's.
BARRED = """
import os, subprocess
from contextlib import nullcontext
from zeusrun.launcher.processes.programs import run_foreground
def refuse(process, number):
    raise PermissionError
subprocess.Popen.send_signal = refuse
tell = "import os, signal; os.kill(os.getppid(), signal.SIGTERM)"
print(run_foreground(["{python}", "-c", tell], os.environ, nullcontext()).code)
"""


def test_a_command_of_another_user_that_cannot_be_told_is_waited_for():
    program = BARRED.replace("{python}", sys.executable)
    done = subprocess.run([*PYTHON, program], capture_output=True, text=True, check=False)
    assert done.stdout == "0\n", done
