"""Installing into a cluster: what is made, what is changed, what is taken back, what stays."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from tessera.api.documents import load_document
from tessera.api.names import NODE_GROUPS_KEY, NODE_GROUPS_MAP
from tessera.cli.base.controller_options import build_arguments
from tessera.cli.install.apply import AppliedObject, apply_all, render
from tessera.cli.install.manifests import InstallChoices, Manifest, manifests
from tessera.cli.install.preflight import missing_namespace, newer_definition, warnings
from tessera.doctor.manifests import deploy_folder, install_manifests, read_manifests
from tessera.dra.claims import DEVICE_CLASSES
from tessera.dra.driver_objects import device_classes
from tessera.dra.node_devices import DRIVER, NVIDIA_DRIVER
from tessera.driver.build.orders import BuildSettings
from tessera.gpu_operator.settings_reader import read_settings
from tessera.kube.client import Client
from tessera.kube.errors import Forbidden, Invalid, NotFound
from tessera.kube.resources import CONFIGMAPS, CRDS, DAEMONSETS, DEPLOYMENTS, NAMESPACES
from tessera.kube.resources.meta import FORMAT_ANNOTATION, resource_for
from tessera_lab.apiserver.authz.identity import service_account_user

ARTICLE = "{mig: {strategy: mixed}, migManager: {config: {name: layouts}}, devicePlugin: {config: {name: profiles}}}"
HEALTH = 'devicePlugin: {env: [{name: DP_DISABLE_HEALTHCHECKS, value: "13"}]}'
CONFIG_ROLE = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"namespace": ""}}

NETWORK_POLICY = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": ""}}


def objects(values: str | None = None, **choices: Any) -> list[Manifest]:
    settings = None if values is None else read_settings(load_document(values))
    eviction = list(yaml.load_all((deploy_folder() / "options" / "evict.yaml").read_text(), yaml.CSafeLoader))
    claims = read_manifests(deploy_folder() / "options" / "claims.yaml")
    return manifests(install_manifests(), eviction, InstallChoices(settings=settings, **choices), claims=claims)


async def install(place: Any, values: str | None = None, *, dry: bool = False, **choices: Any) -> list[AppliedObject]:
    found = objects(values, **choices)
    return [each async for each in apply_all(place.client(), place.clock, found, dry=dry)]


def results(done: Sequence[AppliedObject]) -> Counter[str]:
    return Counter(each.result for each in done)


async def namespace(client: Client, name: str) -> None:
    await client.create(NAMESPACES.as_dicts(), {"metadata": {"name": name}})


async def agent(place: Any) -> Any:
    found = await place.client().get(DAEMONSETS.as_dicts(), "tessera-agent", "tessera-system")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return container


def test_into_an_empty_cluster_everything_is_made(place: Any) -> None:
    async def scenario() -> None:
        done = await install(place)
        assert results(done) == {"created": len(objects())}
        assert done[0].name == "namespace/tessera-system"
        assert "daemonset.apps/tessera-agent in tessera-system" in [each.name for each in done]

    asyncio.run(scenario())


def test_a_second_time_nothing_changes(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        before = await agent(place)
        assert results(await install(place)) == {"unchanged": len(objects())}
        assert await agent(place) == before

    asyncio.run(scenario())


def test_other_settings_change_the_arguments_and_the_rights(place: Any) -> None:
    async def scenario() -> None:
        await namespace(place.client(), "gpu")
        await install(place, ARTICLE, namespace="gpu")
        assert "--sharing-config=gpu/profiles" in (await agent(place))["args"]
        done = await install(place, "{}")
        assert "--sharing-config=tessera-system/sharing-profiles" in (await agent(place))["args"]
        assert {each.name for each in done if each.result == "deleted"} == {
            "role.rbac.authorization.k8s.io/tessera-agent-config in gpu",
            "rolebinding.rbac.authorization.k8s.io/tessera-agent-config in gpu",
        }
        roles = (await place.client().list(resource_for(CONFIG_ROLE))).items
        assert [r["metadata"]["namespace"] for r in roles if r["metadata"]["name"] == "tessera-agent-config"] == [
            "tessera-system"
        ]

    asyncio.run(scenario())


def test_other_config_maps_in_the_same_place_change_the_right_and_not_who_has_it(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        done = await install(place, ARTICLE)
        assert [each.name for each in done if each.result != "unchanged"] == [
            "role.rbac.authorization.k8s.io/tessera-agent-config in tessera-system",
            "daemonset.apps/tessera-agent in tessera-system",
        ]

    asyncio.run(scenario())


def test_what_a_setting_added_goes_with_it(place: Any) -> None:
    async def scenario() -> None:
        await install(place, HEALTH)
        assert "DP_DISABLE_HEALTHCHECKS" in [each["name"] for each in (await agent(place))["env"]]
        await install(place, "{}")
        assert "DP_DISABLE_HEALTHCHECKS" not in [each["name"] for each in (await agent(place))["env"]]

    asyncio.run(scenario())


def test_the_right_to_evict_goes_with_the_option(place: Any) -> None:
    async def scenario() -> None:
        await install(place, evict=True)
        assert "--mig-evict" in (await agent(place))["args"]
        assert results(await install(place))["deleted"] == 4
        assert "--mig-evict" not in (await agent(place))["args"]

    asyncio.run(scenario())


@pytest.mark.parametrize("other", ["", DRIVER])
def test_the_classes_of_a_driver_go_with_it_and_those_of_others_stay(place: Any, other: str) -> None:
    async def scenario() -> None:
        client = place.client()
        await install(place, claim_driver=NVIDIA_DRIVER)
        taken = {"metadata": {"annotations": {"meta.helm.sh/release-name": "nvidia-dra-driver"}}}
        await client.merge_patch(DEVICE_CLASSES, "mig.nvidia.com", taken)
        await install(place, claim_driver=other)
        names = {each.metadata.name for each in (await client.list(DEVICE_CLASSES)).items}
        ours = {each["metadata"]["name"] for each in device_classes(DRIVER)} if other else set()
        assert names == {"mig.nvidia.com"} | ours

    asyncio.run(scenario())


def test_addresses_of_api_servers_are_told_in_a_trial_and_go_with_their_option(place: Any) -> None:
    policy = "networkpolicy.networking.k8s.io/tessera-webhook in tessera-system"

    async def scenario() -> None:
        await install(place)
        tried = await install(place, api_servers=["192.0.2.0/28"], dry=True)
        assert [(each.name, each.result) for each in tried if each.result != "unchanged"] == [(policy, "configured")]
        assert results(await install(place))["configured"] == 0
        assert results(await install(place, api_servers=["192.0.2.0/28"]))["configured"] == 1
        assert results(await install(place))["configured"] == 1
        found = await place.client().get(resource_for(NETWORK_POLICY), "tessera-webhook", "tessera-system")
        assert [rule.get("from") for rule in found["spec"]["ingress"]] == [None, None]

    asyncio.run(scenario())


async def trusted(place: Any) -> list[str]:
    """The certificates that there are, and the hash of those that the controller was started with."""
    maps = (await place.client().list(CONFIGMAPS.as_dicts(), namespace="tessera-system")).items
    found = await place.client().get(DEPLOYMENTS.as_dicts(), "tessera-controller", "tessera-system")
    hashes = found["spec"]["template"]["metadata"].get("annotations", {})
    stored = [each["data"]["ca.crt"] for each in maps if each["metadata"]["name"] == "tessera-registry-ca"]
    return [*stored, *hashes.values()]


def test_authorities_of_registries_come_change_and_go_with_their_option(place: Any) -> None:
    async def scenario() -> None:
        name = "configmap/tessera-registry-ca in tessera-system"
        plain = await install(place) and await trusted(place)
        assert (name, "created") in [(each.name, each.result) for each in await install(place, authorities="one")]
        one = await trusted(place)
        assert results(await install(place, authorities="one"))["unchanged"] == len(objects(authorities="one"))
        assert [each.name for each in await install(place, authorities="two") if each.result != "unchanged"] == [
            name,
            "deployment.apps/tessera-controller in tessera-system",
        ]
        two = await trusted(place)
        assert (plain, one[0], two[0]) == ([], "one", "two")
        assert one[1] != two[1]
        done = await install(place, dry=True)
        assert AppliedObject(name, "deleted") in done
        assert await trusted(place) == two
        assert await install(place) == done
        assert await trusted(place) == []

    asyncio.run(scenario())


async def groups(place: Any) -> list[str]:
    maps = (await place.client().list(CONFIGMAPS.as_dicts(), namespace="tessera-system")).items
    return [each["data"][NODE_GROUPS_KEY] for each in maps if each["metadata"]["name"] == NODE_GROUPS_MAP]


def test_node_groups_come_change_and_go_with_their_option_and_no_process_restarts(place: Any) -> None:
    async def scenario() -> None:
        name = f"configmap/{NODE_GROUPS_MAP} in tessera-system"
        await install(place)
        for text, result in (("one", "created"), ("two", "configured")):
            done = await install(place, node_groups=text)
            assert [each for each in done if each.result != "unchanged"] == [AppliedObject(name, result)]
            assert await groups(place) == [text]
        assert AppliedObject(name, "deleted") in await install(place, dry=True)
        assert await groups(place) == ["two"]
        assert [each for each in await install(place) if each.result != "unchanged"] == [AppliedObject(name, "deleted")]
        assert await groups(place) == []

    asyncio.run(scenario())


def test_node_groups_that_somebody_wrote_by_hand_stay_until_the_option_takes_them_over(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        theirs = {"metadata": {"name": NODE_GROUPS_MAP}, "data": {NODE_GROUPS_KEY: "theirs"}}
        await place.client("kubectl-create").create(CONFIGMAPS.as_dicts(), theirs, "tessera-system")
        assert results(await install(place)) == {"unchanged": len(objects())}
        assert await groups(place) == ["theirs"]
        assert results(await install(place, node_groups="ours"))["replaced"] == 1
        assert await groups(place) == ["ours"]

    asyncio.run(scenario())


async def file_of_groups(place: Any) -> Any:
    return await place.client().get(CONFIGMAPS.as_dicts(), NODE_GROUPS_MAP, "tessera-system")


@pytest.mark.parametrize("manager", ["kubectl-create", "kubectl-client-side-apply"])
def test_keys_of_others_stay_when_node_groups_take_a_config_map_over_and_leave_it(place: Any, manager: str) -> None:
    async def scenario() -> None:
        name = f"configmap/{NODE_GROUPS_MAP} in tessera-system"
        await install(place)
        theirs = {"metadata": {"name": NODE_GROUPS_MAP}, "data": {NODE_GROUPS_KEY: "theirs", "notes": "keep"}}
        await place.client(manager).create(CONFIGMAPS.as_dicts(), theirs, "tessera-system")
        for dry in (True, False):
            done = await install(place, node_groups="ours", dry=dry)
            assert [each for each in done if each.result != "unchanged"] == [AppliedObject(name, "replaced")]
        assert (await file_of_groups(place))["data"] == {NODE_GROUPS_KEY: "ours", "notes": "keep"}
        for dry in (True, False):
            assert NODE_GROUPS_KEY in (await file_of_groups(place))["data"]
            done = await install(place, dry=dry)
            assert [each for each in done if each.result != "unchanged"] == [AppliedObject(name, "withdrawn")]
        left = await file_of_groups(place)
        assert (left["data"], left["metadata"].get("labels") or {}) == ({"notes": "keep"}, {})
        assert results(await install(place)) == {"unchanged": len(objects())}

    asyncio.run(scenario())


def test_a_config_map_taken_over_whole_is_deleted_with_the_option(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        theirs = {"metadata": {"name": NODE_GROUPS_MAP}, "data": {NODE_GROUPS_KEY: "theirs"}}
        await place.client("kubectl-create").create(CONFIGMAPS.as_dicts(), theirs, "tessera-system")
        await install(place, node_groups="ours")
        assert results(await install(place))["deleted"] == 1
        assert await groups(place) == []

    asyncio.run(scenario())


def test_tesseras_label_does_not_make_a_config_map_of_another_manager_ours(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        labels = {"app.kubernetes.io/part-of": "tessera"}
        for name, key in ((NODE_GROUPS_MAP, NODE_GROUPS_KEY), ("tessera-registry-ca", "ca.crt")):
            theirs = {"metadata": {"name": name, "labels": labels}, "data": {key: "theirs"}}
            await place.client("argocd-controller").create(CONFIGMAPS.as_dicts(), theirs, "tessera-system")
        assert results(await install(place)) == {"unchanged": len(objects())}
        assert (await groups(place), await trusted(place)) == (["theirs"], ["theirs"])

    asyncio.run(scenario())


def test_authorities_that_builds_are_told_to_trust_stay_without_their_option(place: Any) -> None:
    """A build mounts them; where they are gone, its pod never starts."""

    async def scenario() -> None:
        site = tuple(build_arguments(BuildSettings(ca_config_map="tessera-registry-ca")))
        await install(place, authorities="one")
        assert "deleted" not in results(await install(place, site=site))
        assert await trusted(place) == ["one"]
        assert results(await install(place))["deleted"] == 1

    asyncio.run(scenario())


def test_a_config_map_of_that_name_that_somebody_else_made_stays(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        theirs = {"metadata": {"name": "tessera-registry-ca"}, "data": {"ca.crt": "theirs"}}
        await place.client("kubectl-create").create(CONFIGMAPS.as_dicts(), theirs, "tessera-system")
        assert results(await install(place)) == {"unchanged": len(objects())}
        assert await trusted(place) == ["theirs"]

    asyncio.run(scenario())


def test_somebody_elses_object_of_another_name_is_left_alone(place: Any) -> None:
    async def scenario() -> None:
        await namespace(place.client(), "team")
        role = {"metadata": {"name": "mine"}, "rules": []}
        await place.client().create(resource_for(CONFIG_ROLE), role, "team")
        await install(place)
        assert await place.client().get(resource_for(CONFIG_ROLE), "mine", "team")

    asyncio.run(scenario())


def test_a_trial_tells_the_same_and_writes_nothing(place: Any) -> None:
    async def scenario() -> None:
        assert results(await install(place, dry=True)) == {"created": len(objects())}
        with pytest.raises(NotFound):
            await place.client().get(NAMESPACES, "tessera-system")
        await install(place)
        done = await install(place, HEALTH, dry=True, evict=True)
        changed = {each.name: each.result for each in done if each.result != "unchanged"}
        assert changed["daemonset.apps/tessera-agent in tessera-system"] == "configured"
        assert changed["clusterrole.rbac.authorization.k8s.io/tessera-agent-evict"] == "created"
        assert "--mig-evict" not in (await agent(place))["args"]

    asyncio.run(scenario())


def test_a_trial_only_tells_what_it_would_delete(place: Any) -> None:
    async def scenario() -> None:
        await install(place, evict=True)
        assert results(await install(place, dry=True))["deleted"] == 4
        assert results(await install(place, evict=True)) == {"unchanged": len(objects(evict=True))}

    asyncio.run(scenario())


def test_the_authority_that_the_webhook_wrote_is_kept(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        (manifest,) = (each for each in objects() if each["kind"] == "MutatingWebhookConfiguration")
        hooks, name = resource_for(manifest), manifest["metadata"]["name"]
        found = await place.client().get(hooks, name)
        written = [{**each, "clientConfig": {**each["clientConfig"], "caBundle": "YQ=="}} for each in found["webhooks"]]
        await place.client("tessera-webhook").merge_patch(hooks, name, {"webhooks": written})
        await install(place, "{}")
        after = await place.client().get(hooks, name)
        assert [each["clientConfig"]["caBundle"] for each in after["webhooks"]] == ["YQ=="] * len(written)

    asyncio.run(scenario())


def test_a_refusal_ends_the_installation(place: Any) -> None:
    async def scenario() -> None:
        broken: Manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "Not_A_Name"}}
        with pytest.raises(Invalid):
            assert [each async for each in apply_all(place.client(), place.clock, [broken])]
        nobody = place.client(user=service_account_user("default", "nobody"))
        with pytest.raises(Forbidden):
            assert [each async for each in apply_all(nobody, place.clock, objects())]

    asyncio.run(scenario())


def test_a_definition_that_the_server_has_only_just_taken_is_waited_for(place: Any) -> None:
    """For a moment kube-apiserver says ``conditions: null`` of a new definition, and does not serve it."""

    async def scenario() -> None:
        client = place.client()
        await install(place)
        definitions, name = CRDS.as_dicts(), "clusterpolicies.nvidia.com"
        served = (await client.get(definitions, name))["status"]

        async def told(status: Any) -> None:
            whole = {**await client.get(definitions, name), "status": status}
            await client.request("PUT", definitions.path(None, name, "status"), body=whole)

        await told({**served, "conditions": None})
        running = asyncio.create_task(install(place))
        await asyncio.wait([running], timeout=0.1)
        assert not running.done()
        await told(served)
        assert results(await running) == {"unchanged": len(objects())}

    asyncio.run(scenario())


# The cluster around


def choices(values: str, **more: Any) -> InstallChoices:
    return InstallChoices(settings=read_settings(load_document(values)), **more)


def test_a_namespace_that_does_not_exist_is_told_before_anything_is_written(place: Any) -> None:
    async def scenario() -> None:
        client = place.client()
        assert await missing_namespace(client, choices(ARTICLE, namespace="gpu")) == "gpu"
        assert await missing_namespace(client, choices("{}", namespace="gpu")) == "", "nothing lies there"
        assert await missing_namespace(client, InstallChoices()) == ""
        await namespace(client, "gpu")
        assert await missing_namespace(client, choices(ARTICLE, namespace="gpu")) == ""

    asyncio.run(scenario())


def test_config_maps_that_no_values_name_need_not_be_there(place: Any) -> None:
    async def scenario() -> None:
        assert [each async for each in warnings(place.client(), choices("mig: {strategy: mixed}"))] == []

    asyncio.run(scenario())


def test_config_maps_that_are_still_to_come_are_told(place: Any) -> None:
    async def scenario() -> None:
        client = place.client()
        await namespace(client, "gpu")
        await client.create(CONFIGMAPS.as_dicts(), {"metadata": {"name": "profiles"}}, "gpu")
        (told,) = [each async for each in warnings(client, choices(ARTICLE, namespace="gpu"))]
        for fact in ("ConfigMap gpu/layouts does not exist", "until it does", "only the generated"):
            assert fact in told

    asyncio.run(scenario())


@pytest.mark.parametrize(("image", "words"), [("nvcr.io/nvidia/k8s-device-plugin:v0.17", "offers the same cards"),
                                              ("nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.12", "MIG layouts"),
                                              ("busybox", "")])  # fmt: skip
def test_nvidias_own_programs_on_the_cluster_are_told(place: Any, image: str, words: str) -> None:
    async def scenario() -> None:
        client, labels = place.client(), {"app": "a"}
        await namespace(client, "gpu-operator")
        pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}]}}
        item = {"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": labels}, "template": pod}}
        await client.create(DAEMONSETS.as_dicts(), item, "gpu-operator")
        told = [each async for each in warnings(client, InstallChoices())]
        assert len(told) == bool(words)
        assert all(words in each and "gpu-operator/a" in each for each in told)

    asyncio.run(scenario())


@pytest.mark.parametrize("server_side", [False, True])
def test_what_kubectl_applied_is_an_earlier_installation(place: Any, server_side: bool) -> None:
    async def scenario() -> None:
        await install(place)
        for each in objects(HEALTH):
            if each["metadata"]["name"] == "tessera-agent" and each["kind"] == "DaemonSet":
                await kubectl_apply(place.client("kubectl" if server_side else "kubectl-client-side-apply"), each)
        assert "DP_DISABLE_HEALTHCHECKS" in {each["name"] for each in (await agent(place))["env"]}
        done = await install(place)
        assert [each.name for each in done if each.result == "configured"] == [
            "daemonset.apps/tessera-agent in tessera-system"
        ]
        assert "DP_DISABLE_HEALTHCHECKS" not in {each["name"] for each in (await agent(place))["env"]}
        assert results(await install(place)) == {"unchanged": len(objects())}

    async def kubectl_apply(client: Client, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        if server_side:
            await client.request(
                "PATCH",
                resource_for(manifest).path(metadata["namespace"], metadata["name"]),
                query=[("fieldManager", "kubectl"), ("force", "true")],
                body=manifest,
                content_type="application/apply-patch+yaml",
            )
        else:
            await client.merge_patch(resource_for(manifest), metadata["name"], manifest, metadata["namespace"])

    asyncio.run(scenario())


@pytest.mark.parametrize(("kind", "name", "goes"), [("ClusterRole", "tessera-reader", True),
                                                   ("ServiceAccount", "tessera-build", False)])  # fmt: skip
def test_the_note_that_kubectl_keeps_of_what_it_applied_is_no_change(
    place: Any, kind: str, name: str, *, goes: bool
) -> None:
    """It goes with kubectl's fields. An object whose apply states no field has no owners, and keeps the note."""

    async def scenario() -> None:
        await install(place)
        (stated,) = (each for each in objects() if (each["kind"], each["metadata"]["name"]) == (kind, name))
        stated["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
        kubectl, found = place.client("kubectl-client-side-apply"), resource_for(stated)
        namespace = stated["metadata"].get("namespace")
        await kubectl.merge_patch(found, name, stated, namespace)
        trial = await install(place, dry=True)
        assert await install(place) == trial
        assert results(trial) == {"unchanged": len(objects())}
        assert bool((await kubectl.get(found, name, namespace))["metadata"].get("annotations")) is not goes

    asyncio.run(scenario())


def test_protections_that_are_left_out_are_removed_and_come_back(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        left_out = (
            "agent-policy",
            "driver-policy",
            "namespace-policy",
            "pin-policy",
            "flow-schemas",
            "network-policies",
            "pod-security",
        )
        done = await install(place, without=left_out)
        assert results(done)["deleted"] == 14
        assert {each.name for each in done if each.result == "configured"} == {"namespace/tessera-system"}
        assert "pod-security.kubernetes.io/enforce" not in await labels(place)
        again = await install(place)
        assert results(again)["created"] == 14
        assert (await labels(place))["pod-security.kubernetes.io/enforce"] == "privileged"

    asyncio.run(scenario())


async def labels(place: Any) -> Any:
    found = await place.client().get(NAMESPACES.as_dicts(), "tessera-system")
    return found["metadata"]["labels"]


def test_a_network_policy_of_another_namespace_stays(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        await namespace(place.client(), "team")
        kind = resource_for(NETWORK_POLICY)
        metadata = {"name": "tessera-webhook", "namespace": "team"}
        await place.client().create(kind, {"metadata": metadata, "spec": {"podSelector": {}}}, "team")
        assert results(await install(place, without=("network-policies",)))["deleted"] == 4
        assert (await place.client().get(kind, "tessera-webhook", "team"))["metadata"]["name"] == "tessera-webhook"

    asyncio.run(scenario())


def cert_manager_kind(kind: str) -> Manifest:
    """The definition of one of cert-manager's kinds, as far as an object of it can be stored."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "metadata": {"name": f"{plural}.cert-manager.io"},
        "spec": {
            "group": "cert-manager.io",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def test_cert_managers_objects_come_and_go_with_the_option(place: Any) -> None:
    async def scenario() -> None:
        for kind in ("Issuer", "Certificate"):
            await place.client().create(CRDS.as_dicts(), cert_manager_kind(kind))
        assert results(await installed(place, "own"))["deleted"] == 0
        assert results(await installed(place, "cert-manager"))["created"] == 4
        assert results(await installed(place, "own"))["deleted"] == 4

    async def installed(place: Any, certificate: str) -> list[AppliedObject]:
        found = render(InstallChoices(certificate=certificate, openshift=False))
        return [each async for each in apply_all(place.client(), place.clock, found)]

    asyncio.run(scenario())


def test_a_definition_of_a_newer_format_is_not_replaced(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        assert await newer_definition(place.client("tessera-install"), objects()) == ""
        stamp = {"metadata": {"annotations": {FORMAT_ANNOTATION: "2"}}}
        await place.client("newer").merge_patch(CRDS.as_dicts(), "instaslices.inference.redhat.com", stamp)
        found = await newer_definition(place.client("tessera-install"), objects())
        assert found.startswith("CustomResourceDefinition instaslices.inference.redhat.com: the cluster has format 2")
        assert found.endswith("install that version or a newer one")

    asyncio.run(scenario())
