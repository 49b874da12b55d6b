"""Reads the queue: the controller's page through the API server, or what the user's own pods were told.

A user who may not read the page reads the conditions of the pods that he may list: position, start and reason stand
there in words.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from tessera.access.page_reader import CONTROLLER_AUDIENCE, PageReader
from tessera.api.instaslice import INSTASLICES, KIND_MISSING
from tessera.api.names import INSTASLICE_NAMESPACE, SLICE_PROMISED_CONDITION, SYSTEM_NAMESPACE
from tessera.clock import SystemClock, parse_time_or_zero
from tessera.forecast.queue_page import CONTROLLER_PORT, QUEUE_PATH, QueuedPod, QueuePage, case_of, decode_page
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, NotFound, is_unanswered
from tessera.kube.resources import PODS, Pod
from tessera.limits import Limit
from tessera.signals.page import SIGNALS_PATH, SignalsPage

QUEUE_PAGE = Limit(
    16 * 2**20,
    "bytes",
    "the controller's page `/queue`, as a command reads it",
    "5,000 pods have 3 MiB",
)

#: Label of the controller's pods, as deploy/ has it.
_LABEL = "app.kubernetes.io/name=tessera-controller"


P = TypeVar("P", QueuePage, SignalsPage)
T = TypeVar("T")


@dataclass(frozen=True)
class _PageKind(Generic[P]):
    """A page of the controller: its path, the feature that it belongs to, and its reader."""

    path: str
    feature: str
    decode: Callable[[bytes], P]


_QUEUE = _PageKind(QUEUE_PATH, "forecast", decode_page)
_SIGNALS = _PageKind(SIGNALS_PATH, "signals", msgspec.json.Decoder(SignalsPage).decode)


async def page_or_reason(reading: Awaitable[T | str]) -> T | str:
    """What is read, or why it cannot be."""
    try:
        return await reading
    except (ApiError, OSError) as error:
        return " ".join(str(error).split())


class QueueReading(msgspec.Struct, frozen=True, kw_only=True):
    """The queue as one user sees it.

    Attributes:
        page: the waiting pods.
        told: True if the rows are what pods were told, which may be some minutes old.
        note: why the controller's page was not read; empty if it was.
    """

    page: QueuePage
    told: bool = False
    note: str = ""


async def read_queue(client: Client, reader: PageReader | None = None) -> QueuePage | str:
    """Reads the page of the controller that leads.

    Args:
        client: the user's client.
        reader: reads pages as the user; None for one reading.

    Returns:
        The page, or the reason that no controller answers.

    Raises:
        Forbidden: the user may not list Tessera's pods, or not read the page.
    """
    return await _read_leader(_QUEUE, client, reader or PageReader(client, SystemClock()))


async def read_signals(client: Client, reader: PageReader) -> SignalsPage | str:
    """Reads the signals of services from the controller that leads; arguments, result and errors as above."""
    return await _read_leader(_SIGNALS, client, reader)


async def _read_leader(kind: _PageKind[P], client: Client, reader: PageReader) -> P | str:
    try:
        pods = (await client.list(PODS, SYSTEM_NAMESPACE, label_selector=_LABEL)).items
    except (ApiError, OSError) as error:
        if isinstance(error, ApiError) and not is_unanswered(error):
            raise
        return f"the controller's pods could not be read: {' '.join(str(error).split())}"
    if not pods:
        return f"no controller runs in {SYSTEM_NAMESPACE}; tessera doctor says whether Tessera is installed"
    why = ""
    for pod in sorted(pods, key=lambda each: each.metadata.name):
        found = await _read_page(kind, reader, pod)
        if not isinstance(found, str) and found.leads:
            return found
        why = why or (found if isinstance(found, str) else "")
    return why or f"no controller leads at this moment{await _kind_it_waits_for(client)}"


async def _kind_it_waits_for(client: Client) -> str:
    """The end of a sentence about a controller that does not lead: it begins once it has read the nodes' records."""
    try:
        await client.page(INSTASLICES, INSTASLICE_NAMESPACE, limit=1)
    except NotFound:
        return f": {KIND_MISSING}"
    except (ApiError, OSError):
        pass  # nothing is known of it
    return ""


async def _read_page(kind: _PageKind[P], reader: PageReader, pod: Pod) -> P | str:
    name = pod.metadata.name
    try:
        answer = await reader.get(pod.metadata.namespace, name, CONTROLLER_PORT, kind.path, CONTROLLER_AUDIENCE)
    except Forbidden:
        raise
    except NotFound as error:
        words = " ".join(error.status.message.split())
        return f"the controller {name} has no page {kind.path}, as one that runs --without {kind.feature}: {words}"
    except (ApiError, OSError) as error:
        return f"the controller {name} does not answer: {' '.join(str(error).split())}"
    if len(answer.body) > QUEUE_PAGE:
        return f"the page of the controller {name} is too large; read are {QUEUE_PAGE}"
    try:
        return kind.decode(answer.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"the page of the controller {name} cannot be read: {error}"


async def read_told(client: Client, namespace: str | None, now: float, note: str) -> QueueReading:
    """Reads what waiting pods were told.

    Args:
        client: the user's client.
        namespace: whose pods; None for all.
        now: seconds since 1970.
        note: why the controller's page is not read.

    Raises:
        Forbidden: the user may not list these pods.
    """
    pods = (await client.list(PODS, namespace)).items
    return QueueReading(page=QueuePage(taken=now, pods=told_rows(pods)), told=True, note=note)


def told_rows(pods: Sequence[Pod]) -> tuple[QueuedPod, ...]:
    """The waiting pods with slices among these, the oldest first.

    Of a pod with ResourceClaims, what it was told shows that it waits; its slices are named in that text alone.
    """
    from tessera.controller.objects.pod_info import read_pod  # a third of the modules of a command that needs it not

    rows = []
    for pod in pods:
        facts, told = read_pod(pod), told_condition(pod)
        by_claims = facts.device_claims and told is not None and not facts.node
        if facts.finished or not (by_claims or (facts.gated and facts.profiles)):
            continue
        rows.append(
            QueuedPod(
                namespace=facts.namespace,
                name=facts.name,
                uid=facts.uid,
                profiles=facts.profiles,
                since=parse_time_or_zero(facts.waits_since or facts.created),
                priority=facts.priority,
                reason=case_of(told[0]) if told else "",
                detail=told[1] if told else "",
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.since, row.key)))


def told_condition(pod: Pod) -> tuple[str, str] | None:
    """Reason and message of a pod's condition about its wait; None if it has none, or waits no more."""
    for each in pod.status.conditions:
        if (each.type, each.status) == (SLICE_PROMISED_CONDITION, "False"):
            return each.reason, each.message
    return None
