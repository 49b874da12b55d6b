"""The layout by the real umoci, pushed by skopeo to a real registry. The Containerfile describes the same image."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from release.image.labels import DESCRIPTION, SUMMARY
from release.image.layout import write_layout
from release.platforms import IMAGES
from release.wheels import ROOT
from tests.driver.registry.programs import registry, tool
from tests.release.image.trees import ORIGIN, make_trees

CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")
#: What Red Hat's check of images asks for (preflight, HasRequiredLabel).
RED_HAT = {"name", "vendor", "version", "release", "summary", "description", "maintainer"}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_trees(tmp_path_factory.mktemp("trees"))


@pytest.fixture(scope="module")
def layout(trees: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("layout") / "layout"
    return folder, write_layout(folder, dict.fromkeys(IMAGES, trees), ORIGIN, umoci=tool("umoci"))


@pytest.fixture(scope="module")
def images(layout: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What a registry answers about the pushed image: the index, and each platform's configuration."""
    folder, _ = layout
    with registry(tmp_path_factory.mktemp("registry") / "storage") as served:
        name = f"docker://{served.host}/tessera:{ORIGIN.version}"
        pushed = f"oci:{folder}:{ORIGIN.version}"
        skopeo("copy", "--all", "--dest-tls-verify=false", pushed, name)
        answers: dict[str, Any] = {"index": json.loads(skopeo("inspect", "--raw", "--tls-verify=false", name))}
        for each in IMAGES:
            inspect = ["inspect", "--config", "--tls-verify=false", name]
            answers[each.architecture] = json.loads(skopeo("--override-arch", each.architecture, *inspect))
    return answers


def skopeo(*arguments: str) -> str:
    return subprocess.run([tool("skopeo"), *arguments], capture_output=True, text=True, check=True).stdout


def test_the_same_trees_make_the_same_digest(layout: tuple[Path, str], trees: Path, tmp_path: Path) -> None:
    again = write_layout(tmp_path / "layout", dict.fromkeys(IMAGES, trees), ORIGIN, umoci=tool("umoci"))
    assert again == layout[1]


def test_a_registry_has_one_name_for_both_platforms(images: Mapping[str, Any]) -> None:
    platforms = [each["platform"] for each in images["index"]["manifests"]]
    assert platforms == [{"architecture": name, "os": "linux"} for name in ("amd64", "arm64")]
    assert [images[name]["architecture"] for name in ("amd64", "arm64")] == ["amd64", "arm64"]


def test_the_image_runs_tessera_as_a_user_without_rights(images: Mapping[str, Any]) -> None:
    config = images["amd64"]["config"]
    assert (config["User"], config["Entrypoint"], config.get("Cmd")) == ("65532:65532", ["tessera"], None)
    assert f"USER {config['User']}" in CONTAINERFILE
    path, commit = config["Env"]
    assert f"ENV {path}" in CONTAINERFILE
    assert commit == f"TESSERA_COMMIT={ORIGIN.revision}"
    assert "ENV TESSERA_COMMIT=$REVISION" in CONTAINERFILE
    assert 'ENTRYPOINT ["tessera"]' in CONTAINERFILE


def test_each_tree_is_a_layer_and_tessera_is_the_last(images: Mapping[str, Any]) -> None:
    history = images["amd64"]["history"]
    assert [each["created_by"].rpartition(" ")[2] for each in history] == ["system", "libraries", "application"]
    assert {each["created"] for each in history} == {"2023-11-14T22:13:20Z"} == {images["amd64"]["created"]}
    assert re.findall(r"^COPY --from=build /image/(\S+) /$", CONTAINERFILE, re.MULTILINE) == [
        "system",
        "libraries",
        "application",
    ]


def test_labels_are_those_of_oci_and_red_hat_and_the_containerfiles(images: Mapping[str, Any]) -> None:
    labels = images["amd64"]["config"]["Labels"]
    assert labels.keys() >= RED_HAT
    assert labels["org.opencontainers.image.revision"] == ORIGIN.revision
    assert labels["org.opencontainers.image.source"] == ORIGIN.source
    written = {name: value.strip('"') for name, value in re.findall(r'([\w.-]+)=("[^"]*"|\S+)', _label_lines())}
    arguments = {"$VERSION": ORIGIN.version, "$REVISION": ORIGIN.revision, "$CREATED": ORIGIN.created}
    arguments |= {"$SOURCE": ORIGIN.source}
    assert {name: arguments.get(value, value) for name, value in written.items()} == labels
    assert (labels["summary"], labels["description"]) == (SUMMARY, DESCRIPTION)


def _label_lines() -> str:
    return CONTAINERFILE[CONTAINERFILE.index("LABEL ") :].replace("LABEL ", "")
