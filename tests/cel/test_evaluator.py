"""The part of CEL that is evaluated."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.cel.evaluator import CelError, EvaluationError, Meter, compile_expression
from tessera.cel.kubernetes_values import count_choices

POD: dict[str, Any] = {
    "metadata": {"name": "p", "labels": {"a": "b"}},
    "spec": {
        "containers": [
            {"name": "x", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}},
            {"name": "y", "resources": {}},
        ],
        "priority": 5,
        "nothing": None,
    },
}
NAMES = frozenset({"object", "oldObject", "request"})
SCOPE = {"object": POD, "oldObject": None, "request": {"operation": "CREATE", "dryRun": False}}


def value(text: str) -> Any:
    return compile_expression(text, NAMES).evaluate(SCOPE)


#: Tessera's own condition: pods of which any container asks for a MIG slice.
OURS = """
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c,
  has(c.resources) && (
  (has(c.resources.limits) && c.resources.limits.exists(r, r.startsWith("nvidia.com/mig-"))) ||
  (has(c.resources.requests) && c.resources.requests.exists(r, r.startsWith("nvidia.com/mig-")))))
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("7.0 / 2.0", 3.5),
        ("0x1F", 31),
        ("1 == 1.0", True),
        ("1 == true", False),
        ("1 < 1.5", True),
        ("'a' < 'b'", True),
        ("[1, 2] == [1.0, 2]", True),
        ("{'a': 1}.a", 1),
        ("{'a': 1}['a']", 1),
        ("[1, 2, 3][1]", 2),
        ("2 in [1, 2]", True),
        ("'a' in {'a': 1}", True),
        ("!true || true", True),
        ("true ? 'yes' : 'no'", "yes"),
        ('"a\\n\\u0041"', "a\nA"),
        (r"r'a\n'", r"a\n"),
        ("'''it's'''", "it's"),
        ("size('abc') + [1].size()", 4),
        ("'GPU-1'.matches('^GPU-[0-9]+$')", True),
        ("'a,b'.split(',')", ["a", "b"]),
        ("['a', 'b'].join('-')", "a-b"),
        ("'AbC'.lowerAscii()", "abc"),
        # Letters outside of ASCII stay: the Kelvin sign, a capital A with dots, a long s, an i without its dot.
        ("'\u212aA\u00c4'.lowerAscii()", "\u212aa\u00c4"),
        ("'\u017fY\u0131'.upperAscii()", "\u017fY\u0131"),
        ("'\u1e9e\u00dfs'.upperAscii()", "\u1e9e\u00dfS"),
        ("'\t\u00a0a\u3000\u0085'.trim()", "a"),
        ("'\x1ca\x1f'.trim()", "\x1ca\x1f"),
        ("'\u200ba'.trim()", "\u200ba"),
        ("'a'.replace('', '-')", "-a-"),
        ("string(1.0) + ' ' + string(1000000.0) + ' ' + string(0.00001)", "1 1e+06 1e-05"),
        ("string(-2.5) + ' ' + string(123456.7)", "-2.5 123456.7"),
        ("int('-7') + int('+7')", 0),
        ("double('1e3') + double('.5') + double(2)", 1002.5),
        ("'K\u212a'.matches('^K+$')", False),
        ("'abc'.substring(1)", "bc"),
        ("'abc'.contains('b') && 'abc'.endsWith('c')", True),
        ("string(5) + string(true)", "5true"),
        ("int('5') + int(2.9)", 7),
        ("object.spec.priority > 3", True),
        ("oldObject == null", True),
        ("has(object.spec.containers)", True),
        ("has(object.spec.initContainers)", False),
        ("has(object.spec.nothing)", False),
        ("object.?spec.?missing.orValue(4)", 4),
        ("object.metadata.?labels[?'a'].orValue('z')", "b"),
        ("object.?spec.hasValue()", True),
        ("object.spec.containers.all(c, has(c.name))", True),
        ("object.spec.containers.exists_one(c, c.name == 'x')", True),
        ("object.spec.containers.filter(c, c.name != 'x').map(c, c.name)", ["y"]),
        ("[1, 2, 3].map(n, n > 1, n * 2)", [4, 6]),
        ("object.metadata.labels.all(k, k == 'a')", True),
        ("request.operation in ['CREATE', 'UPDATE'] && !request.dryRun", True),
        (OURS, True),
        ("true // why", True),
        ("-9223372036854775808", -(2**63)),
        ("quantity('1Gi') == quantity('1024Mi')", True),
        ("quantity('40Gi').compareTo(quantity('41Gi'))", -1),
        ("quantity('1Ki').isGreaterThan(quantity('1k')) && quantity('1k').isLessThan(quantity('1Ki'))", True),
        ("quantity('2').add(quantity('1')).sub(1).asInteger()", 2),
        ("quantity('1500m').isInteger()", False),
        ("quantity('-1').sign()", -1),
        ("quantity('1500m').asApproximateFloat()", 1.5),
        ("isQuantity('1K') || isQuantity('x')", False),
        ("semver('1.2.3') == semver('1.2.3+build')", True),
        ("semver('1.2.3-rc.2').isLessThan(semver('1.2.3-rc.10'))", True),
        ("semver('1.2.3-rc').isLessThan(semver('1.2.3'))", True),
        ("semver('v01.2', true).compareTo(semver('1.2.0'))", 0),
        ("isSemver('1.2') || isSemver('1.02.3')", False),
        ("semver('13.0.2').major() + semver('13.0.2').minor() + semver('13.0.2').patch()", 15),
        ("sets.contains([1, 2], [2, 2])", True),
        ("sets.intersects(['a'], ['b'])", False),
        ("sets.equivalent([1, 2], [2, 1, 1])", True),
        ("cel.bind(x, 2, x * x)", 4),
        ("optional.of(1).or(optional.none()).orValue(3)", 1),
        ("optional.none().or(optional.of(2)).value()", 2),
        ("[1, 2].includes(2) && 'a'.includes('a')", True),
        ("'gpu-12'.find('[0-9]+') + 'x'.find('[0-9]+')", "12"),
        ("'a1b22c3'.findAll('[0-9]+')", ["1", "22", "3"]),
        ("'a1b22c3'.findAll('[0-9]+', 2)", ["1", "22"]),
        ("'abc'.charAt(1) + 'abc'.charAt(3)", "b"),
        ("'abcabc'.indexOf('c') + 'abcabc'.lastIndexOf('c') + 'a'.indexOf('z')", 6),
        ("[3, 1, 3].indexOf(3) + [3, 1, 3].lastIndexOf(3) + [1].indexOf(2)", 1),
        ("[3, 1, 2].min() + [3, 1, 2].max()", 4),
        ("[1, 1, 2].isSorted() && !['b', 'a'].isSorted() && [].isSorted()", True),
        ("object.spec.?priority.optMap(p, p * 2).orValue(0)", 10),
        ("object.spec.?missing.optMap(p, p * 2).orValue(7)", 7),
        ("optional.of(object).optFlatMap(o, o.spec.?priority).orValue(0)", 5),
    ],
)
def test_values(text: str, wanted: Any) -> None:
    found = value(text)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    "text",
    [
        "int(' 5')",
        "int('1_000')",
        "int('\u0663')",
        "int('')",
        "int('1.0')",
        "double(' 1')",
        "double('1_0')",
        "double('\u0663')",
        "double(true)",
        "int(1e300)",
    ],
)
def test_texts_that_go_takes_for_no_number_are_errors(text: str) -> None:
    with pytest.raises(EvaluationError):
        value(text)


