"""AdmissionReview v1: the envelope around the decisions about a pod and about the templates of pods.

Any body that is no review of one of these raises :class:`ReviewError` with the field and the rule. A pod that exceeds
the size limits of a review is refused before any work. So every review ends soon, with a result or with this error.

The TLS server and a control plane in the same process both call :class:`Reviewer`: bytes in, bytes out. It reads the
capabilities at each call, so that a card that just appeared counts at once.

``kubectl apply`` prints warnings of requests that admission lets through, and that no node serves as it is now.

Such a pod waits, and kube-scheduler says only ``Insufficient nvidia.com/gpus``. It is not refused, since a node that
offers the name may come. Rules:

- A name that resembles one of a GPU gets a warning with the right name, unless some node offers it as it is written.
- A right name that no node offers gets one with what to ask for instead. It gets none while nodes may come, or have not
  told yet what they have.
- Several slices of one container get one where a node's driver shows programs only the first of them.
- Devices that no node could hold together, even an empty one, get the text with which a managed namespace refuses them.
- A key that nobody reads where it stands, such as a resource among the annotations, gets one with its right section;
  an unknown one of Tessera's domain gets one with the known name that it resembles.
- A pod that a controller made gets none: nobody reads them there. The objects of :data:`WORKLOADS` get those of their
  templates, and the text with which a pod of a template will be refused: their controllers would note that in events
  only, with which nobody counts after ``created``.
"""

import base64
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec

from tessera.api.names import GPU_RESOURCES, MIG_RESOURCE_PREFIX, WHOLE_CARDS, is_gpu_like, profile_of
from tessera.api.pod_templates import TemplateKind, find_kind, find_templates
from tessera.api.resource_advice import advise, find_correction, misplaced_on_pod
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources import Pod
from tessera.kube.resources.meta import ObjectMeta
from tessera.kube.resources.pods import PodSpec
from tessera.limits import REVIEW_BODY
from tessera.nesting import decode_json
from tessera.offers import Nodes
from tessera.text import one_line
from tessera.webhook.base import (
    CLAIM_PATH,
    LIMIT_PATH,
    MANAGED_PATH,
    MANAGED_TEMPLATE_PATH,
    NO_CLAIMS,
    REVIEW_PATH,
    WORKLOAD_PATH,
    KnownClaims,
    PodRefused,
    ReviewBudget,
    Rule,
    SpendTime,
    WebhookMetrics,
    refuse_oversized,
    spend_nothing,
)
from tessera.webhook.capabilities import Capabilities
from tessera.webhook.decision import decide_admission, whole_card_slice
from tessera.webhook.device_admission import (
    check_managed_templates,
    decide_device_admission,
    find_impossible_devices,
    requested_devices,
)
from tessera.webhook.pod_json import Operation, PodSchema, Spec, size_of, warn_of_idle_update
from tessera.webhook.slice_admission import gate_claiming_pod
from tessera.webhook.template_admission import DecideTemplates, decide_template, decide_templates

Json = Mapping[str, Any]

#: The label of the driver's first number, and the first driver with which CUDA shows a program all its MIG devices
#: (CUDA release notes of 12.8, driver R570).
_DRIVER_LABEL, _SEES_ALL = "nvidia.com/cuda.driver-version.major", "570"


def find_warnings(
    pod: Json, capabilities: Capabilities, spend: SpendTime = spend_nothing, kind: str = "Pod"
) -> Iterator[str]:
    """Yields the warnings for the author of a pod that is admitted.

    Args:
        pod: the pod, or a template of one, as its author wrote it.
        capabilities: the GPU resources of the cluster.
        spend: called before each piece of work.
        kind: the kind of the object whose template it is.
    """
    if any(each.get("controller") for each in (pod.get("metadata") or {}).get("ownerReferences") or ()):
        return
    spec = pod.get("spec") or {}
    nodes = capabilities.selected_by(spec, spend)
    replaced = whole_card_slice(pod, nodes, capabilities, spend)
    asked: set[str] = set()
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        spend()
        limits = (container.get("resources") or {}).get("limits") or {}
        wanted = {name: str(amount) for name, amount in limits.items() if is_gpu_like(name) and str(amount) != "0"}
        if replaced:
            wanted.pop(WHOLE_CARDS, None)
        asked |= wanted.keys()
        where = f'container "{one_line(container.get("name") or "")}":'
        yield from (f"{where} {each}" for each in _not_offered(wanted, capabilities))
        yield from (f"{where} {each}" for each in _hidden_slices(wanted, nodes, capabilities))
    meta = pod.get("metadata") or {}
    labels = ObjectMeta(annotations=meta.get("annotations") or {}, labels=meta.get("labels") or {})
    selects = PodSpec(node_selector=spec.get("nodeSelector") or {}, scheduler_name=spec.get("schedulerName") or "")
    misplaced = misplaced_on_pod(
        Pod(metadata=labels, spec=selects), capabilities.labels.nodes_with_key, capabilities.pod_keys
    )
    yield from (each.removeprefix("its ") for each in islice(misplaced, _WARNINGS))
    if not asked:
        return
    yield from warn_of_idle_update(pod, kind)
    if replaced or asked.isdisjoint(GPU_RESOURCES):
        return
    groups = capabilities.groups_for(spec, spend)
    if why := find_impossible_devices(requested_devices(spec), capabilities, nodes, groups):
        yield why


