"""The resolver of driver images over the lab's catalogue, in place of the real one, which uses HTTP.

Knows only what the catalogue names: that a world need not list its ``busybox`` does not make driver images exist.
Answers take no time and are never stale. What a registry refuses is set at the catalogue, so that kubelets' pulls and
the resolver's answers are of one piece.
"""

from collections.abc import Sequence

from tessera.clock import Clock
from tessera.driver.images import ImageQuery, Outcome, Resolution, SourceError, TriedReference, candidates
from tessera_lab.kubelet.images.catalogue import ImageCatalogue

#: Order in which outcomes count if no candidate was found: the least informative first.
_WORST_FIRST = (Outcome.UNREACHABLE, Outcome.UNAUTHORIZED, Outcome.WRONG_ARCHITECTURE, Outcome.NOT_FOUND)

_TEXTS = {
    Outcome.FOUND: "found (simulated)",
    Outcome.NOT_FOUND: "the registry has no such tag (simulated)",
    Outcome.UNAUTHORIZED: "the registry wants other credentials (simulated)",
    Outcome.UNREACHABLE: "the registry does not answer (simulated)",
    Outcome.WRONG_ARCHITECTURE: "the registry has it for other architectures only (simulated)",
}


class SimulatedResolver:
    """A :class:`~tessera.driver.images.Resolver` on a catalogue.

    Args:
        catalogue: what there is.
        clock: for the time of answers.

    Attributes:
        asked: every query so far, in order.
    """

    def __init__(self, catalogue: ImageCatalogue, clock: Clock) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self.asked: list[ImageQuery] = []

    async def resolve(self, query: ImageQuery, *, fresh: bool = False) -> Resolution:  # noqa: ARG002 - always fresh
        """See :meth:`.Resolver.resolve`."""
        return self.answer(query)

    def answer(self, query: ImageQuery) -> Resolution:
        """The answer to a query; it takes no time."""
        self.asked.append(query)
        try:
            names = candidates(query)
        except SourceError as error:
            return Resolution(
                outcome=Outcome.NOT_FOUND,
                tried=(TriedReference(reference=query.source.image, outcome=Outcome.NOT_FOUND, text=str(error)),),
                checked=self._clock.now(),
            )
        tried: list[TriedReference] = []
        for name in names:
            outcome = self._query(name.reference, query.pool.architecture)
            tried.append(TriedReference(reference=name.reference, outcome=outcome, text=_TEXTS[outcome]))
            if outcome is Outcome.FOUND:
                image = self._catalogue.find_image(name.reference)
                return Resolution(
                    outcome=outcome,
                    reference=name.reference,
                    digest=self._catalogue.digest(name.reference),
                    tag=name.tag,
                    tried=tuple(tried),
                    checked=self._clock.now(),
                    size_bytes=image.size_bytes if image is not None else 0,
                )
        return Resolution(outcome=_matches_policy(tried), tried=tuple(tried), checked=self._clock.now())

    def _query(self, reference: str, architecture: str) -> Outcome:
        outcome = self._catalogue.answer(reference, architecture)
        named = self._catalogue.find_image(reference) is not None
        return Outcome.NOT_FOUND if outcome is Outcome.FOUND and not named else outcome


def _matches_policy(tried: Sequence[TriedReference]) -> Outcome:
    seen = {each.outcome for each in tried}
    return next((each for each in _WORST_FIRST if each in seen), Outcome.NOT_FOUND)
