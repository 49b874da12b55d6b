"""Admission of a decoded write, before it is stored: built-in plugins, webhooks, policies and quota.

The order is kube-apiserver's: namespace life cycle, the plugins that set fields, mutating webhooks; after validation
the admission policies, then the validating webhooks; quota last, without an await before the commit.
"""

from collections.abc import Sequence
from typing import Protocol

from tessera_lab.apiserver.interfaces import AdmissionRequest, AdmissionResult, QuotaUpdate, StatusCause
from tessera_lab.apiserver.request.server_state import NAMESPACES, ServerState
from tessera_lab.apiserver.status import StatusError, forbidden_error, not_found_error


class AdmissionPlugin(Protocol):
    """One built-in admission plugin; changes ``request.obj`` in place."""

    def __call__(self, request: AdmissionRequest, core: ServerState) -> None:
        """Sets fields of the object, or refuses it.

        Raises:
            StatusError: refused.
        """
        ...


class AdmissionChain:
    """The chain. ``plugins`` run in order before the webhooks."""

    def __init__(self, core: ServerState, plugins: Sequence[AdmissionPlugin]) -> None:
        self._core = core
        self._plugins = plugins

    async def mutate(self, request: AdmissionRequest) -> AdmissionResult:
        """Runs plugins and mutating webhooks, and returns the object that they leave.

        Raises:
            StatusError: refused.
        """
        for plugin in self._plugins:
            plugin(request, self._core)
        webhooks = self._core.parts.webhooks
        return await webhooks.mutate(request) if webhooks else AdmissionResult(obj=request.obj)

    async def validate(self, request: AdmissionRequest) -> Sequence[str]:
        """Evaluates the policies, asks the validating webhooks, and returns the warnings of both.

        Raises:
            StatusError: refused.
        """
        policies, webhooks = self._core.parts.policies, self._core.parts.webhooks
        warnings = policies.validate(request) if policies else ()
        return [*warnings, *(await webhooks.validate(request) if webhooks else ())]

    def quota(self, request: AdmissionRequest) -> Sequence[QuotaUpdate]:
        """Returns the quota updates of the write; no await may stand between this call and the commit.

        Raises:
            StatusError: 403, a quota is exceeded.
        """
        quota = self._core.parts.quota
        if quota is None or not request.attributes.namespace:
            return ()
        return quota.admit(request, self._core.store)


def namespace_lifecycle(request: AdmissionRequest, core: ServerState) -> None:
    """Refuses a create in a namespace that does not exist or is being deleted."""
    attributes = request.attributes
    if request.operation != "CREATE" or not attributes.namespace:
        return
    namespace = core.store.get(NAMESPACES, "", attributes.namespace)
    if namespace is None:
        raise not_found_error("", "namespaces", attributes.namespace)
    if namespace["metadata"].get("deletionTimestamp"):
        name = attributes.name or (request.obj or {}).get("metadata", {}).get("name", "")
        raise _terminating_error(attributes.group, attributes.resource, name, attributes.namespace)


def _terminating_error(group: str, resource: str, name: str, namespace: str) -> StatusError:
    reason = f"unable to create new content in namespace {namespace} because it is being terminated"
    error = forbidden_error(group, resource, name, reason)
    cause = StatusCause(
        reason="NamespaceTerminating", message=f"namespace {namespace} is being terminated", field="metadata.namespace"
    )
    error.status["details"]["causes"] = [{"reason": cause.reason, "message": cause.message, "field": cause.field}]
    return error
