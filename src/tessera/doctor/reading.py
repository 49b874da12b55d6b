"""Reads the facts of an examination, each part for itself; what cannot be read is a :class:`.Refusal`."""

import asyncio
import re
from collections.abc import Awaitable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tessera.api.names import (
    CLAIM_DRIVERS,
    DEVICE_ACCESS_ALLOWED,
    DEVICE_ACCESS_LABEL,
    NODE_GROUPS_MAP,
    REPAIRS_MAP,
    SYSTEM_NAMESPACE,
)
from tessera.api.problems import FileRefused
from tessera.clock import Clock
from tessera.doctor.facts import (
    FOR_TENANTS,
    RIGHTS,
    TRIAL_RESOURCE,
    WEBHOOK,
    ClaimFacts,
    ClusterFacts,
    KueueFacts,
    Object,
    Refusal,
    Right,
    arguments,
    claim_driver,
)
from tessera.doctor.installed_objects import BINDINGS, places
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, NotFound, Unauthorized
from tessera.kube.resources import (
    API_SERVICES,
    CONFIGMAPS,
    CRDS,
    DAEMONSETS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    CoreEvent,
    Node,
)
from tessera.kube.resources.meta import Resource
from tessera.kueue.objects import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    CONFIG_KEY,
    CONFIG_MAP,
    CONFIG_NAMESPACE,
    MANAGER,
    Release,
    release_of,
    served_resource,
    served_version,
)
from tessera.nesting import decode_json

if TYPE_CHECKING:
    from tessera.dra.resource_slices import ResourceSlice

T = TypeVar("T")

