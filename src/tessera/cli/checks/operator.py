"""What an installation of NVIDIA's gpu-operator means to Tessera: its values file, or its ClusterPolicy."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.agent.health.policy import passed_over
from tessera.api.documents import FileRefused, load
from tessera.api.names import MIG_CONFIG_LABEL
from tessera.api.operator.settings import OWN_LAYOUTS, OWN_PROFILES, SYSTEM_NAMESPACE, NamedConfig, OperatorSettings
from tessera.api.sharing.profiles import PROFILE_LABEL
from tessera.api.values import POLICY_KIND, settings_from
from tessera.cli.checks.layouts import check_layouts
from tessera.cli.checks.part import Node, Part, refused_part
from tessera.cli.checks.sharing import check_sharing

CHECKED_AS = "values of gpu-operator"
POLICY_CHECKED_AS = POLICY_KIND

#: What counts on a node without a label where no default is set.
_NO_PROFILE = "the one called default or else the only one"
_NO_LAYOUT = "the cards stay as they are"


def check_operator(document: Mapping[str, Any], name: str, nodes: Sequence[Node]) -> Iterator[Part]:
    """Judges a document that is loaded already, and the profiles and layouts that stand in it."""
    kind = POLICY_CHECKED_AS if document.get("kind") == POLICY_KIND else CHECKED_AS
    try:
        settings = settings_from(document)
    except FileRefused as refused:
        yield refused_part(name, kind, refused)
        return
    yield Part(name=name, kind=kind, means=tuple(_means(settings)), notices=tuple(_notices(settings)))
    for key, text in (settings.sharing.data or {}).items():
        yield check_sharing(load(text), f"{settings.sharing.name}/{key}", nodes)
    for key, text in (settings.layouts.data or {}).items():
        yield check_layouts(load(text), f"{settings.layouts.name}/{key}", nodes)


def _means(settings: OperatorSettings) -> Iterator[str]:
    where = f"namespace {settings.namespace}" if settings.namespace else "the namespace of the installation"
    yield f"MIG strategy {settings.mig_strategy.value}"
    profiles, layouts = settings.sharing, settings.layouts
    yield f"sharing profiles: {_source(profiles, OWN_PROFILES, where)}"
    yield _chosen(profiles, PROFILE_LABEL, _NO_PROFILE)
    yield f"MIG layouts: {_source(layouts, OWN_LAYOUTS, where)}"
    yield _chosen(layouts, MIG_CONFIG_LABEL, _NO_LAYOUT)
    if settings.mig_reboot:
        yield "a node is rebooted where a change of layout cannot be had otherwise"
    if settings.device_list_strategies:
        yield f"containers learn of their devices by {', '.join(settings.device_list_strategies)}"
    if settings.device_id_strategy:
        yield f"containers are told each device's {settings.device_id_strategy}"
    if settings.pass_device_specs:
        yield "kubelet is told the device nodes too"
    if settings.mps_root:
        yield f"MPS daemons have their folders below {settings.mps_root}"
    if settings.kubelet_root:
        yield f"kubelet's folder is {settings.kubelet_root}"
    for variable, value in settings.health.items():
        yield f"health follows {variable}={value}"


def _notices(settings: OperatorSettings) -> Iterator[str]:
    yield from map(str, settings.notices)
    for variable, value in settings.health.items():
        for word in passed_over(value):
            yield f'{variable}: "{word}" is passed over: it is no XID; write numbers with commas, or all'


def _source(config: NamedConfig, own: str, where: str) -> str:
    if not config.name:
        return f"ConfigMap {own} in namespace {SYSTEM_NAMESPACE}, if there is one"
    return f"ConfigMap {config.name} in {where}{', made from config.data' if config.data else ''}"


def _chosen(config: NamedConfig, label: str, otherwise: str) -> str:
    return f"  the node label {label} names one; without it {config.default or otherwise}"
