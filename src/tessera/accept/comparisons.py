"""Compares what NVML says with what ``nvidia-smi`` shows of the same card in the same second.

A card was measured before and after the tool ran. Its value agrees if it is within 5 % of the range between the two
measurements; a number that the tool rounds may also differ by its last digit.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tessera.accept.facts import Facts, SmiCard
from tessera.nvml.interface import GpuInfo
from tessera.nvml.measurements import Quantity

#: The share by which the two may differ.
TOLERANCE = 0.05
_MIB, _MHZ = 1024.0 * 1024.0, 1e6
#: Factors to base units of the units that the tool prints.
_UNITS: Mapping[str, float] = {"": 1.0, "MiB": _MIB, "MHz": _MHZ, "C": 1.0, "W": 1.0, "%": 0.01}
_NUMBER = re.compile(r"(-?\d+)(?:\.(\d+))? ?(\S*)")
_WORDS = {"Yes": 1.0, "No": 0.0}


class _Shown(NamedTuple):
    """A number of the tool in base units, and what its last digit is worth."""

    value: float
    digit: float


class Comparison(NamedTuple):
    """A quantity of one card; ``text`` says both values."""

    card: int
    quantity: str
    agrees: bool
    text: str


def compare_with_smi(facts: Facts) -> Iterator[Comparison]:
    """Every quantity of every card that both NVML and ``nvidia-smi`` have."""
    logs = {_short(each.pci_bus_id): each for each in facts.smi or ()}
    for card in facts.cards:
        log = logs.get(_short(card.pci_bus_id))
        if log is None:
            yield Comparison(card.index, "card", False, "nvidia-smi does not list it")
            continue
        yield from _compare_identity(card, log)
        yield from _compare_quantities(facts, card, log)


def _compare_identity(card: GpuInfo, log: SmiCard) -> Iterator[Comparison]:
    own = {"product_name": card.name, "uuid": card.uuid, "minor_number": str(card.minor)}
    for name, value in own.items():
        if name in log.values:
            shown = log.values[name]
            yield Comparison(card.index, name, shown == value, f"NVML {value}, nvidia-smi {shown}")


def _compare_quantities(facts: Facts, card: GpuInfo, log: SmiCard) -> Iterator[Comparison]:
    measured = measurements(facts, card.index)
    for quantity in Quantity:
        name = quantity.value
        values = [each[name] for each in measured if name in each]
        shown = _shown(log.values.get(name, ""))
        if values and shown is not None:
            text = f"NVML {_range(values)}, nvidia-smi {log.values[name]}"
            yield Comparison(card.index, name, _agrees(values, shown), text)


def measurements(facts: Facts, card: int) -> list[Mapping[str, float]]:
    """The values of a card's measurements, in order, by the names of quantities."""
    found: list[Mapping[str, float]] = []
    for call in facts.of_card("measure", card):
        values = call.value.get("values") if isinstance(call.value, Mapping) else None
        if isinstance(values, Mapping):
            found.append({name: value for name, value in values.items() if isinstance(value, (int, float))})
    return found


def _agrees(values: Sequence[float], shown: _Shown) -> bool:
    room = max(abs(shown.value) * TOLERANCE, shown.digit)
    return min(values) - room <= shown.value <= max(values) + room


def _shown(text: str) -> _Shown | None:
    """The number of an element; ``None`` if it has none, or a unit that is not known."""
    if text in _WORDS:
        return _Shown(_WORDS[text], 0.0)
    match = _NUMBER.fullmatch(text)
    if match is None or match[3] not in _UNITS:
        return None
    factor = _UNITS[match[3]]
    return _Shown(float(f"{match[1]}.{match[2] or 0}") * factor, 10.0 ** -len(match[2] or "") * factor)


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _short(address: str) -> str:
    """A PCI address with the domain of four digits: NVML and the tool write eight, the kernel four."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def pci_address(card: GpuInfo) -> str:
    """The card's address as the kernel writes it."""
    return _short(card.pci_bus_id)
