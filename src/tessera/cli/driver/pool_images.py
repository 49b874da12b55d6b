"""What is said about the images of one pool: which there are, which one is taken, and why not the others. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.cli.driver.subjects import ImageSubject
from tessera.driver.driver_sets import DriverChoice
from tessera.driver.image_tags import branch, kernel_form, os_forms
from tessera.driver.nodes.node_facts import DriverNodeFacts
from tessera.driver.planning.strategy import StrategyInputs, choose_strategy, image_queries
from tessera.driver.pool import PoolKey
from tessera.driver.resolution import ImageQuery, Outcome, Resolution

Answers = Mapping[ImageQuery, Resolution]

#: Tags that a table shows beside the candidates; JSON has all.
_SHOWN = 12


class Row(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One name that was looked for.

    Attributes:
        kind: precompiled, precompiled-branch, builder, verbatim.
        reference: the name.
        outcome: found, not found, unauthorized, unreachable, wrong architecture.
        why: what the registry said.
        digest: of the image for the architecture.
        size_bytes: compressed.
        taken: Tessera takes it.
    """

    kind: str
    reference: str
    outcome: str
    why: str
    digest: str = ""
    size_bytes: int = 0
    taken: bool = False


class PoolImages(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer for one pool.

    Attributes:
        pool: as text.
        nodes: of the cluster that are in it.
        strategy: how these nodes would come to their driver.
        image: by digest; empty if there is none.
        reason: why this one, or what is in the way.
        candidates: all that was looked at, best first.
        tags: what the repository has for the pool.
        notes: what could not be found out.
    """

    pool: str
    nodes: tuple[str, ...] = ()
    strategy: str
    image: str
    reason: str
    candidates: tuple[Row, ...]
    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def questions(subject: ImageSubject) -> list[ImageQuery]:
    """All that may be asked for a pool."""
    return image_queries(subject.policy, subject.pool)


def judge_images(
    subject: ImageSubject, answers: Mapping[ImageQuery, Resolution], tags: Iterable[str], notes: Iterable[str]
) -> PoolImages:
    """The answer, from what registries said."""
    facts = DriverNodeFacts(name="", uid="", is_gpu=True, pool=subject.pool)
    verdict = choose_strategy(facts, subject.policy, answers.get, StrategyInputs(may_wait=False))
    choice = verdict.choice
    return PoolImages(
        pool=subject.pool.text,
        nodes=subject.nodes,
        strategy=choice.strategy.value if choice else "waiting",
        image=choice.set.image if choice and choice.set else "",
        reason=choice.reason if choice else verdict.waiting,
        candidates=tuple(_rows(questions(subject), answers, choice)),
        tags=tuple(matching_tags(tags, subject.policy.source.version, subject.pool)),
        notes=tuple(notes),
    )


def matching_tags(tags: Iterable[str], version: str, pool: PoolKey) -> list[str]:
    """Tags for the pool's kernel in any version, and those of its system in the version's branch, newest first."""
    endings = tuple(f"-{kernel_form(pool.kernel)}-{form}" for form in os_forms(pool, precompiled=True))
    systems = tuple(f"-{form}" for form in os_forms(pool, precompiled=False))
    number = branch(version)
    found = [
        tag
        for tag in tags
        if tag.endswith(endings)
        or (number is not None and tag.endswith(systems) and of_version(tag, number) and tag.count("-") == 1)
    ]
    return sorted(found, key=by_number, reverse=True)


def of_version(tag: str, version: str) -> bool:
    """Whether a tag is of a version or of its branch: ``525`` has ``525-…`` and ``525.125.06-…``, not ``5250``."""
    return tag == version or tag.startswith((f"{version}-", f"{version}."))


def by_number(tag: str) -> tuple[tuple[int, ...], str]:
    """What tags are ordered by: their numbers, so that 510 comes before 1000."""
    return tuple(int(each) for each in re.findall(r"\d{1,18}", tag)), tag


def size(count: int) -> str:
    """``689 MB``; empty if unknown."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B" if count else ""


def image_table(found: PoolImages, repository: str) -> Iterator[str]:
    """The answer for people."""
    title = f"{repository} for {found.pool}"
    yield f"{title} ({', '.join(found.nodes)})" if found.nodes else title
    yield ""
    rows = [("", "KIND", "NAME", "ANSWER", "SIZE", "DIGEST")]
    for each in found.candidates:
        name = each.reference.removeprefix(f"{repository}:")
        rows.append(("*" if each.taken else "", each.kind, name, each.outcome, size(each.size_bytes), each.digest))
    yield from align_columns(rows)
    yield ""
    if found.image:
        yield f"Taken: {found.image}"
    yield f"{found.strategy}: {found.reason}"
    why = [each for each in found.candidates if each.outcome != Outcome.FOUND.value]
    if why:
        yield "Why not the others:" if found.image else "What registries say:"
        yield from dict.fromkeys(f"  {each.why}" for each in why)
    candidates = {each.reference.rpartition(":")[2] for each in found.candidates}
    more = [tag for tag in found.tags if tag not in candidates]
    if more:
        rest = f", and {len(more) - _SHOWN} more" if len(more) > _SHOWN else ""
        yield f"Also there for this kernel or system: {', '.join(more[:_SHOWN])}{rest}"
    yield from found.notes


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _rows(
    asked: Sequence[ImageQuery], answers: Mapping[ImageQuery, Resolution], choice: DriverChoice | None
) -> Iterator[Row]:
    image, taken = (choice.set.image if choice and choice.set else ""), False
    for query in asked:
        answer = answers[query]
        for each in answer.tried:
            last = each is answer.tried[-1] and answer.outcome is Outcome.FOUND
            mine = last and not taken and bool(image) and image in (answer.pinned, answer.reference)
            taken = taken or mine
            yield Row(
                kind=query.kind.value,
                reference=each.reference,
                outcome=each.outcome.value,
                why=each.text,
                digest=answer.digest if last else "",
                size_bytes=answer.size_bytes if last else 0,
                taken=mine,
            )
