"""Matches writes with webhooks: rules, selectors, equivalent versions, match conditions.

Pure. A :class:`WebhookInvocation` is one call of a webhook. Its resource may be another version than the client sent,
if the webhook's rules name that version (``matchPolicy: Equivalent``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.cel.evaluator import EvaluationError, Program
from tessera.kube.resources.selectors import Requirement as Test
from tessera.kube.resources.selectors import Selector, parse_operator
from tessera_lab.apiserver.interfaces import AdmissionRequest, Attributes, GroupResource, Obj, ObjectReader
from tessera_lab.apiserver.resource_types import ResourceRegistry, ResourceType
from tessera_lab.apiserver.status import StatusError, forbidden_error

Part = Mapping[str, Any]

ADMISSION = "admissionregistration.k8s.io"
NAMESPACES = GroupResource("", "namespaces")


class WebhookInvocation(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a webhook.

    Attributes:
        hook: the webhook's configuration.
        resource: the version that the webhook's rules match, None if it is the request's own.
    """

    hook: Part
    resource: ResourceType | None = None


class RuleIndex:
    """The stored policies or webhooks whose rules name a write's operation and resource.

    Most writes concern none of them. Each pair of operation and resource is therefore looked up once, until one of the
    configurations changes.

    Args:
        reader: reads the configurations.
        resource: their resource.
        parts: a configuration's policies or webhooks, each with its rules, in the order in which they are asked.
    """

    def __init__(
        self,
        reader: ObjectReader,
        resource: GroupResource,
        parts: Callable[[Part], Iterable[tuple[Part, Sequence[Part]]]],
    ) -> None:
        self._reader = reader
        self._resource = resource
        self._parts = parts
        self._revision = 0
        self._found: dict[tuple[str, str, str], Sequence[Part]] = {}

    def candidates(self, request: AdmissionRequest) -> Sequence[Part]:
        """Returns those that may match the write, by name of the configuration and place in it."""
        revision = self._reader.revision(self._resource)
        if revision != self._revision:
            self._revision = revision
            self._found.clear()
        attributes = request.attributes
        key = (request.operation, attributes.resource, attributes.subresource)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = [
                part
                for each in self._reader.list(self._resource)  # by name already
                for part, rules in self._parts(each)
                if any(_names_resource(rule, request) for rule in rules)
            ]
        return found


def is_interceptable(attributes: Attributes) -> bool:
    """True if webhooks may see the request: not a request about webhooks, nor a review, which stores nothing."""
    return attributes.group not in (ADMISSION, "authorization.k8s.io", "authentication.k8s.io")


def match_webhook(
    hook: Part, request: AdmissionRequest, registry: ResourceRegistry, reader: ObjectReader
) -> WebhookInvocation | None:
    """The invocation of a webhook for a request; None if its rules or selectors do not match the request."""
    attributes = request.attributes
    rules = [rule for rule in hook.get("rules") or () if _may_match(rule, request)]
    if not rules or not _namespace_matches(hook, request, reader) or not _object_matches(hook, request):
        return None
    if _any_rule_matches(rules, request, attributes.group, attributes.version):
        return WebhookInvocation(hook=hook)
    if hook.get("matchPolicy", "Equivalent") != "Equivalent":
        return None
    for other in _equivalents(attributes, registry):
        if _any_rule_matches(rules, request, other.group, other.version):
            return WebhookInvocation(hook=hook, resource=other)
    return None


def _may_match(rule: Part, request: AdmissionRequest) -> bool:
    """True if the rule names the operation and the resource, in whatever group and version."""
    names = rule.get("resourceNames")  # in rules of policies only
    return (not names or request.attributes.name in names) and _names_resource(rule, request)


def _names_resource(rule: Part, request: AdmissionRequest) -> bool:
    attributes = request.attributes
    if not _is_listed(rule.get("operations"), request.operation):
        return False
    for each in rule.get("resources") or ():
        if _resource_matches(each, attributes.resource, attributes.subresource):
            return True
    return False


