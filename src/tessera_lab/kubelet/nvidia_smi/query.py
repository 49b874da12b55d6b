"""``nvidia-smi --query-gpu`` and a short ``nvidia-smi -q``."""

from collections.abc import Callable, Collection, Mapping, Sequence
from time import gmtime, strftime

from tessera.nvml.interface import DeviceMemory, Nvml
from tessera.nvml.measurements import Quantity
from tessera_lab.kubelet.nvidia_smi.cards import ShownCard
from tessera_lab.kubelet.nvidia_smi.readings import MIB, NONE, busy, cuda, mig_mode, number


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
