"""Recognizes the parts of a file of settings and checks each.

A file may hold a sharing profile, MIG layouts, manifests of ConfigMaps that hold these, or settings of NVIDIA's
gpu-operator: the values of its Helm chart, also inside objects of other tools, its ClusterPolicy or an NVIDIADriver.
Kinds are compared with their API group. The same code reads each part here and in the agent, the controller or the
installer.

Files that are not settings of Tessera are recognized by their content, and the message suggests the next step.

A message of kubectl and an empty text come from a pipe whose first command failed. The formats are those of NVIDIA's
mig-parted (hooks, clients of the MIG manager), of its device-plugin chart, and of gpu-operator 26.7 (GPUCluster).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from tessera.api.documents import first_document, load_documents
from tessera.api.problems import FileRefused, Notice, join_path, quote_value
from tessera.api.sharing.profile_parser import PLACES, VERSION
from tessera.cli.config.operator import (
    VALUES_KIND,
    check_embedded,
    check_nvidia_driver,
    check_operator,
)
from tessera.cli.config.parts import PartReport, TrialNode, check_layouts, check_sharing, report_refused
from tessera.gpu_operator.embedded_values import PLUGIN_ADVICE, find_plugin_values, is_plugin_chart
from tessera.gpu_operator.keys import POD_KEYS, VALUES
from tessera.gpu_operator.policy_objects import DRIVER_KIND, POLICY_KIND
from tessera.gpu_operator.settings_reader import OWN_KEY
from tessera.limits import KEY_SHOWN
from tessera.text import one_line

#: NVIDIA's API group.
NVIDIA = "nvidia.com"
CLUSTER_KIND = "GPUCluster"
#: Kinds of manifests that are recognized, with their API groups.
CHECKED_KINDS: Mapping[str, str] = {
    "ConfigMap": "",
    **dict.fromkeys((POLICY_KIND, DRIVER_KIND, CLUSTER_KIND), NVIDIA),
}
#: Files that are recognized and have no effect.
CLIENTS, HOOKS = "clients of the MIG manager", "hooks of mig-parted"

_EMPTY = "is empty; if it comes from a pipe, the command before the pipe wrote nothing: run it alone to see the reason"
#: The begin of kubectl's messages, also in klog's form.
_KUBECTL = re.compile(
    r"(?:error:|Error from server|No resources found|Unable to connect to the server|The connection to the server"
    r"|couldn't get |[EWIF]\d{4} \d\d:\d\d:\d\d)",
    re.IGNORECASE,
)

_PLUGIN_KIND = "values of the device-plugin chart"


def not_settings(text: str) -> PartReport | None:
    """The report on a text that is empty or a message of kubectl; None for other texts."""
    begin = text.lstrip()[:1000]
    if not begin:
        return PartReport(name="file", kind="settings", problems=(_EMPTY,))
    if _KUBECTL.match(begin):
        message = one_line(begin.splitlines()[0])
        problem = f'is a message of kubectl, not an object: "{message}"; correct that command first'
        return PartReport(name="file", kind="settings", problems=(problem,))
    return None


def empty(name: str) -> PartReport:
    """The report on a document without content."""
    return PartReport(name=name, kind="settings", problems=("is empty; write a sharing profile or MIG layouts",))


def status(document: Mapping[str, Any], name: str) -> PartReport:
    """The report on a Status, with which an API server answers a failed request."""
    message = quote_value(document.get("message") or document.get("reason"))
    problem = f"is an error of the API server, not an object: {message}; correct the command that printed it"
    return PartReport(name=name, kind="Status", problems=(problem,))


def gpu_cluster(name: str) -> PartReport:
    """The report on a GPUCluster, the root object of NVIDIA's DRA stack."""
    problem = (
        "configures NVIDIA's DRA driver; Tessera does not read a GPUCluster. Write a ClusterPolicy, and NVIDIADriver"
        " objects for drivers"
    )
    return PartReport(name=name, kind=CLUSTER_KIND, problems=(problem,))


def group_of(document: Mapping[str, Any]) -> str | None:
    """The API group of a manifest: empty for Kubernetes' core, ``None`` if ``apiVersion`` is missing."""
    version = document.get("apiVersion")
    if not isinstance(version, str) or not version:
        return None
    return version.rpartition("/")[0]


def manifest(kind: str, group: str | None, name: str) -> PartReport:
    """The report on a manifest of a kind that is not checked; ``group`` as of :func:`group_of`."""
    known = [each for each, its_group in CHECKED_KINDS.items() if group in (its_group, None)]
    close = get_close_matches(kind[:100].casefold(), [each.casefold() for each in known], n=1, cutoff=0.75)
    for meant in (each for each in known if each.casefold() in close):
        return PartReport(name=name, kind="manifest", problems=(f"kind {quote_value(kind)}: did you mean {meant}?",))
    of_group = f" of {one_line(group)}" if group and kind in CHECKED_KINDS else ""
    text = f"is a {one_line(kind)}{of_group}, which is not checked"
    return PartReport(name=name, kind="manifest", notices=(text,), used=False)


def unreadable(text: str, refused: FileRefused) -> PartReport:
    """The report on a file that cannot be read, such as one with templates of Helm or helmfile."""
    report = report_refused("file", "settings", refused)
    if "{{" not in text:
        return report
    advice = "has templates between {{ and }}: render it first, as with helm template or helmfile write-values"
    return msgspec.structs.replace(report, problems=(*report.problems, advice))


