"""The verbs of the Kubernetes API on typed resources.

Rules:

1. Structs are partial, so there is no PUT. Writes are create, server-side apply under one fixed field manager, merge
   patch (with ``resource_version`` where a lost update matters, with ``uid`` where the object's life matters), delete
   with preconditions, and the subresources' own forms.
2. Only repeatable requests are repeated (:class:`~tessera.kube.requests.RequestSender`): a read, a patch or a
   delete that was answered 429 is sent again after the server's Retry-After. A create or an eviction never is, and no
   request is after a broken connection, since the server may have acted.
3. A refusal is an :class:`~tessera.kube.errors.ApiError`; no answer is a ``ConnectionError`` or
   ``TimeoutError``.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import msgspec

from tessera.clock import Clock
from tessera.kube.codec import Codec, ListPage, ListResult, Undecodable
from tessera.kube.errors import (
    ApiError,
    BrokenAnswer,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    Status,
    error_from_response,
    note_unanswered,
)
from tessera.kube.requests import (
    APPLY_PATCH,
    JSON,
    MERGE_PATCH,
    NO_HEADERS,
    FencedTransport,
    Propagation,
    Request,
    RequestSender,
    Response,
    Stream,
    Transport,
    binding_body,
    delete_body,
    eviction_body,
    selector_query,
    with_preconditions,
)
from tessera.kube.resources import PODS, Scale
from tessera.kube.resources.meta import Resource, manifest

T = TypeVar("T")
V = TypeVar("V")

#: Objects per page of a list; client-go's default.
PAGE_SIZE = 500
#: The server looks for fields that it does not know, to warn of them; nobody reads the warnings of our writes.
NO_WARNINGS = ("fieldValidation", "Ignore")


class Client:
    """One identity at one API server.

    Args:
        transport: carries the requests; owned, :meth:`close` closes it.
        field_manager: owner of applied or patched fields, e.g. ``tessera-controller``. It must never change: fields of
            a renamed manager are left behind.
        clock: for pauses after 429.
        component: shown in the user agent, ``tessera/<version> (<component>)``; the field manager if left out.
    """

    def __init__(self, transport: Transport, *, field_manager: str, clock: Clock, component: str | None = None) -> None:
        self._transport = transport
        self._field_manager = field_manager
        self._clock = clock
        self._sender = RequestSender(transport, clock, component or field_manager)
        self._codecs: dict[type[Any], Codec[Any]] = {}

    @property
    def field_manager(self) -> str:
        """Returns the owner of the fields that this client writes."""
        return self._field_manager

    def with_field_manager(self, field_manager: str) -> "Client":
        """Returns a client on the same connections with another field manager. Closing one of the two closes both."""
        return Client(self._transport, field_manager=field_manager, clock=self._clock, component=self._field_manager)

    def fence_writes(self, may_act: Callable[[], bool]) -> "Client":
        """Returns a client on the same connections that sends a write only if ``may_act()``, called just before."""
        fence = FencedTransport(self._transport, may_act)
        return Client(fence, field_manager=self._field_manager, clock=self._clock)

    async def close(self) -> None:
        """Ends all streams and frees the connections."""
        await self._transport.close()

    def codec(self, resource: Resource[T]) -> Codec[T]:
        """The decoders of a resource's type, made once."""
        found = self._codecs.get(resource.type)
        if found is None:
            found = self._codecs[resource.type] = Codec(resource.type)
        return found

    # Reading

    async def get(
        self, resource: Resource[T], name: str, namespace: str | None = None, *, subresource: str | None = None
    ) -> T:
        """One object.

        Raises:
            NotFound: there is none of that name.
        """
        answer = await self.request("GET", resource.path(namespace, name, subresource))
        return self._decode(resource, answer)

    async def list(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = PAGE_SIZE,
        not_older_than: str = "",
    ) -> ListResult[T]:
        """All objects of one namespace, or of all, read in pages of ``limit`` (0 for a single one).

        With ``not_older_than``, a version, the server may answer from its cache, which knows that version; such a list
        is one page. Otherwise it has every write that was answered before. A list that takes longer than the server
        keeps its snapshot is begun again, the second time in one page.
        """
        if not_older_than:
            match = [("resourceVersion", not_older_than), ("resourceVersionMatch", "NotOlderThan")]
            query = [*selector_query(label_selector, field_selector), *match]
            answer = await self.request("GET", resource.path(namespace), query=query)
            page = self._fit(resource, answer, self.codec(resource).decode_page)
            return ListResult(page.items, page.undecodable, page.version)
        try:
            return await self._list(resource, namespace, label_selector, field_selector, limit)
        except Expired:
            return await self._list(resource, namespace, label_selector, field_selector, 0)

    async def list_allowed(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        field_selector: str | None = None,
        failed: dict[str, str] | None,
        missing: str = "",
    ) -> Sequence[T] | None:
        """The objects of a kind; None without the right to list it, or without an answer.

        A kind that the server does not know has no objects, since it is not installed, unless ``missing`` says what
        that means: then it is noted as unread. Every cluster has the kinds of the core group, so one of those that the
        server does not know is unknown. Other kinds without an answer go to ``failed``, and why; see
        :func:`~tessera.kube.errors.note_unanswered`.

        Raises:
            ApiError: another refusal, or an internal error while ``failed`` is None.
            OSError: no answer came, and ``failed`` is None.
        """
        try:
            return (await self.list(resource, namespace, field_selector=field_selector)).items
        except (ApiError, OSError) as error:
            if isinstance(error, NotFound):
                if missing and failed is not None:
                    failed[resource.plural] = missing
                return () if resource.group and not missing else None
            if not isinstance(error, Forbidden):
                note_unanswered(resource.plural, error, failed)
            return None

    async def page(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = PAGE_SIZE,
        token: str = "",
    ) -> ListPage[T]:
        """One page of a list; ``token`` is that of the page before.

        Raises:
            Expired: the token is too old; begin again.
            BrokenAnswer: the answer is no list.
        """
        query = selector_query(label_selector, field_selector)
        if limit:
            query.append(("limit", str(limit)))
        if token:
            query.append(("continue", token))
        answer = await self.request("GET", resource.path(namespace), query=query)
        return self._fit(resource, answer, self.codec(resource).decode_page)

    def watch(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        resource_version: str,
        timeout_seconds: int,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AbstractAsyncContextManager[Stream]:
        """The raw watch stream with bookmarks; :class:`~tessera.kube.reflector.Reflector` reads it."""
        query = selector_query(label_selector, field_selector)
        query += [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(timeout_seconds)),
        ]
        request = Request(method="GET", path=resource.path(namespace), query=query, headers=self._sender.headers())
        return self._transport.stream(request)

    # Writing

    async def create(
        self,
        resource: Resource[T],
        item: T | Mapping[str, Any],
        namespace: str | None = None,
        *,
        dry_run: bool = False,
    ) -> T:
        """Makes an object, or with ``dry_run`` only says what it would be; ``apiVersion`` and ``kind`` are added.

        Raises:
            AlreadyExists: the name is taken.
            ValueError: the resource is namespaced and no namespace is given.
        """
        if resource.namespaced and not namespace:
            raise ValueError(f"create {resource.label}: a namespace is needed, {resource.kind} objects live in one")
        answer = await self.request(
            "POST",
            resource.path(namespace),
            query=[("fieldManager", self._field_manager), NO_WARNINGS, *([("dryRun", "All")] if dry_run else [])],
            body=manifest(resource, item),
        )
        return self._decode(resource, answer)

    async def apply(
        self,
        resource: Resource[T],
        name: str,
        item: T | Mapping[str, Any],
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        force: bool = True,
    ) -> T:
        """Server-side apply: afterwards this manager owns exactly the fields in ``item``.

        Raises:
            Conflict: another manager owns one of them, and ``force`` is off.
        """
        body = manifest(resource, item)
        scope = {"namespace": namespace} if namespace else {}
        body["metadata"] = {**body.get("metadata", {}), "name": name, **scope}
        answer = await self.request(
            "PATCH",
            resource.path(namespace, name, subresource),
            query=[("fieldManager", self._field_manager), ("force", "true" if force else "false")],
            body=body,
            content_type=APPLY_PATCH,
        )
        return self._decode(resource, answer)

    async def merge_patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        resource_version: str | None = None,
        uid: str | None = None,
    ) -> T:
        """JSON merge patch: named fields are set, ``None`` removes, lists are replaced whole.

        Raises:
            Conflict: the object is no longer at ``resource_version``, or has another ``uid`` (which kube-apiserver
                calls Invalid, as it takes the patch for an attempt to change the uid).
            NotFound: the object is gone.
        """
        try:
            answer = await self.request(
                "PATCH",
                resource.path(namespace, name, subresource),
                query=[("fieldManager", self._field_manager), NO_WARNINGS],
                body=with_preconditions(patch, resource_version, uid),
                content_type=MERGE_PATCH,
            )
        except Invalid as error:
            if uid is not None and any(cause.field == "metadata.uid" for cause in error.causes):
                raise Conflict(error.status) from error
            raise
        return self._decode(resource, answer)

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        propagation: Propagation | None = None,
    ) -> None:
        """Requests the object's deletion; finalizers and its grace period may delay the end.

        Raises:
            NotFound: the object is gone already.
            Conflict: the object has another ``uid`` or ``resource_version``.
        """
        body = delete_body(uid, resource_version, grace_seconds, propagation)
        await self.request("DELETE", resource.path(namespace, name), body=body)

    # Subresources with a form of their own

    async def serves(self, group: str) -> bool:
        """True if the server has an API group, or a version of one (``batch``, ``batch/v1``)."""
        try:
            await self.request("GET", f"/apis/{group}")
        except NotFound:
            return False
        return True

    async def evict(
        self,
        name: str,
        namespace: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Asks for a pod's eviction.

        Args:
            name: the pod's.
            namespace: the pod's.
            uid: UID of the pod to evict.
            resource_version: version of the pod to evict; a pod that has changed since is not evicted.
            grace_seconds: seconds that it may take to end.

        Raises:
            Conflict: the pod is another one, or was changed.
            TooManyRequests: a disruption budget forbids it now. Not repeated here.
        """
        body = eviction_body(name, namespace, uid, resource_version, grace_seconds)
        await self.request("POST", PODS.path(namespace, name, "eviction"), body=body)

    async def bind(self, name: str, namespace: str, node: str, *, uid: str | None = None) -> None:
        """Puts a pod on a node, as a scheduler does.

        Raises:
            Conflict: the pod is bound already, or has another ``uid``.
        """
        body = binding_body(name, namespace, node, uid)
        await self.request("POST", PODS.path(namespace, name, "binding"), body=body)

    async def scale(self, resource: Resource[Any], name: str, namespace: str, replicas: int) -> Scale:
        """Sets a workload's number of replicas through its ``scale`` subresource."""
        answer = await self.request(
            "PATCH",
            resource.path(namespace, name, "scale"),
            query=[("fieldManager", self._field_manager)],
            body={"spec": {"replicas": replicas}},
            content_type=MERGE_PATCH,
        )
        return msgspec.json.decode(answer.body, type=Scale)

    # Anything else

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: object = None,
        content_type: str = JSON,
        accept: str = JSON,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Response:
        """Any request (TokenRequest, SelfSubjectAccessReview, ``/version``); ``body`` is encoded as JSON.

        Raises:
            ApiError: the server refused.
            ConnectionError: no answer; it is unknown if the server acted.
            TimeoutError: as above.
        """
        return await self._sender.send(
            method, path, query=query, body=body, content_type=content_type, accept=accept, headers=headers
        )

    @asynccontextmanager
    async def stream(self, path: str, query: Sequence[tuple[str, str]] = ()) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer that comes piece by piece, such as a log that is followed.

        Raises:
            ApiError: the server refused.
            ConnectionError: no answer, or the connection broke.
        """
        request = Request(method="GET", path=path, query=query, headers=self._sender.headers(accept="*/*"))
        async with self._transport.stream(request) as found:
            if found.status >= 400:
                raise error_from_response(found.status, found.headers, await found.read())
            yield found.chunks()

    async def _list(
        self, resource: Resource[T], namespace: str | None, labels: str | None, fields: str | None, limit: int
    ) -> ListResult[T]:
        items: list[T] = []
        poison: list[Undecodable] = []
        token = ""
        while True:
            page = await self.page(
                resource, namespace, label_selector=labels, field_selector=fields, limit=limit, token=token
            )
            items += page.items
            poison += page.undecodable
            token = page.token
            if not token:
                return ListResult(items, poison, page.version)

    def _decode(self, resource: Resource[T], answer: Response) -> T:
        return self._fit(resource, answer, self.codec(resource).decode_object)

    def _fit(self, resource: Resource[Any], answer: Response, decode: Callable[[bytes], V]) -> V:
        try:
            return decode(answer.body)
        except msgspec.DecodeError as error:
            message = f"{resource.kind}: the server's answer does not fit {resource.type.__name__}: {error}"
            raise BrokenAnswer(Status(code=answer.status, message=message)) from error