def test_our_condition_is_false_for_other_pods() -> None:
    program = compile_expression(OURS, NAMES)
    plain = {"spec": {"containers": [{"name": "x"}, {"name": "y", "resources": {"limits": {"cpu": "1"}}}]}}
    assert program.is_true({"object": plain, "oldObject": None, "request": {}}) is False
    init = {"spec": {"containers": [], "initContainers": [{"resources": {"requests": {"nvidia.com/mig-1g.5gb": 1}}}]}}
    assert program.is_true({"object": init, "oldObject": None, "request": {}}) is True


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("object.missing == 1 || true", True),
        ("true || object.missing == 1", True),
        ("object.missing == 1 && false", False),
        ("[1, 2].exists(n, n == 2 || object.missing)", True),
    ],
)
def test_an_error_that_does_not_matter_is_absorbed(text: str, wanted: bool) -> None:
    assert value(text) is wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("object.missing", "no such key: missing"),
        ("object.spec.containers[5]", "index out of bounds: 5"),
        ("object.missing == 1 || false", "no such key"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "modulus by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("1 + 1.0", r"no such overload: int \+ double"),
        ("1 < 'a'", "no such overload"),
        ("object.spec.priority.startsWith('x')", "a string is expected"),
        ("5 && true", "bool is expected"),
        ("oldObject.spec", "no such key: spec"),
        ("'a'.matches('(')", "error parsing regexp"),
        ("quantity('1K')", "a number is expected"),
        ("quantity('1').compareTo(1)", "kubernetes.Quantity compared with int"),
        ("semver('1.2')", "is no semantic version"),
        ("quantity('1500m').asInteger()", "cannot convert"),
        ("sets.contains(1, [1])", "two lists are expected"),
        ("'a'.find('(')", "error parsing regexp"),
        ("'a'.findAll('(')", "error parsing regexp"),
        ("'abc'.charAt(4)", "index out of range: 4"),
        ("[].min()", "a list that is not empty"),
        ("[1, 'a'].max()", "no such overload"),
        ("'a'.isSorted()", r"string\.isSorted"),
        ("(5).indexOf(5)", "a string is expected"),
        ("(5).optMap(x, x)", r"int\.optMap"),
        ("optional.of(5).optFlatMap(x, x)", "needs an optional value, not int"),
        ("{[1]: 2}.size()", "unsupported key type: list"),
        ("{optional.of([1]): 2}.size()", "unsupported key type: optional"),
        ("{'a': 1}[optional.of([1])]", r"map\[optional"),
        ("'a'.matches('a{1001}')", "invalid repeat count"),
        ("'a'.matches('a{0," + "9" * 400 + "}')", "invalid repeat count"),
        ("'a'.matches('a{" + "9" * 5000 + "}')", "invalid repeat count"),
        ("'a'.matches('(?u)a')", "error parsing regexp"),
    ],
)
def test_errors_of_evaluation(text: str, why: str) -> None:
    with pytest.raises(EvaluationError, match=why):
        value(text)


