"""Rules of catalogues: OperatorHub, good practices, objects, architectures, OpenShift's range, the scorecard.

Sources: operator-framework/api, ``operatorhubv2.go``, ``standardcategories.go``, ``standardcapabilities.go``,
``good_practices.go``, ``object.go``, ``multiarch.go``, ``community.go``; operator-sdk, ``scorecard/tests``.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlparse

from bundle.check.package_rules import CHANNELS
from bundle.check.problems import Problem, Rule, error, warning
from bundle.check.reading import CRD_KIND, Bundle
from bundle.check.version_rules import SEMVER
from bundle.files import SCORECARD_TESTS

CAPABILITIES = frozenset({"Basic Install", "Seamless Upgrades", "Full Lifecycle", "Deep Insights", "Auto Pilot"})
CATEGORIES = frozenset(
    {
        *("AI/Machine Learning", "Application Runtime", "Big Data", "Cloud Provider", "Developer Tools", "Database"),
        *("Integration & Delivery", "Logging & Tracing", "Monitoring", "Modernization & Migration", "Networking"),
        *("OpenShift Optional", "Security", "Storage", "Streaming & Messaging", "Observability"),
    }
)
_MEDIA = frozenset({"image/gif", "image/jpeg", "image/png", "image/svg+xml"})
_MAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_RANGE = re.compile(r"=?v4\.[0-9]+(-v4\.[0-9]+)?")
_PLATFORM = re.compile(r"operatorframework\.io/(arch|os)\.[a-z0-9_]+")
#: The constraints that OpenShift has, which nobody may change.
_CONSTRAINTS = frozenset(
    {"privileged", "restricted", "anyuid", "hostaccess", "hostmount-anyuid", "hostnetwork", "node-exporter", "nonroot"}
)


def publisher(bundle: Bundle) -> Iterator[Problem]:
    """The publisher has a name; maintainers and links are whole."""
    spec = bundle.spec
    if not (spec.get("provider") or {}).get("name"):
        yield error("spec.provider.name is missing")
    for each in spec.get("maintainers") or ():
        if not each.get("name") or not _MAIL.fullmatch(each.get("email", "")):
            yield error(f"spec.maintainers has {each}; each needs a name and a mail address")
    for each in spec.get("links") or ():
        parts = urlparse(each.get("url", ""))
        if not each.get("name") or not (parts.scheme and parts.netloc):
            yield error(f"spec.links has {each}; each needs a name and an address")


def version(bundle: Bundle) -> Iterator[Problem]:
    """The version is set and semantic."""
    if not SEMVER.fullmatch(str(bundle.spec.get("version") or "")):
        yield error(f"spec.version is {bundle.spec.get('version')!r}; it must be a semantic version")


def icon(bundle: Bundle) -> Iterator[Problem]:
    """There is one icon, of a kind that consoles show."""
    found = bundle.spec.get("icon") or ()
    if not found:
        yield warning("spec.icon is missing")
    if len(found) > 1:
        yield error(f"spec.icon has {len(found)} entries; it must have one")
    for each in found:
        if each.get("mediatype") not in _MEDIA:
            yield error(f"spec.icon has the media type {each.get('mediatype')!r}; it must be one of {sorted(_MEDIA)}")
        try:
            empty = not base64.b64decode(each.get("base64data", ""), validate=True)
        except ValueError:
            empty = True
        if empty:
            yield error("spec.icon has no data in base64")


def capabilities(bundle: Bundle) -> Iterator[Problem]:
    """The level of capabilities is one of five."""
    found = bundle.csv_annotations.get("capabilities")
    if found is not None and found not in CAPABILITIES:
        yield error(f"annotation capabilities is {found!r}; it must be one of {sorted(CAPABILITIES)}")


def categories(bundle: Bundle) -> Iterator[Problem]:
    """The categories are those of OperatorHub."""
    found = bundle.csv_annotations.get("categories")
    for each in found.split(",") if found is not None else ():
        if each.strip() not in CATEGORIES:
            yield error(f"annotation categories has {each.strip()!r}, which is none of OperatorHub's categories")


def deployments(bundle: Bundle) -> Iterator[Problem]:
    """There is a Deployment, and its containers request CPU and memory."""
    found = bundle.strategy.get("deployments") or ()
    if not found:
        yield error("spec.install.spec.deployments is empty")
    for deployment in found:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            requests = (container.get("resources") or {}).get("requests") or {}
            if not {"cpu", "memory"} <= set(requests):
                yield warning(f"container {container['name']} requests no CPU or no memory")


def channels(bundle: Bundle) -> Iterator[Problem]:
    """Channels are named candidate, fast or stable, each with a suffix or without."""
    for each in (bundle.annotations or {}).get(CHANNELS, "").split(","):
        if not each.strip().startswith(("candidate", "fast", "stable")):
            yield warning(f"channel {each.strip()!r} should begin with candidate, fast or stable")


def name(bundle: Bundle) -> Iterator[Problem]:
    """The name is that of the package and the version."""
    found = bundle.csv.get("metadata", {}).get("name", "")
    before, dot, after = found.partition(".v")
    if not (before and dot and SEMVER.fullmatch(after)):
        yield warning(f"metadata.name is {found!r}; it should be PACKAGE.vVERSION")


def described_definitions(bundle: Bundle) -> Iterator[Problem]:
    """Each definition has a description."""
    definitions = bundle.spec.get("customresourcedefinitions") or {}
    for each in [*(definitions.get("owned") or ()), *(definitions.get("required") or ())]:
        if not each.get("description"):
            yield warning(f"the description of {each['name']} is empty")


def made_definitions(bundle: Bundle) -> Iterator[Problem]:
    """The operator makes no definitions itself."""
    for each in _rules(bundle):
        if "apiextensions.k8s.io" in (each.get("apiGroups") or ()) and {"create", "patch", "*"} & set(each["verbs"]):
            yield warning(f"the operator may create or change definitions: {each.get('resourceNames', 'all')}")


def _rules(bundle: Bundle) -> Iterator[Mapping[str, Any]]:
    for part in ("permissions", "clusterPermissions"):
        for each in bundle.strategy.get(part) or ():
            yield from each["rules"]
    for each in (*bundle.of_kind("Role"), *bundle.of_kind("ClusterRole")):
        yield from each.get("rules") or ()


def foreign_rights(bundle: Bundle) -> Iterator[Problem]:
    """No right changes OpenShift's own constraints, or the budgets of others."""
    for each in _rules(bundle):
        verbs, resources = set(each["verbs"]), each.get("resources") or ()
        if "securitycontextconstraints" in resources and verbs & {"*", "update", "patch", "delete"}:
            changed = _CONSTRAINTS & set(each.get("resourceNames") or _CONSTRAINTS)
            if changed:
                yield error(f"a rule may change OpenShift's constraints {sorted(changed)}")
        if "poddisruptionbudgets" in resources and verbs & {"*", "create", "update", "patch"}:
            yield warning(f"a rule may change disruption budgets: {each.get('resourceNames', 'all')}")


