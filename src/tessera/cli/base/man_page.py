"""The manual page ``tessera(1)``, made from the help of every command."""

import inspect
import re
from collections.abc import Iterator

import click

from tessera import __version__


def man_page(group: click.Group) -> Iterator[str]:
    """Yields the lines of the page, in roff.

    Args:
        group: the command line.
    """
    yield f'.TH TESSERA 1 "" "tessera {__version__}" "User Commands"'
    yield ".SH NAME"
    yield "tessera \\- NVIDIA GPUs for pods of Kubernetes: whole, shared, or as MIG slices"
    yield ".SH SYNOPSIS"
    yield "\\fBtessera\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]"
    yield ".SH DESCRIPTION"
    yield from _text(group.help or "")
    yield from _text(group.epilog or "")
    yield ".SH COMMANDS"
    yield from _commands(group, click.Context(group, info_name="tessera"))


def _commands(group: click.Group, above: click.Context) -> Iterator[str]:
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        if command is None:
            continue
        context = click.Context(command, info_name=name, parent=above)
        yield f".SS {_escape(context.command_path)}"
        yield _escape(" ".join(command.collect_usage_pieces(context)))
        yield ".PP"
        yield from _text(command.help or "")
        for each in command.params:
            if (record := each.get_help_record(context)) is not None:
                yield ".TP"
                yield f"\\fB{_escape(record[0])}\\fR"
                if record[1]:
                    yield _escape(" ".join(record[1].split()))
        if isinstance(command, click.Group):
            yield from _commands(command, context)


def _text(text: str) -> Iterator[str]:
    """Paragraphs; those that click's ``\\b`` marks keep their lines."""
    for paragraph in re.split(r"\n{2,}|\n(?=\x08\n)", inspect.cleandoc(text)):
        lines = paragraph.rstrip().split("\n")
        kept = lines[0].strip() == "\b"
        yield ".nf" if kept else ".PP"
        yield from map(_escape, lines[1:] if kept else lines)
        if kept:
            yield ".fi"


def _escape(line: str) -> str:
    """A line that roff takes for text."""
    escaped = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
