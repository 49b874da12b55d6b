"""Who may see which text: of a reason, of an agent's page, of a document of the live page. Pure.

Each text of a struct declares its audience in its type: ``node: NodeName``. Numbers and truth values are for
everybody. A text without an audience is an error when the struct is first shown to somebody without all rights;
``tests/dashboard/test_visibility.py`` finds it earlier.

Rules:

1. :data:`PodName` and :data:`PodText` are for readers who may list pods in the namespace of their struct, which has a
   field ``namespace: PodNamespace``.
   :data:`PodKey`, ``namespace/name``, is for the readers of the namespace that it names itself.
2. :data:`NodeName` and :data:`NodeText` are for readers who may list nodes. The name of a node is also for those who
   know it from their own pods (:attr:`Visibility.named`).
3. :data:`ClusterText` is for readers who may list nodes and the pods of all namespaces: a free text that may name any.
4. :data:`WorkloadText` is for readers who may list Kueue's Workloads in the namespace of their document, which has a
   field ``namespace: WorkloadText``. Others do not get the document: they would not find the Workload elsewhere either.
5. :data:`OwnedText` is for readers who may list pods in the namespace of their document, which has a field
   ``namespace: OwnedText``; others do not get the document.
6. A hidden name becomes an alias such as ``~3fa94c01``: a tile keeps its identity for as long as the process runs. A
   hidden text becomes empty.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

S = TypeVar("S", bound=msgspec.Struct)

#: First character of an alias; no name of Kubernetes starts with it.
HIDDEN = "~"


class Audience(Enum):
    """The readers of a text, and what the others get in its place."""

    EVERYBODY = "everybody"
    POD_NAMESPACE = "readers of the namespace's pods; others get '~'"
    POD_NAME = "readers of the namespace's pods; others get an alias"
    POD_KEY = "readers of the pods of the namespace that it names; others get an alias"
    POD_TEXT = "readers of the namespace's pods; others get no text"
    NODE_NAME = "readers of nodes; others get an alias"
    NODE_TEXT = "readers of nodes; others get no text"
    CLUSTER_TEXT = "readers of nodes and of all pods; others get no text"
    WORKLOAD_TEXT = "readers of the namespace's Workloads; others get no document"
    OWNED_TEXT = "readers of the namespace's pods; others get no document"


Public = Annotated[str, Audience.EVERYBODY]
PodNamespace = Annotated[str, Audience.POD_NAMESPACE]
PodName = Annotated[str, Audience.POD_NAME]
PodKey = Annotated[str, Audience.POD_KEY]
PodText = Annotated[str, Audience.POD_TEXT]
NodeName = Annotated[str, Audience.NODE_NAME]
#: The name of a Queue, which is in no namespace, as a node is in none.
QueueName = NodeName
NodeText = Annotated[str, Audience.NODE_TEXT]
ClusterText = Annotated[str, Audience.CLUSTER_TEXT]
OwnedText = Annotated[str, Audience.OWNED_TEXT]
WorkloadText = Annotated[str, Audience.WORKLOAD_TEXT]

_POD = (Audience.POD_NAMESPACE, Audience.POD_NAME, Audience.POD_TEXT, Audience.OWNED_TEXT)
#: A document with such a text is not for others.
_WHOLE = (Audience.WORKLOAD_TEXT, Audience.OWNED_TEXT)
_NODE = (Audience.NODE_NAME, Audience.NODE_TEXT)
_NUMBERS = (int, float, bool, NoneType)


class Visibility(NamedTuple):
    """The rights of a reader, as far as documents depend on them.

    Attributes:
        nodes: True if the reader may list nodes.
        namespaces: the namespaces whose pods the reader may list; None for all.
        workloads: the namespaces whose Workloads of Kueue the reader may list; None for all.
        named: nodes whose names the reader knows, since pods of its namespaces run there.
    """

    nodes: bool = False
    namespaces: frozenset[str] | None = frozenset()
    workloads: frozenset[str] | None = frozenset()
    named: frozenset[str] = frozenset()

    @property
    def full(self) -> bool:
        """True if nothing of nodes and pods is hidden."""
        return self.nodes and self.namespaces is None

    def narrow(self, about: "About") -> "Visibility":
        """The part of these rights that matters for a document about these namespaces."""
        workloads = about.workloads if self.workloads is None else about.workloads & self.workloads
        if self.full:
            return self._replace(workloads=workloads)
        pods = about.pods if self.namespaces is None else about.pods & self.namespaces
        return Visibility(self.nodes, pods, workloads)

    def allows_pods(self, namespace: str) -> bool:
        """True if the reader may list the pods of a namespace."""
        return self.namespaces is None or namespace in self.namespaces

    def names_node(self, name: str) -> bool:
        """True if the reader may see the name of a node."""
        return self.nodes or name in self.named

    def allows(self, audience: Audience, namespace: str) -> bool:
        """True if the reader belongs to the audience of a text about ``namespace``."""
        if audience in _POD:
            return self.allows_pods(namespace)
        if audience in _NODE:
            return self.nodes
        if audience is Audience.WORKLOAD_TEXT:
            return self.workloads is None or namespace in self.workloads
        return audience is Audience.EVERYBODY or self.full

    def shows(self, document: msgspec.Struct) -> bool:
        """False for a document that the reader does not get at all."""
        whole, namespace = _audiences(type(document)).intersection(_WHOLE), getattr(document, "namespace", "")
        return all(self.allows(each, namespace) for each in whole)


class About(NamedTuple):
    """The namespaces of the pods and of the Workloads that documents are about."""

    pods: frozenset[str] = frozenset()
    workloads: frozenset[str] = frozenset()


#: Sees everything: the reader's own kubeconfig has limited what was read.
FULL = Visibility(nodes=True, namespaces=None, workloads=None)


class Redactor:
    """Hides what a reader may not see.

    Args:
        secret: key of the aliases; with another key, nobody can tell by an alias which name it stands for.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def redact(self, document: S, visibility: Visibility) -> S:
        """The document as a reader with these rights may see it; the same object if nothing is hidden.

        Raises:
            TypeError: a field does not declare its audience.
        """
        if visibility.full:
            return document
        namespace = getattr(document, "namespace", "")
        changes: dict[str, Any] = {}
        for name, hide in _plan(type(document)):
            value = getattr(document, name)
            shown = hide(value, _Reader(self, visibility, namespace))
            if shown is not value:
                changes[name] = shown
        return msgspec.structs.replace(document, **changes) if changes else document

    def redact_key(self, key: str, document: msgspec.Struct, visibility: Visibility) -> str:
        """The key of the document for this reader: an alias if it has a name and a text of the document is hidden."""
        namespace = getattr(document, "namespace", "")
        if "/" not in key or all(visibility.allows(each, namespace) for each in _audiences(type(document))):
            return key
        return f"{key.partition('/')[0]}/{self.alias(key, 8)}"

    def pod(self, namespace: str, name: str) -> str:
        """The alias of a pod."""
        return self.alias(f"pod/{namespace}/{name}")

    def pod_key(self, namespace: str, name: str) -> str:
        """What stands for ``namespace/name``."""
        return f"{HIDDEN}/{self.pod(namespace, name)}"

    def node(self, name: str) -> str:
        """The alias of a node."""
        return self.alias(f"node/{name}")

    def alias(self, text: str, size: int = 4) -> str:
        """The alias of a name; it has ``size`` bytes in hexadecimal."""
        import hashlib  # only where names are hidden: it costs a command's start a millisecond

        return HIDDEN + hashlib.blake2b(text.encode(), key=self._secret, digest_size=size).hexdigest()


