"""Checks of Tessera itself: its processes, its webhook with certificates, what the asker may do."""

import base64
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import (
    DEVICE_ACCESS_ALLOWED,
    DEVICE_ACCESS_LABEL,
    DEVICE_ACCESS_POLICY,
    NODE_GROUPS_KEY,
    NODE_GROUPS_MAP,
    REPAIRS_KEY,
    REPAIRS_MAP,
    SYSTEM_NAMESPACE,
)
from tessera.api.nodes.node_cards import is_gpu_node
from tessera.api.nodes.node_marks import AGENT_DAEMON_SET
from tessera.api.nodes.silence import Silence, SilentNode, agents_by_node, silent_nodes
from tessera.clock import parse_time_or_zero
from tessera.doctor.card_checks import check_cards
from tessera.doctor.facts import (
    TRIAL_RESOURCE,
    ClusterFacts,
    Finding,
    Object,
    Refusal,
    error,
    not_examined,
    ok,
    unknown,
    warning,
)
from tessera.doctor.installed_objects import check_objects, deployments, has_condition
from tessera.kube.resources import CoreEvent, Pod
from tessera.kube.resources.pods import NOT_PULLED
from tessera.text import count_noun, list_names, one_line

_APP = "app.kubernetes.io/name"
_LIST_PODS = f"list pods in {SYSTEM_NAMESPACE}"
#: What only an administrator does: nobody else misses the right.
_INSTALL = "tessera install"
_OPEN = "--metrics-access=open"
_PRIVILEGED = "pod-security.kubernetes.io/enforce"
#: The entry of the webhook configuration that reviews the trial pod (``deploy/admission.yaml``).
WEBHOOK_ENTRY = "gpus.tessera.dev"
#: Days before the end of a certificate authority at which somebody should look; Tessera renews it long before.
_LAST_DAYS = 3.0
_DAY = 86_400.0


def check_installation(facts: ClusterFacts) -> Iterator[Finding]:
    """Yields the findings of all checks of this module."""
    yield from _rights(facts.rights)
    if _is_absent(facts):
        yield warning(
            "installed",
            "Tessera is not installed",
            "tessera install --image, or the Helm chart charts/tessera: docs/install.md",
        )
        return
    yield _namespace(facts.namespace)
    yield from check_objects(facts)
    if isinstance(facts.pods, Refusal):
        yield not_examined("processes", facts.pods, needs=_LIST_PODS)
    else:
        yield from _processes(facts, facts.pods)
    yield from check_cards(facts.nodes)
    yield _settings(facts.settings)
    yield _node_groups(facts.node_groups)
    yield _repairs(facts.repairs)
    yield _device_access(facts)
    yield _leader(facts)
    yield from _webhook(facts)
    yield _trial(facts.trial, facts.webhook)
    yield _past(facts)


def _is_absent(facts: ClusterFacts) -> bool:
    return isinstance(facts.namespace, Refusal) and facts.namespace.missing


def _rights(rights: Mapping[str, Sequence[str]] | Refusal) -> Iterator[Finding]:
    if isinstance(rights, Refusal):
        yield not_examined("rights", rights)
        return
    lacking = {command: missing for command, missing in rights.items() if missing and command != _INSTALL}
    if lacking:
        verb = "does" if len(lacking) == 1 else "do"
        every = ", ".join(sorted({each for missing in lacking.values() for each in missing}))
        yield warning(
            "rights",
            f"{list_names(sorted(lacking))} {verb} not show you the cluster's cards from this namespace: you may not"
            f" {every}",
            "name a namespace of yours (-n NAME), or ask an administrator for the ClusterRole tessera-view in one",
        )
    if not lacking:
        but = f" but {_INSTALL}, which is an administrator's" if rights.get(_INSTALL) else ""
        yield ok("rights", f"yours suffice for all commands{but}")


