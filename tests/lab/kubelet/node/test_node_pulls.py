"""Images that have sizes: how long they take to a node, and what the pod says of it."""

from typing import Any

import pytest
from tests.support.control_plane_lab import ControlPlaneLab

from tessera.driver.images import Outcome
from tessera.kube.resources import NODES, PODS
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, SimulatedImage

DRIVER = "quay.io/x/driver:525"


def world(**images: float) -> ImageCatalogue:
    """Images of so many MiB over 10 MiB/s, unpacked at 20 MiB/s, after 1 s of latency."""
    named = {f"quay.io/x/{name}:1": SimulatedImage(size_mib=size) for name, size in images.items()}
    return ImageCatalogue(named, default_bandwidth=10, unpack=20, latency=1)


async def pod(lab: ControlPlaneLab, name: str, image: str, **spec: Any) -> None:
    container = {"name": "main", "image": image, "command": ["sleep", "infinity"], **spec}
    body = {"metadata": {"name": name}, "spec": {"containers": [container], "nodeName": "n1"}}
    await lab.api.create(PODS.as_dicts(), body, "default")


async def state(lab: ControlPlaneLab, name: str) -> dict[str, Any]:
    status = (await lab.get(PODS, name))["status"]["containerStatuses"][0]
    return dict(status)


async def test_a_pull_takes_latency_transfer_and_unpacking(lab: ControlPlaneLab) -> None:
    catalogue = world(app=100)
    await lab.start_nodes("n1", catalogue=catalogue)
    await pod(lab, "p", "quay.io/x/app:1")
    assert await lab.phase_after(15.9, "p") == "Pending"
    assert await lab.phase_after(0.2, "p") == "Running"
    notes = dict(await lab.notes("p"))
    assert notes["Pulled"] == (
        'Successfully pulled image "quay.io/x/app:1" in 16s (16s including waiting). Image size: 104857600 bytes. '
        "(simulated)"
    )
    digest = catalogue.digest("quay.io/x/app:1")
    assert (await state(lab, "p"))["imageID"] == f"quay.io/x/app@{digest}"


