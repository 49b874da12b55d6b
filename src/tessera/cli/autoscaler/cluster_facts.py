"""Reads the facts about a cluster's autoscaler: present timers, accelerator labels, priorities, Tessera's records.

The sources are OpenShift's ClusterAutoscaler, the flags of a Deployment that runs the cluster autoscaler, annotations
of MachineSets and MachineDeployments, Karpenter's NodePools, nodes, and pods that request cards. A fact is unknown if
its object does not exist or the user may not read it.

Measured times come from a file, or from the records of a cluster.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from tessera.api.names import MIG_CONFIG_LABEL, SYSTEM_NAMESPACE, is_on_demand
from tessera.api.nodes.node_cards import ACCELERATOR_LABELS, CAPI_ACCELERATOR, PROVIDER_ACCELERATORS
from tessera.api.nodes.node_groups import NO_HELP_REASON, Pause, read_pause
from tessera.api.problems import FileRefused
from tessera.cli.base.connection import CommandError, connect
from tessera.cli.base.durations import parse_duration
from tessera.cli.base.inputs import display_name, read_text
from tessera.clock import parse_time_or_zero
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, NotFound
from tessera.kube.quantity import integer_value
from tessera.kube.resources import CONFIGMAPS, DEPLOYMENTS, EVENTS, NODES, PODS, Node, Pod
from tessera.kube.resources.meta import Resource
from tessera.nesting import decode_json
from tessera.provisioning.advise.findings import CAPI_GROUP, CAPI_OPTIONS, OPENSHIFT_GROUP, Labels
from tessera.provisioning.advise.samples import A_WEEK, SAMPLE_ROWS, GroupTimes, from_file, from_records, refusal_lines
from tessera.provisioning.advise.timers import DEFAULTS, Timers
from tessera.provisioning.advise.warm import CUTOFF
from tessera.provisioning.history import RECORDS_KEY, RECORDS_NAME, ProvisioningHistory
from tessera.provisioning.milestones import ProvisioningRecord
from tessera.provisioning.report import read_records
from tessera.provisioning.tracking.timestamps import KARPENTER_LABEL, has_gpu_limits, node_group

CLUSTER_AUTOSCALERS = Resource(
    "autoscaling.openshift.io", "v1", "clusterautoscalers", "ClusterAutoscaler", False, dict[str, Any]
).as_dicts()

_FLAGS = {
    "max-node-provision-time": "max_node_provision",
    "max-node-startup-time": "max_node_startup",
    "scale-down-unneeded-time": "unneeded",
    "scale-down-delay-after-add": "delay_after_add",
}
_GPU_TOTAL, _CUTOFF, _SCALE_DOWN = "gpu-total", "expendable-pods-priority-cutoff", "scale-down-enabled"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for all node groups.

    Attributes:
        timers: the present timers; each is None if no autoscaler was found.
        gpu_types: types of cards for which it has limits.
        cutoff: pods of a lower priority cause no scale-up.
        scale_down: True if it removes nodes; None if no object sets it.
    """

    timers: Timers = Timers()
    gpu_types: tuple[str, ...] = ()
    cutoff: int = CUTOFF
    scale_down: bool | None = None


def from_openshift(scaler: Mapping[str, Any]) -> Settings:
    """Settings of a ClusterAutoscaler object; missing fields have the autoscaler's defaults."""
    spec = _object(scaler.get("spec"))
    down = _object(spec.get("scaleDown"))
    gpus = _object(spec.get("resourceLimits")).get("gpus")
    threshold, enabled = spec.get("podPriorityThreshold"), down.get("enabled")
    return Settings(
        timers=override_timers(
            DEFAULTS,
            max_node_provision=spec.get("maxNodeProvisionTime"),
            unneeded=down.get("unneededTime"),
            delay_after_add=down.get("delayAfterAdd"),
        ),
        gpu_types=tuple(str(_object(each).get("type", "")) for each in gpus) if isinstance(gpus, list) else (),
        cutoff=threshold if isinstance(threshold, int) else CUTOFF,
        scale_down=enabled if isinstance(enabled, bool) else None,
    )


