"""The command line, and labs, as processes of their own that need no new interpreter.

Each test process has one server that has imported what commands and labs import, and forks it for each of them: a fork
takes 20 ms of a core, an interpreter that imports a command 200 to 500 ms, and one that imports a lab more than a
second. The tests run some hundred commands and some dozen labs.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from tessera_lab.daemon.lab_folder import PROCESS_TIMEOUT, LabState, find_running_lab, make_folder

#: How a process's outputs are opened; both may be one file.
_WRITTEN = os.O_WRONLY | os.O_CREAT | os.O_APPEND

#: What the server imports. It passes over a name that it cannot import.
PRELOADED = [
    "cryptography.hazmat.backends.openssl.backend",
    "encodings.idna",
    "tessera.claims.satellite",
    "tessera.cli.base.connection",
    "tessera.cli.base.one_shot",
    "tessera.cli.base.tiles",
    "tessera.cli.driver",
    "tessera.cli.install.command",
    "tessera.cli.main",
    "tessera.cli.map",
    "tessera.cli.provisioning",
    "tessera.cli.top",
    "tessera.cli.why",
    "tessera.explain.query",
    "tessera.forecast.queue.satellite",
    "tessera.handover.satellite",
    "tessera.kube.http",
    "tessera.kueue.satellite",
    "tessera.memory_limits.monitor",
    "tessera.provisioning.satellite",
    "tessera.scale_up.satellite",
    "tessera.signals.satellite",
    "tessera.usage.satellite",
    "tessera_lab.cli.lab",
    "tessera_lab.cli.own_commands",
    "tessera_lab.daemon.serve",
]
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(PRELOADED)


def run_tessera(
    *arguments: str,
    env: Mapping[str, str],
    cwd: Path,
    timeout: float,
    text: str | None = None,
    merged: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs ``tessera`` with these arguments.

    Args:
        arguments: of the command line, without the program's name.
        env: the whole environment of the process.
        cwd: its working directory.
        timeout: seconds that it may take.
        text: its standard input; none if None.
        merged: its standard error goes where its standard output goes, as by ``2>&1``.

    Raises:
        subprocess.TimeoutExpired: it took longer, and was killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdin", "stdout", "stdout" if merged else "stderr")]
        files[0].write_text(text or "", encoding="utf-8")
        process = _SERVER.Process(target=_run, args=(arguments, dict(env), str(cwd), [str(file) for file in files]))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(["tessera", *arguments], timeout)
        stdout, stderr = (file.read_text(encoding="utf-8") for file in files[1:])
        return subprocess.CompletedProcess(
            ["tessera", *arguments], process.exitcode or 0, stdout, "" if merged else stderr
        )


def start_lab(folder: Path, arguments: Sequence[str]) -> LabState:
    """Starts a lab in the folder, as :func:`tessera_lab.daemon.lab_folder.start` does; its ``stop`` ends it.

    Raises:
        AssertionError: it did not start; the text has its log.
    """
    folder = make_folder(folder)
    (folder / "lock").touch()
    log = folder / "lab.log"
    reader, writer = _SERVER.Pipe(duplex=False)
    with reader, writer:
        command = ("lab", "serve", "--dir", str(folder), *arguments)
        files = (os.devnull, str(log), str(log))
        process = _SERVER.Process(target=_serve, args=(command, dict(os.environ), str(Path.cwd()), files, writer))
        process.start()
        writer.close()
        is_ready = reader.poll(PROCESS_TIMEOUT) and os.read(reader.fileno(), 5) == b"ready"
    state = find_running_lab(folder) if is_ready else None
    if state is None:
        process.kill()
        process.join()
        raise AssertionError(f"the lab did not start: {log.read_text(errors='replace') if log.exists() else ''}")
    return state


def _serve(arguments: Sequence[str], env: Mapping[str, str], cwd: str, files: Sequence[str], ready: Connection) -> None:
    """Becomes a lab's process, in a session of its own, which writes to ``ready`` once it can be used."""
    os.setsid()
    _run(arguments, {**env, "TESSERA_LAB_READY": str(os.dup(ready.fileno()))}, cwd, files)


def _run(arguments: Sequence[str], env: Mapping[str, str], cwd: str, files: Sequence[str]) -> None:
    """Becomes the command's process, in a fork of the server."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for descriptor, (file, flags) in enumerate(zip(files, (os.O_RDONLY, _WRITTEN, _WRITTEN), strict=True)):
        opened = os.open(file, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, encoding="utf-8") for n, mode in enumerate("rww"))
    sys.argv = ["tessera", *arguments]
    from tessera.cli.main import main

    sys.exit(main())
