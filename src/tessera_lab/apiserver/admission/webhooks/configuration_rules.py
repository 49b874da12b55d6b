"""Validation of webhook configurations, with kube-apiserver's rules and texts.

A match condition must compile here, in the part of CEL that this server evaluates. The server refuses to store one
that does not compile, so it never has to skip one later.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from tessera.cel.evaluator import CelError, compile_expression
from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.interfaces import StatusCause

Part = Mapping[str, Any]

#: Variables of a match condition.
VARIABLES = frozenset({"object", "oldObject", "request"})
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
    yield from validate_match_conditions(hook.get("matchConditions") or (), f"{place}.matchConditions", VARIABLES)


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
