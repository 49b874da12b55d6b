"""The live page's objects are valid, start the process as it takes its arguments, and write nothing."""

from pathlib import Path

import pytest
import yaml
from tests.deploy.conftest import ROOT, Installation, Obj, rendered
from tests.deploy.test_network_policy import selecting, served
from tests.deploy.test_objects import SUPPORTED
from tests.support.kubernetes_schemas import validate

from tessera import __version__
from tessera.access.page_reader import READER_ACCOUNT
from tessera.cli import dashboard
from tessera.cli.install.apply import render
from tessera.cli.install.choices import PAGE_PORTS
from tessera.cli.install.manifests import InstallChoices
from tessera.cli.main import main
from tessera.dashboard.in_cluster import API_SERVICE, NAMES, PageOptions
from tessera.dashboard.view.explanations import GROUP, VERSION
from tessera.dashboard.view.front_proxy import CONFIG_MAP
from tessera.dashboard.view.front_proxy import NAMESPACE as FRONT_PROXY_NAMESPACE
from tessera.dashboard.view.objects import RESOURCES

PAGE = rendered("deploy/options/dashboard")
NAMESPACE = "tessera-system"


def deployment(installation: Installation = PAGE) -> Obj:
    return installation.one("Deployment", "tessera-dashboard", NAMESPACE)


def container() -> Obj:
    (found,) = deployment()["spec"]["template"]["spec"]["containers"]
    return found  # type: ignore[no-any-return] # of a mapping


def options() -> PageOptions:
    found = dashboard.parse_options(container()["args"], {})
    assert isinstance(found, PageOptions)
    return found


def installed(**choices: object) -> Installation:
    return Installation("installed", render(InstallChoices(**choices)))  # type: ignore[arg-type] # by name


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_object_is_valid_with_no_unknown_field(version: str) -> None:
    for manifest in PAGE.objects:
        validate(manifest, version)


def test_every_object_is_tesseras_and_in_a_namespace_of_the_installation() -> None:
    made = {"kube-system", *(each["metadata"]["name"] for each in rendered("deploy").of_kind("Namespace"))}
    for each in PAGE.objects:
        assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "tessera"
        assert each["metadata"].get("namespace", NAMESPACE) in made


def test_the_process_takes_its_arguments_and_serves_on_the_ports_that_are_declared() -> None:
    assert container()["command"] == ["tessera", "dashboard"]
    assert container()["image"] == f"tessera:{__version__}"
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    assert ports == {"page": options().port, "http": options().http_port, "api": options().api_port}
    for probe in ("livenessProbe", "readinessProbe"):
        assert container()[probe]["httpGet"]["port"] == "http"


def test_visitors_without_a_token_are_refused_unless_somebody_chose_otherwise() -> None:
    assert not options().nameless
    assert options().origins == ()


def test_certificates_are_read_where_their_secrets_are_mounted() -> None:
    mounts = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    (prometheus,) = (each for each in container()["args"] if each.startswith("--prometheus-folder="))
    certificates = {"tls": str(options().tls_folder), "keda-tls": str(options().keda_tls_folder)}
    assert mounts == {**certificates, "prometheus": prometheus.partition("=")[2]}
    volumes = {each["name"]: each["secret"] for each in deployment()["spec"]["template"]["spec"]["volumes"]}
    assert volumes.keys() == mounts.keys()
    assert all(each["optional"] for each in volumes.values())


def test_the_service_leads_to_the_page() -> None:
    spec = PAGE.one("Service", "tessera-dashboard", NAMESPACE)["spec"]
    labels = deployment()["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"].items() <= labels.items()
    assert {each["targetPort"] for each in spec["ports"]} == {"page", "api"}


def test_the_api_service_leads_to_the_api_and_leaves_its_authority_to_the_process() -> None:
    service = PAGE.one("APIService", API_SERVICE)["spec"]
    assert (service["group"], service["version"]) == (GROUP, VERSION)
    reference = service["service"]
    ports = PAGE.one("Service", reference["name"], reference["namespace"])["spec"]["ports"]
    assert {each["port"]: each["targetPort"] for each in ports}[reference["port"]] == "api"
    assert (f"{reference['name']}.{reference['namespace']}.svc",) == NAMES
    assert not {"caBundle", "insecureSkipTLSVerify"} & service.keys()


def test_tenants_get_the_api_with_the_role_view() -> None:
    role = rendered("deploy").one("ClusterRole", "tessera-view")
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    granted = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert {(each.plural, "get") for each in RESOURCES} <= granted
    assert {verb for _, verb in granted} == {"get", "list"}


def test_one_of_two_processes_may_go() -> None:
    assert deployment()["spec"]["replicas"] == 2


def test_its_own_ports_are_open_to_everybody_and_no_others() -> None:
    spec = selecting(PAGE, deployment())["spec"]
    assert not any("from" in rule for rule in spec["ingress"])
    opened = [(each["protocol"], each["port"]) for rule in spec["ingress"] for each in rule["ports"]]
    assert sorted(opened) == sorted(served(deployment()))


