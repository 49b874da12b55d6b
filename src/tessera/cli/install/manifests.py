"""The objects of an installation: those of ``deploy/``, changed by the user's choices.

Rules:

- without choices they are exactly the objects of ``kubectl apply -k deploy/``;
- settings of the agents (ConfigMaps, defaults, strategies) become arguments of their container; the choice of errors
  that make a card unhealthy becomes its environment, as in NVIDIA's device plugin;
- the agents may list and watch exactly the ConfigMaps that they follow: one Role for each namespace;
- they may evict pods only if the user chose so;
- pods that use GPUs without a request are refused, admitted with a warning, or admitted; namespaces may be exempt;
- the webhook's port is open to all addresses, or only to those of the API servers;
- protections are left out if the user says so, and the webhook's certificate is its own or cert-manager's
  (:mod:`tessera.cli.install.variants`);
- on OpenShift, pods get rights to its security context constraints;
- the controller gets the site's options about registries, new nodes and builds, and the certificate authorities of
  its registries: a ConfigMap, mounted into its pod. The controller reads that file when it starts, so an annotation of
  the pod holds the certificates' hash (as Helm charts do): other certificates start another pod;
- the groups of new nodes that an autoscaler can make are a ConfigMap, which controller and webhook follow; what is done
  about cards with faults is one, which controller and agents follow;
- the ClusterPolicy and NVIDIADriver come last, when the processes that follow them exist. If the user asked for
  drivers, an annotation of the ClusterPolicy makes Tessera responsible, even if another operator wrote its status.

This module reads no file and no cluster.
"""

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import (
    CLAIM_PLACEMENTS,
    DEVICE_ACCESS_POLICY,
    NODE_GROUPS_KEY,
    NODE_GROUPS_MAP,
    OWN_LAYOUTS,
    OWN_PROFILES,
    REPAIRS_KEY,
    REPAIRS_MAP,
    SYSTEM_NAMESPACE,
)
from tessera.cli.install.variants import CERT_MANAGER, OWN, with_cert_manager, without_protections
from tessera.gpu_operator.driver_policy import DRIVERS_ANNOTATION, DRIVERS_MANAGED
from tessera.gpu_operator.policy_objects import POLICY_KIND
from tessera.gpu_operator.settings_reader import NamedConfig, OperatorSettings

#: The ConfigMap of authorities and its key. Builds mount it too, and trust its keys ``*.crt``.
CONFIG_MAP = "tessera-registry-ca"
KEY = "ca.crt"

_VOLUME = "registry-ca"
_FOLDER = "/etc/tessera/registry-ca"
_CHECKSUM = "checksum/registry-ca"


