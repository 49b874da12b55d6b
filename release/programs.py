"""Other programs: a run succeeds, or ends this process with one line that says which program failed and how."""

import subprocess
from collections.abc import Mapping
from pathlib import Path


def run(*command: str, folder: Path | None = None, environment: Mapping[str, str] | None = None, hint: str = "") -> str:
    """Runs a program.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        environment: its whole environment; this process's own if None.
        hint: what brings the program to this machine.

    Returns:
        What it writes to standard output.

    Raises:
        SystemExit: it is not there, or it failed.
    """
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)
    except FileNotFoundError:
        raise SystemExit(f"error: {command[0]} is not on this machine; {hint or 'install it'}") from None
    if done.returncode != 0:
        raise SystemExit(f"error: {' '.join(command[:3])} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
