"""Interfaces between the API server's core and its parts, in plain values.

The core (routing, verbs, storage, watch) knows none of the parts' rules: schemas, tables, discovery, webhooks, quota
and RBAC are pure modules behind these protocols. An object is a JSON value, a ``dict``; a caller that gets one for
reading must not change it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from tessera.kube.requests import Request, Response
from tessera_lab.apiserver.container_log import ContainerLog

#: A Kubernetes object as JSON.
Obj = dict[str, Any]
#: Returns the log of a container's present or last run, or with True that of the run before, by namespace, pod and
#: container; LookupError if there was no such run.
Logs = Callable[[str, str, str, bool], ContainerLog]


class CommandResult(msgspec.Struct, frozen=True):
    """Exit and output of a command in a container.

    Attributes:
        code: its exit code.
        stdout: its standard output.
        stderr: its standard error.
    """

    code: int
    stdout: bytes = b""
    stderr: bytes = b""


#: Runs a command in a container, by namespace, pod and container; LookupError if the container does not run.
RunCommand = Callable[[str, str, str, Sequence[str]], Awaitable[CommandResult]]
#: Gets a page of a pod, by address, port, path and headers; LookupError if the address is none of this server's pods.
GetPage = Callable[[str, int, str, Mapping[str, str]], Awaitable[Response]]


#: One end of a connection to a pod.
PodPeer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
#: Opens a connection to a port of a pod; OSError if nothing listens there.
OpenConnection = Callable[[int], Awaitable[PodPeer]]


class PodServers(Protocol):
    """What listens in pods."""

    async def connect(self, namespace: str, pod: str, port: int) -> PodPeer:
        """Opens a connection.

        Raises:
            OSError: nothing listens at that port of the pod.
        """
        ...

    async def answer(self, namespace: str, pod: str, port: int, request: Request) -> Response:
        """Sends a request to a simulated server.

        Raises:
            LookupError: none listens at that port of the pod.
        """
        ...


class GroupResource(NamedTuple):
    """A resource without its version: ``("", "pods")``, ``("apps", "deployments")``."""

    group: str
    resource: str


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The user who sent a request, as ``authentication.k8s.io`` UserInfo."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = {}


class Attributes(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes of a request: input of authorization, admission and audit.

    Attributes:
        verb: ``get``, ``list``, ``watch``, ``create``, ``update``, ``patch``, ``delete``, ``deletecollection``; for a
            path that is no resource the HTTP method in lower case.
        subresource: ``status``, ``scale``, ``binding``, ...; empty for the object itself.
        name: empty for collections and for a create whose name is not in the path.
        path: only for paths that are no resource (``/version``), else empty.
        fields: the field selector of a collection.
    """

    user: UserInfo
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    fields: str = ""


