"""Reads a file that the command line names: from the disk, or from standard input for ``-``."""

import sys
from pathlib import Path

from tessera.cli.base.connection import CommandError


def read_text(file: Path) -> str:
    """The text of the file; ``-`` is standard input.

    Raises:
        CommandError: it is not UTF-8.
    """
    try:
        return _standard_input() if str(file) == "-" else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        byte, at = error.object[error.start], error.start
        text = f"byte {at} is {byte:#04x}, which is not UTF-8 there; save the file as text in UTF-8"
        raise CommandError(f"error: {display_name(file)}: {text}") from None


def _standard_input() -> str:
    """All of it as UTF-8, whatever the terminal's encoding is."""
    binary = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read() if binary is None else binary.read().decode("utf-8")


def display_name(file: Path) -> str:
    """The file's name in messages."""
    return "standard input" if str(file) == "-" else str(file)
