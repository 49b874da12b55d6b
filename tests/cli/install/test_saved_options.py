"""The options of the last ``tessera install``: recorded, shown, and taken again."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.cli.install.conftest import Place

from tessera.cli.base.connection import CommandError
from tessera.cli.install.choices import SavedOptions, load, save, words_of
from tessera.cli.install.command import command
from tessera.kube.resources import NAMESPACES

SAVED = SavedOptions(("--image=r/t:1", "--pull-secret=a b"), {"values": "mig: {}\n", "registry_ca": "PEM"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ()),
        (["--dashboard", "--no-drivers"], ("--no-drivers", "--dashboard")),
        (["--memory-limits", "warn", "-n", "x"], ("--namespace=x", "--memory-limits=warn")),
        (["--pull-secret", "a", "--pull-secret=b"], ("--pull-secret=a", "--pull-secret=b")),
        (["--dry-run", "--adopt", "--reuse", "--kubeconfig", "k", "--values", "f"], ()),
    ],
)
def test_the_words_of_a_run_are_its_choices_in_one_spelling(arguments: Sequence[str], words: Sequence[str]) -> None:
    assert words_of(command, arguments) == words
    again = command.make_context("tessera install", list(words)).params
    plain = [each for each in arguments if each not in ("--values", "f")]
    first = command.make_context("tessera install", plain).params
    of_a_run = {"values", "adopt", "reuse", "dry_run", "kubeconfig"}
    assert {name: again[name] for name in again.keys() - of_a_run} == {
        name: first[name] for name in first.keys() - of_a_run
    }


def test_what_is_given_now_comes_last() -> None:
    more = SAVED.with_more(["--image=r/t:2", "--pull-secret=a b"])
    assert more.words == ("--image=r/t:1", "--image=r/t:2", "--pull-secret=a b")
    assert command.make_context("tessera install", list(more.words)).params["image"] == "r/t:2"
    assert more.files == SAVED.files


def test_they_are_shown_as_the_command_that_makes_the_same_installation() -> None:
    assert SAVED.command_line() == (
        "tessera install --image=r/t:1 '--pull-secret=a b' --values=values.yaml --registry-ca=ca.crt"
    )


def test_what_was_saved_is_read_again_and_the_last_run_counts(place: Place) -> None:
    async def scenario() -> None:
        client = place.client()
        await client.create(NAMESPACES.as_dicts(), {"metadata": {"name": "tessera-system"}})
        with pytest.raises(CommandError, match="no tessera install has recorded its options; run it once with all"):
            await load(client)
        await save(client, SAVED)
        assert await load(client) == SAVED
        await save(client, SavedOptions(("--dashboard",)))
        assert await load(client) == SavedOptions(("--dashboard",), {})

    asyncio.run(scenario())
