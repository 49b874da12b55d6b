"""The resource types that the server serves: the built-in ones and those that CRDs add while it runs.

One :class:`ResourceType` is one resource in one version. Versions of one resource share their storage, named by
``storage``; so do ``Event`` of ``v1`` and of ``events.k8s.io/v1``. The registry knows no verbs and no objects.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tessera_lab.apiserver.interfaces import Columns, GroupResource, Obj, Schema

#: Verbs of a resource type that stores objects.
ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class MergeTopology(msgspec.Struct, frozen=True, kw_only=True):
    """Merge rules of lists and maps at one place of a kind: for strategic merge and for server-side apply.

    Attributes:
        fields: rules of children, by field name; a field without rules merges as a plain value.
        items: rules of a list's elements, or of the values of a free map.
        list_type: ``atomic``, ``set`` or ``map``.
        keys: keys of an associative list, for server-side apply.
        merge_key: ``patchMergeKey`` of strategic merge; empty if strategic merge replaces the list.
        merge_set: strategic merge joins the list as a set of scalars.
        retain_keys: ``patchStrategy`` has ``retainKeys``.
        atomic_map: the map is owned as a whole.
    """

    fields: Mapping[str, "MergeTopology"] = {}
    items: "MergeTopology | None" = None
    list_type: str = "atomic"
    keys: tuple[str, ...] = ()
    key_defaults: Mapping[str, Any] = {}
    merge_key: str = ""
    merge_set: bool = False
    retain_keys: bool = False
    atomic_map: bool = False


class Subresource(msgspec.Struct, frozen=True, kw_only=True):
    """One subresource as discovery shows it.

    Attributes:
        kind: kind of its body, if that is not the object's: ``Scale``, ``Eviction``, ``Binding``, ``TokenRequest``.
        group, version: group and version of that kind.
    """

    name: str
    verbs: tuple[str, ...]
    kind: str = ""
    group: str = ""
    version: str = ""


class ScalePaths(msgspec.Struct, frozen=True, kw_only=True):
    """Dotted paths that the scale subresource reads and writes; ``selector`` is a LabelSelector or a string."""

    replicas: str = "spec.replicas"
    status_replicas: str = "status.replicas"
    selector: str = "spec.selector"


def _same(obj: Obj) -> Obj:
    return obj


class ResourceType(msgspec.Struct, frozen=True, kw_only=True):
    """One resource in one version.

    Attributes:
        storage: key of its objects in the store; versions of one resource share it.
        subresources: by name.
        topology: merge rules of the kind.
        columns: columns of ``kubectl get``; None for name and age.
        schema: schema of the kind; None accepts every field.
        from_storage, to_storage: convert a copy between the stored form and this version; the server sets
            ``apiVersion`` and ``kind``.
        status_subresource: ``status`` is written through its subresource only, and ``generation`` counts the rest.
        generation: true if the type counts ``metadata.generation``.
        field_labels: dotted paths that field selectors may name besides ``metadata.name`` and ``metadata.namespace``.
        served_crd: name of the CRD that defines the type; empty for a built-in type.
        shape: version of Kubernetes whose fields the type has, if the server can have those of several.
        disabled: paths of fields that the server drops without a word, as if their feature gate were off.
    """

    group: str
    version: str
    plural: str
    singular: str
    kind: str
    list_kind: str
    namespaced: bool
    storage: GroupResource
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: Mapping[str, Subresource] = {}
    scale: ScalePaths | None = None
    topology: MergeTopology = MergeTopology()
    columns: Columns | None = None
    schema: Schema | None = None
    from_storage: Callable[[Obj], Obj] = _same
    to_storage: Callable[[Obj], Obj] = _same
    generation: bool = False
    field_labels: tuple[str, ...] = ()
    served_crd: str = ""
    shape: str = ""
    disabled: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """``v1`` or ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> GroupResource:
        """Group and plural."""
        return GroupResource(self.group, self.plural)

    @property
    def status_subresource(self) -> bool:
        """True if ``status`` is written through its subresource only."""
        return "status" in self.subresources


class ResourceRegistry:
    """Resource types by group, version and plural. It counts its changes, so that callers can cache documents."""

    def __init__(self, types: Iterable[ResourceType]) -> None:
        self._types: dict[tuple[str, str, str], ResourceType] = {}
        self.generation = 0
        for each in types:
            self.add(each)

    def add(self, resource_type: ResourceType) -> None:
        """Adds a type; replaces one with the same group, version and plural."""
        self._types[resource_type.group, resource_type.version, resource_type.plural] = resource_type
        self.generation += 1

    def remove_crd(self, crd: str) -> None:
        """Removes the types that the CRD of that name defined."""
        for key in [key for key, value in self._types.items() if value.served_crd == crd]:
            del self._types[key]
        self.generation += 1

    def get(self, group: str, version: str, plural: str) -> ResourceType | None:
        """The type, or None."""
        return self._types.get((group, version, plural))

    def find_stored(self, storage: GroupResource) -> ResourceType | None:
        """Returns the first added of the types that share a storage; None if there is none."""
        return next((t for t in self if t.storage == storage), None)

    def has_group_version(self, group: str, version: str) -> bool:
        """True if the registry has a type of this group and version."""
        return any(t.group == group and t.version == version for t in self)

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(self._types.values())
