"""Serves stored CustomResourceDefinitions; deletes the objects of a deleted one, and ends its watches.

The controller listens to the store and handles every change of a definition inside the write. Kubernetes' own
finalizer keeps a deleted definition until the last of its objects is gone.
"""

from collections.abc import Mapping
from typing import Any

from tessera_lab.apiserver.crd.structural_schema import StructuralSchema
from tessera_lab.apiserver.interfaces import GroupResource, Obj
from tessera_lab.apiserver.kinds.metadata import decide_deletion
from tessera_lab.apiserver.request.server_state import ServerState
from tessera_lab.apiserver.resource_types import ALL_VERBS, ResourceType, ScalePaths, Subresource
from tessera_lab.apiserver.schemas.merge_topology import crd_topology
from tessera_lab.apiserver.storage.store import Change, deep_copy
from tessera_lab.apiserver.tables.table import CustomColumns

CRDS = GroupResource("apiextensions.k8s.io", "customresourcedefinitions")
#: Finalizer that keeps a definition until its objects are gone.
CLEANUP = "customresourcecleanup.apiextensions.k8s.io"

Read = Mapping[str, Any]
_GET_PATCH_UPDATE = ("get", "patch", "update")


def default_names(crd: Obj) -> None:
    """Sets the defaults of ``spec.names`` and ``spec.conversion``."""
    spec = crd.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})


def mark_established(crd: Obj) -> None:
    """Sets the status of a new definition: accepted and established, since this server serves it at once."""
    finalizers = crd["metadata"].setdefault("finalizers", [])
    if CLEANUP not in finalizers:
        finalizers.append(CLEANUP)
    now = crd["metadata"]["creationTimestamp"]
    crd["status"] = {
        "acceptedNames": deep_copy(crd["spec"].get("names", {})),
        "conditions": [
            _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
            _condition("Established", "InitialNamesAccepted", "the initial names have been accepted", now),
        ],
        "storedVersions": _stored_versions(crd),
    }


def update_established(crd: Obj, old: Read) -> None:
    """Sets the status after a change of the spec: accepts names at once, keeps every version ever stored listed."""
    del old
    status = crd.get("status")
    if status:
        known = status.get("storedVersions") or []
        status["acceptedNames"] = deep_copy(crd["spec"].get("names", {}))
        status["storedVersions"] = [*known, *(each for each in _stored_versions(crd) if each not in known)]


def _stored_versions(crd: Read) -> list[str]:
    return [each["name"] for each in crd["spec"].get("versions") or () if each.get("storage")]


def _condition(kind: str, reason: str, message: str, now: str) -> Obj:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}


def build_resource_types(crd: Read) -> list[ResourceType]:
    """The resource types that a definition serves, the storage version first."""
    versions = sorted(crd["spec"]["versions"], key=lambda each: not each.get("storage"))
    return [_build_resource_type(crd, version) for version in versions if version.get("served")]


def _build_resource_type(crd: Read, version: Read) -> ResourceType:
    spec, names = crd["spec"], crd["spec"]["names"]
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {"type": "object"}
    subresources = version.get("subresources") or {}
    shown = {}
    if subresources.get("status") is not None:
        shown["status"] = Subresource(name="status", verbs=_GET_PATCH_UPDATE)
    scale = subresources.get("scale")
    if scale is not None:
        shown["scale"] = Subresource(
            name="scale", verbs=_GET_PATCH_UPDATE, kind="Scale", group="autoscaling", version="v1"
        )
    return ResourceType(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        singular=names.get("singular", ""),
        kind=names["kind"],
        list_kind=names.get("listKind") or f"{names['kind']}List",
        namespaced=spec["scope"] == "Namespaced",
        storage=GroupResource(spec["group"], names["plural"]),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        verbs=ALL_VERBS,
        subresources=shown,
        scale=_build_scale_paths(scale) if scale is not None else None,
        topology=crd_topology(schema),
        columns=CustomColumns(version.get("additionalPrinterColumns") or ()),
        schema=StructuralSchema(schema),
        generation=True,
        served_crd=crd["metadata"]["name"],
    )


def _build_scale_paths(scale: Read) -> ScalePaths:
    return ScalePaths(
        replicas=scale["specReplicasPath"].strip("."),
        status_replicas=scale["statusReplicasPath"].strip("."),
        selector=(scale.get("labelSelectorPath") or "").strip("."),
    )


class DefinitionController:
    """Keeps the registry in step with the stored definitions."""

    def __init__(self, core: ServerState) -> None:
        self._core = core
        self._watched_storages: set[GroupResource] = set()
        core.store.listen(CRDS, self._on_definition)

    def _on_definition(self, change: Change) -> None:
        crd = change.new.obj
        if change.kind == "DELETED":
            self._core.registry.remove_crd(crd["metadata"]["name"])
            self._core.hubs.of(GroupResource(crd["spec"]["group"], crd["spec"]["names"]["plural"])).end_all()
            return
        if change.old is None or change.old.obj.get("spec") != crd.get("spec"):
            self._serve(crd)
        if crd["metadata"].get("deletionTimestamp") and CLEANUP in (crd["metadata"].get("finalizers") or ()):
            self._delete_objects(crd["metadata"]["name"])

    def _serve(self, crd: Read) -> None:
        self._core.registry.remove_crd(crd["metadata"]["name"])
        for each in build_resource_types(crd):
            self._core.registry.add(each)
        storage = GroupResource(crd["spec"]["group"], crd["spec"]["names"]["plural"])
        if storage not in self._watched_storages:
            self._watched_storages.add(storage)
            self._core.store.listen(storage, self._on_object)

    def _on_object(self, change: Change) -> None:
        if change.kind != "DELETED":
            return
        kind = next((t for t in self._core.registry if t.kind == change.new.obj["kind"] and t.served_crd), None)
        stored = self._core.store.find(CRDS, "", kind.served_crd) if kind else None
        if stored and stored.obj["metadata"].get("deletionTimestamp"):
            self._delete_objects(stored.obj["metadata"]["name"])

    def _delete_objects(self, name: str) -> None:
        """Deletes the objects of a definition that is being deleted; the last one's removal frees the definition."""
        stored = self._core.store.find(CRDS, "", name)
        if stored is None:
            return
        spec = stored.obj["spec"]
        storage = GroupResource(spec["group"], spec["names"]["plural"])
        for each in self._core.store.select(storage, None):
            deletion = decide_deletion(deep_copy(each.obj), {}, self._core.clock.now())
            if deletion.gone:
                self._core.store.remove(storage, deletion.state, each)
            elif deletion.state != each.obj:
                self._core.store.put(storage, deletion.state, each)
        latest = self._core.store.find(CRDS, "", name)
        if latest is None or self._core.store.select(storage, None):
            return
        last = deep_copy(latest.obj)
        last["metadata"]["finalizers"] = [f for f in last["metadata"].get("finalizers", ()) if f != CLEANUP]
        if last["metadata"]["finalizers"]:
            self._core.store.put(CRDS, last, latest)
        else:
            self._core.store.remove(CRDS, last, latest)
