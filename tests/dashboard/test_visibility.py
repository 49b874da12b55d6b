"""Who sees what: no reader gets a name for which it lacks the right, whatever the document."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Annotated, Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.dashboard.documents import CardDocument, Document, LeaseDocument, TileDocument, WaitingDocument
from tessera.dashboard.feed import FEED_CHANGES, PAGE_VIEWS, FeedGroup, TooManyViewsError
from tessera.visibility import FULL, Audience, Public, Redactor, Visibility, find_namespaces

NOBODY = Visibility()
TEAM_A = Visibility(namespaces=frozenset({"team-a"}))
NODES = Visibility(nodes=True)


def lease(namespace: str, pod: str) -> LeaseDocument:
    return LeaseDocument(
        namespace=namespace,
        pod=pod,
        container="main",
        owner=f"Job/of-{pod}",
        kind="slice",
        share=0.5,
        state="idle",
        evidence=f"evidence-{pod}",
        held=5.0,
        wasted=1.0,
        memory=7.0,
    )


CARD = CardDocument(
    node="node-secret",
    index=0,
    uuid="GPU-secret",
    model="NVIDIA A100",
    mig=True,
    slots=8,
    held=0.5,
    tiles=(TileDocument(start=0, size=4, profile="3g.20gb", leases=(lease("team-a", "pod-a"),)),),
    leases=(lease("team-b", "pod-b"),),
    free={"1g.5gb": 3},
)
WAITING = WaitingDocument(namespace="team-b", pod="pod-b", requests="1 x gpu", since=1.0)


@pytest.mark.parametrize("kind", get_args(Document))
def test_every_text_of_every_document_declares_who_may_see_it(kind: type[msgspec.Struct]) -> None:
    empty = msgspec.convert(_example(kind), kind)
    assert Redactor(b"k").redact(empty, NOBODY) is not None


def _example(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A document of this kind with a value in each required field."""
    simple = {"str": "x", "int": 1, "float": 1.0, "bool": True}
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.required:
            name = getattr(get_args(field.type)[0] if get_args(field.type) else field.type, "__name__", "")
            values[field.encode_name] = simple.get(name, [])
    return values


class _Undeclared(msgspec.Struct, frozen=True):
    name: str


class _UndeclaredBelow(msgspec.Struct, frozen=True):
    rows: tuple[_Undeclared, ...] = ()


class _UndeclaredKeys(msgspec.Struct, frozen=True):
    amounts: Mapping[str, int] = {}


class _HiddenKeys(msgspec.Struct, frozen=True):
    amounts: Mapping[Annotated[str, Audience.NODE_NAME], int] = {}


class _PodWithoutNamespace(msgspec.Struct, frozen=True):
    pod: Annotated[str, Audience.POD_NAME] = ""


@pytest.mark.parametrize(
    "document",
    [_Undeclared("x"), _UndeclaredBelow(), _UndeclaredKeys(), _HiddenKeys(), _PodWithoutNamespace()],
    ids=lambda each: type(each).__name__,
)
def test_a_document_without_a_declaration_is_refused(document: msgspec.Struct) -> None:
    with pytest.raises(TypeError, match=r"_[A-Z]\w+"):
        Redactor(b"k").redact(document, NOBODY)


@pytest.mark.parametrize(
    ("visibility", "seen", "hidden"),
    [
        (NOBODY, set(), {"node-secret", "GPU-secret", "team-a", "team-b", "pod-a", "pod-b", "main"}),
        (TEAM_A, {"team-a", "pod-a", "main", "of-pod-a"}, {"node-secret", "GPU-secret", "team-b", "pod-b"}),
        (NODES, {"node-secret", "GPU-secret"}, {"team-a", "team-b", "pod-a", "pod-b", "main"}),
        (FULL, {"node-secret", "GPU-secret", "team-a", "team-b", "pod-a", "pod-b"}, set()),
    ],
)
def test_a_reader_sees_the_names_for_which_it_has_the_right(
    visibility: Visibility, seen: set[str], hidden: set[str]
) -> None:
    text = msgspec.json.encode(Redactor(b"k").redact(CARD, visibility)).decode()
    assert all(each in text for each in seen)
    assert not [each for each in hidden if each in text]


def test_a_tile_without_names_keeps_its_place_state_and_numbers() -> None:
    shown = Redactor(b"k").redact(CARD, NOBODY)
    (tile,) = shown.tiles
    assert (tile.start, tile.size, tile.profile, shown.free) == (0, 4, "3g.20gb", {"1g.5gb": 3})
    hidden = tile.leases[0]
    assert (hidden.namespace, hidden.owner, hidden.evidence, hidden.state, hidden.share) == ("~", "", "", "idle", 0.5)
    assert hidden.pod.startswith("~")


def test_aliases_differ_by_name_and_by_secret() -> None:
    one, other = Redactor(b"1"), Redactor(b"2")
    first, second = (
        one.redact(lease("team-b", "x"), NOBODY).pod,
        one.redact(lease("team-c", "x"), NOBODY).pod,
    )
    assert first != second
    assert other.redact(lease("team-b", "x"), NOBODY).pod != first
    assert one.redact(lease("team-b", "x"), TEAM_A).pod == first


TEAMS = ("team-a", "team-b", "team-c")
LEASES = st.builds(lease, st.sampled_from(TEAMS), st.sampled_from(("p1", "p2", "p3")))
CARDS = st.builds(
    lambda tiles, leases: msgspec.structs.replace(
        CARD, tiles=(TileDocument(start=0, size=1, profile="1g", leases=tuple(tiles)),), leases=tuple(leases)
    ),
    st.lists(LEASES, max_size=3),
    st.lists(LEASES, max_size=3),
)
RIGHTS = st.builds(Visibility, st.booleans(), st.none() | st.sets(st.sampled_from(TEAMS)).map(frozenset[str]))


