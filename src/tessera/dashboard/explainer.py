"""Answers a visitor's question about a waiting pod or a node: the explanation, and its events.

Explanations are made from the objects that the page mirrors. The words are those of ``tessera why``, with aliases:

1. The names of nodes and pods that the reader may not see are replaced in the objects *before* the explanation is made
   from them, by the aliases that the page shows. So no text can name what its maker did not know.
2. Free texts of nodes are left out: messages of conditions, and annotations other than the offers.
3. No label of a node is named but those that the pod itself names.

Explanations are made in a thread, one after the other, and a bounded number wait: nobody can slow the feed by clicks.
Each visitor gets an answer before any other gets two.

Events are read with the visitor's own token, so the API server decides who may see them, and the page's account needs
no right to events.
"""

import asyncio
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from tessera.access.agent_pages import FleetUsage
from tessera.api.nodes.silence import SilentNode
from tessera.dashboard.aliases import Aliases, name_own_nodes
from tessera.dashboard.source import PERIOD, ClusterSource
from tessera.explain.explanation import OWNED_BY, Explanation, ExplanationReport
from tessera.explain.nodes import explain_node
from tessera.explain.pods import explain_pod, may_hold_several
from tessera.explain.query import NODE_EVENTS
from tessera.explain.queue import is_queued
from tessera.explain.rollouts import old_pods
from tessera.explain.snapshot import ClusterView, Snapshot, event_time
from tessera.forecast.queue_page import QueuePage
from tessera.kube.client import Client
from tessera.kube.errors import NotFound, ServiceUnavailable, Status
from tessera.kube.resources import EVENTS, RESOURCE_QUOTAS, CoreEvent, Pod, ResourceQuota
from tessera.serving.fair_shares import FairTurns, NoTurnError
from tessera.visibility import Redactor, Visibility

#: Most explanations of waiting pods that wait to be made, each user's in turn with those of others; a further one takes
#: the place of one of the user with most, or is refused with 503. Each takes milliseconds to a second, one after the
#: other.
PAGE_EXPLANATIONS = 32
#: What stands for the namespace of a node; no namespace has this name.
OF_NODES = "-"
#: Most pods of one owner that an answer explains; a command explains the others from what they were told.
OWNED_EXPLAINED = 50
#: Kinds of a namespace that add facts for a reader who may list them there: plural names.
NAMESPACE_FACTS = (EVENTS.plural, RESOURCE_QUOTAS.plural)
#: Most seconds of age of the controller's queue for a pod that waits: ``tessera why`` and ``queue`` show no older one.
FRESH = 1.0
_NO_PAGES = FleetUsage()


class Answer(NamedTuple):
    """An explanation; ``complete`` is True if nothing that the reader could read directly would add to it."""

    report: ExplanationReport
    complete: bool = False


