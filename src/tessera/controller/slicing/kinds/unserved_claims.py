"""Pods at the gate with ResourceClaims, in an installation that serves none.

The webhook gated them before the claim driver was taken out of the installation. The satellite of claims has a kind of
the same name, which takes the place of this one.
"""

from collections.abc import Iterable

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import CLAIMS, PodInfo
from tessera.controller.slicing.kinds.request_kind import RequestKind
from tessera.controller.slicing.state.allocation import will_never_run
from tessera.controller.slicing.state.slicer_state import SlicerState


class UnservedClaims(RequestKind):
    """Lets pods go whose claims nobody serves here, unless they ask for slices or cards by limits too."""

    kind = CLAIMS

    def __init__(self, _state: SlicerState) -> None:
        self._held: dict[PodUid, PodInfo] = {}

    def read(self, pod: PodInfo) -> PodInfo:
        """See :class:`RequestKind`."""
        asks = pod.profiles or pod.devices or pod.fault
        if pod.device_claims and pod.gated and not (asks or pod.earlier_gates or will_never_run(pod)):
            self._held[pod.uid] = pod
        else:
            self._held.pop(pod.uid, None)
        return pod

    def forget(self, uid: PodUid) -> None:
        """See :class:`RequestKind`."""
        self._held.pop(uid, None)

    def let_go(self) -> Iterable[PodInfo]:
        """See :class:`RequestKind`."""
        return [self._held[uid] for uid in sorted(self._held)]
