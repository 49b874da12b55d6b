"""Gangs on the lab: Jobs and labelled pods start as a whole, and people see what they wait for."""

from typing import Any

from tests.support.virtual_lab import InLab, VirtualLab, manifest

from tessera.api.pod_annotations import POD_GROUPS
from tessera.explain.explanation import parse_query
from tessera.explain.query import explain
from tessera.kube.informer import LOOK_SELDOM
from tessera.kube.resources import CRDS, JOBS, PODS, STATEFULSETS

SMALL = {"nvidia.com/mig-1g.5gb": 1}
HALF = {"nvidia.com/mig-3g.20gb": 1}

TOGETHER = "its pods get their slices together, and hold none until then"


async def create(lab: VirtualLab, name: str, gang: str, size: int, limits: dict[str, int]) -> None:
    """A pod of a gang."""
    item = manifest(name, limits)
    item["metadata"] |= {"labels": {"tessera.dev/gang": gang}, "annotations": {"tessera.dev/gang-size": str(size)}}
    await lab.client.create(PODS.as_dicts(), item, "default")


def job(name: str, size: int, limits: dict[str, int], seconds: int) -> dict[str, Any]:
    """A Job whose pods start together."""
    spec = manifest("", limits, command=f"sleep {seconds}")["spec"]
    template = {"metadata": {"annotations": {"tessera.dev/gang-size": str(size)}}, "spec": spec}
    return {"metadata": {"name": name}, "spec": {"completions": size, "parallelism": size, "template": template}}


def phases(lab: VirtualLab, name: str) -> list[str]:
    """The phases of a Job's pods."""
    found = [pod for pod in lab.pods.cache.values() if pod.metadata.name.startswith(f"{name}-")]
    return [pod.status.phase for pod in found]


