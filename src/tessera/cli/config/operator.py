"""Explains settings of NVIDIA's gpu-operator as Tessera follows them: a values file, ClusterPolicy or NVIDIADriver."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.agent.health.policy import unknown_words
from tessera.api.documents import first_document
from tessera.api.names import MIG_CONFIG_LABEL, OWN_LAYOUTS, OWN_PROFILES, SYSTEM_NAMESPACE
from tessera.api.problems import FileRefused
from tessera.api.sharing.profile import PROFILE_LABEL
from tessera.cli.config.parts import PartReport, TrialNode, check_layouts, check_sharing, report_refused
from tessera.gpu_operator.driver_policy import DRIVER_ROOT, DriverPolicy, ImageSource, OperandSettings
from tessera.gpu_operator.embedded_values import find_values
from tessera.gpu_operator.policy_objects import DRIVER_KIND, POLICY_KIND, read_nvidia_driver
from tessera.gpu_operator.settings_reader import (
    OWN_KEY,
    NamedConfig,
    OperatorSettings,
    read_settings,
)
from tessera.text import count_noun

VALUES_KIND = "values of gpu-operator"

#: The choice for a node without a label if no default is set.
_NO_PROFILE = "the profile named default, or else the only one"
_NO_LAYOUT = "the cards stay as they are"


def check_operator(document: Mapping[str, Any], name: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    """Checks a parsed document, and the profiles and layouts in it."""
    kind = POLICY_KIND if document.get("kind") == POLICY_KIND else VALUES_KIND
    try:
        settings = read_settings(document, _drivers_choice(document))
    except FileRefused as refused:
        yield report_refused(name, kind, refused)
        return
    yield PartReport(name=name, kind=kind, means=tuple(_means(settings)), notices=tuple(_notices(settings)))
    for key, text in (settings.sharing.data or {}).items():
        document, notices = first_document(text)
        yield check_sharing(document, f"{settings.sharing.name}/{key}", nodes).with_notices(notices)
    for key, text in (settings.layouts.data or {}).items():
        document, notices = first_document(text)
        yield check_layouts(document, f"{settings.layouts.name}/{key}", nodes).with_notices(notices)


def check_embedded(document: Any, within: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    """Checks the values of NVIDIA's chart inside another document; yields nothing if it has none.

    Args:
        document: the loaded document.
        within: what precedes the path of the values in the name of their part.
        nodes: nodes for which the effect is shown.
    """
    try:
        found = find_values(document)
    except FileRefused as refused:
        yield report_refused(within.rstrip("/") or "file", VALUES_KIND, refused)
        return
    for each in found:
        name = f"{within}{each.path}"
        if not each.values:
            yield PartReport(name=name, kind=VALUES_KIND, used=False).with_notices(each.unread)
            continue
        first, *others = check_operator(each.values, name, nodes)
        yield first.with_notices(each.unread)
        yield from others


def _drivers_choice(document: Mapping[str, Any]) -> bool | None:
    """The value ``tessera.drivers`` of the chart: True to install, False for those of the hosts, None to decide."""
    own = document.get(OWN_KEY)
    choice = own.get("drivers") if isinstance(own, Mapping) and "kind" not in document else None
    return {"install": True, "host": False}.get(choice) if isinstance(choice, str) else None


def check_nvidia_driver(document: Mapping[str, Any], name: str) -> PartReport:
    """Checks a parsed NVIDIADriver."""
    try:
        read = read_nvidia_driver(document)
    except FileRefused as refused:
        return report_refused(name, DRIVER_KIND, refused)
    means = [_nodes_of(read.policy), *_driver_means(read.policy)]
    return PartReport(name=name, kind=DRIVER_KIND, means=tuple(means), notices=tuple(map(str, read.notices)))


def _nodes_of(policy: DriverPolicy) -> str:
    if policy.default:
        return "for the nodes that no other NVIDIADriver selects"
    labels = ", ".join(f"{key}={value}" for key, value in policy.node_selector.items())
    return f"for nodes with {labels}" if labels else "for all nodes"


def _driver_means(policy: DriverPolicy) -> Iterator[str]:
    """The driver, its container and its upgrades."""
    if not policy.enabled:
        yield "drivers: installed on the hosts, not by Tessera"
        return
    if policy.use_driver_crd:
        yield "drivers: set by NVIDIADriver objects"
    else:
        yield f"driver: {_image(policy)}"
        yield from _container_means(policy)
    upgrade = policy.upgrade
    if upgrade.auto_upgrade:
        yield (
            f"  upgrades change {count_noun(upgrade.canary, 'node')} first, then"
            f" {upgrade.max_parallel or 'all'} at a time, with at most {upgrade.max_unavailable} out of service;"
            f" they stop after {count_noun(upgrade.failure_budget, 'failed node')}"
        )
    if policy.mirrors:
        yield f"  also looked up in: {', '.join(policy.mirrors)}"
    if policy.build_repository:
        yield f"  built once for each kernel without an image, and pushed to {policy.build_repository}"
    if policy.kind == POLICY_KIND:
        yield f"container toolkit: {_toolkit(policy.toolkit)}"


def _container_means(policy: DriverPolicy) -> Iterator[str]:
    """The driver container's settings besides its image."""
    if policy.kernel_module_type != "auto":
        yield f"  with {policy.kernel_module_type} kernel modules"
    mofed = ", by the host's MOFED" if policy.rdma_host_mofed else ""
    if policy.rdma:
        yield f"  with modules for GPUDirect RDMA{mofed}"
    secrets = {"licensingConfig": policy.licensing_secret, "secretEnv": policy.secret_env}
    given = [f"{purpose} from ConfigMap {name}" for purpose, name in policy.config_maps.items()]
    given += [f"{purpose} from Secret {name}" for purpose, name in secrets.items() if name]
    if policy.env:
        given.append(f"env {', '.join(str(each['name']) for each in policy.env)}")
    given += [part for part in ("args", "resources") if getattr(policy, part)]
    if given:
        yield f"  with {', '.join(given)}"
    if policy.driver_root != DRIVER_ROOT:
        yield f"  its files are in {policy.driver_root}"
    if policy.startup_probe:
        probe = policy.startup_probe
        window = probe["initialDelaySeconds"] + probe["periodSeconds"] * probe["failureThreshold"]
        yield f"  has {window} s to start"


