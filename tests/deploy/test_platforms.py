"""Images for linux/amd64 and linux/arm64: every library that is pinned has a wheel for both."""

import re

import pytest
from packaging.utils import canonicalize_name, parse_wheel_filename
from tests.deploy.conftest import ROOT

PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;]+)", re.MULTILINE)
PINS = (ROOT / "requirements" / "run.txt").read_text()
LISTED = [line.split() for line in (ROOT / "requirements" / "wheels.txt").read_text().splitlines() if line[0] != "#"]


def pinned() -> dict[str, tuple[str, set[str]]]:
    """Version and hashes of each library that users run."""
    starts = [*PINNED.finditer(PINS)]
    ends = [each.start() for each in starts[1:]] + [len(PINS)]
    return {
        canonicalize_name(each[1]): (each[2], set(re.findall(r"sha256:([0-9a-f]{64})", PINS[each.end() : end])))
        for each, end in zip(starts, ends, strict=True)
    }


@pytest.mark.parametrize("platform", ["linux/amd64", "linux/arm64"])
@pytest.mark.parametrize("library", pinned())
def test_every_library_has_a_wheel(library: str, platform: str) -> None:
    version, hashes = pinned()[library]
    found = [(digest, parse_wheel_filename(name)) for known, digest, name in LISTED if known == platform]
    fitting = [digest for digest, (name, its, _, _) in found if name == library and str(its) == version]
    assert fitting, f"{library} {version} has no wheel for {platform}; choose another version, then run: make lock"
    assert set(fitting) <= hashes, "requirements/wheels.txt and run.txt differ; run: make lock"
