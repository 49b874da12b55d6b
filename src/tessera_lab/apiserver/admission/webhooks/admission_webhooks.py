"""Admission webhooks: who is asked, in which order, and what becomes of the answers.

Mutating webhooks are asked one after the other, by name of configuration and place in it, each seeing what the former
made. If a later one changes the object, those before it with ``reinvocationPolicy: IfNeeded`` are asked once more.
Validating webhooks are asked at the same time; the first refusal in their order counts. A webhook that cannot be asked
refuses or is passed over by its failure policy.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.admission.webhooks.admission_review import (
    BadResponse,
    Verdict,
    converted,
    encode,
    internal,
    patched,
    question,
    read,
    refusal,
)
from tessera_lab.apiserver.admission.webhooks.callers import CallFailed, WebhookCaller
from tessera_lab.apiserver.admission.webhooks.configuration_rules import FIELDS, VARIABLES
from tessera_lab.apiserver.admission.webhooks.matching import (
    ADMISSION,
    Invocation,
    conditions_hold,
    interceptable,
    invocation,
)
from tessera_lab.apiserver.cel.evaluator import Program, compile_expression
from tessera_lab.apiserver.interfaces import AdmissionRequest, Admitted, GroupResource, Obj, Reader
from tessera_lab.apiserver.resource_types import Registry, ResourceType
from tessera_lab.apiserver.status import StatusError, bad_request

MUTATING = GroupResource(ADMISSION, "mutatingwebhookconfigurations")
VALIDATING = GroupResource(ADMISSION, "validatingwebhookconfigurations")


class AdmissionWebhooks:
    """Implements :class:`tessera_lab.apiserver.interfaces.Webhooks` over stored configurations.

    Args:
        reader: where configurations and namespaces are.
        registry: versions of resources, for ``matchPolicy: Equivalent``.
        caller: reaches the webhooks.
        new_uid: names a review.
    """

    def __init__(self, reader: Reader, registry: Registry, caller: WebhookCaller, new_uid: Callable[[], str]) -> None:
        self._reader = reader
        self._registry = registry
        self._caller = caller
        self._new_uid = new_uid
        self._programs: dict[str, Program] = {}

    async def mutate(self, request: AdmissionRequest) -> Admitted:
        """Runs the mutating webhooks that match, reinvocation included.

        Raises:
            StatusError: a webhook refuses, or cannot be asked and fails closed.
        """
        if not interceptable(request.attributes):
            return Admitted(obj=request.obj)
        warnings: list[str] = []
        again: set[int] = set()
        asked: list[int] = []
        hooks = list(self._hooks(MUTATING))
        for index, hook in enumerate(hooks):
            was_asked, obj = await self._mutated(hook, request, warnings)
            if obj != request.obj:
                again |= set(asked)
                request = msgspec.structs.replace(request, obj=obj)
            if was_asked and hook.get("reinvocationPolicy", "Never") == "IfNeeded":
                asked.append(index)
        for index in sorted(again):
            _, obj = await self._mutated(hooks[index], request, warnings)
            request = msgspec.structs.replace(request, obj=obj)
        return Admitted(obj=request.obj, warnings=tuple(warnings))

    async def validate(self, request: AdmissionRequest) -> Sequence[str]:
        """Runs the validating webhooks that match.

        Raises:
            StatusError: a webhook refuses, or cannot be asked and fails closed.
        """
        if not interceptable(request.attributes):
            return ()
        found = [each for each in (self._relevant(hook, request) for hook in self._hooks(VALIDATING)) if each]
        outcomes = await asyncio.gather(*(self._validated(each, review, request) for each, review in found))
        for outcome in outcomes:
            if isinstance(outcome, StatusError):
                raise outcome
        return [text for outcome in outcomes if not isinstance(outcome, StatusError) for text in outcome]

    def _hooks(self, resource: GroupResource) -> Iterator[Mapping[str, Any]]:
        for configuration in self._reader.list(resource):  # by name already
            yield from configuration.get("webhooks") or ()

    def _own(self, request: AdmissionRequest) -> ResourceType | None:
        asked = request.attributes
        return self._registry.get(asked.group, asked.version, asked.resource)

    def _relevant(self, hook: Mapping[str, Any], request: AdmissionRequest) -> tuple[Invocation, Obj] | None:
        """The webhook and its question, None when it is not concerned."""
        found = invocation(hook, request, self._registry, self._reader)
        if found is None:
            return None
        review = question(request, self._new_uid(), self._own(request), found.resource)
        programs = [self._program(each["expression"]) for each in hook.get("matchConditions") or ()]
        return (found, review) if conditions_hold(hook, programs, review, request) else None

    def _program(self, expression: str) -> Program:
        if expression not in self._programs:
            self._programs[expression] = compile_expression(expression, VARIABLES, FIELDS)
        return self._programs[expression]

    async def _mutated(
        self, hook: Mapping[str, Any], request: AdmissionRequest, warnings: list[str]
    ) -> tuple[bool, Obj | None]:
        """Whether the webhook was asked, and the object after it."""
        relevant = self._relevant(hook, request)
        if relevant is None:
            return False, request.obj
        found, review = relevant
        verdict = await self._ask(found, review, request, mutating=True)
        if verdict is None:
            return True, request.obj
        warnings.extend(verdict.warnings)
        if not verdict.allowed:
            raise refusal(hook["name"], verdict.status)
        if not verdict.patch:
            return True, request.obj
        own = self._own(request)
        changed = patched(review["object"], verdict, hook["name"])
        back = converted(changed, found.resource, own) if found.resource else changed
        return True, back

    async def _validated(
        self, found: Invocation, review: Obj, request: AdmissionRequest
    ) -> Sequence[str] | StatusError:
        """Warnings, or the refusal as a value, so that all of them are known."""
        try:
            verdict = await self._ask(found, review, request, mutating=False)
        except StatusError as error:
            return error
        if verdict is None:
            return ()
        return verdict.warnings if verdict.allowed else refusal(found.hook["name"], verdict.status)

    async def _ask(
        self, found: Invocation, review: Obj, request: AdmissionRequest, *, mutating: bool
    ) -> Verdict | None:
        """The verdict; None when the webhook failed and may.

        Raises:
            StatusError: 500, it failed and may not; 400, it does not support dry run.
        """
        hook = found.hook
        if request.dry_run and hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise bad_request(f'admission webhook "{hook["name"]}" does not support dry run')
        try:
            answer = await self._caller.call(hook["clientConfig"], encode(review), hook.get("timeoutSeconds", 10))
            return read(answer, review["uid"], mutating=mutating)
        except CallFailed as error:
            why = f"failed to call webhook: {error}"
        except BadResponse as error:
            why = f"received invalid webhook response: {error}"
        if hook.get("failurePolicy", "Fail") == "Ignore":
            return None
        raise internal(f'failed calling webhook "{hook["name"]}": {why}')
