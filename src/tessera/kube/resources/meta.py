"""The common parts of all API objects: metadata, and the description of a resource for client, reflector and cache.

Structs here and in :mod:`tessera.kube.resources` are partial: they hold the fields that Tessera reads. So a decoded
object must never be sent back whole; writes are patches that name their fields. Attribute names are snake case, the
wire's are camel case. Lists are tuples, so that readers cannot change a cached object.

A resource may also be used untyped (:meth:`Resource.as_dicts`): its objects are then plain dicts. The functions
:func:`key_of`, :func:`uid_of` and :func:`version_of` read both kinds.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NewType, TypeVar, cast
from urllib.parse import quote

import msgspec

T = TypeVar("T")

#: ``metadata.uid``: identifies one object, while a later object may have the same name.
Uid = NewType("Uid", str)

#: Entries of each list and map of an object's metadata; own objects and those of kubelet have a tenth.
_METADATA_ENTRIES = 1_000
#: Labels, annotations and resources that Tessera reads, whatever others stand beside them: the first are kept first.
_OWN_DOMAINS = ("tessera.dev/", "nvidia.com/", "instaslice.redhat.com/", "mig.das.com/")
_OWN_NAMES = frozenset({"cpu", "memory"})


class Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all API structs. Untracked by the garbage collector: a decoded tree has no cycles."""

    def cut(self) -> None:
        """Cuts the lists and maps of a large object that tenants make as long as they like, one entry above its limit.

        Decoded, an entry takes up to ten times its bytes, and the caches of controller and agents have all objects.
        What compares a list with its limit still finds that it is exceeded.

        Raises:
            msgspec.ValidationError: it has more finalizers than are read. They are not cut, as a list of finalizers is
                written whole.
        """
        metadata: ObjectMeta | None = getattr(self, "metadata", None)
        if metadata is not None:
            cut_entries(_METADATA_ENTRIES, [metadata], "labels", "annotations", "owner_references")
            if len(metadata.finalizers) > _METADATA_ENTRIES:
                raise msgspec.ValidationError(
                    f"metadata.finalizers: {len(metadata.finalizers):,} entries, at most {_METADATA_ENTRIES:,} are read"
                )


def cut_entries(most: int, owners: Iterable[Wire], *fields: str) -> None:
    """Leaves the first ``most`` entries of each field, of all owners together, and one more. Own keys come first."""
    owners = tuple(owners)
    for field in fields:
        left = most + 1
        for owner in owners:
            entries = getattr(owner, field)
            if len(entries) > left:
                msgspec.structs.force_setattr(owner, field, _first(entries, left))
            left -= min(len(entries), left)


def _first(entries: tuple[Any, ...] | dict[str, Any], most: int) -> tuple[Any, ...] | dict[str, Any]:
    if isinstance(entries, tuple):
        return entries[:most]
    return {name: entries[name] for name in sorted(entries, key=_rank)[:most]}


def _rank(name: str) -> int:
    if name in _OWN_NAMES:
        return 0
    return next((at for at, domain in enumerate(_OWN_DOMAINS) if name.startswith(domain)), len(_OWN_DOMAINS))


class OwnerReference(Wire, frozen=True, kw_only=True):
    """The owner of an object; the garbage collector deletes it after its last owner."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: Uid = Uid("")
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Wire, frozen=True, kw_only=True):
    """``metav1.ObjectMeta`` without managedFields, which are most of its bytes. Times are RFC 3339 texts."""

    name: str = ""
    namespace: str = ""
    uid: Uid = Uid("")
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


#: The names that the API server takes for most objects (RFC 1123 subdomain).
OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
#: Annotation of an object or a CustomResourceDefinition that Tessera writes: the version of its format.
FORMAT_ANNOTATION = "tessera.dev/format"
#: A version has at most so many digits.
_FORMAT_DIGITS = 9


def is_known_format(metadata: ObjectMeta, known: int) -> bool:
    """True if an object has a format up to ``known``; one without the annotation has format 1."""
    text = metadata.annotations.get(FORMAT_ANNOTATION, "1")
    return text.isascii() and text.isdigit() and len(text) <= _FORMAT_DIGITS and int(text) <= known


class PartialObject(Wire, frozen=True, kw_only=True):
    """An object of any kind, metadata only."""

    metadata: ObjectMeta = ObjectMeta()


class LabelSelectorRequirement(Wire, frozen=True, kw_only=True):
    """One test on a label; operators: In, NotIn, Exists, DoesNotExist."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(Wire, frozen=True, kw_only=True):
    """``metav1.LabelSelector``: everything must hold; an empty one matches everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


def cut_selectors(most: int, selectors: Iterable[LabelSelector]) -> None:
    """As :func:`cut_entries`, for the labels, tests and values of selectors."""
    selectors = tuple(selectors)
    cut_entries(most, selectors, "match_labels", "match_expressions")
    cut_entries(most, (test for each in selectors for test in each.match_expressions), "values")


class ObjectReference(Wire, frozen=True, kw_only=True):
    """Refers to an object from another one."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: Uid = Uid("")
    resource_version: str = ""


