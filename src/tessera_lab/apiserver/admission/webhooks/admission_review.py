"""AdmissionReview v1: builds the request as kube-apiserver sends it, and checks the response.

Pure: values in, values out.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.authz.identity import encode_user
from tessera_lab.apiserver.interfaces import AdmissionRequest, Obj
from tessera_lab.apiserver.patch.strategic_merge import json_patch
from tessera_lab.apiserver.resource_types import ResourceType
from tessera_lab.apiserver.status import StatusError

API_VERSION = "admission.k8s.io/v1"
_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


class ReviewResponse(msgspec.Struct, frozen=True):
    """A webhook's answer. ``patch`` is a JSON patch, empty for none; ``status`` explains a refusal."""

    allowed: bool
    patch: Sequence[Any] = ()
    warnings: tuple[str, ...] = ()
    status: Mapping[str, Any] = {}


class BadResponse(Exception):  # noqa: N818 - a condition that the failure policy decides on
    """The webhook's answer is not an AdmissionReview response to the request."""


def build_review(request: AdmissionRequest, uid: str, own: ResourceType | None, other: ResourceType | None) -> Obj:
    """Builds the ``request`` of a review.

    Args:
        request: the write.
        uid: UID of this review.
        own: resource type of the write, None if it is not registered.
        other: resource type of the version that the webhook wants, if that is another one.
    """
    attributes = request.attributes
    meant = other or own
    group, version = (meant.group, meant.version) if meant else (attributes.group, attributes.version)
    kind = _kind(request, attributes.group, attributes.version)
    resource = {"group": attributes.group, "version": attributes.version, "resource": attributes.resource}
    shown = {**kind, "group": group, "version": version} if other else kind
    name = attributes.name or ((request.obj or {}).get("metadata") or {}).get("name", "")
    created: Obj = {
        "uid": uid,
        "kind": {**shown, "kind": other.kind} if other and not attributes.subresource else shown,
        "resource": {"group": group, "version": version, "resource": meant.plural if meant else attributes.resource},
        "subResource": attributes.subresource,
        "requestKind": kind,
        "requestResource": resource,
        "requestSubResource": attributes.subresource,
        "name": name,
        "namespace": attributes.namespace
        or (name if attributes.resource == "namespaces" and not attributes.group else ""),
        "operation": request.operation,
        "userInfo": encode_user(attributes.user),
        "object": convert_version(request.obj, own, other),
        "oldObject": convert_version(request.old, own, other),
        "dryRun": request.dry_run,
        "options": _options(request),
    }
    absent = ("subResource", "requestSubResource", "name", "namespace")
    return {key: value for key, value in created.items() if key not in absent or value}


def _kind(request: AdmissionRequest, group: str, version: str) -> Obj:
    body = request.obj or request.old or {}
    stated = str(body.get("apiVersion") or "")
    if stated:
        group, _, version = stated.rpartition("/")
    return {"group": group, "version": version, "kind": request.kind}


def _options(request: AdmissionRequest) -> Obj | None:
    kind = _OPTIONS.get(request.operation)
    return {"kind": kind, "apiVersion": "meta.k8s.io/v1", **request.options} if kind else None


def convert_version(obj: Mapping[str, Any] | None, own: ResourceType | None, other: ResourceType | None) -> Obj | None:
    """Converts the object to the version ``other`` of its resource; unchanged if ``other`` is None."""
    if obj is None or own is None or other is None:
        return None if obj is None else dict(obj)
    shown = other.from_storage(own.to_storage(dict(obj)))
    return {**shown, "apiVersion": other.api_version, "kind": other.kind}


def encode_review(review: Obj) -> bytes:
    """Encodes the whole AdmissionReview."""
    return msgspec.json.encode({"kind": "AdmissionReview", "apiVersion": API_VERSION, "request": review})


def parse_response(answer: bytes, uid: str, *, mutating: bool) -> ReviewResponse:
    """Reads the webhook's response from its answer.

    Raises:
        BadResponse: the answer is not a response to this review.
    """
    try:
        review = msgspec.json.decode(answer)
    except msgspec.DecodeError as error:
        raise BadResponse(f"couldn't get version/kind; json parse error: {error}") from None
    response = review.get("response") if isinstance(review, dict) else None
    if not isinstance(response, dict):
        raise BadResponse("webhook response was absent")
    if response.get("uid") != uid:
        raise BadResponse(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    stated = (review.get("apiVersion", ""), review.get("kind", ""))
    if stated != (API_VERSION, "AdmissionReview"):
        raise BadResponse(
            f"expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {stated[0]}, Kind={stated[1]}"
        )
    return ReviewResponse(
        allowed=response.get("allowed") is True,
        patch=_patch(response, mutating=mutating),
        warnings=tuple(str(each) for each in response.get("warnings") or ()),
        status=response.get("status") or {},
    )


def _patch(response: Mapping[str, Any], *, mutating: bool) -> Sequence[Any]:
    patch, kind = response.get("patch"), response.get("patchType")
    if not mutating:
        for name, value in (("patch", patch), ("patchType", kind)):
            if value:
                raise BadResponse(f"validating webhook may not return response.{name}")
        return ()
    if patch and kind is None:
        raise BadResponse("webhook returned response.patch but not response.patchType")
    if kind is not None and not patch:
        raise BadResponse("webhook returned response.patchType but not response.patch")
    if not patch:
        return ()
    if kind != "JSONPatch":
        raise BadResponse(f'unsupported patch type "{kind}"')
    try:
        operations = msgspec.json.decode(base64.b64decode(patch, validate=True))
    except (binascii.Error, msgspec.DecodeError, TypeError) as error:
        raise BadResponse(f"received undecodable patch in webhook response: {error}") from None
    if not isinstance(operations, list):
        raise BadResponse("received undecodable patch in webhook response: it is no list of operations")
    return operations


def apply_response_patch(obj: Obj | None, verdict: ReviewResponse, hook: str) -> Obj | None:
    """Returns the object with the response's patch applied.

    Raises:
        StatusError: 500, the patch does not fit or there is nothing to patch.
    """
    if not verdict.patch:
        return obj
    if obj is None:
        text = f'admission webhook "{hook}" attempted to modify the object, which is not supported for this operation'
        raise internal_error(text)
    try:
        return json_patch(obj, verdict.patch)
    except StatusError as error:
        raise internal_error(str(error)) from None


def internal_error(text: str) -> StatusError:
    """500, with the text that kube-apiserver uses for its own failures."""
    return StatusError(500, "InternalError", f"Internal error occurred: {text}")


def denial_error(hook: str, status: Mapping[str, Any]) -> StatusError:
    """The error that a client gets when a webhook denies its request."""
    denied = f'admission webhook "{hook}" denied the request'
    code = status.get("code") or 0
    reason = status.get("message") or status.get("reason")
    text = f"{denied}: {reason}" if reason else f"{denied} without explanation"
    error = StatusError(max(code, 400), str(status.get("reason") or ""), text)
    if status.get("details"):
        error.status["details"] = status["details"]
    return error
