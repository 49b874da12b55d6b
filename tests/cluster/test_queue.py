"""A waiting pod is told its position and when it starts, and starts then."""

from typing import Any

from tests.support.virtual_lab import InLab, VirtualLab, manifest

from tessera.api.names import SLICE_PROMISED_CONDITION
from tessera.clock import parse_rfc3339
from tessera.controller.slicing.state.node_records import read_reservations
from tessera.explain.explanation import parse_query
from tessera.explain.query import explain
from tessera.forecast.history_text import HISTORY_KEY, HISTORY_NAME, decode_history
from tessera.forecast.queue_page import QueuedPod, QueuePage
from tessera.kube.resources import CONFIGMAPS, JOBS

WHOLE = {"nvidia.com/mig-7g.40gb": 1}


def _condition(lab: VirtualLab, name: str) -> Any:
    pod = lab.pod(name)
    conditions = () if pod is None else pod.status.conditions
    return next((each for each in conditions if each.type == SLICE_PROMISED_CONDITION), None)


def test_a_pod_starts_when_it_was_told(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("holder", WHOLE, command="sleep 600", activeDeadlineSeconds=600)
        await lab.running("holder")
        await lab.create("next", WHOLE)
        await lab.until(lambda: _condition(lab, "next") is not None, "it is told")
        told = _condition(lab, "next")
        assert (told.status, told.reason) == ("False", "Full")
        assert "by the deadlines of the pods before it" in told.message
        expected = parse_rfc3339(told.message.partition("tarts about ")[2][:16].replace(" ", "T") + ":00Z")

        versions = set()
        for _ in range(20):
            await lab.clock.sleep(20)
            versions.add(lab.existing_pod("next").metadata.resource_version)
        assert len(versions) <= 2, "no write while nothing changes"

        await lab.running("next")
        assert abs(lab.clock.now() - expected) < 60
        await lab.until(lambda: _condition(lab, "next").status == "True", "it is told that its wait is over")
        assert len(lab.events_of("next", "SliceForecast")) == 1

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_pod_behind_a_jobs_pod_is_told_the_jobs_deadline_which_is_read_once(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        template = {"spec": manifest("holder", WHOLE, command="sleep 9000", restartPolicy="Never")["spec"]}
        job = {"metadata": {"name": "holder"}, "spec": {"activeDeadlineSeconds": 900, "template": template}}
        await lab.client.create(JOBS.as_dicts(), job, "default")
        began = lab.clock.now()
        await lab.until(lambda: any(lab.ready(pod.metadata.name) for pod in lab.pods.cache.values()), "its pod runs")
        await lab.create("next", WHOLE)
        deadlines = "by the deadlines of the pods before it"
        await lab.until(lambda: (told := _condition(lab, "next")) and deadlines in told.message, "it is told")
        expected = parse_rfc3339(
            _condition(lab, "next").message.partition("tarts about ")[2][:16].replace(" ", "T") + ":00Z"
        )
        assert abs(expected - began - 900) < 90
        await lab.until(lambda: lab.ready("next"), "it starts", 1200.0)
        assert abs(lab.clock.now() - expected) < 90
        reads = [each for each in lab.cluster.server.audit if (each.verb, each.resource) == ("get", "jobs.batch")]
        assert len([each for each in reads if "tessera-controller" in each.user]) == 1

    in_lab(scenario, nodes="1xA100-40GB")


def test_what_ran_before_is_kept_and_tells_when_a_pod_starts(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for number in range(12):
            await lab.create(f"past-{number}", WHOLE, command="sleep 100")
            await lab.until(lambda name=f"past-{number}": lab.phase(name) == "Succeeded", "it ends")
        await lab.create("holder", WHOLE)
        await lab.running("holder")
        await lab.create("next", WHOLE)
        await lab.clock.sleep(400)
        kept = await lab.client.get(CONFIGMAPS, HISTORY_NAME, "tessera-system")
        assert sum(len(each.lives) for each in decode_history(kept.data[HISTORY_KEY]).lives.classes.values()) == 4 * 12

        assert "from how long such pods ran before" in _condition(lab, "next").message

    in_lab(scenario, nodes="1xA100-40GB")


def test_slots_are_reserved_for_the_time_that_such_pods_lived(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for number in range(12):
            await lab.create(f"past-{number}", WHOLE, command="sleep 590")
            await lab.until(lambda name=f"past-{number}": lab.phase(name) == "Succeeded", "it ends", 700)
        await lab.create("holder", WHOLE)
        await lab.running("holder")
        await lab.create("next", WHOLE)
        await lab.until(lambda: lab.events_of("next", "SliceReserved"), "slots are reserved")
        (told,) = lab.events_of("next", "SliceReserved")
        assert told.message.endswith("They are free when default/holder ends")
        await lab.until(lambda: read_reservations(lab.instaslice()), "the reservation is recorded")
        ((_, _, kept),) = read_reservations(lab.instaslice())
        assert 450 < kept.until - kept.made <= 530  # they ran for 590 s, and this one since a minute

    in_lab(scenario, nodes="1xA100-40GB")


def test_tessera_why_shows_the_place_in_the_queue(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("holder", WHOLE, command="sleep 600", activeDeadlineSeconds=600)
        await lab.running("holder")
        await lab.create("next", WHOLE)
        await lab.until(lambda: _condition(lab, "next") is not None, "it is told")
        (found,) = (await explain(lab.client, lab.clock, parse_query("next"), "default")).answers
        (fact,) = [each for each in found.facts if each.startswith("the controller told it in the last")]
        assert "tarts about" in fact

        async def page(_client: Any) -> QueuePage:
            return QueuePage(leads=True, pods=(QueuedPod(namespace="default", name="next", uid=uid, position=1, of=1),))

        uid = lab.existing_pod("next").metadata.uid
        (found,) = (await explain(lab.client, lab.clock, parse_query("next"), "default", page)).answers
        (fact,) = [each for each in found.facts if each.startswith("its place in the queue, the controller says: ")]
        assert "no other pod waits for its room" in fact

    in_lab(scenario, nodes="1xA100-40GB")
