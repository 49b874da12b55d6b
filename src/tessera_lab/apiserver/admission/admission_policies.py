"""Validating admission policies: selects those that match a write, and evaluates their expressions.

A policy does nothing without a binding. Its match conditions come first; then every validation must be true. An
expression that cannot be evaluated counts by the policy's ``failurePolicy``. The binding decides the effect of a
failure: the server refuses the write, warns the client, or writes to the audit log.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.cel.evaluator import EvaluationError, Program, compile_expression
from tessera_lab.apiserver.admission.authorizer import AUTHORIZER_METHODS, Asker
from tessera_lab.apiserver.admission.configuration_rules import (
    CONDITION_VARIABLES,
    FIELDS,
    POLICY_VARIABLES,
    declared_variables,
    policy_variables,
)
from tessera_lab.apiserver.admission.webhooks.admission_review import build_review
from tessera_lab.apiserver.admission.webhooks.matching import (
    ADMISSION,
    NAMESPACES,
    RuleIndex,
    cel_variables,
    is_interceptable,
    match_webhook,
)
from tessera_lab.apiserver.audit import AuditLog
from tessera_lab.apiserver.interfaces import AdmissionRequest, Authorizer, GroupResource, Obj, ObjectReader
from tessera_lab.apiserver.resource_types import ResourceRegistry
from tessera_lab.apiserver.status import StatusError, forbidden_error

Part = Mapping[str, Any]

POLICIES = GroupResource(ADMISSION, "validatingadmissionpolicies")
BINDINGS = GroupResource(ADMISSION, "validatingadmissionpolicybindings")
_PODS = GroupResource("", "pods")
#: HTTP status of each reason that a validation may give.
CODES = {"Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}
#: Longest message that an expression may make, bytes; ``MaxEvaluatedMessageExpressionSizeBytes``.
LONGEST_MESSAGE = 5 * 1024
_FAILURE = "validation.policy.admission.k8s.io/validation_failure"


class ValidationFailure(msgspec.Struct, frozen=True):
    """One validation that failed; ``index`` is its place in the policy, ``reason`` is for the Status."""

    index: int
    message: str
    reason: str = "Invalid"


class AdmissionPolicies:
    """Evaluates the stored policies.

    Args:
        reader: reads policies, bindings and namespaces.
        registry: versions of resources, for ``matchPolicy: Equivalent``.
        audit: called with the failures whose binding says ``Audit``.
        new_uid: makes the UID of an admission request.
        authorizer: what ``authorizer`` in an expression asks; None allows everything.
    """

    def __init__(
        self,
        reader: ObjectReader,
        registry: ResourceRegistry,
        audit: AuditLog,
        new_uid: Callable[[], str],
        authorizer: Authorizer | None,
    ) -> None:
        self._reader = reader
        self._registry = registry
        self._audit = audit
        self._new_uid = new_uid
        self._authorizer = authorizer
        self._programs: dict[tuple[str, frozenset[str] | None, frozenset[str]], Program] = {}
        self._index = RuleIndex(
            reader, POLICIES, lambda each: [(each, each["spec"]["matchConstraints"].get("resourceRules") or ())]
        )

    def validate(self, request: AdmissionRequest) -> Sequence[str]:
        """Returns the warnings of the policies that match the write.

        Raises:
            StatusError: a policy refuses.
        """
        warnings: list[str] = []
        if not is_interceptable(request.attributes):
            return warnings
        for policy in self._index.candidates(request):
            scope = self._scope(policy["spec"]["matchConstraints"], request)
            if scope is None:
                continue
            found: Sequence[ValidationFailure] | None = None
            for binding in self._bindings(policy["metadata"]["name"], request):
                if found is None:
                    found = self._failures_of_all(policy["spec"], scope, request)
                for failure in found:
                    self._act_on_failures(policy["metadata"]["name"], binding, failure, request, warnings)
        return warnings

    def _scope(self, constraints: Part, request: AdmissionRequest) -> dict[str, Any] | None:
        """Returns the variables of a policy's expressions; None if the policy does not match the write."""
        excluded = _hook(constraints, "excludeResourceRules")
        if excluded["rules"] and match_webhook(excluded, request, self._registry, self._reader) is not None:
            return None
        found = match_webhook(_hook(constraints, "resourceRules"), request, self._registry, self._reader)
        if found is None:
            return None
        attributes = request.attributes
        own = self._registry.get(attributes.group, attributes.version, attributes.resource)
        namespace = attributes.namespace if attributes.resource != "namespaces" else ""
        shown = self._reader.get(NAMESPACES, "", namespace) if namespace else None
        return {
            **cel_variables(build_review(request, self._new_uid(), own, found.resource)),
            "namespaceObject": shown,
            "authorizer": Asker(attributes.user, self._authorizer),
        }

    def _bindings(self, policy: str, request: AdmissionRequest) -> Iterator[Part]:
        for binding in self._reader.list(BINDINGS):
            if binding["spec"]["policyName"] == policy and self._binding_applies(binding["spec"], request):
                yield binding

    def _binding_applies(self, spec: Part, request: AdmissionRequest) -> bool:
        resources = spec.get("matchResources")
        if resources is None:
            return True
        excluded = _hook(resources, "excludeResourceRules")
        if excluded["rules"] and match_webhook(excluded, request, self._registry, self._reader) is not None:
            return False
        included = _hook(resources, "resourceRules")
        if not included["rules"]:  # the policy's own rules hold
            included["rules"] = [_EVERYTHING]
        return match_webhook(included, request, self._registry, self._reader) is not None

    def _act_on_failures(
        self, policy: str, binding: Part, failure: ValidationFailure, request: AdmissionRequest, warnings: list[str]
    ) -> None:
        name, actions = binding["metadata"]["name"], binding["spec"]["validationActions"]
        if "Audit" in actions:
            annotation = {
                "message": failure.message,
                "policy": policy,
                "binding": name,
                "expressionIndex": failure.index,
                "validationActions": list(actions),
            }
            self._audit.annotate({_FAILURE: msgspec.json.encode([annotation]).decode()})
        if "Warn" in actions:
            where = f"ValidatingAdmissionPolicy '{policy}' with binding '{name}'"
            warnings.append(f"Validation failed for {where}: {failure.message}")
        if "Deny" in actions:
            text = f"ValidatingAdmissionPolicy '{policy}' with binding '{name}' denied request: {failure.message}"
            raise _refusal(request, text, failure.reason)

    # -- expressions --------------------------------------------------------------------------------------------------

    def _failures_of_all(
        self, spec: Part, scope: dict[str, Any], request: AdmissionRequest
    ) -> Sequence[ValidationFailure]:
        """Returns the failed validations; with parameters, those of each: all must hold for every parameter."""
        if spec.get("paramKind") is None:
            return self._failures(spec, scope)
        params = self._reader.list(_PODS, request.attributes.namespace)
        return [failure for each in params for failure in self._failures(spec, {**scope, "params": each})]

    def _failures(self, spec: Part, scope: dict[str, Any]) -> Sequence[ValidationFailure]:
        """Returns the failed validations; an expression without a value fails unless the policy ignores failures."""
        lenient = spec.get("failurePolicy", "Fail") == "Ignore"
        errors: list[str] = []
        for condition in spec.get("matchConditions") or ():
            try:
                if not self._program(condition["expression"], None).is_true(scope):
                    return []
            except EvaluationError as error:
                errors.append(f"expression '{condition['expression']}' resulted in error: {error}")
        if errors:
            return [] if lenient else [ValidationFailure(0, "; ".join(errors))]
        names, known = frozenset(each["name"] for each in spec.get("variables") or ()), policy_variables(spec)
        full = {**scope, "variables": _Variables(self._variables(spec, names, known), scope)}
        found: list[ValidationFailure] = []
        for index, validation in enumerate(spec.get("validations") or ()):
            try:
                if not self._program(validation["expression"], names, known).is_true(full):
                    reason = validation.get("reason") or "Invalid"
                    found.append(ValidationFailure(index, self._message(validation, names, known, full), reason))
            except EvaluationError as error:
                if not lenient:
                    found.append(
                        ValidationFailure(index, f"expression '{validation['expression']}' resulted in error: {error}")
                    )
        return found

    def _variables(self, spec: Part, names: frozenset[str], known: frozenset[str]) -> Mapping[str, Program]:
        return {each["name"]: self._program(each["expression"], names, known) for each in spec.get("variables") or ()}

    def _message(self, validation: Part, names: frozenset[str], known: frozenset[str], scope: dict[str, Any]) -> str:
        if validation.get("messageExpression"):
            try:
                created = self._program(validation["messageExpression"], names, known).evaluate(scope)
            except EvaluationError:
                created = None
            text = created.strip() if isinstance(created, str) else ""
            if text and "\n" not in text and len(text.encode()) <= LONGEST_MESSAGE:
                return text
        stated = (validation.get("message") or "").strip()
        return stated or f"failed expression: {validation['expression'].strip()}"

    def _program(
        self, expression: str, variables: frozenset[str] | None, known: frozenset[str] = POLICY_VARIABLES
    ) -> Program:
        """Returns the compiled expression; a match condition cannot use the policy's variables."""
        key = (expression, variables, known)
        if key not in self._programs:
            self._programs[key] = (
                compile_expression(expression, CONDITION_VARIABLES, FIELDS)
                if variables is None
                else compile_expression(expression, known, declared_variables(variables), AUTHORIZER_METHODS)
            )
        return self._programs[key]


class _Variables(dict[str, Any]):
    """A policy's variables, each evaluated when it is first used."""

    def __init__(self, programs: Mapping[str, Program], scope: Obj) -> None:
        super().__init__()
        self._programs = programs
        self._scope = scope

    def __contains__(self, name: object) -> bool:
        return name in self._programs

    def __getitem__(self, name: str) -> Any:
        if not super().__contains__(name):
            self[name] = self._programs[name].evaluate({**self._scope, "variables": self})
        return super().__getitem__(name)


_EVERYTHING = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*", "*/*"], "scope": "*"}


def _hook(resources: Part, rules: str) -> dict[str, Any]:
    """Returns MatchResources in the form that webhook configurations use."""
    retained = {
        key: resources[key] for key in ("matchPolicy", "namespaceSelector", "objectSelector") if key in resources
    }
    return {**retained, "rules": resources.get(rules) or []}


def _refusal(request: AdmissionRequest, text: str, reason: str) -> StatusError:
    attributes = request.attributes
    error = forbidden_error(attributes.group, attributes.resource, attributes.name, text)
    error.status["reason"] = reason
    error.status["code"] = error.code = CODES[reason]
    error.status["details"]["causes"] = [{"message": text}]
    return error
