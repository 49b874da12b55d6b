"""How a controller learns that something it controls has changed: from the pods' events to the workload's key."""

from collections.abc import Callable
from typing import Any

from tessera.kube.resources.meta import Resource, key_of
from tessera.kube.watch.informer import Event, EventKind, Informer
from tessera_lab.workloads.base.expectations import Expectations
from tessera_lab.workloads.base.ownership import Json, controller_of, deleting, labels_of, selector_of
from tessera_lab.workqueue import WorkQueue

Handler = Callable[[Event[dict[str, Any]]], None]


def queue_itself(queue: WorkQueue[str]) -> Handler:
    """Each change of a workload queues it."""

    def handle(event: Event[dict[str, Any]]) -> None:
        queue.add(key_of(event.object))

    return handle


def queue_controller(
    resource: Resource[Any],
    owners: Informer[dict[str, Any]],
    queue: WorkQueue[str],
    expectations: Expectations | None = None,
) -> Handler:
    """Each change of a controlled object queues its controller; one without a controller, those that may adopt it.

    Args:
        resource: the controllers' resource.
        owners: their mirror.
        queue: their queue.
        expectations: told what was created and deleted.
    """

    def handle(event: Event[dict[str, Any]]) -> None:
        item = event.object
        for state in (item, event.old):
            owner = controller_of(state) if state is not None else None
            if owner is not None and owner["kind"] == resource.kind:
                key = f"{item['metadata']['namespace']}/{owner['name']}"
                if expectations is not None and state is item:
                    _note(expectations, key, event)
                queue.add(key)
        if controller_of(item) is None and event.kind is not EventKind.DELETED:
            for key in _might_adopt(item, owners):
                queue.add(key)

    return handle


def _note(expectations: Expectations, key: str, event: Event[dict[str, Any]]) -> None:
    uid = event.object["metadata"]["uid"]
    if event.kind is EventKind.ADDED:
        expectations.created(key)
    if event.kind is EventKind.DELETED or deleting(event.object):
        expectations.deleted(key, uid)


def _might_adopt(item: Json, owners: Informer[dict[str, Any]]) -> list[str]:
    namespace = item["metadata"]["namespace"]
    return [
        key_of(owner)
        for owner in owners.cache.values()
        if owner["metadata"]["namespace"] == namespace
        and owner["spec"].get("selector")
        and selector_of(owner).matches(labels_of(item))
    ]
