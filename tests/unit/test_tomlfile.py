"""A fault in a TOML file is one sentence with its line and, where there is one, the nearest right word."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from strix_finetune import tomlfile
from strix_finetune.errors import Problem
from strix_finetune.schema import ChannelFile, LayerFile, OverrideFile, TargetsFile

HEAD = 'name = "a"\ndescription = "d"\n'


def read(path: Path, content: str | bytes, model: type[BaseModel] = LayerFile) -> list[str]:
    """The faults, each without the folder of the file."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    problems: list[Problem] = []
    found = tomlfile.read(path, model, problems)
    assert (found is None) == bool(problems), "a fault and a value exclude each other"
    return [str(problem).replace(f"{path.parent}/", "") for problem in problems]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (HEAD + 'parnet = ["x"]', ["f.toml:3: unknown key 'parnet'; did you mean 'parent'?"]),
        (HEAD + "[context]\n\nmaxmb = 3", ["f.toml:5: unknown key 'context.maxmb'; did you mean 'max_mb'?"]),
        # a required key that is mistyped is said once
        (HEAD + "[patches]\nserie = 'x'", ["f.toml:4: unknown key 'patches.serie'; did you mean 'series'?"]),
        (
            HEAD + '[[smoke]]\nfile = "../x"\nknid = "static"\n[[smoke]]\nkind = "stati"\n',
            [
                "f.toml:4: 'smoke.0.file' must be a path below this folder, without '..'",
                "f.toml:5: unknown key 'smoke.0.knid'; did you mean 'kind'?",
                "f.toml:6: the key 'smoke.1.file' is missing; add it",
                "f.toml:7: 'smoke.1.kind' cannot be 'stati'; did you mean 'static'?",
            ],
        ),
        (
            'name = 3\nparent = "x"\nfinal = "yes"\nvars = 3\nbudget_mb = 1.5\n',
            [
                "f.toml:1: 'name' must be a string",
                "f.toml:1: the key 'description' is missing; add it",
                "f.toml:2: 'parent' must be a list",
                "f.toml:3: 'final' must be true or false",
                "f.toml:4: 'vars' must be a table",
                "f.toml:5: 'budget_mb' must be a whole number",
            ],
        ),
        (
            HEAD + "[vars]\nint = 1.5\nx = [\n1,\n2]\n'a.b' = { c = 1 }\nd = 1979-05-27\n",
            [
                f"f.toml:{line}: 'vars.{name}' must be a string, a whole number, true or false, or a list of strings"
                for line, name in ((4, "int"), (5, "x"), (8, "a.b"), (9, "d"))
            ],
        ),
        (
            HEAD + 'packages = { "A b" = ["x"], c = ["X Y", "z"] }\n',
            [
                "f.toml:3: 'packages.A b' may hold lower-case letters, digits and '.', '_', '-' between them",
                "f.toml:3: 'packages.c.0' must be the name of a Debian package",
            ],
        ),
        (
            HEAD + "[archives.r]\nurl = ''\nsha256 = 'A'\nsize = 0\n[pip.s]\nrequirements = []\n",
            [
                "f.toml:4: 'archives.r.url' must not be empty",
                "f.toml:5: 'archives.r.sha256' must be the 64 lower-case digits of a sha256",
                "f.toml:6: 'archives.r.size': input should be greater than 0",
                "f.toml:8: 'pip.s.requirements' must not be empty",
            ],
        ),
        (HEAD + "\nx = [[", ["f.toml:4: not valid TOML: invalid value"]),
        (HEAD + "x = 1\nx = 2", ["f.toml:4: not valid TOML: cannot overwrite a value"]),
        (HEAD + "x = '''\n\n", ["f.toml:5: not valid TOML: expected \"'''\""]),
        (HEAD + f"\nx = {'[' * 5000}", ["f.toml:4: not valid TOML: it is nested too deeply"]),
        (HEAD + f"\nx = {'9' * 5000}", ["f.toml:4: not valid TOML: a number has too many digits"]),
        ("\ufeff" + HEAD, ["f.toml:1: not valid TOML: invalid statement; save it without a byte order mark"]),
        (HEAD.encode() + b"# \xe9t\xe9", ["f.toml:3: the file is not UTF-8; save it as UTF-8"]),
    ],
)
def test_faults_of_a_layer_file(tmp_path: Path, text: str | bytes, faults: list[str]) -> None:
    assert sorted(read(tmp_path / "f.toml", text)) == sorted(faults)


