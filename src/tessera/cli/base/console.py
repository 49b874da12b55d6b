"""The only place where a command writes to its terminal, so that no text of others gets there raw.

Names, annotations, messages and labels come from tenants and nodes. Here every line passes through
:mod:`tessera.text`: what would clear the screen, forge a line or reorder what is read is shown as an escape. Commands
call these functions instead of ``print`` and ``click.echo``, which the linter refuses elsewhere in this package.
"""

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO

import click

from tessera import text
from tessera.limits.messages import LINE_SHOWN

#: Escape sequences of :mod:`tessera.cli.base.tiles` and of progress lines: a colour, bold, and their end.
_COLOUR = re.compile(r"(\x1b\[(?:1|0|3[0-7]|48;5;[0-9]{1,3}(?:;38;5;[0-9]{1,3})?)m)")


def say(*lines: str, err: bool = False) -> None:
    """Writes lines, each as one line of the terminal, whatever it holds.

    Args:
        lines: without their ends; a newline within one becomes an escape.
        err: to standard error instead of standard output.
    """
    _write((text.one_line(line, LINE_SHOWN) for line in lines), err=err)


def say_coloured(*lines: str) -> None:
    """As :func:`say`; colours and bold of ours go through."""
    _write(
        "".join(piece if at % 2 else text.one_line(piece, LINE_SHOWN) for at, piece in enumerate(_COLOUR.split(line)))
        for line in lines
    )


def say_live(line: str) -> None:
    """Writes a line in place of the terminal's current one, and stays in it; an empty line clears it."""
    sys.stdout.write(f"\r\x1b[K{text.one_line(line, LINE_SHOWN)}")
    sys.stdout.flush()


def say_document(document: str, *, err: bool = False) -> None:
    """Writes a text of several lines that a command made: a manifest, a file for a build, a program's table."""
    _write(text.lines(document.removesuffix("\n").expandtabs(), sys.maxsize - 1), err=err)


def say_json(value: Any) -> None:
    """Writes a value as indented JSON."""
    import msgspec

    say_json_text(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def say_json_text(document: str) -> None:
    """Writes JSON that is encoded already."""
    _write([text.json(document)])


def print_refusal(error: click.ClickException) -> None:
    """Writes why a command did not do what was asked, as kubectl does; a wrong command line says where help is."""
    message = error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        end = "" if message.endswith("?") else ";"
        message = f"{message.rstrip('.')}{end} see '{error.ctx.command_path} --help'"
    if not message.startswith(("error: ", "Error from server")):
        message = f"error: {message}"
    _write(text.lines(message, LINE_SHOWN), err=True)


def shows_colours() -> bool:
    """Whether standard output is a terminal that shows colours, whose user wants some (``NO_COLOR``)."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def tolerate_any_encoding() -> None:
    """Lets characters that a terminal's encoding lacks be written as escapes, instead of failing on them."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # somebody else's stream, or closed
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _write(lines: Iterable[str], *, err: bool = False) -> None:
    stream: TextIO = sys.stderr if err else sys.stdout
    print("\n".join(lines), file=stream, flush=True)
