"""``nvidia-smi`` in a container with simulated cards; exit codes are those of its manual.

``nvidia-smi topo -m`` shows how the cards that are seen are joined, by the rules and in the text of ``tessera topo``.

``--query-gpu`` and a short ``-q`` are served too.

Without options it prints a table in the layout of the R550 drivers, with the list of processes of R570.

Columns are those of published outputs of 550.54.15 (A100 with MIG) and 570.86.15 (H200, in a container with a MIG
device). What the simulated card does not tell is N/A at the end of its column.

A card of which a container has MIG devices only shows neither its memory nor its use.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from time import gmtime, strftime

from tessera.agent.inventory.card_topology import CardLinks, PcieLevel, matrix_of, topology_of
from tessera.explain.topology_text import matrix_text
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import ComputeMode, DeviceMemory, Nvml
from tessera.nvml.measurements import Measurements, Quantity
from tessera_lab.apiserver.interfaces import CommandResult
from tessera_lab.kubelet.nvidia_smi.cards import MigDevice, ShownCard, describe_problem, draw_list, find_cards

MIB = 2**20
#: A value that a simulated card does not have, or that a container does not see.
NONE = "N/A"


def number(read: Measurements, quantity: Quantity) -> str:
    """A measured value without its unit."""
    value = read.values.get(quantity)
    return NONE if value is None else f"{value:.0f}"


def busy(read: Measurements, card: ShownCard) -> str:
    """Per cent of time in which the card computed; none of a card in MIG mode, and of one that is seen in part."""
    value = read.values.get(Quantity.GPU_UTILIZATION)
    return NONE if value is None or card.gpu.mig_enabled or not card.whole else f"{100 * value:.0f}"


def mig_mode(card: ShownCard) -> str:
    """The card's MIG mode."""
    return "Enabled" if card.gpu.mig_enabled else "Disabled" if card.gpu.mig_capable else NONE


def cuda(nvml: Nvml) -> str:
    """The newest version of CUDA that the driver serves."""
    version = nvml.cuda_version()
    return f"{version // 1000}.{version % 1000 // 10}"


_MODES = {ComputeMode.DEFAULT: "Default", ComputeMode.EXCLUSIVE_PROCESS: "E. Process"}


def _line(*cells: str) -> str:
    return f"|{'|'.join(cells)}|"


def _rule(*widths: int, sign: str = "-", ends: str = "+") -> str:
    return f"{ends}{'+'.join(sign * width for width in widths)}{ends}"


_WIDE, _CARD, _MIG = (89,), (41, 24, 22), (18, 34, 11, 23)
_CARD_HEAD = (
    _rule(*_CARD, ends="|"),
    "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
    "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
    "|                                         |                        |               MIG M. |",
    _rule(*_CARD, sign="=", ends="|"),
)
_MIG_HEAD = (
    _rule(*_WIDE),
    _line(" MIG devices:".ljust(89)),
    _rule(*_MIG),
    "| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |",
    "|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |",
    "|                  |                                  |        ECC|                       |",
    _rule(*_MIG, sign="=", ends="|"),
)
#: The first driver with more room for the PID.
_WIDE_PID = 570
_PROCESS_HEADS = (
    "|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |",
    "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
)
_PROCESSES = (
    "|        ID   ID                                                               Usage      |",
    _rule(*_WIDE, sign="=", ends="|"),
    # As in a real container, which has a PID namespace of its own.
    _line("  No running processes found".ljust(89)),
    _rule(*_WIDE),
)


def draw_table(nvml: Nvml, cards: Sequence[ShownCard], now: float) -> str:
    """The table of these cards; ``now`` is in seconds since 1970."""
    driver = nvml.driver_version()
    lines = [
        strftime("%a %b %e %H:%M:%S %Y", gmtime(now)) + " " * 7,
        _rule(*_WIDE),
        f"| NVIDIA-SMI {driver:<23}Driver Version: {driver:<15}CUDA Version: {cuda(nvml):<9}|",
        *_CARD_HEAD,
    ]
    for card in cards:
        lines += (*_card_rows(nvml, card), _rule(*_CARD))
    if any(card.devices for card in cards):
        lines += ("", *_MIG_HEAD)
        for card in cards:
            for index, device in enumerate(card.devices):
                lines += (*_mig_rows(nvml, card, index, device), _rule(*_MIG))
    major = driver.partition(".")[0]
    head = _PROCESS_HEADS[major.isdecimal() and int(major) >= _WIDE_PID]
    lines += (" " * 89, _rule(*_WIDE), _line(" Processes:".ljust(89)), head)
    return "".join(f"{line}\n" for line in (*lines, *_PROCESSES))


