r"""Interprets the command of a simulated container: how long it runs, its exit code, and its output.

Supported: ``sleep`` (seconds, suffixes ``smhd``, ``infinity``), ``true``, ``false``, ``exit``, ``echo``, tools that end
at once, and ``sh -c`` / ``bash -c`` scripts made of these with ``;``, ``&&``, ``||`` and newlines. A loop runs for
ever. Any other program counts as a server and runs for ever too, as does an image whose own command is unknown; the
container's log says that it is simulated.
"""

import re
import shlex
from collections.abc import Sequence

import msgspec

#: Programs that print something and end.
SHORT_TOOLS = frozenset(
    {
        "cat",
        "date",
        "env",
        "hostname",
        "id",
        "ls",
        "mkdir",
        "nvidia-smi",
        "printenv",
        "ps",
        "pwd",
        "set",
        "test",
        "touch",
    }
)

#: Images whose own command ends by itself, by a part of their name.
SHORT_IMAGES = ("vectoradd", "hello-world", "cuda-sample")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHELLS = frozenset({"sh", "bash", "ash", "dash"})
_LOOP = re.compile(r"\b(while|until|for)\b")
_PIECES = re.compile(r"(&&|\|\||;|\n)")


class CommandBehaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Behaviour of a command.

    Attributes:
        seconds: how long it runs; None for ever.
        exit_code: its exit code when it ends by itself.
        output: the lines it prints.
    """

    seconds: float | None
    exit_code: int = 0
    output: tuple[str, ...] = ()


def parse_command(image: str, argv: Sequence[str]) -> CommandBehaviour:
    """Returns the behaviour of a container with this command and these arguments.

    Args:
        image: the image's name, which decides if there is no command.
        argv: command and arguments after ``$(VAR)`` was expanded.
    """
    if not argv:
        if any(part in image for part in SHORT_IMAGES):
            return CommandBehaviour(seconds=1.0, output=(f"simulated: image {image} ends after 1 s",))
        return CommandBehaviour(seconds=None, output=(f"simulated: image {image} runs until it is stopped",))
    name = argv[0].rsplit("/", 1)[-1]
    if name in _SHELLS and len(argv) > 2 and argv[1].startswith("-") and argv[1].endswith("c"):
        return _parse_script(argv[2])
    return _parse_simple(argv, last=True)


def _parse_simple(argv: Sequence[str], *, last: bool) -> CommandBehaviour:
    name, rest = argv[0].rsplit("/", 1)[-1], argv[1:]
    match name:
        case "sleep":
            return _parse_sleep(rest)
        case "true" | ":":
            return CommandBehaviour(seconds=0)
        case "false":
            return CommandBehaviour(seconds=0, exit_code=1)
        case "exit":
            return CommandBehaviour(seconds=0, exit_code=int(rest[0]) % 256 if rest and rest[0].isdigit() else 0)
        case "echo":
            return CommandBehaviour(seconds=0, output=(" ".join(rest),))
        case "exec" if rest:
            return _parse_simple(rest, last=True)
        case _ if name in SHORT_TOOLS or not last:
            return CommandBehaviour(seconds=0, output=(f"simulated: {shlex.join(argv)}",))
        case _:
            return CommandBehaviour(seconds=None, output=(f"simulated: {shlex.join(argv)} runs until it is stopped",))


def _parse_sleep(arguments: Sequence[str]) -> CommandBehaviour:
    total = 0.0
    for text in arguments:
        if text == "infinity":
            return CommandBehaviour(seconds=None)
        unit = _UNITS.get(text[-1:], 0)
        try:
            total += float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            return CommandBehaviour(seconds=0, exit_code=1, output=(f"sleep: invalid time interval '{text}'",))
    if not arguments:
        return CommandBehaviour(seconds=0, exit_code=1, output=("sleep: missing operand",))
    return CommandBehaviour(seconds=total)


def _parse_script(text: str) -> CommandBehaviour:
    if _LOOP.search(text):
        return CommandBehaviour(seconds=None, output=("simulated: a script with a loop runs until it is stopped",))
    seconds, code = 0.0, 0
    output: list[str] = []
    pieces = [piece.strip(" \t") for piece in _PIECES.split(text)]
    for index in range(0, len(pieces), 2):
        joint = pieces[index - 1] if index else ";"
        if not pieces[index] or (joint == "&&" and code) or (joint == "||" and not code):
            continue
        try:
            words = shlex.split(pieces[index], comments=True)
        except ValueError as error:
            return CommandBehaviour(seconds=seconds, exit_code=2, output=(*output, f"sh: syntax error: {error}"))
        if not words:
            continue
        step = _parse_simple(words, last=not any(pieces[index + 1 :]))
        output += step.output
        if step.seconds is None:
            return CommandBehaviour(seconds=None, output=tuple(output))
        seconds, code = seconds + step.seconds, step.exit_code
        if words[0] == "exit":
            break
    return CommandBehaviour(seconds=seconds, exit_code=code, output=tuple(output))
