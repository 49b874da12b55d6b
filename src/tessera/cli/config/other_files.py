"""Recognizes files that are not settings of Tessera by their content, and suggests the next step.

A message of kubectl and an empty text come from a pipe whose first command failed. The formats are those of NVIDIA's
mig-parted (hooks, clients of the MIG manager), of its device-plugin chart, and of gpu-operator 26.7 (GPUCluster).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from tessera.api.documents import first_document
from tessera.api.problems import FileRefused, quote_value
from tessera.cli.config.part_report import PartReport, TrialNode, report_refused
from tessera.cli.config.sharing import check_sharing
from tessera.gpu_operator.policies.nvidia_driver import KIND as DRIVER_KIND
from tessera.gpu_operator.settings.plugin_chart import PLUGIN_ADVICE, find_plugin_values, is_plugin_chart
from tessera.gpu_operator.settings.settings_reader import POLICY_KIND
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