#: Stands for a pod whose name the readers of another namespace may not see, in a text that they read alone.
OTHERS_POD = "a pod of another namespace"


class Unnamed(Redactor):
    """Tells of pods of other namespaces without an alias: for texts that a person reads alone, such as Events."""

    def __init__(self) -> None:
        super().__init__(b"")

    def pod_key(self, namespace: str, name: str) -> str:
        """:data:`OTHERS_POD`."""
        del namespace, name
        return OTHERS_POD


class _Reader(NamedTuple):
    """A reader of one struct."""

    redactor: Redactor
    visibility: Visibility
    namespace: str

    def see(self, audience: Audience, text: str) -> str:
        if audience is Audience.POD_KEY:
            return self._see_key(text)
        if not text or self.visibility.allows(audience, self.namespace):
            return text
        match audience:
            case Audience.POD_NAMESPACE:
                return HIDDEN
            case Audience.POD_NAME:
                return self.redactor.pod(self.namespace, text)
            case Audience.NODE_NAME:
                return text if self.visibility.names_node(text) else self.redactor.node(text)
            case _:
                return ""

    def _see_key(self, key: str) -> str:
        """A pod's key; a text for what no pod has is for readers of nodes."""
        namespace = namespace_of(key)
        if not namespace:
            return key if self.visibility.nodes or not key else HIDDEN
        if self.visibility.allows_pods(namespace):
            return key
        return self.redactor.pod_key(namespace, key.partition("/")[2])


