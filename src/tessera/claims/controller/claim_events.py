"""Events on ResourceClaims, for those who look at a claim and not at its pod.

Rules:

1.  What a pod that asks by a claim is told, the claim is told in the same words. A fact that the claim was told last is
    not told again, such as a refusal that is the same for several pods.
2.  A claim that was seen with and without an allocation is told the change: a controller that starts repeats nothing. A
    claim of a template goes with its pod, so it is not told that no pod uses it.
"""

from collections.abc import Iterable, Iterator, Mapping

from tessera.controller.objects.pod_info import CLAIMS, PodInfo
from tessera.controller.slicing.state.instructions import RecordEvent
from tessera.dra.claims import AllocatedDevice, ResourceClaim
from tessera.text import list_names


class ClaimEvents:
    """Makes the events of claims, and knows what each claim was told last.

    Args:
        claims: the claims that exist, by ``namespace/name``.
    """

    def __init__(self, claims: Mapping[str, ResourceClaim]) -> None:
        self._claims = claims
        #: By claim that exists, the reason and the text that it was told last.
        self._last: dict[str, tuple[str, str]] = {}

    def forget(self, key: str) -> None:
        """Takes in that a claim is gone."""
        self._last.pop(key, None)

    def repeat(self, event: RecordEvent, keys: Iterable[str]) -> Iterator[RecordEvent]:
        """Returns what claims are told of an event about their pod; rule 1."""
        for key in keys:
            yield from self._tell(key, event.reason, event.message, warning=event.warning)

    def note_allocated(self, key: str, devices: Iterable[AllocatedDevice], pod: PodInfo) -> Iterator[RecordEvent]:
        """Returns what a claim is told once it is allocated from the slices of a pod."""
        claim = self._claims[key]
        node = claim.status.allocation.node if claim.status.allocation is not None else ""
        text = f"{_names(devices)} of node {node}, for pod {pod.name}"
        yield from self._tell(key, "ClaimAllocated", text)

    def note_cleared(
        self, key: str, devices: Iterable[AllocatedDevice], node: str, *, pod: PodInfo | None, refused: bool
    ) -> Iterator[RecordEvent]:
        """Returns what a claim is told once its allocation is gone.

        Args:
            key: the claim.
            devices: what it had.
            node: on this node.
            pod: the pod that asks for it; None if none uses it.
            refused: the node did not take that pod.
        """
        if pod is None and self._claims[key].pod:
            return
        what = f"{_names(devices)} of node {node}"
        if pod is None:
            text = f"{what}: no pod uses the claim any more"
        elif refused:
            text = f"{what}: the scheduler found that the node does not take pod {pod.name}, which is placed again"
        else:
            text = f"{what}: pod {pod.name} is placed again"
        yield from self._tell(key, "ClaimTakenBack", text, warning=refused)

    def _tell(self, key: str, reason: str, text: str, *, warning: bool = False) -> Iterator[RecordEvent]:
        claim = self._claims.get(key)
        if claim is None or self._last.get(key) == (reason, text):
            return
        self._last[key] = reason, text
        meta = claim.metadata
        yield RecordEvent(
            kind=CLAIMS.name,
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            reason=reason,
            message=text,
            warning=warning,
        )


def _names(devices: Iterable[AllocatedDevice]) -> str:
    return list_names(sorted({each.device for each in devices}))