@given(CARDS, RIGHTS)
def test_no_rights_ever_show_another_name(card: CardDocument, visibility: Visibility) -> None:
    group = FeedGroup()
    waiting = [msgspec.structs.replace(WAITING, namespace=each) for each in TEAMS]
    group.publish({"card/node-secret/GPU-secret": card, **{f"waiting/{each.namespace}/w": each for each in waiting}})
    with group.join(visibility, "ann") as feed:
        update = feed.read(None)
    assert update is not None
    documents = json.loads(update.texts[0])["set"]
    text = json.dumps(documents)
    assert len(documents) == 4
    assert ("secret" in text) == visibility.nodes
    for team in set(TEAMS) - (set(TEAMS) if visibility.namespaces is None else visibility.namespaces):
        assert team not in text
    for found in _structs(card):
        allowed = visibility.namespaces is None or found.namespace in visibility.namespaces
        assert allowed == (f"evidence-{found.pod}" in text) or not allowed


def _structs(card: CardDocument) -> Iterator[LeaseDocument]:
    yield from card.leases
    for tile in card.tiles:
        yield from tile.leases


def test_the_namespaces_of_a_document_are_found_at_any_depth() -> None:
    assert find_namespaces(CARD).pods == {"team-a", "team-b"}


def test_a_document_is_encoded_once_for_all_rights_to_which_it_looks_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []
    redact = Redactor.redact

    def count(self: Redactor, document: Any, visibility: Visibility) -> Any:
        encoded.append(document)
        return redact(self, document, visibility)

    monkeypatch.setattr(Redactor, "redact", count)
    group = FeedGroup()
    group.publish({"waiting/team-b/pod-b": WAITING})
    rights = [Visibility(namespaces=frozenset({"team-b", f"team-{number}"})) for number in range(20)]
    for each in rights:
        with group.join(each, "ann") as feed:
            assert feed.read(None) is not None
    assert encoded == [WAITING]


def test_readers_with_other_rights_hear_only_of_what_they_can_tell_apart() -> None:
    group = FeedGroup()
    group.publish({"waiting/team-b/pod-b": WAITING})
    with group.join(TEAM_A, "ann") as hidden, group.join(FULL, "ann") as full:
        seen = hidden.version, full.version
        renamed = msgspec.structs.replace(lease("team-b", "pod-b"), evidence="other")
        card = msgspec.structs.replace(CARD, leases=(lease("team-b", "pod-b"),))
        group.publish({"waiting/team-b/pod-b": WAITING, "card/a/b": card})
        group.publish({"waiting/team-b/pod-b": WAITING, "card/a/b": msgspec.structs.replace(card, leases=(renamed,))})
        assert (hidden.version, full.version) == (seen[0] + 1, seen[1] + 2)


def test_different_rights_are_bounded_and_those_without_readers_make_room() -> None:
    group = FeedGroup()
    views = [Visibility(namespaces=frozenset({f"team-{number}"})) for number in range(int(PAGE_VIEWS) + 1)]
    joined = [group.join(each, "ann") for each in views]
    for each in joined[:-1]:
        each.__enter__()
    with pytest.raises(TooManyViewsError):
        joined[-1].__enter__()
    joined[0].__exit__(None, None, None)
    with group.join(views[-1], "ann"):
        assert group.readers == PAGE_VIEWS
    for each in joined[1:-1]:
        each.__exit__(None, None, None)


def test_who_has_most_kinds_of_rights_gives_one_up_to_who_has_fewer() -> None:
    group, views = FeedGroup(), [Visibility(namespaces=frozenset({f"team-{number}"})) for number in range(40)]
    with ExitStack() as readers:
        crowd = [readers.enter_context(group.join(each, "crowd")) for each in views[: int(PAGE_VIEWS)]]
        mine = [readers.enter_context(group.join(each, "ann")) for each in views[-2:]]
        assert [each.ended for each in crowd] == [False] * (int(PAGE_VIEWS) - 2) + [True] * 2
        assert not any(each.ended for each in mine)
        with pytest.raises(TooManyViewsError):
            readers.enter_context(group.join(views[-3], "crowd"))


@pytest.mark.parametrize("rights", [FULL, FULL._replace(workloads=frozenset())])
def test_those_who_see_everything_have_a_place_however_many_others_there_are(rights: Visibility) -> None:
    group, views = FeedGroup(), [Visibility(namespaces=frozenset({f"team-{number}"})) for number in range(40)]
    with ExitStack() as readers:
        for number, each in enumerate(views[: int(PAGE_VIEWS)]):
            readers.enter_context(group.join(each, f"user-{number}"))
        with pytest.raises(TooManyViewsError):
            readers.enter_context(group.join(views[-1], "one more"))
        assert not readers.enter_context(group.join(rights, "admin")).ended


def test_a_feed_without_readers_ends() -> None:
    group = FeedGroup()
    with group.join(NOBODY, "ann") as first:
        pass
    for number in range(int(FEED_CHANGES) + 2):
        group.publish({"waiting/a/b": msgspec.structs.replace(WAITING, since=float(number))})
    with group.join(NOBODY, "ann") as again:
        assert again is not first


def test_public_texts_are_shown_to_everybody() -> None:
    class Plain(msgspec.Struct, frozen=True):
        model: Public

    assert Redactor(b"k").redact(Plain("A100"), NOBODY) == Plain("A100")
