"""Options of a simulated cluster: its nodes (``--nodes``), how it behaves, and where its nodes keep their files.

``4xA100-40GB,8xH100-80GB`` is two nodes, one of four A100s and one of eight H100s. ``2xA30+1xH200`` is one node with
cards of two models. ``100*8xA100-80GB`` is a hundred equal nodes. ``0`` is a node without cards. ``4xA30@rhcos4.15``
runs another operating system than the others, ``4xA30@rhcos4.15:KERNEL`` another kernel as well, and
``4xA30@fedora41/arm64`` or ``4xA30@/arm64`` is a machine of another architecture.

Operating systems have the names that driver images carry for them, ``ubuntu22.04``; their texts and kernels are those
of real releases. A kernel is only a name here: no node runs one.
"""

import re
from difflib import get_close_matches
from pathlib import Path

import msgspec

from tessera.api.names import MIG_CONFIG_DYNAMIC
from tessera.driver.build.orders import KERNEL
from tessera.limits import ECHOED
from tessera.nvml.simulated.machine_state import SimCard, parse_spec
from tessera_lab.apiserver.kinds import versions
from tessera_lab.kubelet.context import KubeletOptions
from tessera_lab.kubelet.images.catalogue import ImageCatalogue
from tessera_lab.limits import LAB_CARDS, LAB_NODES


class OperatingSystem(msgspec.Struct, frozen=True, kw_only=True):
    """One operating system.

    Attributes:
        os_image: ``PRETTY_NAME`` of its os-release, which kubelet reports.
        kernel: ``uname -r`` of one of its releases.
    """

    os_image: str
    kernel: str


#: By ``ID`` and ``VERSION_ID`` of os-release; of one ``ID`` the newest comes last.
SYSTEMS: dict[str, OperatingSystem] = {
    "ubuntu22.04": OperatingSystem(os_image="Ubuntu 22.04.4 LTS", kernel="5.15.0-69-generic"),
    "ubuntu24.04": OperatingSystem(os_image="Ubuntu 24.04.1 LTS", kernel="6.8.0-45-generic"),
    "rhcos4.13": OperatingSystem(
        os_image="Red Hat Enterprise Linux CoreOS 413.92.202307260246-0 (Plow)",
        kernel="5.14.0-284.25.1.el9_2.x86_64",
    ),
    "rhcos4.15": OperatingSystem(
        os_image="Red Hat Enterprise Linux CoreOS 415.92.202403191241-0 (Plow)",
        kernel="5.14.0-284.55.1.el9_2.x86_64",
    ),
    "rhel9.4": OperatingSystem(os_image="Red Hat Enterprise Linux 9.4 (Plow)", kernel="5.14.0-427.13.1.el9_4.x86_64"),
    "rocky9.4": OperatingSystem(os_image="Rocky Linux 9.4 (Blue Onyx)", kernel="5.14.0-427.13.1.el9_4.x86_64"),
    "sles15.5": OperatingSystem(os_image="SUSE Linux Enterprise Server 15 SP5", kernel="5.14.21-150500.55.19-default"),
    "fedora40": OperatingSystem(os_image="Fedora Linux 40 (Server Edition)", kernel="6.8.5-301.fc40.x86_64"),
    "fedora41": OperatingSystem(os_image="Fedora Linux 41 (Server Edition)", kernel="6.11.4-301.fc41.x86_64"),
    "debian12": OperatingSystem(os_image="Debian GNU/Linux 12 (bookworm)", kernel="6.1.0-21-amd64"),
}


def find_system(name: str) -> OperatingSystem:
    """The system of a name; without a version, the newest of its ``ID``.

    Raises:
        ValueError: there is none; the text lists those that there are.
    """
    newest = {known.rstrip("0123456789."): system for known, system in SYSTEMS.items()}
    found = SYSTEMS.get(name) or newest.get(name)
    if found is None:
        close = get_close_matches(name[:63], SYSTEMS, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"operating system {name[:ECHOED]!r}: the lab has {', '.join(SYSTEMS)}{meant}")
    return found