def file_map(name: str, key: str, text: str) -> dict[str, Any]:
    """A ConfigMap in Tessera's namespace with one key."""
    metadata = {"name": name, "namespace": SYSTEM_NAMESPACE, "labels": {"app.kubernetes.io/part-of": "tessera"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {key: text}}


def builds_mount_it(manifest: Mapping[str, Any]) -> bool:
    """Returns True for the controller's Deployment if its arguments let builds trust this ConfigMap."""
    if manifest["kind"] != "Deployment":
        return False
    containers = manifest["spec"]["template"]["spec"]["containers"]
    return any(f"--build-ca-config-map={CONFIG_MAP}" in each.get("args", ()) for each in containers)


def trust_authorities(template: Mapping[str, Any], authorities: str) -> dict[str, Any]:
    """A pod template whose only container mounts the certificates and has their path as an argument."""
    changed = copy.deepcopy(dict(template))
    pod = changed["spec"]
    (container,) = pod["containers"]
    container["args"] = [*container.get("args", ()), f"--registry-ca={_FOLDER}/{KEY}"]
    mount = {"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True}
    container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
    pod["volumes"] = [*pod.get("volumes", ()), {"name": _VOLUME, "configMap": {"name": CONFIG_MAP}}]
    checksum = hashlib.sha256(authorities.encode()).hexdigest()
    changed["metadata"]["annotations"] = {**changed["metadata"].get("annotations", {}), _CHECKSUM: checksum}
    return changed


Manifest = dict[str, Any]

AGENT = "tessera-agent"
CONTROLLER = "tessera-controller"
WEBHOOK = "tessera-webhook"
DASHBOARD = "tessera-dashboard"
_KEDA_PORT = "--keda-port="
MPS_HOST = "tessera-mps"
#: The Role, and its binding, that let the agents read the ConfigMaps that they follow.
CONFIG_ROLE = "tessera-agent-config"
#: The Role that lets the controller read image pull secrets, by name.
PULL_SECRETS_ROLE = "tessera-controller-pull-secrets"
#: Volumes of the agents' pods. Those of MPS have other paths in the container than on the host; the last has the same.
MPS_VOLUME = "mps"
MPS_MEMORY_VOLUME = "mps-shm"
POD_RESOURCES_VOLUME = "pod-resources"
#: Volume with the driver container's files; host and container have the same path.
DRIVER_VOLUME = "driver"
#: Kubelet's folder, unless the settings have another.
KUBELET_ROOT = "/var/lib/kubelet"

BINDING_KIND = "ValidatingAdmissionPolicyBinding"
#: Actions of a binding that only warns.
WARNING = ("Warn", "Audit")
_RBAC = "rbac.authorization.k8s.io"
_LABELS = {"app.kubernetes.io/part-of": "tessera"}


class InstallChoices(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choices.

    Attributes:
        settings: settings of NVIDIA's operator; None leaves the agents as in ``deploy/``.
        namespace: namespace of the ConfigMaps that the settings name.
        image: image of all pods; empty for the image of ``deploy/``.
        evict: True if the agents evict pods that a layout has to wait for.
        metrics_access: who reads the metrics of agents and controller: ``reviewed``, ``open``.
        memory_limits: the agents' ``--memory-limits``; empty for their default.
        simulate: cards that each agent simulates; empty for the node's own cards.
        claim_driver: driver of ResourceClaims, one of :data:`~tessera.api.names.CLAIM_DRIVERS`; empty for none.
        claim_placement: who places them, one of :data:`~tessera.api.names.CLAIM_PLACEMENTS`.
        drivers: the ClusterPolicy and NVIDIADriver by which Tessera installs drivers; empty to use the hosts' drivers.
        ask_for_drivers: True for ``--drivers``, False for ``--no-drivers``, None without either.
        replace_failed: the most nodes of a group that the controller replaces in an hour; 0 for none.
        site: the controller's options about registries, new nodes and builds of driver images.
        authorities: certificate authorities of registries, PEM; empty for the system's only.
        node_groups: the file of groups of new nodes that an autoscaler can make; empty for none.
        repairs: the file of what is done about cards with faults; empty for the default.
        device_access: ``deny``, ``warn`` or ``off``, for pods that use GPUs without a request.
        device_namespaces: namespaces that are exempt, besides those of ``deploy/``.
        pull_secrets: image pull secrets that the controller may read, besides those that ``drivers`` name.
        api_servers: addresses of the API servers as CIDRs; empty leaves the webhook's port open to all addresses.
        without: protections to leave out.
        certificate: ``own`` or ``cert-manager``, for the webhook's certificate.
        issuer: kind and name of cert-manager's issuer; None for an authority of Tessera's own.
        openshift: True if the cluster has OpenShift's security context constraints; None to ask it.
        dashboard: True for the live page and the API for tenants, a process of the cluster.
        page: arguments of that process besides those of ``deploy/``.
    """

    settings: OperatorSettings | None = None
    namespace: str = SYSTEM_NAMESPACE
    image: str = ""
    evict: bool = False
    metrics_access: str = "reviewed"
    memory_limits: str = ""
    simulate: str = ""
    claim_driver: str = ""
    claim_placement: str = CLAIM_PLACEMENTS[0]
    drivers: Sequence[Manifest] = ()
    ask_for_drivers: bool | None = None
    replace_failed: int = 0
    site: Sequence[str] = ()
    authorities: str = ""
    node_groups: str = ""
    repairs: str = ""
    device_access: str = "deny"
    device_namespaces: Sequence[str] = ()
    pull_secrets: Sequence[str] = ()
    api_servers: Sequence[str] = ()
    without: Sequence[str] = ()
    certificate: str = OWN
    issuer: tuple[str, str] | None = None
    openshift: bool | None = None
    dashboard: bool = True
    page: Sequence[str] = ()

    @property
    def may_evict(self) -> bool:
        """True if the agents need the right to evict pods."""
        return self.evict or self.memory_limits == "evict"

    def place(self, config: NamedConfig, own: str) -> tuple[str, str]:
        """Namespace and name of a ConfigMap; ``own`` is the name of Tessera's, used if the settings name none."""
        return (self.namespace, config.name) if config.name else (SYSTEM_NAMESPACE, own)

    @property
    def followed(self) -> Sequence[tuple[str, str]]:
        """The ConfigMaps that the agents follow, profiles first."""
        settings = self.settings
        sharing, layouts = (settings.sharing, settings.layouts) if settings else (NamedConfig(), NamedConfig())
        return [self.place(sharing, OWN_PROFILES), self.place(layouts, OWN_LAYOUTS)]


def manifests(
    base: Sequence[Manifest],
    eviction: Sequence[Manifest],
    choices: InstallChoices,
    replacing: Sequence[Manifest] = (),
    *,
    constraints: Sequence[Manifest] = (),
    certificates: Sequence[Manifest] = (),
    dashboard: Sequence[Manifest] = (),
    claims: Sequence[Manifest] = (),
) -> list[Manifest]:
    """All objects in the order in which they are applied.

    Args:
        base: the objects of ``deploy/``; not changed.
        eviction: the objects of ``deploy/options/evict.yaml``.
        choices: the user's choices.
        replacing: the objects of ``deploy/options/replace.yaml``.
        constraints: the objects of ``deploy/options/openshift/constraints.yaml``.
        certificates: the objects of ``deploy/options/cert-manager/certificates.yaml``.
        dashboard: the objects of ``deploy/options/dashboard/dashboard.yaml``.
        claims: the objects of ``deploy/options/claims.yaml``.
    """
    objects = without_protections(copy.deepcopy(list(base)), choices.without)
    if choices.certificate == CERT_MANAGER:
        objects = with_cert_manager(objects, certificates, choices.issuer)
    objects = [
        each for each in objects if choices.device_access != "off" or each["metadata"]["name"] != DEVICE_ACCESS_POLICY
    ]
    if choices.settings is not None:
        objects = [each for each in objects if each["metadata"]["name"] != CONFIG_ROLE]
        after = max(n for n, each in enumerate(objects) if each["apiVersion"].startswith(_RBAC)) + 1
        objects[after:after] = [*_readers(choices.followed), *_config_maps(choices.settings, choices.namespace)]
    after = max(n for n, each in enumerate(objects) if each["apiVersion"].startswith(_RBAC)) + 1
    objects[after:after] = copy.deepcopy(
        [
            *(eviction if choices.may_evict else ()),
            *(replacing if choices.replace_failed else ()),
            *(constraints if choices.openshift else ()),
            *(_class_for(each, choices) for each in claims if _is_chosen(each, choices.claim_driver)),
            *([file_map(CONFIG_MAP, KEY, choices.authorities)] if choices.authorities else ()),
            *([file_map(NODE_GROUPS_MAP, NODE_GROUPS_KEY, choices.node_groups)] if choices.node_groups else ()),
            *([file_map(REPAIRS_MAP, REPAIRS_KEY, choices.repairs)] if choices.repairs else ()),
        ]
    )
    if choices.dashboard:
        page = copy.deepcopy(list(dashboard))
        _open_to_keda(page, choices.page)
        objects += without_protections(page, choices.without)
    for each in objects:
        for container in _containers(each):
            container["image"] = choices.image or container["image"]
        if (each["kind"], each["metadata"]["name"]) == ("Role", PULL_SECRETS_ROLE):
            (rule,) = each["rules"]
            rule["resourceNames"] = sorted({*rule["resourceNames"], *_pull_secrets(choices)})
        if (each["kind"], each["metadata"]["name"]) == (BINDING_KIND, DEVICE_ACCESS_POLICY):
            _set_device_binding(each["spec"], choices)
        if choices.api_servers and (each["kind"], each["metadata"]["name"]) == ("NetworkPolicy", WEBHOOK):
            _open_to(each["spec"], choices.api_servers)
        if each["kind"] == "DaemonSet" and each["metadata"]["name"] == AGENT:
            _set_agent(each["spec"]["template"]["spec"], choices)
        if each["kind"] == "DaemonSet" and each["metadata"]["name"] == MPS_HOST and choices.settings is not None:
            _move_folders(each["spec"]["template"]["spec"], choices.settings)
        if each["kind"] == "Deployment" and each["metadata"]["name"] == CONTROLLER:
            (container,) = each["spec"]["template"]["spec"]["containers"]
            container["args"] = [*container["args"], *_controllers_arguments(choices)]
            if choices.authorities:
                each["spec"]["template"] = trust_authorities(each["spec"]["template"], choices.authorities)
        if each["kind"] == "Deployment" and each["metadata"]["name"] == WEBHOOK:
            (container,) = each["spec"]["template"]["spec"]["containers"]
            driver = () if choices.claim_placement == "scheduler" else _claim_driver(choices)  # it gates no claims then
            container["args"] = [*container["args"], *driver]
        if each["kind"] == "Deployment" and each["metadata"]["name"] == DASHBOARD:
            (container,) = each["spec"]["template"]["spec"]["containers"]
            container["args"] = [*container["args"], *choices.page]
    return [*objects, *(drivers_in_charge(choices.drivers) if choices.ask_for_drivers else choices.drivers)]


def _is_chosen(manifest: Manifest, driver: str) -> bool:
    """False for the DeviceClasses of the driver that was not chosen, and for all objects without a driver."""
    if manifest["kind"] != "DeviceClass":
        return bool(driver)
    return f"'{driver}'" in manifest["spec"]["selectors"][0]["cel"]["expression"]


def _class_for(manifest: Manifest, choices: InstallChoices) -> Manifest:
    """Leaves the guard of a DeviceClass out, the second selector, where kube-scheduler's allocator places."""
    if manifest["kind"] != "DeviceClass" or choices.claim_placement != "scheduler":
        return manifest
    return {**manifest, "spec": {**manifest["spec"], "selectors": manifest["spec"]["selectors"][:1]}}


def drivers_in_charge(drivers: Sequence[Manifest]) -> list[Manifest]:
    """The driver objects, with the annotation that makes Tessera responsible for the drivers."""
    return [_in_charge(each) for each in drivers]


def _pull_secrets(choices: InstallChoices) -> Iterator[str]:
    """Names of the image pull secrets that the user, the ClusterPolicy and the NVIDIADriver name."""
    yield from choices.pull_secrets
    waiting: list[Any] = [each.get("spec") for each in choices.drivers]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Mapping):
            waiting += found.values()
            named = found.get("imagePullSecrets")
            yield from (each for each in named if isinstance(each, str)) if isinstance(named, list) else ()


def _set_device_binding(spec: Manifest, choices: InstallChoices) -> None:
    if choices.device_access == "warn":
        spec["validationActions"] = list(WARNING)
    (names,) = (
        each
        for each in spec["matchResources"]["namespaceSelector"]["matchExpressions"]
        if each["key"] == "kubernetes.io/metadata.name"
    )
    names["values"] = sorted({*names["values"], *choices.device_namespaces})


def _open_to(spec: Manifest, addresses: Sequence[str]) -> None:
    """Narrows the policy's first rule, for reviews; the second is for kubelet's probes."""
    spec["ingress"][0]["from"] = [{"ipBlock": {"cidr": each}} for each in addresses]


def _open_to_keda(page: Sequence[Manifest], arguments: Sequence[str]) -> None:
    """Opens the port of KEDA's scaler, if there is one: in the page's Service, and to KEDA's namespace alone."""
    for port in (int(each.removeprefix(_KEDA_PORT)) for each in arguments if each.startswith(_KEDA_PORT)):
        for each in page:
            if each["kind"] == "Service":
                each["spec"]["ports"].append({"name": "keda", "port": port, "targetPort": port})
            if each["kind"] == "NetworkPolicy":
                peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}}
                each["spec"]["ingress"].append({"from": [peer], "ports": [{"protocol": "TCP", "port": port}]})


