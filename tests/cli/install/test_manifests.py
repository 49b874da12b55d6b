"""The objects of an installation: those of deploy/, changed by the installation's options."""

from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from tessera.api.documents import load_document
from tessera.cli.agent import parse_options
from tessera.cli.install.apply import CERTIFICATES, DASHBOARD, OPENSHIFT, option
from tessera.cli.install.manifests import InstallChoices, Manifest, manifests
from tessera.cli.install.variants import OBJECTS, POD_SECURITY, POD_SECURITY_LABEL, PROTECTIONS
from tessera.cli.webhook import parse_options as parse_webhook
from tessera.doctor.manifests import deploy_folder, install_manifests
from tessera.gpu_operator.settings_reader import read_settings

ARTICLE = "{mig: {strategy: mixed}, migManager: {config: {name: layouts}}, devicePlugin: {config: {name: profiles}}}"
BASE = install_manifests()
EVICTION = list(yaml.load_all((deploy_folder() / "options" / "evict.yaml").read_text(), yaml.CSafeLoader))


def made(values: str | None = None, **choices: Any) -> Sequence[Manifest]:
    settings = None if values is None else read_settings(load_document(values))
    return manifests(
        BASE,
        EVICTION,
        InstallChoices(settings=settings, drivers=settings.driver_objects if settings else (), **choices),
    )


def agent(objects: Sequence[Manifest]) -> Manifest:
    (found,) = named(objects, "DaemonSet", "tessera-agent")
    pod: Manifest = found["spec"]["template"]["spec"]
    return pod


def container(objects: Sequence[Manifest]) -> Manifest:
    (found,) = agent(objects)["containers"]
    return dict(found)


def options(objects: Sequence[Manifest]) -> Any:
    """The agent's options, parsed from the arguments and environment of its container."""
    found = container(objects)
    env = {each["name"]: each["value"] for each in found["env"] if "value" in each}
    return parse_options(found["args"], {"NODE_NAME": "node-1", **env})


def named(objects: Sequence[Manifest], kind: str, name: str) -> list[Manifest]:
    return [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]


def test_without_choices_they_are_those_of_deploy() -> None:
    assert made() == BASE


def test_the_articles_values_become_arguments_that_the_agent_takes() -> None:
    found = options(made(ARTICLE, namespace="kube-system"))
    assert (found.sharing_config.namespace, found.sharing_config.name) == ("kube-system", "profiles")
    assert (found.mig_config.namespace, found.mig_config.name) == ("kube-system", "layouts")
    assert (found.mig_strategy.value, found.mig_default, found.sharing_default) == ("mixed", "", "")
    assert found.http_port == options(made()).http_port


def test_every_setting_reaches_the_agent() -> None:
    values = """
      mig: {strategy: single}
      migManager: {config: {name: layouts, default: all-disabled}, env: [{name: WITH_REBOOT, value: "true"}]}
      devicePlugin:
        config: {name: profiles, default: slice-4}
        mps: {root: /srv/mps}
        env:
        - {name: DEVICE_LIST_STRATEGY, value: "envvar,cdi-annotations"}
        - {name: DEVICE_ID_STRATEGY, value: index}
        - {name: PASS_DEVICE_SPECS, value: "true"}
        - {name: DP_DISABLE_HEALTHCHECKS, value: xids}
    """
    found = options(made(values, evict=True, memory_limits="warn"))
    assert (found.sharing_default, found.mig_default, found.mig_strategy.value) == ("slice-4", "all-disabled", "single")
    assert found.device_list_strategies == ("envvar", "cdi-annotations")
    assert (found.device_ids_are_uuids, found.pass_device_specs) == (False, True)
    assert (found.mig_evict, found.mig_reboot, found.memory_limits.value) == (True, True, "warn")
    assert str(found.mps_root) == "/srv/mps"
    assert found.environment == {"DP_DISABLE_HEALTHCHECKS": "xids"}


def test_the_folder_of_the_mps_daemons_is_that_of_the_host() -> None:
    objects = made("devicePlugin: {mps: {root: /srv/mps}}")
    volumes = {each["name"]: each["hostPath"]["path"] for each in agent(objects)["volumes"]}
    assert (volumes["mps"], volumes["mps-shm"]) == ("/srv/mps", "/srv/mps/shm")
    assert str(options(objects).mps_root) == "/srv/mps"
    assert container(objects)["volumeMounts"] == container(made())["volumeMounts"], "the container has it where it was"


def test_another_folder_of_kubelets_moves_its_pod_resources_and_no_device_plugins() -> None:
    before, after = made(), made("hostPaths: {kubeletRootDir: /var/lib/k0s/kubelet/}")
    found = options(after)
    mounts = {each["name"]: each["mountPath"] for each in container(after)["volumeMounts"]}
    assert str(found.pod_resources) == mounts["pod-resources"] == "/var/lib/k0s/kubelet/pod-resources"
    assert found.plugin_dir == options(before).plugin_dir
    assert mounts["device-plugins"] == str(found.plugin_dir)


