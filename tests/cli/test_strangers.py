"""The command line in bad conditions: wrong arguments, no rights, no cluster, odd terminals, closed pipes."""

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.objects import KUBECONFIG, Objects, encoded, objects, serving
from tests.support.terminal import on_terminal

from tessera.cli.base.connection import describe_error
from tessera.cli.main import main
from tessera.kube.errors import Status, Unauthorized
from tessera.limits import INPUT_FILE

Told = pytest.CaptureFixture[str]
_REFUSED = 'User "jane" cannot list resource "{}"'
TESSERA = [sys.executable, "-m", "tessera"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Objects, str]]:
    there = Objects()
    there.found = encoded(objects())
    with serving(there, tmp_path) as kubeconfig:
        yield there, str(kubeconfig)


@pytest.mark.parametrize(
    ("command", "missing", "facts"),
    [
        (
            ["map"],
            "instaslices",
            ("adds Tessera's API for tenants: tessera install --reuse --dashboard",),
        ),
        (
            ["why", "a", "-n", "team"],
            "pods",
            (_REFUSED.format("pods"), "ask an administrator for this right", "use a context that has it"),
        ),
        (
            ["driver", "status"],
            "nodes",
            (_REFUSED.format("nodes"), "ask an administrator for this right", "use a context that has it"),
        ),
    ],
)
def test_a_right_that_is_missing_is_named(
    command: list[str], missing: str, facts: tuple[str, ...], server: tuple[Objects, str], capsys: Told
) -> None:
    there, kubeconfig = server
    there.refused = frozenset({missing})
    assert main([*command, "--kubeconfig", kubeconfig]) == 1
    told = capsys.readouterr().err
    for fact in facts:
        assert fact in told


def test_credentials_that_have_expired_are_told_with_the_next_step() -> None:
    error = Unauthorized(Status(code=401, reason="Unauthorized", message="Unauthorized"))
    assert describe_error(error) == (
        "Error from server (Unauthorized): Unauthorized; the server does not know these credentials, or they have"
        " expired: log in again, or use another context"
    )


def test_a_command_that_is_suggested_has_the_names_that_a_user_gave_as_one_word(
    server: tuple[Objects, str], capsys: Told
) -> None:
    there, kubeconfig = server
    there.refused = frozenset({"pods/proxy", "pods", "waitingpods", "instaslices", "usages"})
    assert main(["queue", "-n", "no such; id", "--kubeconfig", kubeconfig]) == 1
    assert "--user=NAME -n 'no such; id'" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_told_in_plain_words(tmp_path: Path, capsys: Told) -> None:
    with serving(Objects(), tmp_path) as kubeconfig:
        pass
    assert main(["map", "--kubeconfig", str(kubeconfig)]) == 1
    error = capsys.readouterr().err
    for fact in ("connection refused", "nothing listens there", "check that the cluster is up"):
        assert fact in error


@pytest.mark.parametrize("name", ["p\udcffd", "UPPER", "a b", "../x", "x" * 254, "\x1b[2J"])
def test_a_name_that_nothing_can_have_is_refused_before_a_cluster_is_asked(name: str, capsys: Told) -> None:
    assert main(["why", f"pod/{name}" if "/" not in name else name]) == 1
    told = capsys.readouterr().err
    assert told.startswith('error: "')
    assert told.count("\n") == 1
    assert len(told) < 600
    assert "\x1b" not in told


def test_standard_input_is_utf_8_whatever_the_terminal_is(monkeypatch: pytest.MonkeyPatch, capsys: Told) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"version: v1\n# \xff"), encoding="ascii", errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["config", "check", "-"]) == 1
    assert "not UTF-8: byte 14 is 0xff" in capsys.readouterr().err


def test_a_file_without_end_is_refused_with_its_name_and_the_limit(capsys: Told) -> None:
    assert main(["config", "check", "/dev/zero"]) == 1
    error = capsys.readouterr().err
    assert "/dev/zero" in error
    assert f"{INPUT_FILE >> 20} MiB" in error


def test_a_pipe_is_read_as_a_file(tmp_path: Path, capsys: Told) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("version: v1\nmig-configs: {}\n",))
    writer.start()
    main(["config", "check", str(pipe)])
    writer.join()
    assert "mig-configs" in "".join(capsys.readouterr())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_utf_8_shows_escapes(encoding: str, server: tuple[Objects, str]) -> None:
    there, kubeconfig = server
    found = objects()
    found["nodes"][0]["status"]["conditions"][0]["message"] = "図 grün"
    found["nodes"][0]["status"]["conditions"][0]["status"] = "False"
    there.found = encoded(found)
    command = [*TESSERA, "why", "node/n1", "--kubeconfig", kubeconfig]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert b"\\u56f3" in done.stdout


@pytest.mark.parametrize("set_", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_no_colours_where_none_are_wanted(
    set_: dict[str, str], server: tuple[Objects, str], monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["map", "--kubeconfig", server[1]]) == 0
    assert "\x1b[" in capsys.readouterr().out
    for name, value in set_.items():
        monkeypatch.setenv(name, value)
    assert main(["map", "--kubeconfig", server[1]]) == 0
    assert "\x1b[" not in capsys.readouterr().out


@pytest.mark.parametrize("command", [["provisioning", "report"], ["map"], ["plan", "mig", "A30", "1g.6gb"]])
def test_a_closed_pipe_is_no_error(command: list[str], server: tuple[Objects, str]) -> None:
    options = ["--kubeconfig", server[1]] if command[0] in {"map", "provisioning"} else []
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*TESSERA, *command, *options], stdout=writing, stderr=-1, check=False, timeout=60)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 0


def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG.format(server=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        running = subprocess.Popen([*TESSERA, "map", "--kubeconfig", str(kubeconfig)], stderr=subprocess.PIPE)
        connection, _ = silent.accept()
        with connection:
            running.send_signal(signal.SIGINT)
            _, told = running.communicate(timeout=30)
    assert (running.returncode, told) == (130, b"\n")


def test_ctrl_c_at_a_question_is_an_answer(server: tuple[Objects, str]) -> None:
    there, kubeconfig = server
    there.refused = frozenset({"daemonsets"})
    with on_terminal("uninstall", "--kubeconfig", kubeconfig, env=os.environ) as screen:
        screen.until("[y/N]: ")
        # Python's readline does not see a signal between its prompt and its wait.
        while Path(f"/proc/{screen.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.01)
        screen.process.send_signal(signal.SIGINT)
        assert screen.process.wait(timeout=60) == 130
