"""The users of devices are listed by the API server and kubelet, without gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.agent.mig_config.node import Ledger
from tests.support.agent_runtime import make_parts

from tessera.agent.mig_config.events import UserPod
from tessera.agent.mig_config.executor import DeviceDrainer
from tessera.api.names import PodUid
from tessera.kube.resources import Pod
from tessera.kube.resources.meta import ObjectMeta, Uid

if TYPE_CHECKING:
    from collections.abc import Sequence


def pod(name: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=Uid(f"uid-{name}")))


class Pods:
    """A watch that shows other pods than the API server has."""

    def live_pods(self) -> Sequence[Pod]:
        return [pod("old")]

    async def list_bound_pods(self) -> Sequence[Pod]:
        return [pod("new")]


async def close(_devices: frozenset[str]) -> None:
    """No pod is on its way."""


def drainer(kubelet: Ledger, lately: set[str]) -> DeviceDrainer:
    """A drainer on a node that gave these devices a moment ago."""
    return DeviceDrainer(
        make_parts(kubelet=kubelet, mirror=Pods()),
        recent_allocations=lambda: frozenset(lately),
        overcounted_resources=lambda: ["nvidia.com/gpu"],
        close=close,
    )


async def test_a_pod_that_no_watch_has_shown_yet_counts_when_the_api_server_knows_it() -> None:
    kubelet = Ledger()
    kubelet.held = {"new": ("GPU-1::2",), "over": ("GPU-1::3",)}
    assert await drainer(kubelet, set()).list() == {"GPU-1": (UserPod("default", "new", PodUid("uid-new")),)}


async def test_recently_allocated_devices_count_as_used_until_kubelet_lists_the_container() -> None:
    kubelet, lately = Ledger(), {"GPU-1", "GPU-2"}
    kubelet.held = {"new": ("GPU-1",)}
    users = drainer(kubelet, lately)
    before = users.snapshot()
    assert await users.list() == {
        "GPU-1": (UserPod("default", "new", PodUid("uid-new")),),
        "GPU-2": (UserPod(),),
    }
    lately.clear()
    assert users.snapshot() != before
    assert (await users.list()).keys() == {"GPU-1"}
    assert users.overcounted_resources() == ["nvidia.com/gpu"]