def _namespace(namespace: Object | Refusal) -> Finding:
    if isinstance(namespace, Refusal):
        return not_examined("pod-security", namespace)
    level = (namespace["metadata"].get("labels") or {}).get(_PRIVILEGED, "")
    if level not in {"", "privileged"}:
        text = f"namespace {SYSTEM_NAMESPACE} admits {level} pods only, and agents are privileged"
        advice = f"kubectl label namespace {SYSTEM_NAMESPACE} {_PRIVILEGED}=privileged --overwrite"
        return error("pod-security", text, advice)
    return ok("pod-security", f"namespace {SYSTEM_NAMESPACE} admits privileged pods")


def _processes(facts: ClusterFacts, pods: Sequence[Object]) -> Iterator[Finding]:
    for app in deployments(facts):
        of_app = [each for each in pods if _app(each) == app]
        ready = [each for each in of_app if has_condition(each, "Ready")]
        if not ready:
            text = f"no pod of {app} is ready"
            yield error(app, text, f"kubectl -n {SYSTEM_NAMESPACE} describe pods -l {_APP}={app}")
        elif len(ready) < len(of_app):
            yield warning(app, f"{len(ready)} of {len(of_app)} pods are ready", "", [_name(each) for each in of_app])
        else:
            yield ok(app, f"{count_noun(len(ready), 'pod')} ready")
    yield from _agents(facts, pods)
    yield _image(pods)
    yield check_versions(pods, facts.daemon_sets)
    yield _metrics_access(pods)


def _image(pods: Sequence[Object]) -> Finding:
    """Whether the nodes can pull the image."""
    failing = {
        pod["metadata"]["name"]: f"{container.get('image', '')}: {waiting.get('message') or waiting['reason']}"
        for pod in pods
        for container in (pod.get("status") or {}).get("containerStatuses") or ()
        if (waiting := (container.get("state") or {}).get("waiting") or {}).get("reason") in NOT_PULLED
    }
    if failing:
        from tessera.doctor.manifests import BUILD_IMAGE

        text = f"nodes cannot pull {one_line(next(iter(failing.values())), 300)}"
        advice = f"push the image, or install another; {BUILD_IMAGE}; tessera doctor --image IMAGE tries one"
        return error("image", text, advice, [f"pod/{name}" for name in failing])
    return ok("image", "every node that runs Tessera has its image")


def _metrics_access(pods: Sequence[Object]) -> Finding:
    """Who may read the metrics of agents and controller, which name pods of all namespaces."""
    open_to_all = [each for each in pods if any(_OPEN in given for given in _arguments(each))]
    if open_to_all:
        apps = list_names(sorted({_app(each) for each in open_to_all}))
        text = f"{apps} show /metrics, with names of pods, to everybody"
        advice = "remove --metrics-access=open once Prometheus sends a token: docs/page-access.md"
        return warning("metrics-access", text, advice, [_name(each) for each in open_to_all])
    return ok("metrics-access", "metrics that name pods are for accounts with the right to get /metrics")


def _arguments(pod: Object) -> Iterator[Sequence[str]]:
    for container in pod["spec"].get("containers", ()):
        yield container.get("args") or ()


def _app(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(_APP, ""))


def _name(pod: Object) -> str:
    return f"pod/{pod['metadata']['name']}"


def _agents(facts: ClusterFacts, pods: Sequence[Object]) -> Iterator[Finding]:
    if isinstance(facts.nodes, Refusal):
        yield not_examined("agents", facts.nodes, needs="list nodes")
        return
    agents = msgspec.convert(pods, list[Pod])
    silent = silent_nodes(facts.nodes, agents, frozenset())
    by_kind: dict[Silence, list[SilentNode]] = {}
    for each in silent.values():
        by_kind.setdefault(each.kind, []).append(each)
    for kind, found in by_kind.items():
        yield _silence(kind, found, facts.now)
    answering = agents_by_node(agents).keys() - silent.keys()
    if not silent:
        yield ok("agents", f"ready on {count_noun(len(answering), 'node')}")


