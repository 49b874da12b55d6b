"""What runs beside the core in the agent's process: the core starts satellites, and knows none of them.

Each has a base class here that does nothing, which serves where the satellite is left out.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tessera.agent.base.metrics import MemoryUsage
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.inventory.device_users import DeviceUser
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.slices.slice_giver import NodeSlices, SliceGiver
from tessera.api.nodes.usage import ServiceUsage
from tessera.api.sharing.devices import Advertisement
from tessera.kube.resources import Pod


@dataclass(frozen=True, kw_only=True)
class MemoryInputs:
    """Inputs of a memory watch from the rest of the agent.

    Attributes:
        offer: the present offer of the static cards.
        api_reachable: true if the API server answers.
        live_pods: the pods of the node that have not ended.
        read_users: the containers that hold each device; raises ConnectionError if kubelet does not answer.
    """

    offer: Callable[[], Advertisement]
    api_reachable: Callable[[], bool]
    live_pods: Callable[[], Sequence[Pod]]
    read_users: Callable[[], Awaitable[Mapping[str, Sequence[DeviceUser]]]]


class MemoryWatch:
    """Watches the memory of shared cards. This one does not."""

    def memory_usage(self) -> Sequence[MemoryUsage]:
        """Memory of shared cards by pod, of the last sample."""
        return ()

    async def run(self) -> None:
        """Samples until cancelled."""


class LoadReader:
    """Reads the load of services from the node's pods. This one reads none.

    Attributes:
        usages: the last reading of each pod.
    """

    usages: Sequence[ServiceUsage] = ()

    async def run(self) -> None:
        """Reads until cancelled."""


#: Makes a further way to give a node's slices, which may want MPS daemons.
MakeNodeGiver = Callable[[AgentRuntime, NodeSlices, MpsDaemons], SliceGiver]


@dataclass(frozen=True, kw_only=True)
class NodeSatellites:
    """The satellites of an agent; the core alone without arguments.

    Attributes:
        giver: makes a further way to give slices; ``None`` for the device plugins alone.
        memory: makes what watches the memory of shared cards.
        loads: makes what reads the load of services; its second argument tells the UIDs of pods that hold cards.
    """

    giver: MakeNodeGiver | None = None
    memory: Callable[[AgentRuntime, MemoryInputs], MemoryWatch] | None = None
    loads: Callable[[AgentRuntime, Callable[[], Collection[str]]], LoadReader] | None = None


#: An agent without satellites.
CORE_ALONE = NodeSatellites()
