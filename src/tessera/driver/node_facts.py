"""Facts of a node that its driver depends on. Pure.

Rules:

1. Kubelet's report at boot wins over Node Feature Discovery's labels, which may be a minute old and from before an
   upgrade of the system. Labels fill in what kubelet does not report. Nothing waits for a label.
2. A node that lacks a fact is reported alone, with the fact; it holds up no other node.
3. Everybody may write labels: a value that cannot be part of an image's name counts as missing.
4. The agent's evidence counts: a driver that it found on the host is the host's, until a person says otherwise.
5. Kubelet reports the operating system as one line, ``PRETTY_NAME`` of os-release, at registration: up to a minute
   before Node Feature Discovery labels the node. Each row of a table turns the lines of one family of distributions
   back into the ``ID`` and ``VERSION_ID`` of image names. A line that matches no row is unknown, not guessed.

The upgrade state of a node is one of the facts: NVIDIA's label, and Tessera's record in an annotation.

A controller that restarts continues from the node: the label has the state, which other tools read, and the annotation
has the old and the new set. A state without a valid record is another tool's and is not continued.
"""

import re
from collections.abc import Mapping
from enum import Enum

import msgspec

from tessera.api.names import GPU_RESOURCES, MIG_RESOURCE_PREFIX
from tessera.api.nodes.node_cards import DEPLOY_OPERANDS_LABEL, VM_WORKLOADS, WORKLOAD_LABEL, brings_agent, is_gpu_node
from tessera.api.nodes.node_marks import (
    ADVERTISED_CONDITION,
    DRIVER_ANNOTATION,
    DRIVER_CONDITION,
    DRIVER_SET_LABEL,
    HOST_DRIVER_ANNOTATION,
    UPGRADE_SKIP_LABEL,
    UPGRADE_STATE_LABEL,
    WITHOUT_OPEN_DRIVER,
    is_marked_silent,
)
from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import openshift_release
from tessera.kube.resources import Condition, Node
from tessera.limits import ECHOED
from tessera.text import one_line

#: Most characters: a node's annotation with the record of a driver change. A record with the longest cause has a fourth
#: of it.
ROLLOUT_RECORD = 4_096


#: Annotations that NVIDIA's operator knows (k8s-operator-libs, pkg/upgrade/consts.go).
REQUESTED_ANNOTATION = "nvidia.com/gpu-driver-upgrade-requested"
INITIAL_ANNOTATION = "nvidia.com/gpu-driver-upgrade.node-initial-state.unschedulable"
#: Tells NVIDIA's driver manager, which may run before the driver container, not to evict pods itself.
ENABLED_ANNOTATION = "nvidia.com/gpu-driver-upgrade-enabled"

#: Annotation: Tessera cordoned the node and will uncordon it.
CORDONED_ANNOTATION = f"{DRIVER_ANNOTATION}-upgrade-cordoned"
#: Annotation: an :class:`UpgradeRecord` as JSON.
RECORD_ANNOTATION = f"{DRIVER_ANNOTATION}-upgrade"
#: Value of the label ``tessera.dev/driver-set`` while the old driver leaves: two drivers never run on one node.
CHANGING = "changing"


class UpgradeState(Enum):
    """Values of the label ``nvidia.com/gpu-driver-upgrade-state``."""

    NONE = ""
    REQUIRED = "upgrade-required"
    CORDON = "cordon-required"
    JOBS = "wait-for-jobs-required"
    PODS = "pod-deletion-required"
    DRAIN = "drain-required"
    RESTART = "pod-restart-required"
    VALIDATION = "validation-required"
    UNCORDON = "uncordon-required"
    DONE = "upgrade-done"
    FAILED = "upgrade-failed"

    @property
    def active(self) -> bool:
        """True if the upgrade is in progress; a failed node may be rolling back, see :class:`UpgradeRecord`."""
        return self not in {UpgradeState.NONE, UpgradeState.REQUIRED, UpgradeState.DONE, UpgradeState.FAILED}


class UpgradeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node's change of driver.

    Attributes:
        previous: the set that it had; empty if no rollback is possible, as after a boot into another kernel.
        target: the set that it gets, or that failed.
        since: when the state began, seconds since 1970.
        began: when the change began, seconds since 1970.
        deploy: earlier value of the label that pauses users of GPUs; empty if there was none.
        cause: why it failed; empty if it did not.
        occupied: it failed because pods with GPUs could not leave, which says nothing about the driver.
        requested: a person requested this node.
        offered: the node offered GPUs before, and should again.
        changed: the label of the driver set was removed from ``previous``.
        returning: the node goes back to ``previous``.
        restored: the node is back at ``previous``, and serves as before.
    """

    previous: str
    target: str
    since: float
    began: float
    deploy: str = ""
    cause: str = ""
    occupied: bool = False
    requested: bool = False
    offered: bool = False
    changed: bool = False
    returning: bool = False
    restored: bool = False

    @property
    def same_set(self) -> bool:
        """True if the node gets the driver again that it has."""
        return self.previous == self.target

    @property
    def blames_set(self) -> bool:
        """True if the failure says something about the set."""
        return not self.same_set and not self.occupied


def parse_upgrade_state(label: str) -> UpgradeState:
    """The state that a label names; unknown values count as no state."""
    try:
        return UpgradeState(label)
    except ValueError:
        return UpgradeState.NONE


def parse_upgrade_record(text: str) -> UpgradeRecord | None:
    """The record in an annotation; None if there is none, or it cannot be decoded."""
    if not text or len(text) > ROLLOUT_RECORD:
        return None
    try:
        return msgspec.json.decode(text, type=UpgradeRecord)
    except (msgspec.DecodeError, RecursionError):
        return None


def encode_upgrade_record(record: UpgradeRecord) -> str:
    """The annotation's value."""
    return msgspec.json.encode(record).decode()


def referenced_sets(label: str, record: UpgradeRecord | None) -> frozenset[str]:
    """The driver sets that a node refers to: its set, and those that it may change to or go back to.

    Their DaemonSets must stay, or no rollback would be possible.
    """
    named = {label, *((record.previous, record.target) if record is not None else ())}
    return frozenset(named - {"", CHANGING})


#: Most characters: a node's osImage; the rest is not read. Kubelet's are below 100; regular expressions read it.
OS_IMAGE = 200

_NFD = "feature.node.kubernetes.io/system-os_release."

#: Labels of NVIDIA's operator that keep a node's driver unchanged.
DEPLOY_DRIVER_LABEL = "nvidia.com/gpu.deploy.driver"
PREINSTALLED = "pre-installed"

#: Systems whose driver is part of the system: they refuse or replace a driver from a container.
_SYSTEM_DRIVERS = {
    "bottlerocket": "Bottlerocket has its driver in the nvidia variants of its image",
    "talos": "Talos loads drivers as system extensions only",
    "cos": "Container-Optimized OS gets its driver from GKE's installer",
}

#: Characters that a tag may have.
_TAG_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")