class PrivateExplainer:
    """Explains pods to readers with their rights.

    Args:
        source: mirrors the cluster.
        redactor: gives the aliases of the page.
    """

    def __init__(self, source: ClusterSource, redactor: Redactor) -> None:
        self._source = source
        self._redactor = redactor
        self._turns: FairTurns[str] = FairTurns(PAGE_EXPLANATIONS)

    async def explain(self, namespace: str, name: str, visibility: Visibility, key: str) -> ExplanationReport:
        """Explains a pod, or those of an owner, to a reader who may list the pods of the namespace; or a node.

        Args:
            namespace: of the pod; :data:`OF_NODES` for a node, and a reader who may see everything.
            name: of the node, of the pod; or :data:`~tessera.explain.explanation.OWNED_BY` and the UID of their
                controller, for all of its pods that do not run yet or whose node is known.
            visibility: what the reader may see.
            key: whose turn it is; the same for all requests that count as one user's.

        Raises:
            NotFound: there is no such pod, or no node for this reader.
            ApiError: too many explanations wait.
        """
        return (await self.answer(namespace, name, visibility, key, joined=False)).report

    async def answer(
        self,
        namespace: str,
        name: str,
        visibility: Visibility,
        key: str,
        readable: Collection[str] = (),
        *,
        joined: bool = True,
    ) -> "Answer":
        """As :meth:`explain`, with more facts.

        Args:
            namespace: of the pod.
            name: of the pod.
            visibility: what the reader may see.
            key: whose turn it is.
            readable: the kinds of :data:`NAMESPACE_FACTS` that the reader may list in the namespace.
            joined: says how the pod's cards are joined; the page's documents of cards say so themselves.
        """
        try:
            async with self._turns.turn(key):
                if namespace == OF_NODES and visibility.full:
                    silent = [each for each in (await self._source.read_fleet()).failures if each.node == name]
                    return Answer(await asyncio.to_thread(explain_node_of, self._source.objects, name, silent))
                pods = self._pods(namespace, name)
                if not pods:
                    raise NotFound(Status(code=404, reason="NotFound", message=f'pods "{name}" not found'))
                several = joined and any(map(may_hold_several, pods))
                fleet = await self._source.read_fleet() if several else _NO_PAGES
                return await self._answer(namespace, name, pods, visibility, readable, fleet)
        except NoTurnError:
            text = "many explanations are being made, some of them yours; try again"
            raise ServiceUnavailable(Status(code=503, message=text)) from None

    async def _answer(  # noqa: PLR0917 - of the caller's turn
        self,
        namespace: str,
        name: str,
        pods: Sequence[Pod],
        visibility: Visibility,
        readable: Collection[str],
        fleet: FleetUsage,
    ) -> "Answer":
        alone = len(pods) == 1 and not name.startswith(OWNED_BY)
        waits = any(not each.spec.node_name for each in pods)
        queue = await self._source.read_queue(FRESH if waits else PERIOD)
        events, quotas = await self._source.read_namespace(pods[0], readable) if alone else (None, None)
        await self._source.read_order()
        page = queue if isinstance(queue, QueuePage) else None
        objects = self._source.objects
        found = await asyncio.to_thread(
            explain_privately,
            objects,
            pods,
            visibility,
            self._redactor,
            page,
            fleet=fleet,
            events=events,
            quotas=quotas,
        )
        report = ExplanationReport(kind="pod", namespace=namespace, name=name, answers=tuple(found))
        whole = alone and events is not None and quotas is not None
        return Answer(report, whole and _is_mirrored(pods[0], objects.pods, page))

    def _pods(self, namespace: str, name: str) -> Sequence[Pod]:
        if not name.startswith(OWNED_BY):
            pod = self._source.pod(namespace, name)
            return () if pod is None else (pod,)
        owned = self._source.owned_pods(namespace, name.removeprefix(OWNED_BY))
        return sorted(owned, key=lambda pod: (bool(pod.spec.node_name), pod.metadata.name))[:OWNED_EXPLAINED]


def _is_mirrored(pod: Pod, pods: Sequence[Pod], page: QueuePage | None) -> bool:
    """True if an explanation of the pod rests on nothing but what the page mirrors and the controller's queue.

    ResourceClaims, Kueue's Workloads and the Deployments of old pods are read by the command itself. Of a pod that
    waits, the queue shows that a controller runs, also while a new pod has no row in it yet.
    """
    if pod.spec.resource_claims or is_queued(pod):
        return False
    if pod.spec.node_name:
        return True
    return page is not None and page.leads and not old_pods(pods, pod)


def explain_node_of(objects: Snapshot, name: str, unanswered: Sequence[SilentNode] = ()) -> ExplanationReport:
    """Explains a node to a reader who may see everything.

    Args:
        objects: what the page mirrors.
        name: of the node.
        unanswered: the node, if its agent did not answer the page.

    Raises:
        NotFound: there is no such node.
    """
    found = [each for each in objects.nodes if each.metadata.name == name]
    if not found:
        raise NotFound(Status(code=404, reason="NotFound", message=f'nodes "{name}" not found'))
    answer = explain_node(ClusterView(replace(objects, unanswered=unanswered)), found[0])
    return ExplanationReport(kind="node", namespace="", name=name, answers=(answer,))