def test_a_condition_must_be_a_boolean() -> None:
    with pytest.raises(EvaluationError, match="a condition must be bool"):
        compile_expression("1", NAMES).is_true(SCOPE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "an expression is expected, not the end"),
        ("1 +", "an expression is expected"),
        ("(1", r"'\)' is expected"),
        ("a b", "unexpected 'b'"),
        ("object.", "a field name is expected"),
        ("subject.name", "undeclared reference to 'subject'"),
        ("authorizer.group('')", "undeclared reference to 'authorizer'"),
        ("ip('10.0.0.1')", r"undeclared reference to 'ip\(\)' .* not among the functions supported here"),
        ("math.greatest(1, 2)", "undeclared reference to 'math'"),
        ("sets.union([1], [2])", r"undeclared reference to 'sets.union\(\)'"),
        ("cel.bind(1, 2, 3)", "takes a name, its value"),
        ("object.?spec.optMap(1, true)", "takes a variable"),
        ("9223372036854775809", "the integer is out of range"),
        ("object.spec.url()", r"undeclared reference to 'url\(\)'"),
        ("timestamp('x')", "timestamp"),
        ("5u == 5u", "not understood"),
        ("b'x'", "not understood"),
        ("has(object)", "takes one field selection"),
        ("object.exists(1, true)", "takes a variable"),
        ("object.exists(k, v, true)", "takes a variable"),
        ("size()", "no matching overload for 'size' with 0 arguments"),
        ("x == 1", "undeclared reference to 'x'"),
        ("[1].map(x, x) == x", "undeclared reference to 'x'"),
        ("for", "reserved word"),
        ("(" * 200 + "1" + ")" * 200, "nested deeper"),
        ("!" * 200 + "true", "in a row"),
        ("true" + " || true" * 200, "in a row"),
        ("object.spec && `a`", "not understood"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(CelError, match=why):
        compile_expression(text, NAMES)


numbers = st.integers(-1000, 1000)


@given(numbers, numbers, numbers)
def test_arithmetic_follows_the_usual_precedence(a: int, b: int, c: int) -> None:
    assert value(f"{a} + {b} * {c} - ({a})") == a + b * c - a


@given(st.text(alphabet="ab'\"\\\n", max_size=8))
def test_any_string_can_be_written(text: str) -> None:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    assert value(f'"{escaped}"') == text


@given(st.text(alphabet="ab.()[]{}?:|&!1 '\"+-,", max_size=12))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        program = compile_expression(text, frozenset({"a"}))
    except CelError:
        return
    try:
        program.evaluate({"a": {"b": [1]}})
    except EvaluationError:
        return


#: Expressions that Kubernetes may accept and that would take long.
COSTLY = [
    (
        "[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, [0,1,2,3,4,5,6,7,8,9].all(c,"
        " [0,1,2,3,4,5,6,7,8,9].all(d, [0,1,2,3,4,5,6,7,8,9].all(e, [0,1,2,3,4,5,6,7,8,9].all(f, true))))))"
    ),
    "'" + "a" * 40 + "'.matches('^(a+)+$')",
    "'" + "a" * 40 + "'.matches('(a|a)*b')",
    "'" + "a" * 40 + "'.matches('" + "a?" * 40 + "b')",
    "'" + "a" * 200 + "'.matches('.*.*.*b')",
    "'" + "a" * 40 + "'.findAll('(a|a)*b', 3) == []",
    "cel.bind(l, ['" + "', '".join("a" * 30) + "'], cel.bind(m, l.map(x, l), cel.bind(n, l.map(x, m),"
    " cel.bind(o, l.map(x, n), cel.bind(p, l.map(x, o), p == p.map(x, x))))))",
    "cel.bind(a, '" + "a" * 1000 + "', " + "cel.bind(a, a + a, " * 25 + "a == a" + ")" * 26,
    "cel.bind(a, '" + "a" * 4000 + "', cel.bind(b, a.replace('', a), true))",
    "cel.bind(a, '" + "a" * 4000 + "', cel.bind(b, a.split('').join(a), true))",
]


@pytest.mark.parametrize("text", COSTLY)
def test_a_budget_ends_what_would_take_long(text: str) -> None:
    program = compile_expression(text, NAMES)
    meter = Meter(1_000_000)
    with pytest.raises(EvaluationError, match="costs more than 1,000,000 units"):
        program.evaluate(SCOPE, meter)
    assert meter.left < 0


@pytest.mark.parametrize(
    ("text", "cost"),
    [("true", 0), ("object.spec.priority > 3", 4), ("2 in [1, 2, 3]", 4), ("'abc'.startsWith('ab')", 1.5)],
)
def test_cost(text: str, cost: float) -> None:
    meter = Meter(1000)
    compile_expression(text, NAMES).evaluate(SCOPE, meter)
    assert meter.limit - meter.left == pytest.approx(cost)


@given(
    st.lists(
        st.sampled_from(["a", "b", "[ab]", "a*", "b+", "a?", "(a|b)", "(ab)*", "a{1,2}", "(a|ab)?", "."]), max_size=5
    ),
    st.text(alphabet="ab", max_size=6),
)
def test_the_choices_of_a_pattern_are_never_undercounted(parts: list[str], text: str) -> None:
    pattern = "".join(parts)
    assert count_choices(pattern, len(text)) >= _ways(parts, text)


def _ways(parts: list[str], text: str) -> int:
    """Number of ways to match a prefix of the text, each part with any text that it matches."""
    if not parts:
        return 1
    return sum(
        _ways(parts[1:], text[end:])
        for end in range(len(text) + 1)
        if re.fullmatch(parts[0], text[:end], re.ASCII) is not None
    )


def test_a_deep_value_is_an_error_and_no_crash() -> None:
    deep = "[1]" + ".map(x, [[[[[[[[[[[[[[[[[[[[x]]]]]]]]]]]]]]]]]]]])" * 60
    with pytest.raises(EvaluationError, match="nested too deep"):
        value(f"{deep} == {deep}")
