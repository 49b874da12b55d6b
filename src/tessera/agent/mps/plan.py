"""Which MPS daemons an offer asks for, and what a container of theirs is given. Pure.

One control daemon serves all cards of one resource, since a container that asks for two shares may get them of two
cards and can have only one pipe directory. Its memory limit is set per card, its thread share is one number for all of
them (NVIDIA MPS documentation, ``set_default_active_thread_percentage``): where cards are divided differently, that of
the most divided card, so that nobody takes more than a share.

Paths are those of NVIDIA's device plugin: below the root ``<resource>/pipe`` and ``<resource>/log``, one folder for
each resource, and ``shm`` for all. Containers see the pipe directory below ``/mps`` and the shared memory as their
``/dev/shm``, which is why their pods need no ``hostIPC``. Nothing of another resource is mounted.

MPS serves one user at a time: a client of another UID waits until the server of the first has no clients left (NVIDIA
MPS documentation, on the control daemon). Pods that share a card have to run as the same user.
"""

from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from tessera.api.sharing.config import SharingKind
from tessera.api.sharing.devices import Device, Offer
from tessera.api.sharing.mps import ClientShare, client_share, most_clients
from tessera.kubelet.interfaces import Mount
from tessera.nvml.interface import GpuInfo

#: Where containers see the MPS root (k8s-device-plugin, ``mps.ContainerRoot``).
CONTAINER_ROOT = PurePosixPath("/mps")
#: Where containers see the shared memory.
CONTAINER_SHM = "/dev/shm"  # noqa: S108 - a mount point, not a temporary file
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"


class MpsPlan(msgspec.Struct, frozen=True):
    """The daemon of one resource.

    Attributes:
        devices: what one client may use of each card, by the card's UUID; in the order of the cards' indexes.
        replicas: clients of the most divided card.
    """

    devices: Mapping[str, ClientShare]
    replicas: int

    @property
    def cards(self) -> tuple[str, ...]:
        """UUIDs of the cards that the daemon serves."""
        return tuple(self.devices)

    @property
    def thread_percent(self) -> int:
        """Of a card's threads, what one client may use."""
        return min(share.thread_percent for share in self.devices.values())


def drop_cards(plans: Mapping[str, MpsPlan], cards: Collection[str]) -> dict[str, MpsPlan]:
    """The plans as they are when these cards are served no more; one that has no card left is none."""
    left = {
        resource: {card: share for card, share in plan.devices.items() if card not in cards}
        for resource, plan in plans.items()
    }
    return {resource: MpsPlan(shares, plans[resource].replicas) for resource, shares in left.items() if shares}


class PlanImpossible(ValueError):  # noqa: N818 - says what became of the plan
    """MPS does not serve so many clients of a card, or there is nothing to give them."""


class MpsPaths(msgspec.Struct, frozen=True):
    """The folders of MPS below one root; the root as the daemon, the host or a container sees it."""

    root: Path

    def pipe(self, resource: str) -> Path:
        """Where the daemon of a resource is talked to."""
        return self.root / resource / "pipe"

    def log(self, resource: str) -> Path:
        """Where the daemon of a resource writes what it does; never seen by containers."""
        return self.root / resource / "log"

    @property
    def shm(self) -> Path:
        """Shared memory of all daemons and their clients."""
        return self.root / "shm"


class MpsEdits(msgspec.Struct, frozen=True):
    """What a container of a resource gets in Allocate, besides its devices."""

    envs: Mapping[str, str]
    mounts: tuple[Mount, ...]


def plan_daemons(offer: Offer, cards: Mapping[str, GpuInfo]) -> dict[str, MpsPlan]:
    """The daemons that an offer needs, by resource; empty if it shares nothing by MPS.

    Args:
        offer: what the node advertises.
        cards: the node's cards by UUID. A card that is lost or not among them gets no daemon.

    Raises:
        PlanImpossible: a card has more shares than MPS serves clients, or less memory than shares.
    """
    plans: dict[str, MpsPlan] = {}
    for name, offered in sorted(offer.resources.items()):
        here = (each for each in offered.devices if each.gpu in cards and not cards[each.gpu].lost)
        shared = {each.gpu: each for each in here if each.kind is SharingKind.MPS}
        if shared:
            shares = {gpu: _share(name, device, cards[gpu]) for gpu, device in shared.items()}
            plans[name] = MpsPlan(shares, max(device.replicas for device in shared.values()))
    return plans


def _share(resource: str, device: Device, card: GpuInfo) -> ClientShare:
    at = f"{resource}: card {device.gpu}"
    most = most_clients(card.compute_capability)
    if device.replicas > most:
        major, minor = card.compute_capability
        raise PlanImpossible(
            f"{at} is to have {device.replicas} shares; MPS serves {most} clients at compute capability"
            f" {major}.{minor}: lower `replicas` in the sharing profile"
        )
    share = client_share(card.memory_mib, device.replicas)
    if share.memory_mib < 1:
        raise PlanImpossible(
            f"{at} has {card.memory_mib} MiB, too little for {device.replicas} shares: each needs 1 MiB or more"
        )
    return share


def container_edits(resource: str, host: MpsPaths) -> MpsEdits:
    """What a container needs to be a client of the resource's daemon.

    Args:
        resource: whose daemon.
        host: the MPS folders as kubelet sees them.
    """
    pipe = str(CONTAINER_ROOT / resource / "pipe")
    return MpsEdits(
        envs={PIPE_VARIABLE: pipe},
        mounts=(
            Mount(container_path=pipe, host_path=str(host.pipe(resource)), read_only=False),
            Mount(container_path=CONTAINER_SHM, host_path=str(host.shm), read_only=False),
        ),
    )
