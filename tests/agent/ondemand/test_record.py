"""What the agent writes of its node: no more than what differs."""

import json

import msgspec

from tessera.agent.ondemand.facts import Journal
from tessera.agent.ondemand.record import status_patch
from tessera.agent.ondemand.slices import Book
from tessera.api.instaslice import Instaslice, InstasliceStatus, NodeResources, Position, ProfilePlacements

ROW = ProfilePlacements(placements=(Position(start=0, size=1),), gi_profile_id=19, ci_profile_id=0)


def patched(before: NodeResources, after: NodeResources) -> object:
    item = Instaslice(status=InstasliceStatus(node_resources=before))
    return json.loads(msgspec.json.encode(status_patch(item, Book(Journal()), after)))


def test_what_is_up_to_date_is_not_written() -> None:
    same = NodeResources(mig_placement={"1g.5gb": ROW}, boot_id="b")
    assert patched(same, same) == {}


def test_profiles_of_cards_that_were_exchanged_are_removed() -> None:
    before, after = NodeResources(mig_placement={"1g.5gb": ROW}), NodeResources(mig_placement={"1g.6gb": ROW})
    row = {"placements": [{"size": 1, "start": 0}], "giProfileId": 19, "ciProfileId": 0}
    assert patched(before, after) == {"status": {"nodeResources": {"migPlacement": {"1g.5gb": None, "1g.6gb": row}}}}
