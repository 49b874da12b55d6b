"""Carries out the startup judgements: removes startup taints, reports late nodes, replaces a few of them.

Each round judges the nodes that changed and those whose time is up, and sends its writes in sequence. After a failed
write the node is judged again, after a pause. A write is remembered until the node shows it, so nothing is written
twice.
"""

import logging
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from tessera.api.nodes.node_marks import PROVISIONED, PROVISIONED_MANAGER, is_marked_silent
from tessera.clock import rfc3339
from tessera.kube.cache import Cache
from tessera.kube.errors import ApiError, Conflict, Forbidden, NotFound
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import NODES, Node, ObjectReference
from tessera.kube.retries import Backoff
from tessera.limits import CONDITION_MESSAGE
from tessera.provisioning.milestones import ProvisioningRecord
from tessera.provisioning.recording import HistoryStore, ProvisioningMetrics
from tessera.provisioning.replacement import (
    ReplacementAnswer,
    Replacer,
    decide_replacement,
    has_no_driver_status,
    shared_cause,
)
from tessera.provisioning.startup_deadline import (
    BLOCKING,
    EXTENDED,
    ProvisionedCondition,
    ProvisioningOptions,
    StartupDeadline,
    StartupJudgement,
    judge_startup,
    startup_taints,
)
from tessera.provisioning.tracker import Tracker
from tessera.text import one_line

_log = logging.getLogger(__name__)

#: Seconds after which a replacement that was refused, or failed, is judged again.
_AGAIN = 60.0


