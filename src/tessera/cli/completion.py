"""``tessera completion``: the scripts by which shells and kubectl complete commands, options and their values.

click has the scripts of bash, zsh and fish. kubectl completes a plugin's arguments by the program
``kubectl_complete-NAME``, which answers as cobra does: a line for each word, then a colon and a directive.

``tessera completion man`` prints the manual page ``tessera(1)``, made from the help of every command.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import PurePath
from typing import ClassVar, cast

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, get_completion_class

from tessera import __version__
from tessera.cli.base.console import say


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


#: The variable by which the scripts ask the program for words.
VARIABLE = "_TESSERA_COMPLETE"
#: cobra's ShellCompDirective: which words the shell adds by itself.
_FILES, _NO_FILES, _FOLDERS = 0, 4, 16

_KUBECTL = """\
#!/bin/sh
# kubectl runs this program when you press the Tab key after "kubectl tessera". Its name must be
# kubectl_complete-tessera, it must be executable, and its folder must be in PATH.
%(complete_var)s=kubectl_complete exec kubectl-tessera "$@"
"""


@add_completion_class
class KubectlComplete(ShellComplete):
    """Completion of ``kubectl tessera`` by kubectl, in every shell that kubectl completes."""

    name: ClassVar[str] = "kubectl"
    source_template: ClassVar[str] = _KUBECTL

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the last, which are complete, and the last, which may be empty."""
        *words, last = sys.argv[1:] or [""]
        return words, last

    def complete(self) -> str:
        """The lines for kubectl."""
        found = self.get_completions(*self.get_completion_args())
        kinds = {item.type for item in found}
        directive = _FILES if "file" in kinds else _FOLDERS if "dir" in kinds else _NO_FILES
        lines = [self.format_completion(item) for item in found if item.type == "plain"]
        return "\n".join([*lines, f":{directive}"])

    def format_completion(self, item: CompletionItem[str]) -> str:
        """A word, and after a tab what it means."""
        return f"{item.value}\t{item.help}" if item.help else str(item.value)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish", "kubectl", "man"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes this program's commands and options in a shell; or the manual page.

    "kubectl" prints a program for kubectl, which then completes "kubectl tessera" in each shell whose completion of
    kubectl is set up.

    \b
    Examples:
      source <(tessera completion bash)                     # bash 4.4 or newer; put it into ~/.bashrc
      source <(tessera completion zsh)                      # after compinit in ~/.zshrc
      tessera completion fish > ~/.config/fish/completions/tessera.fish
      tessera completion man > ~/.local/share/man/man1/tessera.1
      kubectl tessera completion kubectl > ~/.local/bin/kubectl_complete-tessera
      chmod +x ~/.local/bin/kubectl_complete-tessera        # a folder in PATH
    """
    if shell == "man":
        say(*man_page(cast(click.Group, ctx.find_root().command)))
        return
    program = "kubectl-tessera" if PurePath(sys.argv[0]).name.startswith("kubectl-") else "tessera"
    chosen = get_completion_class(shell)
    assert chosen, f"click has no completion of {shell}"
    # Not source(), which starts a bash to see its version.
    script = chosen(ctx.find_root().command, {}, program, VARIABLE)
    say(*(script.source_template % script.source_vars()).splitlines())