def _card_rows(nvml: Nvml, card: ShownCard) -> Sequence[str]:
    gpu, read = card.gpu, nvml.measure(card.gpu.uuid)
    usage = "{:>11} / {:>9} ".format(*_amounts(nvml.memory(gpu.uuid))) if card.whole else f"{NONE:>21}   "
    used = f"{busy(read, card)}%".replace(f"{NONE}%", NONE)
    drawn, most = (
        f"{number(read, each)}W".replace(f"{NONE}W", NONE) for each in (Quantity.POWER, Quantity.POWER_LIMIT)
    )
    heat = f"{number(read, Quantity.TEMPERATURE)}C".replace(f"{NONE}C", NONE)
    errors = "On" if gpu.mig_enabled else "0" if nvml.attributes(gpu.uuid).ecc else NONE
    return (
        _line(f" {card.index:>3}  {gpu.name:<28.28}{NONE:>5}  ", f"{gpu.pci_bus_id:>19} Off ", f"{errors:>21} "),
        _line(
            f" {NONE:<3}{heat:>6}{NONE:>6}{drawn:>16} / {most:>5} ",
            usage,
            f"{used:>8}{_MODES.get(nvml.compute_mode(gpu.uuid), 'Prohibited'):>13} ",
        ),
        _line(" " * 41, " " * 24, f"{mig_mode(card):>21} "),
    )


def _mig_rows(nvml: Nvml, card: ShownCard, index: int, device: MigDevice) -> Sequence[str]:
    has = nvml.mig_attributes(device.compute.mig_uuid)
    ids = f"{card.index:>3}{device.instance.gi_id:>5}{device.compute.ci_id:>4}{index:>4}  "
    engines = f"{has.copy_engines:>3}{has.encoders:>4}{has.decoders:>5}{has.ofa_engines:>5}{has.jpeg_engines:>5} "
    used, total = _amounts(nvml.memory(device.compute.mig_uuid))
    return (
        _line(ids, f"{used:>19} / {total:>8}    ", f"{has.multiprocessors:>3}{'0':>7} ", engines),
        _line(" " * 18, f"{NONE:>32}  ", " " * 11, " " * 23),
    )


def _amounts(memory: DeviceMemory) -> tuple[str, str]:
    """Used and total memory."""
    return f"{memory.used // MIB}MiB", f"{memory.total // MIB}MiB"


class UnknownField(Exception):  # noqa: N818 - the text of the answer
    """A field that --query-gpu does not know."""


