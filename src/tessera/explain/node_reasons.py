"""What would help a node, by the condition that is not as asked and its reason: a table, first entry most useful.

Reasons are those that the agent writes. One that is not listed gets the help of its condition.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tessera.agent.base.node_conditions import HEALTH, LAYOUT, MPS, SHARING
from tessera.api.driver.status import ADVERTISED_CONDITION as ADVERTISED
from tessera.api.driver.status import WAITING_FOR_KUBELET
from tessera.api.instaslice import OBJECT_CONDITION
from tessera.api.names import MIG_CONFIG_LABEL
from tessera.api.products import COUNT_LABEL
from tessera.clock import parse_rfc3339
from tessera.explain.snapshot import event_time
from tessera.kube.resources import Condition, CoreEvent, Node, Pod
from tessera.mig.gpu_model import GpuModel
from tessera.mig.models import model_by_product

_LOG = "read the agent's log: kubectl logs -n tessera-system -l app.kubernetes.io/name=tessera-agent --prefix"
_STACK_LOG = "its log: kubectl logs -n tessera-system -l app.kubernetes.io/name=tessera"
_CHECK = "check the file: kubectl get configmap {settings} -o yaml | tessera config check - {models}"
_CORRECT = "correct the ConfigMap, the agent follows at once: kubectl edit configmap {settings}"
_PROFILE = "name another profile: kubectl label node {node} nvidia.com/device-plugin.config=PROFILE --overwrite"
_LAYOUT = "name another layout: kubectl label node {node} nvidia.com/mig.config=LAYOUT --overwrite"
# An installation keeps nothing of the one before: a step that names one option has to say so.
_REINSTALL = "run tessera install again as before"
_RIGHTS = f"let the agents read the ConfigMap: {_REINSTALL}, with --values FILE -n NAMESPACE"
_DRIVER = "see what the driver says: nvidia-smi and dmesg on {node}"
_WAIT = "ask again in a moment; if nothing moves, read the agent's log"
_AGAIN = "the agent tries again by itself"
_PODS = "see the pods: kubectl get pods -A --field-selector spec.nodeName={node}"

#: Reasons that go by themselves.
_PASSING = frozenset({"LayoutApplying", "LayoutRetrying", "Starting", "HoldersUnknown"})
#: By the condition alone: for reasons of which nothing more is known.
_BY_TYPE: Mapping[str, tuple[str, ...]] = {
    HEALTH: (_DRIVER, _LOG),
    LAYOUT: (_LAYOUT, _LOG),
    SHARING: (_PROFILE, _LOG),
    MPS: (_LOG,),
    OBJECT_CONDITION: (
        "correct the field: kubectl edit instaslice -n instaslice-system {node}",
        "or have the agent make it anew: kubectl delete instaslice -n instaslice-system {node}",
    ),
    ADVERTISED: (_PODS, _LOG),
}
_BY_REASON: Mapping[tuple[str, str], tuple[str, ...]] = {
    (ADVERTISED, "WaitingForDriver"): (
        _PODS,
        "see its driver: tessera driver status",
        "if the node has a driver of its own: see that it is loaded, nvidia-smi on {node}",
    ),
    (ADVERTISED, "WaitingForToolkit"): (
        _PODS,
        f"{_STACK_LOG}-container-toolkit --prefix",
    ),
    (ADVERTISED, "WaitingForValidation"): (_PODS, f"{_STACK_LOG}-validation --prefix"),
    (ADVERTISED, WAITING_FOR_KUBELET): ("ask again in a moment: kubelet publishes with its next status", _PODS, _LOG),
    (ADVERTISED, "PausedForDriver"): ("ask again in a moment; how far the replacement is: tessera driver status",),
    (ADVERTISED, "NvmlFailed"): (_DRIVER, _AGAIN, _LOG),
    (HEALTH, "CardUnhealthy"): (
        _DRIVER,
        "a card comes back by itself once it has proven itself; one that wants a reset or a boot does so after that",
    ),
    (HEALTH, "NoCards"): (_DRIVER, "if the node has no cards, take the label off that brought the agent"),
    (LAYOUT, "LayoutUnknown"): (
        _LAYOUT,
        "or write the layout into the ConfigMap, the agent follows at once: kubectl edit configmap {settings}",
    ),
    (LAYOUT, "LayoutImpossible"): ("try it: tessera plan mig {model} PROFILE=COUNT...", _LAYOUT),
    (LAYOUT, "LayoutsRefused"): (_CHECK, _CORRECT),
    (LAYOUT, "LayoutAmbiguous"): ("keep the layout in one file of the ConfigMap; the agent follows at once",),
    (LAYOUT, "LayoutsUnreadable"): (_RIGHTS,),
    (LAYOUT, "CardsInUse"): (
        "wait, or delete the pods that hold what must go; the agent goes on by itself",
        _PODS,
        f"to have them evicted: {_REINSTALL}, with --evict",
    ),
    (LAYOUT, "ResetRequired"): (
        "end what uses the card, or reboot the node: kubectl drain {node} --ignore-daemonsets",
        f"to let the agent reboot nodes: set WITH_REBOOT in migManager.env of the values file, and {_REINSTALL}",
    ),
    (LAYOUT, "NvmlFailed"): (_DRIVER, _AGAIN, _LOG),
    (LAYOUT, "StateUnwritable"): ("make room on {node}, in the folder that the text names: df -h", _AGAIN),
    (SHARING, "ProfileRefused"): (_CHECK, _CORRECT, _PROFILE),
    (SHARING, "ProfileMissing"): (
        _PROFILE,
        "or write the profile into the ConfigMap, the agent follows at once: kubectl edit configmap {settings}",
    ),
    (SHARING, "ProfilesUnreadable"): (_RIGHTS,),
    (SHARING, "CardsInUse"): ("wait, or delete the pods that hold those cards; the agent goes on by itself", _PODS),
    (SHARING, "ResourceTaken"): ("rename one of both in the sharing profile, as the text says", _CHECK),
    (SHARING, "KubeletSilent"): ("see that kubelet runs on {node}: journalctl -u kubelet", _LOG),
    (SHARING, "NvmlFailed"): (_DRIVER, _AGAIN),
    (SHARING, "CdiFailed"): ("make room on {node}, in the folder that the text names: df -h", _AGAIN),
    (SHARING, "ResourceRefused"): ("see what kubelet says on {node}: journalctl -u kubelet", _AGAIN),
    (MPS, "DaemonNotReady"): (_LOG,),
    (MPS, "WaitingForClients"): ("wait, or delete the pods that still use the cards as they were", _PODS),
}


class RemedyFields(msgspec.Struct, frozen=True, kw_only=True):
    """What is filled into the steps, so that they can be typed as they stand.

    Attributes:
        node: its name.
        profiles: the ConfigMap of sharing profiles, as arguments of kubectl: ``-n NAMESPACE NAME``.
        layouts: likewise that of MIG layouts.
        models: the node's cards, as arguments of ``tessera config check``.
        model: the model that the node has most cards of.
        without_mig: none of its cards has MIG.
    """

    node: str
    profiles: str = "-n NAMESPACE NAME"
    layouts: str = "-n NAMESPACE NAME"
    models: str = "--model [Nx]MODEL"
    model: str = "MODEL"
    without_mig: bool = False


def remedy_fields(node: Node, agent: Pod | None) -> RemedyFields:
    """What is known of a node: its cards by its labels, its settings by its agent's command line."""
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


