"""What the chart renders is valid on every supported Kubernetes, and the chart refuses others."""

import base64
import json
import subprocess
from pathlib import Path

import pytest
import yaml
from charts.files import FOLDER
from tests.charts.conftest import Helm
from tests.support.helm_program import HELM
from tests.support.kubernetes_schemas import validate

from tessera import __version__
from tessera.api.names import LAB_SUFFIX

OLDEST, NEWEST = 31, 37
SUPPORTED = tuple(f"1.{minor}" for minor in range(OLDEST, NEWEST + 1))
#: `make test` tries the oldest and the newest version, `make soak` each: a field that the chart uses, and that one
#: version lacks, is missing in all before it or in all after it.
VERSIONS = [
    version if version in (SUPPORTED[0], SUPPORTED[-1]) else pytest.param(version, marks=pytest.mark.soak)
    for version in SUPPORTED
]
VALUES = sorted((FOLDER / "ci").glob("*-values.yaml"))
#: Groups of kinds that are in no schema of Kubernetes.
FOREIGN = ("monitoring.coreos.com/", "cert-manager.io/", "security.openshift.io/")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.stem)
def test_every_object_is_valid_with_no_unknown_field(file: Path, version: str, helm: Helm) -> None:
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    if "claims" in values.get("tessera", {}) and SUPPORTED.index(version) < SUPPORTED.index("1.34"):
        pytest.skip("ResourceClaims came with 1.34")
    objects = helm.template(values, "gpu", "--kube-version", f"{version}.0{LAB_SUFFIX}")
    assert objects
    for manifest in objects:
        if not manifest["apiVersion"].startswith(FOREIGN):
            validate(manifest, version)


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.stem)
def test_helm_finds_nothing_to_say_about_each_values_file(file: Path, helm: Helm) -> None:
    done = helm.run("lint", "--strict", str(FOLDER), values=yaml.safe_load(file.read_text(encoding="utf-8")))
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


def test_an_older_kubernetes_is_refused(helm: Helm) -> None:
    done = helm.run("template", "tessera", str(FOLDER), "--kube-version", "1.30")
    assert done.returncode != 0
    assert "requires kubeVersion: >=1.31.0-0" in done.stderr


def test_openshift_is_recognised_by_its_kinds(helm: Helm) -> None:
    plain = helm.template({}, "gpu")
    openshift = helm.template({}, "gpu", "--api-versions", "security.openshift.io/v1")
    more = {(each["kind"], each["metadata"]["name"]) for each in openshift if each not in plain}
    assert ("SecurityContextConstraints", "tessera-build") in more
    assert not [each for each in plain if each["kind"] == "SecurityContextConstraints"]


def test_definitions_stay_when_the_release_is_removed_and_can_be_left_out(helm: Helm) -> None:
    def definitions(**crds: bool) -> list[dict[str, object]]:
        found = helm.template({"tessera": {"crds": crds}}, "gpu")
        return [each["metadata"] for each in found if each["kind"] == "CustomResourceDefinition"]

    kept = definitions()
    assert {each["name"] for each in kept} == {each["name"] for each in annotation("crds")}
    annotations = {"helm.sh/resource-policy": "keep", "tessera.dev/format": "1"}
    assert all(each["annotations"] == annotations for each in kept)
    assert definitions(install=False) == []


# The chart's own description

CHART = yaml.safe_load((FOLDER / "Chart.yaml").read_text(encoding="utf-8"))
#: What Artifact Hub reads: docs/topics/annotations/helm of its documentation.
KNOWN = {"category", "license", "prerelease", "containsSecurityUpdates", "changes", "crds", "images"}
KINDS_OF_CHANGES = {"added", "changed", "deprecated", "removed", "fixed", "security"}


def annotation(name: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = yaml.safe_load(CHART["annotations"][f"artifacthub.io/{name}"])
    return found


def test_its_icon_is_that_of_the_bundle() -> None:
    kind, _, data = CHART["icon"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data, validate=True) == (FOLDER.parents[1] / "bundle" / "icon.svg").read_bytes()


def test_artifact_hub_knows_every_annotation() -> None:
    assert set(CHART["annotations"]) == {f"artifacthub.io/{name}" for name in KNOWN}
    assert CHART["annotations"]["artifacthub.io/category"] == "ai-machine-learning"
    assert all(json.loads(CHART["annotations"][f"artifacthub.io/{name}"]) in {True, False} for name in ("prerelease",))
    assert {str(each["kind"]) for each in annotation("changes")} <= KINDS_OF_CHANGES


def test_the_listed_definitions_and_images_are_those_of_the_chart(helm: Helm) -> None:
    objects = helm.template({}, "gpu")
    definitions = [each for each in objects if each["kind"] == "CustomResourceDefinition"]
    assert {(each["name"], each["kind"], each["version"]) for each in annotation("crds")} == {
        (each["metadata"]["name"], each["spec"]["names"]["kind"], each["spec"]["versions"][0]["name"])
        for each in definitions
    }
    used = {
        container["image"]
        for each in objects
        if each["kind"] in {"Deployment", "DaemonSet"}
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    assert {each["image"] for each in annotation("images")} == used


def test_the_chart_says_how_it_is_used(helm: Helm) -> None:
    shown = subprocess.run([HELM, "show", "readme", str(FOLDER)], capture_output=True, text=True, check=True).stdout
    for command in (
        "-n tessera-system --create-namespace",
        "--reset-then-reuse-values",
        "--take-ownership",
        "uninstall",
    ):
        assert command in shown
    assert f"REGISTRY/tessera:{__version__}" in shown
