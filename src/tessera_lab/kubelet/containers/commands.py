"""The commands that simulated containers interpret, as the container's own and by ``kubectl exec``.

They are ``sleep`` (seconds, suffixes ``smhd``, ``infinity``), ``exit``, the programs of :data:`TOOLS`, which print
something and end, and ``sh -c`` / ``bash -c`` scripts made of these with ``;``, ``&&``, ``||`` and newlines. As a
container's own command a loop runs forever, other tools end at once, and any other program counts as a server and runs
forever too, as does an image whose own command is unknown; the container's log says that it is simulated. ``exec``
refuses all of these: it runs what it can act on and ends at once.

The programs know the container's variables and the cards that it sees. It holds no files but the devices below
``/dev``.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from signal import Signals

import msgspec

from tessera.nvml.interface import Nvml
from tessera_lab.apiserver.interfaces import CommandResult
from tessera_lab.kubelet.nvidia_smi.cards import find_cards
from tessera_lab.kubelet.nvidia_smi.program import KNOWN, run_nvidia_smi

#: Exit codes of a shell: a command that cannot be run, and one that does not exist.
CANNOT_RUN, NO_COMMAND = 126, 127
#: The commands, for people.
TOOLS = ("echo WORDS", "env", "hostname", "kill 1", "ls /dev", "printenv [NAME]", "true", "false", *KNOWN)

#: Environment variables that list a container's GPUs.
DEVICE_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
#: Devices that every container has (runtime-spec, config-linux.md, default devices).
_DEVICES = ("full", "null", "ptmx", "random", "tty", "urandom", "zero")
_NO_GPU = b"nvidia-smi: not found: NVIDIA's runtime puts it only into containers that hold a GPU; this one holds none\n"
_DRIVER = ("nvidia-uvm", "nvidia-uvm-tools", "nvidiactl")
#: Programs that end at once as a container's own command, though the lab does not know what they print.
SHORT_TOOLS = frozenset({"cat", "date", "id", "ls", "mkdir", "ps", "pwd", "set", "test", "touch"})
#: Images whose own command ends by itself, by a part of their name.
SHORT_IMAGES = ("vectoradd", "hello-world", "cuda-sample")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHELLS = frozenset({"sh", "bash", "ash", "dash"})
_LOOP = re.compile(r"\b(while|until|for)\b")
_PIECES = re.compile(r"(&&|\|\||;|\n)")
_VARIABLE = re.compile(r"('[^']*')|\$(?:(\w+)|\{(\w+)\})")
#: What a shell knows and this one does not: pipes, redirections, background, substitutions.
_UNKNOWN = re.compile(r"[|<>&`]|\$\(")


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a command finds in a container.

    Attributes:
        env: its variables.
        hostname: the name of its pod.
        nvml: the cards of its node; None for a node without.
        now: seconds since 1970.
    """

    env: Mapping[str, str]
    hostname: str
    nvml: Nvml | None
    now: float


