"""The events of a pod or a node for a visitor of the page.

They are read with the visitor's own token, so the API server decides who may see them, and the page's account needs no
right to events.
"""

import re

import msgspec

from tessera.dashboard.explainer import OF_NODES
from tessera.explain.query import NODE_EVENTS
from tessera.explain.snapshot import event_time
from tessera.kube.client.client import Client
from tessera.kube.resources import EVENTS

#: The most events that are read, and that are shown, the newest first. Controllers repeat an event by its count.
_READ, _SHOWN = 200, 20
#: What names of namespaces and pods are made of (RFC 1123).
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