def test_it_is_no_root_writes_to_no_image_and_needs_no_right_to_a_constraint_of_openshift() -> None:
    pod = deployment()["spec"]["template"]["spec"]["securityContext"]
    assert pod["runAsNonRoot"]
    assert "runAsUser" not in pod
    own = container()["securityContext"]
    assert (own["readOnlyRootFilesystem"], own["allowPrivilegeEscalation"]) == (True, False)


def test_its_account_can_change_nothing_but_its_own_api_service() -> None:
    for role in PAGE.of_kind("Role", "ClusterRole"):
        for rule in role["rules"]:
            if rule["resources"] == ["apiservices"]:
                assert rule["resourceNames"] == [API_SERVICE]
                continue
            reviews = {"tokenreviews", "subjectaccessreviews"}
            if rule["resources"] == ["serviceaccounts/token"]:
                assert rule["resourceNames"] == [READER_ACCOUNT]
                continue
            assert set(rule["verbs"]) <= {"get", "list", "watch"} or set(rule["resources"]) <= reviews


def test_the_front_proxy_is_read_from_its_config_map_and_no_other() -> None:
    (rule,) = PAGE.one("Role", "tessera-dashboard", FRONT_PROXY_NAMESPACE)["rules"]
    assert (rule["resources"], rule["resourceNames"]) == (["configmaps"], [CONFIG_MAP])


def test_an_installation_has_these_objects_and_one_choice_leaves_them_out() -> None:
    plain, more = installed(dashboard=False), installed()
    added = [each for each in more.objects if each not in plain.objects]
    assert sorted(map(yaml.safe_dump, added)) == sorted(map(yaml.safe_dump, PAGE.objects))
    assert len(more.objects) == len(plain.objects) + len(PAGE.objects)


def test_the_options_of_the_page_reach_its_process() -> None:
    page = ["--origin=https://gpu.example.com", "--without-token=hide-names"]
    (found,) = deployment(installed(dashboard=True, page=page))["spec"]["template"]["spec"]["containers"]
    parsed = dashboard.parse_options(found["args"], {})
    assert (parsed.origins, parsed.nameless) == (("https://gpu.example.com",), True)


@pytest.mark.parametrize("port", [8081, 8088, 8443])
def test_kedas_port_is_none_that_the_page_has(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert port in {each["containerPort"] for each in container()["ports"]} == PAGE_PORTS
    assert main(["install", "--dry-run", "--dashboard-keda-port", str(port)]) == 1
    assert f"--dashboard-keda-port {port}: the page's process has 8081, 8088, 8443" in capsys.readouterr().err


def test_kedas_port_is_open_to_its_namespace_alone() -> None:
    found = installed(page=["--keda-port=9443"])
    (container,) = deployment(found)["spec"]["template"]["spec"]["containers"]
    parsed = dashboard.parse_options(container["args"], {})
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert parsed.keda_port == 9443
    assert str(parsed.keda_tls_folder) in mounts
    ports = found.one("Service", "tessera-dashboard", NAMESPACE)["spec"]["ports"]
    assert {"name": "keda", "port": 9443, "targetPort": 9443} in ports
    *_, rule = selecting(found, deployment(found))["spec"]["ingress"]
    (peer,) = rule["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "keda"}
    assert rule["ports"] == [{"protocol": "TCP", "port": 9443}]


def test_a_prometheus_reaches_the_process_with_the_folder_of_its_secret(capsys: pytest.CaptureFixture[str]) -> None:
    url = "https://thanos.monitoring:9091"
    (found,) = deployment(installed(page=[f"--prometheus={url}", "--prometheus-label=cluster=prod"]))["spec"][
        "template"
    ]["spec"]["containers"]
    mounts = {each["name"]: each["mountPath"] for each in found["volumeMounts"]}
    parsed = dashboard.parse_options(found["args"], {})
    assert parsed.prometheus == (url, Path(mounts["prometheus"]), (("cluster", "prod"),))
    assert options().prometheus is None
    assert main(["install", "--dry-run", "--dashboard-prometheus", "prometheus:9090"]) == 1
    assert '"prometheus:9090" is no address of a Prometheus; write one' in capsys.readouterr().err


def test_a_folder_for_prometheus_without_its_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--prometheus-folder", "/etc/tessera/prometheus"]) == 1
    assert capsys.readouterr().err == "error: --prometheus-folder needs --prometheus\n"


def test_without_network_policies_the_page_has_none_either() -> None:
    found = installed(dashboard=True, without=("network-policies",))
    assert not found.of_kind("NetworkPolicy")


def test_the_folder_has_the_image_of_the_installation() -> None:
    tags = [
        yaml.load((ROOT / folder / "kustomization.yaml").read_text(), yaml.CSafeLoader)["images"]
        for folder in ("deploy", "deploy/options/dashboard")
    ]
    assert tags[0] == tags[1]