def _in_charge(manifest: Manifest) -> Manifest:
    if manifest["kind"] != POLICY_KIND:
        return manifest
    metadata = manifest["metadata"]
    marked = {**metadata.get("annotations", {}), DRIVERS_ANNOTATION: DRIVERS_MANAGED}
    return {**manifest, "metadata": {**metadata, "annotations": marked}}


def _containers(manifest: Manifest) -> Sequence[Manifest]:
    pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]


def _controllers_arguments(choices: InstallChoices) -> Iterator[str]:
    if choices.replace_failed:
        yield f"--replace-failed={choices.replace_failed}"
    yield from _metrics_access(choices)
    yield from _claim_driver(choices)
    yield from choices.site


def _metrics_access(choices: InstallChoices) -> Iterator[str]:
    if choices.metrics_access != "reviewed":
        yield f"--metrics-access={choices.metrics_access}"


def _claim_driver(choices: InstallChoices) -> Iterator[str]:
    if choices.claim_driver:
        yield f"--claim-driver={choices.claim_driver}"
        if choices.claim_placement != CLAIM_PLACEMENTS[0]:
            yield f"--claim-placement={choices.claim_placement}"


# The agents' container


def _set_agent(pod: Manifest, choices: InstallChoices) -> None:
    (container,) = pod["containers"]
    wanted = list(_arguments(choices))
    replaced = {_option(each) for each in wanted}
    container["args"] = [each for each in container.get("args", ()) if _option(each) not in replaced] + wanted
    settings = choices.settings
    if choices.claim_driver:
        root = settings.kubelet_root if settings is not None else None
        _mount_claim_folders(pod, choices.claim_driver, (root or KUBELET_ROOT).rstrip("/"))
    if settings is None:
        return
    kept = [each for each in container.get("env", ()) if each["name"] not in settings.health]
    container["env"] = kept + [{"name": name, "value": value} for name, value in settings.health.items()]
    _move_folders(pod, settings)
    if settings.kubelet_root:
        # Kubelet has the sockets of device plugins at one fixed path, not below its root.
        _move(pod, POD_RESOURCES_VOLUME, f"{settings.kubelet_root.rstrip('/')}/pod-resources", container)