@dataclass(frozen=True)
class Resource(Generic[T]):
    """The paths of a kind of object on the server, and the type that it decodes to.

    Attributes:
        group: API group, ``""`` for the core one.
        version: e.g. ``v1``.
        plural: the name in paths, e.g. ``pods``.
        kind: e.g. ``Pod``.
        namespaced: True if objects live in namespaces.
        type: the msgspec struct of an object, or ``dict``.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    type: type[T]

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``, as objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def label(self) -> str:
        """``pods`` or ``leases.coordination.k8s.io``, as kubectl names it in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The absolute request path: of the collection without ``name``, over all namespaces without ``namespace``.

        Raises:
            ValueError: an object of a namespaced resource is named without its namespace, or a part is empty.
        """
        if name is not None and self.namespaced and not namespace:
            raise ValueError(f"{self.label} {name!r}: a namespace is needed, {self.kind} objects live in one")
        if name == "":
            raise ValueError(f"{self.label}: an object's name is empty; name it, or list the collection")
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=":"))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)

    def as_dicts(self) -> "Resource[dict[str, Any]]":
        """The same resource with its objects as plain dicts, for code that needs every field."""
        kind = cast("type[dict[str, Any]]", dict)
        return Resource(self.group, self.version, self.plural, self.kind, self.namespaced, kind)

    def metadata_only(self) -> "Resource[PartialObject]":
        """The same resource decoded to metadata only."""
        return Resource(self.group, self.version, self.plural, self.kind, self.namespaced, PartialObject)


def key(namespace: str | None, name: str) -> str:
    """The key of an object in caches and queues: ``namespace/name``, or ``name`` where there is no namespace."""
    return f"{namespace}/{name}" if namespace else name


def split_key(text: str) -> tuple[str, str]:
    """``(namespace, name)`` of a key; the namespace is ``""`` where there is none."""
    namespace, _, name = text.rpartition("/")
    return namespace, name


def key_of(item: object) -> str:
    """The cache key of a decoded object, struct or dict."""
    if isinstance(item, dict):
        return key(item["metadata"].get("namespace"), item["metadata"]["name"])
    meta: ObjectMeta = item.metadata  # type: ignore[attr-defined] # every API struct has metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def uid_of(item: object) -> Uid:
    """``metadata.uid`` of a decoded object, struct or dict; ``""`` if it has none."""
    if isinstance(item, dict):
        return Uid(item["metadata"].get("uid", ""))
    meta: ObjectMeta = item.metadata  # type: ignore[attr-defined] # every API struct has metadata
    return meta.uid


def version_of(item: object) -> str:
    """``metadata.resourceVersion`` of a decoded object, struct or dict; ``""`` if it has none."""
    if isinstance(item, dict):
        return str(item["metadata"].get("resourceVersion", ""))
    meta: ObjectMeta = item.metadata  # type: ignore[attr-defined] # every API struct has metadata
    return meta.resource_version


def version_number(version: str) -> int:
    """Returns a resourceVersion as a number, which it is by contract since Kubernetes 1.35; 0 if it is no number."""
    return int(version) if version.isascii() and version.isdigit() and len(version) <= 20 else 0


def manifest(resource: Resource[Any], item: object) -> dict[str, Any]:
    """The object as JSON values with ``apiVersion`` and ``kind``, which structs do not carry."""
    body: Mapping[str, Any] = item if isinstance(item, dict) else msgspec.to_builtins(item)
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def resource_for(manifest: Mapping[str, Any]) -> Resource[dict[str, Any]]:
    """Returns the resource of a kind with a regular plural, or that is one; all kinds of Tessera's manifests are."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    kind = manifest["kind"]
    return Resource(group, version, _plural(kind).lower(), kind, "namespace" in manifest["metadata"], dict[str, Any])


def _plural(kind: str) -> str:
    if kind.endswith("y"):
        return f"{kind[:-1]}ies"
    if kind.endswith("ss"):
        return f"{kind}es"  # DeviceClass
    return kind if kind.endswith("s") else f"{kind}s"  # SecurityContextConstraints
