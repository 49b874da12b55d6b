"""The cards and pods of a running lab by the names that users know, for commands and scenarios.

Every problem is a ``ValueError`` that names what exists.
"""

import re
from collections.abc import Iterator, Mapping

from tessera.nvml.errors import XID_OFF_THE_BUS, NvmlError
from tessera.text import count_noun, list_names, one_line
from tessera_lab.activity.card_faults import FAULTS, mend_card, refuse_calls, report_xid
from tessera_lab.kubelet.containers.gpu_processes import GpuContainer
from tessera_lab.kubelet.node.node import SimulatedNode

_GIB = 2**30
#: Names that a message lists.
_SHOWN = 20
_INDEX = re.compile(r"[0-9]{1,4}")


class LabCards:
    """The cards and pods of a lab.

    Args:
        nodes: the lab's nodes by name; nodes come and go in it.
    """

    def __init__(self, nodes: Mapping[str, SimulatedNode]) -> None:
        self._nodes = nodes

    def find_node(self, name: str) -> SimulatedNode:
        """Returns a node.

        Raises:
            ValueError: there is none of this name.
        """
        found = self._nodes.get(name)
        if found is None:
            raise ValueError(f"no node {one_line(name)!r}; there are {list_names(list(self._nodes), _SHOWN)}")
        return found

    def break_card(self, place: str, *, fault: str = "", xid: int | None = None, code: int | None = None) -> str:
        """Breaks a card; returns a sentence for people.

        Args:
            place: ``NODE/INDEX``.
            fault: a name in :data:`.card_faults.FAULTS`; empty for an XID.
            xid: the XID that the driver reports.
            code: NVML's error of the fault ``unreadable``.

        Raises:
            ValueError: no such card or fault, or the card is lost already.
        """
        node, index = self._find_card(place)
        if fault and fault not in FAULTS:
            raise ValueError(f"no fault {one_line(fault)!r}; there are {', '.join(FAULTS)}")
        assert node.machine is not None
        with node.machine.change() as machine:
            card = machine.cards[index]
            if card.lost:
                raise ValueError(
                    f"card {place} fell off the bus and takes no further fault; mend it with: "
                    f"tessera lab mend gpu {place}"
                )
            if code is not None:
                refuse_calls(machine, card, code)
            elif fault:
                FAULTS[fault].apply(machine, card)
            elif xid is not None:
                report_xid(machine, card, xid)
        if not fault and xid == XID_OFF_THE_BUS:
            fault = "lost"
        return f"{place} is broken (simulated): {FAULTS[fault].meaning if fault else f'the driver reports XID {xid}'}"

    def mend_card(self, place: str) -> str:
        """Removes all faults of a card; returns a sentence for people.

        A driver finds a card that fell off the bus when it is loaded again, so the node of such a card reboots.

        Raises:
            ValueError: no such card.
        """
        node, index = self._find_card(place)
        assert node.machine is not None
        with node.machine.change() as machine:
            mend_card(machine, machine.cards[index])
            lost = machine.cards[index].lost
        if lost:
            node.reboot()
            return f"{place} is mended (simulated); node {node.name} reboots, since the card had fallen off the bus"
        return f"{place} is mended (simulated); the agent uses it again after clean probes, within a minute"

    def use_memory(self, namespace: str, pod: str, amount: int) -> str:
        """Lets a pod hold so much memory on each of its devices; returns a sentence for people.

        Raises:
            ValueError: no such pod on a card, or the card has less memory free.
        """
        found = self.find_pod(namespace, pod)
        for container in found:
            for device in container.devices:
                try:
                    container.use(device, memory_bytes=amount)
                except (MemoryError, NvmlError) as error:
                    raise ValueError(f"pod {namespace}/{pod} cannot use {amount / _GIB:.2f} GiB: {error}") from error
        devices = [device for container in found for device in container.devices]
        return f"pod {namespace}/{pod} uses {amount / _GIB:.2f} GiB (simulated) on {', '.join(devices)}"

    def find_pod(self, namespace: str, pod: str) -> list[GpuContainer]:
        """Returns the running containers of a pod that have cards.

        Raises:
            ValueError: there are none.
        """
        found = [each for each in self.containers() if (each.owner.namespace, each.owner.pod) == (namespace, pod)]
        if not found:
            there = sorted({f"{each.owner.namespace}/{each.owner.pod}" for each in self.containers()})
            names = f"pods with one are {list_names(there, _SHOWN)}" if there else "no pod runs on one"
            raise ValueError(f"pod {one_line(namespace)}/{one_line(pod)} does not run on a card of the lab; {names}")
        return found

    def containers(self) -> Iterator[GpuContainer]:
        """Yields the running containers that have cards."""
        for node in self._nodes.values():
            if node.processes is not None:
                yield from node.processes.containers

    def _find_card(self, place: str) -> tuple[SimulatedNode, int]:
        """Returns the node and the index of ``NODE/INDEX``."""
        name, slash, index = place.partition("/")
        if not slash:
            raise ValueError(f"card {one_line(place)!r}: a card is named NODE/INDEX, e.g. node-1/0")
        node = self.find_node(name)
        count = 0 if node.machine is None else len(node.machine.uuids())
        if not (_INDEX.fullmatch(index) and int(index) < count):
            has = f"{count_noun(count, 'card')}, index 0{f' to {count - 1}' if count > 1 else ''}" if count else "none"
            raise ValueError(f"node {name} has no card {one_line(index)!r}; it has {has}")
        return node, int(index)
