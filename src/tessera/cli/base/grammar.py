"""kubectl's grammar, the same for every command that reads: ``-o``, ``-n`` and ``-A``, ``-w``, ``-l``, ``TYPE/NAME``.

One default holds everywhere: a command shows all that its user may see, ``-n`` limits it to a namespace. A command that
names one object looks in the context's namespace, as kubectl does.

Templates of ``-o jsonpath`` are kubectl's: ``{.field}``, ``[0]``, ``[*]``, ``{range ...}{end}`` and ``{"text"}``.

No library is used: those on the index bring a parser generator for a language that is not kubectl's. Filters and slices
are refused with a word; ``-o json | jq`` has them.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import click

from tessera.cli.base.console import has_screen, say, say_document, say_json

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tessera.kube.client import Client


_EXPRESSION = re.compile(r"\{((?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^{}])*)\}")
_STEP = re.compile(
    r"\.(?P<key>(?:[^.\[\]\\\s]|\\.)+)|\[(?P<index>\*|-?[0-9]{1,6})\]|\[(?P<quote>['\"])(?P<name>.*?)(?P=quote)\]"
)


def render(template: str, document: Any) -> str:
    """The text of a template for a document of JSON values.

    Raises:
        ValueError: the template has another form; the text names the part.
    """
    pieces = _EXPRESSION.split(template if "{" in template else f"{{{template}}}")
    if any("{" in text or "}" in text for text in pieces[::2]):
        raise ValueError(f"jsonpath {template[:60]!r}: braces do not match; write for example {{.pods[0].name}}")
    words = [(at % 2 == 1, piece) for at, piece in enumerate(pieces) if piece]
    text, end = _render(words, 0, document)
    if end < len(words):
        raise ValueError(f"jsonpath {template[:60]!r}: {{end}} without {{range}}")
    return text


def _render(words: Sequence[tuple[bool, str]], at: int, value: Any) -> tuple[str, int]:
    """The text up to the end of this range, and where that is."""
    text = ""
    while at < len(words):
        is_expression, word = words[at][0], words[at][1].strip() if words[at][0] else words[at][1]
        at += 1
        if not is_expression:
            text += word
        elif word == "end":
            return text, at - 1
        elif word.startswith("range "):
            rounds = [_render(words, at, each) for each in find(word.removeprefix("range ").strip(), value)]
            end = rounds[0][1] if rounds else _render(words, at, None)[1]
            if end == len(words):
                raise ValueError(f"jsonpath: {{{word}}} has no {{end}}")
            text, at = text + "".join(each for each, _ in rounds), end + 1
        elif word[:1] in {'"', "'"}:
            text += _literal(word)
        else:
            text += " ".join(map(_text, find(word, value)))
    return text, at


def _literal(word: str) -> str:
    try:
        return str(json.loads(word)) if word[0] == '"' else word[1:-1]
    except ValueError:
        raise ValueError(f"jsonpath: {word[:40]} is no text in quotes") from None


def find(path: str, value: Any) -> list[Any]:
    """The values at a path; what is missing is left out."""
    rest = path.removeprefix("$").removeprefix("@")
    rest = rest if not rest or rest[0] in ".[" else f".{rest}"
    found, at = [value], 0
    while at < len(rest) and rest != ".":
        step = _STEP.match(rest, at)
        if step is None:
            raise ValueError(f"jsonpath {path[:60]!r}: {rest[at:][:20]!r} is not supported; use -o json and jq")
        key = re.sub(r"\\(.)", r"\1", step["key"] or step["name"] or "")
        found = [each for one in found for each in _step(one, key, step["index"])]
        at = step.end()
    return found


def _step(value: Any, key: str, index: str | None) -> Iterator[Any]:
    if index == "*" or key == "*":
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    elif index is not None:
        if isinstance(value, list) and -len(value) <= int(index) < len(value):
            yield value[int(index)]
    elif isinstance(value, dict) and key in value:
        yield value[key]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


P = ParamSpec("P")
T = TypeVar("T")

#: Forms for programs, which every command has.
_FORMS = ("json", "yaml", "name")
_JSONPATH = "jsonpath="
#: kubectl's names of nodes, before a slash or a name.
_NODE_KINDS = ("node", "nodes", "no")


class Output(NamedTuple):
    """The form in which a command shows what it found.

    Attributes:
        form: the command's own form, ``wide``, ``json``, ``yaml``, ``name`` or ``jsonpath``.
        template: of ``jsonpath``.
    """

    form: str
    template: str = ""

    @property
    def for_programs(self) -> bool:
        """True if a program reads it."""
        return self.form in {*_FORMS, "jsonpath"}

    def show(self, document: object, lines: Iterable[str], names: Iterable[str] = ()) -> None:
        """Writes it.

        Args:
            document: the answer as a value that can be JSON.
            lines: the command's own form.
            names: the objects that it tells of, ``kind/name``.
        """
        match self.form:
            case "json":
                say_json(document)
            case "yaml":
                say_document(_yaml(document))
            case "name":
                if found := dict.fromkeys(names):
                    say(*found)
            case "jsonpath":
                say_document(_by_template(self.template, document))
            case _:
                say(*lines)


def _builtins(document: object) -> Any:
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(document))


def _yaml(document: object) -> str:
    import yaml

    return yaml.safe_dump(_builtins(document), sort_keys=False, allow_unicode=True)


def _by_template(template: str, document: object) -> str:

    return render(template, _builtins(document))


class _OutputForm(click.ParamType[Output]):
    name = "form"

    def __init__(self, forms: Sequence[str]) -> None:
        self._forms = forms

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Output:
        if isinstance(value, Output):
            return value
        text = str(value)
        if text.startswith(_JSONPATH):
            return Output("jsonpath", text.removeprefix(_JSONPATH))
        if text not in self._forms:
            self.fail(f"{text[:40]!r} is not one of {', '.join(self._forms)}, {_JSONPATH}TEMPLATE", param, ctx)
        return Output(text)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem[str]]":
        from click.shell_completion import CompletionItem

        del ctx, param
        return [CompletionItem(each) for each in (*self._forms, _JSONPATH) if each.startswith(incomplete)]


def output_option(*own: str, text: str = "Output format") -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Adds ``-o``; the first of the command's own forms is the default, and ``wide`` shows all columns of a table.

    Args:
        own: the command's own forms; without any, the parameter is None unless ``-o`` is given.
        text: begins the help.
    """
    forms = [*own, *(["wide"] if "table" in own else []), *_FORMS]
    return click.option(
        "-o",
        "--output",
        type=_OutputForm(forms),
        default=own[0] if own else None,
        metavar="FORM",
        callback=_check_watch,
        help=f"{text}: {', '.join(forms)} or {_JSONPATH}TEMPLATE.{f'  [default: {own[0]}]' if own else ''}",
    )


