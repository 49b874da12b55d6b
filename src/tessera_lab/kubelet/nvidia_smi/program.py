"""``nvidia-smi`` in a container with simulated cards; exit codes are those of its manual."""

from collections.abc import Callable, Collection, Sequence

from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import Nvml
from tessera_lab.apiserver.interfaces import CommandResult
from tessera_lab.kubelet.nvidia_smi.cards import ShownCard, describe_problem, draw_list, find_cards
from tessera_lab.kubelet.nvidia_smi.query import UnknownField, draw_fields, draw_report
from tessera_lab.kubelet.nvidia_smi.table import draw_table
from tessera_lab.kubelet.nvidia_smi.topology import draw_topology

#: Exit codes: a wrong argument, nothing found, no driver, a card that fell off the bus.
INVALID, NOT_FOUND, NO_DRIVER, LOST = 2, 6, 9, 15
#: What this nvidia-smi knows.
KNOWN = (
    "nvidia-smi",
    "nvidia-smi -L",
    "nvidia-smi -q",
    "nvidia-smi topo -m",
    "nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits]",
)


def run_nvidia_smi(arguments: Sequence[str], nvml: Nvml, visible: Collection[str], now: float) -> CommandResult:
    """Runs ``nvidia-smi`` in a container.

    Args:
        arguments: those after the program's name.
        nvml: the node's cards.
        visible: UUIDs of the cards and MIG devices that the container sees.
        now: seconds since 1970, for its clock.
    """
    draw = _choose(arguments)
    if draw is None:
        text = f"the simulated nvidia-smi does not know {' '.join(arguments)!r}; it knows: {'; '.join(KNOWN)}\n"
        return CommandResult(INVALID, stderr=text.encode())
    try:
        cards = find_cards(nvml, visible)
        if not cards:
            return CommandResult(NOT_FOUND, b"No devices were found\n")
        lost = [each for each in cards if not each.gpu.readable]
        if lost and draw is not _list:
            return CommandResult(LOST, "".join(f"{describe_problem(each.gpu)}\n" for each in lost).encode())
        text = draw(nvml, cards, now)
    except UnknownField as error:
        return CommandResult(INVALID, f'Field "{error}" is not a valid field to query.\n\n'.encode())
    except NvmlError:
        text = (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
            "Make sure that the latest NVIDIA driver is installed and running.\n\n"
        )
        return CommandResult(NO_DRIVER, text.encode())
    return CommandResult(LOST if lost else 0, text.encode())


_FORMS = frozenset({"csv", "noheader", "nounits"})
_Draw = Callable[[Nvml, Sequence[ShownCard], float], str]


def _list(nvml: Nvml, cards: Sequence[ShownCard], now: float) -> str:
    del nvml, now
    return draw_list(cards)


def _choose(arguments: Sequence[str]) -> _Draw | None:
    match arguments:
        case []:
            return draw_table
        case ["-L" | "--list-gpus"]:
            return _list
        case ["topo", "-m" | "--matrix"]:
            return draw_topology
        case ["-q" | "--query"]:
            return draw_report
        case [query, *rest] if query.startswith("--query-gpu="):
            form = [part for each in rest for part in each.removeprefix("--format=").split(",")]
            if all(each.startswith("--format=") for each in rest) and "csv" in form and set(form) <= _FORMS:
                fields = [each.strip() for each in query.partition("=")[2].split(",")]
                return lambda nvml, cards, now: draw_fields(nvml, cards, now, fields, form)
            return None
        case _:
            return None
