"""The names of resources, labels and annotations on pods, nodes and our objects.

The ``instaslice.redhat.com`` names are those of the dynamic accelerator slicer (v0.0.2), so that manifests, quotas and
scripts written for it work unchanged; ``nvidia.com`` names are those of NVIDIA's device plugin and MIG manager. Our own
names live under ``tessera.dev``.
"""

from collections.abc import Mapping
from typing import NewType

PodUid = NewType("PodUid", str)
GpuUuid = NewType("GpuUuid", str)
NodeName = NewType("NodeName", str)

#: Beginning of the names of Tessera's own labels and annotations.
OWN_DOMAIN = "tessera.dev/"
#: Scheduling gate of a pod that waits for a slice.
GATE = "instaslice.redhat.com/accelerator"
#: Label of a namespace, or of a pod, that names its queue.
QUEUE_LABEL = "tessera.dev/queue"
#: Label of a pod, or of an object with pods, that names its queue of Kueue.
KUEUE_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
#: The label of a namespace that the API server sets to its name.
NAME_LABEL = "kubernetes.io/metadata.name"
#: Label of a namespace whose pods with whole cards or shares Tessera places, if its value is the second.
PLACEMENT_LABEL, PLACEMENT_MANAGED = "tessera.dev/placement", "managed"
#: Gates whose owner removes them only when they are the last, each with the API group of its owner: without the group
#: nobody removes the gate. Tessera goes first, or both would wait for ever. The gate of KAI's queues (KAI Scheduler,
#: design of queue admission).
LAST_GATES = {"kai.scheduler/queue-admission": "scheduling.run.ai"}
#: Annotation by which a pod lets its page of metrics be read, as many Prometheuses do; its value is "true".
SCRAPE_ANNOTATION = "prometheus.io/scrape"
#: Annotation of a pod that may be ended and made anew elsewhere so that another pod gets room; its value is "true".
MOVABLE_ANNOTATION = "tessera.dev/movable"
#: A pod that lends its slice to the pod that owns it, from the next start of that pod's container on: its name.
LENDS_ANNOTATION = "tessera.dev/lends-to"
#: Label by KServe: the LocalModelCache with a pod's model (``pkg/constants/constants.go``).
MODEL_LABEL = "internal.serving.kserve.io/localmodel"
#: On a pod, ``"true"``: it only keeps room, and ends when a pod of higher priority waits for its slices or cards.
YIELDS_ANNOTATION = "tessera.dev/yields"
#: Annotation of a pod: what happens to the slots of an old pod of its Deployment when this one has no room.
UPDATE_ANNOTATION = "tessera.dev/update"
#: Its one value: an old pod is evicted, and this one gets its slots.
HAND_OVER = "hand-over"
#: Label of each pod of a StatefulSet; Kubernetes sets it.
STATEFUL_SET_POD_LABEL = "statefulset.kubernetes.io/pod-name"
#: Condition of a pod whose promised slices were taken back; the controller writes it.
SLICE_CONDITION = "tessera.dev/SliceAvailable"
#: Condition of a pod that waits for slices: its position, and when it starts; the controller writes it.
SLICE_PROMISED_CONDITION = "tessera.dev/SlicePromised"
#: Condition of a pod on a card that has, or had, a fault, and its reason once the fault is over; the agent writes it.
GPU_CONDITION, GPU_RECOVERED = "tessera.dev/GpuHealthy", "GpuRecovered"
#: Field manager of this condition: kubelet, the scheduler and the controller own the pod's other ones.
POD_HEALTH_MANAGER = "tessera-agent-health"
#: Its reasons for a pod on a card that must be empty: to be reset, or for a reboot of the node.
GPU_NEEDS_RESET, GPU_NEEDS_REBOOT = "GpuNeedsReset", "GpuNeedsReboot"
#: Annotation of a pod: seconds for which it stays on such a card before it is evicted.
FAULT_TOLERATION = "tessera.dev/fault-toleration-seconds"
#: Label, or else annotation, of a pod that names its user in ``tessera usage``; an option can name another.
USER_KEY = "tessera.dev/user"
#: Annotation of a pod: its own lower limit in bytes on each shared card, a Kubernetes quantity.
MEMORY_LIMIT_ANNOTATION = "tessera.dev/memory-limit"
#: Annotation of a pod: with ``off`` neither the pod nor its processes are ended for taking too much memory.
MEMORY_ENFORCEMENT_ANNOTATION = "tessera.dev/memory-enforcement"
#: Annotation of a Node, by its agent: the id of the boot that is to end, since a card needs a reboot.
REBOOT_REQUESTED = "tessera.dev/reboot-requested"
#: Annotation of a pod: ``true`` to have its cards tested before its first container starts.
POD_PREFLIGHT = "tessera.dev/require-preflight"
#: Extended resource that counts a pod's slices in Gi of GPU memory, for ResourceQuota and Kueue.
QUOTA_RESOURCE = "instaslice.redhat.com/accelerator-memory-quota"
#: Namespace of the Instaslice objects; fixed by the format that users read.
INSTASLICE_NAMESPACE = "instaslice-system"

