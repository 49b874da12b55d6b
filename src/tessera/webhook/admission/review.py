"""AdmissionReview v1: the envelope around the decisions about a pod and about the templates of pods.

Any body that is no review of one of these raises :class:`ReviewError` with the field and the rule. A pod that exceeds
the size limits of a review is refused before any work. So every review ends soon, with a result or with this error.

The TLS server and a control plane in the same process both call :class:`Reviewer`: bytes in, bytes out. It reads the
capabilities at each call, so that a card that just appeared counts at once.
"""

import base64
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from tessera.api.pods.templates import TemplateKind, find_kind
from tessera.limits.processes import REVIEW_BODY
from tessera.text import one_line
from tessera.webhook.admission.decision import decide_admission
from tessera.webhook.admission.device_admission import decide_device_admission
from tessera.webhook.admission.json_patch import Operation
from tessera.webhook.admission.managed_templates import check_managed_templates
from tessera.webhook.admission.pod_schema import PodSchema, Spec, size_of
from tessera.webhook.admission.template_admission import DecideTemplates, decide_templates
from tessera.webhook.base.budget import PodRefused, ReviewBudget, Rule, refuse_oversized
from tessera.webhook.nodes.capabilities import Capabilities


class ReviewError(ValueError):
    """The body is no AdmissionReview v1 of a pod or of an object with pod templates."""


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""
    group: str = ""


class _Request(msgspec.Struct, frozen=True):
    uid: str
    kind: _Kind = _Kind()
    operation: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    request: _Request


T = TypeVar("T")

#: Totals for /metrics: receives ``patched``, ``untouched`` or ``refused`` per review, and the rule of a refusal.
CountVerdict = Callable[[str, Rule | None], None]


def _count_nothing(_verdict: str, _rule: Rule | None) -> None:
    """Counts nothing."""


class Reviewer:
    """Answers AdmissionReviews.

    Args:
        capabilities: the GPU resources of the cluster, which the caller keeps up to date.
        count_verdict: called with each verdict.
    """

    def __init__(self, capabilities: Capabilities, count_verdict: CountVerdict = _count_nothing) -> None:
        self._capabilities = capabilities
        self._count_verdict = count_verdict
        self._decoder = msgspec.json.Decoder(_Review)
        self._schemas = msgspec.json.Decoder(PodSchema | None)
        self._objects = msgspec.json.Decoder(dict[str, Any] | None)

    def review(self, body: bytes, *, managed: bool = False) -> bytes:
        """Returns the answer to one AdmissionReview; both are JSON.

        Args:
            body: the review.
            managed: True for a pod, or templates of pods, of a namespace whose pods with whole cards Tessera places.

        Raises:
            ReviewError: the body is no AdmissionReview v1 of such an object; the text names the error.
        """
        budget = ReviewBudget()
        request = self._request(body)
        response: dict[str, Any] = {"uid": request.uid, "allowed": True}
        decide = self._decider(request, budget, managed=managed)
        if decide is None or request.operation not in {"", "CREATE"}:
            self._count_verdict("untouched", None)
        else:
            response |= self._answer(decide)
        return msgspec.json.encode(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        )

    def _request(self, body: bytes) -> _Request:
        if len(body) > REVIEW_BODY:
            raise ReviewError(f"the body has {len(body):,} bytes; {REVIEW_BODY} are allowed, make the pod smaller")
        found: _Review = _decode(self._decoder, body, "the body is no AdmissionReview")
        if (found.api_version, found.kind) != ("admission.k8s.io/v1", "AdmissionReview"):
            raise ReviewError(
                f"the body is {one_line(found.kind)} of {one_line(found.api_version)}; this webhook speaks "
                "AdmissionReview of admission.k8s.io/v1: list v1 in admissionReviewVersions"
            )
        return found.request

    def _decider(
        self, request: _Request, budget: ReviewBudget, *, managed: bool
    ) -> Callable[[], Sequence[Operation]] | None:
        """Returns the decision to make about the object of a request; None if there is no object."""
        if request.kind.kind in {"", "Pod"}:
            fault = "request.object is no pod"
            shape, pod = _decode(self._schemas, request.object, fault), _decode(self._objects, request.object, fault)
            if shape is None or pod is None:
                return None
            if managed:
                return lambda: self._decide_managed_pod(shape, pod, budget)
            return lambda: self._decide_pod(shape, pod, budget)
        kind = find_kind(request.kind.group, request.kind.kind)
        if kind is None:
            raise ReviewError(
                f"the request is about a {one_line(request.kind.kind)}; this webhook reviews pods, and objects with "
                "templates of pods that Kueue knows"
            )
        item = _decode(self._objects, request.object, "request.object is no object")
        if item is None:
            return None
        decide = check_managed_templates if managed else decide_templates
        return lambda: self._decide_templates(decide, kind, item, budget)

    def _decide_pod(self, shape: PodSchema, pod: dict[str, Any], budget: ReviewBudget) -> Sequence[Operation]:
        refuse_oversized(size_of(shape.spec or Spec()))
        return decide_admission(pod, self._capabilities, budget.spend)

    def _decide_managed_pod(self, shape: PodSchema, pod: dict[str, Any], budget: ReviewBudget) -> Sequence[Operation]:
        refuse_oversized(size_of(shape.spec or Spec()))
        return decide_device_admission(pod, self._capabilities, budget.spend)

    def _decide_templates(
        self, decide: DecideTemplates, kind: TemplateKind, item: dict[str, Any], budget: ReviewBudget
    ) -> Sequence[Operation]:
        try:
            return decide(kind, item, self._capabilities, budget.spend)
        except msgspec.ValidationError as error:
            raise ReviewError(f"request.object has a template that is no pod's: {one_line(error)}") from None

    def _answer(self, decide: Callable[[], Sequence[Operation]]) -> dict[str, Any]:
        try:
            operations = decide()
        except PodRefused as error:
            self._count_verdict("refused", error.rule)
            return {"allowed": False, "status": {"code": 403, "reason": "Forbidden", "message": str(error)}}
        if not operations:
            self._count_verdict("untouched", None)
            return {}
        self._count_verdict("patched", None)
        return {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(operations)).decode()}


def _decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw, fault: str) -> T:
    """Decodes a body or a part of it.

    Raises:
        ReviewError: the bytes are no JSON of the decoder's type; the text begins with ``fault``.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReviewError(f"{fault}: {one_line(error)}") from None
    except RecursionError:
        raise ReviewError(f"{fault}: it is nested too deeply to be read") from None
