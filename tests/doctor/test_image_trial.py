"""``tessera doctor --image``: a node pulls the image, or says why it cannot; the pod is gone afterwards."""

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.doctor.examination import try_image
from tessera.doctor.facts import Verdict
from tessera.kube.resources import PODS


@pytest.mark.parametrize(
    ("image", "verdict", "text", "advice"),
    [
        ("registry.example/tessera:0.2.0", Verdict.OK, "node node-1 pulled registry.example/tessera:0.2.0 and", ""),
        (
            "registry.invalid/tessera:1",
            Verdict.ERROR,
            "node node-1 cannot pull registry.invalid/tessera:1: ErrImagePull: ",
            "push it (podman push registry.invalid/tessera:1)",
        ),
    ],
    ids=["pulled", "not pulled"],
)
def test_a_node_pulls_the_image_or_says_why_not(
    in_lab: InLab, image: str, verdict: Verdict, text: str, advice: str
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        found = await try_image(lab.client, lab.clock, image, "default")
        assert found.verdict is verdict, found
        assert found.text.startswith(text)
        assert found.advice.startswith(advice)
        await lab.clock.sleep(60)
        assert [pod.metadata.name for pod in (await lab.client.list(PODS, namespace="default")).items] == []

    in_lab(scenario, nodes="1xA100-40GB")