def _mount_claim_folders(pod: Manifest, driver: str, root: str) -> None:
    """Mounts the folders of the driver's sockets; of ``plugins`` only its own, since volumes of pods are there too."""
    for name, folder, kind in claim_folders(driver):
        path = f"{root}/{folder}"
        pod["volumes"].append({"name": name, "hostPath": {"path": path, "type": kind}})
        pod["containers"][0]["volumeMounts"].append({"name": name, "mountPath": path})


def claim_folders(driver: str) -> Sequence[tuple[str, str, str]]:
    """The folders of a driver of claims below kubelet's: the volume's name, the folder, and its type."""
    return (
        ("claim-registry", "plugins_registry", "Directory"),
        ("claim-driver", f"plugins/{driver}", "DirectoryOrCreate"),
    )


def _move_folders(pod: Manifest, settings: OperatorSettings) -> None:
    """Mounts the folders of driver and MPS from where the settings have them."""
    if settings.driver_root:
        _move(pod, DRIVER_VOLUME, settings.driver_root, pod["containers"][0])
    if settings.mps_root:
        root = settings.mps_root.rstrip("/")
        _move(pod, MPS_VOLUME, root)
        _move(pod, MPS_MEMORY_VOLUME, f"{root}/shm")


def _move(pod: Manifest, name: str, path: str, container: Manifest | None = None) -> None:
    """Mounts a folder of the host from another path; with ``container``, its mount gets the same path."""
    for volume in pod.get("volumes", ()):
        if volume["name"] == name:
            volume["hostPath"]["path"] = path
    for mount in container.get("volumeMounts", ()) if container is not None else ():
        if mount["name"] == name:
            mount["mountPath"] = path


