"""MPS daemons of claims: one serves the cards of a claim whose configuration has the strategy MPS.

Another serves all cards of the node that claims get in shares by MPS, since a container has one daemon at most.

They are daemons like those of a sharing profile (:mod:`tessera.agent.mps`), with the claim in place of a resource. A
daemon is wanted from the claim's prepare until its unprepare; what a prepared claim wants is in its note on disk.
"""

from collections.abc import Iterable, Mapping, Sequence

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.settings import ContainerEdits, ServicePlan
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.sliceable_gpus import SliceableGpu
from tessera.agent.mps.daemons import MpsDaemons
from tessera.api.sharing.profile import ClientShare, client_share
from tessera.claims.agent.prepared_claims import PreparedClaim, PreparedClaims
from tessera.dra.opaque_configs import ConfigRefused, DeviceSettings, MpsSettings
from tessera.kubelet.interfaces import PluginError
from tessera.nvml.interface import GpuInfo

#: The largest share of threads that a client may have, in percent: what it has without a setting.
_ALL_THREADS = 100


class ClaimDaemons:
    """The daemons that the claims of this node want.

    Args:
        runtime: clock and change notifier of this agent.
        daemons: the node's daemons.
        prepared: the prepared claims.
    """

    def __init__(self, runtime: AgentRuntime, daemons: MpsDaemons, prepared: PreparedClaims) -> None:
        self._clock = runtime.clock
        self._changes = runtime.changes.about(Fact.MPS | Fact.SLICES)
        self._daemons = daemons
        self._prepared = prepared
        #: Claims that are being prepared and need a daemon, by UID.
        self._starting: dict[str, PreparedClaim] = {}
        self.update()

    def update(self) -> None:
        """Wants exactly the daemons of the claims that are prepared, or being prepared."""
        claims = {**dict(self._prepared.items()), **self._starting}
        plans = {_resource(uid, claim): claim.daemon for uid, claim in claims.items()}
        self._daemons.set_claim_plans({name: plan for name, plan in plans.items() if plan is not None})

    async def start(self, uid: str, claim: PreparedClaim, deadline: float) -> None:
        """Returns once the daemon of a claim serves its cards. The caller notes the claim and calls :meth:`settle`.

        Raises:
            PluginError: it does not until the deadline, monotonic seconds.
        """
        if self._prepared.get(uid) is None:
            self._starting[uid] = claim
            self.update()
        resource = _resource(uid, claim)
        left = max(0.0, deadline - self._clock.monotonic())
        if not await self._changes.wait_until(lambda: self._daemons.ready(resource), left):
            raise PluginError(f"its MPS daemon does not serve: {self._daemons.problem(resource)}; kubelet tries again")

    def settle(self, uid: str) -> None:
        """Takes in that a claim's prepare has ended: its daemon goes on if the claim was noted."""
        if self._starting.pop(uid, None) is not None:
            self.update()

    def edits(self, uid: str, claim: PreparedClaim) -> ContainerEdits:
        """What a container needs to be a client of a claim's daemon."""
        return self._daemons.container_edits(_resource(uid, claim))


def plan_shares(cards: Iterable[SliceableGpu]) -> ServicePlan | None:
    """Returns the daemon for all cards of a node that are given in shares by MPS; None without such a card."""
    counts = {each.info: each.shares.count for each in cards if each.shares and each.shares.have_daemon}
    shares: dict[str, ClientShare] = {info.uuid: client_share(info.memory_mib, count) for info, count in counts.items()}
    return ServicePlan(shares, max(counts.values())) if shares else None


def plan_daemon(place: str, cards: Sequence[tuple[GpuInfo, DeviceSettings]]) -> ServicePlan | None:
    """Returns the daemon that the cards of a claim need; None if they need none.

    Args:
        place: the claim, for messages.
        cards: each card of the claim, in the order of its allocation, with its settings.

    Raises:
        ConfigRefused: a limit is for a device that the claim does not have.
    """
    shares: dict[str, ClientShare] = {}
    names = {str(index): info.uuid for index, (info, _) in enumerate(cards)} | {
        info.uuid: info.uuid for info, _ in cards
    }
    for info, settings in cards:
        if settings.mps is not None:
            limits = _limits_by_card(place, settings.mps, names)
            memory = limits.get(info.uuid, settings.mps.pinned_mib or info.memory_mib)
            threads = settings.mps.thread_percent
            shares[info.uuid] = ClientShare(memory, _ALL_THREADS if threads is None else threads)
    return ServicePlan(shares, 1) if shares else None


def _limits_by_card(place: str, settings: MpsSettings, names: Mapping[str, str]) -> dict[str, int]:
    for key in settings.pinned_mib_by_device:
        if key not in names:
            raise ConfigRefused(
                f"{place}: defaultPerDevicePinnedMemoryLimit.{key} is no device of the claim: write the number of one,"
                f" 0 to {len(names) // 2 - 1}, or its UUID"
            )
    return {names[key]: mib for key, mib in settings.pinned_mib_by_device.items()}


def _resource(uid: str, claim: PreparedClaim) -> str:
    """Stands for the resource of a sharing profile, in the names of folders too."""
    return "claim-shares" if claim.shared else f"claim-{uid}"
