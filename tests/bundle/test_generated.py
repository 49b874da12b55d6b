"""The files of the bundle are those that ``python -m bundle`` writes, and they keep all rules."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from bundle.check.problems import WARNING
from bundle.check.reading import CSV_KIND, read_bundle
from bundle.check.rules import KEPT, check
from bundle.files import FOLDER, generate
from bundle.publisher import Publisher
from bundle.service_version import CONFIG_MAP, definition, service_version
from tests.support.kubernetes_schemas import validate

from tessera.cli.install.operator import parse_options
from tessera.cli.install.operator_process import bundled_objects
from tessera.doctor.manifests import install_manifests

SUPPORTED = tuple(f"1.{minor}" for minor in range(31, 38))


def test_the_files_are_up_to_date_and_none_is_left_over() -> None:
    found = {str(each.relative_to(FOLDER)): each.read_text() for each in FOLDER.rglob("*") if each.is_file()}
    assert found == generate(), "run python -m bundle"


def test_only_warnings_with_a_reason_are_left() -> None:
    found = list(check(read_bundle(FOLDER)))
    assert {rule for rule, _ in found} == set(KEPT)
    assert {problem.level for _, problem in found} == {WARNING}


def test_a_release_has_its_publisher_in_it_and_keeps_the_rules(tmp_path: Path) -> None:
    image = f"registry.local/tessera@sha256:{'a' * 64}"
    arguments = ["--image", image, "--provider", "Somebody", "--maintainer", "Ann=ann@example.com"]
    arguments += ["--link", "Pages=https://example.com/docs", "--replaces", "tessera.v0.0.9", "--output", str(tmp_path)]
    arguments += ["--repository", "https://example.com/tessera"]
    subprocess.run([sys.executable, "-m", "bundle", *arguments], check=True)
    bundle = read_bundle(tmp_path)
    assert {rule for rule, _ in check(bundle)} == set(KEPT)
    (deployment,) = bundle.strategy["deployments"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == bundle.csv_annotations["containerImage"] == image
    assert {each["image"] for each in bundle.spec["relatedImages"]} == {image}
    assert {"name": "RELATED_IMAGE_TESSERA", "value": image} in container["env"]
    assert (bundle.spec["maintainers"], bundle.spec["replaces"]) == (
        [{"name": "Ann", "email": "ann@example.com"}],
        "tessera.v0.0.9",
    )


def test_the_checker_says_what_is_wrong_and_fails(tmp_path: Path) -> None:
    for name, text in generate().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace("AI/Machine Learning", "Machines"))
    done = subprocess.run(
        [sys.executable, "-m", "bundle.check", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "error: annotation categories has 'Machines'" in done.stdout


@pytest.mark.parametrize("version", SUPPORTED)
def test_the_deployment_is_valid_on_every_kubernetes(version: str) -> None:
    (each,) = service_version(Publisher())["spec"]["install"]["spec"]["deployments"]
    metadata = {"name": each["name"], "labels": each["label"]}
    validate({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": each["spec"]}, version)
    validate(definition(), version)


def test_the_operator_takes_its_arguments_and_its_settings_are_those_that_it_may_read() -> None:
    (each,) = service_version(Publisher())["spec"]["install"]["spec"]["deployments"]
    (container,) = each["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["tessera", "operator"]
    options = parse_options(container["args"], {"POD_NAMESPACE": "here"})
    assert options.config_map == CONFIG_MAP
    assert options.http_port == container["ports"][0]["containerPort"]


def test_the_bundle_has_the_objects_that_the_operator_leaves_alone_and_no_others() -> None:
    found = [each for each in read_bundle(FOLDER).objects if each["kind"] != CSV_KIND]
    assert sorted(found, key=str) == sorted(bundled_objects(install_manifests()), key=str)
    assert {(each["kind"], each["metadata"]["name"]) for each in found if each["kind"] != "ClusterRole"} == {
        ("CustomResourceDefinition", each["name"]) for each in read_bundle(FOLDER).owned
    }


def test_the_roles_for_people_are_made_by_olm_and_bound_to_no_account() -> None:
    roles = {each["metadata"]["name"] for each in read_bundle(FOLDER).of_kind("ClusterRole")}
    bound = {
        each["roleRef"]["name"]
        for each in install_manifests()
        if each["kind"].endswith("Binding") and "roleRef" in each
    }
    for_people = {"tessera-admin", "tessera-cluster-view", "tessera-edit", "tessera-usage-reader", "tessera-view"}
    assert roles == {*for_people, "tessera-metrics-reader"}
    assert not roles & bound


def test_the_example_is_an_object_of_the_definition() -> None:
    (example,) = json.loads(read_bundle(FOLDER).csv_annotations["alm-examples"])
    crd = definition()
    assert example["apiVersion"] == f"{crd['spec']['group']}/{crd['spec']['versions'][0]['name']}"
    assert example["metadata"]["namespace"] == "instaslice-system"


def test_the_icon_is_a_picture() -> None:
    (icon,) = read_bundle(FOLDER).spec["icon"]
    assert ET.fromstring(base64.b64decode(icon["base64data"])).tag.endswith("svg")


def test_the_dockerfile_copies_every_folder_of_the_bundle() -> None:
    text = (FOLDER / "bundle.Dockerfile").read_text()
    folders = {each.split()[1].split("/")[0] for each in text.splitlines() if each.startswith("COPY ")}
    assert folders == {each.name for each in FOLDER.iterdir() if each.is_dir()}
    assert (
        yaml.load((FOLDER / "metadata" / "annotations.yaml").read_text(), yaml.CSafeLoader)["annotations"]
        == read_bundle(FOLDER).labels
    )
