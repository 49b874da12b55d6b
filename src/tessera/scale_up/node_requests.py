"""The objects by which new nodes are asked for: placeholder pods, or ProvisioningRequests.

Both kinds of objects exist once for each node, with the same pod's spec. :class:`PlaceholderPods` creates the pod.
:class:`ProvisioningRequests` creates a PodTemplate and a ProvisioningRequest (``autoscaling.x-k8s.io``) that refers to
it, of the class ``best-effort-atomic-scale-up``. The request belongs to the template, so that Kubernetes deletes both.

A cluster may serve ProvisioningRequests although its autoscaler takes none: Cluster Autoscaler does so with an option
only, Karpenter never. A request that nobody accepts within :data:`ACCEPTED_WITHIN` shows that.

A request that would ask for other amounts is deleted and made anew. An autoscaler needs time to answer one: Cluster
Autoscaler looks every 10 s, Karpenter collects pods for up to 10 s. So a pod that comes and goes could replace the
requests of all others before they are answered. Amounts stay for :data:`STEADY` seconds therefore.

A placeholder pod is what an autoscaler sees in place of a pod behind a gate.

A placeholder stands for one new node of a group. No node that was there when it was made takes it, so the scheduler
reports it as unschedulable and autoscalers count it. It never runs: it mounts a ConfigMap that does not exist, and the
controller deletes it as soon as it is bound.

There are three forms, since autoscalers differ in what they take a new node for:

- **For its cards** (``nvidia.com/gpu``, all of a node): Karpenter, and Cluster Autoscaler for a group without a node,
  take the shape from the cloud, where a machine has whole cards. Nodes whose cards are cut on demand offer none.
- **For a node of its own**: Cluster Autoscaler copies a Ready node of the group if there is one, and that node offers
  no whole cards. Then the placeholder asks for none, excludes the present nodes by their hostnames and repels other
  placeholders. Karpenter leaves out pods that select by hostname, so it never gets this form.

- **For whole cards of a new node**, where a group's nodes have whole cards (``kind: whole``): Cluster Autoscaler copies
  a node that offers them. The placeholder asks for all cards of a node, and excludes the present nodes: by their
  hostnames, and for Karpenter by a label that the node's agent writes (:data:`_READ_LABEL`).

Present nodes are excluded one by one, since Cluster Autoscaler gives a copy all labels of its Ready node but the
hostname. One that is left out would take the placeholder whenever its cards are free; the controller would delete it
and ask again, and so on. So a group gets no placeholder if it has more nodes than one can name (:func:`can_exclude`).

Besides, it asks for the CPU, memory and other resources that each of its pods asks for, so that an autoscaler makes no
node for a pod that no machine can take. It asks for the least of them: a pod that asks for too much must not keep nodes
from others.

A placeholder preempts nothing: an excluded node would not fit even if it were empty.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

import msgspec

from tessera.api.names import HOSTNAME_LABEL, PAUSE_IMAGE, WHOLE_CARDS
from tessera.api.nodes.node_groups import GroupKind, NodeGroup
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.resource_amounts import Amounts
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.informer import Informer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import POD_TEMPLATES, PODS, PROVISIONING_REQUESTS, Pod, ProvisioningRequest
from tessera.scale_up.new_nodes import NewNodes

#: Most nodes: present nodes that a placeholder of a group names, so that it is not bound to them; a larger group gets
#: no more. The nodes that Kubernetes supports in a cluster; a placeholder then has some 300 kB, of 1.5 MB that it may
#: have.
PASSED_HOSTS = 5_000

#: The value of ``app.kubernetes.io/name`` of all placeholders.
PLACEHOLDER = "tessera-placeholder"
#: Label of a placeholder: its group.
GROUP_LABEL = "tessera.dev/node-group"
#: Label of a placeholder: :func:`group_version` of its group when it was made.
VERSION_LABEL = "tessera.dev/node-group-version"
#: Label that feature discovery, ours and NVIDIA's, writes on every node with cards, and no cloud: a node with it has
#: been read. (``nvidia.com/gfd.timestamp`` can be switched off.) Karpenter makes nodes for pods that exclude a label
#: which its NodePool does not set.
_READ_LABEL = "nvidia.com/gpu.machine"
_GPU = WHOLE_CARDS
#: What a placeholder asks for if its pods ask for less: thousandths of a CPU, and bytes.
_CPU, _MEMORY = 10, 16 << 20
_KARPENTER = "karpenter."
_APP = "app.kubernetes.io/name"


def placeholder_labels(group: str, version: str = "") -> dict[str, str]:
    """Returns the labels of a group's placeholders; see :func:`group_version`."""
    made_of = {VERSION_LABEL: version} if version else {}
    return {_APP: PLACEHOLDER, "app.kubernetes.io/part-of": "tessera", GROUP_LABEL: group, **made_of}