def objects(bundle: Bundle) -> Iterator[Problem]:
    """Budgets leave room for a drain; no priority class is the default of a cluster."""
    for each in bundle.of_kind("PodDisruptionBudget"):
        spec = each["spec"]
        if spec.get("maxUnavailable") in (0, "0%") or spec.get("minAvailable") == "100%":
            yield error(f"PodDisruptionBudget {each['metadata']['name']} lets no pod go")
    for each in bundle.of_kind("PriorityClass"):
        if each.get("globalDefault"):
            yield error(f"PriorityClass {each['metadata']['name']} must not be the cluster's default")


def platforms(bundle: Bundle) -> Iterator[Problem]:
    """Labels of architectures and systems have the value supported."""
    for key, value in (bundle.csv.get("metadata", {}).get("labels") or {}).items():
        if _PLATFORM.fullmatch(key) and value != "supported":
            yield error(f"label {key} is {value!r}; it must be 'supported', or be left out")


def openshift(bundle: Bundle) -> Iterator[Problem]:
    """The range of OpenShift's versions is written as catalogues read it."""
    found = (bundle.annotations or {}).get("com.redhat.openshift.versions")
    if found is not None and not _RANGE.fullmatch(found):
        yield error(f"annotation com.redhat.openshift.versions is {found!r}; write v4.18, =v4.18 or v4.18-v4.21")


# The scorecard


def scorecard_tests(bundle: Bundle) -> Iterator[Problem]:
    """The scorecard has the tests of the Operator Framework."""
    stages = (bundle.scorecard or {}).get("stages") or ()
    found = {test["entrypoint"][-1] for stage in stages for test in stage["tests"]}
    for each in sorted(set(SCORECARD_TESTS) - found):
        yield error(f"tests/scorecard/config.yaml lacks the test {each}")


def scorecard_specs(bundle: Bundle) -> Iterator[Problem]:
    """Each example has a spec (basic-check-spec)."""
    for each in _examples(bundle):
        if "spec" not in each:
            yield error(f"the example of {each['kind']} has no spec")


def scorecard_validation(bundle: Bundle) -> Iterator[Problem]:
    """Each field of an example is in the definition's schema (olm-crds-have-validation)."""
    schemas = {
        each["spec"]["names"]["kind"]: version["schema"]["openAPIV3Schema"].get("properties") or {}
        for each in bundle.of_kind(CRD_KIND)
        for version in each["spec"]["versions"]
        if version.get("schema")
    }
    for each in _examples(bundle):
        for part in ("spec", "status"):
            known = (schemas.get(each["kind"], {}).get(part) or {}).get("properties") or {}
            for field in sorted(set(each.get(part) or ()) - set(known)):
                yield error(f"the example of {each['kind']} has {part}.{field}, which the definition has not")


def scorecard_resources(bundle: Bundle) -> Iterator[Problem]:
    """Each owned kind lists the resources that it uses (olm-crds-have-resources)."""
    for each in bundle.owned:
        if not each.get("resources"):
            yield error(f"{each['name']} lists no resources")


def scorecard_descriptors(bundle: Bundle) -> Iterator[Problem]:
    """Each field of an example's spec, and of the status of the definition, has a descriptor."""
    owned = {each["kind"]: each for each in bundle.owned}
    for each in _examples(bundle):
        described = {found["path"] for found in owned.get(each["kind"], {}).get("specDescriptors") or ()}
        for field in sorted(set(each.get("spec") or ()) - described):
            yield error(f"{each['kind']} has no descriptor of spec.{field}")
    for each in bundle.owned:
        if not each.get("statusDescriptors"):
            yield error(f"{each['kind']} has no descriptors of its status")


def _examples(bundle: Bundle) -> Sequence[Mapping[str, Any]]:
    try:
        found: Sequence[Mapping[str, Any]] = json.loads(bundle.csv_annotations.get("alm-examples", "[]"))
    except ValueError:
        return ()
    return found


RULES: tuple[Rule, ...] = (
    publisher,
    version,
    icon,
    capabilities,
    categories,
    deployments,
    channels,
    name,
    described_definitions,
    made_definitions,
    foreign_rights,
    objects,
    platforms,
    openshift,
    scorecard_tests,
    scorecard_specs,
    scorecard_validation,
    scorecard_resources,
    scorecard_descriptors,
)
