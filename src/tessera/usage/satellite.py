"""GPU-hours as a satellite of the controller: reads the agents' pages, and writes the record.

Each round asks every agent once through the API server's proxy. The record is one ConfigMap; it is written after each
round of the first :data:`WRITE_PERIOD` of a leader, so that a new installation shows something, and then once in that
time, however many pods come and go. What a killed controller did not write is counted again by the next one, from the
time that the record has for each node.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tessera.access.agent_pages import FleetUsage, read_fleet
from tessera.access.page_reader import PageReader
from tessera.api.names import SYSTEM_NAMESPACE, USER_KEY
from tessera.api.nodes.node_marks import is_agent
from tessera.api.nodes.usage import EndedLease, LeaseUsage, NodeUsage
from tessera.controller.satellite import Process, Task, Term
from tessera.kube.errors import ApiError
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.informer import Informer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.persistent_config_map import PersistentConfigMap
from tessera.kube.resources import CONFIGMAPS, NAMESPACES, Node, Pod
from tessera.usage.ledger import LeaseOwner, NodeGone, NodeSilent, PageRead, UsageLedger
from tessera.usage.record import (
    BROKEN_KEY,
    RECORD_KEY,
    RECORD_NAME,
    USAGE_TEAMS,
    UsageRecord,
    decode_record,
    encode_record,
    short_name,
    with_label,
)

_log = logging.getLogger(__name__)

#: Seconds between two rounds, and between two writes.
PERIOD = 60.0
WRITE_PERIOD = 300.0
#: Pods that are gone, whose owners are known until their GPU-hours are counted: a hundred that end in each second of a
#: round.
_PAST_HOLDERS = 10_000
#: Characters of an unreadable record that is set aside: enough to see what happened.
_BROKEN = 64 * 1024
#: The label by which GPU-hours are counted too.
LABEL_KEY = "app.kubernetes.io/part-of"


@dataclass(frozen=True, kw_only=True)
class UsageOptions:
    """Options of :class:`UsageRecorder`.

    Attributes:
        namespace: namespace of the ConfigMap, the deployment's.
        user: key of the label, or else the annotation, that names a pod's user.
        label: key of the label by which GPU-hours are counted too.
        team_label: key of the namespaces' label that names their teams; empty for none.
    """

    namespace: str = SYSTEM_NAMESPACE
    user: str = USER_KEY
    label: str = LABEL_KEY
    team_label: str = ""


class UsageRecorder:
    """Reads, counts and writes.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        nodes: all nodes; run by the caller.
        pods: all pods; run by the caller.
        events: records that a record cannot be read.
        options: see :class:`UsageOptions`.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        *,
        nodes: Informer[Node],
        pods: Informer[Pod],
        events: EventRecorder,
        options: UsageOptions,
    ) -> None:
        self._client = runtime.client
        self._reader = PageReader(runtime.client, runtime.clock)
        self._clock = runtime.clock
        self._nodes = nodes
        self._pods = pods
        self._events = events
        self._options = options
        self._ledger = UsageLedger(UsageRecord(label=options.label))
        self._broken = ""
        #: Owners of pods that are gone, with their node, by UID; the newest last.
        self._past: OrderedDict[str, tuple[str, LeaseOwner]] = OrderedDict()
        self._warned = False
        self._map = PersistentConfigMap(
            runtime.client,
            runtime.clock,
            namespace=options.namespace,
            name=RECORD_NAME,
            data=self._data,
            rng=runtime.rng,
            may_act=runtime.may_act,
        )
        pods.on_deleted(self._pod_deleted)

    async def write(self) -> None:
        """Writes requested changes until cancelled."""
        await self._map.run()

    async def run(self) -> None:
        """Counts until cancelled; begins once nodes and pods are listed."""
        await self._nodes.wait_synced()
        await self._pods.wait_synced()
        self._restore(await self._map.load())
        began = due = self._clock.monotonic()
        while True:
            await self._count()
            now = self._clock.monotonic()
            if self._ledger.record.periods and now >= due:
                await self._read_teams()
                self._map.mark_changed()
                due = now + (WRITE_PERIOD if now - began >= WRITE_PERIOD else 0.0)
            await self._clock.sleep(PERIOD)

    def _restore(self, data: Mapping[str, str]) -> None:
        text = data.get(RECORD_KEY, "")
        self._broken = data.get(BROKEN_KEY, "")[:_BROKEN]
        if not text:
            return
        try:
            record = decode_record(text)
        except ValueError as error:
            self._broken = text[:_BROKEN]
            message = f"the record cannot be read and is set aside under {BROKEN_KEY}; counting begins anew: {error}"
            _log.warning("ConfigMap %s/%s: %s", self._options.namespace, RECORD_NAME, message)
            about = make_reference(CONFIGMAPS, RECORD_NAME, self._options.namespace)
            self._events.record(about, "RecordsUnreadable", message, type="Warning")
            return
        if record.label != self._options.label:
            record = with_label(record, self._options.label)
        self._ledger = UsageLedger(record)

    def _data(self) -> dict[str, str]:
        broken = {BROKEN_KEY: self._broken} if self._broken else {}
        return {RECORD_KEY: encode_record(self._ledger.record), **broken}

    async def _count(self) -> None:
        """One round."""
        fleet = await self._read()
        now = self._clock.now()
        read = {usage.node for usage in fleet.nodes}
        for usage in fleet.nodes:
            node = self._nodes.cache.get(usage.node)
            if node is not None:
                self._ledger.handle(PageRead(usage, now, not node.spec.unschedulable, self._owners(usage)))
        for name in list(self._ledger.record.nodes):
            if self._nodes.cache.get(name) is None:
                self._ledger.handle(NodeGone(name))
            elif name not in read:
                self._ledger.handle(NodeSilent(name, now))

    async def _read_teams(self) -> None:
        """Reads which namespaces are of which teams; those of the last time remain if that fails."""
        record, label = self._ledger.record, self._options.team_label
        found = {}
        if label:
            try:
                listed = await self._client.list(NAMESPACES.metadata_only(), label_selector=label)
            except (ApiError, OSError) as error:
                _log.warning("teams are not read again: namespaces cannot be listed: %s", error)
                return
            held = {key.namespace for period in record.periods for key in period.rows}
            metas = sorted(
                (each.metadata for each in listed.items), key=lambda meta: (meta.name not in held, meta.name)
            )
            named = ((meta.name, short_name(meta.labels.get(label, ""))) for meta in metas)
            found = dict([each for each in named if each[1]][:USAGE_TEAMS])
        record.team_label, record.teams = label, found

    async def _read(self) -> FleetUsage:
        agents = [pod for pod in self._pods.cache.values() if is_agent(pod)]
        try:
            found = await read_fleet(self._reader, agents)
        except (ApiError, OSError) as error:
            if not self._warned:
                _log.warning("GPU-hours are not counted: agents' pages cannot be read: %s", error)
            self._warned = True
            return FleetUsage()
        self._warned = False
        return found

    # Owners

    def _owners(self, usage: NodeUsage) -> dict[str, LeaseOwner]:
        """The owners of the leases on a page, by UID; only of pods that the API server has, or had, on that node."""
        leases: list[LeaseUsage | EndedLease] = [*usage.leases, *usage.ended]
        found = {}
        for lease in leases:
            pod, past = self._pods.cache.get(f"{lease.namespace}/{lease.pod}"), self._past.get(lease.uid)
            if pod is not None and (pod.metadata.uid, pod.spec.node_name) == (lease.uid, usage.node):
                found[lease.uid] = self._owner(pod)
            elif past is not None and past[0] == usage.node:
                found[lease.uid] = past[1]
        return found

    def _owner(self, pod: Pod) -> LeaseOwner:
        meta, options = pod.metadata, self._options
        user = meta.labels.get(options.user) or meta.annotations.get(options.user, "")
        return LeaseOwner(meta.namespace, short_name(user), short_name(meta.labels.get(options.label, "")))

    def _pod_deleted(self, pod: Pod) -> None:
        if pod.spec.node_name and _asks_for_cards(pod):
            self._past[pod.metadata.uid] = pod.spec.node_name, self._owner(pod)
            while len(self._past) > _PAST_HOLDERS:
                self._past.popitem(last=False)


def _asks_for_cards(pod: Pod) -> bool:
    """True if a pod may have held cards; which of its ResourceClaims are for cards, its spec does not say."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    limits = (name for each in containers for name in each.resources.limits)
    return bool(pod.spec.resource_claims) or any(name.startswith("nvidia.com/") for name in limits)


@dataclass(frozen=True, kw_only=True)
class UsageSatellite:
    """Counts GPU-hours.

    Attributes:
        options: see :class:`~tessera.usage.satellite.UsageOptions`.
    """

    options: UsageOptions = field(default_factory=UsageOptions)

    def open(self, _process: Process) -> Callable[[Term], None]:
        """See :class:`~tessera.controller.satellite.Satellite`."""
        return self._join

    def _join(self, term: Term) -> None:
        recorder = UsageRecorder(
            term.runtime, nodes=term.nodes, pods=term.pods, events=term.events, options=self.options
        )
        term.tasks.append(Task(name="GPU-hours", run=recorder.run, at_once=True))
        term.tasks.append(Task(name="record of GPU-hours", run=recorder.write, at_once=True))
