"""create, update, patch, delete: writes a decoded body to the store.

Every write has the same steps: make the wanted object, set defaults, mutating admission, restore the fields that the
kind's strategy protects, validation, validating admission, quota, commit. Admission may wait for webhooks; if the
stored object changes meanwhile, the write starts again from the new state; if the client named a resourceVersion, it
gets 409 instead.
"""

from collections.abc import Callable, Sequence

import msgspec

from tessera_lab.apiserver.admission.chain import AdmissionChain
from tessera_lab.apiserver.handlers.request_bodies import check_place, check_type
from tessera_lab.apiserver.handlers.write_rules import (
    check_deletion,
    check_state,
    restore_protected_fields,
    select_applied_fields,
    starts_without_status,
)
from tessera_lab.apiserver.interfaces import AdmissionRequest, GroupResource, Obj, QuotaUpdate, StatusCause
from tessera_lab.apiserver.kinds.metadata import (
    SUFFIX_LETTERS,
    build_generated_name,
    changes_generation,
    decide_deletion,
    is_deletion_complete,
    set_creation_metadata,
)
from tessera_lab.apiserver.patch.managed_fields import FieldWriter, update_managed_fields
from tessera_lab.apiserver.patch.server_side_apply import apply_configuration
from tessera_lab.apiserver.request.negotiation import to_version
from tessera_lab.apiserver.request.server_state import ResourceRequest, ServerState
from tessera_lab.apiserver.status import (
    MODIFIED,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    invalid,
    not_found,
)
from tessera_lab.apiserver.storage.store import Stale, Store, StoredObject, deep_copy
from tessera_lab.apiserver.validation.object_validation import (
    conform_to_schema,
    raise_invalid,
    report_unknown_fields,
    validate_create,
    validate_update,
)
from tessera_lab.apiserver.validation.strategies import find_strategy

QUOTAS = GroupResource("", "resourcequotas")
#: How often a write starts again because the object changed under it; then 409 (kube-apiserver: 5 for patches).
RETRIES = 32
#: How many generated names the server tries (``rest.Create``: 8).
NAME_TRIES = 8

#: Makes the wanted object from a private copy of the stored one.
Transform = Callable[[Obj], Obj]


