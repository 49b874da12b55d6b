"""The doctor of a running cluster misses what somebody has deleted."""

from tests.support.virtual_lab import InLab, VirtualLab

from tessera.doctor.examination import examine
from tessera.doctor.facts import Finding, Verdict
from tessera.kube.resources import POD_DISRUPTION_BUDGETS, SERVICES


def test_deleted_objects_are_named_and_nothing_before_that(in_lab: InLab) -> None:
    async def told(lab: VirtualLab) -> list[Finding]:
        checks = {"objects", "protections", "definitions", "policies"}
        return [each for each in await examine(lab.client, lab.clock) if each.check in checks]

    async def scenario(lab: VirtualLab) -> None:
        assert {each.verdict for each in await told(lab)} == {Verdict.OK}
        await lab.client.delete(POD_DISRUPTION_BUDGETS, "tessera-webhook", "tessera-system")
        await lab.client.delete(SERVICES, "tessera-webhook", "tessera-system")
        (found,) = [each for each in await told(lab) if each.verdict is not Verdict.OK]
        assert set(found.objects) == {
            "service/tessera-webhook in tessera-system",
            "poddisruptionbudget/tessera-webhook in tessera-system",
        }
        assert found.text.endswith(": " + ", ".join(found.objects))

    in_lab(scenario)
