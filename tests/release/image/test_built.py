"""The whole image, built from Debian's packages and the pinned wheels, pushed to a registry, unpacked and run."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import pytest
from elftools.elf.elffile import ELFFile
from jsonschema import Draft7Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7
from release.image.labels import of_checkout
from release.image.packages import PACKAGES
from release.image.root import TREES
from release.image.sbom import bill_of_materials
from release.platforms import IMAGES, Platform
from release.wheels import ROOT
from tests.release.image.unpacked import UnpackedImage, allowed

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not allowed(), reason="makes mount namespaces, which needs root"),
]
#: Compressed bytes that a node loads for a first install. docs/images.md has what was measured, and what makes it.
MOST_BYTES = 50_000_000


def binaries(trees: Path) -> Iterator[tuple[str, ELFFile]]:
    for tree in TREES:
        for path in (trees / tree).rglob("*"):
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as content:
                    if content.read(4) == b"\x7fELF":
                        yield path.relative_to(trees / tree).as_posix(), ELFFile(content)


@pytest.mark.parametrize("platform", IMAGES, ids=str)
def test_every_binary_is_of_the_platform_and_finds_its_libraries(
    built_trees: Mapping[Platform, Path], platform: Platform
) -> None:
    machines: set[str] = set()
    needed: dict[str, str] = {}
    count = 0
    for name, binary in binaries(built_trees[platform]):
        count += 1
        machines.add(binary["e_machine"])
        dynamic = cast("Any", binary.get_section_by_name(".dynamic"))
        for tag in dynamic.iter_tags("DT_NEEDED") if dynamic else ():
            needed.setdefault(tag.needed, name)
    there = {each.name for each in (built_trees[platform] / "system" / "usr").rglob("*.so*")}
    assert machines == {platform.elf_machine}
    assert {library: name for library, name in needed.items() if library not in there} == {}
    assert count > 50


def test_the_image_is_small(built_layout: tuple[Path, str]) -> None:
    index = json.loads((built_layout[0] / "index.json").read_text())
    for each in blob(built_layout[0], index["manifests"][0])["manifests"]:
        layers = blob(built_layout[0], each)["layers"]
        assert sum(layer["size"] for layer in layers) < MOST_BYTES


def blob(layout: Path, entry: Mapping[str, Any]) -> Any:
    return json.loads((layout / "blobs" / "sha256" / entry["digest"].partition(":")[2]).read_bytes())


@pytest.mark.parametrize("platform", IMAGES, ids=str)
def test_the_bill_of_materials_lists_what_is_in_the_image(
    built_trees: Mapping[Platform, Path], platform: Platform
) -> None:
    bill = json.loads(bill_of_materials(built_trees[platform], platform, of_checkout()))
    names = [each["purl"].partition("@")[0] for each in bill["components"]]
    pins = re.findall(r"^([a-z][a-z0-9-]*)==", (ROOT / "requirements/run.txt").read_text(), re.MULTILINE)
    assert sorted(names) == sorted(
        [f"pkg:deb/debian/{name}".replace("+", "%2B") for name in PACKAGES]
        + [f"pkg:pypi/{name}" for name in pins]
        + ["pkg:pypi/tessera-gpu"]
    )
    assert list(bill_validator().iter_errors(bill)) == []


def bill_validator() -> Draft7Validator:
    """CycloneDX's own schema, which the library carries with those that it refers to."""

    def schema(uri: str) -> Resource[Any]:
        name = f"{uri.rpartition('/')[2].partition('.S')[0]}.SNAPSHOT.schema.json"
        return DRAFT7.create_resource(json.loads((files("cyclonedx.schema") / "_res" / name).read_text()))

    # mypy does not see the alias of the attribute _retrieve.
    return Draft7Validator(schema("bom-1.6").contents, registry=Registry(retrieve=schema))  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["install", "--output", "yaml"],
        ["plan", "mig", "A100-40GB", "3g.20gb", "4g.20gb"],
        ["controller", "--help"],
        ["webhook", "--help"],
        ["agent", "--help"],
        ["wait-for", "--help"],
        ["validate", "--help"],
    ],
    ids=" ".join,
)
def test_a_command_runs_as_a_user_without_rights_on_a_read_only_root(
    image: UnpackedImage, arguments: list[str]
) -> None:
    done = image.run("tessera", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    here = subprocess.run([sys.executable, "-m", "tessera", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == here.stdout


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import ssl; print(len(ssl.create_default_context().get_ca_certs()) > 100)", "True"),
        ("import os; print(os.path.exists('/etc/debian_version'), os.access('/', os.W_OK))", "True False"),
        ("import grpc, uvloop, aiohttp, cryptography, ctypes, lzma; print(ctypes.CDLL('libc.so.6').getuid())", "65532"),
        ("import sys, pathlib; print([p for p in sys.path if 'zip' not in p and not pathlib.Path(p).is_dir()])", "[]"),
    ],
)
def test_the_images_python_has_what_tessera_needs(image: UnpackedImage, code: str, expected: str) -> None:
    done = image.run("/usr/bin/python3.11", "-I", "-c", code)
    assert (done.stdout.strip(), done.stderr) == (expected, "")


def test_what_python_loads_is_compiled(image: UnpackedImage) -> None:
    done = image.run("/usr/bin/python3.11", "-I", "-v", "-c", "import tessera.cli.main, aiohttp, asyncio")
    assert done.returncode == 0
    assert "could not create" not in done.stderr
    loaded = [line for line in done.stderr.splitlines() if line.startswith("# code object from '")]
    assert [line for line in loaded if not line.endswith(".pyc'")] == []
    assert len(loaded) > 200


@pytest.mark.parametrize(
    ("command", "output"),
    [(["sh", "-c", "read -r go && echo $go"], "go\n"), (["nsenter", "--version"], "nsenter from util-linux 2.38.1\n")],
    ids=["shell", "nsenter"],
)
def test_the_programs_that_the_agent_starts_are_there(image: UnpackedImage, command: list[str], output: str) -> None:
    assert image.run(*command, text="go\n").stdout == output


def test_any_user_of_openshift_can_run_it(image: UnpackedImage) -> None:
    done = UnpackedImage(image.root, user=1_000_650_000).run("tessera", "--version")
    assert (done.returncode, done.stderr) == (0, "")