def _equivalents(attributes: Attributes, registry: ResourceRegistry) -> Iterable[ResourceType]:
    own = registry.get(attributes.group, attributes.version, attributes.resource)
    if own is None:
        return ()
    return [each for each in registry if each.storage == own.storage and each is not own]


def _any_rule_matches(rules: Sequence[Part], request: AdmissionRequest, group: str, version: str) -> bool:
    attributes = request.attributes
    cluster = not attributes.namespace or attributes.resource == "namespaces"
    return any(
        _may_match(rule, request)
        and _is_listed(rule.get("apiGroups"), group)
        and _is_listed(rule.get("apiVersions"), version)
        and rule.get("scope", "*") in ("*", "Cluster" if cluster else "Namespaced")
        for rule in rules
    )


def _is_listed(allowed: Sequence[str] | None, value: str) -> bool:
    return allowed is not None and (value in allowed or "*" in allowed)


def _resource_matches(pattern: str, resource: str, subresource: str) -> bool:
    if pattern == resource:
        return not subresource
    name, slash, below = pattern.partition("/")
    if name not in ("*", resource):
        return False
    return below in ("*", subresource) if slash else not subresource


def build_selector(spec: Part | None) -> Selector:
    """Parses a LabelSelector given as JSON; a missing or empty one matches everything."""
    found = spec or {}
    equal = [Test(key, "In", (value,)) for key, value in (found.get("matchLabels") or {}).items()]
    others = [
        Test(each["key"], parse_operator(each["operator"]), tuple(each.get("values") or ()))
        for each in found.get("matchExpressions") or ()
    ]
    return Selector((*equal, *others))


def _labels(obj: Part | None) -> Mapping[str, str]:
    found: Mapping[str, str] = ((obj or {}).get("metadata") or {}).get("labels") or {}
    return found


def _namespace_matches(hook: Part, request: AdmissionRequest, reader: ObjectReader) -> bool:
    desired = build_selector(hook.get("namespaceSelector"))
    attributes = request.attributes
    if not desired.requirements:
        return True
    if (attributes.group, attributes.resource) == ("", "namespaces") and request.operation != "DELETE":
        return desired.matches(_labels(request.obj))
    name = attributes.namespace or (attributes.name if attributes.resource == "namespaces" else "")
    return not name or desired.matches(_labels(reader.get(NAMESPACES, "", name)))


def _object_matches(hook: Part, request: AdmissionRequest) -> bool:
    desired = build_selector(hook.get("objectSelector"))
    if not desired.requirements:
        return True
    return any(obj is not None and desired.matches(_labels(obj)) for obj in (request.obj, request.old))


def cel_variables(review: Obj) -> dict[str, Any]:
    """The variables of expressions: ``object``, ``oldObject`` and ``request``."""
    request = {key: value for key, value in review.items() if key not in ("object", "oldObject")}
    return {"object": review.get("object"), "oldObject": review.get("oldObject"), "request": request}


def match_conditions_hold(hook: Part, programs: Sequence[Program], review: Obj, request: AdmissionRequest) -> bool:
    """True if all match conditions hold for the ``request`` part of the review.

    If one condition is false, the result is False, even if others raise errors.

    Raises:
        StatusError: 403, a condition cannot be evaluated and the webhook's failure policy is Fail.
    """
    scope = cel_variables(review)
    errors: list[str] = []
    for program in programs:
        try:
            if not program.is_true(scope):
                return False
        except EvaluationError as error:
            errors.append(f"expression '{program.text}' resulted in error: {error}")
    if errors and hook.get("failurePolicy", "Fail") == "Fail":
        raise _evaluation_error(request.attributes, errors)
    return not errors


def _evaluation_error(attributes: Attributes, errors: Sequence[str]) -> StatusError:
    reason = errors[0] if len(errors) == 1 else "[" + ", ".join(errors) + "]"
    return forbidden_error(attributes.group, attributes.resource, attributes.name, reason)
