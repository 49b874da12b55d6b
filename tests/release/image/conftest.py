"""The whole image, built once for the long tests: some minutes, and downloads that stay in ``.venv/release``."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
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
TOOLS = Path(sys.prefix) / "tools"
QEMU = "qemu-aarch64-static"


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
def pushed(built_layout: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image's name in a registry of this machine."""
    version = of_checkout().version
    with registry(tmp_path_factory.mktemp("registry") / "storage") as served:
        name = f"docker://{served.host}/tessera:{version}"
        skopeo("copy", "--all", "--dest-tls-verify=false", f"oci:{built_layout[0]}:{version}", name)
        yield name


@pytest.fixture(scope="session")
def image(pushed: str, tmp_path_factory: pytest.TempPathFactory) -> UnpackedImage:
    """The image of this machine's processor, pulled by its tag and unpacked."""
    return UnpackedImage(pull(pushed, "amd64", tmp_path_factory.mktemp("image")))


@pytest.fixture(scope="session")
def arm_image(pushed: str, tmp_path_factory: pytest.TempPathFactory) -> UnpackedImage:
    """The image for arm64, whose programs an emulator runs."""
    subprocess.run([str(ROOT / "scripts" / "need-debian"), str(TOOLS), QEMU], check=True)
    emulator = Path(shutil.which(QEMU) or TOOLS / "bin" / QEMU)
    return UnpackedImage(pull(pushed, "arm64", tmp_path_factory.mktemp("image")), emulator=emulator)


def pull(name: str, architecture: str, folder: Path) -> Path:
    """The root file system of an image."""
    choice = f"--override-arch={architecture}"
    skopeo(choice, "copy", "--src-tls-verify=false", name, f"oci:{folder}/pulled:x")
    subprocess.run([tool("umoci"), "raw", "unpack", "--image", f"{folder}/pulled:x", f"{folder}/root"], check=True)
    return folder / "root"


def skopeo(*arguments: str) -> str:
    return subprocess.run([tool("skopeo"), *arguments], capture_output=True, text=True, check=True).stdout