def namespace_of(key: str) -> str:
    """The namespace of a pod's key; empty for a text that is no key."""
    namespace, _, name = key.partition("/")
    return namespace if name and " " not in key else ""


#: Returns what a reader sees of a value.
_Hide = Callable[[Any, _Reader], Any]


def find_namespaces(document: msgspec.Struct) -> About:
    """Returns the namespaces that a document is about."""
    if Audience.WORKLOAD_TEXT in _audiences(type(document)):
        return About(workloads=frozenset({getattr(document, "namespace", "")}))
    return About(pods=frozenset(_pod_namespaces(document)))


def _pod_namespaces(document: msgspec.Struct) -> Iterator[str]:
    namespace = getattr(document, "namespace", "")
    if namespace:
        yield namespace
    keys = _keys(type(document))
    for name, _ in _plan(type(document)):
        value = getattr(document, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, msgspec.Struct):
                yield from _pod_namespaces(each)
            elif name in keys and (namespace := namespace_of(each)):
                yield namespace


@lru_cache(maxsize=256)
def _keys(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The fields with keys of pods."""
    hints = get_type_hints(kind, include_extras=True)
    inner = {name: get_args(hint)[0] if get_origin(hint) is tuple else hint for name, hint in hints.items()}
    return frozenset(name for name, hint in inner.items() if Audience.POD_KEY in _own_audiences({"": hint}))


@lru_cache(maxsize=256)
def _plan(kind: type[msgspec.Struct]) -> tuple[tuple[str, _Hide], ...]:
    """The fields that can hold a text, each with its way to hide it."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: _hide(hint, f"{kind.__name__}.{name}") for name, hint in hints.items()}
    own = set(_own_audiences(hints))
    if "namespace" not in hints and not own.isdisjoint(_POD):
        raise TypeError(f"{kind.__name__}: a struct with texts about a pod needs a field namespace: PodNamespace")
    if Audience.WORKLOAD_TEXT in own and Audience.WORKLOAD_TEXT not in _own_audiences({"": hints.get("namespace")}):
        raise TypeError(f"{kind.__name__}: a document about a Workload needs a field namespace: WorkloadText")
    return tuple((name, hide) for name, hide in found.items() if hide is not None)


@lru_cache(maxsize=256)
def _audiences(kind: type[msgspec.Struct]) -> frozenset[Audience]:
    return frozenset(_own_audiences(get_type_hints(kind, include_extras=True)))


def _own_audiences(hints: Mapping[str, Any]) -> Iterator[Audience]:
    for hint in hints.values():
        yield from (each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Audience))


def _hide(hint: Any, field: str) -> _Hide | None:
    """The way to hide values of a type; None for a type without texts."""
    if hint in _NUMBERS or (isinstance(hint, type) and issubclass(hint, Enum)):
        return None
    audiences = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Audience)]
    origin, arguments = get_origin(hint), get_args(hint)
    if audiences and arguments[0] is str:
        return None if audiences == [Audience.EVERYBODY] else lambda text, reader: reader.see(audiences[0], text)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        _plan(hint)
        return lambda value, reader: reader.redactor.redact(value, reader.visibility)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _hide_each(_hide(arguments[0], field))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if any(_hide(part, field) is not None for part in arguments):
            raise TypeError(f"{field}: a mapping may hold only public texts and numbers")
        return None
    if origin in (Union, UnionType):
        several = [each for each in arguments if each is not NoneType]
        if len(several) > 1 and all(isinstance(each, type) and issubclass(each, msgspec.Struct) for each in several):
            # Structs may hold each other, so each one's fields are looked at when one is shown.
            return lambda value, reader: value and reader.redactor.redact(value, reader.visibility)
        kinds = [_hide(each, field) for each in several]
        if all(each is None for each in kinds):
            return None
        if len(kinds) == 1 and kinds[0] is not None:
            only = kinds[0]
            return lambda value, reader: None if value is None else only(value, reader)
    raise TypeError(f"{field}: declare who may see it, as a type of tessera.visibility; it is {hint}")


def _hide_each(hide: _Hide | None) -> _Hide | None:
    if hide is None:
        return None

    def hide_all(values: tuple[Any, ...], reader: _Reader) -> tuple[Any, ...]:
        shown = tuple(hide(each, reader) for each in values)
        return values if all(map(operator.is_, values, shown)) else shown

    return hide_all
