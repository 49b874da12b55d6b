"""Simulated nodes made of documents of ``tessera accept``: cards as a real machine has them.

A node takes over what describes its cards: models, memory, MIG mode and instances, attributes, NVLinks, limits, counts
of errors and temperatures, and the versions of driver, kernel and system. What follows from processes, such as load,
power and clocks, stays simulated. Names are the lab's own; a document names no machine.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.accept.document import ACCEPT_DOCUMENT, DocumentError, read_document
from tessera.accept.facts import Facts
from tessera.mig.models import model_by_product
from tessera.nvml.interface import CardAttributes, GpuInfo, GpuInstance, NvLink
from tessera.nvml.measurements import Quantity
from tessera.nvml.simulated.machine_state import SimCard, SimComputeInstance, SimGpuInstance, gpu_uuid
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.cluster.options import LabNodeSpec, parse_nodes
from tessera_lab.limits import LAB_CARDS, LAB_NODES

#: Quantities that a simulated card takes over: they do not follow from the processes on it.
_KEPT = (
    Quantity.TEMPERATURE,
    Quantity.MEMORY_TEMPERATURE,
    Quantity.SLOWDOWN_TEMPERATURE,
    Quantity.SHUTDOWN_TEMPERATURE,
    Quantity.MEMORY_TEMPERATURE_LIMIT,
    Quantity.TEMPERATURE_MARGIN,
    Quantity.POWER_LIMIT,
    Quantity.MEMORY_CLOCK,
    Quantity.PCIE_REPLAYS,
    Quantity.ECC_CORRECTED,
    Quantity.ECC_UNCORRECTED,
    Quantity.ROWS_REMAPPED_CORRECTABLE,
    Quantity.ROWS_REMAPPED_UNCORRECTABLE,
    Quantity.ROW_REMAP_PENDING,
    Quantity.ROW_REMAP_FAILED,
)
#: Names of processor architectures in registries, by those of the kernel.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def lab_nodes(nodes: str, documents: Sequence[Path]) -> list[LabNodeSpec]:
    """The nodes of ``--nodes``, which may be empty, and one for each document of ``--nodes-from``.

    Raises:
        ValueError: the specification or a document is not valid; the text says what is wrong.
        OSError: a document cannot be read.
    """
    found = parse_nodes(nodes) if nodes or not documents else []
    found += [_read_node(path, f"node-{number}") for number, path in enumerate(documents, len(found) + 1)]
    if len(found) > LAB_NODES:
        raise ValueError(f"nodes: {len(found)} with those of documents; {int(LAB_NODES)} are simulated")
    return found


def apply_cards(machine: SimulatedMachine, cards: Sequence[SimCard]) -> None:
    """Makes the machine's cards those of a document; nothing without any, or if they were applied before."""
    with machine.change() as state:
        for card, accepted in zip(state.cards, cards, strict=False):
            if card.attributes is None:
                for field in ("mig_enabled", "mig_pending", "instances", "attributes", "nvlinks", "measured", "memory"):
                    setattr(card, field, getattr(msgspec.convert(msgspec.to_builtins(accepted), SimCard), field))


def _read_node(path: Path, name: str) -> LabNodeSpec:
    with path.open("rb") as file:
        facts = read_document(file.read(ACCEPT_DOCUMENT + 1), str(path)).facts
    if not 0 < len(facts.cards) <= LAB_CARDS:
        raise DocumentError(f"{path}: {len(facts.cards)} cards; a node of the lab has 1 to {int(LAB_CARDS)}")
    try:
        cards = tuple(_read_card(facts, card, name) for card in facts.cards)
    except ValueError as error:
        raise DocumentError(f"{path}: {error}") from error
    return LabNodeSpec(
        name=name,
        cards=tuple(card.model for card in cards),
        kernel=facts.host.kernel[:63],
        os_image=facts.host.system[:120],
        architecture=_ARCHITECTURES.get(facts.host.architecture, "amd64"),
        driver=_driver(facts),
        accepted=cards,
    )


def _read_card(facts: Facts, card: GpuInfo, node: str) -> SimCard:
    model = model_by_product(card.name)
    if model is None:
        raise ValueError(f"card {card.index} is {card.name[:60]!r}, which the lab cannot simulate")
    made = SimCard(model=model.short_name, index=card.index, uuid=gpu_uuid(node, card.index))
    made.memory = card.memory_mib if card.memory_mib != model.memory_mib else 0
    made.mig_enabled, made.mig_pending = card.mig_enabled and model.mig_capable, card.mig_pending and model.mig_capable
    made.attributes = msgspec.convert(_answer(facts, "attributes", card.index) or {}, CardAttributes)
    links = msgspec.convert(_answer(facts, "nvlinks", card.index) or [], list[NvLink])
    addresses = {other.pci_bus_id: _address(other.index) for other in facts.cards}
    made.nvlinks = [NvLink(addresses.get(link.remote_pci, link.remote_pci), switch=link.switch) for link in links]
    instances = msgspec.convert(_answer(facts, "instances", card.index) or [], list[GpuInstance])
    made.instances = [_instance(each, made) for each in instances if made.mig_enabled]
    measured = _answer(facts, "measure", card.index)
    values = measured.get("values") if isinstance(measured, Mapping) else {}
    numbers = msgspec.convert(values or {}, dict[str, float])
    made.measured = {each.value: numbers[each.value] for each in _KEPT if each.value in numbers}
    return made


def _instance(instance: GpuInstance, card: SimCard) -> SimGpuInstance:
    """An instance; a profile that the model's table does not have is refused with the table's names."""
    profile = card.geometry.profile(instance.profile)
    if instance.start not in profile.starts:
        raise ValueError(f"card {card.index}: {instance.profile} at slot {instance.start}, which is no start of it")
    slices = profile.compute_slices
    return SimGpuInstance(
        gi_id=instance.gi_id,
        profile=profile.name,
        start=instance.start,
        size=profile.size,
        compute_instances=[
            SimComputeInstance(ci_id=each.ci_id, profile_index=each.profile_index, slices=slices)
            for each in instance.compute_instances
        ],
    )


def _answer(facts: Facts, call: str, card: int) -> object:
    """The last answer to a call on a card; None for none."""
    return next((each.value for each in reversed(facts.of_card(call, card)) if each.value is not None), None)


def _driver(facts: Facts) -> str:
    answers = (each.value for each in facts.calls if each.call == "driver_version")
    version = next((each for each in answers if isinstance(each, str)), "")
    return version if version.partition(".")[0].isdigit() else ""


def _address(index: int) -> str:
    return SimCard(model="A30", index=index, uuid=gpu_uuid("", index)).pci_bus_id
