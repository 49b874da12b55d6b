"""Certificates: made, recognised, due, renewed."""

from tessera.webhook.certificates import (
    Certificate,
    authority_fingerprints,
    issue,
    needs_renewal,
    read_secret,
    renewal_time,
)

NAMES = ["tessera-webhook.tessera-system.svc", "127.0.0.1"]
NOW = 1_700_000_000.0
DAY = 86400.0


def test_what_was_issued_is_read_back() -> None:
    made = issue(NAMES, NOW, days=90)
    assert read_secret(made.data()) == made
    assert not needs_renewal(made, NAMES, NOW)


def test_it_is_due_after_two_thirds_of_its_life() -> None:
    made = issue(NAMES, NOW, days=90)
    assert abs(renewal_time(made) - (NOW + 60 * DAY)) < DAY / 24
    assert needs_renewal(made, NAMES, NOW + 61 * DAY)


def test_it_is_due_when_a_name_is_missing() -> None:
    assert needs_renewal(issue(NAMES, NOW, days=90), [*NAMES, "host.example"], NOW)


def test_renewal_keeps_the_old_authority_until_it_runs_out() -> None:
    first = issue(NAMES, NOW, days=90)
    second = issue(NAMES, NOW + 60 * DAY, days=90, before=first.bundle)
    third = issue(NAMES, NOW + 120 * DAY, days=90, before=second.bundle)
    assert authority_fingerprints(first.bundle) < authority_fingerprints(second.bundle)
    assert not authority_fingerprints(first.bundle) & authority_fingerprints(third.bundle)
    assert len(authority_fingerprints(third.bundle)) == 2
    assert read_secret(second.data()) == second


def test_parts_that_do_not_belong_together_count_as_nothing() -> None:
    first, second = issue(NAMES, NOW, days=1), issue(NAMES, NOW, days=1)
    assert read_secret(Certificate(first.certificate, second.key, first.bundle).data()) is None
    assert read_secret(Certificate(first.certificate, first.key, second.bundle).data()) is None
    assert read_secret({"tls.crt": b"x"}) is None
    assert read_secret({}) is None
