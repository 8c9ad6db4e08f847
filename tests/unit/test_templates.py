"""Templates: what they may do, and the exact line of what they may not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jinja2 import DictLoader, StrictUndefined

from strix_finetune.errors import TemplateError
from strix_finetune.template_places import MarkLines, unmark
from strix_finetune.templates import Templates, make_environment
from tests.conftest import Images

VALUES: dict[str, Any] = {"vars": {"jobs": 2, "flags": ["-O2", "-g"], "empty": []}, "parent": "base", "no": False}


@pytest.fixture
def templates(images: Images) -> Images:
    images.layer("base")
    return images


def render(images: Images, text: str, values: dict[str, Any] | None = None, user: str | None = None) -> Any:
    images.write("images/base/Dockerfile.j2", text)
    override = None
    if user is not None:
        images.write("mine/templates/base/Dockerfile.j2", user)
        override = images.root / "mine"
    return Templates(images.load(override)).render("base", VALUES if values is None else values)


def fault(images: Images, text: str, values: dict[str, Any] | None = None, user: str | None = None) -> str:
    with pytest.raises(TemplateError) as caught:
        render(images, text, values, user)
    assert caught.value.exit_code == 2
    (only,) = images.faults(caught.value)
    assert "\n" not in only
    assert only.count("; ") >= 1, "every fault has a cure"
    return only.replace("images/base/Dockerfile.j2", "T").replace("mine/templates/base/Dockerfile.j2", "U")


def test_shell_survives(templates: Images) -> None:
    text = "\n".join(
        [
            "FROM scratch",
            'RUN a=(1 2); echo "${#a[@]}" ${a[0]} ${a#x} ${a##*/} ${b%.*} $((1 << 2)) \\',
            "  # not a comment of Jinja's; {# nor this #}",
            "RUN echo {a,b} ${x} $'\\n' \\",
            "    | awk '{ print $1 }'",
            "",
            "",
        ]
    )
    assert render(templates, text).text == text


def test_the_host_is_out_of_reach(templates: Images) -> None:
    os.environ["STRIX_TEST_LEAK"] = "leak"
    try:
        for text in ("{{ environ }}", "{{ os.environ }}", "{{ env }}", "{{ self.__class__ }}", "{{ ''.__class__ }}"):
            assert fault(templates, text).startswith("T:1: ")
        for text in ("{{ parent.__class__.__mro__ }}", "{{ range.__globals__ }}", "{{ lipsum() }}"):
            assert fault(templates, text).startswith("T:1: ")
        assert fault(templates, "{{ [1, 2] | random }}").startswith("T:1: no filter named 'random'; did you mean ")
    finally:
        del os.environ["STRIX_TEST_LEAK"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("FROM x\n\nRUN {{ parnet }}\n", "T:3: 'parnet' is undefined; did you mean 'parent'?"),
        ("FROM x\nRUN {{ zzz }}", "T:2: 'zzz' is undefined; known: no, parent, vars"),
        (
            "FROM x\nRUN make {{ vars.jbos }}",
            "T:2: there is no 'vars.jbos'; did you mean 'jobs'? A new one goes into [vars] of layer.toml",
        ),
        (
            "FROM x\nRUN make {{ vars['zzz'] }}",
            "T:2: there is no 'vars.zzz'; known: empty, flags, jobs, or define it in [vars]",
        ),
        ("{% if no %}\n{{ a }}\n{% else %}\nx\n{{ b }}\n{% endif %}", "T:5: 'b' is undefined; known: no, parent, vars"),
        ("a\n{% for x in vars.flags %}\n\nx{{ y }}\n{% endfor %}", "T:4: 'y' is undefined; known: no, parent, vars"),
        ("a\n{% if parnet %}\nb\n{% endif %}", "T:2: 'parnet' is undefined; did you mean 'parent'?"),
        ("a\n{% for x in parnet %}\nb\n{% endfor %}", "T:2: 'parnet' is undefined; did you mean 'parent'?"),
        ("a\n{{ parent ~\n  parent ~\n  parnet }}\n", "T:4: 'parnet' is undefined; did you mean 'parent'?"),
        (
            "{% set x = [\n  parent,\n  parnet,\n] %}\n{{ x }}",
            "T:5: a list has no text; join it: | join(' '), or print it with | tojson",
        ),
        (
            "{% macro m() %}\na\n{{ parent }}\n{{ parnet }}\n{% endmacro %}\n\n{{ m() }}",
            "T:4: 'parnet' is undefined; did you mean 'parent'?",
        ),
        ("{% macro m(x) %}\n{{ x }}\n{% endmacro %}\n{{ m() }}", "T:2: parameter 'x' was not provided; give it"),
        ("a\n{% call parnet() %}\n{% endcall %}", "T:2: 'parnet' is undefined; did you mean 'parent'?"),
        (
            "a\n\n{{ 'x' + 1 }}",
            'T:3: the template fails: can only concatenate str (not "int") to str; check the values of this line',
        ),
        (
            "a\n{{ 1 // 0 }}",
            "T:2: the template fails: integer division or modulo by zero; check the values of this line",
        ),
        ("a\n{{ range(10 ** 9) | list }}", "T:2: the template fails: range too big; check the values of this line"),
        (
            "a\n{{ vars.flags.append('x') }}",
            "T:2: access to attribute 'append' of 'list' object is unsafe; check the values of this line",
        ),
        ("\n{% include 'layer:bsae' %}", "T:2: there is no template 'layer:bsae'; did you mean 'layer:base'?"),
        ("\n{% import 'macro.j2' as m %}", "T:2: there is no template 'macro.j2'; did you mean 'macros.j2'?"),
        (
            "\n{% include '../../../etc/passwd' %}",
            "T:2: there is no template '../../../etc/passwd'; known: layer:base, macros.j2",
        ),
        ("\n{% include 'layer:base' %}", "T:2: the template calls or includes itself; end the recursion"),
        (
            "{% macro m() %}\n{{ m() }}{% endmacro %}{{ m() }}",
            "T:2: the template calls or includes itself; end the recursion",
        ),
        ("FROM x\nRUN {{ vars }}", "T:2: a group of values has no text; name one of its values"),
        (
            "FROM x\nRUN {{ vars.flags | map('upper') }}",
            "T:2: a list has no text; join it: | join(' '), or print it with | tojson",
        ),
        ("FROM x\nRUN {{ vars.get('x') }}", "T:2: nothing would be printed here; print a value, or use {% do %}"),
        ("FROM x\nRUN {{ range }}", "T:2: 'range' is a function and has no text; call it: range('…')"),
    ],
)
def test_a_template_that_fails(templates: Images, text: str, sentence: str) -> None:
    assert fault(templates, text) == sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "FROM x\nRUN docker inspect -f '{{.Id}}' x",
            "T:2: unexpected '.'; write a literal {{ as {% raw %}{{{% endraw %}",
        ),
        ("FROM x\n{% if no %}\nRUN x\n\n\n", "T:2: the block 'if' is never closed; add {% endif %}"),
        ("{% for a in b %}\n{% if a %}\n{% endif %}\n", "T:1: the block 'for' is never closed; add {% endfor %}"),
        ("{% set a = 1 %}\n{% set b %}\n{{ a }}\n", "T:2: the block 'set' is never closed; add {% endset %}"),
        (
            "{% block a %}\n{%- block b -%}\n\n{% endblock %}",
            "T:1: the block 'block' is never closed; add {% endblock %}",
        ),
        (
            "a\n{% if no %}\n{% for x in y %}\n{% endif %}",
            "T:4: encountered unknown tag 'endif'; the 'for' of line 3 must be closed first",
        ),
        ("a\n{% endif %}", "T:2: encountered unknown tag 'endif'; it closes nothing"),
        ("a\n{% fi x %}", "T:2: encountered unknown tag 'fi'; did you mean 'if'?"),
        ("a\n{{ parent | uper }}", "T:2: no filter named 'uper'; did you mean 'upper'?"),
        ("a\n{% if parent is defind %}{% endif %}", "T:2: no test named 'defind'; did you mean 'defined'?"),
        ("a\n<# never closed\nb", "T:2: missing end of comment tag; check the tags and brackets of this line"),
        ("a\n{% raw %}\nb", "T:2: missing end of raw directive; check the tags and brackets of this line"),
        ("a\n\n{{ f(x }}", "T:3: unexpected '}', expected ')'; check the tags and brackets of this line"),
        (
            "a\n{% if %}",
            "T:2: expected an expression, got 'end of statement block'; check the tags and brackets of this line",
        ),
    ],
)
def test_a_template_that_is_no_template(templates: Images, text: str, sentence: str) -> None:
    assert fault(templates, text) == sentence


def test_faults_in_macros_have_their_file(templates: Images) -> None:
    templates.write("images/macros.j2", "{% macro m() %}\nx\ny {{ parnet }}\n{% endmacro %}\n")
    text = "FROM x\n{% import 'macros.j2' as m %}\n\n{{ m.m() }}"
    assert fault(templates, text) == "images/macros.j2:3: 'parnet' is undefined; did you mean 'parent'?"
    assert fault(templates, text.replace("m.m()", "m.n()")).startswith("T:4: ")
    templates.write("images/macros.j2", "\n{% macro m( %}")
    assert fault(templates, text).startswith("images/macros.j2:2: expected token 'name'")
    templates.write("images/macros.j2", b"\n\n\xff")
    assert fault(templates, text) == "images/macros.j2:3: the template is not UTF-8; save it as UTF-8"
    (templates.path / "macros.j2").unlink()
    assert fault(templates, text) == (
        "T:2: the template images/macros.j2 cannot be read (no such file or directory); put it there"
    )


def test_faults_in_a_users_template_have_its_file(templates: Images) -> None:
    shipped = "FROM x\n{% block a %}\nRUN a\n{% endblock %}\nRUN {{ parnet }}\n"
    user = '{% extends "layer:base" %}\n{% block a %}\n{{ super() }}\nRUN {{ prent }}\n{% endblock %}\n'
    assert fault(templates, shipped, user=user) == "U:4: 'prent' is undefined; did you mean 'parent'?"
    assert fault(templates, shipped, user=user.replace("prent", "parent")) == (
        "T:5: 'parnet' is undefined; did you mean 'parent'?"
    )
    assert fault(templates, shipped, user="{% extends 'layer:bas' %}") == (
        "U:1: there is no template 'layer:bas'; did you mean 'layer:base'?"
    )
    assert fault(templates, shipped, user="\n{% extends 'user:base' %}") == (
        "U:2: the template calls or includes itself; end the recursion"
    )
    assert fault(templates, shipped, user="\n{% block a %}").startswith("U:2: the block 'block' is never closed")


def test_a_users_template_extends_by_blocks(templates: Images) -> None:
    shipped = "FROM x\n{% block a %}\nRUN a\n{% endblock %}\nRUN z\n"
    user = '{% extends "layer:base" %}\n{% block a %}\n{{ super() }}RUN mine\n{% endblock %}\n'
    rendered = render(templates, shipped, user=user)
    assert rendered.text == "FROM x\nRUN a\nRUN mine\nRUN z\n"
    places = [str(rendered.place(line)).replace(f"{templates.root}/", "") for line in range(1, 5)]
    assert [place.split("/")[0] + ":" + place.split(":")[1] for place in places] == [
        "images:1",
        "images:3",
        "mine:3",
        "images:5",
    ]


PLACES = [
    ("a\nb\nc", [1, 2, 3]),
    ("<# one\ntwo #>\na\n", [3, 3]),
    ("{% if parent %}\na\n{% endif %}\nb\n", [2, 4, 4]),
    ("{% for x in vars.flags %}\na {{ x }}\nb\n{% endfor %}\nc", [2, 3, 2, 3, 5]),
    ("a {%- if parent %}\n\n b\n{%- endif %}\n\nc", [1, 3, 6]),
    ("a \\\n{% for x in vars.flags %}\n  {{ x }} \\\n{% endfor %}\n  b\nc", [1, 3, 3, 5, 6]),
    ("{% macro m(x) %}\nRUN a \\\n  {{ x }}\n{% endmacro %}\nFROM\n{{ m(1) }}RUN b\n", [5, 2, 3, 6, 6]),
    ("{{ parent }}\n{{ parent }}\n{{ 'a\n\nb' }}\nc", [1, 2, 3, 3, 3, 6]),
    ("a {{\n  parent\n}}\nb\n", [1, 4, 4]),
    ("{% raw %}\n{{ a }}\n{% b %}\n{% endraw %}\nc", [1, 2, 3, 5]),
    ("{% set x %}\na\nb\n{% endset %}\nc\n{{ x }}d\n", [5, 2, 3, 6, 6]),
    ("{%- set x = [\n  'a',\n] -%}\n\n\nFROM x\n\tRUN {{ x[0] }}\n", [6, 7, 7]),
    ("{{ '}}' ~\n parent }} x\nb", [1, 3]),
    ("{{ {'a': {'b': parent}}['a']['b']\n}}\nb", [1, 3]),
    ("RUN x {% if parent %}\ny{% endif %}\nz\n", [1, 1]),
]


@pytest.mark.parametrize(("text", "lines"), PLACES)
def test_places(templates: Images, text: str, lines: list[int]) -> None:
    rendered = render(templates, text)
    count = rendered.text.count("\n") + 1
    assert [rendered.place(line).line for line in range(1, count + 1)] == lines


def test_places_where_marks_would_change_the_text(templates: Images) -> None:
    # a value that was captured from text is measured, compared and rewritten: the text must be the plain one
    text = (
        "{% set n %}\n5\n{% endset %}\nFROM x\nRUN {{ n | int + 1 }} {{ n | length }} {{ n | tojson }}\n"
        "{% if n == '5\n' %}\nRUN same\n{% endif %}\n{{ n | trim | replace('5', 'RUN five') }}\n"
    )
    rendered = render(templates, text)
    assert rendered.text == 'FROM x\nRUN 6 2 "5\\n"\nRUN same\nRUN five\n'
    assert [rendered.place(line).line for line in (1, 2)] == [4, 4]


def test_a_place_where_only_the_marked_text_fails(templates: Images) -> None:
    rendered = render(templates, "{% set n %}\n5\n{% endset %}\nFROM x\nRUN {{ 10 // (n | int) }}\n")
    assert rendered.text == "FROM x\nRUN 2\n"
    assert rendered.place(2).line == 1


# the marked rendering, with its marks taken out, is the rendering of an environment that knows nothing of marks

SETTINGS = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
tag = st.sampled_from(["{%", "{%-", "{%+"])
end = st.sampled_from(["%}", "-%}", "+%}"])
text_piece = st.text("ab \t\n\\#$'\"<>[]()&{}%", max_size=8).filter(
    lambda text: not any(mark in text for mark in ("{{", "{%", "<#", "#>", "}}", "%}", "{\n"))
)
expression = (
    st.sampled_from(["{{ p }}", "{{- p }}", "{{ p -}}", "{{\n p\n}}", "{{ '\n' }}", "{{ '}}' }}", "{{ '' }}"])
    | st.sampled_from(["{{ m(p) }}", "{{ q }}", "{{ {'a': {'b': 1}}.a.b }}", "{{ f ~\n p }}"])
    | st.sampled_from(["<# c #>", "<#- c\n -#>", "{% raw %}\n {{ a {% endraw %}\n"])
)


@st.composite
def bodies(draw: st.DrawFn, depth: int = 2) -> str:
    pieces = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "text", "expression"] + (["if", "for", "set"] if depth else [])))
        if kind == "text":
            piece = draw(text_piece)
            # a brace before a tag would make another tag of it
            pieces.append(piece + ("x" if piece.endswith(("{", "<")) else ""))
        elif kind == "expression":
            pieces.append(draw(expression))
        else:
            inner = draw(bodies(depth - 1))
            opening = {"if": "if p", "for": "for x in two", "set": "set s"}[kind]
            opener, closer = (draw(tag), draw(end)), (draw(tag), draw(end))
            piece = f"{opener[0]} {opening} {opener[1]}{inner}{closer[0]} end{kind} {closer[1]}"
            pieces.append(piece + ("{{ s }}" if kind == "set" else ""))
    return "".join(pieces)


@given(bodies())
@example("a\n  {% if p %}  \n b {% endif %}  \n")
@example("{%+ if p %}\n\n{%- endif -%}\n\n x")
def test_marks_change_nothing(body: str) -> None:
    text = "{% macro m(x) %}\n [{{ x }}\n]{% endmacro %}\n" + body
    values = {"p": "P", "q": "line\nline", "f": 1.5, "two": [1, 2]}
    loader = DictLoader({"t": text})
    plain = jinja2.Environment(
        loader=loader, undefined=StrictUndefined, comment_start_string="<#", comment_end_string="#>", **SETTINGS
    )
    expected = plain.get_template("t").render(values)
    assert make_environment(loader).get_template("t").render(values) == expected
    marked = make_environment(loader, [MarkLines])
    marked.extend(marked_files=lambda name: 0)
    unmarked, places = unmark(marked.get_template("t").render(values), [Path("t")])
    assert unmarked == expected
    source = text.split("\n")
    for line, place in zip(expected.split("\n"), places, strict=True):
        # what stands first on a line, if it is plain text, stands on the template's line as well
        if place is not None and line.lstrip(" \t")[:1] in ("[", "]"):
            assert place.line is not None
            assert line.lstrip(" \t")[0] in source[place.line - 1]
