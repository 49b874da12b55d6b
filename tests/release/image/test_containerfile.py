"""The Containerfile makes the same files as ``python -m release image``."""

import gzip
import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from release.image.root import TREES
from release.platforms import IMAGES, Platform
from tests.release.image.containerfile import Buildah
from tests.release.image.unpacked import allowed

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not allowed(), reason="runs buildah in chroots, which needs root"),
]
SECONDS = 1_700_000_000


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Buildah:
    made = Buildah(tmp_path_factory.mktemp("buildah"))
    made.make_base()
    return made


@pytest.fixture(scope="module")
def layouts(buildah: Buildah, tmp_path_factory: pytest.TempPathFactory) -> Mapping[Platform, Path]:
    """What the Containerfile makes for each platform."""
    folder = tmp_path_factory.mktemp("layouts")
    for each in IMAGES:
        buildah.build(each, folder / each.architecture, seconds=SECONDS)
    return {each: folder / each.architecture for each in IMAGES}


def in_layers(layout: Path) -> Iterator[tuple[str, str]]:
    """Name and digest of content or link of each file in an image's layers."""
    blobs = layout / "blobs" / "sha256"
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads((blobs / entry["digest"].partition(":")[2]).read_text())
    for layer in manifest["layers"]:
        with gzip.open(blobs / layer["digest"].partition(":")[2]) as content, tarfile.open(fileobj=content) as archive:
            for member in archive:
                name = member.name.strip("/").removeprefix("./")
                if member.issym():
                    yield name, member.linkname
                elif member.isfile():
                    taken = archive.extractfile(member)
                    assert taken
                    yield name, hashlib.sha256(taken.read()).hexdigest()


def in_trees(trees: Path) -> Iterator[tuple[str, str]]:
    for tree in TREES:
        for path in (trees / tree).rglob("*"):
            name = path.relative_to(trees / tree).as_posix()
            if path.is_symlink():
                yield name, str(path.readlink())
            elif path.is_file():
                yield name, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("platform", IMAGES, ids=str)
def test_the_containerfile_makes_the_same_files(
    layouts: Mapping[Platform, Path], platform: Platform, built_trees: Mapping[Platform, Path]
) -> None:
    containerfiles, ours = dict(in_layers(layouts[platform])), dict(in_trees(built_trees[platform]))
    assert containerfiles.keys() == ours.keys()
    differing = {name for name, content in ours.items() if containerfiles[name] != content}
    # Compiled modules of another patch release of Python 3.11 may differ.
    assert {name for name in differing if not name.endswith(".pyc")} == set()


def test_the_containerfile_makes_the_same_image_again(
    buildah: Buildah, layouts: Mapping[Platform, Path], tmp_path: Path
) -> None:
    platform = IMAGES[0]
    buildah.build(platform, tmp_path / "layout", seconds=SECONDS)
    assert digest(tmp_path / "layout") == digest(layouts[platform])


def digest(layout: Path) -> str:
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    return str(entry["digest"])