MIG_RESOURCE_PREFIX = "nvidia.com/mig-"
#: Names of NVIDIA's resources in other slicers: DAS, and InstaSlice v0.0.2 on nodes and in pods that it changed.
OTHER_PREFIXES = ("mig.das.com/", "instaslice.redhat.com/mig-")
#: Annotation of a pod with whole cards or shares that Tessera has pinned: its own UID, which no author of a pod knows.
PINNED_ANNOTATION = "tessera.dev/pinned"
#: Whole cards, and cards shared by time or by MPS. An older sharing profile has shares under the first name too.
WHOLE_CARDS = "nvidia.com/gpu"
SHARED_CARDS = "nvidia.com/gpu.shared"
GPU_RESOURCES = (WHOLE_CARDS, SHARED_CARDS)
#: A whole card that goes to ResourceClaims, where a slice has its profile. No container requests it: a pod that
#: requests :data:`WHOLE_CARDS` never gets such a card.
CLAIMED_CARD = "tessera.dev/gpu"

#: Asks for a MIG layout of a node; the value :data:`MIG_CONFIG_DYNAMIC` gives the node's cards to on-demand slicing.
MIG_CONFIG_LABEL = "nvidia.com/mig.config"
MIG_CONFIG_STATE_LABEL = "nvidia.com/mig.config.state"
#: Label of a node on which MPS daemons run or must run: the nodes of the DaemonSet tessera-mps.
MPS_HOST_LABEL = "tessera.dev/mps"
#: Label of a node: how pods get the slices of its cards that are cut on demand, where the installation serves
#: ResourceClaims. With ``dra`` by claim alone; with any other value, or none, by the device plugin alone.
DEVICE_API_LABEL, DEVICE_API_DRA = "tessera.dev/device-api", "dra"
#: Drivers of ResourceClaims that an installation can have: ours, and the name of NVIDIA's, whose place it takes.
CLAIM_DRIVERS = ("gpu.tessera.dev", "gpu.nvidia.com")
#: Name of the ConfigMap, in Tessera's namespace, and its key.
NODE_GROUPS_MAP, NODE_GROUPS_KEY = "tessera-node-groups", "groups.yaml"
#: Name of the ConfigMap, in Tessera's namespace, and its key.
REPAIRS_MAP, REPAIRS_KEY = "tessera-repairs", "repairs.yaml"
#: Who places ResourceClaims: Tessera's controller, or kube-scheduler's own allocator. The first is the default.
CLAIM_PLACEMENTS = ("controller", "scheduler")
MIG_CONFIG_DYNAMIC = "dynamic"
#: Value of the state label of a node that does not have its requested layout.
MIG_CONFIG_FAILED = "failed"
HOSTNAME_LABEL = "kubernetes.io/hostname"

#: URI scheme of a simulated kubelet's container runtime, by which a lab's node is recognised.
SIMULATED_RUNTIME = "simulated://"
#: End of the ``gitVersion`` of a lab's API server, and of one with virtual time, which only labs have.
LAB_SUFFIX = "+tessera-lab"
VIRTUAL_TIME_SUFFIX = f"{LAB_SUFFIX}.virtual-time"

