"""Recording rules: one series for each quantity, whoever exports it and in whichever dialect.

Rules:

- A quantity comes from Tessera's own series. If a card has none, it comes from dcgm-exporter's names of 4.9, then from
  its names up to 4.8. All are in base units, with the labels ``node`` and ``gpu`` (the card's UUID). Of a card with
  MIG devices dcgm-exporter shows only these, each with the values of the card.
- The activity of a card in MIG mode is the sum over its MIG devices, each weighed by its part of the card. Two compute
  instances in one GPU instance count twice, since GPM measures the GPU instance.
- A quantity that nobody measures has no series. No rule makes a zero of it.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tessera.agent.base.settings import MetricNames
from tessera.agent.monitoring.families import (
    COUNTER,
    GPU_FAMILIES,
    MIG_FAMILIES,
    OF_INSTANCES,
    Family,
    dcgm_families,
)
from tessera.nvml.measurements import Quantity

#: Window of rates.
WINDOW = "5m"
#: Labels of a card, and of a MIG device. ``device`` is the UUID, or dcgm-exporter's ``GPU_I_ID``.
CARD = "node, gpu"
DEVICE = "node, gpu, device, profile"


class Recording(msgspec.Struct, frozen=True):
    """A recording rule: the name of its series, what it means, and its expression."""

    name: str
    meaning: str
    expr: str


#: Series of a card by quantity: its name and meaning.
CARDS: Mapping[Quantity, tuple[str, str]] = {
    Quantity.GPU_UTILIZATION: ("utilization:ratio", "share of time in which a kernel ran"),
    Quantity.MEMORY_UTILIZATION: ("memory_utilization:ratio", "share of time in which memory was read or written"),
    Quantity.MEMORY_TOTAL: ("memory_size:bytes", "memory"),
    Quantity.MEMORY_USED: ("memory_used:bytes", "used memory"),
    Quantity.TEMPERATURE: ("temperature:celsius", "temperature of the GPU"),
    Quantity.MEMORY_TEMPERATURE: ("memory_temperature:celsius", "temperature of the memory"),
    Quantity.SLOWDOWN_TEMPERATURE: ("slowdown_temperature:celsius", "temperature at which the card slows itself down"),
    Quantity.MEMORY_TEMPERATURE_LIMIT: ("memory_temperature_limit:celsius", "highest temperature of the memory"),
    Quantity.TEMPERATURE_MARGIN: ("temperature_margin:celsius", "degrees left in normal operation"),
    Quantity.POWER: ("power:watts", "power draw"),
    Quantity.SM_CLOCK: ("sm_clock:hertz", "clock of the SMs"),
    Quantity.MEMORY_CLOCK: ("memory_clock:hertz", "clock of the memory"),
    Quantity.ENERGY: (f"energy_joules:rate{WINDOW}", "energy per second"),
    Quantity.THROTTLED_POWER: (f"throttled_power:rate{WINDOW}", "share of time slowed down by the power limit"),
    Quantity.THROTTLED_THERMAL: (f"throttled_thermal:rate{WINDOW}", "share of time slowed down by heat"),
}
#: Series of a MIG device by quantity.
DEVICES: Mapping[Quantity, tuple[str, str]] = {
    Quantity.MEMORY_TOTAL: ("memory_size:bytes", "memory"),
    Quantity.MEMORY_USED: ("memory_used:bytes", "used memory"),
}
#: Activities, which a MIG device has itself, and of which a card in MIG mode has the weighed sum.
ACTIVITIES: Mapping[Quantity, tuple[str, str]] = {
    Quantity.ENGINE_ACTIVE: ("busy:ratio", "share of time in which it computed"),
    Quantity.SM_ACTIVE: ("sm:ratio", "share of cycles in which an SM had work"),
    Quantity.TENSOR_ACTIVE: ("tensor:ratio", "share of cycles in which tensor cores worked"),
    Quantity.DRAM_ACTIVE: ("dram:ratio", "share of cycles in which memory sent or received data"),
}


def of_card(quantity: Quantity) -> str:
    """Returns the expression of a card's quantity in the dialects, in base units."""
    selector = '{GPU_I_ID=""}' if quantity in OF_INSTANCES else ""
    return _alternatives(GPU_FAMILIES[quantity], quantity, CARD, selector)


def of_device(quantity: Quantity) -> str:
    """Returns the expression of a MIG device's quantity in the dialects, in base units."""
    return _alternatives(MIG_FAMILIES[quantity], quantity, DEVICE, '{GPU_I_ID!=""}')


def _alternatives(own: Family, quantity: Quantity, labels: str, selector: str) -> str:
    dialects = (*dcgm_families(quantity, MetricNames.DCGM_49), *dcgm_families(quantity, MetricNames.DCGM_48))
    others = (_with_own_labels(_value(each, selector), labels) for each in dict.fromkeys(dialects))
    return _first_of(f"max by ({labels}) ({_value(own)})", *(f"max by ({labels}) ({each})" for each in others))


