"""Certificates: made, recognised, due, renewed."""

from tessera.webhook.serving.certificates import Certificate, authorities, due, due_at, issue, stored

NAMES = ["tessera-webhook.tessera-system.svc", "127.0.0.1"]
NOW = 1_700_000_000.0
DAY = 86400.0


def test_what_was_issued_is_read_back() -> None:
    made = issue(NAMES, NOW, days=90)
    assert stored(made.data()) == made
    assert not due(made, NAMES, NOW)


def test_it_is_due_after_two_thirds_of_its_life() -> None:
    made = issue(NAMES, NOW, days=90)
    assert abs(due_at(made) - (NOW + 60 * DAY)) < DAY / 24
    assert due(made, NAMES, NOW + 61 * DAY)


def test_it_is_due_when_a_name_is_missing() -> None:
    assert due(issue(NAMES, NOW, days=90), [*NAMES, "host.example"], NOW)


def test_renewal_keeps_the_old_authority_until_it_runs_out() -> None:
    first = issue(NAMES, NOW, days=90)
    second = issue(NAMES, NOW + 60 * DAY, days=90, before=first.bundle)
    third = issue(NAMES, NOW + 120 * DAY, days=90, before=second.bundle)
    assert authorities(first.bundle) < authorities(second.bundle)
    assert not authorities(first.bundle) & authorities(third.bundle)
    assert len(authorities(third.bundle)) == 2
    assert stored(second.data()) == second


def test_parts_that_do_not_belong_together_count_as_nothing() -> None:
    first, second = issue(NAMES, NOW, days=1), issue(NAMES, NOW, days=1)
    assert stored(Certificate(first.certificate, second.key, first.bundle).data()) is None
    assert stored(Certificate(first.certificate, first.key, second.bundle).data()) is None
    assert stored({"tls.crt": b"x"}) is None
    assert stored({}) is None
