"""Infers the milestones of one node from everything observed about it at one moment. Pure: no state but the record.

Rules:

1. A known milestone stays: pods restart, conditions flap and drivers are upgraded, but the record is of the first
   startup of the node.
2. Facts, image and driver that nobody brought came with the node: if the host has the driver, they date from its
   registration. That is known only once the node's agent reports or its GPUs are offered.
3. The request of a node is that of its Machine or NodeClaim; else that of the pod that waited before the node existed
   and was the first to run on it.
4. A workload completes a record only if it waited for the node. A later one waited for something else.
5. Pods of an earlier node of the same name stay for a while; nothing of them counts.
6. For a node that existed before anybody asked for its driver, the record begins at that request, at the latest
   possible moment: the time before belongs to nobody's wait for a GPU.
7. A driver counts as held back until its status changes, and the status says since when. So a controller that restarts
   finds the same.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.provisioning.milestones import Milestone, ProvisioningRecord
from tessera.provisioning.phases import ROUNDED
from tessera.provisioning.tracking.machines import MachineRequest
from tessera.provisioning.tracking.timestamps import NodeTimestamps, PodTimestamps

#: Seconds within which two moments may be taken for one; times in objects are whole seconds.
SAME_MOMENT = 5.0
#: Seconds after which a node's driver is asked for where a policy is in force, from its registration, or from when its
#: labels say that it has a card: a controller that was there looked at once, another took over within half a minute.
PROMPTLY = 30.0
#: The same of drivers that others bring, from when the node is Ready: NVIDIA's operator waits for labels of the node.
LABELS_TAKE = 120.0
#: Moments that may become known at any time.
_BEFORE = frozenset({Milestone.REQUESTED, Milestone.VM})
#: Moments of the node alone, which are no part of a way that began later.
_OF_THE_NODE = _BEFORE | {Milestone.REGISTERED, Milestone.READY}

Found = tuple[Milestone, float | None]


class Observations(msgspec.Struct, frozen=True, kw_only=True):
    """All that is seen of a node's way; pods in the order in which they were made.

    Attributes:
        node: the node.
        request: what it was made from; None if that is not known.
        drivers: pods that bring its driver.
        toolkits: pods that bring its container toolkit.
        validations: pods that try the driver out.
        workloads: pods there that ask for cards.
        asked: by a pod's uid, since when a node was wanted for it.
        witnessed: moments that only those know who saw them.
        anew: its driver is asked for, and a moment ago it was not.
        card: since when something says that the node has a card; None for as long as it is known.
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
    """The record with what is known by now."""
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
        record, at=at, **_held_back_seconds(record, observed.node), **_descriptions(record, observed)
    )


def infer_request(record: ProvisioningRecord, observed: Observations) -> ProvisioningRecord:
    """The record with the moment from which on somebody asks for the node's driver; see rule 6.

    Nobody may have seen it, but only something that followed: then it is not known when the node's facts were.
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
    """Moments by which a driver was asked for; none if nobody asks."""
    if observed.node.wanted and observed.node.driver_since is not None:
        yield observed.node.driver_since
    if not observed.newly_requested and (observed.node.wanted or not observed.node.managed):
        yield from (each.created for each in observed.drivers if each.created is not None)


def _latest_prompt_request(record: ProvisioningRecord, observed: Observations) -> float:
    """Until when a driver is asked for of a node that did not stand there before."""
    registered = observed.node.registered
    if registered is None:
        return math.inf
    if observed.node.wanted:
        return (registered if observed.gpu_since is None else observed.gpu_since) + PROMPTLY
    return max(registered, record.at.get(Milestone.READY, observed.node.ready or registered)) + LABELS_TAKE


def _add_milestones(at: dict[Milestone, float], found: Iterable[Found], record: ProvisioningRecord) -> None:
    """Takes in what was not known before, and is not from before the way began."""
    for milestone, moment in found:
        if moment is None or (record.late and (milestone in _OF_THE_NODE or moment < (record.asked or 0.0) - ROUNDED)):
            continue
        at.setdefault(milestone, moment)


def _counts(found: Found, record: ProvisioningRecord) -> bool:
    """Whether a moment can be of the record's way, neither of something's later life nor of an earlier node."""
    milestone, moment = found
    if moment is None or milestone in _BEFORE:
        return True
    usable, registered = record.at.get(Milestone.ALLOCATABLE), record.at.get(Milestone.REGISTERED)
    if registered is not None and moment < registered - SAME_MOMENT:
        return False
    return usable is None or (Milestone.WORKLOAD not in record.at and moment <= usable + SAME_MOMENT)


def _from_objects(observed: Observations) -> Iterator[Found]:
    """Moments that stand in objects."""
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
    """What nobody brought to a node; see rule 2."""
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
    """What only the first workload shows; see rules 3 and 4."""
    registered = at.get(Milestone.REGISTERED, observed.node.registered)
    # Who was there before the node waited for it, whenever its cards could be used.
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


def _held_back_seconds(record: ProvisioningRecord, node: NodeTimestamps) -> dict[str, float | None]:
    """How long its driver was kept from coming by what would have kept another node's, too; see rule 7."""
    said, began = node.driver_since, record.waits
    if said is None or record.usable:
        return {}
    if node.held_back:
        return {"waits": said if began is None else began}
    return {} if began is None else {"waits": None, "waited": record.waited + max(0.0, said - began)}


def _descriptions(record: ProvisioningRecord, observed: Observations) -> dict[str, str | bool]:
    """What the record says besides moments. The driver that counts is the one with which the cards came up."""
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
    """Of drivers that others bring."""
    if not drivers:
        return ""
    return "precompiled" if drivers[0].precompiled else "built"
