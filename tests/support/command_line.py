"""The command line as a process of its own that needs no new interpreter.

Each test process has one server that has imported the command line, and forks it for every command: a fork takes 10 ms,
an interpreter that imports a command 200 ms, and the tests run some hundred commands.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "tessera.cli.main",
        "tessera.cli.base.connection",
        "tessera.cli.driver",
        "tessera.cli.install.command",
        "tessera.cli.map",
        "tessera.cli.provisioning",
        "tessera.cli.why",
        "tessera_lab.cli.lab",
    ]
)


def run_tessera(
    *arguments: str, env: Mapping[str, str], cwd: Path, timeout: float, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs ``tessera`` with these arguments.

    Args:
        arguments: of the command line, without the program's name.
        env: the whole environment of the process.
        cwd: its working directory.
        timeout: seconds that it may take.
        text: its standard input; none if None.

    Raises:
        subprocess.TimeoutExpired: it took longer, and was killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        files[0].write_text(text or "", encoding="utf-8")
        process = _SERVER.Process(target=_run, args=(arguments, dict(env), str(cwd), [str(file) for file in files]))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(["tessera", *arguments], timeout)
        printed = [file.read_text(encoding="utf-8") for file in files[1:]]
        return subprocess.CompletedProcess(["tessera", *arguments], process.exitcode or 0, *printed)


def _run(arguments: Sequence[str], env: Mapping[str, str], cwd: str, files: Sequence[str]) -> None:
    """Becomes the command's process, in a fork of the server."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for descriptor, (file, flags) in enumerate(
        zip(files, (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT), strict=True)
    ):
        opened = os.open(file, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, encoding="utf-8") for n, mode in enumerate("rww"))
    sys.argv = ["tessera", *arguments]
    from tessera.cli.main import main

    sys.exit(main())
