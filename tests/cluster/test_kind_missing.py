"""The definition of Instaslice is deleted while Tessera runs: what is not known then is said to be unknown."""

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.instaslice import KIND_MISSING
from tessera.dashboard.view.cluster_map import make_map
from tessera.explain.explanation import ExplanationReport, parse_query
from tessera.explain.query import explain
from tessera.explain.room_moves import read_moves
from tessera.kube.errors import NotFound
from tessera.observe.cluster_reading import read_cluster
from tessera.observe.reading import read_usage
from tessera.text import REINSTALL

HALF = {"nvidia.com/mig-3g.20gb": 1}
UNREAD = f"instaslices could not be read: {KIND_MISSING}"


async def why(lab: VirtualLab, what: str) -> ExplanationReport:
    return await explain(lab.client, lab.clock, parse_query(what), "default")


def test_nobody_takes_the_missing_records_for_none_and_all_goes_on_with_them(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("runs", HALF)
        await lab.running("runs")
        (before,) = (await why(lab, "runs")).answers
        await lab.delete_kind()

        told = await why(lab, "runs")
        assert told.unread == UNREAD
        assert told.answers[0].verdict == "runs on node node-1"
        lacks = "the cluster lacks the kind instaslices.inference.redhat.com"
        assert told.answers[0].facts == ("it requests 3g.20gb", f"{lacks}: this is from the pod and its events alone")
        assert told.answers[0].help == (REINSTALL,)
        found = make_map(await read_cluster(lab.client, partly=True))
        assert found.note == UNREAD
        assert [(each.node, len(each.cards), each.unread) for each in found.nodes] == [("node-1", 4, "")]
        assert not any(card.possible for each in found.nodes for card in each.cards), "what has room is unknown"
        assert (await read_usage(lab.client, partly=True)).unread == UNREAD

        with pytest.raises(NotFound, match="lacks the kind"):
            await read_moves(lab.client, lab.clock)

        await lab.create("waits", HALF)
        await lab.clock.sleep(60)
        told = await why(lab, "waits")
        assert "the cluster lacks the kind instaslices.inference.redhat.com" in told.answers[0].verdict
        assert not [each for each in told.answers[0].help if "ClusterRole" in each], "no right is missing"
        assert told.unread.endswith(REINSTALL)

        await lab.restore_kind()
        await lab.running("waits")
        assert (await why(lab, "runs")).answers == (before,)

    in_lab(scenario, pages=True)
