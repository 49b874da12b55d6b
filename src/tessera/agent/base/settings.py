"""The task of an agent: the options of its process, and the desired configuration of its node's cards. Values only.

The caller builds client, cards and kubelet from the options. The configuration is a sharing profile, a MIG layout, and
plans of MPS daemons: the desired state, not the present one. Conditions of the Node report whether it is in force.
"""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import msgspec

from tessera.api.mig_layouts import LayoutEntry
from tessera.api.names import INSTASLICE_NAMESPACE
from tessera.api.nodes.node_marks import MARKER_FOLDER
from tessera.api.sharing.profile import ClientShare, MigStrategy, SharingProfile
from tessera.kubelet.interfaces import Mount
from tessera.kubelet.sockets import PLUGIN_DIR
from tessera.replay.recorder import SOCKET


class ValidationMode(Enum):
    """Condition under which the agent advertises cards only after a program has run on them."""

    AUTO = "auto"  # if the driver comes in a container
    ALWAYS = "always"
    NEVER = "never"


class EnforcementMode(Enum):
    """The action of the memory monitor on a pod that takes more than its share."""

    OFF = "off"
    OBSERVE = "observe"
    WARN = "warn"
    EVICT = "evict"
    KILL = "kill"


class ConfigMapName(msgspec.Struct, frozen=True):
    """Namespace and name of a ConfigMap."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "ConfigMapName":
        """Reads ``namespace/name``.

        Raises:
            ValueError: the text does not have that form.
        """
        namespace, slash, name = text.partition("/")
        if not (namespace and slash and name) or "/" in name:
            raise ValueError(
                f'"{text}" names no ConfigMap; write NAMESPACE/NAME, such as kube-system/nvidia-mig-config'
            )
        return cls(namespace, name)


class MetricNames(Enum):
    """The names of dcgm-exporter's series: those of 4.8 and earlier, those of 4.9, or both."""

    DCGM_48 = "dcgm-4.8"
    DCGM_49 = "dcgm-4.9"
    BOTH = "both"


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one node's agent.

    Attributes:
        node_name: the Node object's name; also the Instaslice object's.
        kubelet_root: kubelet's ``--root-dir``.
        plugin_dir: folder of kubelet's ``kubelet.sock``. It is fixed, whatever kubelet's ``--root-dir`` is.
        pod_resources_dir: folder of kubelet's pod-resources socket; below ``kubelet_root`` unless given.
        cdi_dir: folder from which the container runtime reads CDI files. Files there do not survive a reboot.
        state_dir: folder of the journal. It must survive a restart of the agent, but not a reboot.
        simulate: cards to simulate, e.g. ``4xA100-40GB``; ``None`` for the machine's own cards.
        simulated_state: file that keeps the simulated cards over restarts; in ``state_dir`` unless given.
        namespace: namespace of the Instaslice objects.
        http_port: port of ``/metrics``, ``/usage``, ``/healthz`` and ``/readyz``; ``None`` for no server.
        http_address: address of that port; ``None`` for all.
        metric_names: names of dcgm-exporter's series in ``/metrics``.
        open_metrics: True to show ``/metrics`` to readers without a token.
        max_series: most series of ``/metrics`` with labels of pods.
        claim_timeout: seconds that PreStartContainer waits for a slice; kubelet itself gives up after 30.
        claim_driver: name of the driver by which kubelet asks for the slices of ResourceClaims; empty: it does not.
        claim_placement: who places ResourceClaims, one of :data:`~tessera.api.names.CLAIM_PLACEMENTS`.
        sharing_config: the ConfigMap of sharing profiles, ``namespace/name``; ``None`` for no profiles.
        sharing_default: profile of nodes without a label that names one; empty for none.
        repairs: the ConfigMap of what is done about cards with faults, ``namespace/name``; ``None`` for nothing.
        mig_config: the ConfigMap of MIG layouts, ``namespace/name``; ``None`` for the generated layouts only.
        mig_default: layout of nodes without a label that names one; empty to leave their cards as they are.
        mig_strategy: how MIG devices of a layout are advertised; a profile's own setting takes precedence.
        mig_evict: true if the agent evicts pods that hold devices which a layout replaces; otherwise it waits for them.
        mig_reboot: true if the node may be rebooted when a reset of the card cannot change MIG mode.
        memory_limits: the action of the memory monitor on pods that take more than their share.
        device_list_strategies: how containers learn of their devices, a subset of
            :data:`~tessera.api.sharing.profile.DEVICE_LIST_STRATEGIES`; a profile's own setting takes precedence.
        device_ids_are_uuids: true if containers get UUIDs; otherwise they get indexes.
        pass_device_specs: true if the answers to kubelet name device nodes too.
        driver_root: folder in which a driver container shows its files on this node, as this process sees it.
        markers_dir: folder of the driver stack's marker files, as this process sees it; ``None`` for
            none.
        validation: when a program must have run on the cards before they are advertised.
        mps_root: the host's folder of the MPS daemons' pipes and logs.
        mps_mount: that folder as this process sees it; the same unless given.
        mps_host: socket of the node's MPS host, which starts the daemons; ``None`` if this process starts them.
        record: number of decisions to keep of each decider, for ``tessera debug record``; 0 keeps none.
        record_socket: name of the socket through which the records are fetched.
        environment: the process's environment, for the variables of NVIDIA's device plugin that the agent honours.
    """

    node_name: str
    kubelet_root: Path = Path("/var/lib/kubelet")
    plugin_dir: Path = PLUGIN_DIR
    pod_resources_dir: Path | None = None
    cdi_dir: Path = Path("/var/run/cdi")
    state_dir: Path = Path("/var/lib/tessera")
    simulate: str | None = None
    simulated_state: Path | None = None
    namespace: str = INSTASLICE_NAMESPACE
    http_port: int | None = None
    http_address: str | None = None
    metric_names: MetricNames = MetricNames.BOTH
    open_metrics: bool = False
    max_series: int = 10_000
    claim_timeout: float = 25.0
    claim_driver: str = ""
    claim_placement: str = "controller"
    sharing_config: ConfigMapName | None = None
    sharing_default: str = ""
    repairs: ConfigMapName | None = None
    mig_config: ConfigMapName | None = None
    mig_default: str = ""
    mig_strategy: MigStrategy = MigStrategy.MIXED
    mig_evict: bool = False
    mig_reboot: bool = False
    memory_limits: EnforcementMode = EnforcementMode.OBSERVE
    device_list_strategies: tuple[str, ...] = ("cdi-cri",)
    device_ids_are_uuids: bool = True
    pass_device_specs: bool = False
    driver_root: Path = Path("/run/nvidia/driver")
    markers_dir: Path | None = Path(MARKER_FOLDER)
    validation: ValidationMode = ValidationMode.AUTO
    mps_root: Path = Path("/run/nvidia/mps")
    mps_mount: Path | None = None
    mps_host: Path | None = None
    record: int = 0
    record_socket: str = SOCKET
    environment: Mapping[str, str] = {}

    @property
    def pod_resources(self) -> Path:
        """The folder of the pod-resources socket."""
        return self.pod_resources_dir or self.kubelet_root / "pod-resources"

    @property
    def simulated_file(self) -> Path:
        """The file that keeps the simulated cards."""
        return self.simulated_state or self.state_dir / "simulated-cards.json"

    @property
    def kept_file(self) -> Path:
        """The part of the journal that stays with kept slices when Tessera leaves the node."""
        return self.state_dir / "kept-slices.json"

    @property
    def claims_file(self) -> Path:
        """The file of the prepared ResourceClaims."""
        return self.state_dir / "prepared-claims.json"

    @property
    def journal_file(self) -> Path:
        """The file of the journal."""
        return self.state_dir / "journal.json"


class AppliedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A sharing profile that was in force on this node.

    Attributes:
        name: its key in the ConfigMap; empty if no profile was selected.
        text: the file.
        profile: the parsed file.
    """

    name: str = ""
    text: str = ""
    profile: SharingProfile = SharingProfile()