def _image(policy: DriverPolicy) -> str:
    source = policy.source
    if source.verbatim:
        return f"{source.image}, on every node"
    path = f"{source.repository}/{source.image}"
    if source.version.startswith("sha256:"):
        return f"{path}@{source.version}, on every node"
    if policy.use_precompiled:
        return (
            f"{path}:{source.version}-<kernel>-<os>, with precompiled kernel modules; built if there is no such image"
        )
    return f"{path}:{source.version}-<os>; the node compiles its kernel modules"


def _toolkit(toolkit: OperandSettings) -> str:
    if not toolkit.enabled:
        return "installed on the hosts, not by Tessera"
    return f"{_reference(toolkit.source)} in {toolkit.install_dir}"


def _reference(source: ImageSource) -> str:
    if source.verbatim:
        return source.image
    return f"{source.repository}/{source.image}{'@' if source.version.startswith('sha256:') else ':'}{source.version}"


def _means(settings: OperatorSettings) -> Iterator[str]:
    where = f"namespace {settings.namespace}" if settings.namespace else "the namespace of the installation"
    yield f"MIG strategy {settings.mig_strategy.value}"
    profiles, layouts = settings.sharing, settings.layouts
    yield f"sharing profiles: {_source(profiles, OWN_PROFILES, where)}"
    yield _describe_choice(profiles, PROFILE_LABEL, _NO_PROFILE)
    yield f"MIG layouts: {_source(layouts, OWN_LAYOUTS, where)}"
    yield _describe_choice(layouts, MIG_CONFIG_LABEL, _NO_LAYOUT)
    if settings.mig_reboot:
        yield "a node is rebooted if its layout cannot be changed otherwise"
    if settings.device_list_strategies:
        yield f"containers get their devices by {', '.join(settings.device_list_strategies)}"
    if settings.device_id_strategy:
        yield f"containers name each device by its {settings.device_id_strategy}"
    if settings.pass_device_specs:
        yield "answers to kubelet also list the device nodes"
    if settings.mps_root:
        yield f"folders of MPS daemons are in {settings.mps_root}"
    if settings.kubelet_root:
        yield f"kubelet's folder is {settings.kubelet_root}"
    for variable, value in settings.health.items():
        yield f"health checks follow {variable}={value}"
    for policy in settings.drivers:
        yield from _driver_means(policy)


def _notices(settings: OperatorSettings) -> Iterator[str]:
    yield from map(str, settings.notices)
    for variable, value in settings.health.items():
        for word in unknown_words(value):
            yield f'{variable}: "{word}" is ignored: it is not an XID; write numbers with commas, or all'


def _source(config: NamedConfig, own: str, where: str) -> str:
    if not config.name:
        return f"ConfigMap {own} in namespace {SYSTEM_NAMESPACE}, if it exists"
    return f"ConfigMap {config.name} in {where}{', made from config.data' if config.data else ''}"


def _describe_choice(config: NamedConfig, label: str, otherwise: str) -> str:
    return f"  chosen by the node label {label}; without it, {config.default or otherwise}"
