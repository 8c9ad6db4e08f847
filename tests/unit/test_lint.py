"""What may not stand in a rendered Dockerfile, with its line; and legitimate shell raises no alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strix_finetune.dockerfile import heredocs, instructions, words
from strix_finetune.errors import Place
from strix_finetune.lint import BANNED_ENV, lint
from strix_finetune.templates import Rendered

PARENT = "localhost/strix-finetune/base:gfx1151-0123456789ab"


def check(text: str) -> list[str]:
    places = [Place(Path("T"), number) for number in range(1, text.count("\n") + 2)]
    return [str(problem) for problem in lint(Rendered(text, lambda: places))]


def messages(text: str) -> list[str]:
    """Faults of `text` below a good FROM: the line (FROM is line 1) and the sentence without its cure."""
    return [fault.split("; ")[0].removeprefix("T:") for fault in check(f"FROM {PARENT}\n{text}")]


SUBSET = "is not in the subset of both engines"
SECRET = "secrets in a build end up in somebody's layer"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("ENTRYPOINT train", ["2: ENTRYPOINT breaks Toolbx"]),
        ("entrypoint train", ["2: ENTRYPOINT breaks Toolbx"]),
        ("ENTRYPOINT\ttrain", ["2: ENTRYPOINT breaks Toolbx"]),
        ("ONBUILD ENTRYPOINT x", ["2: ENTRYPOINT breaks Toolbx"]),
        ("COPY --link a /b", [f"2: COPY --link {SUBSET}"]),
        ("COPY --chown=1:1 --link=true a /b", [f"2: COPY --link {SUBSET}"]),
        ("COPY --parents --exclude=*.pyc a /b", [f"2: COPY --parents {SUBSET}", f"2: COPY --exclude {SUBSET}"]),
        ("ADD --checksum=sha256:1 a /b", [f"2: ADD --checksum {SUBSET}"]),
        ("ADD --keep-git-dir=true a /b", [f"2: ADD --keep-git-dir {SUBSET}"]),
        ("ADD https://example.org/x /b", ["2: ADD from the network reads what the lock does not name"]),
        ("ADD HTTP://example.org/x /b", ["2: ADD from the network reads what the lock does not name"]),
        ('ADD ["ftp://example.org/x", "/b"]', ["2: ADD from the network reads what the lock does not name"]),
        ('ADD "git@example.org:x.git" /b', ["2: ADD from the network reads what the lock does not name"]),
        ("RUN --mount=type=secret,id=x y", [f"2: {SECRET}"]),
        ("RUN --mount=type=cache,target=/c --mount=id=x,type=ssh y", [f"2: {SECRET}"]),
        ("RUN \\\n  --mount=type=bind,source=a,target=/a \\\n  --mount=type=SECRET,id=x \\\n  y", [f"4: {SECRET}"]),
        ("RUN --mount=type=devices,target=/d y", [f"2: a mount of type 'devices' {SUBSET}"]),
        ("RUN --network=none y", [f"2: RUN --network {SUBSET}"]),
        ("RUN --security=insecure y", [f"2: RUN --security {SUBSET}"]),
        ("RUN cat <<EOF > /x\nhello\nENTRYPOINT no\nEOF\nRUN b", [f"2: a heredoc {SUBSET}"]),
        ("RUN cat <<-'EOF'\n\thello\n\tEOF\nRUN b", [f"2: a heredoc {SUBSET}"]),
        ('RUN cat <<"E F" x\nE F\n', [f"2: a heredoc {SUBSET}"]),
        ("RUN a && \\\n  b << EOF\nEOF", [f"3: a heredoc {SUBSET}"]),
        ("RUN echo 'a' && cat 3<<EOF\nEOF", [f"2: a heredoc {SUBSET}"]),
        ("COPY <<EOF /x\nhello\nEOF", [f"2: a heredoc {SUBSET}"]),
        ("FROM", ["2: FROM has nothing after it"]),
        ("FROM ", ["2: FROM has nothing after it"]),
        ("FROM AS devel", ["2: FROM names no image"]),
        ("FROM --platform=linux/amd64", ["2: FROM names no image"]),
        ("FROM debian:sid", ["2: the lock does not name the image 'debian:sid'"]),
        ("FROM debian:sid AS x", ["2: the lock does not name the image 'debian:sid'"]),
        (f"FROM {PARENT[:-13]}", [f"2: the lock does not name the image '{PARENT[:-13]}'"]),
        ("FROM $BASE", ["2: the lock does not name the image '$BASE'"]),
        ("COPY --from=alpine /a /b", ["2: the lock does not name the image 'alpine'"]),
        ("COPY --from=1 /a /b", ["2: the lock does not name the image '1'"]),
        ("RUN --mount=from=alpine,target=/a b", ["2: the lock does not name the image 'alpine'"]),
        ("COPY", ["2: COPY has nothing after it"]),
        ("COPY  /r.txt", ["2: COPY needs a source and a destination, and has '/r.txt'"]),
        ("RUN", ["2: RUN has nothing after it"]),
        ("RUN \\\n\n", ["2: RUN has nothing after it"]),
        ("RUNN x", ["2: 'RUNN' is not a Dockerfile instruction"]),
        ("RUN a &&\n  b \\\n  c", ["3: 'B' is not a Dockerfile instruction"]),
        ("ENV HF_TOKEN=x", ["2: ENV HF_TOKEN holds a secret"]),
        ("ARG HF_TOKEN", ["2: ARG HF_TOKEN holds a secret"]),
        ("ENV A=1 \\\n  DB_PASSWORD=x", ["3: ENV DB_PASSWORD holds a secret"]),
        ("ENV WANDB_API_KEY x", ["2: ENV WANDB_API_KEY holds a secret"]),
        *((f"ENV {name}=1", [f"2: ENV {name} must not be baked into an image"]) for name in BANNED_ENV),
        ("ENV A=1 \\\n    LD_PRELOAD=/x.so", ["3: ENV LD_PRELOAD must not be baked into an image"]),
        ("ENV HIP_VISIBLE_DEVICES 0", ["2: ENV HIP_VISIBLE_DEVICES must not be baked into an image"]),
    ],
)  # fmt: skip
def test_what_is_forbidden(text: str, faults: list[str]) -> None:
    assert messages(text) == faults


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("RUN pip install torch==", ["2: 'torch==' has nothing after it"]),
        ("RUN pip install torch== trl==1.0", ["2: 'torch==' has nothing after it"]),
        ('RUN pip install "torch=="', ["2: 'torch==' has nothing after it"]),
        ("RUN pip install 'torch[a,b]>=' && x", ["2: 'torch[a,b]>=' has nothing after it"]),
        ("RUN pip install \\\n  trl==1.0 \\\n  'torch>=2,<3,!='", ["4: 'torch>=2,<3,!=' has nothing after it"]),
        ("RUN set -e; \\\n  if true; then uv pip install peft~=; fi", ["3: 'peft~=' has nothing after it"]),
        ("RUN X=1 pip install 'torch == '", ["2: 'torch ==' has nothing after it"]),
        ("RUN sh -c 'pip install torch== x'", ["2: 'torch==' has nothing after it"]),
        ('RUN ["pip", "install", "torch=="]', ["2: 'torch==' has nothing after it"]),
        ("RUN echo torch== > requirements.txt", ["2: 'torch==' has nothing after it"]),
        ("RUN uv run --with=torch== x", ["2: 'torch==' has nothing after it"]),
        ("ENV SPEC=torch==", ["2: 'torch==' has nothing after it"]),
        ("ARG SPEC='torch>='", ["2: 'torch>=' has nothing after it"]),
        ("ENV SPEC torch==", ["2: 'torch==' has nothing after it"]),
    ],
)
def test_a_version_that_is_empty(text: str, faults: list[str]) -> None:
    assert messages(text) == faults


@pytest.mark.parametrize(
    "text",
    [
        "RUN [ \"$a\" == \"\" ] || [ x == y ] && test \"$b\" == ''",
        'RUN [[ $a == "" && $b != x ]]; [ "$x" = "" ]',
        "RUN cat <<<x; cat <<< \"$a\"",
        "RUN echo $((1<<2)) $(( a << b )) \"$((x<<y))\"; (( n <<= 1 ))",
        "RUN dpkg --compare-versions 1.0 '>=' 2.0 && dpkg --compare-versions \"$v\" ge 3",
        "RUN python3 -c 'x = 1 << n; print(x == \"\")'",
        "RUN python3 -c \"import torch; assert torch.__version__>='2', torch.__version__=='x'\"",
        "RUN sed -i -e 's/torch==/torch>=/' -e '/^x<<EOF/d' f; sed s/a==/b==/ f",
        "RUN grep -q 'torch==' f && ! grep -v torch== f | awk '$1==\"\" { print }'",
        "RUN awk '{ if (name==\"\") print name<<2 }' f",
        "RUN case $a in x==) b ;; esac",
        "RUN FOO= BAR='' make; export X=; : ${A:=b} ${a#x} ${#a[@]}",
        "RUN make CFLAGS= LDFLAGS==x",
        "RUN --mount=type=cache,target=/c,sharing=locked \\\n    --mount=type=bind,source=files,target=/m,rw apt x",
        "RUN --mount=type=tmpfs,target=/t --mount=target=/x ls",
        "RUN podman run --network=none --security=x --mount=type=secret,id=a y",
        "RUN curl --link https://example.org/x; echo ADD https://example.org",
        "RUN a \\\n# a comment of the Dockerfile\n\n  && b",
        "RUN a \\  \n  b",
        "# syntax is described elsewhere\nRUN a",
        "RUN a # don't mind <<this, it is a comment of the shell",
        "RUN echo 'it''s <<EOF' \"<<EOF\" \\<\\<EOF",
        "RUN printf '%s\\n' 'FROM x' 'ENTRYPOINT y' > /f",
        'COPY ["a b", "/c"]',
        "COPY --chown=0:0 --chmod=755 --from=0 a b /c/",
        "ADD inputs/rootfs.tar /",
        "ADD --chown=1:1 a.tar /",
        "ENV NOTE=\"LD_PRELOAD =x, HF_TOKEN=y\" HIP=1 MY_LD_PRELOAD=1",
        "ENV TOKENIZERS_PARALLELISM=false MAX_TOKENS=1 PASSWORDLESS=1",
        "ENV A=b=c X=",
        "RUN LD_PRELOAD=/x.so HIP_VISIBLE_DEVICES=0 y; export HF_TOKEN=",
        "LABEL a=\"b c\" d=e",
        "HEALTHCHECK --interval=5s CMD true",
        'CMD ["train", "--help"]',
        "CMD []",
        'SHELL ["/bin/bash", "-c"]',
        f"FROM {PARENT} AS dev\nRUN a\nFROM scratch\nCOPY --from=DEV /a /b\nRUN --mount=from=dev,target=/x y\nFROM dev",
        f"FROM registry.example:5000/debian@sha256:{'a' * 64} as x",
        "FROM --platform=linux/amd64 scratch",
        "RUN x=\\\n1",
        "WORKDIR /",
        "ARG VERSION",
        "RUN 'unclosed",
        "RUN a <'x'<b <\"<EOF\"",
        "RUN $(cat <(echo a)) `b` {a,b}",
    ],
)  # fmt: skip
def test_what_is_allowed(text: str) -> None:
    assert messages(text) == []


@pytest.mark.parametrize("line", ["# syntax=docker/dockerfile:1", "#Syntax = x", "  # escape=`", "# check=skip=all"])
def test_parser_directives(line: str) -> None:
    sentence = "a parser directive is not in the subset of both engines; remove it"
    assert check(f"{line}\nFROM scratch\n") == [f"T:1: {sentence}"]
    assert check(f"\n# a comment\n{line}\nFROM scratch\n") == [f"T:3: {sentence}"]
    assert check(f"FROM scratch\n{line}\nRUN a\n") == []


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "RUN a\n"])
def test_no_from(text: str) -> None:
    assert check(text) == ["T:1: the Dockerfile has no FROM; begin with FROM {{ parent }}"]


def test_every_fault_has_a_cure() -> None:
    text = "FROM\nFOO\nENTRYPOINT x\nADD http://a b\nRUN a <<E\nE\nRUN pip install a==\nENV LD_PRELOAD=1\nCOPY x\n"
    faults = check(text)
    assert [fault.split(": ")[0] for fault in faults] == [f"T:{n}" for n in (1, 2, 3, 4, 5, 7, 8, 9)]
    assert all(fault.split("; ")[1] for fault in faults)


def test_instructions_know_their_lines() -> None:
    text = "FROM a\n\n# x\nRUN b \\\n  # inside\n  c \\\n\n  d\r\nCMD e \\\n"
    found = list(instructions(text))
    assert [(item.keyword, item.line, " ".join(item.body.split())) for item in found] == [
        ("FROM", 1, "a"),
        ("RUN", 4, "b c d"),
        ("CMD", 9, "e"),
    ]
    run = found[1]
    assert [run.line_at(run.body.index(letter)) for letter in "bcd"] == [4, 6, 8]


def test_a_heredoc_hides_its_text_only() -> None:
    text = "RUN a <<X <<-Y\nRUN no\nX\n\tRUN no\n\tY\nRUN b\nRUN c <<NEVER\nRUN d\n"
    found = list(instructions(text))
    assert [item.body.split()[0] for item in found] == ["a", "b", "c", "d"]
    assert heredocs(found[0]) == ["X", "Y"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a 'b c' \"d e\"f g\\ h", ["a", "b c", "d ef", "g h"]),
        ("a&&b||c;d|e", ["a", "&", "&", "b", "|", "|", "c", ";", "d", "|", "e"]),
        ('"a\\"b" \'a\\\' "$(x \'y\')"', ['a"b', "a\\", "$(x 'y')"]),
        ("x${a b}y $((1 + 2))z", ["x${a b}y", "$((1 + 2))z"]),
        ("a # b c", ["a"]),
        ("a#b", ["a#b"]),
    ],
)
def test_words(body: str, expected: list[str]) -> None:
    assert [word.text for word in words(body)] == expected


@example("<';'<")
@given(st.text("ab \t\n\\'\"#$(){}<>=-;&|[]`,EOFRUNCPY", max_size=80))
def test_any_text_is_checked(text: str) -> None:
    for prefix in ("", "FROM scratch\n", "FROM scratch\nRUN ", "FROM scratch\nCOPY ", "FROM scratch\nENV "):
        for fault in check(prefix + text):
            assert fault.startswith("T:")


@given(st.lists(st.sampled_from(["a", "b c", "it's", 'say "x"', "<<EOF", "x;y", "$z", "#c", "torch==1"]), max_size=5))
def test_quoting_as_the_standard_library_does(items: list[str]) -> None:
    import shlex

    assert [word.text for word in words(shlex.join(items))] == items