def group_version(group: NodeGroup, least: Amounts) -> str:
    """Returns a text that changes with what a placeholder takes from its group and its pods.

    So one that was made before is found.
    """
    facts = (group.selector, group.taints, group.cards, least)
    return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()[:16]


def is_placeholder(labels: Mapping[str, str]) -> bool:
    """True for an object with the labels of a placeholder."""
    return labels.get(_APP) == PLACEHOLDER and GROUP_LABEL in labels


def asks_for_cards(group: NodeGroup, *, has_ready: bool) -> bool:
    """True if a placeholder must ask for whole cards; else it asks for a node of its own.

    Args:
        group: its group.
        has_ready: one of its nodes is Ready.
    """
    return not has_ready or is_karpenters(group) or group.cards.kind is GroupKind.WHOLE


def can_exclude(group: NodeGroup, nodes: int) -> bool:
    """True if a placeholder of a group can exclude so many present nodes."""
    return nodes <= PASSED_HOSTS or is_karpenters(group)


def is_karpenters(group: NodeGroup) -> bool:
    """True if Karpenter makes the nodes of a group: it chooses the machine by what a pod asks for."""
    return any(key.startswith(_KARPENTER) for key in group.selector)


def has_cards(pod: Pod) -> bool:
    """True if a placeholder asks for whole cards."""
    return any(_GPU in container.resources.limits for container in pod.spec.containers)


def pod_spec(group: NodeGroup, image: str, hosts: Iterable[str], *, has_ready: bool, least: Amounts) -> dict[str, Any]:
    """Returns the spec of a placeholder.

    Args:
        group: its group.
        image: is never pulled, but policies of a cluster may check it.
        hosts: hostnames of all nodes of the group, as many as :func:`can_exclude` allows.
        has_ready: one of these nodes is Ready.
        least: what each pod that it stands for asks for, so that no node is made that is too small for all of them.
    """
    excluded = sorted(hosts)
    own_node = not asks_for_cards(group, has_ready=has_ready)
    limits = _quantities(least) | ({} if own_node else {_GPU: str(group.cards.count)})
    spec: dict[str, Any] = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "nodeSelector": dict(group.selector),
        "tolerations": [
            {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}
            for taint in group.taints
        ],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "placeholder",
                "image": image,
                "resources": {"requests": dict(limits), "limits": limits},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "never-there", "mountPath": "/never-there"}],
            }
        ],
        "volumes": [{"name": "never-there", "configMap": {"name": "tessera-placeholder-never-starts"}}],
    }
    other: dict[str, Any]
    if own_node:
        other = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": excluded}
        repelled = {"labelSelector": {"matchLabels": {_APP: PLACEHOLDER}}, "topologyKey": HOSTNAME_LABEL}
        spec["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _one_term(other)},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [repelled]},
        }
    elif group.cards.kind is GroupKind.WHOLE and excluded:
        other = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": excluded}
        if is_karpenters(group):
            other = {"key": _READ_LABEL, "operator": "DoesNotExist"}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _one_term(other)}}
    return spec


def _quantities(least: Amounts) -> dict[str, str]:
    amounts = {**least, "cpu": max(_CPU, least.get("cpu", 0)), "memory": max(_MEMORY, least.get("memory", 0))}
    return {name: f"{amount}m" if name == "cpu" else f"{amount}" for name, amount in amounts.items()}


def _one_term(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}


class ScaleUpMethod(Enum):
    """How new nodes are asked for."""

    OFF = "off"
    PLACEHOLDER = "placeholder"
    PROVISIONING_REQUEST = "provisioning-request"
    #: ProvisioningRequests where the cluster serves them and an autoscaler accepts them, else placeholders.
    AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class ScaleUpOptions:
    """Options of the search for new nodes.

    Attributes:
        method: how new nodes are asked for; without groups in the file nothing is asked for.
        image: image that placeholders name; it is never pulled.
    """

    method: ScaleUpMethod = ScaleUpMethod.AUTO
    image: str = PAUSE_IMAGE


