"""Slices of many pods on few cards: packed, waiting with a reason, and started by what is given back."""

from tests.support.virtual_lab import InLab, VirtualLab

ONE = {"nvidia.com/mig-1g.5gb": 1}


def test_the_29th_waits_says_why_and_runs_when_one_ends(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        names = [f"p{n}" for n in range(28)]
        for name in names:
            await lab.create(name, ONE)
        await lab.running(*names)
        await lab.create("late", ONE)
        await lab.until(lambda: lab.events_of("late", "SliceWaiting"), "the pod's event says why it waits")
        assert "1g.5gb" in lab.events_of("late", "SliceWaiting")[0].message
        assert lab.phase("late") == "Pending"

        await lab.delete("p3")
        released = lab.clock.monotonic()
        await lab.running("late")
        assert lab.clock.monotonic() - released < 0.5
        assert len(lab.hardware()) == 28

    in_lab(scenario)


def test_everything_is_given_back(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for n in range(5):
            await lab.create(f"p{n}", {"nvidia.com/mig-2g.10gb": 1}, command="sleep 60")
        await lab.until(lambda: all(lab.phase(f"p{n}") == "Succeeded" for n in range(5)), "all pods have ended")
        await lab.empty()
        assert lab.hardware() == []

    in_lab(scenario)
