"""Names follow from memory; the table of known names is the check."""

import pytest

from tessera.mig.models import MODELS
from tessera.mig.names import ci_profile_index, gi_profile_index, parse_profile_name, profile_gb, resource_spelling

RTX_PRO_6000 = (
    "1g.24gb 1g.24gb+me 1g.24gb+gfx 1g.24gb+me.all 1g.24gb-me "
    "2g.48gb 2g.48gb+gfx 2g.48gb+me.all 2g.48gb-me 4g.96gb 4g.96gb+gfx"
)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("A100-40GB", "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
        ("A100-80GB", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("H100-80GB", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("H100-64GB", "1g.8gb 1g.8gb+me 1g.16gb 2g.16gb 3g.32gb 4g.32gb 7g.64gb"),
        ("H100-NVL", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"),
        ("H100-96GB", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
        ("GH200-96GB", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
        ("H20-96GB", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
        ("PG506-96GB", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
        ("H200", "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
        ("H20-141GB", "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
        ("GH200-144GB", "1g.18gb 1g.18gb+me 1g.36gb 2g.36gb 3g.72gb 4g.72gb 7g.144gb"),
        ("B200", "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"),
        ("GB200", "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb"),
        ("B300", "1g.34gb 1g.34gb+me 1g.67gb 2g.67gb 3g.135gb 4g.135gb 7g.269gb"),
        ("GB300", "1g.35gb 1g.35gb+me 1g.70gb 2g.70gb 3g.139gb 4g.139gb 7g.278gb"),
        ("A30", "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb"),
        ("RTX-PRO-6000", RTX_PRO_6000),
    ],
)
def test_the_name_rule_gives_every_published_name(model: str, names: str) -> None:
    assert {one.short_name: " ".join(one.profile_names) for one in MODELS}[model] == names


@pytest.mark.parametrize(
    ("card_gb", "eighths", "gb"), [(180, 1, 23), (141, 4, 71), (186, 2, 47), (269, 4, 135), (94, 1, 12), (189, 4, 95)]
)
def test_halves_are_rounded_away_from_zero(card_gb: int, eighths: int, gb: int) -> None:
    assert profile_gb(card_gb * 1024, eighths) == gb


def test_a_started_gibibyte_counts_whole() -> None:
    assert profile_gb(81559, 8) == 80


@pytest.mark.parametrize(
    ("text", "slices", "memory_gb", "suffix", "media"),
    [
        ("3g.20gb", 3, 20, "", False),
        ("1g.5gb+me", 1, 5, "+me", True),
        ("1g.5gb.me", 1, 5, "+me", True),
        ("1g.24gb.me.all", 1, 24, "+me.all", True),
        ("1g.24gb-me", 1, 24, "-me", False),
        ("2g.48gb+gfx", 2, 48, "+gfx", False),
    ],
)
def test_a_name_is_read_in_both_spellings(text: str, slices: int, memory_gb: int, suffix: str, *, media: bool) -> None:
    name = parse_profile_name(text)
    assert (name.slices, name.memory_gb, name.suffix, name.media) == (slices, memory_gb, suffix, media)


@pytest.mark.parametrize("text", ["", "3g", "3g.20", "0g.5gb", "g.5gb", "3g.20gb ", "1c.3g.20gb", "3g.20gb+"])
def test_what_is_not_a_profile_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"as in 3g\.20gb"):
        parse_profile_name(text)


def test_a_resource_name_has_no_plus() -> None:
    spelled = [resource_spelling(name) for name in ("1g.5gb+me", "1g.24gb+me.all", "1g.24gb-me")]
    assert spelled == ["1g.5gb.me", "1g.24gb.me.all", "1g.24gb-me"]


def test_compute_instance_profiles_are_numbered_by_slices() -> None:
    assert [ci_profile_index(slices) for slices in (1, 2, 3, 4, 6, 7, 8)] == [0, 1, 2, 3, 6, 4, 5]
    with pytest.raises(ValueError, match="5 slices"):
        ci_profile_index(5)


def test_the_double_memory_profile_has_its_own_instance_index_and_the_plain_compute_index() -> None:
    double = next(one for one in MODELS if one.short_name == "A100-40GB").geometry.profile("1g.10gb")
    assert (double.gi_profile_index, double.ci_profile_index) == (9, 0)


def test_an_instance_profile_that_nvml_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="no GPU-instance profile"):
        gi_profile_index(parse_profile_name("5g.5gb"))
