"""A way to give a node's slices to containers beside the device plugins, as a satellite of the agent adds it.

The slices are promised, made and destroyed by the same rules; the other way only hands them out.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.agent.inventory.sliceable_gpus import SliceableGpus, SlicePosition
from tessera.agent.slices.slice_table import SliceJournalFile
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import PodUid


@dataclass(frozen=True, kw_only=True)
class NodeSlices:
    """The slices of a node, for whoever hands them out.

    Attributes:
        machine: the slices and their owners.
        journal: written to disk before a container gets its slices.
        reader: the node's GPUs as last read, and their driver.
        cards: the cards that are cut on demand.
        is_ready: true once all cards were read.
        is_withheld: true for a card, by UUID, of which nothing may be given out because of its health.
        faults_evict: true if a fault of a card ends the pods that have slices of it this way.
    """

    machine: SliceStateMachine
    journal: SliceJournalFile
    reader: InventoryReader
    cards: Callable[[], SliceableGpus]
    is_ready: Callable[[], bool]
    is_withheld: Callable[[str], bool]
    faults_evict: Callable[[], bool]


class SliceGiver:
    """A further way to give slices. This one gives none."""

    @property
    def is_wanted(self) -> bool:
        """True if slices are given this way; false if by the device plugins."""
        return False

    @property
    def has_given(self) -> bool:
        """True if containers may use slices that they got this way; kubelet lists no device of these."""
        return False

    @property
    def is_registered(self) -> bool:
        """True if kubelet calls this agent for what is given this way, or calls nobody."""
        return True

    def users(self) -> Iterator[tuple[PodUid, SlicePosition]]:
        """Yields the pods that use slices that were promised to another pod, each with such a slice."""
        yield from ()

    def adopt(self) -> None:
        """Tells the machine what was given before; called before the machine decides anything."""

    async def run(self) -> None:
        """Gives slices until cancelled."""

    def held(self) -> Collection[str]:
        """Names what kubelet still has to give back this way: it asks nobody else, so its pods could not end."""
        return ()

    async def take_back(self) -> None:
        """Takes back, until cancelled, and gives nothing more: Tessera leaves the node. Not beside :meth:`run`."""


#: Makes the way for one agent.
MakeSliceGiver = Callable[[AgentRuntime, NodeSlices], SliceGiver]
