"""The table of reasons that the agent gives for a condition of a node, and the steps that help against each.

The most useful step comes first. A reason that is not in the table gets the steps of its condition. Labels that stand
as annotations, where nobody reads them, get theirs too.

The table also tells which warnings are out of date, since the API server keeps events long after their cause is gone. A
warning with a condition's reason reported that the condition became ``False``. It is out of date when the condition is
``True``, has changed its status since, or has left the node. If several conditions use the reason, all of them must
agree. Other warnings go out of date with time alone.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tessera.api.instaslice import OBJECT_CONDITION
from tessera.api.names import MIG_CONFIG_LABEL
from tessera.api.nodes.node_cards import COUNT_LABEL
from tessera.api.nodes.node_marks import ADVERTISED_CONDITION as ADVERTISED
from tessera.api.nodes.node_marks import HEALTH, LAYOUT, MPS, SHARING, WAITING_FOR_KUBELET
from tessera.api.resource_advice import NODE_LABELS
from tessera.clock import parse_rfc3339
from tessera.explain.snapshot import event_time
from tessera.kube.resources import Condition, CoreEvent, Node, Pod
from tessera.mig.geometry import GpuModel
from tessera.mig.models import model_by_product

_LOG = "read the agent's log: kubectl logs -n tessera-system -l app.kubernetes.io/name=tessera-agent --prefix"
_STACK_LOG = "its log: kubectl logs -n tessera-system -l app.kubernetes.io/name=tessera"
_CHECK = "check the file: kubectl get configmap {settings} -o yaml | tessera config check - {models}"
_CORRECT = "correct the ConfigMap; the agent follows at once: kubectl edit configmap {settings}"
_PROFILE = "name another profile: kubectl label node {node} nvidia.com/device-plugin.config=PROFILE --overwrite"
_LAYOUT = "name another layout: kubectl label node {node} nvidia.com/mig.config=LAYOUT --overwrite"
# An installation keeps no option of the one before, so a step that names one option has to say so.
_REINSTALL = "run tessera install again as before"
_RIGHTS = f"let the agents read the ConfigMap: {_REINSTALL}, with --values FILE -n NAMESPACE"
_DRIVER = "check the driver: nvidia-smi and dmesg on {node}"
_WAIT = "check again in a moment; if nothing changes, read the agent's log"
_AGAIN = "the agent tries again by itself"
_PODS = "see the pods: kubectl get pods -A --field-selector spec.nodeName={node}"

#: Reasons that end without help.
_PASSING = frozenset({"LayoutApplying", "LayoutRetrying", "Starting", "DeviceUsersUnknown"})
#: Steps by condition, for reasons that are not in the table.
_BY_TYPE: Mapping[str, tuple[str, ...]] = {
    HEALTH: (_DRIVER, _LOG),
    LAYOUT: (_LAYOUT, _LOG),
    SHARING: (_PROFILE, _LOG),
    MPS: (_LOG,),
    OBJECT_CONDITION: (
        "correct the field: kubectl edit instaslice -n instaslice-system {node}",
        "or let the agent create it again: kubectl delete instaslice -n instaslice-system {node}",
    ),
    ADVERTISED: (_PODS, _LOG),
}
_BY_REASON: Mapping[tuple[str, str], tuple[str, ...]] = {
    (ADVERTISED, "WaitingForDriver"): (
        _PODS,
        "see its driver: tessera driver status",
        "if the node's host installs the driver: check that it is loaded, nvidia-smi on {node}",
    ),
    (ADVERTISED, "WaitingForToolkit"): (
        _PODS,
        f"{_STACK_LOG}-container-toolkit --prefix",
    ),
    (ADVERTISED, "WaitingForValidation"): (_PODS, f"{_STACK_LOG}-validation --prefix"),
    (ADVERTISED, WAITING_FOR_KUBELET): ("check again in a moment: kubelet publishes with its next status", _PODS, _LOG),
    (ADVERTISED, "PausedForDriver"): (
        "check again in a moment; see the replacement's progress: tessera driver status",
    ),
    (ADVERTISED, "NvmlFailed"): (_DRIVER, _AGAIN, _LOG),
    (HEALTH, "CardUnhealthy"): (
        _DRIVER,
        "a card is offered again when it works; if it needs a reset or a reboot, after that",
    ),
    (HEALTH, "NoCards"): (_DRIVER, "if the node has no cards, remove the label that brought the agent"),
    (LAYOUT, "LayoutUnknown"): (
        _LAYOUT,
        "or write the layout into the ConfigMap; the agent follows at once: kubectl edit configmap {settings}",
    ),
    (LAYOUT, "LayoutImpossible"): ("try a layout: tessera plan mig {model} PROFILE=COUNT...", _LAYOUT),
    (LAYOUT, "LayoutsRefused"): (_CHECK, _CORRECT),
    (LAYOUT, "LayoutAmbiguous"): ("keep the layout in one file of the ConfigMap; the agent follows at once",),
    (LAYOUT, "LayoutsUnreadable"): (_RIGHTS,),
    (LAYOUT, "CardsInUse"): (
        "wait, or delete the pods that hold the devices; the agent continues by itself",
        _PODS,
        f"to let the agent evict them: {_REINSTALL}, with --mig-evict",
    ),
    (LAYOUT, "ResetRequired"): (
        "end the processes that use the card, or reboot the node: kubectl drain {node} --ignore-daemonsets",
        f"to let the agent reboot nodes: set WITH_REBOOT in migManager.env of the values file, and {_REINSTALL}",
    ),
    (LAYOUT, "NvmlFailed"): (_DRIVER, _AGAIN, _LOG),
    (LAYOUT, "StateUnwritable"): ("make room on {node}, in the folder named above: df -h", _AGAIN),
    (SHARING, "ProfileRefused"): (_CHECK, _CORRECT, _PROFILE),
    (SHARING, "ProfileMissing"): (
        _PROFILE,
        "or write the profile into the ConfigMap; the agent follows at once: kubectl edit configmap {settings}",
    ),
    (SHARING, "ProfilesUnreadable"): (_RIGHTS,),
    (SHARING, "CardsInUse"): ("wait, or delete the pods that hold those cards; the agent continues by itself", _PODS),
    (SHARING, "ResourceNameConflict"): (
        "rename one of the two resources in the sharing profile, as the message says",
        _CHECK,
    ),
    (SHARING, "KubeletNotResponding"): ("check that kubelet runs on {node}: journalctl -u kubelet", _LOG),
    (SHARING, "NvmlFailed"): (_DRIVER, _AGAIN),
    (SHARING, "CdiFailed"): ("make room on {node}, in the folder named above: df -h", _AGAIN),
    (SHARING, "ResourceRefused"): ("read kubelet's log on {node}: journalctl -u kubelet", _AGAIN),
    (MPS, "DaemonNotReady"): (_LOG,),
    (MPS, "WaitingForClients"): ("wait, or delete the pods that still use the cards in the former way", _PODS),
}


class RemedyFields(msgspec.Struct, frozen=True, kw_only=True):
    """Values that fill the blanks in the steps, so that a user can copy the commands.

    Attributes:
        node: the node's name.
        profiles: the ConfigMap of sharing profiles, as arguments of kubectl: ``-n NAMESPACE NAME``.
        layouts: the ConfigMap of MIG layouts, in the same form.
        models: the node's cards, as arguments of ``tessera config check``.
        model: the model of most of the node's cards.
        without_mig: True if none of its cards has MIG.
    """

    node: str
    profiles: str = "-n NAMESPACE NAME"
    layouts: str = "-n NAMESPACE NAME"
    models: str = "--model [Nx]MODEL"
    model: str = "MODEL"
    without_mig: bool = False


def remedy_fields(node: Node, agent: Pod | None) -> RemedyFields:
    """The values for a node: its cards by its labels, its ConfigMaps by its agent's command line."""
    found = sorted(_models(node), key=lambda each: (-each[0], each[1].short_name))
    known = {
        "profiles": _config_map(agent, "--sharing-config"),
        "layouts": _config_map(agent, "--mig-config"),
        "models": " ".join(f"--model {count}x{model.short_name}" for count, model in found),
        "model": found[0][1].short_name if found else "",
    }
    without_mig = bool(found) and not any(model.mig_capable for _, model in found)
    named = {name: text for name, text in known.items() if text}
    return RemedyFields(node=node.metadata.name, without_mig=without_mig, **named)