#: The devices that NVIDIA's container runtime gives to a container.
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
#: Environment by which a container would choose its devices itself, bypassing the device plugin.
DEVICE_ENV = (VISIBLE_DEVICES, "CUDA_VISIBLE_DEVICES")

#: The admission policy of pods that use GPUs without a request (``deploy/policies/pods.yaml``), and the label with its
#: value by which an administrator exempts a namespace from it.
DEVICE_ACCESS_POLICY = "tessera-device-access"
DEVICE_ACCESS_LABEL, DEVICE_ACCESS_ALLOWED = "tessera.dev/device-access", "allowed"
#: Tessera's namespace, and its own ConfigMaps of sharing profiles and MIG layouts there.
SYSTEM_NAMESPACE = "tessera-system"
#: The image of containers that do nothing: of placeholders, and of pods that lend a slice. Most nodes have it already.
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
OWN_PROFILES, OWN_LAYOUTS = "sharing-profiles", "mig-layouts"
#: Namespaces of Kubernetes itself: nobody can create one, since the API server makes them, and makes them anew. Their
#: pods are not evicted. A name that others can take, such as one that begins with ``kube-``, spares nobody.
SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease"})
#: Usual namespaces of add-ons that own their nodes (networks, storage, NVIDIA's operators). They get the label when
#: Tessera comes, if they exist then; the controller's role names them too (``deploy/rbac.yaml``).
ADD_ONS = (
    "calico-system",
    "cilium",
    "gpu-operator",
    "kube-flannel",
    "longhorn-system",
    "node-feature-discovery",
    "nvidia-gpu-operator",
    "nvidia-network-operator",
    "openebs",
    "rook-ceph",
    "tigera-operator",
)

#: Parts of names that may mean a GPU.
_GPU_LIKE = ("gpu", "GPU", "mig-", "mig.", "MIG", "cuda")

#: Class of the CDI devices that the agent writes.
CDI_KIND = "tessera.dev/mig"


def is_on_demand(layout: str) -> bool:
    """True if a layout gives cards to on-demand slicing: ``dynamic`` all, ``dynamic-<name>`` those it leaves uncut."""
    return layout == MIG_CONFIG_DYNAMIC or layout.startswith(MIG_CONFIG_DYNAMIC + "-")


def gives_by_claims(labels: Mapping[str, str]) -> bool:
    """True if a node with these labels gives its slices on demand by ResourceClaims alone."""
    return labels.get(DEVICE_API_LABEL) == DEVICE_API_DRA


def resource_of(profile: str) -> str:
    """Returns the extended resource of a profile: ``nvidia.com/mig-1g.5gb.me`` for ``1g.5gb+me``."""
    return MIG_RESOURCE_PREFIX + profile.replace("+", ".")


def profile_of(resource: str) -> str:
    """Returns the profile of a MIG resource in the resource's spelling (``1g.5gb.me``); empty for any other."""
    return resource.removeprefix(MIG_RESOURCE_PREFIX) if resource.startswith(MIG_RESOURCE_PREFIX) else ""


def suggest_resource(resource: str) -> str:
    """Returns our name (``nvidia.com/mig-1g.5gb``) of another slicer's (``mig.das.com/1g.5gb``); else empty."""
    for prefix in OTHER_PREFIXES:
        if resource.startswith(prefix):
            name = resource.removeprefix(prefix).removeprefix("mig-").replace("-plus-", "+")
            return resource_of(name) if name[:1].isdecimal() else f"nvidia.com/{name}"
    return ""


def is_gpu_like(resource: str) -> bool:
    """True if a name may mean a GPU or a part of one. The conditions of deploy/admission.yaml say the same."""
    return resource.startswith("nvidia") or any(part in resource for part in _GPU_LIKE)


def device_id(gpu: str, profile: str, start: int) -> str:
    """Returns the device plugin's ID of a position: card, profile in the resource's spelling, first memory slot."""
    return f"{gpu}:{profile.replace('+', '.')}:{start}"
