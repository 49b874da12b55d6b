"""Node groups of a cloud and their instances: values only."""

import random
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from tessera_lab.cluster.options import NodeSpec
from tessera_lab.simulation.cost_model import draw_log_normal


class RandomDelay(msgspec.Struct, frozen=True, kw_only=True):
    """A random duration: log-normal around its mean, or constant.

    Attributes:
        mean: seconds.
        spread: standard deviation as a part of the mean; 0 for a constant.
    """

    mean: float
    spread: float = 0.0

    def draw(self, rng: random.Random) -> float:
        """One duration, seconds."""
        return draw_log_normal(rng, self.mean, self.spread)


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that are alike.

    Attributes:
        name: the group's name, as of a MachineSet.
        template: node of each machine; its name is not used.
        minimum: lowest number of machines that an autoscaler may leave; the number at the start.
        maximum: highest number of machines.
        labels: labels of the Node objects from registration on.
        taints: taints of the Node objects from registration on.
        vm: from a request until the virtual machine exists and costs money.
        join: from then until its kubelet registers.
        annotations: annotations of the group, which autoscalers read.
    """

    name: str
    template: NodeSpec
    minimum: int = 0
    maximum: int = 10
    labels: Mapping[str, str] = {}
    taints: tuple[Mapping[str, Any], ...] = ()
    vm: RandomDelay = RandomDelay(mean=0.0)
    join: RandomDelay = RandomDelay(mean=0.0)
    annotations: Mapping[str, str] = {}

    @property
    def gpus(self) -> int:
        """Cards of one machine."""
        return len(self.template.cards)


class InstanceState(Enum):
    """The phase of an instance."""

    CREATING = "creating"  # requested, no virtual machine yet
    BOOTING = "booting"  # the machine exists, its node has not registered
    JOINED = "joined"
    DELETING = "deleting"


class CloudInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of a group; times in seconds since 1970.

    Attributes:
        name: name of the Machine and of the node.
        group: the group's name.
        provider_id: as the Node's ``spec.providerID``.
        requested: when somebody asked for it.
        state: how far it is.
        vm: when its virtual machine existed.
        joined: when its kubelet registered.
    """

    name: str
    group: str
    provider_id: str
    requested: float
    state: InstanceState = InstanceState.CREATING
    vm: float | None = None
    joined: float | None = None
