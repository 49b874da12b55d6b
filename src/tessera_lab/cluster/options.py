"""How a simulated cluster behaves, and where it keeps what its nodes keep."""

from pathlib import Path

import msgspec

from tessera.api.names import MIG_CONFIG_DYNAMIC
from tessera_lab.kubelet.context import KubeletOptions
from tessera_lab.kubelet.images.catalogue import Catalogue


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the simulated world behaves; times in seconds.

    Attributes:
        folder: where nodes keep sockets and files; None joins device plugins in this process, without sockets.
        shared_cards: nodes keep their simulated cards in files (:func:`cards_file`), for agents that others start.
        pull_seconds: an image that a node does not have takes so long to arrive.
        images: what every node has from the start.
        slice_seconds: making a slice takes so long, and removing it as well.
        publish_every: kubelets publish capacity on this period (10 on a real node); None at once.
        boot_seconds: how long a node that reboots is away.
        mig_config: the label ``nvidia.com/mig.config`` of nodes with cards; empty for none.
        network: first two bytes of addresses on which pods that run for real can listen; empty where none listens.
        cdi: the folder of CDI files per node when there is no ``folder``.
        seed: of uids, generated names and jitter.
        catalogue: what registries hold; None for images that have neither size nor program.
        serialise_pulls: nodes pull one image after the other, where images have sizes.
        drivers: machines with cards have no driver until somebody loads one; otherwise their hosts have one.
        kernel: ``uname -r`` of nodes whose specification says nothing.
        os_image: ``PRETTY_NAME`` of their os-release, likewise.
        network_seconds: from a node's start until it has a network and is Ready.
        nfd_seconds: so long after a node is Ready, node feature discovery labels it; None for a cluster without it.
        lease_seconds: kubelets renew their Leases on this period (10 on a real node), and a node that does not is
            Unknown; None for no Leases.
        leaps: the server's version says that time leaps here; for those who measure from outside.
    """

    folder: Path | None = None
    shared_cards: bool = False
    pull_seconds: float = 0.0
    images: frozenset[str] = frozenset()
    slice_seconds: float = 0.0
    publish_every: float | None = None
    boot_seconds: float = 30.0
    mig_config: str = MIG_CONFIG_DYNAMIC
    network: str = ""
    cdi: Path | None = None
    seed: int = 0
    catalogue: Catalogue | None = None
    serialise_pulls: bool = True
    drivers: bool = False
    kernel: str = KubeletOptions.kernel
    os_image: str = KubeletOptions.os_image
    network_seconds: float = 0.0
    nfd_seconds: float | None = None
    lease_seconds: float | None = None
    leaps: bool = False


def cards_file(folder: Path, node: str) -> Path:
    """Where a lab keeps a node's simulated cards that it shares: what an agent is given as ``--simulated-state``."""
    return folder / "n" / node / "cards.json"


def node_folders(options: ClusterOptions, node: str) -> list[Path]:
    """Where a lab keeps what is on one node's disk and in its memory."""
    if options.folder is not None:
        return [options.folder / "n" / node]
    if options.cdi is None:
        return []
    return [options.cdi / each for each in (node, f"{node}-validations", f"{node}-state")]
