"""Containers start our processes with arguments that they take, and everything that names them names the same."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.deploy.conftest import Installation, Obj

from tessera import __version__
from tessera.access.page_reader import READER_ACCOUNT
from tessera.agent.base.settings import AgentOptions
from tessera.api.names import ADD_ONS, INSTASLICE_NAMESPACE, MPS_HOST_LABEL, NODE_GROUPS_MAP
from tessera.cli import agent, controller, mps_host, webhook
from tessera.cli.install.manifests import PULL_SECRETS_ROLE
from tessera.cli.main import COMMANDS
from tessera.controller.satellite import ControllerOptions
from tessera.driver.kernels import CONFIG_MAP as NEXT_KERNELS
from tessera.driver.manifests.configs import CLUSTER_PROXY
from tessera.driver.policies import CONFIG_MAP as POLICIES_CONFIG_MAP
from tessera.driver.registry.resolver import CONFIG_MAP as IMAGES_CONFIG_MAP
from tessera.driver.rollout.candidates import FAILURES_CONFIG_MAP
from tessera.forecast.history_text import HISTORY_NAME
from tessera.kueue.objects import CONFIG_MAP
from tessera.provisioning.history import RECORDS_NAME
from tessera.usage.record import RECORD_NAME
from tessera.webhook.base import PATHS, WebhookOptions

PARSERS: Mapping[str, Callable[[Sequence[str], Mapping[str, str]], Any]] = {
    "agent": agent.parse_options,
    "controller": controller.parse_options,
    "webhook": webhook.parse_options,
}
NAMESPACE = "tessera-system"


class Process(msgspec.Struct, frozen=True):
    """A container of ours, and what its process makes of its arguments."""

    owner: Obj
    container: Obj
    options: Any

    @property
    def http_port(self) -> int:
        """The port on which the process serves its health."""
        name = "health_port" if isinstance(self.options, WebhookOptions) else "http_port"
        return int(getattr(self.options, name))

    def port(self, named: int | str) -> int:
        """The number of a container port."""
        if isinstance(named, int):
            return named
        (number,) = (each["containerPort"] for each in self.container["ports"] if each["name"] == named)
        return int(number)


def processes(installation: Installation) -> Iterator[Process]:
    for owner in installation.of_kind("Deployment", "DaemonSet"):
        (container,) = owner["spec"]["template"]["spec"]["containers"]
        program, command = container["command"]
        assert program == "tessera"
        assert command in COMMANDS
        if command == "mps-host":  # it has neither ports nor access to the API server
            continue
        yield Process(owner, container, PARSERS[command](container["args"], environment(container)))


def process(installation: Installation, options: type[Any]) -> Process:
    (found,) = (each for each in processes(installation) if isinstance(each.options, options))
    return found


def environment(container: Obj) -> dict[str, str]:
    fields = {"metadata.name": "pod-1", "metadata.namespace": NAMESPACE, "spec.nodeName": "node-1"}
    return {
        each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container.get("env", ())
    }


def test_each_of_the_three_processes_has_one_container_of_this_version(installation: Installation) -> None:
    found = list(processes(installation))
    assert {type(each.options) for each in found} == {AgentOptions, ControllerOptions, WebhookOptions}
    assert {each.container["image"].rpartition("/")[2] for each in found} == {f"tessera:{__version__}"}


def test_the_mps_host_serves_the_socket_that_the_agent_uses_and_sees_the_same_folders(
    installation: Installation,
) -> None:
    owner = installation.one("DaemonSet", "tessera-mps", NAMESPACE)
    pod = owner["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    served = process(installation, AgentOptions)
    assert container["image"] == served.container["image"]
    assert mps_host.command.make_context("mps-host", list(container["args"])).params["path"] == served.options.mps_host
    agent = served.owner["spec"]["template"]["spec"]
    folders, of_agent = (_folders(each) for each in (pod, agent))
    assert folders.items() <= of_agent.items()
    assert {"/mps", "/dev/shm", "/dev", "/run/nvidia/driver", "/var/lib/tessera"} == set(folders)


def test_the_mps_host_is_left_alone_by_updates_and_has_no_rights(installation: Installation) -> None:
    spec = installation.one("DaemonSet", "tessera-mps", NAMESPACE)["spec"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    pod = spec["template"]["spec"]
    assert (pod["hostPID"], pod["automountServiceAccountToken"]) == (True, False)
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "limits" not in container["resources"], "the end of memory would end the work of all clients"
    granted = [
        subject["name"]
        for binding in installation.of_kind("RoleBinding", "ClusterRoleBinding")
        for subject in binding["subjects"]
        if binding["roleRef"]["name"] != "tessera-privileged"
    ]
    assert pod["serviceAccountName"] not in granted
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": MPS_HOST_LABEL, "operator": "In", "values": ["true"]}]}


def _folders(pod: Obj) -> dict[str, str]:
    """The host's folders by their paths in the pod's container."""
    hosts = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]}
    return {each["mountPath"]: hosts[each["name"]] for each in pod["containers"][0]["volumeMounts"]}


def test_identities_come_from_the_pod(installation: Installation) -> None:
    assert process(installation, AgentOptions).options.node_name == "node-1"
    assert process(installation, ControllerOptions).options.identity == "pod-1"
    for options in (ControllerOptions, WebhookOptions):
        assert process(installation, options).options.namespace == NAMESPACE


def test_probes_ask_where_health_is_served(installation: Installation) -> None:
    for each in processes(installation):
        probes = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
        assert {"livenessProbe", "readinessProbe"} <= each.container.keys()
        for probe in probes.keys() & each.container.keys():
            asked = each.container[probe]["httpGet"]
            assert (asked["path"], each.port(asked["port"])) == (probes[probe], each.http_port)


def test_no_two_ports_of_a_process_are_the_same(installation: Installation) -> None:
    for each in processes(installation):
        numbers = [port["containerPort"] for port in each.container["ports"]]
        assert len(set(numbers)) == len(numbers)
        assert each.http_port in numbers


def test_the_service_leads_to_the_port_where_reviews_are_answered(installation: Installation) -> None:
    served = process(installation, WebhookOptions)
    service = installation.one("Service", served.options.service, NAMESPACE)
    labels = served.owner["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (port,) = service["spec"]["ports"]
    assert served.port(port["targetPort"]) == served.options.port


def test_the_webhook_outlives_its_place_behind_the_service_and_a_drain_spares_one(installation: Installation) -> None:
    served = process(installation, WebhookOptions)
    pause = served.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert 0 < pause < served.owner["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    budget = installation.one("PodDisruptionBudget", "tessera-webhook", NAMESPACE)["spec"]
    assert budget["selector"] == served.owner["spec"]["selector"]
    assert budget["maxUnavailable"] < served.owner["spec"]["replicas"]


def test_the_webhook_configuration_leads_to_the_service(installation: Installation) -> None:
    options = process(installation, WebhookOptions).options
    configuration = installation.one("MutatingWebhookConfiguration", options.configuration)
    (port,) = installation.one("Service", options.service, NAMESPACE)["spec"]["ports"]
    for each in configuration["webhooks"]:
        service = each["clientConfig"]["service"]
        assert service.pop("path") in PATHS
        assert service == {"name": options.service, "namespace": NAMESPACE, "port": port["port"]}


def test_the_configuration_leaves_its_authority_to_the_webhook(installation: Installation) -> None:
    """A ``caBundle`` here, even an empty one, would be put in place of the live one by every ``kubectl apply``."""
    options = process(installation, WebhookOptions).options
    configuration = installation.one("MutatingWebhookConfiguration", options.configuration)
    assert all("caBundle" not in each["clientConfig"] for each in configuration["webhooks"])


def test_rights_name_the_objects_that_the_processes_use(installation: Installation) -> None:
    named = {
        (resource, name)
        for role in installation.of_kind("Role", "ClusterRole")
        for rule in role["rules"]
        for resource in rule.get("resources", ())
        for name in rule.get("resourceNames", ())
        if resource != "securitycontextconstraints" and role["metadata"]["name"] != PULL_SECRETS_ROLE
    }
    webhook_, controller_ = (process(installation, each).options for each in (WebhookOptions, ControllerOptions))
    agent_ = process(installation, AgentOptions).options
    assert named == {
        ("serviceaccounts/token", READER_ACCOUNT),
        ("secrets", webhook_.secret),
        ("mutatingwebhookconfigurations", webhook_.configuration),
        ("proxies", CLUSTER_PROXY),
        ("leases", controller_.lease_name),
        ("configmaps", RECORDS_NAME),
        ("configmaps", RECORD_NAME),
        ("configmaps", HISTORY_NAME),
        ("configmaps", FAILURES_CONFIG_MAP),
        ("configmaps", NEXT_KERNELS),
        ("configmaps", NODE_GROUPS_MAP),
        ("configmaps", IMAGES_CONFIG_MAP),
        ("configmaps", POLICIES_CONFIG_MAP),
        ("configmaps", CONFIG_MAP),
        ("configmaps", agent_.sharing_config.name),
        ("configmaps", agent_.mig_config.name),
        *(("namespaces", each) for each in ADD_ONS),
        ("configmaps", agent_.repairs.name),
    }


def test_the_agents_may_read_the_config_maps_that_they_follow_where_these_lie(installation: Installation) -> None:
    options = process(installation, AgentOptions).options
    for followed in (options.sharing_config, options.mig_config):
        role = installation.one("Role", "tessera-agent-config", followed.namespace)
        assert followed.name in role["rules"][0]["resourceNames"]
    role = installation.one("Role", "tessera-agent-repairs", options.repairs.namespace)
    assert role["rules"][0]["resourceNames"] == [options.repairs.name]


#: Roles for people, who may see all namespaces.
PEOPLE = ("tessera-cluster-view", "tessera-admin")


def test_slices_have_their_namespace_and_their_rights_there(installation: Installation) -> None:
    assert process(installation, AgentOptions).options.namespace == INSTASLICE_NAMESPACE
    roles = [
        role["metadata"].get("namespace")
        for role in installation.of_kind("Role", "ClusterRole")
        for rule in role["rules"]
        if "instaslices" in rule.get("resources", ()) and role["metadata"]["name"] not in PEOPLE
    ]
    assert roles == [INSTASLICE_NAMESPACE] * 3


def test_the_agent_sees_every_folder_that_it_uses_where_the_host_has_it(installation: Installation) -> None:
    found = process(installation, AgentOptions)
    spec = found.owner["spec"]["template"]["spec"]
    paths = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"]}
    mounted = {each["mountPath"]: paths[each["name"]] for each in found.container["volumeMounts"]}
    options = found.options
    shared_memory = mounted.pop("/dev/shm")
    assert shared_memory == str(options.mps_root / "shm"), "what clients of MPS get as theirs"
    assert mounted.pop(str(options.mps_mount)) == str(options.mps_root), "daemons see pipes where their clients do"
    assert all(inside == outside for inside, outside in mounted.items())
    for folder in (options.plugin_dir, options.pod_resources, options.cdi_dir, options.state_dir):
        assert str(folder) in mounted
    for file in (options.journal_file, options.simulated_file):
        assert file.is_relative_to(Path("/var/lib/tessera"))


def test_folders_are_mounted_and_no_sockets_since_kubelet_makes_new_ones(installation: Installation) -> None:
    spec = process(installation, AgentOptions).owner["spec"]["template"]["spec"]
    assert {each["hostPath"]["type"] for each in spec["volumes"]} <= {"Directory", "DirectoryOrCreate"}


def test_only_the_agent_is_root_and_nobody_writes_to_its_image(installation: Installation) -> None:
    for each in processes(installation):
        of_pod = each.owner["spec"]["template"]["spec"].get("securityContext", {})
        of_container = each.container["securityContext"]
        assert of_container["readOnlyRootFilesystem"] is True
        privileged = isinstance(each.options, AgentOptions)
        assert of_container.get("privileged", False) is privileged
        assert of_pod.get("runAsNonRoot", False) is not privileged
        assert each.owner["spec"]["template"]["spec"].get("hostPID", False) is privileged, "NVML tells the host's PIDs"
