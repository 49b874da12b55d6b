"""Each rule of the checker finds a bundle that breaks it."""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from bundle.check import catalogue_rules as catalogue
from bundle.check import package_rules as package
from bundle.check import version_rules as version
from bundle.check.problems import ERROR, WARNING, Rule
from bundle.check.reading import Bundle, read_bundle
from bundle.check.rules import KEPT, RULES
from bundle.files import FOLDER

GOOD = read_bundle(FOLDER)
CSV_FILE = "tessera.clusterserviceversion.yaml"
CRD_FILE = "inference.redhat.com_instaslices.yaml"
MODES = ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")

Change = Callable[[Bundle], Bundle]


def csv(change: Callable[[Any], Any]) -> Change:
    """A bundle whose ClusterServiceVersion is changed."""
    return _file(CSV_FILE, change)


def crd(change: Callable[[Any], Any]) -> Change:
    """A bundle whose definition is changed."""
    return _file(CRD_FILE, change)


def _file(name: str, change: Callable[[Any], Any]) -> Change:
    def changed(bundle: Bundle) -> Bundle:
        objects = copy.deepcopy(list(bundle.manifests[name]))
        change(objects[0])
        return bundle._replace(manifests={**bundle.manifests, name: objects})

    return changed


def spec(**fields: Any) -> Change:
    """A bundle with other fields in its ClusterServiceVersion's specification; None removes a field."""

    def change(found: Any) -> None:
        for name, value in fields.items():
            found["spec"].pop(name, None)
            if value is not None:
                found["spec"][name] = value

    return csv(change)


def annotation(name: str, value: str | None) -> Change:
    """A bundle with another annotation of its ClusterServiceVersion."""

    def change(found: Any) -> None:
        found["metadata"]["annotations"].pop(name, None)
        if value is not None:
            found["metadata"]["annotations"][name] = value

    return csv(change)


def metadata(**values: str | None) -> Change:
    """A bundle with other annotations of its own, by the last part of their names; the labels follow."""

    def changed(bundle: Bundle) -> Bundle:
        full = {key.replace("operators.operatorframework.io.", ""): key for key in bundle.annotations or {}}
        names = {name: full.get(name.replace("__", "."), name.replace("__", ".")) for name in values}
        found = {**(bundle.annotations or {}), **{names[name]: value for name, value in values.items()}}
        kept: Mapping[str, Any] = {key: value for key, value in found.items() if value is not None}
        return bundle._replace(annotations=kept, labels=kept)

    return changed


def with_object(manifest: Any) -> Change:
    """A bundle with one more object."""
    return lambda bundle: bundle._replace(manifests={**bundle.manifests, "more.yaml": [manifest]})


def role(**rule: Any) -> Change:
    """A bundle with a ClusterRole of one rule."""
    return with_object({"apiVersion": "v1", "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [rule]})


def container(change: Callable[[Any], Any]) -> Change:
    """A bundle with another container."""

    def changed(found: Any) -> None:
        change(found["spec"]["install"]["spec"]["deployments"][0]["spec"]["template"]["spec"]["containers"][0])

    return csv(changed)


def example(change: Callable[[Any], Any]) -> Change:
    """A bundle with another example."""
    found = json.loads(GOOD.csv_annotations["alm-examples"])
    change(found[0])
    return annotation("alm-examples", json.dumps(found))


def owned(change: Callable[[Any], Any]) -> Change:
    """A bundle with another description of the definition that it owns."""
    return csv(lambda found: change(found["spec"]["customresourcedefinitions"]["owned"][0]))


def modes(*supported: str) -> list[dict[str, Any]]:
    return [{"type": each, "supported": each in supported} for each in MODES]


def scorecard(change: Callable[[Any], Any]) -> Change:
    def changed(bundle: Bundle) -> Bundle:
        found = copy.deepcopy(bundle.scorecard)
        change(found)
        return bundle._replace(scorecard=found)

    return changed


BUDGET = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}}
CLASS = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "c"}}
ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tessera-operator"}}
DAEMON_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "tessera-agent"}}

