"""Reads all facts of one machine, in the order that lets values be compared: NVML, ``nvidia-smi``, NVML again."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from tessera.accept.facts import CallResult, Facts, NodeFacts
from tessera.accept.machine_files import FactError, MachineFiles, host_facts
from tessera.accept.nvml_calls import CallReader
from tessera.clock import Clock
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import Nvml

T = TypeVar("T")

#: Why a simulated machine lacks the facts of files and tools.
_SIMULATED = "the cards are simulated"
#: Calls that are not made on simulated cards, and why.
_NOT_SIMULATED = {"wait_event": "on simulated cards the event would be taken from the agent"}


def read_facts(
    nvml: Nvml,
    clock: Clock,
    *,
    files: MachineFiles | None,
    node: NodeFacts | None = None,
    node_absent: str = "no node is named, so no cluster was asked",
) -> Facts:
    """Reads a machine; nothing on it is changed.

    Args:
        nvml: its cards, open.
        clock: the time.
        files: where the machine's files are; ``None`` for simulated cards, which have none.
        node: what the cluster says of the node.
        node_absent: why there is no ``node``.

    Raises:
        NvmlError: the cards cannot even be listed.
    """
    taken = clock.now()
    reader = CallReader(nvml, clock.monotonic, skip={} if files is not None else _NOT_SIMULATED)
    cards = nvml.devices()
    calls: list[CallResult] = list(reader.read_all(cards))
    facts = _Reading({} if node is not None else {"node": node_absent})
    smi = facts.read("smi", files, lambda each: each.smi_log())
    calls += [reader.read("measure", card) for card in cards if card.readable]
    return Facts(
        simulated=files is None,
        taken=taken,
        host=host_facts(),
        cards=tuple(cards),
        calls=tuple(calls),
        pci=facts.read("pci", files, lambda each: each.pci_functions()),
        device_minors=facts.read("device_minors", files, lambda each: each.device_minors()),
        driver=facts.read("driver", files, lambda each: each.driver_versions(_driver_version(nvml))),
        nvlink_off=files is not None and files.nvlink_off(),
        smi=smi,
        node=node,
        absent=facts.absent,
    )


class _Reading:
    """Reads facts, and keeps why one is absent."""

    def __init__(self, absent: Mapping[str, str]) -> None:
        self.absent = dict(absent)

    def read(self, name: str, files: MachineFiles | None, read: Callable[[MachineFiles], T]) -> T | None:
        if files is None:
            self.absent[name] = _SIMULATED
            return None
        try:
            return read(files)
        except FactError as error:
            self.absent[name] = str(error)
            return None


def _driver_version(nvml: Nvml) -> str:
    with suppress(NvmlError):
        return nvml.driver_version()
    return ""
