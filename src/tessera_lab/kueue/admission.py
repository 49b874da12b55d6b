"""Reserves quota for Workloads that wait, in the order of priority and age; preempts lower priorities.

A :class:`Usage` says whether a Workload's requests fit a ClusterQueue's quota, in the words of Kueue's messages.
Cohorts are left out.

A pod set is charged with the requests of its pods, without excluded prefixes, after the transformations.

By Kueue's documentation ("Resource transformations", "Configuration", "Dynamic Resource Allocation"): prefixes are
dropped first. Claims of templates count their devices under the names to which the Configuration maps their classes.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

from tessera.clock import Clock, parse_rfc3339, rfc3339
from tessera.dra.claims import RESOURCE_CLAIM_TEMPLATES
from tessera.kube.client import Client
from tessera.kube.quantity import format_quantity, parse_quantity
from tessera_lab.kueue.eviction import Eviction, WorkloadStatus
from tessera_lab.kueue.workloads import Job, Kinds, condition, is_true, key_of, order

Json = dict[str, Any]
Amounts = dict[str, Decimal]


def pod_set_requests(
    pod_set: Json, resources: Mapping[str, Any], templates: Mapping[str, Json] = MappingProxyType({})
) -> Amounts:
    """Returns what all pods of a set are charged.

    Args:
        pod_set: the pods.
        resources: that part of the Configuration.
        templates: the ResourceClaimTemplates of their namespace, by name.
    """
    spec = pod_set["template"]["spec"]
    one = _transform(_pod_requests(spec), resources)
    _add(one, _devices(spec, resources.get("deviceClassMappings") or (), templates))
    return {name: amount * pod_set["count"] for name, amount in one.items()}


def _devices(spec: Json, mappings: Iterable[Json], templates: Mapping[str, Json]) -> Amounts:
    """Devices of the claims of a pod by mapped name."""
    names = {each: mapping["name"] for mapping in mappings for each in mapping["deviceClassNames"]}
    found: Amounts = {}
    for claim in spec.get("resourceClaims") or ():
        template = templates.get(claim.get("resourceClaimTemplateName") or "", {})
        for request in template.get("spec", {}).get("spec", {}).get("devices", {}).get("requests") or ():
            exactly = request.get("exactly") or {}
            if name := names.get(exactly.get("deviceClassName", "")):
                _add(found, {name: Decimal(exactly.get("count") or 1)})
    return found


def _pod_requests(spec: Json) -> Amounts:
    """Requests of a pod: the sum of its containers, or the largest init container where that is more."""
    beside: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        requests = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(beside, requests)
        else:
            for name, amount in requests.items():
                peak[name] = max(peak.get(name, Decimal(0)), beside.get(name, Decimal(0)) + amount)
    for container in spec["containers"]:
        _add(beside, _container_requests(container))
    return {name: max(beside.get(name, Decimal(0)), peak.get(name, Decimal(0))) for name in {*beside, *peak}}


def _container_requests(container: Json) -> Amounts:
    """Requests, and limits where there is no request, as the API server fills them in for pods."""
    resources = container.get("resources") or {}
    both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(str(amount)) for name, amount in both.items()}


def _transform(requests: Amounts, resources: Mapping[str, Any]) -> Amounts:
    excluded = tuple(resources.get("excludeResourcePrefixes") or ())
    rules = {rule["input"]: rule for rule in resources.get("transformations") or ()}
    found: Amounts = {}
    for name, amount in requests.items():
        if excluded and name.startswith(excluded):
            continue
        rule = rules.get(name)
        if rule is None or rule.get("strategy", "Retain") == "Retain":
            _add(found, {name: amount})
        if rule is not None:
            outputs = (rule.get("outputs") or {}).items()
            _add(found, {output: parse_quantity(str(each)) * amount for output, each in outputs})
    return found


def _add(to: Amounts, more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        to[name] = to.get(name, Decimal(0)) + amount


def total(each: Sequence[Amounts]) -> Amounts:
    """Adds amounts up."""
    found: Amounts = {}
    for amounts in each:
        _add(found, amounts)
    return found


def as_quantity(amount: Decimal) -> str:
    """An amount as it is written."""
    return format_quantity(amount, binary=True)


def as_quantities(amounts: Mapping[str, Decimal]) -> dict[str, str]:
    """Amounts as they are written."""
    return {name: as_quantity(amount) for name, amount in sorted(amounts.items())}


class Usage:
    """The reservations in one ClusterQueue, by flavor and resource."""

    def __init__(self, queue: Json) -> None:
        self._groups: Sequence[Json] = queue["spec"].get("resourceGroups") or ()
        self._used: dict[tuple[str, str], Decimal] = {}

    def add(self, assignment: Mapping[str, str], amounts: Amounts, sign: int = 1) -> None:
        """Counts what a pod set has reserved."""
        for resource, flavor in assignment.items():
            at = (flavor, resource)
            self._used[at] = self._used.get(at, Decimal(0)) + sign * amounts.get(resource, Decimal(0))

    def used(self, flavor: str, resource: str) -> Decimal:
        """Returns the reserved amount of a resource in a flavor."""
        return self._used.get((flavor, resource), Decimal(0))

    def assign(self, pod_set: str, amounts: Amounts, *, old: bool) -> tuple[dict[str, str], str]:
        """Returns the flavor of each resource, or the reason that there is none; ``old`` in the words of Kueue 0.13."""
        found: dict[str, str] = {}
        for resource in sorted(name for name, amount in amounts.items() if amount):
            group = next((each for each in self._groups if resource in each["coveredResources"]), None)
            if group is None:
                text = f"resource {resource} unavailable in ClusterQueue"
                return {}, f"couldn't assign flavors to pod set {pod_set}: {text}"
            if resource in found:
                continue
            covered = {name: amount for name, amount in amounts.items() if name in group["coveredResources"]}
            reasons = []
            for flavor in group["flavors"]:
                reason = self._refusal(flavor, covered, old=old)
                if not reason:
                    found |= dict.fromkeys(covered, flavor["name"])
                    break
                reasons.append(reason)
            else:
                return {}, f"couldn't assign flavors to pod set {pod_set}: {', '.join(reasons)}"
        return found, ""

    def _refusal(self, flavor: Json, amounts: Amounts, *, old: bool) -> str:
        for quota in flavor["resources"]:
            resource, nominal = quota["name"], parse_quantity(str(quota["nominalQuota"]))
            wanted = amounts.get(resource, Decimal(0))
            if wanted > nominal:
                begin = f"insufficient quota for {resource} in flavor {flavor['name']}, "
                if old:
                    return f"{begin}request > maximum capacity ({_text(resource, wanted)} > {_text(resource, nominal)})"
                return (
                    f"{begin}previously considered podsets requests (0) + current podset request "
                    f"({_text(resource, wanted)}) > maximum capacity ({_text(resource, nominal)})"
                )
            missing = self.used(flavor["name"], resource) + wanted - nominal
            if missing > 0:
                needed = _text(resource, missing)
                return f"insufficient unused quota for {resource} in flavor {flavor['name']}, {needed} more needed"
        return ""


def _text(resource: str, amount: Decimal) -> str:
    """Kueue writes memory with a binary suffix, and resources that it does not know as plain numbers, even bytes."""
    return format_quantity(amount, binary=True) if resource == "memory" else f"{amount.normalize():f}"


class _Queues(NamedTuple):
    """ClusterQueues and AdmissionChecks by name, LocalQueues by ``namespace/name``."""

    cluster: Mapping[str, Json]
    local: Mapping[str, Json]
    checks: Mapping[str, Json]

    def queue_of(self, item: Json) -> tuple[str, str]:
        """The ClusterQueue of a Workload, and why it admits nothing; that is empty if it may."""
        key = f"{item['metadata']['namespace']}/{item['spec']['queueName']}"
        if key not in self.local:
            return "", f"LocalQueue {item['spec']['queueName']} doesn't exist"
        name = self.local[key]["spec"]["clusterQueue"]
        if name not in self.cluster:
            return name, f"ClusterQueue {name} doesn't exist"
        if any(not is_true(self.checks.get(each, {}), "Active") for each in self.checks_of(name)):
            return name, f"ClusterQueue {name} is inactive"
        return name, ""

    def checks_of(self, name: str) -> list[str]:
        """The admission checks of a ClusterQueue."""
        rules = (self.cluster[name]["spec"].get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
        return [rule["name"] for rule in rules]

    def preempts(self, name: str) -> bool:
        """True if a ClusterQueue preempts lower priorities of its own."""
        return (self.cluster[name]["spec"].get("preemption") or {}).get("withinClusterQueue") == "LowerPriority"


class Admission:
    """Reserves quota.

    Args:
        client: an administrator.
        clock: the time.
        kinds: Kueue's kinds at the version that is used.
        resources: ``resources`` of the Configuration.
        status: writes the status of Workloads.
        eviction: evicts those of lower priority.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        kinds: Kinds,
        *,
        resources: Mapping[str, Any],
        status: WorkloadStatus,
        eviction: Eviction,
    ) -> None:
        self._client = client
        self._clock = clock
        self._kinds = kinds
        self._resources = resources
        #: The ResourceClaimTemplates by namespace and name, where the Configuration maps DeviceClasses.
        self._templates: dict[str, dict[str, Json]] = {}
        self._status = status
        self._eviction = eviction

    async def admit(self, found: Mapping[str, Job]) -> None:
        """Reserves quota for those that wait, or says why not; ``found`` has the jobs by key."""
        queues = await self._read_queues()
        await self._read_templates()
        workloads = list((await self._client.list(self._kinds.workloads)).items)
        usage = self._usage(queues.cluster, workloads)
        waiting = [each for each in workloads if key_of(each) in found and self._is_waiting(each)]
        for item in sorted(waiting, key=order):
            name, text = queues.queue_of(item)
            if text:
                await self._status.set_condition(item, "QuotaReserved", False, "Inadmissible", text)
                continue
            refused = await self._reserve(item, name, usage[name], queues.checks_of(name))
            if refused:
                if queues.preempts(name):
                    await self._preempt(item, name, workloads, found)
                await self._status.set_condition(item, "QuotaReserved", False, "Pending", refused)
        await self._show_usage(queues.cluster, usage)

    async def _read_templates(self) -> None:
        if self._resources.get("deviceClassMappings"):
            self._templates.clear()
            for each in (await self._client.list(RESOURCE_CLAIM_TEMPLATES.as_dicts())).items:
                self._templates.setdefault(each["metadata"]["namespace"], {})[each["metadata"]["name"]] = each

    def _requests(self, item: Json, pods: Json) -> Amounts:
        return pod_set_requests(pods, self._resources, self._templates.get(item["metadata"]["namespace"], {}))

    async def _read_queues(self) -> _Queues:
        cluster = (await self._client.list(self._kinds.cluster_queues)).items
        local = (await self._client.list(self._kinds.local_queues)).items
        checks = (await self._client.list(self._kinds.checks)).items
        return _Queues(
            cluster={each["metadata"]["name"]: each for each in cluster},
            local={key_of(each): each for each in local},
            checks={each["metadata"]["name"]: each for each in checks},
        )

    def _usage(self, queues: Mapping[str, Json], workloads: list[Json]) -> dict[str, Usage]:
        """Returns the reserved amounts of each ClusterQueue."""
        usage = {name: Usage(queue) for name, queue in queues.items()}
        for item in workloads:
            admission = item.get("status", {}).get("admission")
            if admission and not is_true(item, "Finished") and admission["clusterQueue"] in usage:
                for stored, pods in zip(admission["podSetAssignments"], item["spec"]["podSets"], strict=True):
                    amounts = self._requests(item, pods)
                    usage[admission["clusterQueue"]].add(stored.get("flavors") or {}, amounts)
        return usage

    async def _reserve(self, item: Json, name: str, usage: Usage, needed: list[str]) -> str:
        """Reserves quota; returns the reason if there is not enough."""
        assignments = []
        for pods in item["spec"]["podSets"]:
            amounts = self._requests(item, pods)
            flavors, text = usage.assign(pods["name"], amounts, old=self._kinds.workloads.version == "v1beta1")
            if text:
                return text
            usage.add(flavors, amounts)
            assignments.append(
                {
                    "name": pods["name"],
                    "flavors": flavors,
                    "resourceUsage": as_quantities(amounts),
                    "count": pods["count"],
                }
            )
        now = rfc3339(self._clock.now())
        states = [{"name": each, "state": "Pending", "lastTransitionTime": now, "message": ""} for each in needed]
        text = f"Quota reserved in ClusterQueue {name}"
        conditions = self._status.with_condition(item, "QuotaReserved", True, "QuotaReserved", text)
        evicted = condition(item, "Evicted")
        if evicted is not None:
            again = {"status": {"conditions": conditions}}
            before = f"Previously: {evicted['message']}"
            conditions = self._status.with_condition(again, "Evicted", False, "QuotaReserved", before)
        admission = {"clusterQueue": name, "podSetAssignments": assignments}
        await self._status.write(item, {"conditions": conditions, "admission": admission, "admissionChecks": states})
        return ""

    async def _preempt(self, item: Json, queue: str, workloads: list[Json], found: Mapping[str, Job]) -> None:
        """Evicts the lowest of lower priority; the next look sees the quota that it leaves."""
        victims = [
            each
            for each in workloads
            if (each.get("status", {}).get("admission") or {}).get("clusterQueue") == queue
            and each["spec"].get("priority", 0) < item["spec"].get("priority", 0)
            and key_of(each) in found
            and not found[key_of(each)].finished
        ]
        if victims:
            victim = min(victims, key=lambda each: int(each["spec"].get("priority", 0)))
            text = f"Preempted to accommodate a workload (UID: {item['metadata']['uid']})"
            await self._eviction.evict(found[key_of(victim)], victim, "Preempted", text)

    def _is_waiting(self, item: Json) -> bool:
        if is_true(item, "QuotaReserved") or is_true(item, "Finished") or item["spec"].get("active") is False:
            return False
        until = (item.get("status", {}).get("requeueState") or {}).get("requeueAt")
        return until is None or parse_rfc3339(until) <= self._clock.now()

    async def _show_usage(self, queues: Mapping[str, Json], usage: Mapping[str, Usage]) -> None:
        for name, queue in queues.items():
            flavors = [
                {
                    "name": flavor["name"],
                    "resources": [
                        {
                            "name": each["name"],
                            "total": as_quantities({"": usage[name].used(flavor["name"], each["name"])})[""],
                        }
                        for each in flavor["resources"]
                    ],
                }
                for group in queue["spec"].get("resourceGroups") or ()
                for flavor in group["flavors"]
            ]
            if flavors != queue.get("status", {}).get("flavorsReservation"):
                patch = {"status": {"flavorsReservation": flavors}}
                await self._client.merge_patch(self._kinds.cluster_queues, name, patch, subresource="status")
