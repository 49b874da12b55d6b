"""create, update, patch, delete: writes a decoded body to the store.

Every write has the same steps: make the wanted object, set defaults, mutating admission, restore the fields that the
kind's strategy protects, validation, validating admission, quota, commit. Admission may wait for webhooks; if the
stored object changes meanwhile, the write starts again from the new state; if the client named a resourceVersion, it
gets 409 instead.
"""

from collections.abc import Callable, Sequence

import msgspec

from tessera_lab.apiserver.admission.plugins import AdmissionChain
from tessera_lab.apiserver.handlers.claim_rights import check_claim_rights, check_create, check_rights
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
    effective_options,
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
    already_exists_error,
    bad_request_error,
    conflict_error,
    invalid_error,
    not_found_error,
)
from tessera_lab.apiserver.storage.store import Stale, Store, StoredObject, deep_copy
from tessera_lab.apiserver.validation import (
    conform_to_schema,
    find_strategy,
    raise_invalid,
    report_unknown_fields,
    validate_create,
    validate_update,
)

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

    async def create(self, request: ResourceRequest, obj: Obj, *, by_apply: bool = False) -> StoredObject:
        """Stores a new object.

        Raises:
            StatusError: refused.
        """
        check_type(obj, request.resource.api_version, request.resource.kind)
        check_place(obj, request.resource, request.namespace, request.route.name)
        if obj["metadata"].get("resourceVersion") not in {None, "", "0"}:
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        for attempt in range(NAME_TRIES):
            try:
                return await self._create_once(request, deep_copy(obj), by_apply=by_apply)
            except Stale:
                generated = bool(obj["metadata"].get("generateName")) and not obj["metadata"].get("name")
                if generated and attempt + 1 < NAME_TRIES:
                    continue
                raise self._name_taken_error(request, obj) from None
        raise AssertionError("the loop returns or raises")

    def _name_taken_error(self, request: ResourceRequest, obj: Obj) -> StatusError:
        name = obj["metadata"].get("name") or obj["metadata"].get("generateName", "")
        return already_exists_error(request.resource.group, request.resource.plural, name)

    async def _create_once(self, request: ResourceRequest, obj: Obj, *, by_apply: bool) -> StoredObject:
        strategy = find_strategy(request.resource)
        conform_to_schema(request, obj, None)
        if starts_without_status(request.resource):
            obj.pop("status", None)
        if not by_apply:
            update_managed_fields(
                obj, None, self._writer(request, "Update"), request.resource.topology, self._core.timestamp()
            )
        admitted = await self._admission.mutate(self._admission_request(request, "CREATE", obj, None))
        request.warnings.extend(admitted.warnings)
        if admitted.obj is not None and admitted.obj is not obj:
            obj = admitted.obj
            conform_to_schema(request, obj, None, quiet=True)
        check_rights(self._core, request, obj, None)
        meta = obj["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            suffix = "".join(self._core.rng.choice(SUFFIX_LETTERS) for _ in range(5))
            meta["name"] = build_generated_name(meta["generateName"], suffix)
        if starts_without_status(request.resource):
            obj.pop("status", None)
        set_creation_metadata(
            obj, uid=self._core.new_uid(), now=self._core.timestamp(), generation=request.resource.generation
        )
        strategy.prepare_create(obj)
        strategy.default(obj)
        if self._core.store.find(request.resource.storage, request.namespace, str(meta.get("name", ""))):
            raise Stale
        rights = check_claim_rights(self._core, request, obj, None)
        raise_invalid(request, obj, [*rights, *validate_create(request, obj)])
        request.warnings.extend(await self._admission.validate(self._admission_request(request, "CREATE", obj, None)))
        used = self._admission.quota(self._admission_request(request, "CREATE", obj, None))
        return self._commit(request, obj, None, used)

    # -- update ---------------------------------------------------------------------------------------------------

    async def update(
        self, request: ResourceRequest, transform: Transform, *, put: bool = False, by_apply: bool = False
    ) -> StoredObject:
        """Replaces the stored object with the result of ``transform``; writes nothing if they are equal.

        Args:
            request: the request, which names the object.
            transform: makes the wanted object from a private copy of the stored one.
            put: the body is a whole object; some kinds then require its resourceVersion.
            by_apply: the transform has set managedFields.

        Raises:
            StatusError: refused.
        """
        for _ in range(RETRIES):
            found = self._core.store.find(request.resource.storage, request.namespace, request.route.name)
            if found is None:
                raise not_found_error(request.resource.group, request.resource.plural, request.route.name)
            try:
                return await self._update_once(request, found, transform, put=put, by_apply=by_apply)
            except Stale:
                continue
        raise conflict_error(request.resource.group, request.resource.plural, request.route.name, MODIFIED)

    async def _update_once(
        self, request: ResourceRequest, found: StoredObject, transform: Transform, *, put: bool, by_apply: bool
    ) -> StoredObject:
        old = to_version(request.resource, found.obj)
        obj = transform(self._core.to_served_form(request.resource, found))
        check_type(obj, request.resource.api_version, request.resource.kind)
        check_place(obj, request.resource, request.namespace, request.route.name)
        check_state(request, obj, old, put=put)
        obj = restore_protected_fields(request, obj, old)
        conform_to_schema(request, obj, old)
        if not by_apply:
            update_managed_fields(
                obj,
                old,
                self._writer(request, "Update"),
                request.resource.topology,
                self._core.timestamp(),
            )
        admitted = await self._admission.mutate(self._admission_request(request, "UPDATE", obj, old))
        request.warnings.extend(admitted.warnings)
        if admitted.obj is not None and admitted.obj is not obj:
            obj = restore_protected_fields(request, admitted.obj, old)
            conform_to_schema(request, obj, old, quiet=True)
        check_rights(self._core, request, obj, old)
        rights = check_claim_rights(self._core, request, obj, old)
        raise_invalid(request, obj, [*rights, *validate_update(request, obj, old)])
        admission = self._admission_request(request, "UPDATE", obj, old)
        request.warnings.extend(await self._admission.validate(admission))
        if obj == old and not is_deletion_complete(obj):
            return found
        if request.resource.generation and changes_generation(obj, old, status=request.resource.status_subresource):
            obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return self._commit(request, obj, found, self._admission.quota(admission))

    async def apply(self, request: ResourceRequest, config: Obj) -> tuple[StoredObject, bool]:
        """Server-side apply; returns the object, and True if it is a new one.

        Raises:
            StatusError: refused.
        """
        if not request.options.get("fieldManager"):
            cause = StatusCause(field="fieldManager", reason="FieldValueRequired", message=_MANAGER_REQUIRED)
            raise invalid_error("meta.k8s.io", "PatchOptions", "", [cause])
        check_type(config, request.resource.api_version, request.resource.kind)
        check_place(config, request.resource, request.namespace, request.route.name)
        if config["metadata"].get("managedFields"):
            raise bad_request_error("metadata.managedFields must be nil")
        if request.resource.schema is not None:
            report_unknown_fields(request, request.resource.schema.unknown_fields(config))
            request.resource.schema.prune(config)
        writer, now, force = self._writer(request, "Apply"), self._core.timestamp(), bool(request.options.get("force"))

        def transform(live: Obj) -> Obj:
            desired = select_applied_fields(request, config)
            settle = find_strategy(request.resource).default if live.get("kind") else _set_no_defaults
            return apply_configuration(
                live, desired, writer, request.resource.topology, settle=settle, force=force, now=now
            )

        if (
            self._core.store.find(request.resource.storage, request.namespace, request.route.name)
            or request.route.subresource
        ):
            return await self.update(request, transform, by_apply=True), False
        check_create(self._core, request)
        uid = config["metadata"].get("uid")
        if uid:
            reason = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise conflict_error(request.resource.group, request.resource.plural, request.route.name, reason)
        start: Obj = {
            "metadata": {key: config["metadata"][key] for key in ("name", "namespace") if key in config["metadata"]}
        }
        return await self.create(request, transform(start), by_apply=True), True

    def _writer(self, request: ResourceRequest, operation: str) -> FieldWriter:
        return FieldWriter(
            manager=request.manager,
            operation=operation,
            api_version=request.resource.api_version,
            subresource=request.route.subresource if request.route.subresource in {"status", "scale"} else "",
        )

    # -- delete ---------------------------------------------------------------------------------------------------

    async def delete(self, request: ResourceRequest, name: str) -> tuple[StoredObject, bool]:
        """Deletes the object or sets its deletionTimestamp; returns the last state, and True if the object is gone.

        Raises:
            StatusError: refused.
        """
        for _ in range(RETRIES):
            found = self._core.store.find(request.resource.storage, request.namespace, name)
            if found is None:
                raise not_found_error(request.resource.group, request.resource.plural, name)
            check_deletion(request, found.obj, name)
            old = self._core.to_served_form(request.resource, found)
            options = effective_options(found.obj, request.options)
            admission = self._admission_request(request, "DELETE", None, old, name=name)
            admission = msgspec.structs.replace(admission, options=options)
            await self._admission.mutate(admission)
            request.warnings.extend(await self._admission.validate(admission))
            deletion = decide_deletion(deep_copy(found.obj), options, self._core.clock.now())
            strategy = find_strategy(request.resource)
            if not deletion.gone:
                strategy.prepare_delete(deletion.state)
            if not deletion.gone and deletion.state == found.obj:
                return found, False
            if request.dry_run:
                return StoredObject(deletion.state, found.rv), deletion.gone
            try:
                if deletion.gone:
                    return self._core.store.remove(request.resource.storage, deletion.state, found), True
                return self._core.store.put(request.resource.storage, deletion.state, found), False
            except Stale:
                continue
        raise conflict_error(request.resource.group, request.resource.plural, name, MODIFIED)

    async def admit_subresource(self, request: ResourceRequest, kind: str, obj: Obj) -> None:
        """Runs admission for a subresource whose body is an object of its own, for example an Eviction.

        Raises:
            StatusError: refused.
        """
        admission = msgspec.structs.replace(self._admission_request(request, "CREATE", obj, None), kind=kind)
        request.warnings.extend(await self._admission.validate(admission))

    # -- shared steps ---------------------------------------------------------------------------------------------

    def _admission_request(
        self, request: ResourceRequest, operation: str, obj: Obj | None, old: Obj | None, *, name: str = ""
    ) -> AdmissionRequest:
        attributes = request.attributes
        if name or not attributes.name:
            named = name or ((obj or old or {}).get("metadata") or {}).get("name", "")
            attributes = msgspec.structs.replace(attributes, name=named)
        return AdmissionRequest(
            attributes=attributes,
            operation=operation,
            kind=request.resource.kind,
            obj=obj,
            old=old,
            dry_run=request.dry_run,
            options=request.options,
        )

    def _commit(
        self, request: ResourceRequest, obj: Obj, replaces: StoredObject | None, used: Sequence[QuotaUpdate]
    ) -> StoredObject:
        stored_form = self._core.to_stored_form(request.resource, obj)
        if request.dry_run:
            return StoredObject(stored_form, replaces.rv if replaces else 0)
        store = self._core.store
        if replaces is not None and is_deletion_complete(stored_form):
            return store.remove(request.resource.storage, stored_form, replaces)
        stored = store.put(request.resource.storage, stored_form, replaces)
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