#: Where kubelets renew the leases of their nodes.
NODE_LEASES = "kube-node-lease"
#: ConfigMaps that are looked for; while a DaemonSet changes, its agents follow four.
FOLLOWED = 8
#: What the live page tells of its Prometheus.
PASTS: Resource[dict[str, Any]] = Resource("view.tessera.dev", "v1alpha1", "pasts", "Past", True, dict)
_DATE = re.compile(
    r"[A-Z][a-z]{2}, (?P<day>[0-9]{2}) (?P<month>[A-Z][a-z]{2}) (?P<year>[0-9]{4})"
    r" (?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2}) GMT"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
#: Series by which the API server tells its feature gates (Kubernetes, ``kubernetes_feature_enabled``).
_GATE = re.compile(rb'^kubernetes_feature_enabled\{name="([A-Za-z0-9]+)",stage="[A-Z]*"\} ([01])', re.MULTILINE)


async def read_facts(client: Client, clock: Clock, trial_namespace: str) -> ClusterFacts:
    """Reads everything at once. It writes nothing: the trial pod is a dry run.

    Args:
        client: the asker's.
        clock: the asker's clock.
        trial_namespace: namespace of the trial pod.

    Raises:
        ConnectionError: the API server does not answer at all.
        Unauthorized: it does not know the asker.
    """
    version, skew = await _version(client, clock)
    async with asyncio.TaskGroup() as group:
        nodes = group.create_task(try_to_read(_nodes(client)))
        pods = group.create_task(try_to_read(_list(client, PODS.as_dicts(), SYSTEM_NAMESPACE)))
        daemon_sets = group.create_task(try_to_read(_list(client, DAEMONSETS.as_dicts())))
        namespace = group.create_task(try_to_read(_get(client, NAMESPACES.as_dicts(), SYSTEM_NAMESPACE)))
        definitions = group.create_task(try_to_read(_list(client, CRDS.as_dicts())))
        webhook = group.create_task(try_to_read(_get(client, MUTATING_WEBHOOKS.as_dicts(), WEBHOOK)))
        leader = group.create_task(try_to_read(_get(client, LEASES.as_dicts(), "tessera-controller", SYSTEM_NAMESPACE)))
        node_leases = group.create_task(try_to_read(_list(client, LEASES.as_dicts(), NODE_LEASES)))
        gates = group.create_task(try_to_read(_gates(client)))
        names = group.create_task(_installed_names(client))
        exempt = group.create_task(try_to_read(_exempt(client)))
        refused = group.create_task(try_to_read(_refused(client)))
        node_groups = group.create_task(
            try_to_read(_get(client, CONFIGMAPS.as_dicts(), NODE_GROUPS_MAP, SYSTEM_NAMESPACE))
        )
        repairs = group.create_task(try_to_read(_get(client, CONFIGMAPS.as_dicts(), REPAIRS_MAP, SYSTEM_NAMESPACE)))
        trial = group.create_task(try_to_read(_trial(client, trial_namespace)))
        rights = group.create_task(try_to_read(_rights(client, trial_namespace)))
        kueue = group.create_task(try_to_read(_kueue(client)))
        external = group.create_task(try_to_read(_external_metrics(client)))
    found = pods.result()
    settings = found if isinstance(found, Refusal) else await try_to_read(_settings(client, found))
    driver = claim_driver(pods.result())
    known = driver or not isinstance(pods.result(), Refusal)
    by_scheduler = "--claim-placement=scheduler" in arguments(pods.result())
    claims = await try_to_read(_claims(client, driver, by_scheduler=by_scheduler)) if known else None
    has_past = any(each.startswith("--prometheus=") for each in arguments(pods.result()))
    past = await try_to_read(_get(client, PASTS, "cluster", trial_namespace)) if has_past else None
    return ClusterFacts(
        version=version,
        skew=skew,
        now=clock.now() + (skew if isinstance(skew, float) else 0.0),
        nodes=nodes.result(),
        pods=pods.result(),
        daemon_sets=daemon_sets.result(),
        namespace=namespace.result(),
        definitions=definitions.result(),
        webhook=webhook.result(),
        leader=leader.result(),
        node_leases=node_leases.result(),
        gates=gates.result(),
        bindings=names.result()[BINDINGS, ""],
        names=names.result(),
        exempt=exempt.result(),
        refused=refused.result(),
        settings=settings,
        node_groups=node_groups.result(),
        repairs=repairs.result(),
        trial=trial.result(),
        rights=rights.result(),
        kueue=kueue.result(),
        external_metrics=external.result(),
        claims=claims,
        past=past,
    )


async def try_to_read(reading: Awaitable[T]) -> T | Refusal:
    """Awaits a reading; returns the reason instead if it was refused or not answered."""
    try:
        return await reading
    except (ApiError, ConnectionError, TimeoutError) as problem:
        return _refusal(problem)


def _refusal(problem: Exception) -> Refusal:
    reason = " ".join(str(problem).split())
    lacks_right = isinstance(problem, Forbidden) and problem.lacks_right
    return Refusal(reason, missing=isinstance(problem, NotFound), lacks_right=lacks_right)


async def _version(client: Client, clock: Clock) -> tuple[str | Refusal, float | Refusal]:
    """The API server's version, and its clock: the date of its answer is that of its middle, to a second."""
    before = clock.now()
    try:
        answer = await client.request("GET", "/version")
    except Unauthorized:
        raise  # nothing else would be answered
    except ApiError as problem:
        refusal = _refusal(problem)
        return refusal, refusal
    middle = (before + clock.now()) / 2
    found = decode_json(answer.body)
    date = answer.headers.get("date", "")
    told = _read_date(date)
    # The header has whole seconds; half of one is the best guess of what it left out.
    skew = Refusal("the API server's answer has no date") if told is None else told + 0.5 - middle
    return str(found.get("gitVersion", "")), skew


def _read_date(header: str) -> float | None:
    """Seconds since 1970 of HTTP's date, ``Sun, 06 Nov 1994 08:49:37 GMT`` (RFC 9110); None for another text.

    By hand: the standard library reads it with its package for mail, whose import takes 5 ms of CPU time.
    """
    match = _DATE.fullmatch(header)
    if match is None or match["month"] not in _MONTHS:
        return None
    day, year, hour, minute, second = (int(match[name]) for name in ("day", "year", "hour", "minute", "second"))
    try:
        month = _MONTHS.index(match["month"]) + 1
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None


async def _external_metrics(client: Client) -> str:
    try:
        found = await client.get(API_SERVICES, "v1beta1.external.metrics.k8s.io")
    except NotFound:
        return ""
    service = found["spec"].get("service") or {}
    return f"{service.get('namespace', '')}/{service.get('name', '')}"


async def _nodes(client: Client) -> Sequence[Node]:
    return (await client.list(NODES)).items


async def _get(client: Client, resource: Resource[dict[str, Any]], name: str, namespace: str | None = None) -> Object:
    return await client.get(resource, name, namespace)


async def _list(client: Client, resource: Resource[dict[str, Any]], namespace: str | None = None) -> Sequence[Object]:
    return (await client.list(resource, namespace)).items


async def _installed_names(client: Client) -> Mapping[tuple[str, str], Sequence[str] | Refusal]:
    """The names of all objects of the kinds, and in the namespaces, that an installation has."""
    wanted = places()
    found = await asyncio.gather(*(try_to_read(_names(client, kind, namespace)) for kind, namespace in wanted))
    return {(kind.label, namespace): each for (kind, namespace), each in zip(wanted, found, strict=True)}


async def _names(client: Client, resource: Resource[Any], namespace: str) -> Sequence[str]:
    return [each.metadata.name for each in (await client.list(resource.metadata_only(), namespace or None)).items]


async def _exempt(client: Client) -> Sequence[str]:
    label = f"{DEVICE_ACCESS_LABEL}={DEVICE_ACCESS_ALLOWED}"
    found = await client.list(NAMESPACES.metadata_only(), label_selector=label)
    return sorted(each.metadata.name for each in found.items)


async def _refused(client: Client) -> Sequence[CoreEvent]:
    return (await client.list(EVENTS, field_selector="reason=FailedCreate")).items


def followed_config_maps(pods: Sequence[Object]) -> Sequence[tuple[str, str]]:
    """Namespace and name of the ConfigMaps that the agents follow, by the arguments of their pods."""
    found: dict[tuple[str, str], None] = {}
    for pod in pods:
        for container in (pod.get("spec") or {}).get("containers", ()):
            for argument in container.get("args") or ():
                option, _, place = argument.partition("=")
                namespace, slash, name = place.partition("/")
                if option in {"--sharing-config", "--mig-config"} and slash and namespace and name:
                    found[namespace, name] = None
    return list(found)


async def _claims(client: Client, driver: str, *, by_scheduler: bool) -> ClaimFacts:
    from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIMS

    if not await client.serves(RESOURCE_CLAIMS.api_version):
        return ClaimFacts(driver=driver, by_scheduler=by_scheduler, served=False)
    slices: list[ResourceSlice] = []
    if driver:
        from tessera.dra.resource_slices import RESOURCE_SLICES

        for name in CLAIM_DRIVERS:
            slices += (await client.list(RESOURCE_SLICES, field_selector=f"spec.driver={name}")).items
    classes = (await client.list(DEVICE_CLASSES)).items
    return ClaimFacts(driver=driver, by_scheduler=by_scheduler, classes=classes, slices=slices)


async def _settings(client: Client, pods: Sequence[Object]) -> Mapping[str, bool]:
    """Whether the followed ConfigMaps exist; few at a time, since agents of one DaemonSet follow the same."""
    found: dict[str, bool] = {}
    for namespace, name in followed_config_maps(pods)[:FOLLOWED]:
        try:
            await client.get(CONFIGMAPS, name, namespace)
        except NotFound:
            found[f"{namespace}/{name}"] = False
        else:
            found[f"{namespace}/{name}"] = True
    return found


async def _kueue(client: Client) -> KueueFacts:
    version = await served_version(client)
    queues = await _list(client, served_resource(CLUSTER_QUEUES, version).as_dicts())
    checks = await _list(client, served_resource(ADMISSION_CHECKS, version).as_dicts())
    configuration = await try_to_read(_kueue_configuration(client))
    manager = await try_to_read(_get(client, DEPLOYMENTS.as_dicts(), MANAGER, CONFIG_NAMESPACE))
    release = None if isinstance(manager, Refusal) else _release(manager)
    return KueueFacts(configuration=configuration, cluster_queues=queues, admission_checks=checks, release=release)


def _release(manager: Object) -> Release | None:
    """The release of Kueue by its Deployment; a site may have added containers of its own."""
    containers = manager["spec"]["template"]["spec"]["containers"]
    images = (str(each.get("image", "")) for each in containers if each["name"] == "manager")
    return release_of(next(images, ""))


async def _kueue_configuration(client: Client) -> Any:
    """Kueue's Configuration, as Kueue's own manifests store it.

    Raises:
        ConnectionError: the text is no YAML.
    """
    from tessera.api.documents import load_document

    found = await client.get(CONFIGMAPS, CONFIG_MAP, CONFIG_NAMESPACE)
    try:
        return load_document(found.data.get(CONFIG_KEY, ""))
    except FileRefused as refused:
        raise ConnectionError(f"{CONFIG_KEY} is not YAML: {refused}") from refused


async def _gates(client: Client) -> Mapping[str, bool]:
    answer = await client.request("GET", "/metrics", accept="text/plain")
    return {name.decode(): on == b"1" for name, on in _GATE.findall(answer.body)}


async def _trial(client: Client, namespace: str) -> Object:
    """Creates a pod that the webhook refuses, as a dry run: the API server sends it there and stores nothing."""
    secure = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "trial",
        "image": "trial",
        "resources": {"limits": {TRIAL_RESOURCE: "1"}},
        "securityContext": secure,
    }
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "tessera-doctor-"},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }
    answer = await client.request("POST", PODS.path(namespace), query=[("dryRun", "All")], body=body)
    found: Object = decode_json(answer.body)
    return found


async def _rights(client: Client, namespace: str) -> Mapping[str, Sequence[str]]:
    """The rights that the asker lacks; one who may read the API for tenants in the namespace can use its commands."""
    if await _may(client, Right("*", "*", "*")):
        return dict.fromkeys(RIGHTS, ())
    view = Right("get", "usages", "view.tessera.dev", namespace=namespace)
    every = sorted({view, *(right for rights in RIGHTS.values() for right in rights)})
    may = dict(zip(every, await asyncio.gather(*(_may(client, each) for each in every)), strict=True))
    return {
        command: [str(right) for right in rights if not (may[right] or (may[view] and command in FOR_TENANTS))]
        for command, rights in RIGHTS.items()
    }


async def _may(client: Client, right: Right) -> bool:
    answer = await client.request(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        body={
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": msgspec.to_builtins(right)},
        },
    )
    return bool(decode_json(answer.body)["status"]["allowed"])