def parse_system(system: str, kernel: str) -> OperatingSystem:
    """The operating system for the given name and kernel; an empty string means not given.

    Raises:
        ValueError: there is no such system, or no kernel has such a name.
    """
    found = find_system(system) if system else OperatingSystem(os_image="", kernel="")
    if not kernel:
        return found
    KERNEL.require(kernel, "kernel")
    return msgspec.structs.replace(found, kernel=kernel)


#: How kernels of distributions name an architecture, by its name in registries.
_MACHINES = {"amd64": ("x86_64", "-amd64"), "arm64": ("aarch64", "-arm64")}
#: Beginnings of the models that are one board with a processor of Arm.
_ON_ARM = ("GH200", "GB200", "GB300", "Thor")
_NODES = re.compile(
    r"(?:(?P<times>\d+)\*)?(?P<cards>[^@]+)"
    r"(?:@(?=[^@])(?P<system>[^@:/]*)(?:/(?P<machine>[^@:/]+))?(?::(?P<kernel>[^@:]+))?)?"
)


class LabNodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated node.

    Attributes:
        name: the node's name.
        cards: model (its short name) of each card, in the order of their indexes.
        kernel: ``uname -r``; empty for the cluster's default.
        os_image: ``PRETTY_NAME`` of its os-release; empty for the cluster's default.
        architecture: CPU architecture as registries name it.
        driver: version of the host's driver; empty for the lab's.
        accepted: the cards of a document of ``tessera accept``; empty for cards as their models are.
        network_seconds: from its start until it has a network and is Ready; None for the cluster's default.
    """

    name: str
    cards: tuple[str, ...]
    kernel: str = ""
    os_image: str = ""
    architecture: str = "amd64"
    driver: str = ""
    accepted: tuple[SimCard, ...] = ()
    network_seconds: float | None = None

    @property
    def spec(self) -> str:
        """The GPUs in the form that ``SimulatedMachine`` takes; empty for none."""
        return ",".join(self.cards)


def parse_nodes(text: str) -> list[LabNodeSpec]:
    """Returns the nodes of a specification, named ``node-1``, ``node-2`` and so on.

    Raises:
        ValueError: a part has the wrong form, an unknown model or too many cards; the text says which.
    """
    nodes: list[LabNodeSpec] = []
    for part in text.split(","):
        match = _NODES.fullmatch(part.strip())
        if match is None:
            raise ValueError(
                f"nodes {text[:ECHOED]!r}: {part.strip()[:ECHOED]!r} names no node; "
                "write for example 4xA30,8xH100-80GB@rhcos4.15"
            )
        cards, system = _parse_cards(match["cards"].strip()), parse_system(match["system"] or "", match["kernel"] or "")
        machine = match["machine"] or ("arm64" if any(each.startswith(_ON_ARM) for each in cards) else "amd64")
        if machine not in _MACHINES:
            raise ValueError(f"architecture {machine[:ECHOED]!r}: the lab has {', '.join(_MACHINES)}")
        kernel = match["kernel"] or kernel_on(machine, system.kernel)
        for _ in range(min(int(match["times"] or 1), LAB_NODES + 1)):
            name = f"node-{len(nodes) + 1}"
            nodes.append(
                LabNodeSpec(name=name, cards=cards, kernel=kernel, os_image=system.os_image, architecture=machine)
            )
        if len(nodes) > LAB_NODES:
            raise ValueError(f"nodes {text[:ECHOED]!r}: too many nodes: {LAB_NODES} are simulated")
    if not nodes:
        raise ValueError(f"nodes {text[:ECHOED]!r}: no node; write for example 4xA100-40GB")
    return nodes


def kernel_on(machine: str, kernel: str) -> str:
    """The kernel of the same release for another architecture."""
    for ours, theirs in zip(_MACHINES["amd64"], _MACHINES[machine], strict=True):
        kernel = kernel.replace(ours, theirs)
    return kernel


def _parse_cards(text: str) -> tuple[str, ...]:
    if text == "0":
        return ()
    cards = parse_spec(text.replace("+", ","))
    if len(cards) > LAB_CARDS:
        raise ValueError(f"cards {text[:ECHOED]!r}: {len(cards):,} cards in one node; {LAB_CARDS} are simulated")
    return tuple(cards)


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a simulated cluster; times in seconds.

    Attributes:
        folder: folder of the nodes' sockets and files; None for a cluster without sockets.
        plugin_sockets: with ``folder``: device plugins connect over sockets; otherwise in this process.
        shared_cards: nodes keep their simulated cards in files (:func:`cards_file`), for agents that others start.
        pull_seconds: duration of the pull of an image.
        images: images that every node has from the start.
        slice_seconds: duration of making a slice, and of removing one.
        publish_every: period on which kubelets publish capacity (10 on a real node); None: at once.
        boot_seconds: how long a node that reboots is away.
        mig_config: the label ``nvidia.com/mig.config`` of nodes with MIG cards; empty for none.
        by_claims: nodes with MIG cards give their slices by ResourceClaims (label ``tessera.dev/device-api``).
        network: first two bytes of addresses on which pods that run for real can listen; empty if none listens.
        cdi: the folder of CDI files per node if there is no ``folder``.
        seed: seed of uids, generated names and jitter.
        catalogue: images of all registries; None for images that have neither size nor program.
        serialise_pulls: nodes pull one image after the other, if images have sizes.
        drivers: machines with cards have no driver until somebody loads one; otherwise their hosts have one.
        kernel: ``uname -r`` of nodes whose specification has none.
        os_image: ``PRETTY_NAME`` of the os-release of such nodes.
        network_seconds: from a node's start until it has a network and is Ready.
        nfd_seconds: from a node's Ready until node feature discovery labels it; None for a cluster without it.
        lease_seconds: period on which kubelets renew their Leases (10 on a real node); a node without renewal becomes
            Unknown; None for no Leases.
        leaps: time skips waits, and the server's version says so to clients that measure from outside.
        fair_queues: API requests wait in queues by level and user, as in kube-apiserver; for clusters in real time.
        kubernetes: minor version of server and kubelets, one of :data:`versions.CLUSTERS`.
        client_limits: scheduler and controllers send requests at their programs' default rates, not as fast as they
            can.
        pages: without sockets, the API server's proxy shows the agents' pages. Agents then take samples, which costs
            time.
    """

    folder: Path | None = None
    plugin_sockets: bool = True
    shared_cards: bool = False
    pull_seconds: float = 0.0
    images: frozenset[str] = frozenset()
    slice_seconds: float = 0.0
    publish_every: float | None = None
    boot_seconds: float = 30.0
    mig_config: str = MIG_CONFIG_DYNAMIC
    by_claims: bool = False
    network: str = ""
    cdi: Path | None = None
    seed: int = 0
    catalogue: ImageCatalogue | None = None
    serialise_pulls: bool = True
    drivers: bool = False
    kernel: str = KubeletOptions.kernel
    os_image: str = KubeletOptions.os_image
    network_seconds: float = 0.0
    nfd_seconds: float | None = None
    lease_seconds: float | None = None
    leaps: bool = False
    fair_queues: bool = False
    pages: bool = False
    kubernetes: str = versions.DEFAULT
    client_limits: bool = False


def cards_file(folder: Path, node: str) -> Path:
    """Returns the file with a node's simulated cards, for sharing with an agent's ``--simulated-state``."""
    return folder / "n" / node / "cards.json"


def node_folders(options: ClusterOptions, node: str) -> list[Path]:
    """The folders with the contents of one node's disk and memory."""
    if options.folder is not None:
        return [options.folder / "n" / node]
    if options.cdi is None:
        return []
    return [options.cdi / each for each in (node, f"{node}-validations", f"{node}-state")]