class WriteHandler:
    """Serves the verbs that change objects."""

    def __init__(self, core: ServerState, admission: AdmissionChain) -> None:
        self._core = core
        self._admission = admission

    # -- create ---------------------------------------------------------------------------------------------------

    async def create(self, ask: ResourceRequest, obj: Obj, *, by_apply: bool = False) -> StoredObject:
        """Stores a new object.

        Raises:
            StatusError: refused.
        """
        check_type(obj, ask.resource.api_version, ask.resource.kind)
        check_place(obj, ask.resource, ask.namespace, ask.route.name)
        if obj["metadata"].get("resourceVersion") not in {None, "", "0"}:
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        for attempt in range(NAME_TRIES):
            try:
                return await self._create_once(ask, deep_copy(obj), by_apply=by_apply)
            except Stale:
                generated = bool(obj["metadata"].get("generateName")) and not obj["metadata"].get("name")
                if generated and attempt + 1 < NAME_TRIES:
                    continue
                raise self._name_taken_error(ask, obj) from None
        raise AssertionError("the loop returns or raises")

    def _name_taken_error(self, ask: ResourceRequest, obj: Obj) -> StatusError:
        name = obj["metadata"].get("name") or obj["metadata"].get("generateName", "")
        return already_exists(ask.resource.group, ask.resource.plural, name)

    async def _create_once(self, ask: ResourceRequest, obj: Obj, *, by_apply: bool) -> StoredObject:
        strategy = find_strategy(ask.resource)
        conform_to_schema(ask, obj, None)
        if starts_without_status(ask.resource):
            obj.pop("status", None)
        if not by_apply:
            update_managed_fields(obj, None, self._writer(ask, "Update"), ask.resource.topology, self._core.timestamp())
        admitted = await self._admission.mutate(self._admission_request(ask, "CREATE", obj, None))
        ask.warnings.extend(admitted.warnings)
        if admitted.obj is not None and admitted.obj is not obj:
            obj = admitted.obj
            conform_to_schema(ask, obj, None, quiet=True)
        meta = obj["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            suffix = "".join(self._core.rng.choice(SUFFIX_LETTERS) for _ in range(5))
            meta["name"] = build_generated_name(meta["generateName"], suffix)
        if starts_without_status(ask.resource):
            obj.pop("status", None)
        set_creation_metadata(
            obj, uid=self._core.new_uid(), now=self._core.timestamp(), generation=ask.resource.generation
        )
        strategy.prepare_create(obj)
        strategy.default(obj)
        if self._core.store.find(ask.resource.storage, ask.namespace, str(meta.get("name", ""))):
            raise Stale
        raise_invalid(ask, obj, validate_create(ask, obj))
        ask.warnings.extend(await self._admission.validate(self._admission_request(ask, "CREATE", obj, None)))
        used = self._admission.quota(self._admission_request(ask, "CREATE", obj, None))
        return self._commit(ask, obj, None, used)

    # -- update ---------------------------------------------------------------------------------------------------

    async def update(
        self, ask: ResourceRequest, transform: Transform, *, put: bool = False, by_apply: bool = False
    ) -> StoredObject:
        """Replaces the stored object with the result of ``transform``; writes nothing if they are equal.

        Args:
            ask: the request, which names the object.
            transform: makes the wanted object from a private copy of the stored one.
            put: the body is a whole object; some kinds then require its resourceVersion.
            by_apply: the transform has set managedFields.

        Raises:
            StatusError: refused.
        """
        for _ in range(RETRIES):
            found = self._core.store.find(ask.resource.storage, ask.namespace, ask.route.name)
            if found is None:
                raise not_found(ask.resource.group, ask.resource.plural, ask.route.name)
            try:
                return await self._update_once(ask, found, transform, put=put, by_apply=by_apply)
            except Stale:
                continue
        raise conflict(ask.resource.group, ask.resource.plural, ask.route.name, MODIFIED)

    async def _update_once(
        self, ask: ResourceRequest, found: StoredObject, transform: Transform, *, put: bool, by_apply: bool
    ) -> StoredObject:
        old = to_version(ask.resource, found.obj)
        obj = transform(self._core.to_served_form(ask.resource, found))
        check_type(obj, ask.resource.api_version, ask.resource.kind)
        check_place(obj, ask.resource, ask.namespace, ask.route.name)
        check_state(ask, obj, old, put=put)
        obj = restore_protected_fields(ask, obj, old)
        conform_to_schema(ask, obj, old)
        if not by_apply:
            update_managed_fields(obj, old, self._writer(ask, "Update"), ask.resource.topology, self._core.timestamp())
        admitted = await self._admission.mutate(self._admission_request(ask, "UPDATE", obj, old))
        ask.warnings.extend(admitted.warnings)
        if admitted.obj is not None and admitted.obj is not obj:
            obj = restore_protected_fields(ask, admitted.obj, old)
            conform_to_schema(ask, obj, old, quiet=True)
        raise_invalid(ask, obj, validate_update(ask, obj, old))
        request = self._admission_request(ask, "UPDATE", obj, old)
        ask.warnings.extend(await self._admission.validate(request))
        if obj == old and not is_deletion_complete(obj):
            return found
        if ask.resource.generation and changes_generation(obj, old, status=ask.resource.status_subresource):
            obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return self._commit(ask, obj, found, self._admission.quota(request))

    async def apply(self, ask: ResourceRequest, config: Obj) -> tuple[StoredObject, bool]:
        """Server-side apply; returns the object, and True if it is a new one.

        Raises:
            StatusError: refused.
        """
        if not ask.options.get("fieldManager"):
            cause = StatusCause(field="fieldManager", reason="FieldValueRequired", message=_MANAGER_REQUIRED)
            raise invalid("meta.k8s.io", "PatchOptions", "", [cause])
        check_type(config, ask.resource.api_version, ask.resource.kind)
        check_place(config, ask.resource, ask.namespace, ask.route.name)
        if config["metadata"].get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        if ask.resource.schema is not None:
            report_unknown_fields(ask, ask.resource.schema.unknown_fields(config))
            ask.resource.schema.prune(config)
        writer, now, force = self._writer(ask, "Apply"), self._core.timestamp(), bool(ask.options.get("force"))

        def transform(live: Obj) -> Obj:
            wanted = select_applied_fields(ask, config)
            settle = find_strategy(ask.resource).default if live.get("kind") else _set_no_defaults
            return apply_configuration(live, wanted, writer, ask.resource.topology, settle=settle, force=force, now=now)

        if self._core.store.find(ask.resource.storage, ask.namespace, ask.route.name) or ask.route.subresource:
            return await self.update(ask, transform, by_apply=True), False
        uid = config["metadata"].get("uid")
        if uid:
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise conflict(ask.resource.group, ask.resource.plural, ask.route.name, why)
        start: Obj = {
            "metadata": {key: config["metadata"][key] for key in ("name", "namespace") if key in config["metadata"]}
        }
        return await self.create(ask, transform(start), by_apply=True), True

    def _writer(self, ask: ResourceRequest, operation: str) -> FieldWriter:
        return FieldWriter(
            manager=ask.manager,
            operation=operation,
            api_version=ask.resource.api_version,
            subresource=ask.route.subresource if ask.route.subresource in {"status", "scale"} else "",
        )

    # -- delete ---------------------------------------------------------------------------------------------------

    async def delete(self, ask: ResourceRequest, name: str) -> tuple[StoredObject, bool]:
        """Deletes the object or sets its deletionTimestamp; returns the last state, and True if the object is gone.

        Raises:
            StatusError: refused.
        """
        for _ in range(RETRIES):
            found = self._core.store.find(ask.resource.storage, ask.namespace, name)
            if found is None:
                raise not_found(ask.resource.group, ask.resource.plural, name)
            check_deletion(ask, found.obj, name)
            old = self._core.to_served_form(ask.resource, found)
            request = self._admission_request(ask, "DELETE", None, old, name=name)
            await self._admission.mutate(request)
            ask.warnings.extend(await self._admission.validate(request))
            doom = decide_deletion(deep_copy(found.obj), ask.options, self._core.clock.now())
            strategy = find_strategy(ask.resource)
            if not doom.gone:
                strategy.prepare_delete(doom.state)
            if not doom.gone and doom.state == found.obj:
                return found, False
            if ask.dry_run:
                return StoredObject(doom.state, found.rv), doom.gone
            try:
                if doom.gone:
                    return self._core.store.remove(ask.resource.storage, doom.state, found), True
                return self._core.store.put(ask.resource.storage, doom.state, found), False
            except Stale:
                continue
        raise conflict(ask.resource.group, ask.resource.plural, name, MODIFIED)

    async def admit_subresource(self, ask: ResourceRequest, kind: str, obj: Obj) -> None:
        """Runs admission for a subresource whose body is an object of its own, for example an Eviction.

        Raises:
            StatusError: refused.
        """
        request = msgspec.structs.replace(self._admission_request(ask, "CREATE", obj, None), kind=kind)
        ask.warnings.extend(await self._admission.validate(request))

    # -- shared steps ---------------------------------------------------------------------------------------------

    def _admission_request(
        self, ask: ResourceRequest, operation: str, obj: Obj | None, old: Obj | None, *, name: str = ""
    ) -> AdmissionRequest:
        attributes = ask.attributes
        if name or not attributes.name:
            named = name or ((obj or old or {}).get("metadata") or {}).get("name", "")
            attributes = msgspec.structs.replace(attributes, name=named)
        return AdmissionRequest(
            attributes=attributes,
            operation=operation,
            kind=ask.resource.kind,
            obj=obj,
            old=old,
            dry_run=ask.dry_run,
            options=ask.options,
        )

    def _commit(
        self, ask: ResourceRequest, obj: Obj, replaces: StoredObject | None, used: Sequence[QuotaUpdate]
    ) -> StoredObject:
        stored_form = self._core.to_stored_form(ask.resource, obj)
        if ask.dry_run:
            return StoredObject(stored_form, replaces.rv if replaces else 0)
        store = self._core.store
        if replaces is not None and is_deletion_complete(stored_form):
            return store.remove(ask.resource.storage, stored_form, replaces)
        stored = store.put(ask.resource.storage, stored_form, replaces)
        for update in used:
            _use_quota(store, update)
        return stored


_MANAGER_REQUIRED = "Required value: is required for apply patch"


def _set_no_defaults(obj: Obj) -> None:
    del obj


def _use_quota(store: Store, update: QuotaUpdate) -> None:
    found = store.find(QUOTAS, update.namespace, update.name)
    if found is None:
        return
    obj = deep_copy(found.obj)
    obj.setdefault("status", {})["used"] = dict(update.used)
    obj["status"].setdefault("hard", deep_copy(obj["spec"].get("hard", {})))
    store.put(QUOTAS, obj, found)
