"""Rows of services, as ``tessera top --by services`` and the live page show them: what is known of each, joined. Pure.

The controller's signals say which services there are, with their pods, load and room; its queue when the next pod
starts; the agents' pages what the pods do on their cards. Nothing is counted anew here. What one of them does not know
is ``None``, never 0: while no agent lists a pod that is on a node, as on a dead one, power and activity of its service
are unknown.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tessera.access.agent_pages import FleetUsage
from tessera.api.nodes.usage import LeaseUsage
from tessera.forecast.queue_page import ExpectedStart, QueuedPod, QueuePage, whole_minute
from tessera.observe.usage_rows import WASTED_STATES, largest_first
from tessera.reasons.reason import OldPods, UpdateStep
from tessera.signals.page import (
    JOULES,
    KV_CACHE,
    REQUESTS,
    ROOM,
    RUNNING,
    TTFT_P90,
    WAITING,
    Service,
    SignalsPage,
    sum_power,
)
from tessera.visibility import NodeName, OwnedText, Public

#: The kind of a finding about the card itself.
CARD_FAULT = "card fault"
#: Pods of an update that are named.
_NAMED = 8
#: Steps that do not end before a person acts.
_STUCK = frozenset({UpdateStep.STAY, UpdateStep.IMAGE, UpdateStep.REFUSED, UpdateStep.FAILED})
#: Steps of updates in some words.
_STATES = {
    UpdateStep.STAY: "old and new pods wait for each other",
    UpdateStep.FOLLOW: "the next old pod ends once new ones are ready",
    UpdateStep.SHORT: "waits for ready pods",
    UpdateStep.PULL: "images are being pulled",
    UpdateStep.IMAGE: "an image is refused",
    UpdateStep.END: "an old pod ends",
    UpdateStep.REFUSED: "an eviction is refused",
    UpdateStep.FAILED: "a new pod failed, the old revision is back",
    UpdateStep.BACK: "a new pod starts",
}


class ServiceFinding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Something that is wrong with pods of a service, or with their cards.

    Attributes:
        kind: in words: ``throttled``, ``never used``, ``card fault``.
        pods: the pods that have it.
        pod: the one that has it the longest.
        node: its node.
        text: the evidence of that one: since when, measurements, what to do.
    """

    kind: Public
    pods: int
    pod: Public
    node: NodeName
    text: Public