def is_script(key: str, text: str) -> bool:
    """True if an entry of a ConfigMap is a program or another kind of file than YAML."""
    return text.startswith("#!") or key.endswith((".sh", ".py", ".conf", ".toml", ".ini", ".crt", ".pem"))


def other_data(name: str) -> PartReport:
    """The report on a file or an entry of a ConfigMap that holds no settings, such as a script."""
    text = "is neither a sharing profile nor MIG layouts nor values, and is not checked"
    return PartReport(name=name, kind="data", notices=(text,), used=False)


def of_nvidia(document: Mapping[str, Any], name: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    """The reports on files of NVIDIA's programs that Tessera does not read; nothing for other files."""
    if "systemd-services" in document:
        text = "lists host services that NVIDIA's MIG manager stops; Tessera stops none to change a layout: not needed"
        yield PartReport(name=name, kind=CLIENTS, notices=(text,), used=False)
    elif "hooks" in document and "sharing" not in document:
        text = "lists commands that mig-parted runs before and after a layout change; Tessera runs none: not needed"
        yield PartReport(name=name, kind=HOOKS, notices=(text,), used=False)
    elif is_plugin_chart(document):
        yield from _plugin_values(document, name, nodes)


def of_plugin_chart(document: Mapping[str, Any], within: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    """The reports on values of the device-plugin chart inside another document; nothing for other documents."""
    try:
        found = find_plugin_values(document)
    except FileRefused as refused:
        yield report_refused(within.rstrip("/") or "file", _PLUGIN_KIND, refused)
        return
    for each in found:
        yield from _plugin_values(each.values, f"{within}{each.path}", nodes)


def _plugin_values(values: Mapping[str, Any], name: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    yield PartReport(name=name, kind=_PLUGIN_KIND, problems=(PLUGIN_ADVICE,))
    yield from _profiles_of_chart(values, name, nodes)


def _profiles_of_chart(document: Mapping[str, Any], name: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    config = document.get("config")
    profiles = config.get("map") if isinstance(config, Mapping) else None
    for key, text in profiles.items() if isinstance(profiles, Mapping) else ():
        part = f"{name}/config.map/{key}"
        try:
            document, notices = first_document(text) if isinstance(text, str) else (text, ())
            yield check_sharing(document, part, nodes).with_notices(notices)
        except FileRefused as refused:
            yield report_refused(part, "sharing profile", refused)


#: Kinds of parts that are checked; a file without any of them is wrong.
_CHECKED = (
    *("sharing profile", "MIG layouts", VALUES_KIND, POLICY_KIND, DRIVER_KIND, "settings"),
    *(CLIENTS, HOOKS),
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
        return [unreadable(text, refused)]
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
        yield empty(name)
        return
    kind = document.get("kind") if isinstance(document, Mapping) else None
    if kind is not None:
        yield from _manifest(document, kind, name, nodes)
    elif not isinstance(document, Mapping):
        yield check_sharing(document, name, nodes) if _resembles_profile(document) else other_data(name)
    elif any(str(key).startswith("mig-") for key in document):
        yield check_layouts(document, name, nodes)
    elif parts := [*of_nvidia(document, name, nodes)] or [*_embedded(document, "", nodes)]:
        yield from parts
    elif _looks_like_values(document):
        yield from check_operator(document, name, nodes)
    else:
        yield check_sharing(document, name, nodes) if _resembles_profile(document) else other_data(name)


def _manifest(document: Mapping[str, Any], kind: Any, name: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    group = group_of(document)
    if not isinstance(kind, str):
        yield PartReport(name=name, kind="manifest", problems=(f"kind: must be text, not {quote_value(kind)}",))
    elif kind == "List" or (kind.endswith("List") and "items" in document):
        yield from _list(document, kind, name, nodes)
    elif kind == "Status" and group in ("", None):
        yield status(document, name)
    elif kind == "ConfigMap" and group in ("", None):
        yield from _config_map(document, nodes)
    elif kind == POLICY_KIND and group in (NVIDIA, None):
        yield from check_operator(document, _own_name(document, POLICY_KIND), nodes)
    elif kind == DRIVER_KIND and group in (NVIDIA, None):
        yield check_nvidia_driver(document, _own_name(document, DRIVER_KIND))
    elif kind == CLUSTER_KIND and group in (NVIDIA, None):
        yield gpu_cluster(_own_name(document, CLUSTER_KIND))
    elif parts := list(_embedded(document, f"{_own_name(document, kind)}/", nodes)):
        yield from parts
    else:
        yield manifest(kind, group, name)


def _embedded(document: Mapping[str, Any], within: str, nodes: Sequence[TrialNode]) -> Iterator[PartReport]:
    """Values of NVIDIA's charts that stand inside a document."""
    yield from check_embedded(document, within, nodes)
    yield from of_plugin_chart(document, within, nodes)


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
            script = is_script(str(key), text)
            yield other_data(name) if script else report_refused(name, "settings", refused)
            continue
        parts = [check_sharing(None, name, nodes)] if document is None else _document(document, name, nodes)
        yield from (part.with_notices(notices) for part in parts)


def _resembles_profile(document: Any) -> bool:
    """Returns False for data of another program: a text, or a mapping without a key like those of a profile."""
    if isinstance(document, Mapping):
        words = {place.rpartition(".")[2] for place in PLACES}
        return any(get_close_matches(str(key)[:KEY_SHOWN], words, n=1, cutoff=0.75) for key in document)
    return document is None or isinstance(document, list)
