"""The one sentence about an error: class and number, meaning, and what happens next."""

import pytest

from tessera.api.nodes.health import Evidence, describe_fault, describe_xid

EMPTY = "delete the pods on it, so that their owners start them on other cards"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            Evidence(source="XID 48", text=describe_xid(48), asks="reset"),
            (
                "XID 48, memory lost data: an ECC error of two bits; not allocated until it is reset, which needs it"
                " empty: delete the pods on it, so that their owners start them on other cards"
            ),
        ),
        (
            Evidence(source="XID 48", text=describe_xid(48), asks="reset", reset=True),
            (
                "XID 48, memory lost data: an ECC error of two bits; not allocated until its probes succeed for a"
                " while; it was reset"
            ),
        ),
        (
            Evidence(source="XID 48", text=describe_xid(48), asks="reset", spared=True),
            (
                "XID 48, memory lost data: an ECC error of two bits; still allocated, spared by the breaker: many cards"
                " of the cluster report this error"
            ),
        ),
        (
            Evidence(source="XID 94", text=describe_xid(94), asks="withhold", part="GPU instance 7"),
            (
                "XID 94, memory lost data of one program, and of no other; not allocated until its probes succeed for a"
                " while; NVIDIA's remedy: restart the program"
            ),
        ),
        (
            Evidence(source="probe", text="the card does not answer: lost", asks="reboot", lost=True),
            (
                "the card does not answer: lost; not allocated until the node is rebooted: delete the pods on it, so"
                " that their owners start them on other cards"
            ),
        ),
        (
            Evidence(source="XID 48", text=describe_xid(48), asks="reset", evicted=1_700_000_060.0),
            (
                "XID 48, memory lost data: an ECC error of two bits; not allocated until it is reset, which needs it"
                " empty: Tessera evicts pods with an owner from 2023-11-14T22:14:20Z on; delete the others"
            ),
        ),
        (
            Evidence(source="probe", text="lost", asks="reboot", evicted=1e18, reboot="sentinel"),
            (
                "lost; not allocated until the node is rebooted, for which Tessera asks by /var/run/reboot-required:"
                " Tessera evicts pods with an owner from 9999-12-31T23:59:59Z on; delete the others"
            ),
        ),
        *(
            (
                Evidence(source="probe", text="lost", asks="reboot", reboot=way),
                f"lost; not allocated until the node is rebooted{who}: {EMPTY}",
            )
            for way, who in {
                "annotation": ", for which Tessera asks by an annotation of the Node",
                "command": ", for which Tessera runs the administrator's command once no pod holds any card of it",
                "of a later version": "",
            }.items()
        ),
        (
            Evidence(source="row-remapping", text="no spare row", asks="attention"),
            "no spare row; still allocated; the fault ends when the card stops reporting it",
        ),
        (
            Evidence(source="XID 999", text=describe_xid(999), asks="withhold"),
            "XID 999; not allocated until its probes succeed for a while",
        ),
        (
            Evidence(source="XID 999", asks="drain"),  # the word of an agent of an earlier version
            "XID 999; not allocated until its probes succeed for a while",
        ),
        (Evidence(source="double-bit-ecc", asks="attention"), "ECC error of two bits; still allocated"),
        (
            Evidence(source="hw_thermal", asks="rest"),
            "hw_thermal; asks for rest, which this version of Tessera does not know; use that of the agent",
        ),
    ],
)
def test_the_sentence_says_what_happened_and_what_happens_next(error: Evidence, sentence: str) -> None:
    assert describe_fault(error) == sentence