class DesiredSharing(msgspec.Struct, frozen=True, kw_only=True):
    """The sharing profile that the node must follow.

    Attributes:
        name: its key in the ConfigMap; empty if none is selected, and then no card is shared.
        text: the file; passed back when the profile is in force.
        profile: the parsed file.
        reason: why this profile was selected, for people: ``the node's label nvidia.com/device-plugin.config``.
        problem: why the profile that the label asks for is not followed; ``None`` if this profile is the one.
        problem_reason: the same for machines: ``ProfileMissing``, ``ProfileRefused``, ``ProfilesUnreadable``.
        last: the profile that was in force before, in this process or an earlier one; ``None`` if none ever was. It is
            offered instead if the cards do not allow this profile and nothing is offered yet.
    """

    name: str = ""
    text: str = ""
    profile: SharingProfile = SharingProfile()
    reason: str = ""
    problem: str | None = None
    problem_reason: str | None = None
    last: AppliedProfile | None = None


class DesiredLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The MIG layout that the node must have.

    Attributes:
        name: its name in the label or the cluster's default; empty to leave the cards as they are. ``dynamic`` is no
            layout of a file.
        entries: the layout; ``None`` if no file has a layout of that name. That alone is no mistake, since many
            layouts exist without a file.
        reason: why this layout was selected, for people.
        is_default: true if it is the cluster's default, because the node itself asks for none.
        problem: why the files cannot be used, for people, with the path of each mistake; ``None`` if they can.
        problem_reason: the same for machines: ``LayoutsRefused``, ``LayoutAmbiguous``, ``LayoutsUnreadable``.
        closest: if no file has the layout, the most similar name in the files; may be empty.
        whole_by_claims: ResourceClaims get the cards that the layout leaves whole.
        sharing: the profile that divides these cards into shares; ``None`` if none does.
    """

    name: str = ""
    entries: tuple[LayoutEntry, ...] | None = None
    reason: str = ""
    is_default: bool = False
    problem: str | None = None
    problem_reason: str | None = None
    closest: str = ""
    whole_by_claims: bool = False
    sharing: SharingProfile | None = None


class ServicePlan(msgspec.Struct, frozen=True):
    """The process that must serve the shares of one resource, such as an MPS daemon.

    Attributes:
        devices: the share of one client on each card, by the card's UUID; in the order of the cards' indexes.
        replicas: number of clients of the card with most shares.
    """

    devices: Mapping[str, ClientShare]
    replicas: int

    @property
    def cards(self) -> tuple[str, ...]:
        """UUIDs of the cards that the process serves."""
        return tuple(self.devices)

    @property
    def thread_percent(self) -> int:
        """Percentage of a card's threads that one client may use."""
        return min(share.thread_percent for share in self.devices.values())


class ContainerEdits(msgspec.Struct, frozen=True):
    """Edits that a container of a resource gets in Allocate, besides its devices: variables, and host folders."""

    envs: Mapping[str, str]
    mounts: tuple[Mount, ...]