def visible_devices(env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the UUIDs of cards and MIG devices in a container's environment."""
    for name in DEVICE_VARIABLES:
        uuids = tuple(each for each in env.get(name, "").split(",") if each.startswith(("GPU-", "MIG-")))
        if uuids:
            return uuids
    return ()


def run_tool(argv: Sequence[str], around: Surroundings) -> CommandResult | None:
    """Runs a program in a container; None for one that containers of the lab do not have."""
    name, arguments = argv[0].rsplit("/", 1)[-1], argv[1:]
    match name, arguments:
        case "true" | ":", _:
            return CommandResult(0)
        case "false", _:
            return CommandResult(1)
        case "echo", _:
            return CommandResult(0, f"{' '.join(arguments)}\n".encode())
        case "hostname", []:
            return CommandResult(0, f"{around.hostname}\n".encode())
        case "env" | "printenv", []:
            variables = {"HOSTNAME": around.hostname, **around.env}
            return CommandResult(0, "".join(f"{key}={value}\n" for key, value in sorted(variables.items())).encode())
        case "printenv", [key] if not key.startswith("-"):
            value = around.env.get(key)
            return CommandResult(1) if value is None else CommandResult(0, f"{value}\n".encode())
        case "ls", [path] if path.rstrip("/") == "/dev" or path.startswith("/dev/"):
            return _list_devices(path, around)
        case "nvidia-smi", _:
            return _nvidia_smi(arguments, around)
        case _:
            return None


def _list_devices(path: str, around: Surroundings) -> CommandResult:
    names = list(_DEVICES)
    devices = visible_devices(around.env)
    if devices and around.nvml is not None:
        cards = find_cards(around.nvml, devices)
        names += [*_DRIVER, *(f"nvidia{card.gpu.minor}" for card in cards)]
        names += ["nvidia-caps"] if any(card.devices for card in cards) else []
    if path.rstrip("/") == "/dev":
        return CommandResult(0, "".join(f"{name}\n" for name in sorted(names)).encode())
    found = [f"/dev/{name}" for name in sorted(names) if fnmatchcase(f"/dev/{name}", path)]
    if not found:
        return CommandResult(2, stderr=f"ls: cannot access '{path}': No such file or directory\n".encode())
    return CommandResult(0, "".join(f"{name}\n" for name in found).encode())


def _nvidia_smi(arguments: Sequence[str], around: Surroundings) -> CommandResult:
    devices = visible_devices(around.env)
    if not devices or around.nvml is None:
        return CommandResult(NO_COMMAND, stderr=_NO_GPU)
    return run_nvidia_smi(arguments, around.nvml, devices, around.now)


class CommandBehaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Behaviour of a command.

    Attributes:
        seconds: how long it runs; None for ever.
        exit_code: its exit code when it ends by itself.
        output: the lines it prints.
        errors: the lines it prints to its standard error.
        unknown: why it is none that the lab can act on; empty if it can.
    """

    seconds: float | None
    exit_code: int = 0
    output: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    unknown: str = ""


def parse_command(image: str, argv: Sequence[str], around: Surroundings) -> CommandBehaviour:
    """Returns the behaviour of a container with this command and these arguments.

    Args:
        image: the image's name, which decides if there is no command.
        argv: command and arguments after ``$(VAR)`` was expanded.
        around: what the command finds in the container.
    """
    if not argv:
        if any(part in image for part in SHORT_IMAGES):
            return CommandBehaviour(seconds=1.0, output=(f"simulated: image {image} ends after 1 s",))
        return CommandBehaviour(seconds=None, output=(f"simulated: image {image} runs until it is stopped",))
    script = _script_of(argv)
    return _parse_simple(argv, around, last=True) if script is None else _parse_script(script, around)


def signal_of(argv: Sequence[str]) -> int:
    """The signal that a command sends to its container's first process, as ``kill 1`` does; 0 if it sends none."""
    if argv[0].rsplit("/", 1)[-1] != "kill" or argv[-1] != "1" or len(argv) > 3:
        return 0
    name = argv[1].removeprefix("-").removeprefix("SIG") if len(argv) == 3 else "TERM"
    known = {each.name.removeprefix("SIG"): each.value for each in (Signals.SIGTERM, Signals.SIGINT, Signals.SIGKILL)}
    return known.get(name) or (int(name) if name in {str(each) for each in known.values()} else 0)


def run_at_once(argv: Sequence[str], around: Surroundings) -> CommandResult:
    """Runs a command of ``kubectl exec``; one that the lab cannot act on ends with 126 or 127 and says what it can."""
    does = parse_command("", argv, around)
    if does.unknown or does.seconds != 0:
        why = does.unknown or f"{shlex.join(argv)} does not end at once"
        known = f"exec in the lab knows: {'; '.join(TOOLS)}; sh -c with these, ;, && and ||"
        code = NO_COMMAND if does.unknown and _script_of(argv) is None else CANNOT_RUN
        return CommandResult(code, stderr=f"simulated: {why}; {known}\n".encode())
    mark = f"simulated: pod {around.hostname} has no processes; the lab answers from its simulated cards\n"
    return CommandResult(does.exit_code, _text(does.output), mark.encode() + _text(does.errors))


def _text(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _script_of(argv: Sequence[str]) -> str | None:
    """The script of ``sh -c``; None for another command."""
    shell = argv[0].rsplit("/", 1)[-1] in _SHELLS
    return argv[2] if shell and len(argv) > 2 and argv[1].startswith("-") and argv[1].endswith("c") else None


def _parse_simple(argv: Sequence[str], around: Surroundings, *, last: bool) -> CommandBehaviour:
    name, rest = argv[0].rsplit("/", 1)[-1], argv[1:]
    match name:
        case "sleep":
            return _parse_sleep(rest)
        case "exit":
            return CommandBehaviour(seconds=0, exit_code=int(rest[0]) % 256 if rest and rest[0].isdecimal() else 0)
        case "exec" if rest:
            return _parse_simple(rest, around, last=True)
        case _:
            ran = run_tool(argv, around)
    if ran is not None:
        lines, errors = (tuple(each.decode().splitlines()) for each in (ran.stdout, ran.stderr))
        return CommandBehaviour(seconds=0, exit_code=ran.code, output=lines, errors=errors)
    why, shown = f"no program {name} with these arguments", shlex.join(argv)
    if name in SHORT_TOOLS or not last:
        return CommandBehaviour(seconds=0, output=(f"simulated: {shown}",), unknown=why)
    return CommandBehaviour(seconds=None, output=(f"simulated: {shown} runs until it is stopped",), unknown=why)


def _parse_sleep(arguments: Sequence[str]) -> CommandBehaviour:
    total = 0.0
    for text in arguments:
        if text == "infinity":
            return CommandBehaviour(seconds=None)
        unit = _UNITS.get(text[-1:], 0)
        try:
            total += float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            return CommandBehaviour(seconds=0, exit_code=1, errors=(f"sleep: invalid time interval '{text}'",))
    if not arguments:
        return CommandBehaviour(seconds=0, exit_code=1, errors=("sleep: missing operand",))
    return CommandBehaviour(seconds=total)


def _parse_script(text: str, around: Surroundings) -> CommandBehaviour:
    if _LOOP.search(text):
        line = "simulated: a script with a loop runs until it is stopped"
        return CommandBehaviour(seconds=None, output=(line,), unknown="a script with a loop")
    ran = CommandBehaviour(seconds=0)
    pieces = [piece.strip(" \t") for piece in _PIECES.split(text)]
    for index in range(0, len(pieces), 2):
        joint = pieces[index - 1] if index else ";"
        if not pieces[index] or (joint == "&&" and ran.exit_code) or (joint == "||" and not ran.exit_code):
            continue
        try:
            words = shlex.split(_expand(pieces[index], around.env), comments=True)
        except ValueError as error:
            return _joined(ran, CommandBehaviour(seconds=0, exit_code=2, errors=(f"sh: syntax error: {error}",)))
        if not words:
            continue
        step = _parse_simple(words, around, last=not any(pieces[index + 1 :]))
        if unknown := _UNKNOWN.search(pieces[index]):
            step = msgspec.structs.replace(step, unknown=f"no {unknown[0]} in scripts")
        ran = _joined(ran, step)
        if ran.seconds is None or words[0] == "exit":
            break
    return ran


def _joined(first: CommandBehaviour, second: CommandBehaviour) -> CommandBehaviour:
    """Behaviour of two commands that run one after the other; the first one ends."""
    return CommandBehaviour(
        seconds=None if second.seconds is None else (first.seconds or 0) + second.seconds,
        exit_code=second.exit_code,
        output=first.output + second.output,
        errors=first.errors + second.errors,
        unknown=first.unknown or second.unknown,
    )


def _expand(text: str, env: Mapping[str, str]) -> str:
    """Replaces variables outside single quotes."""
    return _VARIABLE.sub(lambda found: found[1] or shlex.quote(env.get(found[2] or found[3], "")), text)
