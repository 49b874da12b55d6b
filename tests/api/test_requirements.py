"""Annotations that say what a GPU has to be, and errors that say how to write them."""

import pytest

from tessera.api.pod_annotations import RequirementError, requirements_of
from tessera.limits import REQUIRED_MEMORY
from tessera.offers import GIB, CapabilityBound, Requirements

MEMORY = ("annotation tessera.dev/gpu-memory: ", "write for example 10Gi")
CAPABILITY = (
    "annotation tessera.dev/compute-capability: ",
    "is no bound",
    "write one of >= <= == != > < = and a version",
    'for example ">=8.0" or ">=8.0,<10.0"',
)
PRODUCT = (
    "annotation tessera.dev/product: ",
    "has an empty name",
    "write models divided by |",
    "for example A100|H100",
)
BOOLEAN = ('must be "true" or "false"', "in quotes")


def of(**values: str) -> Requirements | None:
    return requirements_of({"tessera.dev/" + key.replace("_", "-"): value for key, value in values.items()})


def test_all_of_them() -> None:
    asked = of(gpu_memory="10Gi", nvlink="true", ecc="true", compute_capability=">=8.0", product="A100|H100")
    assert asked == Requirements(
        memory=10 * GIB,
        nvlink=True,
        ecc=True,
        capability=(CapabilityBound(">=", (8, 0)),),
        products=("A100", "H100"),
    )


@pytest.mark.parametrize(
    ("text", "amount"), [("10Gi", 10 * GIB), ("10G", 10**10), ("1536Mi", 3 * GIB // 2), ("0.5Gi", GIB // 2)]
)
def test_memory(text: str, amount: int) -> None:
    assert of(gpu_memory=text) == Requirements(memory=amount)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        (">=8.0", [CapabilityBound(">=", (8, 0))]),
        ("8.6", [CapabilityBound("==", (8, 6))]),
        (" >= 8.0 , < 10.0 ", [CapabilityBound(">=", (8, 0)), CapabilityBound("<", (10, 0))]),
        ("!=8.9", [CapabilityBound("!=", (8, 9))]),
    ],
)
def test_compute_capability(text: str, bounds: list[CapabilityBound]) -> None:
    assert of(compute_capability=text) == Requirements(capability=tuple(bounds))


def test_products_may_have_blanks() -> None:
    assert of(product=" RTX PRO 6000 | A100-80GB ") == Requirements(products=("RTX PRO 6000", "A100-80GB"))


@pytest.mark.parametrize("annotations", [{}, {"other.dev/nvlink": "true"}, {"tessera.dev/chosen-resource": "x"}])
def test_a_pod_without_requirements(annotations: dict[str, str]) -> None:
    assert requirements_of(annotations, ["nvidia.com/gpu"]) is None


def test_false_asks_for_nothing() -> None:
    assert of(nvlink="false", ecc="false") is None
    assert of(nvlink="false", gpu_memory="1Gi") == Requirements(memory=GIB)


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ({"gpu_memory": "10GB"}, (*MEMORY, '"10GB" is no quantity')),
        ({"gpu_memory": "-1Gi"}, (*MEMORY, '"-1Gi" must be positive')),
        ({"gpu_memory": "10"}, (MEMORY[0], '"10" is in bytes', "is a unit missing", "as in 10Gi?")),
        (
            {"gpu_memory": "9" * 60},
            (*MEMORY, f': "{"9" * 39}…"', "more than any GPU will have", f"{REQUIRED_MEMORY} are allowed"),
        ),
        ({"gpu_memory": "9" * 400}, (*MEMORY, f': "{"9" * 39}…" is no quantity')),
        ({"nvlink": "yes"}, ('annotation tessera.dev/nvlink: "yes"', *BOOLEAN)),
        ({"ecc": "True"}, ('annotation tessera.dev/ecc: "True"', *BOOLEAN)),
        ({"compute_capability": "~8"}, (*CAPABILITY, ': "~8"')),
        ({"compute_capability": ">=8"}, (*CAPABILITY, ': ">=8"')),
        ({"compute_capability": ">=8.0,"}, (*CAPABILITY, ': ""')),
        ({"product": "A100|"}, (*PRODUCT, ': "A100|"')),
        ({"product": ""}, (*PRODUCT, ': ""')),
        (
            {"gpu_mem": "10Gi"},
            ("annotation tessera.dev/gpu-mem: ", "unknown", "did you mean tessera.dev/gpu-memory?"),
        ),
        (
            {"nv_link": "true"},
            ("annotation tessera.dev/nv-link: ", "unknown", "did you mean tessera.dev/nvlink?"),
        ),
    ],
)
def test_a_wrong_value_is_refused_with_the_right_form(values: dict[str, str], facts: tuple[str, ...]) -> None:
    with pytest.raises(RequirementError) as error:
        of(**values)
    for fact in facts:
        assert fact in str(error.value)


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"])
def test_requirements_and_resources_do_not_go_together(resource: str) -> None:
    with pytest.raises(RequirementError) as error:
        requirements_of({"tessera.dev/ecc": "true"}, ["cpu", resource])
    for fact in (
        "annotation tessera.dev/ecc",
        f'a container\'s resource "{resource}"',
        "both say which GPU the pod gets",
        "keep one of them",
    ):
        assert fact in str(error.value)
