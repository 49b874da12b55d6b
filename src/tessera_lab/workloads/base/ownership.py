"""Who controls an object, and how controllers claim what their selectors match.

Rules (``pkg/controller/controller_ref_manager.go``): an object has at most one controller. A controller adopts what its
selector matches and nobody controls, releases what it controls and no longer matches, and touches neither while it or
the object is being deleted.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tessera.kube.client.client import Client
from tessera.kube.client.errors import Conflict, Invalid, NotFound
from tessera.kube.resources import LabelSelector
from tessera.kube.resources.meta import Resource
from tessera.kube.selectors import Selector, selector_from

Json = Mapping[str, Any]


def controller_of(item: Json) -> Json | None:
    """The owner reference with ``controller: true``."""
    for reference in item["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            found: Json = reference
            return found
    return None


def controlled_by(item: Json, uid: str) -> bool:
    """Whether the object's controller has this UID."""
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
    selector = selector_from(msgspec.convert(owner["spec"].get("selector"), LabelSelector | None))
    if selector is None:
        raise ValueError(f"{owner['metadata']['name']}: spec.selector is missing")
    return selector


def deleting(item: Json) -> bool:
    """Whether the object's deletion was asked for."""
    return bool(item["metadata"].get("deletionTimestamp"))


def labels_of(item: Json) -> Mapping[str, str]:
    """The object's labels."""
    labels: Mapping[str, str] = item["metadata"].get("labels") or {}
    return labels


class Claims:
    """Adopts and releases for one kind of controller.

    Args:
        client: who writes.
        owner: the controllers' resource.
        owned: the resource that they control.
    """

    def __init__(self, client: Client, owner: Resource[Any], owned: Resource[Any]) -> None:
        self._client = client
        self._owner = owner
        self._owned = owned.untyped()

    async def claim(self, owner: Json, mine: Iterable[Json], orphans: Iterable[Json]) -> list[Json]:
        """The objects that ``owner`` controls after this.

        Args:
            owner: the controller.
            mine: the objects that it controls now.
            orphans: objects of its namespace that nobody controls.
        """
        if deleting(owner):
            return list(mine)
        selector = selector_of(owner)
        kept: list[Json] = []
        for item in mine:
            if selector.matches(labels_of(item)) or deleting(item):
                kept.append(item)
            else:
                await self._release(owner, item)
        matching = [item for item in orphans if selector.matches(labels_of(item)) and not deleting(item)]
        return kept + [item for item in matching if await self._adopt(owner, item)]

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
            return False  # it changed meanwhile; its event brings it here again
        return True
