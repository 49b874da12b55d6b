"""The table that ``nvidia-smi`` prints, in the layout of the R550 drivers, with the list of processes of R570.

Columns are those of published outputs of 550.54.15 (A100 with MIG) and 570.86.15 (H200, in a container with a MIG
device). What the simulated card does not tell is N/A at the end of its column.

A card of which a container has MIG devices only shows neither its memory nor its use.
"""

from collections.abc import Sequence
from time import gmtime, strftime

from tessera.nvml.attributes import ComputeMode
from tessera.nvml.interface import DeviceMemory, Nvml
from tessera.nvml.measurements import Quantity
from tessera_lab.kubelet.nvidia_smi.cards import MigDevice, ShownCard
from tessera_lab.kubelet.nvidia_smi.readings import MIB, NONE, busy, cuda, mig_mode, number

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
