"""Who holds a node's static devices, known for sure.

Before something is destroyed it is not enough to ask what kubelet lists and match it with the pods that a watch has
shown so far: a pod may be admitted before the watch shows it, and would count as nobody. So behind the fence the API
server itself is asked for the pods of the node, and kubelet after it. A pod that got a fenced device got it before the
fence, so it was bound before, and the server knows it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from tessera.agent.layouts.facts import Tenant
from tessera.agent.sharing.holders import Holders
from tessera.api.names import PodUid
from tessera.kube.resources import Pod
from tessera.kubelet.seam import Kubelet


class Tenants:
    """Asks API server and kubelet.

    Args:
        kubelet: the node's.
        live: the pods of the node that are not over, as far as is known.
        bound: the same asked of the API server itself; raises ConnectionError if it does not say.
    """

    def __init__(
        self,
        kubelet: Kubelet,
        *,
        live: Callable[[], Sequence[Pod]],
        bound: Callable[[], Awaitable[Sequence[Pod]]],
    ) -> None:
        self._kubelet = kubelet
        self._live = live
        self._bound = bound

    def pods(self) -> frozenset[PodUid]:
        """The pods that may hold something, as far as is known; a change of it is worth another look."""
        return frozenset(PodUid(pod.metadata.uid) for pod in self._live())

    async def now(self) -> Mapping[str, tuple[Tenant, ...]]:
        """The pods that hold each card and MIG device, by its UUID.

        Raises:
            ConnectionError: API server or kubelet did not say.
        """
        bound = await self._bound()
        held = await Holders(self._kubelet, lambda: bound).now()
        return {
            device: tuple(sorted({Tenant(each.namespace, each.name, each.pod) for each in holders}))
            for device, holders in held.items()
        }
