"""Krew's rules: the plugin's manifest keeps them, and each rule finds the manifest that breaks it."""

import copy
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from release.image.labels import Origin
from release.platforms import PLUGINS
from release.plugin.archives import LICENSE, PROGRAM, archive_name
from release.plugin.manifest import manifest
from release.plugin.rules import problems

ORIGIN = Origin("0.1.0", "0123456789abcdef", 1_700_000_000, "https://forge.example/tessera")
DOWNLOADS = "https://forge.example/tessera/releases/v0.1.0"


def archive(file: Path, *, names: tuple[str, ...] = (PROGRAM, LICENSE), mode: int = 0o755) -> Path:
    with tarfile.open(file, "w:gz") as packed:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mode = 1, mode
            packed.addfile(member, io.BytesIO(b"x"))
    return file


@pytest.fixture
def archives(tmp_path: Path) -> dict[str, Path]:
    return {name: archive(tmp_path / name) for name in (archive_name(each, ORIGIN) for each in PLUGINS)}


@pytest.fixture
def plugin(archives: dict[str, Path]) -> dict[str, Any]:
    return manifest({each: archives[archive_name(each, ORIGIN)] for each in PLUGINS}, ORIGIN, downloads=DOWNLOADS)


def test_the_manifest_keeps_the_rules(plugin: dict[str, Any], archives: dict[str, Path]) -> None:
    assert problems(plugin, "tessera-gpu.yaml", archives) == []


def test_the_manifest_has_each_platform(plugin: dict[str, Any]) -> None:
    selectors = [each["selector"]["matchLabels"] for each in plugin["spec"]["platforms"]]
    assert selectors == [{"os": os, "arch": arch} for os in ("linux", "darwin") for arch in ("amd64", "arm64")]


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(plugin: dict[str, Any]) -> None:
        parent: Any = plugin
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = value

    return change


FIRST = ("spec", "platforms", 0)
BROKEN: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (put("apiVersion", value="v1"), "apiVersion: "),
    (put("kind", value="Plugins"), "kind: "),
    (put("metadata", "name", value="a b"), "metadata.name: 'a b' must consist of"),
    (put("metadata", "name", value="Tessera"), "metadata.name: 'Tessera' must be lower case"),
    (put("metadata", "name", value="kube-gpu"), "metadata.name: 'kube-gpu' must be lower case"),
    (put("spec", "version", value="0.1.0"), "spec.version: '0.1.0'"),
    (put("spec", "version", value="v0.01.0"), "spec.version: 'v0.01.0'"),
    (put("spec", "shortDescription", value="two\nlines"), "spec.shortDescription: must be one line"),
    (put("spec", "shortDescription", value=""), "spec.shortDescription: must be one line"),
    (put("spec", "shortDescription", value="x" * 50), "spec.shortDescription: must have fewer than 50"),
    (put("spec", "shortDescription", value="A kubectl plugin"), "spec.shortDescription: must have fewer than 50"),
    (put("spec", "homepage", value=""), "spec.homepage: "),
    (put("spec", "description", value=""), "spec.description: "),
    (put("spec", "platforms", value=[]), "spec.platforms: must not be empty"),
    (put(*FIRST, "selector", value={}), "spec.platforms[0].selector: must not be empty"),
    (put(*FIRST, "selector", value={"matchLabels": {"libc": "musl"}}), "spec.platforms[0].selector: has ['libc']"),
    (
        put(*FIRST, "selector", value={"matchExpressions": [{"key": "cpu", "operator": "Exists"}]}),
        "spec.platforms[0].selector: has ['cpu']",
    ),
    (
        put(*FIRST, "selector", value={"matchLabels": {"os": "linux", "arch": "arm64"}}),
        "spec.platforms[1].selector: another platform has the same",
    ),
    (put(*FIRST, "uri", value=""), "spec.platforms[0].uri: must not be empty"),
    (put(*FIRST, "uri", value="https://forge.example/other.tar.gz"), "spec.platforms[0].uri: there is no archive"),
    (put(*FIRST, "sha256", value="A" * 64), "spec.platforms[0].sha256: must be 64 digits"),
    (put(*FIRST, "sha256", value="a" * 64), "spec.platforms[0].sha256: is not that of"),
    (put(*FIRST, "bin", value=""), "spec.platforms[0].bin: must not be empty"),
    (put(*FIRST, "bin", value="kubectl-other"), "spec.platforms[0].bin: "),
    (put(*FIRST, "bin", value=f"./{PROGRAM}x"), "spec.platforms[0].bin: "),
    (put(*FIRST, "files", value=[]), "spec.platforms[0].files: must be left out, or have entries"),
    (put(*FIRST, "files", value=[{"from": LICENSE}]), "spec.platforms[0].files: each entry must have from and to"),
    (put(*FIRST, "files", value=[{"from": "x", "to": "."}]), "spec.platforms[0].files: "),
    (put(*FIRST, "files", value=[{"from": PROGRAM, "to": "."}]), "spec.platforms[0].files: the LICENSE must be"),
]


@pytest.mark.parametrize(("change", "expected"), BROKEN, ids=[text for _, text in BROKEN])
def test_a_manifest_that_breaks_a_rule_is_found(
    change: Callable[[dict[str, Any]], None], expected: str, plugin: dict[str, Any], archives: dict[str, Path]
) -> None:
    broken = copy.deepcopy(plugin)
    change(broken)
    found = problems(broken, f"{broken['metadata']['name']}.yaml", archives)
    assert [line for line in found if line.startswith(expected)], found


def test_the_file_has_the_plugins_name(plugin: dict[str, Any], archives: dict[str, Path]) -> None:
    assert problems(plugin, "plugin.yaml", archives) == ["file name: plugin.yaml must be tessera-gpu.yaml"]


@pytest.mark.parametrize(
    ("names", "mode", "expected"),
    [
        ((PROGRAM,), 0o755, "has no LICENSE"),
        ((PROGRAM, LICENSE), 0o644, "has no program 'kubectl-tessera'"),
        ((PROGRAM, LICENSE, "../out"), 0o755, "has a path that leaves the folder"),
        ((PROGRAM, LICENSE, "/etc/out"), 0o755, "has a path that leaves the folder"),
    ],
)
def test_an_archive_that_breaks_a_rule_is_found(
    names: tuple[str, ...], mode: int, expected: str, archives: dict[str, Path]
) -> None:
    for file in archives.values():
        archive(file, names=names, mode=mode)
    broken = manifest({each: archives[archive_name(each, ORIGIN)] for each in PLUGINS}, ORIGIN, downloads=DOWNLOADS)
    assert any(expected in line for line in problems(broken, "tessera-gpu.yaml", archives))