def test_an_incomplete_gang_holds_nothing_and_says_how_many_pods_exist(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for number in range(3):
            await create(lab, f"train-{number}", "train", 4, HALF)
        await lab.until(lambda: lab.events_of("train-2", "SliceWaiting"), "it is told why it waits")
        (found,) = (await explain(lab.client, lab.clock, parse_query("train-2"), "default")).answers
        assert (found.case, found.verdict) == ("gang-incomplete", f"waits; gang train: 3 of 4 pods exist; {TOGETHER}")
        await lab.create("other", HALF, HALF, command="sleep 60")
        await lab.running("other")
        await create(lab, "train-3", "train", 4, HALF)
        await lab.until(lambda: lab.events_of("train-3", "SliceWaiting"), "the whole gang has no room yet")
        (found,) = (await explain(lab.client, lab.clock, parse_query("train-3"), "default")).answers
        assert found.case == "gang-no-room"
        assert found.verdict.startswith("waits; gang train starts as a whole, and 2 of its 4 pods have a place now: ")
        assert {lab.phase(f"train-{number}") for number in range(4)} == {"Pending"}
        await lab.until(lambda: lab.phase("other") == "Succeeded", "the other pod ends")
        await lab.running(*(f"train-{number}" for number in range(4)))

    in_lab(scenario, "2xA100-40GB")


def test_a_gang_whose_owner_makes_one_pod_after_the_other_is_told_so(in_lab: InLab) -> None:
    """A StatefulSet with the default ``OrderedReady`` makes the second pod only when the first is ready."""

    async def scenario(lab: VirtualLab) -> None:
        template = {"metadata": {"labels": {"app": "s"}, "annotations": {"tessera.dev/gang-size": "2"}}}
        template |= {"spec": manifest("", SMALL)["spec"] | {"restartPolicy": "Always"}}
        spec = {"replicas": 2, "selector": {"matchLabels": {"app": "s"}}, "template": template}
        await lab.client.create(STATEFULSETS.as_dicts(), {"metadata": {"name": "s"}, "spec": spec}, "default")
        await lab.until(lambda: lab.events_of("s-0", "SliceWaiting"), "it is told why it waits")
        (found,) = (await explain(lab.client, lab.clock, parse_query("s-0"), "default")).answers
        assert found.verdict == f"waits; gang s: 1 of 2 pods exist; {TOGETHER}"
        assert any("podManagementPolicy: Parallel" in line for line in found.help)

    in_lab(scenario, "1xA100-40GB")


def test_two_jobs_that_do_not_fit_together_run_one_after_the_other(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for name in ("first", "second"):
            await lab.client.create(JOBS.as_dicts(), job(name, 3, HALF, 30), "default")
        seen = set()
        for _ in range(150):
            await lab.clock.sleep(1)
            now = [phases(lab, name) for name in ("first", "second")]
            started = tuple(sum(phase in {"Running", "Succeeded"} for phase in each) for each in now)
            seen.add(started)
            if now == [["Succeeded"] * 3] * 2:
                break
        assert phases(lab, "first") == phases(lab, "second") == ["Succeeded"] * 3
        assert not [each for each in seen if 0 < each[0] < 3 and 0 < each[1] < 3]

    in_lab(scenario, "2xA100-40GB")


def test_a_job_may_leave_the_size_of_its_gang_to_its_parallelism(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("other", HALF, command="sleep 60")
        await lab.running("other")
        item = job("train", 2, HALF, 30)
        item["spec"]["template"]["metadata"]["annotations"]["tessera.dev/gang-size"] = "parallelism"
        await lab.client.create(JOBS.as_dicts(), item, "default")
        await lab.until(lambda: len(phases(lab, "train")) == 2, "both pods exist")
        pods = [pod for pod in lab.pods.cache.values() if pod.metadata.name.startswith("train-")]
        assert {pod.metadata.annotations["tessera.dev/gang-size"] for pod in pods} == {"2"}
        await lab.until(lambda: lab.events_of(pods[0].metadata.name, "SliceWaiting"), "one half of the card is taken")
        assert phases(lab, "train") == ["Pending", "Pending"]
        await lab.until(lambda: phases(lab, "train") == ["Succeeded", "Succeeded"], "both run once it is free")

    in_lab(scenario, nodes="1xA100-40GB")


def pod_group_kind() -> dict[str, Any]:
    """The kind PodGroup of scheduler-plugins, by its public field names."""
    number = {"type": "integer", "format": "int32", "minimum": 1}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"minMember": number}}}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "metadata": {"name": POD_GROUPS.label},
        "spec": {
            "group": POD_GROUPS.group,
            "names": {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def test_a_pod_group_says_how_many_pods_start_together(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(CRDS.as_dicts(), pod_group_kind())
        await lab.clock.sleep(LOOK_SELDOM + 60)
        item = manifest("train-0", HALF)
        item["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "train"}
        await lab.client.create(PODS.as_dicts(), item, "default")
        await lab.until(lambda: lab.events_of("train-0", "SliceWaiting"), "it waits for its PodGroup")
        (found,) = (await explain(lab.client, lab.clock, parse_query("train-0"), "default")).answers
        assert found.verdict.startswith("waits; gang train: no PodGroup of this name says how many pods, ")
        group = {"metadata": {"name": "train"}, "spec": {"minMember": 2}}
        await lab.client.create(POD_GROUPS, group, "default")
        await lab.clock.sleep(5)
        (found,) = (await explain(lab.client, lab.clock, parse_query("train-0"), "default")).answers
        assert found.verdict == f"waits; gang train: 1 of 2 pods exist; {TOGETHER}"
        item = manifest("train-1", HALF)
        item["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "train"}
        await lab.client.create(PODS.as_dicts(), item, "default")
        await lab.running("train-0", "train-1")

    in_lab(scenario, nodes="1xA100-40GB")


def test_the_label_alone_is_no_gang_in_a_cluster_without_pod_groups(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        item = manifest("single", HALF)
        item["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "train"}
        await lab.client.create(PODS.as_dicts(), item, "default")
        await lab.running("single")

    in_lab(scenario, nodes="1xA100-40GB")
