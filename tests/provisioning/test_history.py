import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.provisioning.history import (
    BROKEN_KEY,
    PROVISIONING_BOOK,
    PROVISIONING_RECORD,
    RECORDS_KEY,
    BoundedHistory,
    ProvisioningHistory,
    decode_record,
    decode_workload,
    encode_record,
)
from tessera.provisioning.milestones import Milestone, ProvisioningRecord, WorkloadRecord, WorkloadStep

RECORD = ProvisioningRecord(
    node="gpu-1",
    uid="u1",
    at={Milestone.REGISTERED: 1_800_000_000.0, Milestone.READY: 1_800_000_010.125},
    strategy="built",
    simulated=True,
)
WORKLOAD = WorkloadRecord(namespace="a", name="b", uid="u2", node="gpu-1", at={WorkloadStep.CREATED: 1.5}, fresh=True)


def test_a_record_is_one_line_that_reads_back() -> None:
    assert encode_record(RECORD) == (
        '{"node":"gpu-1","uid":"u1","at":{"registered":1800000000.0,"ready":1800000010.125},"strategy":"built",'
        '"simulated":true}'
    )
    assert decode_record(encode_record(RECORD)) == RECORD
    assert decode_workload(encode_record(WORKLOAD)) == WORKLOAD


def test_what_a_newer_release_says_is_passed_over() -> None:
    assert decode_record('{"node":"n","at":{"registered":1,"polished":2},"colour":"red"}') == ProvisioningRecord(
        node="n", at={Milestone.REGISTERED: 1}
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "record of provisioning"),
        ("[]", "Expected `object`"),
        ("{}", "missing required field `node`"),
        ('{"node":"n","at":[1]}', "Expected `object`"),
        ('{"node":"n","at":{"ready":"noon"}}', "at.ready is 'noon'; seconds since 1970 are expected"),
        ('{"node":"n","at":{"ready":-1}}', "at.ready is '-1'"),
        ('{"node":"n","at":{"ready":1e300}}', "at.ready is '1e+300'"),
        ('{"node":"n","at":{"ready":true}}', "at.ready is 'True'"),
        ('{"node":"n","lost":"x"}', "lost is 'x'"),
        ('{"node":"n","asked":-1}', "asked is '-1'"),
        ('{"node":"n","waited":-1}', "waited is '-1'"),
        ('{"node":"n","waits":"x"}', "waits is 'x'"),
        ('{"node":"n","pool":"' + "x" * 600 + '"}', "pool has 600 characters; at most 512 characters are allowed"),
        ('{"node":"n","group":"\\u001b[2J"}', "text that can be printed is expected"),
        ("x" * (PROVISIONING_RECORD + 1), f"{PROVISIONING_RECORD} are allowed"),
    ],
)
def test_a_text_of_others_is_refused_with_its_fault(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="record") as caught:
        decode_record(text)
    assert says in str(caught.value)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        decode_record(text)


def numbered(number: int) -> ProvisioningRecord:
    return ProvisioningRecord(node=f"n{number}", uid=f"u{number}")


def test_a_shelf_keeps_the_newest() -> None:
    shelf: BoundedHistory[ProvisioningRecord] = BoundedHistory(3, 10_000)
    for number in range(5):
        shelf.put(numbered(number))
    assert [each.uid for each in shelf.values()] == ["u2", "u3", "u4"]


def test_a_record_that_is_put_again_replaces_itself() -> None:
    shelf: BoundedHistory[ProvisioningRecord] = BoundedHistory(3, 10_000)
    assert shelf.put(RECORD)
    assert not shelf.put(RECORD)
    assert shelf.put(ProvisioningRecord(node="gpu-1", uid="u1", group="g"))
    assert [each.group for each in shelf.values()] == ["g"]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 300)), max_size=60), st.integers(1, 10))
def test_a_shelf_never_outgrows_its_bounds(puts: list[tuple[int, int]], most: int) -> None:
    shelf: BoundedHistory[ProvisioningRecord] = BoundedHistory(most, 1000)
    for number, length in puts:
        shelf.put(ProvisioningRecord(node="n", uid=f"u{number}", pool="x" * length))
        assert len(shelf) <= most
        assert len(shelf.encode().encode()) <= 1000


def test_a_book_reads_back_what_it_wrote() -> None:
    book, again = ProvisioningHistory(10), ProvisioningHistory(10)
    book.nodes.put(RECORD)
    book.workloads.put(WORKLOAD)
    assert again.load(book.config_map_data()) == []
    assert (again.nodes.values(), again.workloads.values()) == ((RECORD,), (WORKLOAD,))


def test_a_broken_line_costs_one_record_and_is_set_aside() -> None:
    book = ProvisioningHistory(10)
    faults = book.load({RECORDS_KEY: f"{encode_record(RECORD)}\nnonsense\n"})
    assert [each.partition(":")[0] for each in faults] == [f"{RECORDS_KEY}, line 2"]
    assert book.nodes.values() == (RECORD,)
    assert book.config_map_data()[BROKEN_KEY] == "nonsense"


def test_a_book_of_anything_stays_within_what_a_configmap_takes() -> None:
    book = ProvisioningHistory(100_000)
    book.load({RECORDS_KEY: "x" * 900_000})
    for number in range(3000):
        book.nodes.put(ProvisioningRecord(node="n" * 250, uid=f"u{number}"))
    assert sum(len(text.encode()) for text in book.config_map_data().values()) < PROVISIONING_BOOK + 100_000