async def test_pulls_of_one_node_go_one_after_the_other(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1", catalogue=world(one=10, two=10))
    await pod(lab, "one", "quay.io/x/one:1")
    await lab.clock.sleep(0.001)
    await pod(lab, "two", "quay.io/x/two:1")
    await lab.clock.sleep(2.6)
    assert [await lab.phase(name) for name in ("one", "two")] == ["Running", "Pending"]
    assert await lab.phase_after(2.5, "two") == "Running"
    assert "in 2.5s (4.999s including waiting)" in dict(await lab.notes("two"))["Pulled"]


async def test_pulls_may_go_side_by_side(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1", catalogue=world(one=10, two=10), serialise_pulls=False)
    await pod(lab, "one", "quay.io/x/one:1")
    await pod(lab, "two", "quay.io/x/two:1")
    await lab.clock.sleep(2.6)
    assert [await lab.phase(name) for name in ("one", "two")] == ["Running", "Running"]


async def test_two_pods_share_one_pull(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1", catalogue=world(app=10))
    await pod(lab, "one", "quay.io/x/app:1")
    await pod(lab, "two", "quay.io/x/app:1")
    await lab.clock.sleep(2.6)
    assert [await lab.phase(name) for name in ("one", "two")] == ["Running", "Running"]


async def test_what_is_there_is_only_looked_up_again(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1", catalogue=world(app=100))
    await pod(lab, "one", "quay.io/x/app:1")
    await lab.clock.sleep(20)
    await pod(lab, "two", "quay.io/x/app:1")
    await pod(lab, "three", "quay.io/x/app:1", imagePullPolicy="Always")
    await lab.clock.sleep(0.5)
    assert [await lab.phase(name) for name in ("two", "three")] == ["Running", "Pending"]
    assert await lab.phase_after(0.6, "three") == "Running"


async def test_layers_that_a_repository_shares_come_once(lab: ControlPlaneLab) -> None:
    image = SimulatedImage(size_mib=100, shared_mib=80)
    await lab.start_nodes("n1", catalogue=ImageCatalogue({"quay.io/x/driver": image}, default_bandwidth=10))
    await pod(lab, "one", "quay.io/x/driver:1")
    assert await lab.phase_after(10.1, "one") == "Running"
    await pod(lab, "two", "quay.io/x/driver:2")
    assert await lab.phase_after(2.1, "two") == "Running"


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome.NOT_FOUND, "not found"),
        (Outcome.UNAUTHORIZED, "no basic auth credentials"),
        (Outcome.UNREACHABLE, "i/o timeout"),
        (Outcome.WRONG_ARCHITECTURE, "no match for platform"),
    ],
)
async def test_an_image_that_no_registry_gives(lab: ControlPlaneLab, outcome: Outcome, words: str) -> None:
    catalogue = ImageCatalogue({DRIVER: SimulatedImage()})
    catalogue.refuse(DRIVER, outcome)
    await lab.start_nodes("n1", catalogue=catalogue)
    await pod(lab, "p", DRIVER)
    await lab.clock.sleep(1)
    waiting = (await state(lab, "p"))["state"]["waiting"]
    assert waiting["reason"] == "ErrImagePull"
    assert words in waiting["message"]
    await lab.clock.sleep(20)  # the second try, after 10 s, has failed as well
    assert (await state(lab, "p"))["state"]["waiting"]["reason"] == "ImagePullBackOff"
    catalogue.allow(DRIVER)
    assert await lab.phase_after(20, "p") == "Running"
    assert {"Pulling", "Failed", "BackOff", "Pulled"} <= {reason for reason, _ in await lab.notes("p")}


async def test_a_pull_by_digest_fetches_the_tag_s_image(lab: ControlPlaneLab) -> None:
    catalogue = ImageCatalogue({DRIVER: SimulatedImage(size_mib=10)}, default_bandwidth=10)
    await lab.start_nodes("n1", catalogue=catalogue)
    pinned = f"quay.io/x/driver@{catalogue.digest(DRIVER)}"
    await pod(lab, "p", pinned)
    await lab.clock.sleep(1.1)
    assert (await state(lab, "p"))["imageID"] == pinned
    await pod(lab, "q", DRIVER)  # the same layers under their tag
    assert await lab.phase_after(0.1, "q") == "Running"


@pytest.mark.parametrize("catalogue", [None, ImageCatalogue()])
async def test_a_registry_that_cannot_exist_gives_no_image(
    lab: ControlPlaneLab, catalogue: ImageCatalogue | None
) -> None:
    await lab.start_nodes("n1", catalogue=catalogue)
    await pod(lab, "p", "registry.invalid:5000/app:1")
    await lab.clock.sleep(1)
    waiting = (await state(lab, "p"))["state"]["waiting"]
    assert waiting["reason"] in {"ErrImagePull", "ImagePullBackOff"}
    assert "dial tcp: lookup registry.invalid: no such host" in waiting["message"]
    assert await lab.phase_after(30, "p") == "Pending"


@pytest.mark.parametrize(
    ("image", "more"),
    [
        ("Busybox", ": repository name (library/Busybox) must be lowercase"),
        ("quay.io/X/app:1", ": repository name (X/app) must be lowercase"),
        *((each, "") for each in ("busybox::1", "busybox:1 2", "https://quay.io/x/app", "quay.io/x@sha256:1", "a:-1")),
    ],
)
async def test_a_name_that_is_none_never_runs(lab: ControlPlaneLab, image: str, more: str) -> None:
    await lab.start_nodes("n1")
    await pod(lab, "p", image)
    await lab.clock.sleep(30)
    problem = f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": '
    problem += f"invalid reference format{more}"
    waiting = (await state(lab, "p"))["state"]["waiting"]
    assert waiting == {"reason": "InvalidImageName", "message": problem}
    assert dict(await lab.notes("p")).items() >= {("InspectFailed", problem), ("Failed", "Error: InvalidImageName")}


async def test_an_image_that_may_not_be_pulled_runs_once_it_is_there(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1", catalogue=world(app=1))
    await pod(lab, "p", "quay.io/x/app:1", imagePullPolicy="Never")
    await lab.clock.sleep(30)
    problem = 'Container image "quay.io/x/app:1" is not present with pull policy of Never'
    waiting = (await state(lab, "p"))["state"]["waiting"]
    assert waiting == {"reason": "ErrImageNeverPull", "message": problem}
    assert dict(await lab.notes("p"))["ErrImageNeverPull"] == problem
    await pod(lab, "puller", "quay.io/x/app:1")
    assert await lab.phase_after(30, "p") == "Running"


@pytest.mark.parametrize("part", ["containers", "initContainers"])
@pytest.mark.parametrize("image", ["quay.io/x/app:2", "nowhere.invalid/app:1"])
async def test_an_image_that_no_registry_can_have_does_not_run(lab: ControlPlaneLab, part: str, image: str) -> None:
    await lab.start_nodes(
        "n1", catalogue=ImageCatalogue({"quay.io/x/app:1": SimulatedImage()}, unnamed=SimulatedImage())
    )
    good = {"name": "good", "image": "busybox", "command": ["sleep", "infinity"]}
    parts = {"containers": [good]} | {part: [{"name": "main", "image": image}]}
    body = {"metadata": {"name": "p"}, "spec": {**parts, "nodeName": "n1"}}
    await lab.api.create(PODS.as_dicts(), body, "default")
    assert await lab.phase_after(5, "p") == "Pending"
    assert dict(await lab.notes("p"))["Failed"] == "Error: ErrImagePull"


async def test_the_node_lists_its_images_with_their_sizes(lab: ControlPlaneLab) -> None:
    catalogue = world(small=1, large=10)
    await lab.start_nodes("n1", catalogue=catalogue)
    for name in ("small", "large"):
        await pod(lab, name, f"quay.io/x/{name}:1")
    await lab.clock.sleep(30)
    names = {name: f"quay.io/x/{name}:1" for name in ("large", "small")}
    assert (await lab.get(NODES, "n1", None))["status"]["images"] == [
        {"names": [f"quay.io/x/{name}@{catalogue.digest(names[name])}", names[name]], "sizeBytes": size * 2**20}
        for name, size in (("large", 10), ("small", 1))
    ]
