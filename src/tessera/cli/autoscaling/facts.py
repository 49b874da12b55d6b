"""What a cluster says of its autoscaler: timers in force, whether nodes carry the accelerator label, and its records.

Read are the ClusterAutoscaler of OpenShift, the flags of a Deployment that runs the cluster autoscaler, and nodes.
What is not there, or may not be read, is unknown.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tessera.api.operator.settings import SYSTEM_NAMESPACE
from tessera.cli.autoscaling.durations import parse_duration
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.meta import Resource
from tessera.kube.resources import CONFIGMAPS, DEPLOYMENTS, NODES
from tessera.provisioning.advise.findings import ACCELERATOR_LABELS
from tessera.provisioning.advise.samples import GroupTimes, from_records
from tessera.provisioning.advise.timers import DEFAULTS, Timers
from tessera.provisioning.groups import KARPENTER_LABEL, group_of
from tessera.provisioning.milestones import Record
from tessera.provisioning.records import Book
from tessera.provisioning.store import RECORDS_NAME

CLUSTER_AUTOSCALERS = Resource(
    "autoscaling.openshift.io", "v1", "clusterautoscalers", "ClusterAutoscaler", False, dict[str, Any]
)

#: Records that are read at most.
_MOST = 100_000

_FLAGS = {
    "max-node-provision-time": "max_node_provision",
    "max-node-startup-time": "max_node_startup",
    "scale-down-unneeded-time": "unneeded",
    "scale-down-delay-after-add": "delay_after_add",
}


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a cluster.

    Attributes:
        global_timers: timers of all groups; None in each where nothing says so.
        labels: by node group: whether all of its nodes carry an accelerator label.
        karpenter: nodes are Karpenter's.
    """

    global_timers: Timers = Timers()
    labels: Mapping[str, bool] = {}
    karpenter: bool = False

    def labelled(self, group: str) -> bool | None:
        """Whether a group's nodes carry the label; None if none of them is there."""
        return self.labels.get(group)

    def timers(self, group: str) -> Timers:
        """The timers in force for a group."""
        del group  # per-group settings are annotations of objects that differ by provider
        return self.global_timers


NOTHING = ClusterFacts()


async def look(client: Client) -> tuple[tuple[GroupTimes, ...], ClusterFacts]:
    """A cluster's measured times and what is known of its autoscaler."""
    times = from_records(await _records(client))
    nodes = (await client.list(NODES)).items
    groups: dict[str, bool] = {}
    for node in nodes:
        group = group_of(node.metadata.labels, node.metadata.annotations)
        if group in {each.group for each in times}:
            groups[group] = groups.get(group, True) and any(name in node.metadata.labels for name in ACCELERATOR_LABELS)
    return times, ClusterFacts(
        global_timers=await _timers(client),
        labels=groups,
        karpenter=any(KARPENTER_LABEL in node.metadata.labels for node in nodes),
    )


async def _records(client: Client) -> tuple[Record, ...]:
    try:
        found = await client.get(CONFIGMAPS, RECORDS_NAME, SYSTEM_NAMESPACE)
    except NotFound:
        return ()
    book = Book(_MOST)
    book.read(found.data)
    return book.nodes.values()


async def _timers(client: Client) -> Timers:
    found: dict[str, float] = {}
    try:
        spec = (await client.get(CLUSTER_AUTOSCALERS, "default")).get("spec") or {}
        down = spec.get("scaleDown") or {}
        found |= _read(
            max_node_provision=spec.get("maxNodeProvisionTime"),
            unneeded=down.get("unneededTime"),
            delay_after_add=down.get("delayAfterAdd"),
        )
        return _over(DEFAULTS, found)
    except ApiError:
        pass
    flags = await _flags(client)
    return Timers() if flags is None else _over(DEFAULTS, flags)


async def _flags(client: Client) -> dict[str, float] | None:
    """The timers that a cluster autoscaler was started with; None if none is seen."""
    try:
        deployments = (await client.list(DEPLOYMENTS.untyped())).items
    except ApiError:
        return None
    for deployment in deployments:
        if "cluster-autoscaler" in deployment["metadata"]["name"]:
            return _read(**dict(_named(deployment)))
    return None


def _named(deployment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    spec = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    for container in spec.get("containers") or ():
        for argument in [*(container.get("command") or ()), *(container.get("args") or ())]:
            name, _, value = str(argument).lstrip("-").partition("=")
            if name in _FLAGS:
                yield _FLAGS[name], value


def _read(**texts: Any) -> dict[str, float]:
    found = {}
    for name, text in texts.items():
        try:
            if text:
                found[name] = parse_duration(str(text))
        except ValueError:
            continue  # of a form that only Go reads, such as 1.5h: unknown
    return found


def _over(defaults: Timers, found: Mapping[str, float]) -> Timers:
    return msgspec.structs.replace(defaults, **found)
