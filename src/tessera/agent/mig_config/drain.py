"""The pods that use a node's static devices: lists them for certain, and evicts them.

Before something is destroyed it is not enough to match kubelet's list with the pods that a watch has shown: a pod may
be admitted before the watch shows it, and would not count. So behind the fence the API server itself is asked for the
pods of the node, and kubelet after it. A pod that got a fenced device got it before the fence, so it was bound before,
and the server knows it. Kubelet lists the devices of a container a moment after the device plugin gave them, so devices
that were given lately count as used as well.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tessera.agent.base.evictions import Blocked, Evictor
from tessera.agent.inventory.device_users import DeviceUsers
from tessera.agent.mig_config.events import UserPod
from tessera.kube.resources import Pod
from tessera.kubelet.interfaces import Kubelet


class NodePods(Protocol):
    """The pods of the node that have not ended."""

    def live_pods(self) -> Sequence[Pod]:
        """As the watch has shown them."""
        ...

    async def list_bound_pods(self) -> Sequence[Pod]:
        """As the API server itself says; raises ConnectionError if it does not answer."""
        ...


class Advertiser(Protocol):
    """What kubelet is offered of the static devices."""

    @property
    def lately_given(self) -> frozenset[str]:
        """UUIDs of devices that were given to containers that kubelet may not list yet."""
        ...

    @property
    def overcounted(self) -> Sequence[str]:
        """Resources of which the Node still counts devices that are fenced."""
        ...


class DeviceDrainer:
    """Asks API server and kubelet.

    Args:
        kubelet: the node's.
        pods: the node's.
        evictor: evicts pods; ``None`` if the policy is to wait for them.

    Attributes:
        advertiser: offers the devices. It is made after this object, so it is set later; ``None`` as long as nothing
            is offered.
    """

    def __init__(self, kubelet: Kubelet, pods: NodePods, evictor: Evictor | None = None) -> None:
        self.advertiser: Advertiser | None = None
        self._kubelet = kubelet
        self._pods = pods
        self._evictor = evictor

    @property
    def may_evict(self) -> bool:
        """True if pods are evicted; otherwise they are waited for."""
        return self._evictor is not None

    def snapshot(self) -> object:
        """What is known without asking. While it is equal, a new list would be equal too."""
        return frozenset(pod.metadata.uid for pod in self._pods.live_pods()), self._lately_given()

    def overcounted(self) -> Sequence[str]:
        """Resources of which the Node still counts devices that are fenced."""
        return () if self.advertiser is None else self.advertiser.overcounted

    async def list(self) -> Mapping[str, tuple[UserPod, ...]]:
        """The pods that hold each card and MIG device, by its UUID.

        Raises:
            ConnectionError: API server or kubelet did not answer.
        """
        bound = await self._pods.list_bound_pods()
        listed = await DeviceUsers(self._kubelet, lambda: bound).read()
        users = {
            device: tuple(sorted({UserPod(each.namespace, each.name, each.pod) for each in holders}))
            for device, holders in listed.items()
        }
        return {device: (UserPod(),) for device in self._lately_given()} | users

    async def evict(self, user: UserPod) -> str | None:
        """Asks the API server to evict a pod; returns why it is not evicted, ``None`` if it will end or has ended."""
        assert self._evictor is not None
        answer = await self._evictor.evict(user.namespace, user.name, user.pod)
        return answer.text if isinstance(answer, Blocked) else None

    def _lately_given(self) -> frozenset[str]:
        return frozenset() if self.advertiser is None else self.advertiser.lately_given
