"""Validation of a ValidatingAdmissionPolicy and its binding, with kube-apiserver's rules and texts.

Every expression must compile here, in the part of CEL that this server evaluates. Of parameters it knows one form: all
pods in the namespace of the write. Audit annotations are not evaluated here, nor is the authorizer in match conditions.
A policy that uses what is not evaluated is refused when it is written.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.cel.evaluator import CelError, compile_expression
from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.admission.policies.authorizer import AUTHORIZER_METHODS
from tessera_lab.apiserver.admission.webhooks.configuration_rules import (
    FIELDS,
    validate_match_conditions,
    validate_rule,
)
from tessera_lab.apiserver.admission.webhooks.configuration_rules import VARIABLES as CONDITION_VARIABLES
from tessera_lab.apiserver.interfaces import StatusCause

Part = Mapping[str, Any]

#: Variables of a policy's expressions; match conditions have no namespace and no variables of the policy.
VARIABLES = CONDITION_VARIABLES | {"authorizer", "namespaceObject", "variables"}
#: The kind of parameters that is evaluated.
PARAM_KIND: Part = {"apiVersion": "v1", "kind": "Pod"}
ACTIONS = ("Audit", "Deny", "Warn")
_IDENTIFIER = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_ABSENT = "this API server does not evaluate"


def validate_policy(policy: Part) -> Sequence[StatusCause]:
    """Returns the errors of a ValidatingAdmissionPolicy; the caller has set its defaults."""
    return list(_check_policy(policy.get("spec") or {}))


def validate_policy_binding(binding: Part) -> Sequence[StatusCause]:
    """Returns the errors of a ValidatingAdmissionPolicyBinding; the caller has set its defaults."""
    return list(_check_binding(binding.get("spec") or {}))


def declared_variables(variables: frozenset[str]) -> Mapping[str, frozenset[str]]:
    """Returns the known fields of each variable of a policy's expressions.

    Args:
        variables: names of the variables that the policy itself declares.
    """
    return {**FIELDS, "variables": variables}


def policy_variables(spec: Part) -> frozenset[str]:
    """Names that a policy's expressions may use."""
    return VARIABLES | ({"params"} if spec.get("paramKind") is not None else frozenset())


def _check_policy(spec: Part) -> Iterator[StatusCause]:
    if spec.get("paramKind") not in (None, PARAM_KIND):
        yield field_errors.forbidden_cause("spec.paramKind", f"{_ABSENT} parameters of other kinds than pods")
    known = policy_variables(spec)
    if spec.get("auditAnnotations"):
        yield field_errors.forbidden_cause("spec.auditAnnotations", f"{_ABSENT} audit annotations")
    constraints = spec.get("matchConstraints")
    if constraints is None:
        yield field_errors.required_cause("spec.matchConstraints")
    else:
        yield from _check_match(constraints, "spec.matchConstraints")
        if not constraints.get("resourceRules"):
            yield field_errors.required_cause("spec.matchConstraints.resourceRules")
    yield from validate_match_conditions(spec.get("matchConditions") or (), "spec.matchConditions", CONDITION_VARIABLES)
    names: set[str] = set()
    for index, variable in enumerate(spec.get("variables") or ()):
        place, name = f"spec.variables[{index}]", variable.get("name", "")
        if not _IDENTIFIER.fullmatch(name):
            yield field_errors.invalid_cause(f"{place}.name", name, "name is not a valid CEL identifier")
        yield from _check_expression(variable.get("expression", ""), f"{place}.expression", frozenset(names), known)
        names.add(name)
    if not spec.get("validations"):
        yield field_errors.required_cause(
            "spec.validations", "validations or auditAnnotations must contain at least one item"
        )
    for index, validation in enumerate(spec.get("validations") or ()):
        yield from _check_validation(validation, f"spec.validations[{index}]", frozenset(names), known)


def _check_validation(
    validation: Part, place: str, names: frozenset[str], known: frozenset[str]
) -> Iterator[StatusCause]:
    yield from _check_expression(validation.get("expression", ""), f"{place}.expression", names, known)
    message = validation.get("message") or ""
    if re.search(r"[\n\r]", message.strip()):
        yield field_errors.invalid_cause(f"{place}.message", message, "message must not contain line breaks")
    if validation.get("messageExpression") is not None:
        known -= {"authorizer"}
        yield from _check_expression(validation["messageExpression"], f"{place}.messageExpression", names, known)


def _check_expression(text: str, place: str, names: frozenset[str], known: frozenset[str]) -> Iterator[StatusCause]:
    if not text.strip():
        yield field_errors.required_cause(place, "expression is not specified")
        return
    try:
        compile_expression(text, known, declared_variables(names), AUTHORIZER_METHODS)
    except CelError as error:
        yield field_errors.invalid_cause(place, text, f"compilation failed: {error}")


def _check_match(resources: Part, place: str) -> Iterator[StatusCause]:
    for kind in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(resources.get(kind) or ()):
            yield from validate_rule(rule, f"{place}.{kind}[{index}]")


def _check_binding(spec: Part) -> Iterator[StatusCause]:
    if not spec.get("policyName"):
        yield field_errors.required_cause("spec.policyName")
    reference = spec.get("paramRef")
    if reference is not None and (reference.get("selector") != {} or reference.keys() & {"name", "namespace"}):
        yield field_errors.forbidden_cause("spec.paramRef", f"{_ABSENT} parameters but all of the write's namespace")
    if reference is not None and reference.get("parameterNotFoundAction") != "Allow":
        yield field_errors.forbidden_cause("spec.paramRef.parameterNotFoundAction", f"{_ABSENT} any but Allow")
    yield from _check_match(spec.get("matchResources") or {}, "spec.matchResouces")  # kube-apiserver's spelling
    actions = spec.get("validationActions") or ()
    for index, action in enumerate(actions):
        if action not in ACTIONS:
            yield field_errors.unsupported_cause(f"spec.validationActions[{index}]", action, ACTIONS)
        if action in actions[:index]:
            yield field_errors.duplicate_cause(f"spec.validationActions[{index}]", action)
    if {"Deny", "Warn"} <= set(actions):
        reason = (
            "must not contain both Deny and Warn (repeating the same validation failure information in the API "
            "response and headers serves no purpose)"
        )
        yield field_errors.invalid_cause("spec.validationActions", actions, reason)
    if not actions:
        yield field_errors.required_cause("spec.validationActions", "at least one validation action is required")
