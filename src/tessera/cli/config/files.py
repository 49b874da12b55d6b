"""Recognizes the parts of a file of settings and checks each.

A file may hold a sharing profile, MIG layouts, manifests of ConfigMaps that hold these, or settings of NVIDIA's
gpu-operator: the values of its Helm chart, its ClusterPolicy or an NVIDIADriver. The same code reads each part here and
in the agent, the controller or the installer.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from tessera.api.documents import load_document, load_documents
from tessera.api.gpu_operator.settings_reader import OWN_KEY, POLICY_KIND
from tessera.api.operator_fields.keys import VALUES
from tessera.api.problems import FileRefused, join_path, quote_value
from tessera.cli.config import other_files
from tessera.cli.config.layouts import check_layouts
from tessera.cli.config.operator import (
    CLUSTER_POLICY_KIND,
    NVIDIA_DRIVER_KIND,
    VALUES_KIND,
    check_nvidia_driver,
    check_operator,
)
from tessera.cli.config.other_files import not_settings
from tessera.cli.config.part_report import PartReport, TrialNode, report_refused
from tessera.cli.config.sharing import check_sharing

#: Kinds of parts that are checked; a file without any of them is wrong.
_CHECKED = (
    *("sharing profile", "MIG layouts", VALUES_KIND, CLUSTER_POLICY_KIND, NVIDIA_DRIVER_KIND, "settings"),
    *(other_files.CLIENTS, other_files.HOOKS),
)

#: Keys at the top of a sharing profile.
_OF_PROFILES = frozenset({"version", "flags", "resources", "sharing", "imex"})


def check_file(text: str, nodes: Sequence[TrialNode]) -> list[PartReport]:
    """Checks each part of a file.

    Args:
        text: the file's content.
        nodes: nodes for which the effect is shown.
    """
    other = not_settings(text)
    if other is not None:
        return [other]
    try:
        documents = load_documents(text) or [None]
    except FileRefused as refused:
        return [report_refused("file", "settings", refused)]
    parts = [part for document in documents for part in _document(document, "file", nodes)]
    if not any(part.kind in _CHECKED or part.problems for part in parts):
        problem = (
            "holds nothing to check: no sharing profile, no MIG layouts, no ConfigMap that holds them, no values of"
            f" NVIDIA's gpu-operator, no {POLICY_KIND}"
        )
        parts.append(PartReport(name="file", kind="settings", problems=(problem,)))
    return parts


def _document(document: Any, name: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    if document is None or document == {}:
        yield other_files.empty(name)
        return
    kind = document.get("kind") if isinstance(document, Mapping) else None
    if kind is not None:
        yield from _manifest(document, kind, name, nodes)
    elif isinstance(document, Mapping) and any(str(key).startswith("mig-") for key in document):
        yield check_layouts(document, name, nodes)
    elif isinstance(document, Mapping) and (parts := list(other_files.of_nvidia(document, name, nodes))):
        yield from parts
    elif isinstance(document, Mapping) and _looks_like_values(document):
        yield from check_operator(document, name, nodes)
    else:
        yield check_sharing(document, name, nodes)


def _manifest(document: Mapping[str, Any], kind: Any, name: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    if not isinstance(kind, str):
        yield PartReport(name=name, kind="manifest", problems=(f"kind: must be text, not {quote_value(kind)}",))
    elif kind.endswith("List"):
        yield from _list(document, kind, name, nodes)
    elif kind == "Status":
        yield other_files.status(document, name)
    elif kind == "ConfigMap":
        yield from _config_map(document, nodes)
    elif kind == POLICY_KIND:
        yield from check_operator(document, _own_name(document, POLICY_KIND), nodes)
    elif kind == NVIDIA_DRIVER_KIND:
        yield check_nvidia_driver(document, _own_name(document, NVIDIA_DRIVER_KIND))
    elif kind == other_files.CLUSTER_KIND:
        yield other_files.gpu_cluster(_own_name(document, other_files.CLUSTER_KIND))
    else:
        yield other_files.manifest(kind, name)


def _list(document: Mapping[str, Any], kind: str, name: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    """A List as kubectl prints it; its objects must not be Lists themselves."""
    items, problem = document.get("items"), ""
    if not isinstance(items, list):
        problem = f"items: must be a list of objects, not {quote_value(items)}"
    elif not items:
        problem = "items: is empty; kubectl found no object: check the name and the namespace"
    if problem:
        yield PartReport(name=name, kind=quote_value(kind).strip('"'), problems=(problem,))
        return
    for number, item in enumerate(items or ()):
        if not isinstance(item, Mapping) or str(item.get("kind", "List")).endswith("List"):
            problem = f"items[{number}]: must be an object with a kind other than List"
            yield PartReport(name=name, kind=quote_value(kind).strip('"'), problems=(problem,))
        else:
            yield from _document(item, name, nodes)


def _looks_like_values(document: Mapping[str, Any]) -> bool:
    """Returns True if a mapping has a key of a values file, or a similar one, and no key of a sharing profile."""
    keys = [str(key) for key in document]
    return not _OF_PROFILES.intersection(keys) and any(
        get_close_matches(key, (*VALUES, OWN_KEY), n=1, cutoff=0.8) for key in keys
    )


def _own_name(manifest: Mapping[str, Any], otherwise: str) -> str:
    metadata = manifest.get("metadata")
    return str(metadata.get("name", otherwise)) if isinstance(metadata, Mapping) else otherwise


def _config_map(manifest: Mapping[str, Any], nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    own, data = _own_name(manifest, "ConfigMap"), manifest.get("data")
    if not isinstance(data, Mapping) or not data:
        yield PartReport(
            name=own, kind="ConfigMap", problems=("data: is empty; write at least one profile under a name",)
        )
        return
    for key, text in data.items():
        name = f"{own}/{key}"
        if not isinstance(text, str):
            problem = f"{join_path('data', str(key))}: must be text; begin it with '{key}: |'"
            yield PartReport(name=name, kind="ConfigMap", problems=(problem,))
            continue
        try:
            document = load_document(text)
            yield from [check_sharing(None, name, nodes)] if document is None else _document(document, name, nodes)
        except FileRefused as refused:
            yield report_refused(name, "settings", refused)