class StatusCause(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``Status.details.causes``, ``metav1.StatusCause``.

    Attributes:
        field: path as Kubernetes writes it, ``spec.containers[0].name``.
        reason: ``FieldValueInvalid``, ``FieldValueRequired``, ``FieldValueNotSupported``, ``FieldValueTypeInvalid``,
            ``FieldValueForbidden``, ``FieldValueDuplicate``, ``FieldValueTooLong``, ``FieldValueTooMany``.
        message: without the field: ``Invalid value: "x": must be ...``.
    """

    field: str
    reason: str
    message: str


class AuthorizationDecision(msgspec.Struct, frozen=True, kw_only=True):
    """An authorizer's answer; ``auth can-i`` and SubjectAccessReview show its ``reason``."""

    allowed: bool
    reason: str = ""


class ObjectReader(Protocol):
    """Stored objects, for the parts that decide from other objects. The returned objects are read-only."""

    def get(self, resource: GroupResource, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The object, ``namespace`` empty for a cluster-scoped one; None when there is none."""
        ...

    def list(self, resource: GroupResource, namespace: str | None = None) -> Iterable[Mapping[str, Any]]:
        """All objects of a namespace, or of all namespaces, by namespace and name."""
        ...

    def revision(self, resource: GroupResource) -> int:
        """The version of the last write to the resource, 0 before the first: what was read by then still holds."""
        ...


class Schema(Protocol):
    """Shape of one kind: :mod:`crd.structural_schema` for CRDs, generated data for built-in kinds."""

    def unknown_fields(self, obj: Mapping[str, Any]) -> Sequence[str]:
        """Paths that the schema does not know (``spec.foo``, ``spec.containers[0].bar``), for fieldValidation."""
        ...

    def prune(self, obj: Obj) -> None:
        """Removes, in place, the fields that the schema does not know."""
        ...

    def default(self, obj: Obj) -> None:
        """Sets the schema's defaults in place.

        A schema does not set defaults of built-in kinds that depend on other fields.
        """
        ...

    def validate(self, obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> Sequence[StatusCause]:
        """Returns the errors of the object; ``old`` is the stored object if this is an update."""
        ...


class Columns(Protocol):
    """The table columns of one kind, as ``kubectl get`` prints them."""

    def definitions(self) -> Sequence[Mapping[str, Any]]:
        """``Table.columnDefinitions``: name, type, format, description, priority."""
        ...

    def cells(self, obj: Mapping[str, Any], now: float) -> Sequence[Any]:
        """Returns one cell for each definition; ``now``, in seconds since 1970, is the time for ages."""
        ...


class AdmissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One write on its way to storage.

    Attributes:
        operation: ``CREATE``, ``UPDATE``, ``DELETE`` or ``CONNECT``.
        kind: kind of ``obj`` in the request's version, e.g. ``Pod``; for a subresource its body's kind.
        obj: the new object, None for DELETE; ``old`` None for CREATE.
        options: the verb's options object (``CreateOptions``...).
    """

    attributes: Attributes
    operation: str
    kind: str
    obj: Obj | None
    old: Mapping[str, Any] | None
    dry_run: bool = False
    options: Mapping[str, Any] = {}


class AdmissionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of admission; warnings become ``Warning`` headers."""

    obj: Obj | None
    warnings: tuple[str, ...] = ()


class Webhooks(Protocol):
    """Calls admission webhooks. Refusals raise :class:`tessera_lab.apiserver.status.StatusError`."""

    async def mutate(self, request: AdmissionRequest) -> AdmissionResult:
        """Runs the mutating webhooks that match, reinvocation included; the object may be a new one."""
        ...

    async def validate(self, request: AdmissionRequest) -> Sequence[str]:
        """Runs the validating webhooks that match and returns their warnings."""
        ...


class Policies(Protocol):
    """Admission policies, evaluated in this process."""

    def validate(self, request: AdmissionRequest) -> Sequence[str]:
        """Returns the warnings of the policies that match the write.

        Raises:
            tessera_lab.apiserver.status.StatusError: a policy refuses.
        """
        ...


class QuotaUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """New ``status.used`` of one ResourceQuota, to be stored together with the object that used it."""

    namespace: str
    name: str
    used: Mapping[str, str]


class Quota(Protocol):
    """ResourceQuota. There is no await between this check and the commit, so no other write comes between."""

    def admit(self, request: AdmissionRequest, reader: ObjectReader) -> Sequence[QuotaUpdate]:
        """Returns the updates of the namespace's quotas.

        Raises:
            tessera_lab.apiserver.status.StatusError: 403, ``exceeded quota: ...`` in Kubernetes' words.
        """
        ...


class Authorizer(Protocol):
    """Decides which requests a user may send."""

    def authorize(self, attributes: Attributes) -> AuthorizationDecision:
        """Decides if the user may send the request."""
        ...

    def rules(self, user: UserInfo, namespace: str) -> tuple[Sequence[Obj], Sequence[Obj]]:
        """``resourceRules`` and ``nonResourceRules`` of a SelfSubjectRulesReview."""
        ...


class Discovery(Protocol):
    """``/api``, ``/apis`` and below."""

    def answer(self, path: str, accept: str) -> tuple[str, Obj] | None:
        """Returns Content-Type and document of a discovery path (no trailing slash); None if there is no such path."""
        ...


class OpenApi(Protocol):
    """``/openapi/v2``, ``/openapi/v3`` and ``/openapi/v3/<group version>``."""

    def index(self) -> Obj:
        """``{"paths": {"api/v1": {"serverRelativeURL": ...}}}``."""
        ...

    def document(self, path: str) -> Obj | None:
        """The document of ``api/v1`` or ``apis/<group>/<version>``; None when there is none."""
        ...

    def documents(self) -> Iterator[Obj]:
        """The documents of all group versions."""
        ...


class BodyDecoder(Protocol):
    """Bodies that are not JSON."""

    def __call__(self, body: bytes) -> Obj:
        """Decodes ``application/vnd.kubernetes.protobuf``.

        Raises:
            ValueError: not the format, or a kind that is not known; becomes 415.
        """
        ...
