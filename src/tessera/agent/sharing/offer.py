"""Chooses the offer for the static cards: the desired profile if the cards allow it, else the one in force. Pure.

In order of preference: the desired profile; the one in force on these cards; at the start of an agent, the one that was
in force before it; and if the cards allow none of them, the former offer without the devices that are gone. Only the
first is the desired one, so each of the others comes with the reason.

A resource belongs to one side of a node: the static side does not serve a resource that the slice manager serves on
demand, since kubelet would take both for one resource.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import msgspec

from tessera.agent.base.settings import DesiredSharing, ServicePlan
from tessera.agent.inventory.device_state import CheckedDevice
from tessera.agent.inventory.gpu_inventory import GpuState, sharing_gpus
from tessera.agent.sharing.allocate_response import AllocateOptions, CdiDevice
from tessera.agent.sharing.strategies import STRATEGIES, SharingStrategy, StrategyImpossible, plan_services
from tessera.api.names import profile_of
from tessera.api.sharing.advertisement import AdvertisementImpossible, make_advertisement
from tessera.api.sharing.devices import Advertisement, GpuDescription, SharingKind
from tessera.api.sharing.profile import MigStrategy, SharingProfile
from tessera.nvml.interface import DeviceFile


class SharingProblem(msgspec.Struct, frozen=True):
    """The reason that the desired sharing is not in force.

    Attributes:
        reason: a word for machines, as in a condition: ``ProfileRefused``.
        text: for people.
    """

    reason: str
    text: str


class AppliedSharing(msgspec.Struct, frozen=True, kw_only=True):
    """The offer in force, and its profile.

    Attributes:
        name: name of the profile; empty for none.
        profile: its content.
        offer: the advertised resources.
        plans: the MPS daemons that the offer needs, by resource.
    """

    name: str = ""
    profile: SharingProfile = SharingProfile()
    offer: Advertisement = Advertisement(resources={})
    plans: Mapping[str, ServicePlan] = {}


@dataclass(frozen=True, kw_only=True)
class DecidedOffer:
    """A decision on the offer.

    Attributes:
        inputs: what it was decided on, the cards first.
        cards: the static cards, as they were then.
        applied: the offer and its profile; ``None`` before the first decision.
        refusal: reason that it is not the desired one; ``None`` if it is.
    """

    inputs: tuple[object, ...] = ()
    cards: tuple[GpuState, ...] = ()
    applied: AppliedSharing | None = None
    refusal: SharingProblem | None = None

    @cached_property
    def descriptions(self) -> Sequence[GpuDescription]:
        """The cards as a sharing profile describes them."""
        return sharing_gpus(self.cards)

    @property
    def offer(self) -> Advertisement:
        """All advertised entries, healthy or not."""
        return Advertisement(resources={}) if self.applied is None else self.applied.offer

    @property
    def parents(self) -> dict[str, str]:
        """The card of each MIG device."""
        return {mig.uuid: gpu.uuid for gpu in self.descriptions for mig in gpu.mig_devices}

    def cdi_devices(self, files: Mapping[str, tuple[DeviceFile, ...]]) -> list[CdiDevice]:
        """Every card and MIG device whose files are known."""
        found = []
        for gpu in self.descriptions:
            found.append((gpu.uuid, str(gpu.index)))
            found += [(mig.uuid, f"{gpu.index}:{mig.index}") for mig in gpu.mig_devices]
        return [CdiDevice(uuid=uuid, index=index, files=files[uuid]) for uuid, index in found if uuid in files]

    def unshared(self, ids: Collection[str]) -> list[CheckedDevice]:
        """The devices among these entries that are no shares."""
        cards = [CheckedDevice(gpu.uuid, gpu.uuid) for gpu in self.descriptions]
        parts = [CheckedDevice(mig.uuid, gpu.uuid, mig.gi_id) for gpu in self.descriptions for mig in gpu.mig_devices]
        return [device for device in (*cards, *parts) if device.uuid in ids]


def choose_offer(
    cards: Sequence[GpuState],
    desired: DesiredSharing,
    strategy: MigStrategy,
    *,
    before: AppliedSharing | None,
    on_demand: Collection[str],
    strategies: Mapping[SharingKind, SharingStrategy] = STRATEGIES,
) -> tuple[AppliedSharing, SharingProblem | None]:
    """Returns the offer, and why it is not the desired one; ``None`` if it is.

    Args:
        cards: the static cards.
        desired: the profile to follow.
        strategy: the installation's MIG strategy; a profile's own takes precedence.
        before: the offer in force; ``None`` when an agent has just started.
        on_demand: resources that the slice manager serves.
        strategies: the strategy of each kind of sharing.
    """
    refusal: str | None = None
    for name, profile in _candidates(desired, before):
        try:
            found = _apply(cards, name, profile, strategy, strategies)
        except (AdvertisementImpossible, StrategyImpossible) as error:
            refusal = refusal or str(error)
            continue
        found, conflict = _drop_on_demand(found, on_demand)
        return found, _profile_problem(desired, refusal, found) or conflict
    found, _ = _drop_on_demand(_drop_missing(before or AppliedSharing(), cards, strategy), on_demand)
    return found, _profile_problem(desired, refusal, found)


def _candidates(desired: DesiredSharing, before: AppliedSharing | None) -> Iterator[tuple[str, SharingProfile]]:
    yield desired.name, desired.profile
    if before is not None:
        yield before.name, before.profile
    elif desired.last is not None:
        yield desired.last.name, desired.last.profile


def _apply(
    cards: Sequence[GpuState],
    name: str,
    profile: SharingProfile,
    strategy: MigStrategy,
    strategies: Mapping[SharingKind, SharingStrategy],
) -> AppliedSharing:
    offer = make_advertisement(sharing_gpus(cards), profile, profile.flags.mig_strategy or strategy)
    plans = plan_services(offer, {card.uuid: card.info for card in cards}, strategies)
    return AppliedSharing(name=name, profile=profile, offer=offer, plans=plans)


def _profile_problem(desired: DesiredSharing, refusal: str | None, found: AppliedSharing) -> SharingProblem | None:
    if refusal is None:
        return None
    asked = f'profile "{desired.name}"' if desired.name else "no profile"
    kept = ", ".join(found.offer.resources) or "nothing"
    return SharingProblem(
        "ProfileRefused", f"{asked} cannot be followed on these cards: {refusal}. Still offered: {kept}"
    )


def _drop_missing(before: AppliedSharing, cards: Sequence[GpuState], strategy: MigStrategy) -> AppliedSharing:
    """The offer in force without the devices that are gone; a card in MIG mode is not available whole."""
    cut = (before.profile.flags.mig_strategy or strategy) is not MigStrategy.NONE
    gpus = sharing_gpus(cards)
    present = {gpu.uuid for gpu in gpus if not (cut and gpu.mig_enabled)}
    present |= {mig.uuid for gpu in gpus for mig in gpu.mig_devices}
    resources = {
        name: msgspec.structs.replace(offered, devices=left)
        for name, offered in before.offer.resources.items()
        if (left := tuple(each for each in offered.devices if each.uuid in present))
    }
    plans = {
        name: msgspec.structs.replace(plan, devices=served)
        for name, plan in before.plans.items()
        if (served := {uuid: share for uuid, share in plan.devices.items() if uuid in present})
    }
    return msgspec.structs.replace(
        before, offer=msgspec.structs.replace(before.offer, resources=resources), plans=plans
    )


def _drop_on_demand(found: AppliedSharing, on_demand: Collection[str]) -> tuple[AppliedSharing, SharingProblem | None]:
    conflicts = [name for name in found.offer.resources if name in on_demand]
    if not conflicts:
        return found, None
    resources = {name: each for name, each in found.offer.resources.items() if name not in on_demand}
    texts = [_conflict(name, len(found.offer.resources[name].devices)) for name in conflicts]
    kept = msgspec.structs.replace(
        found,
        offer=msgspec.structs.replace(found.offer, resources=resources),
        plans={name: plan for name, plan in found.plans.items() if name not in on_demand},
    )
    return kept, SharingProblem("ResourceNameConflict", "; ".join(texts))


def _conflict(name: str, devices: int) -> str:
    example = f"{name.partition('/')[2]}.fixed"
    where = f"resources.mig of the sharing profile, such as {{pattern: '{profile_of(name) or '*'}', name: {example}}}"
    problem = f"{name} is allocated on demand on this node, so its {devices} fixed devices are not offered"
    return f"{problem}: rename it in {where}"


class SharingConfig(Protocol):
    """Follows the labels and ConfigMaps; see :class:`tessera.agent.config.ConfigWatcher`."""

    @property
    def sharing(self) -> DesiredSharing:
        """The sharing profile to follow now."""
        ...

    def note_applied_profile(self, name: str, text: str, /) -> None:
        """Notes that a profile of this name and text is in force."""
        ...


class SharingSettings:
    """The settings that the advertiser follows.

    Args:
        config: the desired profile.
        mig_strategy: the installation's strategy; a profile's own takes precedence.
        options: how containers learn of their devices; a profile's flags take precedence.
    """

    def __init__(self, config: SharingConfig, mig_strategy: MigStrategy, options: AllocateOptions) -> None:
        self.config = config
        self.mig_strategy = mig_strategy
        self._options = options

    def options(self, applied: AppliedSharing | None) -> AllocateOptions:
        """The options under the applied profile; ``None`` before the first one is applied."""
        return self._options if applied is None else self._options.with_flags(applied.profile.flags)
