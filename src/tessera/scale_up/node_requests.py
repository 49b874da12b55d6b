"""The objects by which new nodes are asked for: placeholder pods, or ProvisioningRequests.

Both kinds of objects exist once for each node, with the same pod's spec. :class:`PlaceholderPods` creates the pod.
:class:`ProvisioningRequests` creates a PodTemplate and a ProvisioningRequest (``autoscaling.x-k8s.io``) that refers to
it, of the class ``best-effort-atomic-scale-up``. The request belongs to the template, so that Kubernetes deletes both.

A cluster may serve ProvisioningRequests although its autoscaler takes none: Cluster Autoscaler does so with an option
only, Karpenter never. A request that nobody accepts within :data:`ACCEPTED_WITHIN` shows that.

A request that would ask for other amounts is deleted and made anew. An autoscaler needs time to answer one: Cluster
Autoscaler looks every 10 s, Karpenter collects pods for up to 10 s. So a pod that comes and goes could replace the
requests of all others before they are answered. Amounts stay for :data:`STEADY` seconds therefore.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

import msgspec

from tessera.api.names import PAUSE_IMAGE
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.resource_amounts import Amounts
from tessera.kube.client.errors import ApiError, NotFound
from tessera.kube.resources import POD_TEMPLATES, PODS, PROVISIONING_REQUESTS, Pod, ProvisioningRequest
from tessera.kube.runtime import KubeRuntime
from tessera.kube.watch.informer import Informer
from tessera.scale_up.new_nodes import NewNodes
from tessera.scale_up.placeholders import (
    GROUP_LABEL,
    VERSION_LABEL,
    has_cards,
    is_placeholder,
    placeholder_labels,
)


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
#: Label of a request: the form of its pod, see :func:`~tessera.scale_up.placeholders.asks_for_cards`.
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
        """Asks for a node; raises as :meth:`tessera.kube.client.client.Client.create`."""
        ...

    async def delete(self, request: NodeRequest) -> None:
        """Takes a request back; raises as :meth:`tessera.kube.client.client.Client.delete`."""
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