def test_another_folder_of_drivers_is_the_agents_and_the_policys() -> None:
    plain = made("driver: {version: '580'}")
    assert options(plain).driver_root == options(made()).driver_root
    after = made("driver: {version: '580'}\nhostPaths: {driverInstallDir: /srv/driver}")
    mounts = {each["name"]: each["mountPath"] for each in container(after)["volumeMounts"]}
    volumes = {each["name"]: each["hostPath"]["path"] for each in agent(after)["volumes"]}
    assert str(options(after).driver_root) == mounts["driver"] == volumes["driver"] == "/srv/driver"
    assert after[-1]["spec"]["hostPaths"]["driverInstallDir"] == "/srv/driver"


def test_an_option_stands_once_among_the_arguments() -> None:
    for objects in (made("{}"), made(ARTICLE, namespace="gpu", evict=True)):
        names = [each.partition("=")[0] for each in container(objects)["args"]]
        assert len(set(names)) == len(names)


def test_a_config_map_without_a_name_is_tesseras_own() -> None:
    found, plain = options(made("{}", namespace="kube-system")), options(made())
    assert (found.sharing_config, found.mig_config) == (plain.sharing_config, plain.mig_config)
    assert (found.sharing_config.namespace, found.sharing_config.name) == ("tessera-system", "sharing-profiles")
    assert (found.mig_config.namespace, found.mig_config.name) == ("tessera-system", "mig-layouts")


@pytest.mark.parametrize(
    ("values", "rights"),
    [
        (ARTICLE, {"gpu": ["profiles", "layouts"]}),
        ("devicePlugin: {config: {name: profiles}}", {"gpu": ["profiles"], "tessera-system": ["mig-layouts"]}),
        ("{}", {"tessera-system": ["sharing-profiles", "mig-layouts"]}),
    ],
)
def test_the_agents_may_watch_the_config_maps_that_they_follow_and_no_other(values: str, rights: Any) -> None:
    objects = made(values, namespace="gpu")
    roles = named(objects, "Role", "tessera-agent-config")
    assert {each["metadata"]["namespace"]: each["rules"][0]["resourceNames"] for each in roles} == rights
    for role in roles:
        (rule,) = role["rules"]
        assert (rule["apiGroups"], rule["resources"], rule["verbs"]) == ([""], ["configmaps"], ["list", "watch"])
    bindings = named(objects, "RoleBinding", "tessera-agent-config")
    assert {each["metadata"]["namespace"] for each in bindings} == set(rights)
    for binding in bindings:
        assert binding["roleRef"]["name"] == "tessera-agent-config"
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "tessera-agent", "namespace": "tessera-system"}
        ]


def test_a_config_map_that_the_values_hold_is_made_where_the_agents_look() -> None:
    values = 'devicePlugin: {config: {create: true, name: profiles, data: {none: "version: v1"}}}'
    (found,) = named(made(values, namespace="gpu"), "ConfigMap", "profiles")
    assert (found["metadata"]["namespace"], found["data"]) == ("gpu", {"none": "version: v1"})


@pytest.mark.parametrize("choices", [{"evict": True}, {"memory_limits": "evict"}])
def test_evictions_are_a_right_that_only_who_evicts_has(choices: Any) -> None:
    objects = made(**choices)
    (role,) = named(objects, "ClusterRole", "tessera-agent-evict")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}]
    assert named(objects, "ClusterRoleBinding", "tessera-agent-evict")
    assert not named(made(ARTICLE, memory_limits="kill"), "ClusterRole", "tessera-agent-evict")


def test_rights_stand_before_the_processes_that_need_them() -> None:
    kinds = [each["kind"] for each in made(ARTICLE, evict=True)]
    assert max(n for n, kind in enumerate(kinds) if "Role" in kind) < kinds.index("Deployment")


def test_cards_may_be_simulated() -> None:
    assert options(made(ARTICLE, simulate="4xA100-40GB")).simulate == "4xA100-40GB"
    assert options(made()).simulate is None


def test_another_image_is_that_of_all_processes() -> None:
    images = [
        each["image"]
        for manifest in made(image="example.com/tessera:1")
        if "template" in manifest.get("spec", {})
        for each in manifest["spec"]["template"]["spec"]["containers"]
    ]
    assert images == ["example.com/tessera:1"] * 4


def device_binding(objects: Sequence[Manifest]) -> Manifest:
    (found,) = named(objects, "ValidatingAdmissionPolicyBinding", "tessera-device-access")
    return dict(found["spec"])


