"""A large slice gets its turn on a busy card, and everybody can see why small ones wait."""

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import INSTASLICE_NAMESPACE
from tessera.controller.slicing.state.node_records import RESERVATIONS_ANNOTATION

HALF = {"nvidia.com/mig-3g.20gb": 1}
WHOLE = {"nvidia.com/mig-7g.40gb": 1}


@pytest.mark.soak
def test_a_whole_card_starts_when_the_older_two_have_ended_though_halves_keep_coming(
    in_lab: InLab,
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for name in ("old-1", "old-2"):
            await lab.create(name, HALF, command="sleep 300")
        await lab.running("old-1", "old-2")
        await lab.create("whole", WHOLE, command="sleep 30")
        await lab.until(lambda: lab.events_of("whole", "SliceReserved"), "slots are reserved after a minute")
        assert "default/old-1, default/old-2" in lab.events_of("whole", "SliceReserved")[0].message
        for number in range(12):
            await lab.create(f"young-{number}", HALF, command="sleep 20")
            await lab.clock.sleep(10)
        assert lab.phase("whole") == "Pending"
        assert not [number for number in range(12) if lab.phase(f"young-{number}") != "Pending"]
        item = await lab.client.get(INSTASLICES, "node-1", INSTASLICE_NAMESPACE)
        assert "whole" in item.metadata.annotations[RESERVATIONS_ANNOTATION]

        await lab.until(lambda: lab.phase("old-1") == lab.phase("old-2") == "Succeeded", "the older two have ended")
        ended = lab.clock.monotonic()
        await lab.running("whole")
        assert lab.clock.monotonic() - ended < 5
        assert not [number for number in range(12) if lab.phase(f"young-{number}") != "Pending"]
        await lab.until(lambda: lab.phase("young-11") == "Succeeded", "all the others have their turn")
        item = await lab.client.get(INSTASLICES, "node-1", INSTASLICE_NAMESPACE)
        assert RESERVATIONS_ANNOTATION not in item.metadata.annotations

    in_lab(scenario, "1xA100-40GB")