def _option(argument: str) -> str:
    return argument.partition("=")[0]


def _arguments(choices: InstallChoices) -> Iterator[str]:
    if choices.settings is not None:
        yield from _config_arguments(choices, choices.settings)
    yield from _metrics_access(choices)
    yield from _claim_driver(choices)
    if choices.evict:
        yield "--mig-evict"
    if choices.memory_limits:
        yield f"--memory-limits={choices.memory_limits}"
    if choices.simulate:
        yield f"--simulate={choices.simulate}"


def _config_arguments(choices: InstallChoices, settings: OperatorSettings) -> Iterator[str]:
    sharing, layouts = ("/".join(place) for place in choices.followed)
    yield f"--sharing-config={sharing}"
    if settings.sharing.default:
        yield f"--sharing-default={settings.sharing.default}"
    yield f"--mig-config={layouts}"
    if settings.layouts.default:
        yield f"--mig-default={settings.layouts.default}"
    yield f"--mig-strategy={settings.mig_strategy.value}"
    if settings.mig_reboot:
        yield "--mig-reboot"
    if settings.device_list_strategies:
        yield f"--device-list-strategy={','.join(settings.device_list_strategies)}"
    if settings.device_id_strategy:
        yield f"--device-id-strategy={settings.device_id_strategy}"
    if settings.pass_device_specs:
        yield "--pass-device-specs"
    if settings.mps_root:
        yield f"--mps-root={settings.mps_root}"
    if settings.kubelet_root:
        yield f"--kubelet-root={settings.kubelet_root}"
    if settings.driver_root:
        yield f"--driver-root={settings.driver_root}"


# The ConfigMaps that the agents follow


def _readers(followed: Sequence[tuple[str, str]]) -> Iterator[Manifest]:
    names: dict[str, list[str]] = {}
    for namespace, name in followed:
        names.setdefault(namespace, []).append(name)
    for namespace, allowed in names.items():
        metadata = {"name": CONFIG_ROLE, "namespace": namespace}
        rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": allowed, "verbs": ["list", "watch"]}
        yield _rbac("Role", metadata, rules=[rule])
        account = {"kind": "ServiceAccount", "name": AGENT, "namespace": SYSTEM_NAMESPACE}
        role = {"apiGroup": _RBAC, "kind": "Role", "name": CONFIG_ROLE}
        yield _rbac("RoleBinding", metadata, roleRef=role, subjects=[account])


def _rbac(kind: str, metadata: Mapping[str, Any], **fields: Any) -> Manifest:
    return {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": copy.deepcopy(dict(metadata)), **fields}


def _config_maps(settings: OperatorSettings, namespace: str) -> Iterator[Manifest]:
    for config in (settings.sharing, settings.layouts):
        if config.data:
            metadata = {"name": config.name, "namespace": namespace, "labels": dict(_LABELS)}
            yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(config.data)}