def remedies_for(condition: str, reason: str, blanks: RemedyFields) -> tuple[str, ...]:
    """Steps that would help, or those of waiting where the agent is at it."""
    if reason.endswith(("Pending", "Rebooting")) or reason in _PASSING:
        return (_WAIT,)
    steps = _BY_REASON.get((condition, reason)) or _BY_TYPE[condition]
    if blanks.without_mig and reason == "LayoutImpossible":
        steps = ("remove the label: kubectl label node {node} nvidia.com/mig.config-",)
    settings = blanks.layouts if condition == LAYOUT else blanks.profiles
    return tuple(step.format(settings=settings, **msgspec.structs.asdict(blanks)) for step in steps)


def conditions_with_reason(reason: str) -> frozenset[str]:
    """The conditions that may give this reason for not being ``True``; none for a word that is no such reason."""
    return frozenset(condition for condition, each in _BY_REASON if each == reason)


def remedies_for_empty_node(node: str) -> tuple[str, ...]:
    """For a node that offers nothing although all is as asked."""
    whole = f"for whole cards: kubectl label node {node} {MIG_CONFIG_LABEL}=all-disabled --overwrite"
    return (
        f"cards in MIG mode without instances offer nothing, as those that were cut on demand before; {whole}",
        f"see the cards: nvidia-smi on {node}",
    )


# Warnings that have passed

#: Seconds after which a warning of no condition is not told any more; as long as an API server keeps one by default
#: (``kube-apiserver --event-ttl``).
WARNING_LIFETIME = 3600.0


def relevant_warnings(events: Iterable[CoreEvent], told: Mapping[str, Condition], now: float) -> Iterator[CoreEvent]:
    """Those that add to what the node's conditions say.

    Args:
        events: warnings about the node.
        told: the agent's conditions on it, by type; without any, warnings are all that there is to know.
        now: seconds since 1970.
    """
    said = {each.message for each in told.values()}
    for event in events:
        reasons_of = conditions_with_reason(event.reason) if told else frozenset()
        if event.message in said or event_time(event) < now - WARNING_LIFETIME:
            continue
        if not reasons_of or any(not _passed(event, told.get(each)) for each in reasons_of):
            yield event


def _passed(event: CoreEvent, condition: Condition | None) -> bool:
    if condition is None or condition.status == "True":
        return True
    try:
        return event_time(event) < parse_rfc3339(condition.last_transition_time or "")
    except ValueError:
        return False