def test_faults_of_the_other_files(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    targets = 'default = "a"\n[target.x]\nknd = "gpu"\n[target."Bad Name"]\nkind = "gpu"\nwave_size = 33\n'
    assert read(path, targets, TargetsFile) == [
        "f.toml:3: unknown key 'target.x.knd'; did you mean 'kind'?",
        "f.toml:4: 'target.Bad Name' may hold lower-case letters, digits and '.', '_', '-' between them",
        "f.toml:6: 'target.Bad Name.wave_size': input should be 0, 32 or 64",
    ]
    override = '[layers.a.packages.x]\nappnd = ["x"]\n[layers.a.requirement.x]\n'
    assert read(path, override, OverrideFile) == [
        "f.toml:2: unknown key 'layers.a.packages.x.appnd'; did you mean 'append'?",
        "f.toml:3: unknown key 'layers.a.requirement'; did you mean 'requirements'?",
    ]
    channel = 'name = "c"\ndescription = "d"\npython = "2.7"\nbootstrap.source = "mmdebootstrap"\napt.suite = "sid"\n'
    assert read(path, channel, ChannelFile) == [
        "f.toml:3: 'python': string should match pattern '^3\\.\\d+$'",
        "f.toml:4: 'bootstrap.source' cannot be 'mmdebootstrap'; did you mean 'mmdebstrap'?",
    ]


def test_what_is_no_file_to_read_is_said_and_never_waited_for(tmp_path: Path) -> None:
    pipe, folder, bound, large = (tmp_path / name for name in ("pipe", "folder", "bound", "large"))
    os.mkfifo(pipe)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(bound))
    with large.open("wb") as stream:
        stream.truncate(10 * 10**9)
    problems: list[Problem] = []
    for path in (pipe, folder, bound, tmp_path / "missing", large):
        assert tomlfile.read(path, LayerFile, problems) is None
    assert [str(problem).replace(f"{tmp_path}/", "") for problem in problems] == [
        "pipe: this is no regular file; put a text file here",
        "folder: this is no regular file; put a text file here",
        "bound: this is no regular file; put a text file here",
        "missing: the file is missing; create it",
        "large: the file has 10000 MB, which no definition needs; is it the right one?",
    ]


def test_a_variable_may_be_called_like_a_type(tmp_path: Path) -> None:
    assert read(tmp_path / "f.toml", HEAD + "[vars]\nstr = 'x'\nint = 1\nbool = true\nlist = ['x']\n") == []


words = st.sampled_from(
    [
        "name",
        "description",
        "parent",
        "vars",
        "pip",
        "smoke",
        "file",
        "requirements",
        "archives",
        '"a"',
        "'../b'",
        '"a\\nb"',
    ]
) | st.sampled_from(["=", "[", "]", "{", "}", "[[", "]]", ",", ".", "1", "1.5", "true", "\n", "#", "é", "\x00", '"""'])


@given(st.binary(max_size=60) | st.lists(words, max_size=25).map(lambda parts: " ".join(parts).encode()))
@example(b"[name]\n[name.name]")
@example(b'"a\\nb" = 1\n[vars]\n"\\u0007" = 1.5')
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    for model in (LayerFile, OverrideFile, ChannelFile, TargetsFile):
        for fault in read(path, content, model):
            assert fault.startswith("any.toml:"), "every fault has a line"
            assert "\n" not in fault