def test_pods_that_take_gpus_past_kubernetes_are_refused_or_warned_about_or_neither() -> None:
    assert device_binding(made())["validationActions"] == ["Deny"]
    assert device_binding(made(device_access="warn"))["validationActions"] == ["Warn", "Audit"]
    kinds = [each["kind"] for each in made(device_access="off") if each["metadata"]["name"] == "tessera-device-access"]
    assert kinds == []
    assert named(made(device_access="off"), "ValidatingAdmissionPolicy", "tessera-agent")


def test_namespaces_are_added_to_those_whose_pods_may() -> None:
    (names,) = (
        each["values"]
        for each in device_binding(made(device_namespaces=("monitoring",)))["matchResources"]["namespaceSelector"][
            "matchExpressions"
        ]
        if each["key"] == "kubernetes.io/metadata.name"
    )
    assert {"monitoring", "kube-system", "tessera-system"} <= set(names)


def readable(objects: Sequence[Manifest]) -> list[str]:
    (role,) = named(objects, "Role", "tessera-controller-pull-secrets")
    return list(role["rules"][0]["resourceNames"])


def test_the_controller_reads_the_pull_secrets_that_are_named_and_no_others() -> None:
    assert readable(made()) == ["ngc-secret", "registry-secret"]
    values = "{driver: {version: '550.54.14', imagePullSecrets: [mine]}, toolkit: {imagePullSecrets: [tools]}}"
    assert readable(made(values)) == ["mine", "ngc-secret", "registry-secret", "tools"]
    assert "more" in readable(made(pull_secrets=("more",)))
    for each in made(values):
        if each["kind"] in {"Role", "ClusterRole"} and "tessera-webhook" not in each["metadata"]["name"]:
            for rule in each["rules"]:
                assert "secrets" not in rule.get("resources", ()) or rule.get("resourceNames")


def reviewers(objects: Sequence[Manifest]) -> list[Any]:
    """The sources that the NetworkPolicy admits to each port of the webhook."""
    (policy,) = named(objects, "NetworkPolicy", "tessera-webhook")
    return [(rule["ports"][0]["port"], rule.get("from")) for rule in policy["spec"]["ingress"]]


def test_reviews_come_from_everybody_or_from_the_addresses_that_are_named() -> None:
    assert reviewers(made()) == [(9443, None), (8081, None)]
    addresses = ("192.0.2.0/28", "2001:db8::/64")
    blocks = [{"ipBlock": {"cidr": each}} for each in addresses]
    assert reviewers(made(api_servers=addresses)) == [(9443, blocks), (8081, None)]


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_a_protection_that_is_left_out_is_the_only_difference(protection: str) -> None:
    found = made(without=[protection])
    kinds, names = OBJECTS.get(protection, ((), ()))
    wanted = [each for each in BASE if not (each["kind"] in kinds and each["metadata"]["name"] in names)]
    of_page = [each for each in option(DASHBOARD) if each["kind"] in kinds and each["metadata"]["name"] in names]
    assert len(BASE) - len(wanted) + len(of_page) == len(kinds) * len(names)
    if protection == POD_SECURITY:
        (namespace,) = (each for each in found if each["metadata"]["name"] == "tessera-system")
        assert POD_SECURITY_LABEL not in namespace["metadata"]["labels"]
        wanted = [namespace if each["metadata"]["name"] == "tessera-system" else each for each in wanted]
    assert found == wanted


def test_on_openshift_the_rights_to_its_constraints_come_with_the_other_roles() -> None:
    constraints = option(OPENSHIFT)
    found = manifests(BASE, EVICTION, InstallChoices(openshift=True), constraints=constraints)
    assert [each for each in found if each not in BASE] == constraints
    assert found[-1] == BASE[-1]


def test_with_cert_manager_the_webhook_only_reads() -> None:
    found = manifests(BASE, EVICTION, InstallChoices(certificate="cert-manager"), certificates=option(CERTIFICATES))
    roles = [
        each
        for each in found
        if each["kind"] in {"Role", "ClusterRole"} and each["metadata"]["name"] == "tessera-webhook"
    ]
    assert len(roles) == 3
    assert {verb for role in roles for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch"}
    (webhook,) = named(found, "Deployment", "tessera-webhook")
    (container,) = webhook["spec"]["template"]["spec"]["containers"]
    (certificate,) = named(found, "Certificate", "tessera-webhook")
    chosen = parse_webhook(container["args"], {})
    assert chosen.given_secret == certificate["spec"]["secretName"]
    (service,) = named(found, "Service", chosen.service)
    assert f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc" in certificate["spec"]["dnsNames"]
    (configuration,) = named(found, "MutatingWebhookConfiguration", chosen.configuration)
    metadata = certificate["metadata"]
    assert configuration["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": f"{metadata['namespace']}/{metadata['name']}"
    }