def _values(nvml: Nvml, card: ShownCard, count: int, now: float) -> Mapping[str, tuple[str, str]]:
    """Values of the fields of --query-gpu, each with its unit."""
    gpu, read = card.gpu, nvml.measure(card.gpu.uuid)
    memory = nvml.memory(gpu.uuid) if card.whole else None
    size = {
        f"memory.{name}": (NONE if memory is None else str(amount(memory) // MIB), "MiB")
        for name, amount in _AMOUNTS.items()
    }
    return {
        "timestamp": (strftime("%Y/%m/%d %H:%M:%S.000", gmtime(now)), ""),
        "driver_version": (nvml.driver_version(), ""),
        "count": (str(count), ""),
        "index": (str(card.index), ""),
        "name": (gpu.name, ""),
        "uuid": (gpu.uuid, ""),
        "pci.bus_id": (gpu.pci_bus_id, ""),
        "compute_cap": (".".join(map(str, gpu.compute_capability)), ""),
        "mig.mode.current": (mig_mode(card), ""),
        "utilization.gpu": (busy(read, card), "%"),
        "temperature.gpu": (number(read, Quantity.TEMPERATURE), ""),
        "power.draw": (number(read, Quantity.POWER), "W"),
        "power.limit": (number(read, Quantity.POWER_LIMIT), "W"),
        **size,
    }


_AMOUNTS: Mapping[str, Callable[[DeviceMemory], int]] = {
    "total": lambda memory: memory.total,
    "used": lambda memory: memory.used,
    "free": lambda memory: memory.total - memory.used,
}
_ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}


def draw_fields(
    nvml: Nvml, cards: Sequence[ShownCard], now: float, fields: Sequence[str], form: Collection[str]
) -> str:
    """The fields as CSV, a line for each card.

    Raises:
        UnknownField: this nvidia-smi does not know a field.
    """
    lines: list[str] = []
    for card in cards:
        values = _values(nvml, card, len(cards), now)
        unknown = next((each for each in fields if _ALIASES.get(each, each) not in values), None)
        if unknown is not None:
            raise UnknownField(unknown)
        chosen = [(field, *values[_ALIASES.get(field, field)]) for field in fields]
        if not lines and "noheader" not in form:
            lines.append(", ".join(f"{name} [{unit}]" if unit else name for name, _, unit in chosen))
        bare = "nounits" in form
        lines.append(
            ", ".join(value if bare or not unit or NONE in value else f"{value} {unit}" for _, value, unit in chosen)
        )
    return "".join(f"{line}\n" for line in lines)


def draw_report(nvml: Nvml, cards: Sequence[ShownCard], now: float) -> str:
    """The report of these cards; ``now`` is in seconds since 1970."""
    head = {
        "Timestamp": strftime("%a %b %e %H:%M:%S %Y", gmtime(now)),
        "Driver Version": nvml.driver_version(),
        "CUDA Version": cuda(nvml),
    }
    lines = [
        "",
        "==============NVSMI LOG==============",
        "",
        *_entries(head),
        "",
        *_entries({"Attached GPUs": str(len(cards))}),
    ]
    for card in cards:
        lines += [f"GPU {card.gpu.pci_bus_id}", *_entries(_report(nvml, card, len(cards), now), 4), ""]
    return "".join(f"{line}\n" for line in lines)


def _entries(values: Mapping[str, str], indent: int = 0) -> list[str]:
    return [f"{' ' * indent + name:<42}: {value}" for name, value in values.items()]


def _report(nvml: Nvml, card: ShownCard, count: int, now: float) -> Mapping[str, str]:
    values = _values(nvml, card, count, now)
    has = {name: f"{value} {unit}".strip() for name, (value, unit) in values.items()}
    shown = {
        "Product Name": "name",
        "GPU UUID": "uuid",
        "Bus Id": "pci.bus_id",
        "MIG Mode": "mig.mode.current",
        "FB Memory Total": "memory.total",
        "FB Memory Used": "memory.used",
        "FB Memory Free": "memory.free",
        "Utilization Gpu": "utilization.gpu",
        "GPU Current Temp": "temperature.gpu",
        "Power Draw": "power.draw",
    }
    devices = {f"MIG Device {index}": str(each.compute.mig_uuid) for index, each in enumerate(card.devices)}
    return {name: has[field] for name, field in shown.items()} | devices


def draw_topology(nvml: Nvml, cards: Sequence[ShownCard], now: float) -> str:
    """The matrix of these cards, which are numbered anew."""
    del now
    seen = [card.gpu for card in cards]
    links = [CardLinks(uuid=gpu.uuid, pci_bus_id=gpu.pci_bus_id, links=tuple(nvml.nvlinks(gpu.uuid))) for gpu in seen]
    pairs = combinations([gpu.uuid for gpu in seen], 2)
    meetings = {pair: PcieLevel(nvml.common_ancestor(*pair)) for pair in pairs}
    places = {str(gpu.uuid): nvml.place(gpu.uuid) for gpu in seen}
    return matrix_text(matrix_of(topology_of(links, meetings), places, nvml.network_cards(), seen), visible=True)


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
