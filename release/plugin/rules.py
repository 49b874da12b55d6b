"""The rules of krew's index, checked without krew: its validation and its naming guide.

krew's own checker is a Go program that no package registry of ours has. The rules are those of krew's folder
``internal/index/validation`` and of the developer guide's page on names; each has a test that breaks it.
"""

import hashlib
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[\w-]+", re.ASCII)
#: The naming guide: lower case, words joined by hyphens.
_GUIDE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VERSION = re.compile(r"v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_HASH = re.compile(r"[a-f0-9]{64}")
_SELECTOR_KEYS = {"os", "arch"}


def problems(manifest: Mapping[str, Any], file_name: str, archives: Mapping[str, Path]) -> list[str]:
    """What krew would refuse.

    Args:
        manifest: the decoded file.
        file_name: the name of the file.
        archives: the archives by the last part of their addresses.

    Returns:
        A line for each problem, with its field; empty if there is none.
    """
    return [*_of_plugin(manifest, file_name), *_of_platforms(manifest.get("spec", {}).get("platforms") or [], archives)]


def _of_plugin(manifest: Mapping[str, Any], file_name: str) -> Iterator[str]:
    spec, name = manifest.get("spec", {}), manifest.get("metadata", {}).get("name", "")
    if manifest.get("apiVersion") != "krew.googlecontainertools.github.com/v1alpha2":
        yield "apiVersion: must be krew.googlecontainertools.github.com/v1alpha2"
    if manifest.get("kind") != "Plugin":
        yield "kind: must be Plugin"
    if not _NAME.fullmatch(name):
        yield f"metadata.name: {name!r} must consist of letters, digits, _ and -"
    elif not _GUIDE.fullmatch(name) or name.startswith(("kube", "kubectl")):
        yield f"metadata.name: {name!r} must be lower case with hyphens, and must not begin with kube"
    if file_name != f"{name}.yaml":
        yield f"file name: {file_name} must be {name}.yaml"
    if not _VERSION.fullmatch(spec.get("version", "")):
        yield f"spec.version: {spec.get('version')!r} must be a semantic version with v before it, such as v0.1.0"
    short = spec.get("shortDescription", "")
    if not short or "\n" in short or "\r" in short:
        yield "spec.shortDescription: must be one line"
    elif len(short) >= 50 or "kubectl" in short.lower():
        yield f"spec.shortDescription: must have fewer than 50 characters (has {len(short)}), and not the word kubectl"
    if not spec.get("homepage"):
        yield "spec.homepage: must not be empty"
    if not spec.get("description"):
        yield "spec.description: must not be empty"
    if not spec.get("platforms"):
        yield "spec.platforms: must not be empty"


def _of_platforms(platforms: list[Mapping[str, Any]], archives: Mapping[str, Path]) -> Iterator[str]:
    seen = set()
    for number, each in enumerate(platforms):
        field = f"spec.platforms[{number}]"
        labels = each.get("selector", {}).get("matchLabels") or {}
        expressions = each.get("selector", {}).get("matchExpressions") or []
        keys = [*labels, *(expression.get("key") for expression in expressions)]
        if not keys:
            yield f"{field}.selector: must not be empty"
        elif set(keys) - _SELECTOR_KEYS:
            yield f"{field}.selector: has {sorted(set(keys) - _SELECTOR_KEYS)}; only os and arch may be matched"
        matched = tuple(sorted(labels.items()))
        if labels and matched in seen:
            yield f"{field}.selector: another platform has the same"
        seen.add(matched)
        if not each.get("uri"):
            yield f"{field}.uri: must not be empty"
        if not _HASH.fullmatch(each.get("sha256", "")):
            yield f"{field}.sha256: must be 64 digits of 0-9 and a-f"
        if not each.get("bin"):
            yield f"{field}.bin: must not be empty"
        files = each.get("files")
        if files is not None and not files:
            yield f"{field}.files: must be left out, or have entries"
        for entry in files or []:
            if not entry.get("from") or not entry.get("to"):
                yield f"{field}.files: each entry must have from and to"
        yield from _of_archive(field, each, archives)


def _of_archive(field: str, platform: Mapping[str, Any], archives: Mapping[str, Path]) -> Iterator[str]:
    name = platform.get("uri", "").rpartition("/")[2]
    if name not in archives:
        yield f"{field}.uri: there is no archive {name!r}"
        return
    content = archives[name].read_bytes()
    if hashlib.sha256(content).hexdigest() != platform.get("sha256"):
        yield f"{field}.sha256: is not that of {name}"
    with tarfile.open(archives[name]) as archive:
        members = {each.name: each for each in archive}
    program = members.get(platform.get("bin", ""))
    if program is None or not program.isfile() or not program.mode & 0o100:
        yield f"{field}.bin: {name} has no program {platform.get('bin')!r}"
    if "LICENSE" not in members:
        yield f"{field}: {name} has no LICENSE"
    if any(each.name.startswith("/") or ".." in each.name.split("/") for each in members.values()):
        yield f"{field}: {name} has a path that leaves the folder"
    missing = {entry.get("from") for entry in platform.get("files") or []} - members.keys()
    if missing:
        yield f"{field}.files: {name} has no {', '.join(sorted(map(str, missing)))}"
    elif platform.get("files") and not {"LICENSE"} <= {entry.get("from") for entry in platform["files"]}:
        yield f"{field}.files: the LICENSE must be installed too"