def _silence(kind: Silence, found: Sequence[SilentNode], now: float) -> Finding:
    """A finding for all nodes whose agents are silent for one kind of reason; the first one has the details."""
    names, first = [each.node for each in found], found[0]
    check = "drivers" if kind is Silence.WAITS else "agents"
    text = f"no answer from {list_names(names)}: {first.text(now)}{' on the first of them' if len(found) > 1 else ''}"
    advice = f"tessera why node/{first.node}; {first.next}"
    if kind in (Silence.NODE_NOT_READY, Silence.LEAVING):
        return unknown(check, text, advice)
    return error(check, text, advice, [f"node/{each}" for each in names])


def _settings(settings: Mapping[str, bool] | Refusal) -> Finding:
    if isinstance(settings, Refusal):
        return not_examined("settings", settings)
    missing = [name for name, exists in settings.items() if not exists]
    if missing:
        text = f"the agents follow ConfigMap {list_names(missing)}, which does not exist"
        advice = "create it, as it was with NVIDIA's operator; the agents follow at once"
        return warning("settings", text, advice, [f"configmap/{each}" for each in missing])
    return ok("settings", f"the agents follow {list_names(list(settings)) or 'no ConfigMap'}")


class _OptionFile(msgspec.Struct, frozen=True):
    """A ConfigMap with the file of an option.

    Attributes:
        check: name of its check.
        name: of the ConfigMap.
        key: of the file in it.
        none: what holds without it.
        mistaken: what holds while the file has a mistake.
        sources: what made it.
    """

    check: str
    name: str
    key: str
    none: str
    mistaken: str
    sources: str


_GROUPS = _OptionFile(
    "node-groups",
    NODE_GROUPS_MAP,
    NODE_GROUPS_KEY,
    "no groups of new nodes are stated",
    "until then no new node is asked for, and pods for any new node are admitted",
    "tessera install --node-groups, or the chart's value tessera.controller.nodeGroups",
)
_REPAIRS = _OptionFile(
    "repairs",
    REPAIRS_MAP,
    REPAIRS_KEY,
    "nothing is done about cards with faults but resets of empty ones",
    "until then what was in force stays in force, but a controller that starts meanwhile evicts no pod",
    "tessera install --repairs, or the chart's value tessera.repairs",
)


def _node_groups(config: Object | Refusal) -> Finding:
    def describe(text: str) -> str:
        from tessera.api.nodes.node_groups import parse_node_groups

        return f"{count_noun(len(parse_node_groups(text)), 'group')} of new nodes"

    return _check_file(_GROUPS, config, describe)


def _repairs(config: Object | Refusal) -> Finding:
    def describe(text: str) -> str:
        from tessera.api.nodes.repairs import parse_repairs

        return f"about cards with faults: {parse_repairs(text).summary}"

    return _check_file(_REPAIRS, config, describe)


def _check_file(file: _OptionFile, config: Object | Refusal, describe: Callable[[str], str]) -> Finding:
    """The finding about a file; ``describe`` says what a right one holds, and raises ValueError for a wrong one."""
    if isinstance(config, Refusal):
        return ok(file.check, file.none) if config.missing else not_examined(file.check, config)
    try:
        return ok(file.check, describe((config.get("data") or {})[file.key]))
    except KeyError:
        mistake = f"ConfigMap {file.name}: the key {file.key} is missing"
    except ValueError as error_of_file:
        mistake = one_line(error_of_file, 1_000)
    advice = (
        f"kubectl edit configmap {file.name} -n {SYSTEM_NAMESPACE}, or correct what made it and apply that again:"
        f" the file of {file.sources}"
    )
    text = f"{mistake}; {file.mistaken}"
    return error(file.check, text, advice, [f"configmap/{file.name} in {SYSTEM_NAMESPACE}"])


