"""What is known of one node's way by all that is seen of it at one moment. Pure: no memory but the record itself.

Rules:

1. A moment that was found stays: pods are restarted, conditions flap, drivers are upgraded; the record is of the first
   way of a node.
2. What nobody brings to a node came with it: on a node whose host has the driver, facts, image and driver were there
   at its registration. Nobody knows that of a node before its agent speaks or its cards are given out.
3. A request is a node's if a Machine or NodeClaim says so; else it is that of the pod that waited before the node was
   there and was the first to run on it.
4. A workload ends a node's way only if it waited for the node: one that came later waited for something else.
5. Pods of an earlier node of the name stay for a while after their node; nothing of them counts.
6. A driver is kept from coming until something else is said of it, and that says since when: whoever sees it later,
   after a controller has died, finds the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.provisioning.machines import Request
from tessera.provisioning.milestones import Milestone, Record
from tessera.provisioning.sightings import NodeSighting, PodSighting

#: Seconds within which two moments may be taken for one; times in objects are whole seconds.
AT_ONCE = 5.0
#: Moments that may become known at any time.
_BEFORE = frozenset({Milestone.REQUESTED, Milestone.VM})

Found = tuple[Milestone, float | None]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
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
    """

    node: NodeSighting
    request: Request | None = None
    drivers: Sequence[PodSighting] = ()
    toolkits: Sequence[PodSighting] = ()
    validations: Sequence[PodSighting] = ()
    workloads: Sequence[PodSighting] = ()
    asked: Mapping[str, float] = {}
    witnessed: Mapping[Milestone, float | None] = {}


def advanced(record: Record, seen: Evidence) -> Record:
    """The record with what is known by now."""
    at = dict(record.at)
    _add(at, (found for found in (*seen.witnessed.items(), *_stated(seen)) if _counts(found, record)))
    if Milestone.ALLOCATABLE not in record.at:
        _add(at, _came_along(seen, at, usable=record.usable))
    if Milestone.WORKLOAD not in record.at:
        _add(at, _after_all(seen, at, unseen=record.unseen))
    return msgspec.structs.replace(record, at=at, **_waited(record, seen.node), **_named(record, seen))


def _add(at: dict[Milestone, float], found: Iterable[Found]) -> None:
    """Takes in what was not known before."""
    for milestone, moment in found:
        if moment is not None:
            at.setdefault(milestone, moment)


def _counts(found: Found, record: Record) -> bool:
    """Whether a moment can be of the record's way, neither of something's later life nor of an earlier node."""
    milestone, moment = found
    if moment is None or milestone in _BEFORE:
        return True
    usable, registered = record.at.get(Milestone.ALLOCATABLE), record.at.get(Milestone.REGISTERED)
    if registered is not None and moment < registered - AT_ONCE:
        return False
    return usable is None or (Milestone.WORKLOAD not in record.at and moment <= usable + AT_ONCE)


def _stated(seen: Evidence) -> Iterator[Found]:
    """Moments that stand in objects."""
    yield Milestone.REGISTERED, seen.node.registered
    yield Milestone.READY, seen.node.ready
    if seen.request is not None:
        yield Milestone.REQUESTED, seen.request.requested
        yield Milestone.VM, seen.request.vm
    for pod in seen.drivers:
        yield Milestone.PULLED, pod.started
        yield Milestone.DRIVER, pod.done
    for pod in seen.toolkits:
        yield Milestone.TOOLKIT, pod.done
    for pod in seen.validations:
        yield Milestone.VALIDATED, pod.done


def _came_along(seen: Evidence, at: Mapping[Milestone, float], *, usable: bool) -> Iterator[Found]:
    """What nobody brought to a node; see rule 2."""
    if seen.node.agent is None and not usable and Milestone.ALLOCATABLE not in at:
        return
    registered = at.get(Milestone.REGISTERED)
    if not seen.node.managed and not seen.drivers:
        for milestone in (Milestone.LABELLED, Milestone.PULLED, Milestone.DRIVER):
            yield milestone, registered
    if not seen.toolkits:
        driver = registered if not seen.node.managed and not seen.drivers else None
        yield Milestone.TOOLKIT, at.get(Milestone.DRIVER, driver)
    if not seen.validations:
        yield Milestone.VALIDATED, seen.node.agent


def _after_all(seen: Evidence, at: Mapping[Milestone, float], *, unseen: bool) -> Iterator[Found]:
    """What only the first workload shows; see rules 3 and 4."""
    registered = at.get(Milestone.REGISTERED)
    # Who was there before the node waited for it, whenever its cards could be used.
    usable = at.get(Milestone.ALLOCATABLE, registered if unseen else None)
    if usable is None:
        return
    started = [each for each in seen.workloads if each.started is not None]
    waited = [each for each in started if each.created is not None and each.created <= usable]
    own = [each for each in waited if registered is None or (each.started or 0.0) >= registered]
    first = min(own, key=lambda each: each.started or 0.0, default=None)
    if first is None:
        return
    yield Milestone.WORKLOAD, first.started
    asked = seen.asked.get(first.uid)
    if asked is not None and registered is not None and asked <= registered:
        yield Milestone.REQUESTED, asked


def _waited(record: Record, node: NodeSighting) -> dict[str, float | None]:
    """How long its driver was kept from coming by what would have kept another node's, too; see rule 6."""
    said, began = node.driver_since, record.waits
    if said is None or record.usable:
        return {}
    if node.kept_back:
        return {"waits": said if began is None else began}
    return {} if began is None else {"waits": None, "waited": record.waited + max(0.0, said - began)}


def _named(record: Record, seen: Evidence) -> dict[str, str | bool]:
    """What the record says besides moments. The driver that counts is the one with which the cards came up."""
    node, request = seen.node, seen.request
    now = {
        "pool": node.pool,
        "strategy": node.strategy or _strategy(seen.drivers),
        "image": node.image or (seen.drivers[0].image if seen.drivers else ""),
    }
    before = {"pool": record.pool, "strategy": record.strategy, "image": record.image}
    first, second = (before, now) if record.usable else (now, before)
    return {
        "group": record.group or node.group or (request.group if request is not None else ""),
        "simulated": node.simulated,
        **{name: first[name] or second[name] for name in now},
    }


def _strategy(drivers: Sequence[PodSighting]) -> str:
    """Of drivers that others bring."""
    if not drivers:
        return ""
    return "precompiled" if drivers[0].precompiled else "built"
