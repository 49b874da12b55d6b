"""Pods of any shape: each container gets exactly the slices that it asked for."""

from typing import Any

from tests.support.virtual_lab import InLab, VirtualLab


def kinds(lab: VirtualLab, devices: list[Any]) -> list[str]:
    """The profiles of MIG devices, by their UUIDs."""
    machine = lab.machine()
    known = {
        ci.mig_uuid: instance.profile
        for gpu in machine.uuids()
        for instance in machine.instances(gpu)
        for ci in instance.compute_instances
    }
    return sorted(known[device] for device in devices)


def test_two_profiles_in_one_container(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("both", {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb": 1})
        await lab.running("both")
        assert kinds(lab, lab.devices("both")) == ["1g.5gb", "2g.10gb"]

    in_lab(scenario)


def test_three_slices_in_one_container(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("three", {"nvidia.com/mig-1g.5gb": 3})
        await lab.running("three")
        assert kinds(lab, lab.devices("three")) == ["1g.5gb"] * 3
        assert len(set(lab.devices("three"))) == 3

    in_lab(scenario)


def test_two_containers_with_one_each(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("pair", {"nvidia.com/mig-1g.5gb": 1}, {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("pair")
        assert kinds(lab, lab.devices("pair", "c0")) == ["1g.5gb"]
        assert kinds(lab, lab.devices("pair", "c1")) == ["3g.20gb"]

    in_lab(scenario)


def test_the_media_engines_of_a_card_are_one_slice(in_lab: InLab) -> None:
    """The slices of the two pods start behind the large ones; each card has one such device."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.until(lambda: lab.gpus().get("nvidia.com/mig-1g.5gb.me") == 2, "one for each card")
        await lab.create("large", {"nvidia.com/mig-4g.20gb": 2})
        await lab.running("large")
        for name in ("first", "second", "third"):
            await lab.create(name, {"nvidia.com/mig-1g.5gb.me": 1})
        await lab.running("first", "second")
        assert kinds(lab, lab.devices("first") + lab.devices("second")) == ["1g.5gb+me", "1g.5gb+me"]
        held = {gpu: start for gpu, profile, start in lab.hardware() if profile == "1g.5gb+me"}
        assert len(held) == 2
        assert min(held.values()) >= 4, "a card's device for them names start 0"
        await lab.until(lambda: lab.events_of("third", "SliceWaiting"), "the third waits")
        await lab.delete("first")
        await lab.running("third")

    in_lab(scenario, nodes="2xA100-40GB")


def test_an_init_container_sees_its_slice_alone_when_the_app_takes_it_over_beside_another(
    in_lab: InLab,
) -> None:
    """Kubelet lists both for the app from the start, also while the init container starts."""

    async def scenario(lab: VirtualLab) -> None:
        init = {
            "name": "prepare",
            "image": "busybox",
            "command": ["sleep", "1"],
            "resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}},
        }
        both = {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb": 1}
        await lab.create("staged", both, initContainers=[init])
        await lab.running("staged")
        assert kinds(lab, lab.devices("staged", "prepare")) == ["1g.5gb"]
        assert kinds(lab, lab.devices("staged", "c0")) == ["1g.5gb", "2g.10gb"]
        assert len(lab.hardware()) == 2

    in_lab(scenario)


def test_two_pods_of_one_profile_never_share(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("a", {"nvidia.com/mig-1g.5gb": 2})
        await lab.create("b", {"nvidia.com/mig-1g.5gb": 2})
        await lab.running("a", "b")
        assert not set(lab.devices("a")) & set(lab.devices("b"))

    in_lab(scenario)


def test_a_restarted_container_finds_its_slice(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("again", {"nvidia.com/mig-1g.5gb": 1}, command="sleep 30", restartPolicy="Always")
        await lab.running("again")
        first = lab.devices("again")
        await lab.until(
            lambda: lab.existing_pod("again").status.container_statuses[0].restart_count >= 2,
            "the container ran three times",
        )
        assert lab.devices("again") == first
        assert len(lab.hardware()) == 1

    in_lab(scenario)
