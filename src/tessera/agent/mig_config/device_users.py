"""Who holds a node's static devices, known for sure.

Before something is destroyed it is not enough to ask what kubelet lists and match it with the pods that a watch has
shown so far: a pod may be admitted before the watch shows it, and would count as nobody. So behind the fence the API
server itself is asked for the pods of the node, and kubelet after it. A pod that got a fenced device got it before the
fence, so it was bound before, and the server knows it. Kubelet in turn notes what a container was given a moment after
the device plugin gave it, so what was given lately counts as held as well.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from tessera.agent.inventory.device_users import DeviceUsers
from tessera.agent.mig_config.events import DeviceUser
from tessera.kube.resources import Pod
from tessera.kubelet.interfaces import Kubelet


class DeviceUserLookup:
    """Asks API server and kubelet.

    Args:
        kubelet: the node's.
        live: the pods of the node that are not over, as far as is known.
        bound: the same asked of the API server itself; raises ConnectionError if it does not say.
        lately_given: UUIDs of devices that were given to containers that kubelet may not list yet.
    """

    def __init__(
        self,
        kubelet: Kubelet,
        *,
        live: Callable[[], Sequence[Pod]],
        bound: Callable[[], Awaitable[Sequence[Pod]]],
        lately_given: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._kubelet = kubelet
        self._live = live
        self._bound = bound
        self._lately_given = lately_given

    def known(self) -> object:
        """What may change an answer, as far as is known without asking; a change of it is worth another look."""
        return frozenset(pod.metadata.uid for pod in self._live()), self._lately_given()

    async def now(self) -> Mapping[str, tuple[DeviceUser, ...]]:
        """The pods that hold each card and MIG device, by its UUID.

        Raises:
            ConnectionError: API server or kubelet did not say.
        """
        bound = await self._bound()
        listed = await DeviceUsers(self._kubelet, lambda: bound).read()
        held = {
            device: tuple(sorted({DeviceUser(each.namespace, each.name, each.pod) for each in holders}))
            for device, holders in listed.items()
        }
        return {device: (DeviceUser(),) for device in self._lately_given()} | held
