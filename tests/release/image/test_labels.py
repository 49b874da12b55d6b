"""The time of what is built: the commit's, or the one that SOURCE_DATE_EPOCH states."""

import subprocess

import pytest
from release.image.labels import of_checkout
from release.wheels import ROOT


def test_the_time_is_the_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    command = ["git", "show", "--no-patch", "--format=%ct", "HEAD"]
    assert of_checkout().seconds == int(subprocess.check_output(command, cwd=ROOT))


def test_source_date_epoch_is_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert of_checkout().created == "2023-11-14T22:13:20Z"


@pytest.mark.parametrize("stated", ["", "now", "-1", "1.5", "٣", "0", str(2**32)])
def test_a_value_that_is_no_time_is_refused_with_what_to_do(stated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", stated)
    with pytest.raises(SystemExit, match=r"SOURCE_DATE_EPOCH is .* Unset it, and the commit's time is used"):
        of_checkout()
