"""Names files that are no settings of Tessera by their content, and says what to do with them instead.

kubectl's messages and an empty text come from a pipe whose first command failed. The formats are those of NVIDIA's
mig-parted (hooks, clients of the MIG manager), of its device-plugin chart, and of gpu-operator 26.7 (GPUCluster).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from tessera.api.documents import FileRefused, load_document, quote_value
from tessera.api.driver.nvidia_driver import KIND as DRIVER_KIND
from tessera.api.gpu_operator.settings_reader import POLICY_KIND
from tessera.cli.config.judgement import Judgement, TrialNode, judge_refused
from tessera.cli.config.sharing import check_sharing
from tessera.text import one_line

#: Kinds of manifests that are judged.
JUDGED_KINDS = ("ConfigMap", POLICY_KIND, DRIVER_KIND)
CLUSTER_KIND = "GPUCluster"
#: Files that are recognized and have no effect.
CLIENTS, HOOKS = "clients of the MIG manager", "hooks of mig-parted"

_EMPTY = "is empty; where a pipe feeds this, its first command wrote nothing: run that alone to see why"
#: How kubectl begins what it says instead of an object, in klog's form too.
_KUBECTL = re.compile(
    r"(?:error:|Error from server|No resources found|Unable to connect to the server|The connection to the server"
    r"|couldn't get |[EWIF]\d{4} \d\d:\d\d:\d\d)",
    re.IGNORECASE,
)

#: Keys of NVIDIA's device-plugin chart that gpu-operator's chart and sharing profiles do not have at their top.
_PLUGIN_CHART = frozenset(
    {
        "allowDefaultNamespace",
        "compatWithCPUManager",
        "deviceDiscoveryStrategy",
        "deviceIDStrategy",
        "deviceListStrategy",
        "failOnInitError",
        "gdrcopyEnabled",
        "gdsEnabled",
        "legacyDaemonsetAPI",
        "migStrategy",
        "mofedEnabled",
        "nvidiaDriverRoot",
        "selectorLabelsOverride",
    }
)
_PLUGIN_ADVICE = (
    "are values of NVIDIA's device-plugin chart, which Tessera does not read; put each profile under a key of a"
    " ConfigMap, and name it in values of gpu-operator: devicePlugin.config.name, mig.strategy"
)


def not_settings(text: str) -> Judgement | None:
    """The judgement on a text that is no file at all; None if it may be one."""
    begin = text.lstrip()[:1000]
    if not begin:
        return Judgement(name="file", kind="settings", problems=(_EMPTY,))
    if _KUBECTL.match(begin):
        said = one_line(begin.splitlines()[0])
        problem = f'is what kubectl says instead of an object: "{said}"; correct that command first'
        return Judgement(name="file", kind="settings", problems=(problem,))
    return None


def empty(name: str) -> Judgement:
    """The judgement on a document without content."""
    return Judgement(name=name, kind="settings", problems=("is empty; write a sharing profile or MIG layouts",))


def status(document: Mapping[str, Any], name: str) -> Judgement:
    """The judgement on what an API server answers instead of an object."""
    said = quote_value(document.get("message") or document.get("reason"))
    problem = f"is an answer of the API server instead of an object: {said}; correct the command that asked it"
    return Judgement(name=name, kind="Status", problems=(problem,))


def gpu_cluster(name: str) -> Judgement:
    """The judgement on the root object of NVIDIA's DRA stack."""
    problem = (
        "configures NVIDIA's DRA driver, which Tessera takes no settings from; write a ClusterPolicy, and NVIDIADriver"
        " objects for drivers; nothing of a GPUCluster is in force with Tessera"
    )
    return Judgement(name=name, kind=CLUSTER_KIND, problems=(problem,))


def manifest(kind: str, name: str) -> Judgement:
    """A manifest of a kind that is not judged."""
    close = get_close_matches(kind[:100], (*JUDGED_KINDS, CLUSTER_KIND), n=1, cutoff=0.75)
    if close:
        return Judgement(name=name, kind="manifest", problems=(f"kind {quote_value(kind)}: did you mean {close[0]}?",))
    return Judgement(name=name, kind="manifest", notices=(f"is a {one_line(kind)}, which is not checked",), used=False)


def of_nvidia(document: Mapping[str, Any], name: str, nodes: Sequence[TrialNode]) -> Iterator[Judgement]:
    """The judgement on files of NVIDIA's programs that Tessera does not read; nothing if it is none of them."""
    if "systemd-services" in document:
        text = "names host services for NVIDIA's MIG manager; Tessera stops none to change a layout: nothing to do"
        yield Judgement(name=name, kind=CLIENTS, notices=(text,), used=False)
    elif "hooks" in document and "sharing" not in document:
        text = "names commands that mig-parted runs around a change of layout; Tessera runs none: nothing to do"
        yield Judgement(name=name, kind=HOOKS, notices=(text,), used=False)
    elif _is_plugin_chart(document):
        yield Judgement(name=name, kind="values of the device-plugin chart", problems=(_PLUGIN_ADVICE,))
        yield from _profiles_of_chart(document, name, nodes)


def _is_plugin_chart(document: Mapping[str, Any]) -> bool:
    if {"version", "sharing", "flags"} & document.keys():
        return False
    config = document.get("config")
    return bool(_PLUGIN_CHART & document.keys()) or (isinstance(config, Mapping) and "map" in config)


def _profiles_of_chart(document: Mapping[str, Any], name: str, nodes: Sequence[TrialNode]) -> Iterator[Judgement]:
    config = document.get("config")
    profiles = config.get("map") if isinstance(config, Mapping) else None
    for key, text in profiles.items() if isinstance(profiles, Mapping) else ():
        part = f"{name}/config.map/{key}"
        try:
            yield check_sharing(load_document(text) if isinstance(text, str) else text, part, nodes)
        except FileRefused as refused:
            yield judge_refused(part, "sharing profile", refused)
