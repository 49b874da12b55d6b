"""Replaces the names that a reader may not see, in objects of the API server and in the agents' pages.

What is made of the result, a map, a reason, a table, cannot name what its maker did not know. Aliases are those of the
live page.

1. Nodes, cards and their UUIDs are named to readers who may list nodes; a pod to those who may list pods in its
   namespace. These also know the names of the nodes on which their pods are (:func:`name_own_nodes`).
2. Free texts of nodes are left out for readers who may not list nodes: messages of conditions, annotations other than
   the offers, evidence of errors.
"""

from collections.abc import Iterable

import msgspec

from tessera.access.agent_pages import FleetUsage
from tessera.api.instaslice import KIND_MISSING, Instaslice, NodeResources, PodRef, Slice
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, decode_cards, encode_cards
from tessera.api.nodes.health import CardHealth
from tessera.api.nodes.node_marks import is_agent
from tessera.api.nodes.offers import OFFERS_ANNOTATION
from tessera.api.nodes.silence import SilentNode
from tessera.api.nodes.usage import CardUsage, LeaseUsage, NodeTopology, NodeUsage
from tessera.api.queues import ANY_NAMESPACE
from tessera.explain.snapshot import OrderObjects, Snapshot
from tessera.forecast.queue_page import QueuePage
from tessera.kube.resources import Node, Pod
from tessera.visibility import HIDDEN, Redactor, Visibility

_replace = msgspec.structs.replace


def name_own_nodes(visibility: Visibility, pods: Iterable[Pod]) -> Visibility:
    """The rights with the names of the nodes on which the reader's own pods are: their objects name them.

    Args:
        visibility: the rights.
        pods: the pods of the cluster.
    """
    if visibility.nodes:
        return visibility
    own = (each.spec.node_name for each in pods if visibility.allows_pods(each.metadata.namespace))
    return visibility._replace(named=frozenset(filter(None, own)))


