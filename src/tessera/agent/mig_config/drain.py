"""Lists the pods that use a node's static devices, without gaps, and evicts them.

Before a device is destroyed it is not enough to match kubelet's list with the pods that a watch has shown: kubelet may
admit a pod before the watch shows it. So once the fence is set, the drainer asks the API server itself for the pods of
the node, and kubelet after it. A pod with a fenced device got it before the fence, so it was bound before, and the API
server knows it. Kubelet lists the devices of a container a moment after the device plugin gave them, so devices that
were given lately count as used as well.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tessera.agent.inventory.device_users import match_device_users
from tessera.agent.mig_config.events import UserPod
from tessera.kube.eviction import Blocked, Evictor
from tessera.kube.resources import Pod
from tessera.kubelet.interfaces import Kubelet


class LivePods(Protocol):
    """The pods of the node that have not ended."""

    def live_pods(self) -> Sequence[Pod]:
        """The pods as the watch has shown them."""
        ...

    async def list_bound_pods(self) -> Sequence[Pod]:
        """The pods from the API server itself; raises ConnectionError if it does not answer."""
        ...


class DeviceDrainer:
    """Lists and evicts the users of devices, through API server and kubelet.

    Args:
        kubelet: the node's kubelet.
        pods: the pods of the node.
        evictor: evicts pods; ``None`` if the policy is to wait for them.
        recent_allocations: UUIDs of devices in containers that kubelet may not list yet.
        overcounted_resources: resources of which the Node still counts devices that are fenced.

    Attributes:
        overcounted_resources: the same.
    """

    def __init__(
        self,
        kubelet: Kubelet,
        pods: LivePods,
        evictor: Evictor | None = None,
        *,
        recent_allocations: Callable[[], frozenset[str]],
        overcounted_resources: Callable[[], Sequence[str]],
    ) -> None:
        self.overcounted_resources = overcounted_resources
        self._recent_allocations = recent_allocations
        self._kubelet = kubelet
        self._pods = pods
        self._evictor = evictor

    @property
    def may_evict(self) -> bool:
        """True if pods are evicted; otherwise the agent waits for them."""
        return self._evictor is not None

    def snapshot(self) -> object:
        """The inputs that are known without a request. While they are equal, a new list would be equal too."""
        return frozenset(pod.metadata.uid for pod in self._pods.live_pods()), self._recent_allocations()

    async def list(self) -> Mapping[str, tuple[UserPod, ...]]:
        """The pods that hold each card and MIG device, by its UUID.

        Raises:
            ConnectionError: API server or kubelet did not answer.
        """
        bound = await self._pods.list_bound_pods()
        listed = match_device_users(await self._kubelet.pod_resources(), bound)
        users = {
            device: tuple(sorted({UserPod(each.namespace, each.name, each.pod) for each in found}))
            for device, found in listed.items()
        }
        return {device: (UserPod(),) for device in self._recent_allocations()} | users

    async def evict(self, user: UserPod) -> str | None:
        """Asks the API server to evict a pod; returns why the pod stays, ``None`` if it will end or has ended."""
        assert self._evictor is not None
        answer = await self._evictor.evict(user.namespace, user.name, user.pod)
        return answer.text if isinstance(answer, Blocked) else None