def _device_access(facts: ClusterFacts) -> Finding:
    """Namespaces whose pods the policy for pods refuses, with the command that exempts one; and the exempt ones."""
    check = "device-access"
    for fact in (facts.exempt, facts.refused):
        if isinstance(fact, Refusal):
            return not_examined(check, fact)
    assert not isinstance(facts.exempt, Refusal)
    assert not isinstance(facts.refused, Refusal)
    first: dict[str, CoreEvent] = {}
    for event in facts.refused:
        if f"'{DEVICE_ACCESS_POLICY}'" in event.message and event.involved_object.namespace not in facts.exempt:
            first.setdefault(event.involved_object.namespace, event)
    if not first:
        by_label = f"; exempt by their label: {list_names(facts.exempt)}" if facts.exempt else ""
        return ok(check, f"no pod is refused for access to GPUs that it does not ask for{by_label}")
    namespace, event = next(iter(first.items()))
    owner, why = event.involved_object, event.message.partition("denied request: ")[2]
    text = f"pods of {owner.kind} {namespace}/{owner.name} cannot be created: {one_line(why, 300)}"
    more = f" The same in {list_names(list(first)[1:])}." if len(first) > 1 else ""
    advice = (
        "correct the pod template; or, if all who create pods in the namespace may be root on its nodes: kubectl label"
        f" namespace {namespace} {DEVICE_ACCESS_LABEL}={DEVICE_ACCESS_ALLOWED}"
    )
    return warning(check, text + more, advice, [f"namespace/{each}" for each in first])


def check_versions(pods: Sequence[Object], daemon_sets: Sequence[Object] | Refusal) -> Finding:
    """The images that pods run: one, and the one that the agents' DaemonSet names.

    Args:
        pods: the pods of Tessera's namespace.
        daemon_sets: all DaemonSets, if they may be listed.
    """
    images: dict[str, list[str]] = {}
    for each in pods:
        if _app(each) in {"tessera-agent", "tessera-controller", "tessera-webhook"}:
            for image in _container_images(each):
                images.setdefault(image, []).append(_name(each))
    wanted = [
        image
        for each in (() if isinstance(daemon_sets, Refusal) else daemon_sets)
        if each["metadata"].get("namespace") == SYSTEM_NAMESPACE and each["metadata"]["name"] == AGENT_DAEMON_SET[-1]
        for image in _container_images((each.get("spec") or {}).get("template") or {})
    ]
    advice = "wait for the rollout, or see kubectl rollout status"
    if len(images) > 1:
        text = f"pods run {len(images)} images: {list_names([one_line(each, 100) for each in images])}"
        return warning("versions", text, advice)
    if wanted and not images.keys() <= set(wanted):
        running, named = (one_line(each, 100) for each in (next(iter(images)), wanted[0]))
        return warning("versions", f"pods run {running}, and the agents' DaemonSet names {named}", advice)
    return ok("versions", one_line(next(iter(images), "no pod"), 200))


def _container_images(pod: Object) -> list[str]:
    return [str(each.get("image", "")) for each in (pod.get("spec") or {}).get("containers", ())]


def _leader(facts: ClusterFacts) -> Finding:
    lease = facts.leader
    if isinstance(lease, Refusal):
        if lease.missing:
            return error("leader", "no controller leads", "see the logs of deployment/tessera-controller")
        return not_examined("leader", lease)
    spec: Mapping[str, Any] = lease.get("spec") or {}
    age = facts.now - parse_time_or_zero(spec.get("renewTime"))
    duration = spec.get("leaseDurationSeconds")
    limit = duration if isinstance(duration, int) else 15
    if age > 2 * limit:
        text = f"the controller's lease was renewed {age:.0f} s ago; it lasts {limit} s"
        return error("leader", text, "see the logs of deployment/tessera-controller")
    return ok("leader", one_line(spec.get("holderIdentity", ""), 100))