def from_deployment(deployment: Mapping[str, Any]) -> Settings:
    """Settings from the flags of a Deployment's containers."""
    timers: dict[str, str] = {}
    types: list[str] = []
    cutoff, scale_down = CUTOFF, None
    for name, value in _flags(deployment):
        if name in _FLAGS:
            timers[_FLAGS[name]] = value
        elif name == _GPU_TOTAL:
            types.append(value.rsplit(":", 2)[0])
        elif name == _CUTOFF and value.lstrip("-").isdecimal():
            cutoff = int(value)
        elif name == _SCALE_DOWN:
            scale_down = value.lower() != "false"
    return Settings(
        timers=override_timers(DEFAULTS, **timers), gpu_types=tuple(types), cutoff=cutoff, scale_down=scale_down
    )


def override_timers(timers: Timers, **texts: object) -> Timers:
    """The timers, replaced by those that an object sets; a text that is not a duration changes nothing."""
    found = {}
    for name, text in texts.items():
        try:
            if text:
                found[name] = parse_duration(str(text))
        except ValueError:
            continue  # the autoscaler refuses it too
    return msgspec.structs.replace(timers, **found)


def _flags(deployment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    spec = _object(_object(_object(deployment.get("spec")).get("template")).get("spec"))
    for container in spec.get("containers") or ():
        words = [str(each) for each in (*(container.get("command") or ()), *(container.get("args") or ()))]
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, equals, value = word.lstrip("-").partition("=")
            if word.startswith("-"):
                yield name, value if equals or following.startswith("--") else following


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


#: Kinds of node groups; MachineDeployments last, since they own MachineSets.
SETS = (
    Resource(OPENSHIFT_GROUP, "v1beta1", "machinesets", "MachineSet", True, dict[str, Any]),
    Resource(CAPI_GROUP, "v1beta1", "machinesets", "MachineSet", True, dict[str, Any]),
    Resource(CAPI_GROUP, "v1beta1", "machinedeployments", "MachineDeployment", True, dict[str, Any]),
)
_OPTIONS = {
    "maxnodeprovisiontime": "max_node_provision",
    "maxnodestartuptime": "max_node_startup",
    "scaledownunneededtime": "unneeded",
}
#: The autoscaler manages only sets with this annotation (``nodeGroupMinSizeAnnotationKey``).
_SIZE = "/cluster-api-autoscaler-node-group-min-size"

#: Label of a MachineDeployment with its name in the cluster's topology, which is the name of its nodes' group.
_TOPOLOGY = "topology.cluster.x-k8s.io/deployment-name"


class SetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one MachineSet or MachineDeployment.

    Attributes:
        api_group: the API group of its kind; its annotations begin with it.
        timers: the node group's own timers; each is None if the autoscaler's holds.
        labels: labels of its new nodes; None if the kind does not set labels.
        owner: name of its MachineDeployment; empty for none.
        autoscaled: True if the cluster autoscaler manages it: the set or its owner has a minimum size.
    """

    api_group: str
    timers: Timers = Timers()
    labels: Mapping[str, str] | None = None
    owner: str = ""
    autoscaled: bool = False


def facts_of_sets(
    items: Iterable[Mapping[str, Any]], api_group: str, known: Mapping[str, SetFacts]
) -> dict[str, SetFacts]:
    """Settings of the sets of one kind, by name; also known sets that take over settings of their owners.

    Args:
        items: the objects.
        api_group: the API group of their kind.
        known: settings of the sets that were read before.
    """
    found: dict[str, SetFacts] = {}
    for item in items:
        name = str(item["metadata"]["name"])
        facts = _facts(item, api_group)
        topology = (item["metadata"].get("labels") or {}).get(_TOPOLOGY)
        found |= {each: facts for each in (name, topology) if each}
        for owned, each in known.items():
            if each.owner == name and each.api_group == api_group:
                found[owned] = msgspec.structs.replace(each, timers=facts.timers, autoscaled=facts.autoscaled)
    return found


def _facts(item: Mapping[str, Any], api_group: str) -> SetFacts:
    metadata = item["metadata"]
    annotations = metadata.get("annotations") or {}
    owners = metadata.get("ownerReferences") or ()
    return SetFacts(
        api_group=api_group,
        timers=override_timers(
            Timers(),
            **{timer: annotations.get(f"{api_group}{CAPI_OPTIONS}{name}") for name, timer in _OPTIONS.items()},
        ),
        labels=_template_labels(item) if api_group == OPENSHIFT_GROUP else None,
        autoscaled=f"{api_group}{_SIZE}" in annotations,
        owner=next((str(each.get("name")) for each in owners if each.get("kind") == "MachineDeployment"), ""),
    )


def _template_labels(item: Mapping[str, Any]) -> dict[str, str]:
    """``spec.template.spec.metadata.labels``: labels of nodes, not of Machines (``spec.template.metadata.labels``)."""
    found: Any = item
    for step in ("spec", "template", "spec", "metadata", "labels"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}


NODE_POOLS = Resource("karpenter.sh", "v1", "nodepools", "NodePool", False, dict[str, Any])


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a cluster's autoscaler and node groups.

    Attributes:
        settings: the autoscaler's settings for all node groups.
        labels: by node group, name and value of the accelerator label that all present nodes have, or None.
        sets: settings of MachineSets and MachineDeployments, by node group.
        karpenter: by node group of Karpenter, the seconds for which it keeps an empty node; None for ever.
        expendable: pods that request cards and for which the autoscaler makes no node.
        sliced: node groups whose nodes offer slices or renamed shares, and no ``nvidia.com/gpu``.
        unmanaged: nodes without an autoscaled group that have an accelerator label and offer no ``nvidia.com/gpu``;
            with the label.
        paused: waiting pods that new nodes did not help, with the group and the pause in which none is asked for.
    """

    settings: Settings = Settings()
    labels: Mapping[str, tuple[str, str] | None] = {}
    sets: Mapping[str, SetFacts] = {}
    karpenter: Mapping[str, float | None] = {}
    expendable: tuple[str, ...] = ()
    sliced: frozenset[str] = frozenset()
    unmanaged: tuple[tuple[str, str], ...] = ()
    paused: tuple[tuple[str, str, Pause], ...] = ()

    def label_facts(self, group: str) -> Labels:
        """The accelerator label of a group. A template is preferred to nodes, which may have got the label later."""
        own, sliced = self.sets.get(group), group in self.sliced
        if own is not None and own.labels is not None:
            found = accelerator(own.labels, (CAPI_ACCELERATOR,))
            sliced = sliced or is_on_demand(own.labels.get(MIG_CONFIG_LABEL, ""))
        elif group in self.labels:
            found = self.labels[group]
        else:
            return Labels(sliced=sliced)
        name, value = found or ("", "")
        return Labels(present=found is not None, name=name, value=value, types=self.settings.gpu_types, sliced=sliced)

    def never_ready(self) -> tuple[str, ...]:
        """Groups whose nodes never become ready for the autoscaler; Karpenter does not use the label."""
        found = {name: self.label_facts(name) for name in (*self.sliced, *self.sets) if name not in self.karpenter}
        return tuple(sorted(name for name, each in found.items() if each.present and each.sliced))

    def timers(self, group: str) -> Timers:
        """The present timers of a group: its own if it sets some, else the autoscaler's."""
        if group in self.karpenter:
            return Timers(unneeded=self.karpenter[group])
        own = self.sets.get(group)
        if own is None or own.timers == Timers():
            return self.settings.timers
        known = {name: value for name, value in msgspec.structs.asdict(own.timers).items() if value is not None}
        return msgspec.structs.replace(self.settings.timers, **known)

    def annotation_group(self, group: str) -> str:
        """The API group with which annotations of the group's MachineSet begin."""
        return self.sets[group].api_group if group in self.sets else CAPI_GROUP


NOTHING = ClusterFacts()


async def read_cluster(client: Client) -> tuple[tuple[GroupTimes, ...], ClusterFacts]:
    """A cluster's measured times, and the facts about its autoscaler."""
    times = from_records(await _records(client))
    nodes = (await client.list(NODES)).items
    settings = await _settings(client)
    sets: dict[str, SetFacts] = {}
    for resource in SETS:  # owners come after their sets, so their settings win
        sets |= facts_of_sets(await _list_optional(client, resource), resource.group, sets)
    pools = {
        str(each["metadata"]["name"]): _consolidate_after(each) for each in await _list_optional(client, NODE_POOLS)
    }
    used = {each.metadata.labels[KARPENTER_LABEL] for each in nodes if each.metadata.labels.get(KARPENTER_LABEL)}
    pods = (await client.list(PODS)).items
    return times, ClusterFacts(
        settings=settings,
        labels=labels_of_groups(nodes),
        sliced=sliced_groups(nodes),
        unmanaged=find_unmanaged_nodes(nodes, sets),
        sets=sets,
        karpenter=dict.fromkeys(used) | pools,
        expendable=_expendable_pods(pods, settings.cutoff),
        paused=await _paused_pods(client, pods),
    )


async def _records(client: Client) -> tuple[ProvisioningRecord, ...]:
    try:
        found = await client.get(CONFIGMAPS, RECORDS_NAME, SYSTEM_NAMESPACE)
    except NotFound:
        return ()
    history = ProvisioningHistory(SAMPLE_ROWS)
    history.load(found.data)
    return history.nodes.values()


async def _settings(client: Client) -> Settings:
    """Settings of OpenShift's object, or of a Deployment with cluster-autoscaler in its name."""
    try:
        found = await client.get(CLUSTER_AUTOSCALERS, "default")
        return from_openshift(found)
    except ApiError:
        pass
    for deployment in await _list_optional(client, DEPLOYMENTS.as_dicts()):
        if "cluster-autoscaler" in str(deployment["metadata"]["name"]):
            return from_deployment(deployment)
    return Settings()


async def _list_optional(client: Client, resource: Resource[Any]) -> list[dict[str, Any]]:
    """All objects of a kind; none if the cluster does not serve it or the user may not read it."""
    try:
        return list((await client.list(resource)).items)
    except ApiError:
        return []


def _consolidate_after(pool: Mapping[str, Any]) -> float | None:
    """A NodePool's ``consolidateAfter``, seconds; None for Never, or for what cannot be read."""
    disruption = (pool.get("spec") or {}).get("disruption") or {}
    try:
        return parse_duration(str(disruption.get("consolidateAfter")))
    except ValueError:
        return None


def _expendable_pods(pods: Iterable[Pod], cutoff: int) -> tuple[str, ...]:
    return tuple(
        sorted(
            f"{pod.metadata.namespace}/{pod.metadata.name}"
            for pod in pods
            if not pod.spec.node_name and (pod.spec.priority or 0) < cutoff and has_gpu_limits(pod)
        )
    )


async def _paused_pods(client: Client, pods: Iterable[Pod]) -> tuple[tuple[str, str, Pause], ...]:
    """The last pause of each pod that is on no node; none if the user may not read events."""
    waiting = {pod.metadata.uid: pod for pod in pods if not pod.spec.node_name}
    try:
        events = (await client.list(EVENTS, field_selector=f"reason={NO_HELP_REASON}")).items
    except ApiError:
        return ()
    found: dict[tuple[str, str], Pause] = {}
    for event in sorted(events, key=lambda each: each.last_timestamp or ""):
        told = read_pause(event.message, parse_time_or_zero(event.last_timestamp))
        pod = waiting.get(event.involved_object.uid)
        if told is not None and pod is not None:
            found[f"{pod.metadata.namespace}/{pod.metadata.name}", told[0]] = told[1]
    return tuple((pod, group, pause) for (pod, group), pause in found.items())


#: Annotations of nodes that Cluster API or OpenShift made; their autoscaler is Cluster API's.
_MACHINE_ANNOTATIONS = ("cluster.x-k8s.io/machine", "machine.openshift.io/machine")
_DOMAIN, _WHOLE = "nvidia.com/", "nvidia.com/gpu"


def accelerator(labels: Mapping[str, str], names: Iterable[str]) -> tuple[str, str] | None:
    """Name and value of the first of these labels that exists; None without any."""
    return next(((name, labels[name]) for name in names if name in labels), None)


def labels_of_groups(nodes: Iterable[Node]) -> dict[str, tuple[str, str] | None]:
    """By node group: name and value of the accelerator label that all of its nodes have, or None."""
    found: dict[str, tuple[str, str] | None] = {}
    for node in nodes:
        group = _group(node)
        if group:
            label = _accelerator(node)
            found[group] = label if found.get(group, label) is not None else None
    return found


def sliced_groups(nodes: Iterable[Node]) -> frozenset[str]:
    """Node groups with a node that offers slices or renamed shares, now or soon, and no ``nvidia.com/gpu``."""
    return frozenset(_group(node) for node in nodes if _group(node) and _has_slices(node))


def find_unmanaged_nodes(nodes: Iterable[Node], sets: Mapping[str, SetFacts]) -> tuple[tuple[str, str], ...]:
    """Nodes without an autoscaled group that have an accelerator label and offer no ``nvidia.com/gpu``; with the label.

    The cluster does not record if a cloud's own node group is autoscaled, so its nodes are left out.
    """
    return tuple(sorted(_iterate_unmanaged_nodes(nodes, sets)))


def _iterate_unmanaged_nodes(nodes: Iterable[Node], sets: Mapping[str, SetFacts]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        group, label = _group(node), _accelerator(node)
        managed = sets[group].autoscaled if group in sets else bool(group)
        if label is not None and not managed and not _amount(node, _WHOLE):
            yield node.metadata.name, label[0]


def _group(node: Node) -> str:
    return node_group(node.metadata.labels, node.metadata.annotations)


def _accelerator(node: Node) -> tuple[str, str] | None:
    """The accelerator label that the autoscaler uses on this node; labels of other providers have no effect."""
    if any(name in node.metadata.annotations for name in _MACHINE_ANNOTATIONS):
        return accelerator(node.metadata.labels, (CAPI_ACCELERATOR,))
    scheme = node.spec.provider_id.partition(":")[0]
    return accelerator(node.metadata.labels, PROVIDER_ACCELERATORS.get(scheme, ACCELERATOR_LABELS))


def _has_slices(node: Node) -> bool:
    if _amount(node, _WHOLE):
        return False
    others = [name for name in node.status.allocatable if name.startswith(_DOMAIN)]
    return is_on_demand(node.metadata.labels.get(MIG_CONFIG_LABEL, "")) or any(_amount(node, name) for name in others)


def _amount(node: Node, resource: str) -> int:
    try:
        return integer_value(node.status.allocatable.get(resource, "0"))
    except ValueError:
        return 0


FILE = click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True)


def times_and_facts(
    samples: Path | None, kubeconfig: Path | None, context: str | None
) -> "tuple[tuple[GroupTimes, ...], ClusterFacts]":
    """The measured times, and the facts about the autoscaler; there are none if the times come from a file.

    Args:
        samples: the file; None for the cluster.
        kubeconfig: value of the option.
        context: value of the option.

    Raises:
        CommandError: the file has mistakes.
    """
    from tessera.cli.autoscaler.cluster_facts import NOTHING, read_cluster

    if samples is not None:
        return _read(samples), NOTHING

    async def read() -> "tuple[tuple[GroupTimes, ...], ClusterFacts]":
        async with connect("tessera-autoscaler", kubeconfig, context) as client:
            return await read_cluster(client)

    return asyncio.run(read())


def _read(file: Path) -> "tuple[GroupTimes, ...]":
    try:
        return read_times(read_text(file), display_name(file))
    except FileRefused as error:
        first, *mistakes = refusal_lines(display_name(file), error)
        raise CommandError(f"error: {first}", *mistakes) from error


def read_times(text: str, name: str) -> tuple[GroupTimes, ...]:
    """The times in a file.

    Args:
        text: its content.
        name: its name in messages.

    Raises:
        FileRefused: rows have mistakes.
        ValueError: records or results have mistakes; the text names file, place and mistake.
    """
    loaded = _first(text)
    if isinstance(loaded, dict) and "results" in loaded:
        return _of_results(text, name)
    if RECORDS_KEY in text or (isinstance(loaded, dict) and {"records", "node"} & set(loaded)):
        return from_records(read_records(text, name))
    return from_file(text)


def _first(text: str) -> Any:
    """The JSON value of the text or of its first line; the first element of a list; None for other text."""
    for part in (text, text.lstrip().partition("\n")[0]):
        try:
            loaded = decode_json(part)
        except msgspec.DecodeError:
            continue
        return loaded[0] if isinstance(loaded, list) and loaded else loaded
    return None


class _Result(msgspec.Struct):
    """The samples of a scenario, as ``tessera bench`` writes them."""

    experiment: str
    scenario: str
    samples: tuple[Annotated[float, msgspec.Meta(ge=0, le=A_WEEK)], ...] = ()
    simulated: bool = False


class _Results(msgspec.Struct):
    results: tuple[_Result, ...]


def _of_results(text: str, name: str) -> tuple[GroupTimes, ...]:
    """Returns the times of new nodes from Ready on, which ``tessera bench autoscale`` measures."""
    try:
        results = msgspec.json.decode(text, type=_Results).results
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{name}: holds no results of experiments: {error}") from None
    return tuple(
        GroupTimes(group=each.scenario, ready=each.samples, simulated=each.simulated)
        for each in results
        if each.experiment == "autoscale"
    )