class ServiceUpdate(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An update of a service whose pods wait for each other's slots.

    Attributes:
        step: what happens, as :class:`.UpdateStep` has it.
        state: the same in some words.
        stuck: it does not go on before a person acts.
        text: the pod that is next, and what ``tessera why`` says of it.
        said: what the server or kubelet says against it.
        since: Unix time since when; 0 if not known.
        new: pods of the new revision that wait, or that start where an old one waits.
        old: pods of older revisions whose slots they need or have got.
        node: the node to which images come; empty if none do, or it is not known.
        help: the ways out.
    """

    step: Public
    state: Public
    text: Public
    stuck: bool = False
    said: Public = ""
    since: float = 0.0
    new: tuple[Public, ...] = ()
    old: tuple[Public, ...] = ()
    node: NodeName = ""
    help: tuple[Public, ...] = ()


class ServiceRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A service: an owner whose pods hold or want cards, such as a Deployment.

    Attributes:
        namespace: its namespace.
        kind: of the owner.
        name: of the owner.
        ready: pods that are ready.
        wanted: pods that the owner states; if that is not known, those that it made and that have not ended.
        requests: requests per second that ended well, over a minute.
        running: requests that its pods compute.
        waiting: requests that wait in its pods.
        kv_cache: part of the KV cache in use.
        first_token: seconds to the first token of nine tenths of the requests.
        room: further pods that fit now.
        starts: pods that wait for a place.
        queued: names of the first of them.
        start: Unix time before which half of such pods as the next one start, a whole minute; None if not known.
        busy: share of time in which its cards compute, weighed by their size.
        power: its part of its cards' watts.
        joules: for 1,000 requests.
        unknown: pods that no agent reports.
        findings: what is wrong, one of each kind.
        update: an update that waits; None without one.
    """

    namespace: OwnedText
    kind: Public
    name: Public
    ready: int
    wanted: int
    requests: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache: float | None = None
    first_token: float | None = None
    room: int | None = None
    starts: int = 0
    queued: tuple[Public, ...] = ()
    start: float | None = None
    busy: float | None = None
    power: float | None = None
    joules: float | None = None
    unknown: int = 0
    findings: tuple[ServiceFinding, ...] = ()
    update: ServiceUpdate | None = None

    @property
    def troubles(self) -> int:
        """Pods with findings, those that no agent reports, and one for an update that waits for a person."""
        is_stuck = self.update is not None and self.update.stuck
        return self.unknown + sum(each.pods for each in self.findings) + is_stuck

    @property
    def key(self) -> str:
        """``namespace/Kind/name``."""
        return f"{self.namespace}/{self.kind}/{self.name}"


def missing_services(signals: SignalsPage | str) -> str:
    """The sentence about services that are not shown; empty if all are.

    Args:
        signals: of the services, or why nobody tells them.
    """
    if isinstance(signals, str):
        return f"services are not known{f': {signals}' if signals else ''}"
    return f"{signals.cut:,} more services are not shown" if signals.cut else ""


class _Held(NamedTuple):
    node: str
    lease: LeaseUsage


class _Found(NamedTuple):
    """A finding of one pod, and the seconds that it lasts."""

    kind: str
    text: str
    lasts: float
    held: _Held


def service_rows(
    signals: SignalsPage | str | None, fleet: FleetUsage, queue: QueuePage | str | None
) -> list[ServiceRow]:
    """The services, by namespace, kind and name; none if they are not known.

    Args:
        signals: of all services; why nobody tells them, or None, if they are not known.
        fleet: the agents' pages.
        queue: the waiting pods; the same if they are not known.
    """
    if not isinstance(signals, SignalsPage):
        return []
    held: dict[tuple[str, str], list[_Held]] = {}
    for page in fleet.nodes:
        for lease in page.leases:
            held.setdefault((lease.namespace, lease.owner), []).append(_Held(page.node, lease))
    waiting = queue.pods if isinstance(queue, QueuePage) else ()
    starts = {row.key: row.start for row in waiting}
    updates: dict[tuple[str, str, str], list[QueuedPod]] = {}
    for row in waiting:
        if isinstance(row.why, OldPods):
            updates.setdefault((row.namespace, "Deployment", row.why.deployment), []).append(row)
    return [
        _row(
            each,
            held.get((each.namespace, f"{each.kind}/{each.name}"), ()),
            starts,
            updates.get((each.namespace, each.kind, each.name), ()),
        )
        for each in signals.services
    ]


def _row(
    service: Service, held: Sequence[_Held], starts: Mapping[str, ExpectedStart], updating: Sequence[QueuedPod]
) -> ServiceRow:
    values = service.values
    if service.nodes:  # a node tells of the pods that it has, and of no others
        held = [each for each in held if each.node in service.nodes]
    unknown = _count_unknown(service, held)
    complete = held if not unknown else ()
    power = sum_power([each.lease.power for each in complete])
    room, joules, requests = values.get(ROOM), values.get(JOULES), values.get(REQUESTS)
    return ServiceRow(
        namespace=service.namespace,
        kind=service.kind,
        name=service.name,
        ready=service.ready,
        wanted=service.wanted if service.stated is None else service.stated,
        requests=None if requests is None else round(requests, 2),
        running=values.get(RUNNING),
        waiting=values.get(WAITING),
        kv_cache=values.get(KV_CACHE),
        first_token=values.get(TTFT_P90),
        room=None if room is None else int(room),
        starts=max(0, service.wanted - service.placed),
        queued=service.waiting,
        start=_next_start(service, starts),
        busy=_busy([each.lease for each in complete]),
        power=None if power is None else round(power),
        joules=None if joules is None else round(joules),
        unknown=unknown,
        findings=tuple(_join(_find(held))),
        update=_update(updating, held),
    )


def _count_unknown(service: Service, held: Sequence[_Held]) -> int:
    """The pods on nodes that no agent tells of. What one node tells makes up for no other one that is silent."""
    if not service.nodes:
        return max(0, service.placed - len({each.lease.uid for each in held}))
    told = Counter(node for node, _ in {(each.node, each.lease.uid) for each in held})
    return sum(max(0, number - told[node]) for node, number in service.nodes.items())


def _next_start(service: Service, starts: Mapping[str, ExpectedStart]) -> float | None:
    keys = (f"{service.namespace}/{name}" for name in service.waiting)
    known = [start.p50 for key in keys if (start := starts.get(key)) is not None and start.p50 is not None]
    return whole_minute(min(known)) if known else None


def _update(updating: Sequence[QueuedPod], held: Sequence[_Held]) -> ServiceUpdate | None:
    """What the pod that is next in an update says of it; others follow it."""
    whys = [(row, row.why) for row in updating if isinstance(row.why, OldPods)]
    if not whys:
        return None
    from tessera.reasons.words import steps, verdict

    first, reason = min(whys, key=lambda each: each[1].step in {UpdateStep.FOLLOW, UpdateStep.BACK})
    is_back = reason.step is UpdateStep.BACK
    waiting = tuple(row.name for row, why in whys if (why.step is UpdateStep.BACK) == is_back)[:_NAMED]
    others = tuple(key.partition("/")[2] for key in reason.old)[:_NAMED]
    brings = reason.step in {UpdateStep.PULL, UpdateStep.IMAGE}
    return ServiceUpdate(
        step=reason.step.value,
        state=_STATES[reason.step],
        stuck=reason.step in _STUCK,
        text=f"pod {first.name} {verdict(reason)}",
        said=reason.said,
        since=reason.since,
        new=others if is_back else waiting,
        old=waiting if is_back else others,
        node=next((each.node for each in held if brings and each.lease.pod == others[0]), "") if others else "",
        help=steps(reason, first.namespace),
    )


def _busy(leases: Sequence[LeaseUsage]) -> float | None:
    whole = sum(each.share for each in leases)
    known = [each.share * each.busy for each in leases if each.busy is not None]
    return round(sum(known) / whole, 2) if whole > 0 and len(known) == len(leases) else None


def _find(held: Iterable[_Held]) -> Iterator[_Found]:
    for each in held:
        lease = each.lease
        if lease.fault:
            yield _Found(CARD_FAULT, lease.fault, 0.0, each)
        if lease.state in WASTED_STATES:
            name = lease.state.replace("_", " ")
            yield _Found(name, f"{name}: {lease.evidence}", lease.held, each)
        for finding in lease.findings:
            yield _Found(finding.name, finding.sentence, finding.lasts, each)


def _join(found: Iterable[_Found]) -> Iterator[ServiceFinding]:
    """One finding of each kind, those of most pods first."""
    kinds: dict[str, list[_Found]] = {}
    for each in found:
        kinds.setdefault(each.kind, []).append(each)
    pods = {kind: len({each.held.lease.uid for each in several}) for kind, several in kinds.items()}
    for kind in sorted(kinds, key=lambda name: (-pods[name], name)):
        worst = max(kinds[kind], key=lambda each: each.lasts)
        place, lease = worst.held
        yield ServiceFinding(kind=kind, pods=pods[kind], pod=lease.pod, node=place, text=worst.text)


#: Orders of services by name, each with the largest first.
SERVICE_ORDERS: Mapping[str, Callable[[ServiceRow], float]] = {
    "requests": largest_first(lambda row: row.requests),
    "waiting": largest_first(lambda row: row.waiting),
    "busy": largest_first(lambda row: row.busy),
    "power": largest_first(lambda row: row.power),
    "joules": largest_first(lambda row: row.joules),
    "findings": largest_first(lambda row: row.troubles),
}
