"""The users of devices, from kubelet's list and the living pods."""

import asyncio
from collections.abc import Sequence

import pytest

from tessera.agent.inventory.device_state import DeviceUser, DeviceUsers, is_static_entry
from tessera.api.names import PodUid
from tessera.kube.resources import Pod
from tessera.kube.resources.meta import ObjectMeta, Uid
from tessera.kubelet.interfaces import ContainerDevices, ContainerResources, PluginOptions, PodResources
from tessera_lab.kubelet.device_plugins.inprocess import InProcessKubelet
from tessera_lab.kubelet.device_plugins.plugin_client import PluginClient

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"


def pod(name: str, uid: str, namespace: str = "default") -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=Uid(uid)))


def listed(name: str, *held: tuple[str, Sequence[str]], namespace: str = "default") -> PodResources:
    devices = tuple(ContainerDevices(resource_name=resource, device_ids=tuple(ids)) for resource, ids in held)
    return PodResources(name=name, namespace=namespace, containers=(ContainerResources(name="main", devices=devices),))


def user(name: str, uid: str, resource: str, *ids: str) -> DeviceUser:
    return DeviceUser(pod=PodUid(uid), namespace="default", name=name, container="main", resource=resource, ids=ids)


class Listing:
    """A kubelet whose pod list the test sets; implements ``PodResourcesSource``."""

    def __init__(self, *pods: PodResources) -> None:
        self._pods = pods

    async def list(self) -> Sequence[PodResources]:
        return self._pods

    async def allocatable(self) -> Sequence[ContainerDevices]:
        return ()

    async def get(self, name: str, namespace: str) -> PodResources | None:
        return next((each for each in self._pods if (each.name, each.namespace) == (name, namespace)), None)


async def accepted(resource_name: str, options: PluginOptions, client: PluginClient) -> None:
    """Takes every plugin."""


class Pods:
    """The pods of the node."""

    def __init__(self, live: Sequence[Pod]) -> None:
        self._live = live

    def live_pods(self) -> Sequence[Pod]:
        return self._live


def users_of(listing: Listing, *live: Pod) -> dict[str, tuple[DeviceUser, ...]]:
    bus = InProcessKubelet()
    bus.start(accepted, listing)
    return dict(asyncio.run(DeviceUsers(bus, Pods(live)).read()))


def test_users_are_listed_by_device_with_the_uid_of_their_pod() -> None:
    listing = Listing(listed("a", (SHARED, ["GPU-1::3", "GPU-1::0", "GPU-2::1"])), listed("b", (GPU, ["GPU-3"])))
    assert users_of(listing, pod("a", "uid-a"), pod("b", "uid-b")) == {
        "GPU-1": (user("a", "uid-a", SHARED, "GPU-1::0", "GPU-1::3"),),
        "GPU-2": (user("a", "uid-a", SHARED, "GPU-2::1"),),
        "GPU-3": (user("b", "uid-b", GPU, "GPU-3"),),
    }


def test_a_pod_that_ended_or_is_unknown_holds_nothing_though_kubelet_lists_it() -> None:
    listing = Listing(listed("done", (GPU, ["GPU-1"])), listed("web", (GPU, ["GPU-2"]), namespace="other"))
    assert users_of(listing, pod("web", "uid-web")) == {}


def test_a_resource_listed_once_for_each_numa_node_is_one_holding() -> None:
    listing = Listing(listed("a", (SHARED, ["GPU-1::0"]), (SHARED, ["GPU-1::2"])))
    assert users_of(listing, pod("a", "u")) == {"GPU-1": (user("a", "u", SHARED, "GPU-1::0", "GPU-1::2"),)}


def test_slices_on_demand_and_other_vendors_devices_are_passed_over() -> None:
    listing = Listing(listed("a", ("nvidia.com/mig-3g.20gb", ["GPU-1:3g.20gb:4"]), ("rdma/hca", ["mlx5_0"])))
    assert users_of(listing, pod("a", "u")) == {}


@pytest.mark.parametrize(
    ("entry", "static"),
    [
        ("GPU-1", True),
        ("GPU-1::0", True),
        ("MIG-1", True),
        ("MIG-1::3", True),
        ("MIG-GPU-1/3/0", True),
        ("GPU-1:3g.20gb:4", False),
        ("mlx5_0", False),
    ],
)
def test_the_ids_of_the_static_side(entry: str, static: bool) -> None:
    assert is_static_entry(entry) is static


def test_a_kubelet_that_is_down_is_an_error() -> None:
    with pytest.raises(ConnectionError, match="kubelet is down"):
        asyncio.run(DeviceUsers(InProcessKubelet(), Pods(())).read())