class Aliases:
    """Replaces names for one reader.

    Args:
        visibility: what the reader may see.
        redactor: gives the aliases of the page.
    """

    def __init__(self, visibility: Visibility, redactor: Redactor) -> None:
        self._visibility = visibility
        self._redactor = redactor

    def hide(self, objects: Snapshot) -> Snapshot:
        """What the page mirrors as the reader may see it, within the limits of the snapshot; all else is left out."""
        return Snapshot(
            now=objects.now,
            pods=[self._pod(each) for each in objects.pods],
            nodes=[self._node_object(each) for each in objects.nodes],
            instaslices=[self._instaslice(each) for each in objects.instaslices],
            order=self._order(objects.order),
            forbidden=objects.forbidden,
            failed={kind: why for kind, why in objects.failed.items() if why == KIND_MISSING},
            hides_labels=objects.hides_labels,
        )

    def _order(self, order: OrderObjects) -> OrderObjects:
        """Returns the objects that order the pods of visible namespaces, without hidden namespaces and nodes."""
        groups = order.pod_groups
        return OrderObjects(
            namespaces=[each for each in order.namespaces if self._visible(each.metadata.name)],
            queues=[
                _replace(each, namespaces=frozenset(filter(self._lists, each.namespaces))) for each in order.queues
            ],
            pod_groups=groups and {key: size for key, size in groups.items() if self._visible(key.partition("/")[0])},
            last_gates=order.last_gates,
            models=[
                _replace(each, node=self._node(each.node), models=frozenset(filter(self._names_model, each.models)))
                for each in order.models
            ],
        )

    def _lists(self, entry: str) -> bool:
        """True for an entry of a Queue's namespaces that names none, or one that the reader may see."""
        return entry == ANY_NAMESPACE or self._visible(entry)

    def _names_model(self, model: str) -> bool:
        """True for the model of a LocalModelCache, or of a namespace that the reader may see."""
        namespace, slash, _ = model.partition("/")
        return not slash or self._visible(namespace)

    def _node(self, name: str) -> str:
        return name if not name or self._visibility.names_node(name) else self._redactor.node(name)

    def _visible(self, namespace: str) -> bool:
        return self._visibility.allows_pods(namespace)

    def _pod(self, pod: Pod) -> Pod:
        metadata = pod.metadata
        if not self._visible(metadata.namespace):
            alias = self._redactor.pod(metadata.namespace, metadata.name)
            namespace = metadata.namespace if is_agent(pod) else HIDDEN
            conditions = tuple(_replace(each, message="") for each in pod.status.conditions)
            status = _replace(pod.status, message="", conditions=conditions)
            pod = _replace(pod, metadata=_replace(metadata, name=alias, namespace=namespace), status=status)
        return _replace(pod, spec=_replace(pod.spec, node_name=self._node(pod.spec.node_name)))

    def _node_object(self, node: Node) -> Node:
        if self._visibility.nodes:
            return node
        metadata = node.metadata
        annotations = {key: text for key, text in metadata.annotations.items() if key == OFFERS_ANNOTATION}
        if held := decode_cards(metadata.annotations.get(CARDS_ANNOTATION, "")).held:  # numbers, for what has room
            annotations[CARDS_ANNOTATION] = encode_cards((), (), held)
        conditions = tuple(_replace(each, message="") for each in node.status.conditions)
        return _replace(
            node,
            metadata=_replace(metadata, name=self._node(metadata.name), annotations=annotations),
            status=_replace(node.status, conditions=conditions),
        )

    def _instaslice(self, item: Instaslice) -> Instaslice:
        requests = {
            uid: _replace(
                request,
                pod_ref=_replace(request.pod_ref, **self._reference(request.pod_ref)),
                slices=self._slices(request.slices),
            )
            for uid, request in item.spec.pod_allocation_requests.items()
        }
        results = {
            uid: _replace(
                result,
                nodename=self._node(result.nodename),
                gpu_uuid=self._device(result.gpu_uuid),
                slices=self._slices(result.slices),
            )
            for uid, result in item.status.pod_allocation_results.items()
        }
        return _replace(
            item,
            metadata=_replace(item.metadata, name=self._node(item.metadata.name)),
            spec=_replace(item.spec, pod_allocation_requests=requests),
            status=_replace(item.status, pod_allocation_results=results, node_resources=self._resources(item)),
        )

    def _resources(self, item: Instaslice) -> NodeResources:
        found = item.status.node_resources
        gpus = tuple(_replace(each, gpu_uuid=self._device(each.gpu_uuid)) for each in found.node_gpus)
        foreign = tuple(_replace(each, gpu_uuid=self._device(each.gpu_uuid)) for each in found.foreign)
        return _replace(found, node_gpus=gpus, foreign=foreign)

    def _slices(self, slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
        return tuple(_replace(each, gpu_uuid=self._device(each.gpu_uuid)) for each in slices)

    def _device(self, uuid: str) -> str:
        return self._node(uuid)

    def _reference(self, reference: PodRef) -> dict[str, str]:
        if self._visible(reference.namespace):
            return {}
        return {"namespace": HIDDEN, "name": self._redactor.pod(reference.namespace, reference.name)}

    def hide_queue(self, page: QueuePage) -> QueuePage:
        """The queue with the pods whose names the reader may see; positions stay those of the cluster."""
        if self._visibility.full:
            return page
        rows = [self._redactor.redact(each, self._visibility) for each in page.pods if self._visible(each.namespace)]
        spare = tuple(self._redactor.redact(each, self._visibility) for each in page.spare)
        return QueuePage(leads=page.leads, taken=page.taken, age=page.age, pods=tuple(rows), spare=spare)

    # The agents' pages. What is hidden is made anew from the public values, so that a field that comes later is hidden.

    def hide_fleet(self, fleet: FleetUsage) -> FleetUsage:
        """The agents' pages as the reader may see them."""
        failures = fleet.failures
        if not self._visibility.full:
            failures = tuple(SilentNode(node=self._node(each.node), reason="") for each in failures)
        return FleetUsage(nodes=tuple(map(self._page, fleet.nodes)), failures=failures)

    def _page(self, page: NodeUsage) -> NodeUsage:
        return NodeUsage(
            node=self._node(page.node),
            taken=page.taken,
            driver=page.driver if self._visibility.nodes else "",
            cards=tuple(map(self._card, page.cards)),
            leases=tuple(map(self._lease, page.leases)),
            cut=page.cut,
            simulated=page.simulated,
            topology=page.topology if self._visibility.nodes else self._own_topology(page),
        )

    def _own_topology(self, page: NodeUsage) -> NodeTopology | None:
        """How those cards are joined on which pods are that the reader may see; None without any."""
        held = page.cards_by_pod().items()
        own = {uuid for (namespace, _), cards in held if self._visible(namespace) for uuid in cards}
        if page.topology is None or not own:
            return None
        part = page.topology.of_cards(own)
        return _replace(part, cards=tuple(_replace(each, uuid=self._device(each.uuid)) for each in part.cards))

    def _card(self, card: CardUsage) -> CardUsage:
        if self._visibility.nodes:
            holders = tuple(each for each in card.health.holders if not each.pod or self._visible(each.namespace))
            return _replace(card, health=_replace(card.health, holders=holders))
        return CardUsage(
            uuid=self._device(card.uuid),
            index=card.index,
            model=card.model,
            mig=card.mig,
            slots=card.slots,
            kind=card.kind,
            replicas=card.replicas,
            values=card.values,
            throttled=card.throttled,
            processes=card.processes,
            devices=tuple(_replace(each, uuid=self._device(each.uuid)) for each in card.devices),
            health=CardHealth(state=card.health.state, since=card.health.since),
        )

    def _lease(self, lease: LeaseUsage) -> LeaseUsage:
        if self._visible(lease.namespace):
            return _replace(lease, device=self._device(lease.device))
        return LeaseUsage(
            namespace=HIDDEN,
            pod=self._redactor.pod(lease.namespace, lease.pod),
            uid=self._redactor.pod(lease.namespace, lease.uid),
            device=self._device(lease.device),
            kind=lease.kind,
            share=lease.share,
            state=lease.state,
            held=lease.held,
            wasted=lease.wasted,
            memory=lease.memory,
            busy=lease.busy,
            counts_from=lease.counts_from,
        )
