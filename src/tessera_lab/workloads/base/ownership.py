"""Ownership of objects: the controller of an object, claims by selectors, and the workload keys that events queue.

Rules (``pkg/controller/controller_ref_manager.go``): an object has at most one controller. A controller adopts an
object that its selector matches and that has no controller, releases one that it controls and no longer matches, and
touches neither while it or the object is being deleted. An event of a pod queues the key of the workload that owns it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from tessera.kube.client import Client
from tessera.kube.errors import Conflict, Invalid, NotFound
from tessera.kube.informer import EventKind, Informer, WatchEvent
from tessera.kube.resources import LabelSelector
from tessera.kube.resources.meta import Resource, key_of
from tessera.kube.resources.selectors import Selector, make_selector
from tessera_lab.workloads.base.work_queue import Expectations, WorkQueue

Json = Mapping[str, Any]


def controller_of(item: Json) -> Json | None:
    """The owner reference with ``controller: true``."""
    for reference in item["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            found: Json = reference
            return found
    return None


def controlled_by(item: Json, uid: str) -> bool:
    """True if the object's controller has this UID."""
    owner = controller_of(item)
    return owner is not None and owner["uid"] == uid


def owner_reference(resource: Resource[Any], owner: Json) -> dict[str, Any]:
    """The reference by which ``owner`` controls another object."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def selector_of(owner: Json) -> Selector:
    """``spec.selector`` of a workload.

    Raises:
        ValueError: it has none.
    """
    selector = make_selector(msgspec.convert(owner["spec"].get("selector"), LabelSelector | None))
    if selector is None:
        raise ValueError(f"{owner['metadata']['name']}: spec.selector is missing")
    return selector


def is_being_deleted(item: Json) -> bool:
    """True if the object's deletion was asked for."""
    return bool(item["metadata"].get("deletionTimestamp"))


def labels_of(item: Json) -> Mapping[str, str]:
    """The object's labels."""
    labels: Mapping[str, str] = item["metadata"].get("labels") or {}
    return labels


class OwnershipClaims:
    """Adopts and releases for one kind of controller.

    Args:
        client: writes to the API server.
        owner: the controllers' resource.
        owned: the resource that they control.
    """

    def __init__(self, client: Client, owner: Resource[Any], owned: Resource[Any]) -> None:
        self._client = client
        self._owner = owner
        self._owned = owned.as_dicts()

    async def claim(self, owner: Json, owned: Iterable[Json], orphans: Iterable[Json]) -> list[Json]:
        """Adopts and releases objects, and returns those that ``owner`` then controls.

        Args:
            owner: the controller.
            owned: the objects that it controls now.
            orphans: objects of its namespace that nobody controls.
        """
        if is_being_deleted(owner):
            return list(owned)
        selector = selector_of(owner)
        retained: list[Json] = []
        for item in owned:
            if selector.matches(labels_of(item)) or is_being_deleted(item):
                retained.append(item)
            else:
                await self._release(owner, item)
        matching = [item for item in orphans if selector.matches(labels_of(item)) and not is_being_deleted(item)]
        return retained + [item for item in matching if await self._adopt(owner, item)]

    async def _adopt(self, owner: Json, item: Json) -> bool:
        references = [*(item["metadata"].get("ownerReferences") or ()), owner_reference(self._owner, owner)]
        return await self._set(item, references)

    async def _release(self, owner: Json, item: Json) -> None:
        uid = owner["metadata"]["uid"]
        await self._set(item, [each for each in item["metadata"]["ownerReferences"] if each["uid"] != uid])

    async def _set(self, item: Json, references: list[Any]) -> bool:
        metadata = item["metadata"]
        patch = {"metadata": {"ownerReferences": references or None}}
        try:
            await self._client.merge_patch(
                self._owned,
                metadata["name"],
                patch,
                metadata["namespace"],
                uid=metadata["uid"],
                resource_version=metadata["resourceVersion"],
            )
        except (NotFound, Conflict, Invalid):
            return False  # it changed meanwhile; its event queues it again
        return True


Handler = Callable[[WatchEvent[dict[str, Any]]], None]


def queue_itself(queue: WorkQueue[str]) -> Handler:
    """Returns a handler that queues a workload after each of its changes."""

    def handle(event: WatchEvent[dict[str, Any]]) -> None:
        queue.add(key_of(event.object))

    return handle


def queue_controller(
    resource: Resource[Any],
    owners: Informer[dict[str, Any]],
    queue: WorkQueue[str],
    expectations: Expectations | None = None,
) -> Handler:
    """Returns a handler that queues a changed object's controller; if it has none, the controllers that may adopt it.

    Args:
        resource: the controllers' resource.
        owners: their mirror.
        queue: their queue.
        expectations: updated with creations and deletions.
    """

    def handle(event: WatchEvent[dict[str, Any]]) -> None:
        item = event.object
        for state in (item, event.old):
            owner = controller_of(state) if state is not None else None
            if owner is not None and owner["kind"] == resource.kind:
                key = f"{item['metadata']['namespace']}/{owner['name']}"
                if expectations is not None and state is item:
                    _note_expectation(expectations, key, event)
                queue.add(key)
        if controller_of(item) is None and event.kind is not EventKind.DELETED:
            for key in _might_adopt(item, owners):
                queue.add(key)

    return handle


def _note_expectation(expectations: Expectations, key: str, event: WatchEvent[dict[str, Any]]) -> None:
    uid = event.object["metadata"]["uid"]
    if event.kind is EventKind.ADDED:
        expectations.note_created(key)
    if event.kind is EventKind.DELETED or is_being_deleted(event.object):
        expectations.note_deleted(key, uid)


def _might_adopt(item: Json, owners: Informer[dict[str, Any]]) -> list[str]:
    namespace = item["metadata"]["namespace"]
    return [
        key_of(owner)
        for owner in owners.cache.values()
        if owner["metadata"]["namespace"] == namespace
        and owner["spec"].get("selector")
        and selector_of(owner).matches(labels_of(item))
    ]