def namespace_options(
    *, multiple: bool = False, everywhere: bool = False
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Adds ``-n`` and ``-A``; the parameter ``namespace`` is None, or empty, for all that the user may see.

    Args:
        multiple: several namespaces may be named.
        everywhere: the command has a parameter ``everywhere``, since it tells ``-A`` from nothing.
    """
    every = click.option(
        "-A",
        "--all-namespaces",
        "everywhere",
        is_flag=True,
        expose_value=everywhere,
        callback=_check_everywhere,
        help="Show all namespaces, as without -n.",
    )
    text = f"Show this namespace only{'; repeatable' * multiple}."
    one = click.option("-n", "--namespace", metavar="NAME", multiple=multiple, is_eager=True, help=text)
    return lambda function: one(every(function))


def node_option(function: Callable[P, T]) -> Callable[P, T]:
    """Adds ``--node``, repeatable; the parameter is ``nodes``."""
    text = "Show this node only; repeatable."
    return click.option("--node", "nodes", metavar="NAME", multiple=True, callback=node_names, help=text)(function)


def _check_everywhere(ctx: click.Context, _param: click.Parameter, everywhere: bool) -> bool:
    if everywhere and ctx.params.get("namespace"):
        raise click.UsageError("-A shows all namespaces, -n one of them; leave one out")
    return everywhere


def selector_option(function: Callable[P, T]) -> Callable[P, T]:
    """Adds ``-l``: only pods with these labels, as ``kubectl get pods -l`` selects them."""
    return click.option("-l", "--selector", metavar="LABELS", help="Show pods with these labels: app=web.")(function)


async def selected_pods(
    client: "Client", selector: str | None, namespace: str | None, home: str
) -> frozenset[tuple[str, str]] | None:
    """Namespace and name of the pods with these labels; None if no labels are given, for all.

    Args:
        client: the user's client.
        selector: kubectl's ``-l``.
        namespace: the only namespace; None for all, or for ``home`` if the user may not list the pods of all.
        home: where the user has rights.
    """
    from tessera.kube.errors import Forbidden
    from tessera.kube.resources import PODS

    if selector is None:
        return None
    try:
        found = await client.list(PODS, namespace, label_selector=selector)
    except Forbidden:
        if namespace is not None:
            raise
        found = await client.list(PODS, home, label_selector=selector)
    return frozenset((each.metadata.namespace, each.metadata.name) for each in found.items)


def watch_option(function: Callable[P, T]) -> Callable[P, T]:
    """Adds ``-w``: the answer is shown again when it changes, until Ctrl-C."""
    text = "Show it again as it changes, until Ctrl-C."
    return click.option("-w", "--watch", "watches", is_flag=True, callback=_check_watch, help=text)(function)


def colour_option(function: Callable[P, T]) -> Callable[P, T]:
    """Adds ``--no-colour``; the parameter ``colour`` is None for what the terminal can."""
    return click.option(
        "--colour/--no-colour", "--color/--no-color", default=None, help="Use colours.  [default: on a terminal only]"
    )(function)


def _check_watch(ctx: click.Context, param: click.Parameter, value: T) -> T:
    """Refuses to watch where no terminal shows it; called for ``-w`` and for ``-o``, whose order is the user's."""
    given = {**ctx.params, param.name or "": value}
    output = given.get("output")
    for_programs = isinstance(output, Output) and output.for_programs
    if given.get("watches") and not ctx.resilient_parsing and (for_programs or not has_screen()):
        raise click.UsageError("--watch draws on a terminal; leave it out for files and programs")
    return value


def node_names(
    _ctx: click.Context, _param: click.Parameter, names: str | Sequence[str] | None
) -> str | tuple[str, ...] | None:
    """A click callback: reads ``NAME``, ``node/NAME`` and, of several words, ``node NAME``."""
    if names is None or isinstance(names, str):
        return names and _node_name(names)
    words = names[1:] if len(names) > 1 and names[0] in _NODE_KINDS else names
    return tuple(map(_node_name, words))


def _node_name(word: str) -> str:
    kind, slash, name = word.partition("/")
    return name if slash and kind in _NODE_KINDS else word
