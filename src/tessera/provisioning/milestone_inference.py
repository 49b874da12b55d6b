"""Infers the milestones of one node from everything observed about it at one moment. Pure: no state but the record.

Rules:

1. A known milestone stays: pods restart, conditions flap and drivers are upgraded, but the record is of the first
   startup of the node.
2. Facts, image and driver that no pod brought came with the node: if the host has the driver, they date from its
   registration. That is known only once the node's agent reports or its GPUs are offered.
3. The request of a node is that of its Machine or NodeClaim; else that of the pod that waited before the node existed
   and was the first to run on it.
4. A workload completes a record only if it waited for the node. A later one waited for something else.
5. Pods of an earlier node of the same name stay for a while; nothing of them counts.
6. For a node that existed before anybody asked for its driver, the record begins at that request, at the latest
   possible moment: the time before belongs to nobody's wait for a GPU.
7. A driver counts as held back from the time in its status until that status changes. So a restarted controller infers
   the same.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.provisioning.milestones import ROUNDED, Milestone, ProvisioningRecord
from tessera.provisioning.timestamps import MachineRequest, NodeTimestamps, PodTimestamps

#: Seconds within which two moments count as one; times in objects are whole seconds.
SAME_MOMENT = 5.0
#: Seconds until a node's driver is requested if a policy is in force: from its registration, or from when its labels
#: show a GPU. A running controller reacts at once; after a change of leader the new one reacts within half a minute.
PROMPTLY = 30.0
#: The same for other operators' drivers, from the node's Ready: NVIDIA's operator waits for labels of the node.
LABELS_TAKE = 120.0
#: Moments that may become known at any time.
_BEFORE = frozenset({Milestone.REQUESTED, Milestone.VM})
#: Moments of the node alone, which do not count in a record that began later.
_OF_THE_NODE = _BEFORE | {Milestone.REGISTERED, Milestone.READY}

Found = tuple[Milestone, float | None]


class Observations(msgspec.Struct, frozen=True, kw_only=True):
    """Everything observed about a node; pods in the sequence of their creation.

    Attributes:
        node: the node.
        request: the Machine or NodeClaim that it was made from; None if that is not known.
        drivers: pods that bring its driver.
        toolkits: pods that bring its container toolkit.
        validations: pods that validate its driver.
        workloads: pods on it that request GPUs.
        node_wanted_since: by a pod's UID, since when a node was wanted for it.
        witnessed: moments that only a running observer can know.
        newly_requested: its driver is requested now, and was not a moment ago.
        gpu_since: since when anything shows that the node has a GPU; None if that was always known.
    """

    node: NodeTimestamps
    request: MachineRequest | None = None
    drivers: Sequence[PodTimestamps] = ()
    toolkits: Sequence[PodTimestamps] = ()
    validations: Sequence[PodTimestamps] = ()
    workloads: Sequence[PodTimestamps] = ()
    node_wanted_since: Mapping[str, float] = {}
    witnessed: Mapping[Milestone, float | None] = {}
    newly_requested: bool = False
    gpu_since: float | None = None


def infer_milestones(record: ProvisioningRecord, observed: Observations) -> ProvisioningRecord:
    """Adds to the record everything that is known by now."""
    if not record.usable:
        record = infer_request(record, observed)
    at = dict(record.at)
    _add_milestones(
        at,
        (found for found in (*observed.witnessed.items(), *_from_objects(observed)) if _counts(found, record)),
        record,
    )
    if Milestone.ALLOCATABLE not in record.at:
        _add_milestones(at, _preinstalled_milestones(observed, at, usable=record.usable), record)
    if Milestone.WORKLOAD not in record.at:
        _add_milestones(at, _workload_milestones(observed, at, unseen=record.unseen), record)
    return msgspec.structs.replace(
        record, at=at, **_shared_wait(record, observed.node), **_descriptions(record, observed)
    )


def infer_request(record: ProvisioningRecord, observed: Observations) -> ProvisioningRecord:
    """Adds to the record the moment of the first request for the node's driver; see rule 6.

    If only a consequence of the request was observed, the moment at which the node's facts were known stays unknown.
    """
    if record.asked is not None and not observed.newly_requested:
        return record
    asked = min(_request_times(observed), default=None)
    if asked is None:
        return record
    if asked <= _latest_prompt_request(record, observed):
        return record if record.asked is not None else msgspec.structs.replace(record, asked=asked)
    known = (
        observed.newly_requested and observed.node.facts if observed.node.wanted else Milestone.LABELLED in record.at
    )
    at = {Milestone.LABELLED: asked} if known else {}
    return msgspec.structs.replace(record, asked=asked, at=at, pool="", strategy="", image="")


def _request_times(observed: Observations) -> Iterator[float]:
    """Moments by which a driver was requested; none if nobody requests it."""
    if observed.node.wanted and observed.node.driver_since is not None:
        yield observed.node.driver_since
    if not observed.newly_requested and (observed.node.wanted or not observed.node.managed):
        yield from (each.created for each in observed.drivers if each.created is not None)


def _latest_prompt_request(record: ProvisioningRecord, observed: Observations) -> float:
    """The latest moment at which a driver is requested for a node that is new."""
    registered = observed.node.registered
    if registered is None:
        return math.inf
    if observed.node.wanted:
        return (registered if observed.gpu_since is None else observed.gpu_since) + PROMPTLY
    return max(registered, record.at.get(Milestone.READY, observed.node.ready or registered)) + LABELS_TAKE


def _add_milestones(at: dict[Milestone, float], found: Iterable[Found], record: ProvisioningRecord) -> None:
    """Adds moments that were unknown, unless they precede the beginning of the record."""
    for milestone, moment in found:
        if moment is None or (record.late and (milestone in _OF_THE_NODE or moment < (record.asked or 0.0) - ROUNDED)):
            continue
        at.setdefault(milestone, moment)


def _counts(found: Found, record: ProvisioningRecord) -> bool:
    """True if a moment can belong to the record, and not to a restart or to an earlier node."""
    milestone, moment = found
    if moment is None or milestone in _BEFORE:
        return True
    usable, registered = record.at.get(Milestone.ALLOCATABLE), record.at.get(Milestone.REGISTERED)
    if registered is not None and moment < registered - SAME_MOMENT:
        return False
    return usable is None or (Milestone.WORKLOAD not in record.at and moment <= usable + SAME_MOMENT)


def _from_objects(observed: Observations) -> Iterator[Found]:
    """Moments that objects contain."""
    yield Milestone.REGISTERED, observed.node.registered
    yield Milestone.READY, observed.node.ready
    if observed.request is not None:
        yield Milestone.REQUESTED, observed.request.requested
        yield Milestone.VM, observed.request.vm_created
    for pod in observed.drivers:
        yield Milestone.PULLED, pod.started
        yield Milestone.DRIVER, pod.done
    for pod in observed.toolkits:
        yield Milestone.TOOLKIT, pod.done
    for pod in observed.validations:
        yield Milestone.VALIDATED, pod.done


def _preinstalled_milestones(observed: Observations, at: Mapping[Milestone, float], *, usable: bool) -> Iterator[Found]:
    """Moments of things that came with the node; see rule 2."""
    if observed.node.agent is None and not usable and Milestone.ALLOCATABLE not in at:
        return
    registered = at.get(Milestone.REGISTERED)
    if not observed.node.managed and not observed.drivers:
        for milestone in (Milestone.LABELLED, Milestone.PULLED, Milestone.DRIVER):
            yield milestone, registered
    if not observed.toolkits:
        driver = registered if not observed.node.managed and not observed.drivers else None
        yield Milestone.TOOLKIT, at.get(Milestone.DRIVER, driver)
    if not observed.validations:
        yield Milestone.VALIDATED, observed.node.agent


def _workload_milestones(observed: Observations, at: Mapping[Milestone, float], *, unseen: bool) -> Iterator[Found]:
    """Moments that only the first workload shows; see rules 3 and 4."""
    registered = at.get(Milestone.REGISTERED, observed.node.registered)
    # Pods that existed before their node waited for it, no matter when its GPUs became usable.
    usable = at.get(Milestone.ALLOCATABLE, registered if unseen else None)
    if usable is None:
        return
    started = [each for each in observed.workloads if each.started is not None]
    waited = [each for each in started if each.created is not None and each.created <= usable]
    own = [each for each in waited if registered is None or (each.started or 0.0) >= registered]
    first = min(own, key=lambda each: each.started or 0.0, default=None)
    if first is None:
        return
    yield Milestone.WORKLOAD, first.started
    asked = observed.node_wanted_since.get(first.uid)
    if asked is not None and registered is not None and asked <= registered:
        yield Milestone.REQUESTED, asked


def _shared_wait(record: ProvisioningRecord, node: NodeTimestamps) -> dict[str, float | None]:
    """Fields with the time for which a cause delayed this driver that would have delayed others too; see rule 7."""
    since, began = node.driver_since, record.waits
    if since is None or record.usable:
        return {}
    if node.held_back:
        return {"waits": since if began is None else began}
    return {} if began is None else {"waits": None, "waited": record.waited + max(0.0, since - began)}


def _descriptions(record: ProvisioningRecord, observed: Observations) -> dict[str, str | bool]:
    """The record's fields besides moments. The driver that counts is the one with which the GPUs became usable."""
    node, request = observed.node, observed.request
    now = {
        "pool": node.pool,
        "strategy": node.strategy or _strategy(observed.drivers),
        "image": node.image or (observed.drivers[0].image if observed.drivers else ""),
    }
    before = {"pool": record.pool, "strategy": record.strategy, "image": record.image}
    first, second = (before, now) if record.usable else (now, before)
    return {
        "group": record.group or node.group or (request.group if request is not None else ""),
        "simulated": node.simulated,
        **{name: first[name] or second[name] for name in now},
    }


def _strategy(drivers: Sequence[PodTimestamps]) -> str:
    """The strategy of other operators' drivers."""
    if not drivers:
        return ""
    return "precompiled" if drivers[0].precompiled else "built"