def _not_offered(wanted: Mapping[str, str], capabilities: Capabilities) -> Iterator[str]:
    offered = capabilities.offered
    for name in wanted:
        if name in offered:
            continue
        shown, right = one_line(name), find_correction(name, offered)
        if right:
            yield f"no node offers {shown}: request {right} instead"
        elif not capabilities.may_grow:
            steps = advise(offered, {name: count_or_zero(wanted[name])}, [name])
            yield f"no node offers {shown} now: {steps[0]}"


def _hidden_slices(wanted: Mapping[str, str], nodes: Nodes, capabilities: Capabilities) -> Iterator[str]:
    slices = {name: count_or_zero(amount) for name, amount in wanted.items() if name.startswith(MIG_RESOURCE_PREFIX)}
    if sum(slices.values()) < 2:
        return
    for profile in map(profile_of, slices):
        nodes &= capabilities.on_demand.get(profile, 0) | capabilities.fixed.get(profile, 0)
    old = capabilities.labels.nodes_matching(_DRIVER_LABEL, "Lt", (_SEES_ALL,)) & nodes
    if old:
        names = capabilities.names(old)
        where = f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes, such as {names[0]}"
        yield (
            f"asks for {sum(slices.values())} slices, and with the driver of {one_line(where)}, older than"
            f" R{_SEES_ALL}, CUDA shows a program only the first: ask for one larger slice, or use a container for each"
        )


def find_template_warnings(
    kind: TemplateKind, item: Json, capabilities: Capabilities, spend: SpendTime = spend_nothing
) -> Sequence[str]:
    """Returns the warnings for the author of an object with templates; each begins with the template's path.

    Args:
        kind: the object's kind.
        item: the object to be created or changed.
        capabilities: the GPU resources of the cluster.
        spend: called before each piece of work.

    Raises:
        msgspec.ValidationError: a template is not that of a pod.
    """
    return [
        f"{'.'.join(path)}: {warning}"
        for path, template in find_templates(kind, item)
        for warning in _template_warnings(template, kind.kind, capabilities, spend)
    ]


def _template_warnings(template: Json, kind: str, capabilities: Capabilities, spend: SpendTime) -> Sequence[str]:
    try:
        decide_template(template, capabilities, spend)
        return list(find_warnings(template, capabilities, spend, kind))
    except PodRefused as refused:
        return [f"its pods will be refused: {refused}"]
    except msgspec.ValidationError:
        return ()  # the API server refuses the object


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


class _Answer(msgspec.Struct, frozen=True):
    """What is decided about an object that is admitted: its patch, and the warnings for its author."""

    operations: Sequence[Operation] = ()
    warnings: Sequence[str] = ()


T = TypeVar("T")

#: The operations that are reviewed, of all paths and of that for workloads: ``kubectl apply`` corrects those in place.
_OPERATIONS = (frozenset({"", "CREATE"}), frozenset({"", "CREATE", "UPDATE"}))
#: Most warnings of an answer, and characters of one. The API server passes on 4,096 characters of an answer's warnings
#: (k8s.io/apiserver, ``endpoints/filters/warning.go``).
_WARNINGS, _WARNING = 8, 480


