"""Removes the drivers that Tessera installed, from nodes on which no pod uses cards.

A driver container that ends unloads its modules, and its files vanish from running pods. So a node with pods that use
cards keeps its driver, with the DaemonSet, the account and the namespace of its pod, until the command runs again. A
node's driver pod ends when the node loses its label of the driver set.
"""

from collections.abc import AsyncIterator, Mapping

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.api.nodes.driver_status import DRIVER_APP, DRIVER_SET_LABEL, TOOLKIT_APP
from tessera.cli.uninstall.results import Done, Left, Result
from tessera.kube.client.client import Client
from tessera.kube.client.errors import Conflict, NotFound
from tessera.kube.resources import DAEMONSETS, NODES, PODS, Pod

#: Pods that a reason names.
_SHOWN = 3


async def remove_drivers(client: Client, *, dry: bool) -> AsyncIterator[Result]:
    """Removes the drivers from unused nodes, and the DaemonSets that no node needs any more."""
    labelled = [each for each in (await client.list(NODES)).items if each.metadata.labels.get(DRIVER_SET_LABEL)]
    users = await _users(client) if labelled else {}
    needed: set[str] = set()
    for node in labelled:
        meta = node.metadata
        if pods := users.get(meta.name):
            needed.add(meta.labels[DRIVER_SET_LABEL])
            named = ", ".join(pods[:_SHOWN]) + (f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else "")
            yield Left(
                f"node/{meta.name}",
                f"keeps its driver while pods use its cards: {named}; when they have ended, run the command again",
            )
            continue
        if not dry:
            try:
                await client.merge_patch(
                    NODES, meta.name, {"metadata": {"labels": {DRIVER_SET_LABEL: None}}}, uid=meta.uid
                )
            except (NotFound, Conflict):
                continue
        yield Done(f"node/{meta.name}", "driver removed")
    for each in (await client.list(DAEMONSETS, SYSTEM_NAMESPACE)).items:
        app = each.metadata.labels.get("app.kubernetes.io/name")
        unused = app == DRIVER_APP and each.metadata.labels.get(DRIVER_SET_LABEL) not in needed
        if unused or (app == TOOLKIT_APP and not needed):
            if not dry:
                try:
                    await client.delete(DAEMONSETS, each.metadata.name, SYSTEM_NAMESPACE, propagation="Background")
                except NotFound:
                    continue
            yield Done(f"daemonset.apps/{each.metadata.name} in {SYSTEM_NAMESPACE}", "deleted")


async def _users(client: Client) -> Mapping[str, list[str]]:
    """The pods that have cards, by node."""
    found: dict[str, list[str]] = {}
    for pod in (await client.list(PODS)).items:
        if pod.spec.node_name and pod.status.phase not in {"Succeeded", "Failed"} and _has_cards(pod):
            found.setdefault(pod.spec.node_name, []).append(f"{pod.metadata.namespace}/{pod.metadata.name}")
    return found


def _has_cards(pod: Pod) -> bool:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return any(name.startswith("nvidia.com/") for each in containers for name in each.resources.limits)
