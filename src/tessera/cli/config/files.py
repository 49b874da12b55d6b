"""Recognizes the parts of a file of settings and checks each.

A file may hold a sharing profile, MIG layouts, manifests of ConfigMaps that hold these, or settings of NVIDIA's
gpu-operator: the values of its Helm chart, also inside objects of other tools, its ClusterPolicy or an NVIDIADriver.
Kinds are compared with their API group. The same code reads each part here and in the agent, the controller or the
installer.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from tessera.api.documents import first_document, load_documents
from tessera.api.problems import FileRefused, Notice, join_path, quote_value
from tessera.api.sharing.profile_parser import PLACES, VERSION
from tessera.cli.config import other_files
from tessera.cli.config.layouts import check_layouts
from tessera.cli.config.operator import (
    CLUSTER_POLICY_KIND,
    NVIDIA_DRIVER_KIND,
    VALUES_KIND,
    check_embedded,
    check_nvidia_driver,
    check_operator,
)
from tessera.cli.config.other_files import not_settings
from tessera.cli.config.part_report import PartReport, TrialNode, report_refused
from tessera.cli.config.sharing import check_sharing
from tessera.gpu_operator.fields.keys import POD_KEYS, VALUES
from tessera.gpu_operator.settings.settings_reader import OWN_KEY, POLICY_KIND
from tessera.limits.messages import KEY_SHOWN

#: Kinds of parts that are checked; a file without any of them is wrong.
_CHECKED = (
    *("sharing profile", "MIG layouts", VALUES_KIND, CLUSTER_POLICY_KIND, NVIDIA_DRIVER_KIND, "settings"),
    *(other_files.CLIENTS, other_files.HOOKS),
)

#: Keys at the top of a sharing profile; people write some of them at the top of values too.
_OF_PROFILES = frozenset({"flags", "sharing", "imex"})
_OF_BOTH = frozenset({"version", "resources"})


def check_file(text: str, nodes: Sequence[TrialNode]) -> list[PartReport]:
    """Checks each part of a file.

    Args:
        text: the file's content.
        nodes: nodes for which the effect is shown.
    """
    other = not_settings(text)
    if other is not None:
        return [other]
    repeated: list[Notice] = []
    try:
        documents = load_documents(text, repeated=repeated) or [None]
    except FileRefused as refused:
        return [other_files.unreadable(text, refused)]
    parts = [part for document in documents for part in _document(document, "file", nodes)]
    if not any(part.kind in _CHECKED or part.problems for part in parts):
        problem = (
            "holds nothing to check: no sharing profile, no MIG layouts, no ConfigMap that holds them, no values of"
            f" NVIDIA's gpu-operator, no {POLICY_KIND}"
        )
        parts.append(PartReport(name="file", kind="settings", problems=(problem,)))
    return [parts[0].with_notices(repeated), *parts[1:]]


def _document(document: Any, name: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    if document is None or document == {}:
        yield other_files.empty(name)
        return
    kind = document.get("kind") if isinstance(document, Mapping) else None
    if kind is not None:
        yield from _manifest(document, kind, name, nodes)
    elif not isinstance(document, Mapping):
        yield check_sharing(document, name, nodes) if _resembles_profile(document) else other_files.other_data(name)
    elif any(str(key).startswith("mig-") for key in document):
        yield check_layouts(document, name, nodes)
    elif parts := [*other_files.of_nvidia(document, name, nodes)] or [*_embedded(document, "", nodes)]:
        yield from parts
    elif _looks_like_values(document):
        yield from check_operator(document, name, nodes)
    else:
        yield check_sharing(document, name, nodes) if _resembles_profile(document) else other_files.other_data(name)


def _manifest(document: Mapping[str, Any], kind: Any, name: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    group = other_files.group_of(document)
    if not isinstance(kind, str):
        yield PartReport(name=name, kind="manifest", problems=(f"kind: must be text, not {quote_value(kind)}",))
    elif kind == "List" or (kind.endswith("List") and "items" in document):
        yield from _list(document, kind, name, nodes)
    elif kind == "Status" and group in ("", None):
        yield other_files.status(document, name)
    elif kind == "ConfigMap" and group in ("", None):
        yield from _config_map(document, nodes)
    elif kind == POLICY_KIND and group in (other_files.NVIDIA, None):
        yield from check_operator(document, _own_name(document, POLICY_KIND), nodes)
    elif kind == NVIDIA_DRIVER_KIND and group in (other_files.NVIDIA, None):
        yield check_nvidia_driver(document, _own_name(document, NVIDIA_DRIVER_KIND))
    elif kind == other_files.CLUSTER_KIND and group in (other_files.NVIDIA, None):
        yield other_files.gpu_cluster(_own_name(document, other_files.CLUSTER_KIND))
    elif parts := list(_embedded(document, f"{_own_name(document, kind)}/", nodes)):
        yield from parts
    else:
        yield other_files.manifest(kind, group, name)


def _embedded(document: Mapping[str, Any], within: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    """Values of NVIDIA's charts that stand inside a document."""
    yield from check_embedded(document, within, nodes)
    yield from other_files.of_plugin_chart(document, within, nodes)


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
    """Returns True if a mapping has a key of a values file, or a similar one, and no key of profiles alone.

    Keys of a component count too, since people write them at the top.
    """
    if _OF_PROFILES.intersection(map(str, document)) or document.get("version") == VERSION:
        return False
    known = (*VALUES, *POD_KEYS, OWN_KEY)
    return any(get_close_matches(str(key), known, n=1, cutoff=0.8) for key in document if key not in _OF_BOTH)


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
            document, notices = first_document(text)
        except FileRefused as refused:
            script = other_files.is_script(str(key), text)
            yield other_files.other_data(name) if script else report_refused(name, "settings", refused)
            continue
        parts = [check_sharing(None, name, nodes)] if document is None else _document(document, name, nodes)
        yield from (part.with_notices(notices) for part in parts)


def _resembles_profile(document: Any) -> bool:
    """Returns False for data of another program: a text, or a mapping without a key like those of a profile."""
    if isinstance(document, Mapping):
        words = {place.rpartition(".")[2] for place in PLACES}
        return any(get_close_matches(str(key)[:KEY_SHOWN], words, n=1, cutoff=0.75) for key in document)
    return document is None or isinstance(document, list)
