"""The images for one pool of nodes: those that a registry has, the one that Tessera uses, and the reasons. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.cli.driver.subjects import ImageSubject
from tessera.driver.driver_sets import DriverChoice, PoolKey
from tessera.driver.images import ImageQuery, Outcome, Resolution, branch, kernel_form, os_forms
from tessera.driver.kernels import version_numbers
from tessera.driver.node_facts import DriverNodeFacts
from tessera.driver.planning.strategy import StrategyInputs, choose_strategy, image_queries
from tessera.text import list_names

#: The most tags that a table lists besides the candidates; JSON has all.
_SHOWN = 12


class Row(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One image name that was looked up.

    Attributes:
        kind: precompiled, precompiled-branch, builder, verbatim.
        reference: the name.
        outcome: found, not found, unauthorized, unreachable, wrong architecture.
        why: the registry's answer in words.
        digest: digest of the image for the architecture.
        size_bytes: compressed size.
        taken: True if Tessera uses this image.
    """

    kind: str
    reference: str
    outcome: str
    why: str
    digest: str = ""
    size_bytes: int = 0
    taken: bool = False


class PoolImages(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The images for one pool.

    Attributes:
        pool: the pool as text.
        nodes: the cluster's nodes in the pool.
        strategy: the way in which these nodes would get their driver.
        image: the image by digest; empty if there is none.
        reason: the reason for this image, or the obstacle.
        candidates: all image names that were looked up, best first.
        tags: the repository's tags for the pool.
        notes: errors of requests that give more information only.
    """

    pool: str
    nodes: tuple[str, ...] = ()
    strategy: str
    image: str
    reason: str
    candidates: tuple[Row, ...]
    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def describe_images(
    subject: ImageSubject, answers: Mapping[ImageQuery, Resolution], tags: Iterable[str], notes: Iterable[str]
) -> PoolImages:
    """The images of a pool, from the registries' answers."""
    facts = DriverNodeFacts(name="", uid="", is_gpu=True, pool=subject.pool)
    verdict = choose_strategy(facts, subject.policy, answers.get, StrategyInputs(may_wait=False))
    choice = verdict.choice
    return PoolImages(
        pool=subject.pool.text,
        nodes=subject.nodes,
        strategy=choice.strategy.value if choice else "waiting",
        image=choice.set.image if choice and choice.set else "",
        reason=choice.reason if choice else verdict.waiting,
        candidates=tuple(_rows(image_queries(subject.policy, subject.pool), answers, choice)),
        tags=tuple(matching_tags(tags, subject.policy.source.version, subject.pool)),
        notes=tuple(notes),
    )


def matching_tags(tags: Iterable[str], version: str, pool: PoolKey) -> list[str]:
    """Tags for the pool's kernel in any version, and tags for its system in the version's branch; newest first."""
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
    """True if a tag has this version or branch: ``525`` matches ``525-…`` and ``525.125.06-…``, not ``5250-…``."""
    return tag == version or tag.startswith((f"{version}-", f"{version}."))


def by_number(tag: str) -> tuple[tuple[int, ...], str]:
    """A sort key for tags: their numbers, so that 510 comes before 1000."""
    return version_numbers(tag), tag


def size(count: int) -> str:
    """``689 MB``; empty if unknown."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B" if count else ""


def image_table(found: PoolImages, repository: str) -> Iterator[str]:
    """The table of one pool."""
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
        yield f"Tessera uses: {found.image}"
    yield f"{found.strategy}: {found.reason}"
    why = [each for each in found.candidates if each.outcome != Outcome.FOUND.value]
    if why:
        yield "The other images:" if found.image else "Answers of registries:"
        yield from dict.fromkeys(f"  {each.why}" for each in why)
    candidates = {each.reference.rpartition(":")[2] for each in found.candidates}
    more = [tag for tag in found.tags if tag not in candidates]
    if more:
        yield f"The registry also has, for this kernel or system: {list_names(more, _SHOWN)}"
    yield from found.notes


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows as lines, each column as wide as its widest cell."""
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
            is_chosen = last and not taken and bool(image) and image in (answer.pinned, answer.reference)
            taken = taken or is_chosen
            yield Row(
                kind=query.kind.value,
                reference=each.reference,
                outcome=each.outcome.value,
                why=each.text,
                digest=answer.digest if last else "",
                size_bytes=answer.size_bytes if last else 0,
                taken=is_chosen,
            )
