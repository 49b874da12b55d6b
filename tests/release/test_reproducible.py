"""The image and the plugin's archives, made twice by the commands that a release runs: the same bytes come out.

Everything around the two builds differs that a builder cannot be asked to keep the same: folder, user mask, time zone,
language, and the seed of Python's hashes. What they share is the commit, the stated time and the downloads.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from release.image.labels import of_checkout
from release.platforms import IMAGES, PLUGINS
from release.plugin.archives import archive_name
from release.wheels import ROOT
from tests.driver.registry.programs import tool
from tests.release.image.conftest import CACHE

pytestmark = pytest.mark.soak
#: 2023-11-14T22:13:20Z; no commit has this time.
STATED = 1_700_000_000
SURROUNDINGS = (
    ("here", 0o022, {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1"}),
    ("another/folder/with a longer name", 0o077, {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "2"}),
)


def make_twice(kind: str, top: Path, *options: str) -> Iterator[Path]:
    """What the command of a kind writes, each time from a clone of the committed tree."""
    for place, umask, variables in SURROUNDINGS:
        checkout, out = top / place / "checkout", top / place / "out"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
        subprocess.run(
            [sys.executable, "-m", "release", "--cache", str(CACHE), kind, str(out), *options],
            cwd=checkout,
            umask=umask,
            env={**os.environ, **variables, "SOURCE_DATE_EPOCH": str(STATED)},
            check=True,
        )
        yield out


def digests(out: Path) -> dict[str, str]:
    """Digest of each file that is published; the image's trees are no part of it."""
    files = (each for each in sorted(out.rglob("*")) if each.is_file())
    found = {each.relative_to(out).as_posix(): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}
    return {name: digest for name, digest in found.items() if not name.startswith("trees/")}


def test_an_image_of_a_commit_and_a_time_is_always_the_same(tmp_path: Path) -> None:
    first, second = make_twice("image", tmp_path, "--umoci", tool("umoci"))
    assert digests(first) == digests(second)
    assert digests(first).keys() > {"layout/index.json", *(f"image-{each.architecture}.cdx.json" for each in IMAGES)}
    created = [each["created"] for each in configurations(first / "layout")]
    assert created == ["2023-11-14T22:13:20Z"] * len(IMAGES)


def test_plugin_archives_of_a_commit_and_a_time_are_always_the_same(tmp_path: Path) -> None:
    first, second = make_twice("plugin", tmp_path)
    assert digests(first) == digests(second)
    assert digests(first).keys() == {"tessera-gpu.yaml", *(archive_name(each, of_checkout()) for each in PLUGINS)}


def configurations(layout: Path) -> Iterator[Mapping[str, Any]]:
    """The configuration of each platform's image."""

    def blob(digest: str) -> Any:
        return json.loads((layout / "blobs" / "sha256" / digest.partition(":")[2]).read_bytes())

    (index,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    for each in blob(index["digest"])["manifests"]:
        yield blob(blob(each["digest"])["config"]["digest"])
