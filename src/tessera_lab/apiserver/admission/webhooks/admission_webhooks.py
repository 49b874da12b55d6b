"""Admission webhooks: selects them, calls them in order, and applies their answers.

The server calls mutating webhooks one after the other, by name of configuration and place in it; each gets the object
that the one before returned. If a later one changes the object, those before it with ``reinvocationPolicy: IfNeeded``
are called once more. Validating webhooks are called at the same time; the first refusal in their order counts. If a
call fails, the webhook's failure policy decides: refuse the write, or ignore the webhook.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.cel.evaluator import Program, compile_expression
from tessera_lab.apiserver.admission.configuration_rules import CONDITION_VARIABLES, FIELDS
from tessera_lab.apiserver.admission.webhooks.admission_review import (
    BadResponse,
    ReviewResponse,
    apply_response_patch,
    build_review,
    convert_version,
    denial_error,
    encode_review,
    internal_error,
    parse_response,
)
from tessera_lab.apiserver.admission.webhooks.callers import WebhookCaller, WebhookCallFailed
from tessera_lab.apiserver.admission.webhooks.matching import (
    ADMISSION,
    RuleIndex,
    WebhookInvocation,
    is_interceptable,
    match_conditions_hold,
    match_webhook,
)
from tessera_lab.apiserver.interfaces import AdmissionRequest, AdmissionResult, GroupResource, Obj, ObjectReader
from tessera_lab.apiserver.resource_types import ResourceRegistry, ResourceType
from tessera_lab.apiserver.status import StatusError, bad_request_error

MUTATING = GroupResource(ADMISSION, "mutatingwebhookconfigurations")
VALIDATING = GroupResource(ADMISSION, "validatingwebhookconfigurations")


class AdmissionWebhooks:
    """Implements :class:`tessera_lab.apiserver.interfaces.Webhooks` over stored configurations.

    Args:
        reader: reads configurations and namespaces.
        registry: versions of resources, for ``matchPolicy: Equivalent``.
        caller: calls the webhooks.
        new_uid: makes the UID of a review.
    """

    def __init__(
        self, reader: ObjectReader, registry: ResourceRegistry, caller: WebhookCaller, new_uid: Callable[[], str]
    ) -> None:
        self._reader = reader
        self._registry = registry
        self._caller = caller
        self._new_uid = new_uid
        self._programs: dict[str, Program] = {}
        self._mutating, self._validating = (RuleIndex(reader, each, _hooks) for each in (MUTATING, VALIDATING))

    async def mutate(self, request: AdmissionRequest) -> AdmissionResult:
        """Runs the mutating webhooks that match, reinvocation included.

        Raises:
            StatusError: a webhook refuses, or cannot be asked and fails closed.
        """
        if not is_interceptable(request.attributes):
            return AdmissionResult(obj=request.obj)
        warnings: list[str] = []
        again: set[int] = set()
        attributes: list[int] = []
        hooks = self._mutating.candidates(request)
        for index, hook in enumerate(hooks):
            was_asked, obj = await self._mutate_with(hook, request, warnings)
            if obj != request.obj:
                again |= set(attributes)
                request = msgspec.structs.replace(request, obj=obj)
            if was_asked and hook.get("reinvocationPolicy", "Never") == "IfNeeded":
                attributes.append(index)
        for index in sorted(again):
            _, obj = await self._mutate_with(hooks[index], request, warnings)
            request = msgspec.structs.replace(request, obj=obj)
        return AdmissionResult(obj=request.obj, warnings=tuple(warnings))

    async def validate(self, request: AdmissionRequest) -> Sequence[str]:
        """Runs the validating webhooks that match.

        Raises:
            StatusError: a webhook refuses, or cannot be asked and fails closed.
        """
        if not is_interceptable(request.attributes):
            return ()
        matches = (self._match_hook(hook, request) for hook in self._validating.candidates(request))
        found = [each for each in matches if each]
        if not found:
            return ()
        outcomes = await asyncio.gather(*(self._validate_with(each, review, request) for each, review in found))
        for outcome in outcomes:
            if isinstance(outcome, StatusError):
                raise outcome
        return [text for outcome in outcomes if not isinstance(outcome, StatusError) for text in outcome]

    def _request_type(self, request: AdmissionRequest) -> ResourceType | None:
        attributes = request.attributes
        return self._registry.get(attributes.group, attributes.version, attributes.resource)

    def _match_hook(self, hook: Mapping[str, Any], request: AdmissionRequest) -> tuple[WebhookInvocation, Obj] | None:
        """Returns the webhook's invocation and its review; None if the webhook does not match."""
        found = match_webhook(hook, request, self._registry, self._reader)
        if found is None:
            return None
        review = build_review(request, self._new_uid(), self._request_type(request), found.resource)
        programs = [self._program(each["expression"]) for each in hook.get("matchConditions") or ()]
        return (found, review) if match_conditions_hold(hook, programs, review, request) else None

    def _program(self, expression: str) -> Program:
        if expression not in self._programs:
            self._programs[expression] = compile_expression(expression, CONDITION_VARIABLES, FIELDS)
        return self._programs[expression]

    async def _mutate_with(
        self, hook: Mapping[str, Any], request: AdmissionRequest, warnings: list[str]
    ) -> tuple[bool, Obj | None]:
        """Returns True if the webhook was called, and the object after the call."""
        relevant = self._match_hook(hook, request)
        if relevant is None:
            return False, request.obj
        found, review = relevant
        verdict = await self._call_hook(found, review, request, mutating=True)
        if verdict is None:
            return True, request.obj
        warnings.extend(verdict.warnings)
        if not verdict.allowed:
            raise denial_error(hook["name"], verdict.status)
        if not verdict.patch:
            return True, request.obj
        own = self._request_type(request)
        changed = apply_response_patch(review["object"], verdict, hook["name"])
        back = convert_version(changed, found.resource, own) if found.resource else changed
        return True, back

    async def _validate_with(
        self, found: WebhookInvocation, review: Obj, request: AdmissionRequest
    ) -> Sequence[str] | StatusError:
        """Returns the warnings, or the refusal as a value, so that the caller gets the result of every webhook."""
        try:
            verdict = await self._call_hook(found, review, request, mutating=False)
        except StatusError as error:
            return error
        if verdict is None:
            return ()
        return verdict.warnings if verdict.allowed else denial_error(found.hook["name"], verdict.status)

    async def _call_hook(
        self, found: WebhookInvocation, review: Obj, request: AdmissionRequest, *, mutating: bool
    ) -> ReviewResponse | None:
        """Returns the webhook's response; None if the call failed and the failure policy is Ignore.

        Raises:
            StatusError: 500, the call failed and the failure policy is Fail; 400, the webhook does not support dry run.
        """
        hook = found.hook
        if request.dry_run and hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise bad_request_error(f'admission webhook "{hook["name"]}" does not support dry run')
        try:
            answer = await self._caller.call(
                hook["clientConfig"], encode_review(review), hook.get("timeoutSeconds", 10)
            )
            return parse_response(answer, review["uid"], mutating=mutating)
        except WebhookCallFailed as error:
            reason = f"failed to call webhook: {error}"
        except BadResponse as error:
            reason = f"received invalid webhook response: {error}"
        if hook.get("failurePolicy", "Fail") == "Ignore":
            return None
        raise internal_error(f'failed calling webhook "{hook["name"]}": {reason}')


def _hooks(configuration: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]:
    """Yields the webhooks of a configuration, each with its rules."""
    for hook in configuration.get("webhooks") or ():
        yield hook, hook.get("rules") or ()