def _models(node: Node) -> Iterator[tuple[int, GpuModel]]:
    for name, value in node.metadata.labels.items():
        model = model_by_product(name.removeprefix(COUNT_LABEL)) if name.startswith(COUNT_LABEL) else None
        if model is not None and value.isdecimal():
            yield int(value), model


def _config_map(agent: Pod | None, option: str) -> str:
    arguments = [each for container in agent.spec.containers for each in container.args] if agent is not None else []
    values = [each.partition("=")[2] for each in arguments if each.startswith(f"{option}=")]
    namespace, _, name = values[-1].partition("/") if values else ("", "", "")
    return f"-n {namespace} {name}" if name else ""


def remedies_for(condition: str, reason: str, fields: RemedyFields) -> tuple[str, ...]:
    """The steps that help against a condition's reason, most useful first; to wait, where the agent is at work."""
    if reason.endswith(("Pending", "Rebooting")) or reason in _PASSING:
        return (_WAIT,)
    steps = _BY_REASON.get((condition, reason)) or _BY_TYPE[condition]
    if fields.without_mig and reason == "LayoutImpossible":
        steps = ("remove the label: kubectl label node {node} nvidia.com/mig.config-",)
    settings = fields.layouts if condition == LAYOUT else fields.profiles
    return tuple(step.format(settings=settings, **msgspec.structs.asdict(fields)) for step in steps)


