"""AdmissionReview v1: the envelope around :mod:`tessera.webhook.decision`.

:class:`Reviewer` is what both the TLS server and a control plane in the same process call: bytes in, bytes out. It
reads the capabilities at each call, so that a card that just appeared counts at once.
"""

import base64
from collections.abc import Callable
from typing import Any

import msgspec

from tessera.webhook.admission import Refused
from tessera.webhook.capabilities import Capabilities
from tessera.webhook.decision import decide


class ReviewError(ValueError):
    """The body is no AdmissionReview v1 of a pod."""


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class _Request(msgspec.Struct, frozen=True):
    uid: str
    kind: _Kind = _Kind()
    operation: str = ""
    object: dict[str, Any] | None = None


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    request: _Request


#: Totals for /metrics: receives ``patched``, ``untouched`` or ``refused`` per review.
Counted = Callable[[str], None]


def _uncounted(_verdict: str) -> None:
    """Nobody counts."""


class Reviewer:
    """Answers AdmissionReviews.

    Args:
        capabilities: what the cluster's cards can do now.
        counted: told each verdict.
    """

    def __init__(self, capabilities: Callable[[], Capabilities], counted: Counted = _uncounted) -> None:
        self._capabilities = capabilities
        self._counted = counted
        self._decoder = msgspec.json.Decoder(_Review)

    def review(self, body: bytes) -> bytes:
        """The answer to one AdmissionReview, both as JSON.

        Raises:
            ReviewError: the body is no AdmissionReview v1 of a pod; the text says what is.
        """
        request = self._request(body)
        response: dict[str, Any] = {"uid": request.uid, "allowed": True}
        if request.object is not None and request.operation in {"", "CREATE"}:
            response |= self._verdict(request.object)
        else:
            self._counted("untouched")
        return msgspec.json.encode(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        )

    def _request(self, body: bytes) -> _Request:
        try:
            found = self._decoder.decode(body)
        except msgspec.DecodeError as error:
            raise ReviewError(f"the body is no AdmissionReview: {error}") from None
        if (found.api_version, found.kind) != ("admission.k8s.io/v1", "AdmissionReview"):
            raise ReviewError(
                f"the body is {found.kind} of {found.api_version}; this webhook speaks AdmissionReview of "
                "admission.k8s.io/v1: list v1 in admissionReviewVersions"
            )
        if found.request.kind.kind not in {"", "Pod"}:
            raise ReviewError(f"the request is about a {found.request.kind.kind}; this webhook reviews pods only")
        return found.request

    def _verdict(self, pod: dict[str, Any]) -> dict[str, Any]:
        try:
            operations = decide(pod, self._capabilities())
        except Refused as error:
            self._counted("refused")
            return {"allowed": False, "status": {"code": 403, "reason": "Forbidden", "message": str(error)}}
        if not operations:
            self._counted("untouched")
            return {}
        self._counted("patched")
        return {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(operations)).decode()}
