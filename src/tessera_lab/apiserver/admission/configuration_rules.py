"""Validation of webhooks, admission policies and their bindings, with kube-apiserver's rules and texts.

Every expression must compile here, in the part of CEL that this server evaluates: the match conditions of webhooks, and
all of a policy's. A configuration with another one is refused when it is written, so none has to be skipped later.

Of a policy's parameters this server knows one form: all pods in the namespace of the write. Audit annotations are not
evaluated here, nor is the authorizer in match conditions.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from tessera.cel.evaluator import CelError, compile_expression
from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.admission.authorizer import AUTHORIZER_METHODS
from tessera_lab.apiserver.interfaces import StatusCause

Part = Mapping[str, Any]

#: Variables of a match condition.
CONDITION_VARIABLES = frozenset({"object", "oldObject", "request"})
#: Fields of an admission request (``AdmissionRequest`` without object, oldObject and uid).
FIELDS = {
    "request": frozenset(
        {
            "dryRun",
            "kind",
            "name",
            "namespace",
            "operation",
            "options",
            "requestKind",
            "requestResource",
            "requestSubResource",
            "resource",
            "subResource",
            "userInfo",
        }
    )
}
REVIEW_VERSIONS = ("v1", "v1beta1")
OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
MAX_CONDITIONS = 64
_SEGMENT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_FORM = "; desired format: https://host[/path]"
#: Variables of a policy's expressions; match conditions have no namespace and no variables of the policy.
POLICY_VARIABLES = CONDITION_VARIABLES | {"authorizer", "namespaceObject", "variables"}
#: The kind of parameters that is evaluated.
PARAM_KIND: Part = {"apiVersion": "v1", "kind": "Pod"}
ACTIONS = ("Audit", "Deny", "Warn")
_IDENTIFIER = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_ABSENT = "this API server does not evaluate"


def validate_webhooks(configuration: Part) -> Sequence[StatusCause]:
    """Returns the errors of a Mutating- or ValidatingWebhookConfiguration; the caller has set its defaults."""
    found: list[StatusCause] = []
    names: set[str] = set()
    for index, hook in enumerate(configuration.get("webhooks") or ()):
        place = f"webhooks[{index}]"
        found += _check_hook(hook, place)
        name = hook.get("name", "")
        if name in names:
            found.append(field_errors.duplicate_cause(f"{place}.name", name))
        names.add(name)
    return found


def _check_hook(hook: Part, place: str) -> Iterator[StatusCause]:
    name = hook.get("name", "")
    if name:
        segments = name.split(".")
        if len(segments) < 3 or not all(_SEGMENT.fullmatch(each) for each in segments):
            yield field_errors.invalid_cause(
                f"{place}.name", name, "should be a domain with at least three segments separated by dots"
            )
    versions = hook.get("admissionReviewVersions") or []
    if versions and not set(versions) & set(REVIEW_VERSIONS):
        reason = f"must include at least one of {', '.join(REVIEW_VERSIONS)}"
        yield field_errors.invalid_cause(f"{place}.admissionReviewVersions", versions, reason)
    elif versions and "v1" not in versions:
        reason = "this API server sends AdmissionReview v1 only"
        yield field_errors.invalid_cause(f"{place}.admissionReviewVersions", versions, reason)
    timeout = hook.get("timeoutSeconds", 10)
    if not 1 <= timeout <= 30:
        yield field_errors.invalid_cause(
            f"{place}.timeoutSeconds", timeout, "the timeout value must be between 1 and 30 seconds"
        )
    yield from _check_client_config(hook.get("clientConfig") or {}, f"{place}.clientConfig")
    for index, rule in enumerate(hook.get("rules") or ()):
        yield from validate_rule(rule, f"{place}.rules[{index}]")
    yield from validate_match_conditions(
        hook.get("matchConditions") or (), f"{place}.matchConditions", CONDITION_VARIABLES
    )


def _check_client_config(config: Part, place: str) -> Iterator[StatusCause]:
    url, service = config.get("url"), config.get("service")
    if (url is None) == (service is None):
        yield field_errors.required_cause(place, "exactly one of url or service is required")
    elif url is not None:
        yield from _check_url(url, f"{place}.url")
    elif service is not None:
        for name in ("name", "namespace"):
            if not service.get(name):
                yield field_errors.required_cause(f"{place}.service.{name}")
        port = service.get("port", 443)
        if not 1 <= port <= 65535:
            reason = "port is not valid: must be between 1 and 65535, inclusive"
            yield field_errors.invalid_cause(f"{place}.service.port", port, reason)
        path = service.get("path") or "/"
        if not path.startswith("/"):
            yield field_errors.invalid_cause(f"{place}.service.path", path, "must start with a '/'")


def _check_url(url: str, place: str) -> Iterator[StatusCause]:
    parts = urlsplit(url)
    if parts.scheme != "https":
        yield field_errors.invalid_cause(place, parts.scheme, f"'https' is the only allowed URL scheme{_FORM}")
    if not parts.netloc:
        yield field_errors.invalid_cause(place, parts.netloc, f"host must be specified{_FORM}")
    if parts.username:
        yield field_errors.invalid_cause(place, parts.username, "user information is not permitted in the URL")
    if parts.fragment:
        yield field_errors.invalid_cause(place, parts.fragment, "fragments are not permitted in the URL")
    if parts.query:
        yield field_errors.invalid_cause(place, parts.query, "query parameters are not permitted in the URL")


def validate_rule(rule: Part, place: str) -> Iterator[StatusCause]:
    """Yields the errors of one rule of operations and resources."""
    for name in ("operations", "apiGroups", "apiVersions", "resources"):
        if not rule.get(name):
            yield field_errors.required_cause(f"{place}.{name}")
    for index, operation in enumerate(rule.get("operations") or ()):
        if operation not in OPERATIONS:
            yield field_errors.unsupported_cause(f"{place}.operations[{index}]", operation, OPERATIONS)
    if rule.get("scope", "*") not in ("*", "Cluster", "Namespaced"):
        yield field_errors.unsupported_cause(f"{place}.scope", rule["scope"], ("*", "Cluster", "Namespaced"))


def validate_match_conditions(
    conditions: Sequence[Part], place: str, variables: frozenset[str]
) -> Iterator[StatusCause]:
    """Yields the errors of match conditions that may use these variables."""
    if len(conditions) > MAX_CONDITIONS:
        yield field_errors.too_many_cause(place, len(conditions), MAX_CONDITIONS)
    names: set[str] = set()
    for index, condition in enumerate(conditions):
        name, expression = condition.get("name", ""), condition.get("expression", "")
        if name in names:
            yield field_errors.duplicate_cause(f"{place}[{index}].name", name)
        names.add(name)
        if not expression.strip():
            continue
        try:
            compile_expression(expression, variables, FIELDS)
        except CelError as error:
            yield field_errors.invalid_cause(f"{place}[{index}].expression", expression, f"compilation failed: {error}")


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
    return POLICY_VARIABLES | ({"params"} if spec.get("paramKind") is not None else frozenset())


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