class Reviewer:
    """Answers AdmissionReviews.

    Args:
        capabilities: the GPU resources of the cluster, which the caller keeps up to date.
        metrics: count verdicts and seconds.
        monotonic: returns the seconds of a clock that never goes back.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        metrics: WebhookMetrics | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capabilities = capabilities
        self._metrics = metrics or WebhookMetrics()
        self._monotonic = monotonic
        self._decoder = msgspec.json.Decoder(_Review)
        self._schemas = msgspec.json.Decoder(PodSchema | None)

    def review(self, body: bytes, path: str = REVIEW_PATH, *, claims: KnownClaims = NO_CLAIMS) -> bytes:
        """Returns the answer to one AdmissionReview; both are JSON.

        Args:
            body: the review.
            path: that of :data:`~tessera.webhook.base.PATHS` to which it came.
            claims: what is known of the pod's ResourceClaims.

        Raises:
            ReviewError: the body is no AdmissionReview v1 of such an object; the text names the error.
        """
        began = self._monotonic()
        try:
            return self._review(body, path, claims)
        except ReviewError:
            self._metrics.count("malformed")
            raise
        finally:
            self._metrics.observe(self._monotonic() - began)

    def _review(self, body: bytes, path: str, claims: KnownClaims) -> bytes:
        budget = ReviewBudget()
        request = self._request(body)
        response: dict[str, Any] = {"uid": request.uid, "allowed": True}
        decide = self._decider(request, budget, path, claims)
        if decide is None or request.operation not in _OPERATIONS[path == WORKLOAD_PATH]:
            self._metrics.count("untouched")
        else:
            response |= self._answer(decide)
        return msgspec.json.encode(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        )

    def _request(self, body: bytes) -> _Request:
        if len(body) > REVIEW_BODY:
            raise ReviewError(f"the body has {len(body):,} bytes; {REVIEW_BODY} are allowed, make the pod smaller")
        found: _Review = _decode(self._decoder.decode, body, "the body is no AdmissionReview")
        if (found.api_version, found.kind) != ("admission.k8s.io/v1", "AdmissionReview"):
            raise ReviewError(
                f"the body is {one_line(found.kind)} of {one_line(found.api_version)}; this webhook speaks "
                "AdmissionReview of admission.k8s.io/v1: list v1 in admissionReviewVersions"
            )
        return found.request

    def _decider(
        self, request: _Request, budget: ReviewBudget, path: str, claims: KnownClaims
    ) -> Callable[[], _Answer] | None:
        """Returns the decision to make about the object of a request; None if there is no object."""
        if request.kind.kind in {"", "Pod"}:
            fault = "request.object is no pod"
            shape, pod = (
                _decode(self._schemas.decode, request.object, fault),
                _decode(_decode_object, request.object, fault),
            )
            if shape is None or pod is None:
                return None
            if path == CLAIM_PATH:
                return lambda: _Answer(gate_claiming_pod(pod) if claims.ours else ())
            if path == LIMIT_PATH:
                return lambda: _claim_limits(shape, pod, claims)
            if path == MANAGED_PATH:
                return lambda: self._decide_managed_pod(shape, pod, budget)
            return lambda: self._decide_pod(shape, pod, budget)
        kind = find_kind(request.kind.group, request.kind.kind)
        if kind is None:
            raise ReviewError(
                f"the request is about a {one_line(request.kind.kind)}; this webhook reviews pods, and objects with "
                "templates of pods of Kubernetes or that Kueue knows"
            )
        item = _decode(_decode_object, request.object, "request.object is no object")
        if item is None:
            return None
        if path == WORKLOAD_PATH:
            return lambda: _Answer(warnings=find_template_warnings(kind, item, self._capabilities, budget.spend))
        decide = check_managed_templates if path == MANAGED_TEMPLATE_PATH else decide_templates
        return lambda: self._decide_templates(decide, kind, item, budget)

    def _decide_pod(self, shape: PodSchema, pod: dict[str, Any], budget: ReviewBudget) -> _Answer:
        refuse_oversized(size_of(shape.spec or Spec()))
        operations = decide_admission(pod, self._capabilities, budget.spend)
        return _Answer(operations, list(find_warnings(pod, self._capabilities, budget.spend)))

    def _decide_managed_pod(self, shape: PodSchema, pod: dict[str, Any], budget: ReviewBudget) -> _Answer:
        refuse_oversized(size_of(shape.spec or Spec()))
        return _Answer(decide_device_admission(pod, self._capabilities, budget.spend))

    def _decide_templates(
        self, decide: DecideTemplates, kind: TemplateKind, item: dict[str, Any], budget: ReviewBudget
    ) -> _Answer:
        try:
            return _Answer(decide(kind, item, self._capabilities, budget.spend))
        except msgspec.ValidationError as error:
            raise ReviewError(f"request.object has a template that is no pod's: {one_line(error)}") from None

    def _answer(self, decide: Callable[[], _Answer]) -> dict[str, Any]:
        try:
            made = decide()
        except PodRefused as error:
            self._metrics.count("refused", error.rule)
            return {"allowed": False, "status": {"code": 422, "reason": "Invalid", "message": str(error)}}
        warnings = {"warnings": [_shorten(each) for each in made.warnings[:_WARNINGS]]} if made.warnings else {}
        if not made.operations:
            self._metrics.count("untouched")
            return warnings
        self._metrics.count("patched")
        patch = base64.b64encode(msgspec.json.encode(made.operations)).decode()
        return {"patchType": "JSONPatch", "patch": patch, **warnings}


def _claim_limits(shape: PodSchema, pod: dict[str, Any], claims: KnownClaims) -> _Answer:
    refuse_oversized(size_of(shape.spec or Spec()))
    if claims.problem:
        raise PodRefused(Rule.CLAIM_TEMPLATE, claims.problem)
    operations = claims.of_limits(pod)
    return _Answer([*operations, *gate_claiming_pod(pod)] if operations else ())


def _shorten(warning: str) -> str:
    return one_line(warning, _WARNING)


def _decode_object(body: bytes | msgspec.Raw) -> dict[str, Any] | None:
    found: dict[str, Any] | None = decode_json(body, dict[str, Any] | None)
    return found


def _decode(decode: Callable[[bytes | msgspec.Raw], T], body: bytes | msgspec.Raw, fault: str) -> T:
    """Decodes a body or a part of it.

    Raises:
        ReviewError: the bytes are no JSON of the type; the text begins with ``fault``.
    """
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReviewError(f"{fault}: {one_line(error)}") from None
    except RecursionError:
        raise ReviewError(f"{fault}: it is nested too deeply to be read") from None