class StartupController:
    """Judges starting nodes and carries the judgements out.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        nodes: all nodes.
        tracker: the nodes' records.
        store: the history of records.
        replacer: requests replacements.
        events: writes events about nodes.
        metrics: the metrics.
        options: see :class:`~tessera.provisioning.startup_deadline.ProvisioningOptions`.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        *,
        nodes: Cache[Node],
        tracker: Tracker,
        store: HistoryStore,
        replacer: Replacer,
        events: EventRecorder,
        metrics: ProvisioningMetrics,
        options: ProvisioningOptions,
    ) -> None:
        self._client = runtime.client
        self._conditions = runtime.client.with_field_manager(PROVISIONED_MANAGER)
        self._clock = runtime.clock
        self._nodes = nodes
        self._tracker = tracker
        self._store = store
        self._replacer = replacer
        self._events = events
        self._metrics = metrics
        metrics.expect_reasons(reason for reason, _ in BLOCKING.values())
        self._options = options
        self._may_act = runtime.may_act
        self._backoff = Backoff(runtime.rng)
        self._deadline = StartupDeadline(seconds=options.deadline, began=runtime.clock.now(), grace=options.grace)
        #: By node name, the latest time of its next judgement, seconds since 1970. Without an entry, only a change of
        #: the node leads to a judgement. No entry outlives its node.
        self._due: dict[str, float] = {}
        #: By node UID, the resourceVersion at which the taints were removed. While the cache has this version, the
        #: write is not repeated. No entry outlives its node; the same holds for the two dicts below.
        self._taints_removed: dict[str, str] = {}
        #: By node UID, the condition that this controller wrote last. An equal condition is not written again.
        self._written: dict[str, _ConditionText] = {}
        #: By node UID, the last reported obstacle to its replacement. An Event is sent only when the obstacle changes.
        self._reported_obstacles: dict[str, str] = {}

    def next_due(self) -> float | None:
        """Latest time of the next judgement, seconds since 1970; None if only a change requires it."""
        return min(self._due.values(), default=None)

    def remove_node(self, name: str, uid: str) -> None:
        """Forgets a deleted node."""
        self._due.pop(name, None)
        for known in (self._taints_removed, self._written, self._reported_obstacles):
            known.pop(uid, None)

    async def check_nodes(self, changed: Collection[str]) -> None:
        """Judges the changed nodes and the due ones, and carries the judgements out."""
        now = self._clock.now()
        late = [name for name, due in self._due.items() if due <= now]
        for name in dict.fromkeys((*sorted(changed), *late)):
            self._due.pop(name, None)
            node = self._nodes.get(name)
            if node is None or not self._may_act():
                continue
            try:
                await self._check_node(node, now)
            except (NotFound, Conflict):
                continue  # the node changed meanwhile, and a watch will show it
            except (ApiError, ConnectionError, TimeoutError) as error:
                pause = self._backoff.next()
                self._metrics.write_failed("startup")
                self._due[name] = now + pause
                _log.warning("node %s: a write of its startup failed, next attempt in %.1f s: %s", name, pause, error)
            else:
                self._backoff.reset()

    async def _check_node(self, node: Node, now: float) -> None:
        record = self._tracker.records.get(node.metadata.name)
        if record is not None and record.uid != node.metadata.uid:
            return  # the tracker has not observed this node yet, and reports it then
        found = judge_startup(node, record, keys=self._options.startup_taints, deadline=self._deadline, now=now)
        if found.due is not None and found.due > now:
            self._due[node.metadata.name] = found.due
        if found.remove_taints:
            await self._remove_taints(node)
        if found.condition is not None:
            await self._write_condition(node, found.condition, now)
            if found.condition.overdue:
                await self._replace(node, found, now)

    async def _remove_taints(self, node: Node) -> None:
        """Removes the startup taints and no others."""
        meta = node.metadata
        if self._taints_removed.get(meta.uid) == meta.resource_version:
            return
        keys = self._options.startup_taints
        stay = [msgspec.to_builtins(each) for each in node.spec.taints if each.key not in keys]
        gone = ", ".join(each.key for each in startup_taints(node, keys))
        patch = {"spec": {"taints": stay or None}}
        await self._client.merge_patch(NODES, meta.name, patch, uid=meta.uid, resource_version=meta.resource_version)
        self._taints_removed[meta.uid] = meta.resource_version
        self._metrics.taint_removed()
        self._events.record(_about(node), "StartupTaintRemoved", f"offers all its cards; {gone} is removed")

    async def _write_condition(self, node: Node, desired: ProvisionedCondition, now: float) -> None:
        """Writes the condition if its content changes, and an Event if its reason changes."""
        meta, desired = node.metadata, msgspec.structs.replace(desired, text=one_line(desired.text, CONDITION_MESSAGE))
        shown = node.status.condition(PROVISIONED)
        before = (
            _ConditionText(shown.status, shown.reason, _stable_text(shown.reason, shown.message)) if shown else None
        )
        text = _ConditionText(desired.status, desired.reason, _stable_text(desired.reason, desired.text))
        marked = shown is not None and is_marked_silent(shown)
        if text == before or (text == self._written.get(meta.uid) and not marked):
            return
        since = shown is not None and shown.status == desired.status and shown.last_transition_time
        condition = {
            "type": PROVISIONED,
            "status": desired.status,
            "reason": desired.reason,
            "message": desired.text,
            "lastHeartbeatTime": rfc3339(now),
            "lastTransitionTime": since or rfc3339(now),
        }
        body = {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}
        await self._conditions.apply(NODES, meta.name, body, subresource="status")
        self._written[meta.uid] = text
        if desired.overdue:
            self._metrics.overdue(desired.reason)
            self._events.record(_about(node), desired.reason, f"overdue: {desired.text}", type="Warning")
        elif desired.reason == EXTENDED and (before is None or before.reason != EXTENDED):
            self._events.record(_about(node), "StartupDeadlineExtended", desired.text)

    async def _replace(self, node: Node, found: StartupJudgement, now: float) -> None:
        """Replaces an overdue node, if that is allowed and the limit is not reached."""
        name, record = node.metadata.name, self._tracker.records.get(node.metadata.name)
        if record is None or found.condition is None:
            return
        request = self._tracker.machine_request(name)
        decision = decide_replacement(
            record,
            self._store.history.nodes.values(),
            limit=self._options.replace_failed,
            now=now,
            deleting=node.metadata.deletion_timestamp is not None or (request is not None and request.deleting),
            cordoned=node.spec.unschedulable,
            shared_cause=shared_cause(node, record, found.condition, deadline=self._deadline, now=now),
            annotations=(node.metadata.annotations, *([request.annotations] if request is not None else [])),
        )
        why = decision.text
        if decision.answer is ReplacementAnswer.REPLACE:
            why = self._replacer.obstacle(node, request) or await self._missing_policy(node, record, found.condition)
        if why:
            self._report_obstacle(node, why, now)
        elif decision.answer is ReplacementAnswer.REPLACE:
            self._due[name] = now + _AGAIN
            try:
                deleted = await self._replacer.replace(node, request, now)
            except Forbidden as error:
                self._report_obstacle(node, f"the controller lacks a right that this takes ({error.message})", now)
                return
            if record.replaced is None:
                self._metrics.count_replaced()
                note = f"{found.condition.text}; {deleted} is deleted"
                self._events.record(_about(node), "GpuNodeReplaced", note, type="Warning", action="Delete")

    async def _missing_policy(self, node: Node, record: ProvisioningRecord, condition: ProvisionedCondition) -> str:
        """Reason that no policy brings a driver, to this node or another; empty if none needs to.

        Without any policy the host should have its driver, and another node might.
        """
        if not has_no_driver_status(node, condition):
            return ""
        refused = await self._replacer.invalid_policy()
        gone = "no policy brings a driver to this node or to another any more"
        return refused or (gone if record.waits is not None else "")

    def _report_obstacle(self, node: Node, why: str, now: float) -> None:
        """Reports once the obstacle to a node's replacement; judges it again later, since obstacles pass."""
        self._due[node.metadata.name] = now + _AGAIN
        if self._reported_obstacles.get(node.metadata.uid) != why:
            self._reported_obstacles[node.metadata.uid] = why
            self._events.record(_about(node), "GpuNodeReplacementDelayed", f"is not replaced: {why}", type="Warning")


class _ConditionText(NamedTuple):
    """The text of a condition, reduced to the parts whose change requires a write."""

    status: str
    reason: str
    text: str


def _stable_text(reason: str, text: str) -> str:
    """For an extended deadline the whole text, since it names the awaited thing; others contain seconds."""
    return text if reason == EXTENDED else ""


def _about(node: Node) -> ObjectReference:
    return make_reference(NODES, node.metadata.name, uid=node.metadata.uid)