#: The rule, the level and a part of its finding, and a change that breaks it.
BROKEN: list[tuple[Rule, str, str, Change]] = [
    (package.annotations, ERROR, "is missing", lambda bundle: bundle._replace(annotations=None)),
    (package.annotations, ERROR, "must be 'registry+v1'", metadata(bundle__mediatype__v1="plain+v0")),
    (package.annotations, ERROR, "must be 'manifests/'", metadata(bundle__manifests__v1="objects/")),
    (package.annotations, ERROR, "package.v1 is missing or empty", metadata(bundle__package__v1="")),
    (package.annotations, ERROR, "channels.v1 is missing or empty", metadata(bundle__channels__v1=None)),
    (package.annotations, ERROR, "none of the channels", metadata(bundle__channel__default__v1="stable")),
    (package.labels, ERROR, "differ in a", lambda bundle: bundle._replace(labels={**bundle.labels, "a": "b"})),
    (package.files, ERROR, "missing or empty", lambda bundle: bundle._replace(manifests={})),
    (package.files, ERROR, "more.yaml has 0 objects", lambda b: b._replace(manifests={**b.manifests, "more.yaml": []})),
    (package.files, ERROR, "of kind DaemonSet", with_object(DAEMON_SET)),
    (package.files, ERROR, "of kind NetworkPolicy", with_object({**DAEMON_SET, "kind": "NetworkPolicy"})),
    (package.one_version, ERROR, "there are 2", with_object({**GOOD.csv})),
    (
        package.definitions,
        ERROR,
        "must be apiextensions",
        crd(lambda found: found.update(apiVersion="apiextensions.k8s.io/v1beta1")),
    ),
    (package.definitions, ERROR, "no structural schema", crd(lambda found: found["spec"]["versions"][0].pop("schema"))),
    (
        package.removed_versions,
        ERROR,
        "removed policy/v1beta1",
        with_object({**BUDGET, "apiVersion": "policy/v1beta1", "spec": {}}),
    ),
    (package.size, ERROR, "at most 1048576", lambda bundle: bundle._replace(compressed=2**20 + 1)),
    (package.size, WARNING, "near the limit", lambda bundle: bundle._replace(compressed=2**20 - 1)),
    (package.scorecard_annotations, ERROR, "test.config.v1 must be", metadata(test__config__v1=None)),
    (version.identity, ERROR, "apiVersion is missing", csv(lambda found: found.pop("apiVersion"))),
    (
        version.identity,
        ERROR,
        "metadata.name is 'Tessera'",
        csv(lambda found: found["metadata"].update(name="Tessera")),
    ),
    (version.identity, ERROR, "at most 63 characters", csv(lambda found: found["metadata"].update(name="a" * 64))),
    (version.identity, ERROR, "spec.replaces is 'a_b'", spec(replaces="a_b")),
    (version.required_fields, ERROR, "displayName", spec(displayName=None)),
    (
        version.required_fields,
        ERROR,
        "spec.install.strategy",
        csv(lambda found: found["spec"]["install"].update(strategy="helm")),
    ),
    (version.install_modes, ERROR, "is missing", spec(installModes=None)),
    (version.install_modes, ERROR, "supports none", spec(installModes=modes())),
    (version.install_modes, ERROR, "AllNamespaces twice", spec(installModes=[*modes("AllNamespaces"), *modes()[3:]])),
    (version.install_modes, ERROR, "no install mode", spec(installModes=[{"type": "Everywhere", "supported": True}])),
    (
        version.conversion_webhooks,
        ERROR,
        "AllNamespaces only",
        spec(installModes=modes("OwnNamespace", "AllNamespaces"), webhookdefinitions=[{"conversionCRDs": ["x"]}]),
    ),
    (version.webhook_conditions, ERROR, "drops matchConditions", spec(webhookdefinitions=[{"generateName": "x"}])),
    (
        version.definitions,
        ERROR,
        "there twice",
        lambda b: b._replace(manifests={**b.manifests, "more.yaml": b.manifests[CRD_FILE]}),
    ),
    (
        version.definitions,
        ERROR,
        "whose definition the bundle lacks",
        lambda b: b._replace(manifests={CSV_FILE: b.manifests[CSV_FILE]}),
    ),
    (version.definitions, ERROR, "customresourcedefinitions lacks it", spec(customresourcedefinitions={"owned": []})),
    (version.examples, WARNING, "is missing", annotation("alm-examples", None)),
    (version.examples, ERROR, "is no JSON", annotation("alm-examples", "[")),
    (version.examples, ERROR, "does not own", example(lambda found: found.update(kind="Other"))),
    (version.examples, WARNING, "has no example of Instaslice", annotation("alm-examples", "[]")),
    (version.kubernetes_version, WARNING, "is missing", spec(minKubeVersion=None)),
    (version.kubernetes_version, ERROR, "semantic version", spec(minKubeVersion="1.31")),
    (version.release, ERROR, "must be tessera-v0.2.0-2", spec(release="2")),
    (version.related_images, ERROR, "no name of an image", spec(relatedImages=[{"name": "a", "image": "UPPER:"}])),
    (version.related_images, ERROR, "image is ''", spec(relatedImages=[{"name": "a"}])),
    (version.related_images, WARNING, "lacks tessera", spec(relatedImages=[])),
    (version.accounts, ERROR, "OLM makes it", with_object(ACCOUNT)),
    (version.annotation_names, ERROR, "must be written olm.skipRange", annotation("olm.skiprange", "<1.0.0")),
    (version.annotation_names, WARNING, "properties.yaml", annotation("olm.properties", "[]")),
    (catalogue.publisher, ERROR, "provider.name", spec(provider={})),
    (catalogue.publisher, ERROR, "mail address", spec(maintainers=[{"name": "Ann", "email": "ann"}])),
    (catalogue.publisher, ERROR, "a name and an address", spec(links=[{"name": "Docs", "url": "docs"}])),
    (catalogue.version, ERROR, "spec.version is 'v1'", spec(version="v1")),
    (catalogue.icon, WARNING, "is missing", spec(icon=None)),
    (catalogue.icon, ERROR, "has 2 entries", spec(icon=[*GOOD.spec["icon"]] * 2)),
    (
        catalogue.icon,
        ERROR,
        "media type 'image/webp'",
        spec(icon=[{**GOOD.spec["icon"][0], "mediatype": "image/webp"}]),
    ),
    (catalogue.icon, ERROR, "no data in base64", spec(icon=[{"mediatype": "image/png", "base64data": ""}])),
    (catalogue.capabilities, ERROR, "'Some'", annotation("capabilities", "Some")),
    (catalogue.categories, ERROR, "'GPUs'", annotation("categories", "Monitoring, GPUs")),
    (
        catalogue.deployments,
        ERROR,
        "deployments is empty",
        csv(lambda found: found["spec"]["install"]["spec"].update(deployments=[])),
    ),
    (catalogue.deployments, WARNING, "requests no CPU", container(lambda found: found.pop("resources"))),
    (catalogue.channels, WARNING, "'preview'", metadata(bundle__channels__v1="preview,stable")),
    (catalogue.name, WARNING, "PACKAGE.vVERSION", csv(lambda found: found["metadata"].update(name="tessera-0.1.0"))),
    (catalogue.described_definitions, WARNING, "is empty", owned(lambda found: found.update(description=""))),
    (
        catalogue.made_definitions,
        WARNING,
        "all",
        role(apiGroups=["apiextensions.k8s.io"], resources=["customresourcedefinitions"], verbs=["create"]),
    ),
    (
        catalogue.foreign_rights,
        ERROR,
        "['privileged']",
        role(
            apiGroups=["security.openshift.io"],
            resources=["securitycontextconstraints"],
            verbs=["patch"],
            resourceNames=["privileged"],
        ),
    ),
    (
        catalogue.foreign_rights,
        WARNING,
        "budgets: ['x']",
        role(apiGroups=["policy"], resources=["poddisruptionbudgets"], verbs=["create"], resourceNames=["x"]),
    ),
    (catalogue.objects, ERROR, "lets no pod go", with_object({**BUDGET, "spec": {"maxUnavailable": 0}})),
    (catalogue.objects, ERROR, "lets no pod go", with_object({**BUDGET, "spec": {"minAvailable": "100%"}})),
    (catalogue.objects, ERROR, "cluster's default", with_object({**CLASS, "globalDefault": True})),
    (
        catalogue.platforms,
        ERROR,
        "must be 'supported'",
        csv(lambda found: found["metadata"]["labels"].update({"operatorframework.io/arch.arm64": "yes"})),
    ),
    (catalogue.openshift, ERROR, "write v4.18", metadata(com__redhat__openshift__versions="4.18+")),
    (
        catalogue.scorecard_tests,
        ERROR,
        "lacks the test olm-spec-descriptors",
        scorecard(lambda found: found["stages"][0]["tests"].pop(4)),
    ),
    (catalogue.scorecard_specs, ERROR, "has no spec", example(lambda found: found.pop("spec"))),
    (catalogue.scorecard_validation, ERROR, "spec.other", example(lambda found: found["spec"].update(other=1))),
    (catalogue.scorecard_resources, ERROR, "lists no resources", owned(lambda found: found.pop("resources"))),
    (
        catalogue.scorecard_descriptors,
        ERROR,
        "no descriptor of spec.podAllocationRequests",
        owned(lambda found: found.update(specDescriptors=[])),
    ),
    (
        catalogue.scorecard_descriptors,
        ERROR,
        "no descriptors of its status",
        owned(lambda found: found.pop("statusDescriptors")),
    ),
]


@pytest.mark.parametrize(
    ("rule", "level", "text", "change"), BROKEN, ids=[f"{rule.__name__}-{text}" for rule, _, text, _ in BROKEN]
)
def test_a_bundle_that_breaks_a_rule_is_found(rule: Rule, level: str, text: str, change: Change) -> None:
    before = list(rule(GOOD))
    found = [each for each in rule(change(GOOD)) if each not in before]
    assert [each.level for each in found if text in each.text][:1] == [level], found


def test_every_rule_has_a_bundle_that_breaks_it() -> None:
    assert {rule for rule, *_ in BROKEN} == set(RULES)


@pytest.mark.parametrize("rule", [each for each in RULES if each not in KEPT], ids=lambda rule: rule.__name__)
def test_the_bundle_keeps_it(rule: Rule) -> None:
    assert list(rule(GOOD)) == []