def explain_privately(
    objects: Snapshot,
    pods: Sequence[Pod],
    visibility: Visibility,
    redactor: Redactor,
    page: QueuePage | None = None,
    *,
    fleet: FleetUsage = _NO_PAGES,
    events: Sequence[CoreEvent] | None = None,
    quotas: Sequence[ResourceQuota] | None = None,
) -> list[Explanation]:
    """Explains pods to a reader who may list the pods of their namespace.

    Args:
        objects: what the page mirrors.
        pods: the pods.
        visibility: what the reader may see.
        redactor: gives the aliases of the page.
        page: the controller's queue, if it could be read.
        fleet: the agents' pages, if a pod may hold several cards.
        events: of the only pod; None if the reader may not list them.
        quotas: of its namespace; None if the reader may not list them.
    """
    visibility = name_own_nodes(visibility, objects.pods)
    aliases = Aliases(visibility, redactor)
    shown = objects if visibility.full else aliases.hide(objects)
    uids = {each.metadata.uid for each in pods}
    about = [each for each in shown.pods if each.metadata.uid in uids]
    snapshot = replace(
        shown,
        events=events or (),
        quotas=quotas or (),
        forbidden=frozenset({*(objects.forbidden - {"events"}), "leases", *(["events"] if events is None else [])}),
        hides_labels=not visibility.nodes,
        page=page and aliases.hide_queue(page),
        pages=aliases.hide_fleet(fleet).nodes,
    )
    view = ClusterView(snapshot)
    return [explain_pod(view, each) for each in about]


#: The most events that are read, and that are shown, the newest first. Controllers repeat an event by its count.
_READ, _SHOWN = 200, 20
#: Names of namespaces and pods (RFC 1123).
_NAME = re.compile(r"[a-z0-9.-]{1,253}")


class PodEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event, as ``kubectl describe`` shows it.

    Attributes:
        type: ``Normal`` or ``Warning``.
        reason: the kind of event.
        message: the event in words.
        last: Unix time of the last one; 0 if it has no time.
        count: how many there were.
    """

    type: str
    reason: str
    message: str
    last: float
    count: int


class PodEvents:
    """Reads events.

    Args:
        client: of the API server.
        own_account: True if visitors without a token use the client's own account: the page on a laptop.
    """

    def __init__(self, client: Client, *, own_account: bool) -> None:
        self._client = client
        self._own_account = own_account

    async def read(self, namespace: str, pod: str, authorization: str | None) -> list[PodEvent] | None:
        """The newest events of a pod or a node; None if the visitor has no token, or the names are none.

        Args:
            namespace: of the pod; :data:`~tessera.dashboard.explainer.OF_NODES` for a node.
            pod: its name, or the node's.
            authorization: the visitor's header.

        Raises:
            ApiError: the API server refused.
            OSError: it did not answer.
        """
        named = _NAME.fullmatch(namespace) and _NAME.fullmatch(pod)
        if not named or (authorization is None and not self._own_account):
            return None
        kind = "Node" if namespace == OF_NODES else "Pod"
        about = f"involvedObject.kind={kind},involvedObject.name={pod}"
        answer = await self._client.request(
            "GET",
            EVENTS.path(NODE_EVENTS if namespace == OF_NODES else namespace),
            query=[("fieldSelector", about), ("limit", str(_READ))],
            headers={} if authorization is None else {"authorization": authorization},
        )
        page = self._client.codec(EVENTS).decode_page(answer.body)
        newest = sorted(page.items, key=event_time, reverse=True)[:_SHOWN]
        return [
            PodEvent(
                type=each.type,
                reason=each.reason,
                message=each.message,
                last=event_time(each),
                count=max(1, each.count, each.series.count if each.series else 0),
            )
            for each in newest
        ]
