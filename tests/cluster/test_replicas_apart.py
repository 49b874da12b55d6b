"""The loss of one node takes no more than one replica of the webhook, nor of a Deployment that says nothing of it."""

from tests.support.virtual_lab import InLab, VirtualLab, manifest

from tessera.kube.resources import DEPLOYMENTS, PODS


async def nodes_of(lab: VirtualLab, namespace: str, prefix: str) -> list[str]:
    pods = (await lab.client.list(PODS, namespace)).items
    return sorted(pod.spec.node_name or "" for pod in pods if pod.metadata.name.startswith(prefix))


def test_replicas_are_on_different_nodes(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        assert await nodes_of(lab, "tessera-system", "tessera-webhook") == ["node-1", "node-2"]
        labels = {"app": "web"}
        template = {"metadata": {"labels": labels}, "spec": manifest("web", {}, restartPolicy="Always")["spec"]}
        spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
        await lab.client.create(DEPLOYMENTS.as_dicts(), {"metadata": {"name": "web"}, "spec": spec}, "default")
        await lab.clock.sleep(5)
        assert await nodes_of(lab, "default", "web") == ["node-1", "node-2"]

    in_lab(scenario, nodes="1xA100-40GB,1xA100-40GB")
