"""get, list and watch.

Rules for the resourceVersion of a list: none or ``0`` reads the present state; ``Exact`` and continue tokens read a
past state, rebuilt from the store's ring; older than the ring is 410, newer than the present 504. A watch that starts
before the ring answers 200 with one ERROR event, as kube-apiserver's watch cache does.
"""

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from tessera_lab.apiserver.interfaces import StatusCause
from tessera_lab.apiserver.request.negotiation import AcceptedFormat, ResponseForm, parse_accept
from tessera_lab.apiserver.request.server_state import ResourceRequest, ServerState
from tessera_lab.apiserver.resource_types import ResourceType
from tessera_lab.apiserver.status import StatusError, bad_request_error, expired_error, invalid_error, not_found_error
from tessera_lab.apiserver.storage.selectors import ObjectSelection, parse_fields, parse_labels
from tessera_lab.apiserver.storage.store import StoredObject, TooOld
from tessera_lab.apiserver.storage.watch import Watcher

#: A watch without timeoutSeconds lives between one and two times this, seconds (``--min-request-timeout``).
MIN_LIFETIME = 1800.0


class ContinueToken(msgspec.Struct, frozen=True):
    """A continue token: the version of the state to read, and the key (namespace, name) of the last object sent."""

    rv: int
    start: tuple[str, str]

    def token(self) -> str:
        """Encodes the token for the client."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()


def read_token(token: str) -> ContinueToken:
    """Decodes a continue token.

    Raises:
        StatusError: 400, the text is no token.
    """
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token), type=ContinueToken)
    except (ValueError, msgspec.MsgspecError):
        raise bad_request_error("continue key is not valid: it was not issued by this server") from None


def parse_selection(request: ResourceRequest) -> ObjectSelection:
    """The selection of a collection request.

    Raises:
        StatusError: 400, a selector is not valid.
    """
    return ObjectSelection(
        namespace=request.namespace or None,
        labels=parse_labels(request.query.text("labelSelector")),
        fields=parse_fields(request.query.text("fieldSelector"), request.resource),
    )


class ReadHandler:
    """Serves the verbs that change nothing."""

    def __init__(self, core: ServerState) -> None:
        self._core = core

    def find(self, request: ResourceRequest) -> StoredObject:
        """The object that the path names.

        Raises:
            StatusError: 404.
        """
        found = self._core.store.find(request.resource.storage, request.namespace, request.route.name)
        if found is None:
            raise not_found_error(request.resource.group, request.resource.plural, request.route.name)
        return found

    def form(self, request: ResourceRequest) -> ResponseForm:
        """The representation that the client accepts."""
        desired = parse_accept(request.request.headers.get("accept", ""))
        if desired.as_kind == "Table" and request.resource.columns is None:
            desired = AcceptedFormat(media=desired.media)
        return ResponseForm(request.resource, desired, self._core.clock.now, request.query.text("includeObject"))

    def get(self, request: ResourceRequest) -> bytes:
        """One object."""
        form = self.form(request)
        _version_or_500(request.query.text("resourceVersion"))
        return form.one(self.find(request))

    def list_objects(self, request: ResourceRequest) -> bytes:
        """A collection, or a page of it."""
        form = self.form(request)
        selection = parse_selection(request)
        chosen, meta = self._page(request, selection)
        return form.many(chosen, meta)

    def select_objects(self, request: ResourceRequest) -> list[StoredObject]:
        """The stored objects that a collection request selects now."""
        selection = parse_selection(request)
        every = self._core.store.select(request.resource.storage, selection.namespace)
        return [stored for stored in every if selection.matches(stored.obj)]

    def _page(
        self, request: ResourceRequest, selection: ObjectSelection
    ) -> tuple[list[StoredObject], Mapping[str, Any]]:
        limit = request.query.number("limit") or 0
        token = request.query.text("continue")
        page = read_token(token) if token else None
        at = page.rv if page else self._exact(request)
        try:
            every = self._core.store.select(request.resource.storage, selection.namespace, at=at)
        except TooOld as error:
            raise self._too_old(error, continued=page is not None) from None
        rv = self._core.store.rv if at is None else at
        narrow = selection.labels or selection.fields
        chosen = [stored for stored in every if selection.matches(stored.obj)] if narrow else every
        if page:
            chosen = [stored for stored in chosen if _key(stored) > page.start]
        meta: dict[str, Any] = {"resourceVersion": str(rv)}
        if limit and len(chosen) > limit:
            meta["continue"] = ContinueToken(rv, _key(chosen[limit - 1])).token()
            if not narrow:
                meta["remainingItemCount"] = len(chosen) - limit
            chosen = chosen[:limit]
        return chosen, meta

    def _exact(self, request: ResourceRequest) -> int | None:
        """The past version that a list asks for, None for the present."""
        text, match = request.query.text("resourceVersion"), request.query.text("resourceVersionMatch")
        if request.query.text("continue") and text not in {"", "0"}:
            raise bad_request_error("specifying resource version is not allowed when using continue")
        if match and not text:
            raise _match_refused(
                request.resource, "resourceVersionMatch is forbidden unless resourceVersion is provided"
            )
        if match not in {"", "Exact", "NotOlderThan"}:
            raise _match_refused(request.resource, f'"{match}" is not one of Exact, NotOlderThan')
        try:
            rv = version_number(text)
        except ValueError as error:
            raise bad_request_error(f"invalid resource version: {error}") from None
        if rv > self._core.store.rv:
            raise _too_large(rv, self._core.store.rv)
        if match == "Exact":
            if rv == 0:
                raise _match_refused(
                    request.resource, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
                )
            return rv
        return None

    def _too_old(self, error: TooOld, *, continued: bool) -> StatusError:
        if not continued:
            return expired_error(str(error))
        return expired_error(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list "
            "without the continue parameter."
        )

    def watch(self, request: ResourceRequest) -> Watcher:
        """Opens a watch and adds it to its hub; its reader must end it with :meth:`unwatch`.

        Raises:
            StatusError: the parameters are not valid.
        """
        form = self.form(request)
        selection = parse_selection(request)
        initial = request.query.text("sendInitialEvents")
        text = request.query.text("resourceVersion")
        _check_initial(request, initial)
        rv = _version_or_500(text)
        watcher = self._watcher(request, selection, form, rv)
        hub = self._core.hubs.of(request.resource.storage)
        if request.query.flag("sendInitialEvents") or (rv == 0 and not initial):
            every = self._core.store.select(request.resource.storage, selection.namespace)
            watcher.show((s for s in every if selection.matches(s.obj)), mark_end=bool(initial))
        elif rv:
            try:
                for change in self._core.store.since(request.resource.storage, rv):
                    watcher.offer(change)
            except TooOld as error:
                watcher.push(msgspec.json.encode({"type": "ERROR", "object": expired_error(str(error)).status}) + b"\n")
                watcher.end()
                return watcher
        hub.add(watcher)
        return watcher

    def unwatch(self, request: ResourceRequest, watcher: Watcher) -> None:
        """Ends a watch whose reader has stopped."""
        self._core.hubs.of(request.resource.storage).remove(watcher)

    def _watcher(self, request: ResourceRequest, selection: ObjectSelection, form: ResponseForm, rv: int) -> Watcher:
        requested = request.query.number("timeoutSeconds")
        return Watcher(
            selection,
            form.key,
            form.frame,
            bookmark=form.bookmark if request.query.flag("allowWatchBookmarks") else None,
            version=lambda: self._core.store.rv,
            lifetime=float(requested) if requested else MIN_LIFETIME * (1 + self._core.rng.random()),
            after=rv,
        )


def version_number(text: str) -> int:
    """Parses a resourceVersion; empty is 0.

    Raises:
        ValueError: the text is no version; with kube-apiserver's text.
    """
    if text and not (text.isascii() and text.isdigit()):
        quoted = msgspec.json.encode(text).decode()
        reason = f"resourceVersion: Invalid value: {quoted}: strconv.ParseUint: parsing {quoted}: invalid syntax"
        raise ValueError(reason)
    return int(text or "0")


def _version_or_500(text: str) -> int:
    """Parses the resourceVersion of a get or a watch, for which kube-apiserver returns its storage's error as 500."""
    try:
        return version_number(text)
    except ValueError as error:
        raise StatusError(500, "", str(error)) from None


def _key(stored: StoredObject) -> tuple[str, str]:
    meta = stored.obj["metadata"]
    return meta.get("namespace") or "", meta["name"]


def _match_refused(resource: ResourceType, reason: str) -> StatusError:
    cause = StatusCause(field="resourceVersionMatch", reason="FieldValueForbidden", message=f"Forbidden: {reason}")
    del resource
    return invalid_error("meta.k8s.io", "ListOptions", "", [cause])


def _too_large(requested: int, current: int) -> StatusError:
    cause = StatusCause(field="", reason="ResourceVersionTooLarge", message="Too large resource version")
    text = f"Timeout: Too large resource version: {requested}, current: {current}"
    return StatusError(504, "Timeout", text, retry_after=1, causes=[cause])


def _check_initial(request: ResourceRequest, initial: str) -> None:
    match = request.query.text("resourceVersionMatch")
    reason = ""
    if match and not initial:
        reason = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
    elif initial and match != "NotOlderThan":
        reason = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
    if reason:
        raise _match_refused(request.resource, reason)