#: Seconds for which a group's requests ask for the same amounts: some looks of an autoscaler.
STEADY = 60.0


class _Asked(NamedTuple):
    """What the requests of a group ask for, and since when."""

    least: Amounts
    since: float


class SteadyAmounts:
    """Replaces amounts that changed too early by those before.

    Attributes:
        due: when the first change that waits is made; None if none waits.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        #: By group that needs nodes.
        self._asked: Mapping[str, _Asked] = {}

    def hold(self, needed: Mapping[str, NewNodes], now: float) -> Mapping[str, NewNodes]:
        """Returns the nodes to ask for, with the amounts to ask for now.

        Args:
            needed: the nodes that are needed, by group.
            now: the time, in seconds.
        """
        asked: dict[str, _Asked] = {}
        for name, each in needed.items():
            before = self._asked.get(name)
            is_steady = before is not None and (before.least == each.least or now < before.since + STEADY)
            asked[name] = before if before is not None and is_steady else _Asked(each.least, now)
        self._asked = asked
        changes = [one.since + STEADY for name, one in asked.items() if one.least != needed[name].least]
        self.due = min(changes, default=None)
        return {name: msgspec.structs.replace(each, least=asked[name].least) for name, each in needed.items()}


#: Seconds within which an autoscaler that takes ProvisioningRequests sets the condition Accepted; it looks every 10 s.
ACCEPTED_WITHIN = 120.0
#: Seconds after which a request that failed is made anew.
AGAIN_AFTER = 300.0
#: The class of requests for which Cluster Autoscaler makes nodes.
CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
#: Label of a request: the form of its pod, see :func:`asks_for_cards`.
_FORM_LABEL = "tessera.dev/asks-for"


class NodeRequest(msgspec.Struct, frozen=True):
    """A new node that was asked for.

    Attributes:
        name: name of the object.
        uid: its UID.
        group: the node group.
        open: the autoscaler may still make the node for it.
        cards: it asks for whole cards.
        version: what its group was like when it was made; empty if a former version of Tessera made it.
    """

    name: str
    uid: str
    group: str
    open: bool
    cards: bool
    version: str = ""


class NodeAsker(Protocol):
    """Keeps the objects of one kind."""

    async def list_requests(self) -> Sequence[NodeRequest]:
        """Returns the present requests, by name."""
        ...

    async def create(self, group: str, name: str, spec: Mapping[str, Any], *, cards: bool, version: str) -> None:
        """Asks for a node; raises as :meth:`tessera.kube.client.Client.create`."""
        ...

    async def delete(self, request: NodeRequest) -> None:
        """Takes a request back; raises as :meth:`tessera.kube.client.Client.delete`."""
        ...


class PlaceholderPods:
    """Asks by placeholder pods.

    Args:
        runtime: access to the cluster.
        pods: all pods.
        namespace: Tessera's own.
    """

    def __init__(self, runtime: KubeRuntime, pods: Informer[Pod], namespace: str) -> None:
        self._client, self._pods, self._namespace = runtime.client, pods, namespace

    async def list_requests(self) -> Sequence[NodeRequest]:
        """Returns the present placeholders; one that is bound or has ended is not open."""
        pods = (pod for pod in self._pods.cache.values() if pod.metadata.namespace == self._namespace)
        found = (pod for pod in pods if is_placeholder(pod.metadata.labels) and not pod.metadata.deletion_timestamp)
        return _by_name(
            NodeRequest(
                name=pod.metadata.name,
                uid=pod.metadata.uid,
                group=pod.metadata.labels[GROUP_LABEL],
                open=not pod.spec.node_name and pod.status.phase in {"", "Pending"},
                cards=has_cards(pod),
                version=pod.metadata.labels.get(VERSION_LABEL, ""),
            )
            for pod in found
        )

    async def create(
        self,
        group: str,
        name: str,
        spec: Mapping[str, Any],
        *,
        cards: bool,  # noqa: ARG002
        version: str,
    ) -> None:
        """Creates a placeholder."""
        item = {"metadata": {"name": name, "labels": placeholder_labels(group, version)}, "spec": spec}
        await self._client.create(PODS.as_dicts(), item, self._namespace)

    async def delete(self, request: NodeRequest) -> None:
        """Deletes a placeholder."""
        await self._client.delete(PODS, request.name, self._namespace, uid=request.uid, grace_seconds=0)


class ProvisioningRequests:
    """Asks by ProvisioningRequests.

    Args:
        runtime: access to the cluster.
        namespace: Tessera's own.

    Attributes:
        ignored: nobody accepted a request in time.
        present: requests exist, by the last list; their state changes without an event here.
    """

    def __init__(self, runtime: KubeRuntime, namespace: str) -> None:
        self._client, self._clock, self._namespace = runtime.client, runtime.clock, namespace
        self.ignored = self.present = False

    async def is_served(self) -> bool:
        """True if the cluster has the kind; False also if the server does not answer."""
        try:
            await self._client.request("GET", f"/apis/{PROVISIONING_REQUESTS.api_version}")
        except (ApiError, ConnectionError, TimeoutError):
            return False
        return True

    async def list_requests(self) -> Sequence[NodeRequest]:
        """Returns the present requests; one that failed a while ago, or whose node is there, is not open."""
        try:
            items = (await self._client.list(PROVISIONING_REQUESTS, self._namespace)).items
        except NotFound:
            items = ()
        found = [
            item for item in items if is_placeholder(item.metadata.labels) and not item.metadata.deletion_timestamp
        ]
        self.present = bool(found)
        self.ignored |= any(
            self._age(item.metadata.creation_timestamp) > ACCEPTED_WITHIN and not _answered(item) for item in found
        )
        return _by_name(
            NodeRequest(
                name=item.metadata.name,
                uid=item.metadata.uid,
                group=item.metadata.labels[GROUP_LABEL],
                open=not self._has_ended(item),
                cards=item.metadata.labels.get(_FORM_LABEL) == "cards",
                version=item.metadata.labels.get(VERSION_LABEL, ""),
            )
            for item in found
        )

    def _has_ended(self, item: ProvisioningRequest) -> bool:
        ends = [each for each in item.status.conditions if each.type in {"Failed", "BookingExpired", "CapacityRevoked"}]
        return any(each.status == "True" and self._age(each.last_transition_time) > AGAIN_AFTER for each in ends)

    def _age(self, text: str | None) -> float:
        return self._clock.now() - parse_time_or_zero(text or "")

    async def create(self, group: str, name: str, spec: Mapping[str, Any], *, cards: bool, version: str) -> None:
        """Creates the template and the request."""
        labels = placeholder_labels(group, version)
        template = {
            "metadata": {"name": name, "labels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        }
        try:
            owner = await self._client.create(POD_TEMPLATES.as_dicts(), template, self._namespace)
        except ApiError:
            # One without a request is left of a process that ended in between; the next attempt makes it anew.
            await self._client.delete(POD_TEMPLATES, name, self._namespace)
            raise
        reference = {"apiVersion": "v1", "kind": "PodTemplate", "name": name, "uid": owner["metadata"]["uid"]}
        item = {
            "metadata": {
                "name": name,
                "labels": {**labels, _FORM_LABEL: "cards" if cards else "node"},
                "ownerReferences": [reference],
            },
            "spec": {
                "provisioningClassName": CLASS,
                "podSets": [{"podTemplateRef": {"name": name}, "count": 1}],
            },
        }
        try:
            await self._client.create(PROVISIONING_REQUESTS.as_dicts(), item, self._namespace)
        except ApiError:
            await self._client.delete(POD_TEMPLATES, name, self._namespace)
            raise
        self.present = True

    async def delete(self, request: NodeRequest) -> None:
        """Deletes the template, then the request: only the request is listed, so it stays until both are gone."""
        with suppress(NotFound):
            await self._client.delete(POD_TEMPLATES, request.name, self._namespace)
        await self._client.delete(PROVISIONING_REQUESTS, request.name, self._namespace)


def _answered(item: ProvisioningRequest) -> bool:
    return bool(item.status.conditions)


def _by_name(found: Iterable[NodeRequest]) -> Sequence[NodeRequest]:
    return sorted(found, key=lambda request: request.name)
