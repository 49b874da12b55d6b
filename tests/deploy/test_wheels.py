"""Two wheels from one tree: the product, and the lab that depends on it."""

import subprocess
import sys
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.deploy.conftest import ROOT

PROJECTS = {"tessera": ROOT, "tessera_lab": ROOT / "packaging" / "tessera-lab"}
#: The names on a package index. On the public one, "tessera" is another project's.
NAMES = {"tessera": "tessera_gpu", "tessera_lab": "tessera_gpu_lab"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ZipFile]:
    """Both wheels by the package that they hold."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in PROJECTS.values():
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(build, cwd=project, check=True, capture_output=True)
    return {name: ZipFile(next(folder.glob(f"{NAMES[name]}-*.whl"))) for name in PROJECTS}


def metadata(wheel: ZipFile, name: str) -> str:
    """One file of a wheel's ``.dist-info``."""
    return wheel.read(next(each for each in wheel.namelist() if each.endswith(f".dist-info/{name}"))).decode()


@pytest.mark.parametrize("package", PROJECTS)
def test_a_wheel_holds_its_package_and_no_other(wheels: dict[str, ZipFile], package: str) -> None:
    held = set(wheels[package].namelist())
    assert {name.split("/")[0] for name in held if ".dist-info/" not in name} == {package}
    source = Path(ROOT / "src" / package)
    assert {path.relative_to(ROOT / "src").as_posix() for path in source.rglob("*.py")} <= held


def test_the_product_carries_its_manifests(wheels: dict[str, ZipFile]) -> None:
    deploy = {path.relative_to(ROOT / "deploy").as_posix() for path in (ROOT / "deploy").rglob("*") if path.is_file()}
    assert {f"tessera/_deploy/{name}" for name in deploy} <= set(wheels["tessera"].namelist())


def test_the_lab_depends_on_the_product_of_its_own_version(wheels: dict[str, ZipFile]) -> None:
    product, lab = (HeaderParser().parsestr(metadata(wheel, "METADATA")) for wheel in wheels.values())
    assert product["Version"] == lab["Version"]
    assert lab.get_all("Requires-Dist") == [f"tessera-gpu=={product['Version']}"]


def test_commands_join_by_entry_points(wheels: dict[str, ZipFile]) -> None:
    assert "tessera = tessera.cli.main:main" in metadata(wheels["tessera"], "entry_points.txt")
    assert "[tessera.extensions]" in metadata(wheels["tessera_lab"], "entry_points.txt")
