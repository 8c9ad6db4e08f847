"""The build context: what may be part of it, and the bytes of its archive."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune.context import digest, layer_files, tar, tree
from strix_finetune.errors import DefinitionError, WorkError
from strix_finetune.model import ContextFile
from tests.conftest import Images


def fault(images: Images) -> str:
    with pytest.raises(DefinitionError) as caught:
        layer_files(images.stack().node("app"), images.folders)
    (only,) = images.faults(caught.value)
    return only


def paths(images: Images) -> list[str]:
    return [file.path for file in layer_files(images.stack().node("app"), images.folders)]


@pytest.fixture
def app(images: Images) -> Images:
    images.layer("app", 'final = true\ncontext = { packages = ["strix_train"], data = ["recipes"], max_mb = 2 }\n')
    images.write("python/strix_train/__init__.py", "")
    images.write("recipes/demo.yaml", "a: 1\n")
    return images


def test_what_is_in_it(app: Images) -> None:
    app.write("images/app/files/etc/b", "b")
    app.write("images/app/files/a.sh", "a", executable=True)
    for name in ("x.pyc", "x~", ".x.swp", "__pycache__/y.py", ".git/config", ".DS_Store"):
        app.write(f"images/app/files/{name}", "no")
        app.write(f"python/strix_train/{name}", "no")
    files = layer_files(app.stack().node("app"), app.folders)
    assert [(file.path, file.executable) for file in files] == [
        ("data/recipes/demo.yaml", False),
        ("files/a.sh", True),
        ("files/etc/b", False),
        ("python/strix_train/__init__.py", False),
    ]


def test_a_huge_file_is_refused_without_being_read(app: Images) -> None:
    huge = app.write("images/app/files/model.bin", "")
    with huge.open("wb") as stream:
        stream.truncate(10**13)
    app.write("images/app/files/small", "x" * 1000)
    assert fault(app) == (
        "images/app/layer.toml:4: the build context would hold 10000000 MB and may hold 2 MB; the largest file is "
        "files/model.bin with 10000000 MB; remove the file, or raise [context] max_mb"
    )


def test_many_files_count_together(app: Images) -> None:
    for number in range(5):
        app.write(f"images/app/files/{number}", b"x" * 500_000)
    assert fault(app).startswith("images/app/layer.toml:4: the build context would hold 3 MB and may hold 2 MB")


def test_pipes_and_sockets(app: Images) -> None:
    os.makedirs(app.path / "app/files/run")  # noqa: PTH103
    pipe = app.path / "app/files/run/pipe"
    os.mkfifo(pipe)
    folder = "images/app/files"
    assert fault(app) == (
        f"{folder}/run/pipe: only regular files can be part of a layer; remove it from images/app/files"
    )
    pipe.unlink()
    # the name of a socket may be short only
    here = Path.cwd()
    os.chdir(pipe.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("s")
    finally:
        os.chdir(here)
    assert fault(app).startswith(f"{folder}/run/s: only regular files can be part of a layer")


def test_links(app: Images) -> None:
    target = app.write("images/app/files/target", "t")
    link = app.path / "app/files/link"
    link.symlink_to("target")
    assert "files/link" in paths(app)
    target.unlink()
    assert fault(app) == "images/app/files/link: the link leads nowhere; remove it"
    link.unlink()
    link.symlink_to("/etc/hostname")
    assert fault(app) == "images/app/files/link: the link leads out of its folder; copy the file instead"
    link.unlink()
    link.symlink_to(app.write("images/app/secret", "s"))
    assert fault(app) == "images/app/files/link: the link leads out of its folder; copy the file instead"
    link.unlink()
    app.write("images/app/files/real/x", "x")
    link.symlink_to("real")
    assert fault(app) == "images/app/files/link: a link to a folder cannot be part of a layer; copy it"


def test_a_folder_that_a_layer_needs_must_be_there(app: Images) -> None:
    (app.root / "python/strix_train/__init__.py").unlink()
    (app.root / "python/strix_train").rmdir()
    assert fault(app) == "python/strix_train: the folder cannot be read (no such file or directory)"


def test_names_of_all_kinds(app: Images) -> None:
    names = ["a b", "new\nline", "é", "x" * 200, "d" * 90 + "/" + "e" * 90 + "/" + "f" * 90, "-x", "#", "ünï/çøde"]
    for name in names:
        app.write(f"images/app/files/{name}", name)
    raw = os.fsencode(app.path / "app/files") + b"/\xff\xfe"
    with open(raw, "wb") as stream:  # noqa: PTH123
        stream.write(b"raw")
    files = [file for file in layer_files(app.stack().node("app"), app.folders) if file.path.startswith("files/")]
    with tarfile.open(fileobj=io.BytesIO(b"".join(tar(files)))) as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert found == {f"files/{name}": name.encode() for name in names} | {os.fsdecode(b"files/\xff\xfe"): b"raw"}


names = st.lists(st.text("abcé .-_", min_size=1, max_size=120).filter(lambda name: name not in (".", "..")), min_size=1)
context_files = st.lists(
    st.builds(
        ContextFile,
        names.map("/".join),
        st.binary(max_size=2000),
        executable=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda file: file.path,
)


@given(context_files)
def test_the_archive_is_what_tarfile_reads_back(files: list[ContextFile]) -> None:
    with tarfile.open(fileobj=io.BytesIO(b"".join(tar(files))), mode="r:") as archive:
        members = archive.getmembers()
        contents = [archive.extractfile(member).read() for member in members]  # type: ignore[union-attr]
    # a path of folders only in name ("a//b", "a/.") is normalised by nobody
    assert [(member.name, member.mode) for member in members] == [
        (file.path, 0o755 if file.executable else 0o644) for file in files
    ]
    assert contents == [file.source for file in files]
    assert all(
        (member.uid, member.gid, member.uname, member.gname, member.mtime) == (0, 0, "", "", 0) and member.isreg()
        for member in members
    )


@given(st.permutations(["a", "b/c", "b/d", "e"]), st.integers(0, 2**31), st.sampled_from([0o000, 0o022, 0o077]))
def test_the_same_bytes_whatever_the_disk_says(
    tmp_path_factory: pytest.TempPathFactory, order: list[str], time: int, mask: int
) -> None:
    root = tmp_path_factory.mktemp("tree")
    old = os.umask(mask)
    try:
        for name in order:
            path = root / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(name)
            if name == "b/c":
                # what git checks out under this umask
                path.chmod(0o777 & ~mask)
            os.utime(path, (time, time))
    finally:
        os.umask(old)
    expected = [ContextFile(f"p/{name}", name.encode(), name == "b/c") for name in ("a", "b/c", "b/d", "e")]
    found = sorted(tree(root, "p"), key=lambda file: file.path)
    assert b"".join(tar(found)) == b"".join(tar(expected))


def test_a_file_larger_than_the_reading_window(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(3 * 2**20 + 5))
    pieces = list(tar([ContextFile("big", big)]))
    assert all(pieces), "an empty piece would end a chunked upload"
    assert max(map(len, pieces)) <= 2**20
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        assert archive.extractfile("big").read() == big.read_bytes()  # type: ignore[union-attr]


def test_a_file_that_changes_while_it_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a" * (3 << 20))
    shrinking = tar([ContextFile("files/x", path)])
    next(shrinking)
    next(shrinking)
    path.write_bytes(b"a")
    with pytest.raises(WorkError, match="files/x changed while its layer was built; build again"):
        list(shrinking)

    path.write_bytes(b"abc")
    growing = tar([ContextFile("files/x", path)])
    next(growing)
    path.write_bytes(b"abc" * (1 << 20))
    assert b"".join(growing) == b"abc" + b"\0" * 509 + b"\0" * 1024


def test_a_file_is_what_its_key_says_or_nothing_is_built(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("one")
    file = ContextFile("files/x", path)
    keyed = ContextFile("files/x", path, digest=digest(file))
    assert b"".join(tar([keyed])) == b"".join(tar([file]))
    path.write_text("two")
    with pytest.raises(WorkError) as caught:
        list(tar([keyed]))
    assert str(caught.value) == f"{path}: files/x changed while its layer was built; build again"