class OsRelease(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of os-release that matter here.

    Attributes:
        id: its ``ID``.
        version: its ``VERSION_ID``.
        ostree: its ``OSTREE_VERSION``, on RHCOS only; the tag of Driver Toolkit images.
    """

    id: str
    version: str
    ostree: str = ""


def parse_os_image(text: str) -> OsRelease | None:
    """The operating system behind ``status.nodeInfo.osImage``; None if the text matches no known system."""
    for pattern, os_id in _TABLE:
        found = pattern.match(text[:OS_IMAGE])
        if found is not None and os_id == "rhcos":
            return _coreos(found)
        if found is not None:
            return OsRelease(id=os_id, version=".".join(filter(None, found.groups())))
    return None


def _coreos(found: re.Match[str]) -> OsRelease:
    """RHCOS: ``415.92.…`` is OpenShift 4.15 on RHEL 9.2, with ``ID=rhcos``; ``9.6.…``, since 4.19, has ``ID=rhel``."""
    release = openshift_release(found[1])
    if release:
        return OsRelease(id="rhcos", version=release, ostree=found[1])
    return OsRelease(id="rhel", version=found[2], ostree=found[1])


#: Patterns of the text, and ``ID``; the groups of a pattern, joined by points, are ``VERSION_ID`` (but see _coreos).
_TABLE = tuple(
    (re.compile(pattern), os_id)
    for pattern, os_id in (
        # "Ubuntu 22.04.4 LTS": VERSION_ID has no point release.
        (r"Ubuntu (?:Core )?(\d\d\.\d\d)\b", "ubuntu"),
        # "Red Hat Enterprise Linux CoreOS 415.92.202402130021-0 (Plow)", "… CoreOS 9.8.20260817-0 (Plow)".
        (r"Red Hat Enterprise Linux CoreOS ((\d+\.\d+)\.[\w.-]+)", "rhcos"),
        (r"Red Hat Enterprise Linux(?: Server)? (\d+(?:\.\d+)?)\b", "rhel"),
        (r"Rocky Linux (\d+(?:\.\d+)?)\b", "rocky"),
        (r"AlmaLinux (\d+(?:\.\d+)?)\b", "almalinux"),
        (r"Oracle Linux Server (\d+(?:\.\d+)?)\b", "ol"),
        (r"CentOS (?:Linux|Stream) (\d+)\b", "centos"),
        # "Fedora CoreOS 35.20220424.3.0": ID is fedora and VERSION_ID 35.
        (r"Fedora (?:CoreOS|Linux) (\d+)\b", "fedora"),
        (r"Debian GNU/Linux (\d+)\b", "debian"),
        (r"SUSE Linux Enterprise Server (\d+)(?: SP(\d+))?", "sles"),
        (r"SUSE Linux Enterprise Micro (\d+\.\d+)", "sle-micro"),
        (r"SUSE Linux Micro (\d+\.\d+)", "sl-micro"),
        (r"openSUSE Leap (\d+\.\d+)", "opensuse-leap"),
        # "Amazon Linux 2", "Amazon Linux 2023.4.20240528": VERSION_ID is the first number.
        (r"Amazon Linux (\d+)\b", "amzn"),
        (r"Bottlerocket OS (\d+\.\d+\.\d+)", "bottlerocket"),
        (r"Talos \((v[\w.-]+)\)", "talos"),
        (r"Flatcar Container Linux by Kinvolk (\d+\.\d+\.\d+)", "flatcar"),
        (r"Garden Linux (\d+(?:\.\d+)*)", "gardenlinux"),
        (r"Microsoft Azure Linux (\d+\.\d+)", "azurelinux"),
        (r"Container-Optimized OS from Google", "cos"),
    )
)


class AgentsWord(Enum):
    """What the agent of a node says of the driver there, apart from the host's (``preinstalled``)."""

    WITHOUT_DRIVER = "none is open"  # also where no agent is to come
    WITH_DRIVER = "one is open"
    NONE_YET = "it has not said anything yet"
    SILENT = "it is silent now"


class DriverNodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a node that its driver depends on.

    Attributes:
        name: name of the node.
        uid: UID of its Node object.
        version: its resourceVersion.
        is_gpu: True if anything indicates that it has a GPU.
        pool: the pool of images that fit; None if a fact is missing.
        missing: a sentence for each missing fact.
        preinstalled: why its driver counts as the host's; empty if nothing indicates that.
        opted_out: why Tessera leaves its driver alone; empty if it does not.
        driver_set: the driver set that its label names; empty for none.
        offers_gpus: its kubelet offers GPUs to pods.
        ready: its condition Ready is True.
        unschedulable: it is cordoned.
        boot_id: changes with every boot.
        created: time of its registration, RFC 3339.
        runtime: ``containerd``, ``cri-o`` or ``docker``; empty if unknown.
        labels: all labels.
        agent: what its agent says of a driver.
        upgrade_state: the label of an upgrade in progress; empty for none.
        record_annotation: the annotation with the rollout's record, not decoded.
        status_annotation: the annotation with its driver's status, not decoded.
        condition: the condition of its driver; None if there is none.
    """

    name: str
    uid: str
    version: str = ""
    is_gpu: bool
    pool: PoolKey | None
    missing: tuple[str, ...] = ()
    preinstalled: str = ""
    opted_out: str = ""
    driver_set: str = ""
    offers_gpus: bool = False
    ready: bool = False
    unschedulable: bool = False
    boot_id: str = ""
    created: str = ""
    runtime: str = ""
    labels: Mapping[str, str] = {}
    agent: AgentsWord = AgentsWord.WITHOUT_DRIVER
    upgrade_state: str = ""
    record_annotation: str = ""
    status_annotation: str = ""
    condition: Condition | None = None

    @property
    def has_traces(self) -> bool:
        """True if Tessera has brought a driver to it, or has said why not."""
        texts = self.driver_set or self.record_annotation or self.status_annotation
        return bool(texts) or self.condition is not None


def read_node_facts(node: Node) -> DriverNodeFacts:
    """Reads the facts from a Node object."""
    labels, info = node.metadata.labels, node.status.node_info
    pool, missing = _pool(node)
    return DriverNodeFacts(
        name=node.metadata.name,
        uid=node.metadata.uid,
        version=node.metadata.resource_version,
        is_gpu=is_gpu_node(labels),
        pool=pool,
        missing=missing,
        preinstalled=_preinstalled_reason(node),
        opted_out=opt_out_reason(labels),
        driver_set=labels.get(DRIVER_SET_LABEL, ""),
        offers_gpus=counts_gpus(node.status.allocatable),
        ready=node.status.is_ready,
        unschedulable=node.spec.unschedulable,
        boot_id=info.boot_id,
        created=node.metadata.creation_timestamp or "",
        runtime=info.container_runtime_version.partition("://")[0],
        labels=labels,
        upgrade_state=labels.get(UPGRADE_STATE_LABEL, ""),
        record_annotation=node.metadata.annotations.get(RECORD_ANNOTATION, ""),
        status_annotation=node.metadata.annotations.get(DRIVER_ANNOTATION, ""),
        condition=node.status.condition(DRIVER_CONDITION),
        agent=_agents_word(node),
    )


def counts_gpus(quantities: Mapping[str, str]) -> bool:
    """True if a node's allocatable resources, or the requests of a container, have GPUs or parts of them."""
    return any(
        name.startswith((GPU_RESOURCES[0], MIG_RESOURCE_PREFIX)) and count != "0" for name, count in quantities.items()
    )


def _agents_word(node: Node) -> AgentsWord:
    said = node.status.condition(ADVERTISED_CONDITION)
    if said is None:
        return AgentsWord.NONE_YET if brings_agent(node.metadata.labels) else AgentsWord.WITHOUT_DRIVER
    if is_marked_silent(said):
        return AgentsWord.SILENT
    closed = said.status != "True" and said.reason in WITHOUT_OPEN_DRIVER
    return AgentsWord.WITHOUT_DRIVER if closed else AgentsWord.WITH_DRIVER


def equal_except_version(first: DriverNodeFacts, second: DriverNodeFacts) -> bool:
    """True if two versions of a node have equal facts; a heartbeat changes only its resourceVersion."""
    return msgspec.structs.replace(first, version="") == msgspec.structs.replace(second, version="")


def page_kib(kernel: str) -> int:
    """Size of a kernel's memory page in KiB: 64 if its name ends so (``+64k``, ``_64k``, ``-64k``), else 4."""
    return 64 if kernel.endswith(("+64k", "_64k", "-64k")) else 4


def _pool(node: Node) -> tuple[PoolKey | None, tuple[str, ...]]:
    labels, info = node.metadata.labels, node.status.node_info
    system = _system(labels, info.os_image)
    architecture = info.architecture or labels.get("kubernetes.io/arch", "")
    image = repr(info.os_image[:ECHOED])
    parts = {
        "the kernel's version (status.nodeInfo.kernelVersion)": info.kernel_version,
        "the architecture (status.nodeInfo.architecture)": architecture,
        f"the operating system (labels {_NFD}ID and VERSION_ID; osImage is {image})": system.id,
        f"the operating system's version (label {_NFD}VERSION_ID; osImage is {image})": system.version,
    }
    missing = tuple(
        f"{name} is {'missing' if not value else f'{value[:ECHOED]!r}, which cannot be part of the name of an image'}"
        for name, value in parts.items()
        if not _TAG_PART.fullmatch(value)
    )
    if missing:
        return None, missing
    return PoolKey(
        os_id=system.id,
        os_version=system.version,
        kernel=info.kernel_version,
        architecture=architecture,
        page_kib=page_kib(info.kernel_version),
        ostree=system.ostree if _TAG_PART.fullmatch(system.ostree) else "",
    ), ()


def _system(labels: Mapping[str, str], os_image: str) -> OsRelease:
    """The system from kubelet's text if that is known and has a version, else from NFD's labels."""
    parsed = parse_os_image(os_image)
    if parsed is not None and parsed.version:
        return parsed
    labelled = {name: labels.get(_NFD + name, "") for name in ("ID", "VERSION_ID", "OSTREE_VERSION")}
    os_id = labelled["ID"] or (parsed.id if parsed is not None else "")
    return OsRelease(id=os_id, version=labelled["VERSION_ID"], ostree=labelled["OSTREE_VERSION"])


def _preinstalled_reason(node: Node) -> str:
    labels = node.metadata.labels
    if labels.get(DEPLOY_DRIVER_LABEL) == PREINSTALLED:
        return f"its label {DEPLOY_DRIVER_LABEL} is {PREINSTALLED}"
    version = node.metadata.annotations.get(HOST_DRIVER_ANNOTATION, "")
    if version and not labels.get(DRIVER_SET_LABEL):
        found = f"its agent found {one_line(version, ECHOED)} there"
        if _agents_word(node) is not AgentsWord.WITHOUT_DRIVER:
            return found
        remove = f"kubectl annotate node {node.metadata.name} {HOST_DRIVER_ANNOTATION}-"
        return f"{found}, and does not find it now; if the host is to have none, let Tessera install one: {remove}"
    return _SYSTEM_DRIVERS.get(_system(labels, node.status.node_info.os_image).id, "")


def opt_out_reason(labels: Mapping[str, str]) -> str:
    """Reason that a label, which people set, keeps Tessera from a node's driver; empty if no label does."""
    for name in (DEPLOY_OPERANDS_LABEL, DEPLOY_DRIVER_LABEL):
        if labels.get(name) == "false":
            return f"its label {name} is false"
    workload = labels.get(WORKLOAD_LABEL, "")
    if workload in VM_WORKLOADS:
        return f"its label {WORKLOAD_LABEL} is {workload}, and containers get no cards there"
    return ""


def skip_reason(labels: Mapping[str, str]) -> str:
    """Reason that a label keeps a node from a rollout: its driver stays as it is; empty if no label does."""
    if labels.get(UPGRADE_SKIP_LABEL) == "true":
        return f"label {UPGRADE_SKIP_LABEL}=true keeps it out"
    return opt_out_reason(labels)