def conditions_with_reason(reason: str) -> frozenset[str]:
    """The conditions that the table has with this reason."""
    return frozenset(condition for condition, each in _BY_REASON if each == reason)


def remedies_for_empty_node(fields: RemedyFields) -> tuple[str, ...]:
    """The steps for a node that offers nothing although all its conditions are ``True``."""
    look = f"see the cards: nvidia-smi on {fields.node}"
    if fields.without_mig:
        return (look, _LOG)
    whole = f"for whole cards: kubectl label node {fields.node} {MIG_CONFIG_LABEL}=all-disabled --overwrite"
    return (f"cards in MIG mode without instances offer nothing; {whole}", look)


# Warnings that are out of date

#: Seconds after which a warning is out of date; API servers keep events as long by default
#: (``kube-apiserver --event-ttl``).
WARNING_LIFETIME = 3600.0


def relevant_warnings(
    events: Iterable[CoreEvent], conditions: Mapping[str, Condition], now: float
) -> Iterator[CoreEvent]:
    """The warnings that tell more than the node's conditions do.

    Args:
        events: warnings about the node.
        conditions: the agent's conditions on it, by type; if there are none, every recent warning counts.
        now: seconds since 1970.
    """
    messages = {each.message for each in conditions.values()}
    for event in events:
        concerned = conditions_with_reason(event.reason) if conditions else frozenset()
        if event.message in messages or event_time(event) < now - WARNING_LIFETIME:
            continue
        if not concerned or any(not _is_outdated(event, conditions.get(each)) for each in concerned):
            yield event


def _is_outdated(event: CoreEvent, condition: Condition | None) -> bool:
    if condition is None or condition.status == "True":
        return True
    try:
        return event_time(event) < parse_rfc3339(condition.last_transition_time or "")
    except ValueError:
        return False


def misplaced_on_node(node: Node) -> Iterator[str]:
    """The keys of a node that have no effect as annotations."""
    for key in sorted(NODE_LABELS & node.metadata.annotations.keys() - node.metadata.labels.keys()):
        value = node.metadata.annotations[key]
        step = f"kubectl label node {node.metadata.name} {key}={value}"
        yield f"its annotation {key} has no effect: it is a label ({step})"
