"""An API server that serves what autoscalers read, and a look at it."""

from collections.abc import Callable
from typing import Any

import pytest

from tessera.cli.autoscaler.cluster_facts import ClusterFacts, read_cluster
from tessera.cli.autoscaler.settings import CLUSTER_AUTOSCALERS, NODE_POOLS, SETS
from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.resources import CRDS, DEPLOYMENTS, EVENTS, NAMESPACES, NODES, PODS
from tessera.kube.resources.meta import Resource
from tessera.provisioning.start_times import GroupTimes
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.simulation.virtual_time import run_virtual

SERVED = (CLUSTER_AUTOSCALERS, NODE_POOLS, *SETS)
KINDS: dict[str, Resource[Any]] = {
    **{f"{each.api_version}/{each.kind}": each for each in SERVED},
    "v1/Node": NODES.as_dicts(),
    "v1/Pod": PODS.as_dicts(),
    "v1/Event": EVENTS.as_dicts(),
    "apps/v1/Deployment": DEPLOYMENTS.as_dicts(),
    "scheduling.k8s.io/v1/PriorityClass": Resource(
        "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, dict[str, Any]
    ),
}

Looked = tuple[tuple[GroupTimes, ...], ClusterFacts]
Look = Callable[..., Looked]


def definition(resource: Resource[Any]) -> dict[str, Any]:
    """A definition of a kind that takes anything."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {
                "kind": resource.kind,
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "listKind": f"{resource.kind}List",
            },
            "versions": [version],
        },
    }


@pytest.fixture
def looked() -> Look:
    """Puts objects on a server, events after what they are about, and looks.

    Without ``served`` the server knows only Kubernetes' own kinds.
    """

    def run(*objects: dict[str, Any], served: bool = True) -> Looked:
        async def main() -> Looked:
            clock = LoopClock(1_800_000_000)
            transport = InProcessTransport(ApiServer(clock), UserInfo(name="a", groups=("system:masters",)))
            client = Client(transport, field_manager="test", clock=clock)
            for each in SERVED if served else ():
                await client.create(CRDS.as_dicts(), definition(each))
            await client.create(NAMESPACES.as_dicts(), {"metadata": {"name": "machines"}})
            uids: dict[str, str] = {}
            for made in objects:
                kind = KINDS[f"{made['apiVersion']}/{made['kind']}"]
                if "involvedObject" in made:
                    made["involvedObject"]["uid"] = uids.get(made["involvedObject"]["name"], "gone")
                created = await client.create(kind, made, "machines" if kind.namespaced else None)
                uids[created["metadata"]["name"]] = created["metadata"]["uid"]
            return await read_cluster(client)

        return run_virtual(main())

    return run
