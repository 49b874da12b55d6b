"""The whole image, built once for the long tests: some minutes, and downloads that stay in ``.venv/release``."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from release.image.labels import of_checkout
from release.image.layout import write_layout
from release.image.root import build
from release.platforms import IMAGES, Platform
from release.wheels import ROOT
from tests.driver.registry.programs import registry, tool
from tests.release.image.unpacked import UnpackedImage

CACHE = ROOT / ".venv" / "release"


@pytest.fixture(scope="session")
def built_trees(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Platform, Path]:
    folder = tmp_path_factory.mktemp("trees")
    for each in IMAGES:
        build(each, folder / each.architecture, CACHE)
    return {each: folder / each.architecture for each in IMAGES}


@pytest.fixture(scope="session")
def built_layout(built_trees: Mapping[Platform, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("layout") / "layout"
    return folder, write_layout(folder, built_trees, of_checkout(), umoci=tool("umoci"))


@pytest.fixture(scope="session")
def image(built_layout: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> UnpackedImage:
    """The image of this machine, pushed to a registry, pulled from it by tag, and unpacked."""
    folder = tmp_path_factory.mktemp("image")
    version = of_checkout().version
    with registry(folder / "storage") as served:
        name = f"docker://{served.host}/tessera:{version}"
        skopeo("copy", "--all", "--dest-tls-verify=false", f"oci:{built_layout[0]}:{version}", name)
        skopeo("--override-arch=amd64", "copy", "--src-tls-verify=false", name, f"oci:{folder}/pulled:{version}")
    subprocess.run(
        [tool("umoci"), "raw", "unpack", "--image", f"{folder}/pulled:{version}", str(folder / "root")], check=True
    )
    return UnpackedImage(folder / "root")


def skopeo(*arguments: str) -> str:
    return subprocess.run([tool("skopeo"), *arguments], capture_output=True, text=True, check=True).stdout