def _first_of(*expressions: str) -> str:
    """The first expression; for cards that it does not have, the next one."""
    return "\nor on (gpu)\n".join(expressions)


def _value(family: Family, selector: str = "") -> str:
    series = f"{family.name}{selector}"
    value = f"rate({series}[{WINDOW}])" if family.type == COUNTER else series
    if family.factor == 1.0:
        return value
    return f"{value} / {family.factor:.12g}" if family.factor > 1 else f"{value} * {1 / family.factor:.12g}"


def _with_own_labels(value: str, labels: str) -> str:
    """Gives a series of dcgm-exporter the labels of Tessera's series."""
    sources = {"node": ("Hostname", "hostname"), "gpu": ("UUID",), "device": ("GPU_I_ID",)}
    sources["profile"] = ("GPU_I_PROFILE",)
    for label in labels.split(", "):
        for source in sources[label]:
            value = f'label_replace({value}, "{label}", "$1", "{source}", "(.+)")'
    return value


def _cards() -> Iterator[Recording]:
    for quantity, (name, meaning) in CARDS.items():
        yield Recording(f"tessera:gpu_{name}", f"{meaning}, of a card", of_card(quantity))
    yield Recording(
        "tessera:gpu_memory_used:ratio",
        "used part of a card's memory",
        "tessera:gpu_memory_used:bytes / tessera:gpu_memory_size:bytes",
    )


def _devices() -> Iterator[Recording]:
    for quantity, (name, meaning) in (*DEVICES.items(), *ACTIVITIES.items()):
        yield Recording(f"tessera:mig_{name}", f"{meaning}, of a MIG device", of_device(quantity))
    yield Recording(
        "tessera:mig_memory_used:ratio",
        "used part of a MIG device's memory",
        "tessera:mig_memory_used:bytes / tessera:mig_memory_size:bytes",
    )
    # The driver keeps a little of each instance's memory, so the quotient is a little below eighths or quarters.
    yield Recording(
        "tessera:mig_size:ratio",
        "part of its card that a MIG device is, in eighths",
        "round(tessera:mig_memory_size:bytes / on (gpu) group_left () "
        "max by (gpu) (tessera:gpu_memory_size:bytes), 0.125)",
    )


def _activities() -> Iterator[Recording]:
    for quantity, (name, meaning) in ACTIVITIES.items():
        weighed = f"sum by ({CARD}) (tessera:mig_{name} * tessera:mig_size:ratio)"
        # Before Hopper nothing but the utilization is measured.
        fallback = ("tessera:gpu_utilization:ratio",) if quantity is Quantity.ENGINE_ACTIVE else ()
        yield Recording(
            f"tessera:gpu_{name}",
            f"{meaning}, of a card; in MIG mode the sum of its MIG devices by their size",
            _first_of(weighed, of_card(quantity), *fallback),
        )


#: On a shared device ``tessera_pod_gpu_busy_ratio`` is a part of the device, on others it is about the whole device.
_USE = """sum by (namespace) (
  tessera_pod_gpu_busy_ratio{kind=~"whole|mig|slice"} * tessera_pod_gpu_share_ratio
  or tessera_pod_gpu_busy_ratio{kind=~"time-slicing|mps", device=~"GPU-.*"}
  or tessera_pod_gpu_busy_ratio{kind=~"time-slicing|mps", device=~"MIG-.*"}
    * on (gpu, device) group_left () max by (gpu, device) (tessera:mig_size:ratio)
)"""

_FLEET = (
    Recording(
        "tessera:namespace_gpu_share:sum",
        "cards that the pods of a namespace hold, in parts of cards",
        "sum by (namespace) (tessera_pod_gpu_share_ratio)",
    ),
    Recording("tessera:namespace_gpu_busy:sum", "cards that compute for a namespace, in parts of cards", _USE),
    Recording(
        f"tessera:namespace_gpu_wasted:rate{WINDOW}",
        "cards that a namespace holds and does not use, in parts of cards",
        f"sum by (namespace) (rate(tessera_pod_gpu_wasted_seconds_total[{WINDOW}]))",
    ),
    Recording(
        "tessera:slots_held:ratio",
        "held part of the memory slots of cards that are cut on demand, by model",
        'sum by (model) (tessera_slots{state="held"}) / (sum by (model) (tessera_slots) > 0)',
    ),
)

#: Groups of rules by name. Prometheus evaluates the rules of a group one after another.
RECORDINGS: Mapping[str, Sequence[Recording]] = {
    "tessera-devices": (*_cards(), *_devices(), *_activities()),
    "tessera-fleet": _FLEET,
}