def _webhook(facts: ClusterFacts) -> Iterator[Finding]:
    configuration = facts.webhook
    if isinstance(configuration, Refusal):
        if configuration.missing:
            yield error("webhook", "there is no MutatingWebhookConfiguration tessera-webhook", "install again")
        else:
            yield not_examined("webhook", configuration)
        return
    bundles = {(each.get("clientConfig") or {}).get("caBundle", "") for each in configuration.get("webhooks", ())}
    if not bundles or "" in bundles:
        text = "the API server does not trust the webhook yet: its configuration has no caBundle"
        yield error("certificates", text, "see the logs of deployment/tessera-webhook")
        return
    ends = [_last_day(bundle) for bundle in bundles]
    left = min((each for each in ends if each), default=0.0) - facts.now
    if left < 0:
        text = "the webhook's certificate authority has ended, or cannot be read"
        yield error("certificates", text, "see the logs of deployment/tessera-webhook, and the cluster's clocks")
    elif left < _LAST_DAYS * _DAY:
        text = f"the webhook's certificate authority ends in {left / _DAY:.1f} days"
        yield warning("certificates", text, "see the logs of deployment/tessera-webhook: it renews them long before")
    else:
        yield ok("certificates", f"the webhook's authority is valid for {left / _DAY:.0f} days")


def _last_day(bundle: str) -> float:
    """The latest end of the authorities in a bundle; 0 if none can be read.

    By the standard library: the import of cryptography takes a sixth of the command's CPU time.
    """
    store = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        store.load_verify_locations(cadata=base64.b64decode(bundle, validate=True).decode("ascii"))
    except (ValueError, ssl.SSLError):
        return 0.0
    ends = (ssl.cert_time_to_seconds(str(each["notAfter"])) for each in store.get_ca_certs())
    return float(max(ends, default=0.0))


def _trial(trial: Object | Refusal, webhook: Object | Refusal) -> Finding:
    check = "webhook-reachable"
    if isinstance(trial, Refusal):
        if f'webhook "{WEBHOOK_ENTRY}" denied the request' in trial.reason:
            return ok(check, "the webhook refused a trial pod (dry run), as it should")
        if f'failed calling webhook "{WEBHOOK_ENTRY}"' in trial.reason:
            advice = (
                "see the webhook's pods, its NetworkPolicy (tessera install --api-server) and, on private clusters, the"
                " firewall between control plane and nodes: TCP 9443"
            )
            return error(check, f"the API server cannot reach the webhook: {one_line(trial.reason, 300)}", advice)
        refused = trial.lacks_right or "(Forbidden)" in trial.reason  # by a quota or another policy of the namespace
        return not_examined(check, trial, "name a namespace where you may create pods: -n NAME" if refused else "")
    text = f"a pod that the webhook must refuse is admitted (dry run; it asks for {TRIAL_RESOURCE} alone)"
    if isinstance(webhook, Refusal) and not webhook.missing:
        text = f"{text}; whether there is a webhook could not be read"
        return warning(check, text, "Tessera may not be installed: an administrator runs tessera doctor")
    return error(check, text, "see MutatingWebhookConfiguration tessera-webhook: somebody changed its rules")


def _past(facts: ClusterFacts) -> Finding:
    """Whether the live page gets its curves from the Prometheus that it was given."""
    check, past = "page-prometheus", facts.past
    if isinstance(facts.pods, Refusal):
        return not_examined(check, facts.pods, needs=_LIST_PODS)
    if past is None:
        return ok(check, "the live page has no Prometheus: its curves are of the last hours, from its own memory")
    if isinstance(past, Refusal):
        return not_examined(check, past, "see the pods of tessera-dashboard")
    if problem := past.get("problem"):
        advice = (
            "correct the address: tessera install --reuse --dashboard-prometheus URL; for a token or an authority, the"
            " Secret tessera-dashboard-prometheus; docs/live-page.md"
        )
        return warning(check, f"the live page has no past curves: {one_line(problem, 300)}", advice)
    empty = [one_line(each, 300) for each in past.get("empty") or ()]
    has_cards = isinstance(facts.nodes, Refusal) or any(is_gpu_node(each.metadata.labels) for each in facts.nodes)
    if empty and has_cards:
        text = f"the live page's Prometheus answers and has no values for: {'; '.join(empty)}"
        advice = "let it read Tessera's metrics and the recording rules (docs/see-it.md#prometheus), with these labels"
        return warning(check, text, advice)
    return ok(check, "the live page's Prometheus answers its queries")
