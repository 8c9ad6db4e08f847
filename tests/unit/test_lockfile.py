"""The lock's files: what is written is what is read, and damage is one sentence with a line."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune import lockfile
from strix_finetune.errors import LockError
from strix_finetune.lockmodel import (
    AptLock,
    AptPackage,
    ArchiveLock,
    Lock,
    PipLock,
    Release,
    WheelLock,
    WheelSetLock,
    normalize,
    requirements,
)

A, B = "a" * 64, "b" * 64
TEXT = f"""\
accelerate==1.15.0 \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
typing-extensions==4.16.0 \\
    --hash=sha256:{B}
"""
LOCK = Lock(
    "debian",
    "gfx1151",
    AptLock(
        "sid",
        {"sid": Release("2026-10-30T08:08:01Z", A)},
        {"python3-torch": AptPackage("2.14.1+dfsg-1", 13013888, B), "libstdc++6": AptPackage("1:16.2-1~b1", 7, A)},
    ),
    {"unsloth": PipLock("3.14", TEXT, A)},
    images={"registry.example:5000/debian:sid-slim": f"sha256:{A}"},
    archives={"rccl": ArchiveLock("https://example.org/rccl.tar.gz", B, 12)},
)
INDEX = "https://stable.example/whl"
WHEELS = WheelSetLock(
    "3.13",
    "amd",
    "2026-11-30T04:00:00Z",
    A,
    (
        WheelLock("rocm", "10.0.0", f"{INDEX}/rocm/rocm-10.0.0.tar.gz", A, 24780),
        WheelLock("torch", "2.13.0+rocm10", f"{INDEX}/torch/torch-2.13.0%2Brocm10-cp313-cp313-linux_x86_64.whl", B),
    ),
)
WITH_WHEELS = replace(LOCK, wheels={"torch": WHEELS})


def hashed(names: list[str]) -> str:
    return "".join(f"{name}==1.{i} \\\n    --hash=sha256:{i:064x}\n" for i, name in enumerate(sorted(names)))


names = st.from_regex(lockfile._NAME, fullmatch=True)
sha256s = st.binary(min_size=1, max_size=8).map(lambda data: hashlib.sha256(data).hexdigest())
sizes = st.integers(min_value=1, max_value=2**60)
dates = st.datetimes().map(lambda date: f"{date.replace(microsecond=0).isoformat()}Z")
packages = st.dictionaries(
    st.from_regex(lockfile._PACKAGE, fullmatch=True),
    st.builds(AptPackage, st.from_regex(lockfile._DEBIAN_VERSION, fullmatch=True), sizes, sha256s),
    max_size=5,
)
distributions = st.lists(st.from_regex(r"[a-z][a-z0-9]{0,9}(-[a-z0-9]{1,5})?", fullmatch=True), unique=True, max_size=5)


@st.composite
def wheel_sets(draw: st.DrawFn) -> WheelSetLock:
    versions = st.from_regex(lockfile._PYTHON_VERSION, fullmatch=True)
    wheels = []
    for name in sorted(draw(distributions)):
        version = draw(versions)
        ending = draw(st.sampled_from(["-py3-none-any.whl", ".tar.gz", ".zip#part?x", ".whl?token=%2F"]))
        file = f"{name.replace('-', '_')}-{version.replace('+', '%2B')}{ending}"
        wheels.append(WheelLock(name, version, f"{INDEX}/{name}/{file}", draw(sha256s), draw(sizes | st.just(0))))
    return WheelSetLock(draw(st.sampled_from(["3.11", "3.13"])), draw(names), draw(dates), draw(sha256s), tuple(wheels))


@st.composite
def locks(draw: st.DrawFn) -> Lock:
    suites = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    releases = {suite: draw(st.builds(Release, dates, sha256s)) for suite in suites}
    pip = st.builds(PipLock, st.sampled_from(["3.11", "3.14"]), distributions.map(hashed), sha256s)
    return Lock(
        draw(names),
        draw(names),
        AptLock(draw(st.sampled_from(suites)), releases, draw(packages)),
        draw(st.dictionaries(names, pip, max_size=3)),
        draw(st.dictionaries(names, wheel_sets(), max_size=2)),
        draw(st.dictionaries(st.from_regex(lockfile._IMAGE, fullmatch=True), sha256s.map("sha256:{}".format))),
        draw(st.dictionaries(names, st.builds(ArchiveLock, st.just("https://x.example/a?b=%20"), sha256s, sizes))),
    )


def texts(lock: Lock) -> dict[str, str]:
    return {name: pip.text for name, pip in lock.pip.items()}


@given(locks())
def test_what_is_written_is_what_is_read(lock: Lock) -> None:
    data = lockfile.write(lock)
    assert lockfile.parse(data, Path("x.toml"), texts(lock)) == lock
    assert lockfile.write(lockfile.parse(data, Path("x.toml"), texts(lock))) == data


@given(st.data(), st.sampled_from([LOCK, WITH_WHEELS]))
def test_a_damaged_lock_is_a_lock_error_or_still_a_lock(data: st.DataObject, lock: Lock) -> None:
    good = lockfile.write(lock)
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 40)))
    damaged = good[:start] + data.draw(st.binary(max_size=6) | st.text(max_size=6).map(str.encode)) + good[end:]
    fault: LockError | None = None
    try:
        lockfile.parse(damaged, Path("images/locks/x.toml"), texts(LOCK))
    except LockError as error:
        fault = error
    assert fault is None or fault.problems
    for problem in fault.problems if fault else ():
        assert problem.place is not None
        assert problem.place.line is not None
        assert 1 <= problem.place.line <= damaged.count(b"\n") + 1
        assert "\n" not in str(problem)


@given(st.text(st.sampled_from("ab=1.-\\\n #[];:@\u2028") | st.characters(), max_size=60), st.integers(0, len(TEXT)))
def test_a_damaged_text_is_a_fault_with_a_line_or_still_a_text(noise: str, at: int) -> None:
    text = TEXT[:at] + noise + TEXT[at:]
    fault: ValueError | None = None
    found = []
    try:
        found = requirements(text)
    except ValueError as error:
        fault = error
    assert all(name == normalize(name) and version and hashes for name, version, hashes in found)
    if fault:
        line, message = fault.args
        assert 1 <= line <= text.count("\n") + 1
        assert "\n" not in message


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('suite = "sid"', 'suite = "sid', 7, "not valid TOML"),
        ('suite = "sid"', "suite = 3", 7, "apt.suite must be a string"),
        ('suite = "sid"', 'suite = "forky"', 7, "does not have the suite 'forky'"),
        ('suite = "sid"', 'suit = "sid"', 7, "unknown key 'apt.suit'; did you mean 'suite'?"),
        ("size = 13013888", "size = 0", 14, "apt.packages.python3-torch.size must be at least 1"),
        ("size = 13013888", "size = true", 14, "must be a whole number"),
        ("size = 13013888, ", "", 14, "apt.packages.python3-torch.size is missing"),
        ("python3-torch =", "Python3_torch =", 14, "is not a name that can stand here"),
        ('accelerate = "1.15.0', 'accelerate = "1.14.0', 21, "not those of debian-gfx1151.unsloth.txt"),
        ("2026-10-30T08:08:01Z", "2026-10-32T08:08:01Z", 10, "'2026-10-32T08:08:01Z' is not a date"),
        ("https://example.org", "https://me:secret@example.org", 29, "cannot be right"),
        ("https://example.org", "apt-source:", 29, "cannot be right"),
        ("format = 1", "format = 2", 2, "newer format"),
        ("format = 1", "format = " + "[" * 5000, 1, "nested too deeply"),
        ("format = 1", "format = " + "9" * 5000, 1, "not valid TOML"),
        ("format = 1", "format = \xff", 2, "not valid TOML"),
    ],
)
def test_every_fault_has_its_line(old: str, new: str, line: int, says: str) -> None:
    text = lockfile.write(LOCK).decode()
    assert old in text
    with pytest.raises(LockError, match=re.escape(says)) as caught:
        lockfile.parse(text.replace(old, new, 1).encode(), Path("x.toml"), texts(LOCK))
    assert [problem.place.line for problem in caught.value.problems if problem.place and says in str(problem)] == [line]


def test_all_faults_come_together() -> None:
    text = lockfile.write(LOCK).decode().replace("size = 13013888", "size = 0").replace('python = "3.14"', "")
    with pytest.raises(LockError) as caught:
        lockfile.parse(text.encode(), Path("x.toml"), texts(LOCK))
    assert [str(problem).split(";")[0] for problem in caught.value.problems] == [
        "x.toml:14: apt.packages.python3-torch.size must be at least 1",
        "x.toml:16: pip.unsloth.python is missing",
    ]


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(LockError, match=r"x.toml:2: not UTF-8 text"):
        lockfile.parse(b"format = 1\n# \xff\n", Path("x.toml"), {})


def test_saved_and_read_back(tmp_path: Path) -> None:
    lockfile.save(LOCK, tmp_path / "locks")
    path = tmp_path / "locks" / "debian-gfx1151.toml"
    assert lockfile.read(path) == LOCK
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        "debian-gfx1151.toml",
        "debian-gfx1151.unsloth.txt",
    ]
    assert path.stat().st_mode & 0o777 == 0o644
    assert LOCK.apt.epoch == 1793347681


def test_a_text_of_a_set_that_is_gone_goes_too(tmp_path: Path) -> None:
    lockfile.save(LOCK, tmp_path)
    (tmp_path / "debian-gfx1151.notes.txt").write_text("a maintainer's own")
    lockfile.save(Lock(LOCK.channel, LOCK.target, LOCK.apt), tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["debian-gfx1151.notes.txt", "debian-gfx1151.toml"]


def test_a_lock_that_would_not_read_back_is_not_saved(tmp_path: Path) -> None:
    wrong = Lock("debian", "gfx1151", AptLock("sid", {"sid": Release("yesterday", A)}))
    with pytest.raises(LockError, match="date"):
        lockfile.save(wrong, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace(A, B), "has another sha256 than the lock says"),
        (lambda text: text + "numpy\n", r"unsloth.txt:6: 'numpy' is not of the form name==version"),
        (lambda text: text + "numpy==1.0\n", r"unsloth.txt:6: 'numpy' has no sha256"),
        (lambda text: text.rstrip("\n") + " \\\n", r"unsloth.txt:4: the last requirement is cut off"),
        (lambda text: text + "\udcff", "is not UTF-8"),
    ],
)
def test_a_damaged_requirements_text(tmp_path: Path, change: object, says: str) -> None:
    assert callable(change)
    lockfile.save(LOCK, tmp_path)
    text = tmp_path / "debian-gfx1151.unsloth.txt"
    text.write_bytes(change(TEXT).encode(errors="surrogateescape"))
    with pytest.raises(LockError, match=says):
        lockfile.read(tmp_path / "debian-gfx1151.toml")


def test_a_requirements_text_that_is_missing(tmp_path: Path) -> None:
    lockfile.save(LOCK, tmp_path)
    (tmp_path / "debian-gfx1151.unsloth.txt").unlink()
    with pytest.raises(LockError, match=r"gfx1151.toml:19: debian-gfx1151.unsloth.txt beside it cannot be read"):
        lockfile.read(tmp_path / "debian-gfx1151.toml")


def test_no_lock(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="there is no lock yet; write one with 'strix-finetune lock'"):
        lockfile.read(tmp_path / "debian-gfx1151.toml")


def test_an_archive_from_debians_own_archive(tmp_path: Path) -> None:
    source = ArchiveLock("apt-source:rccl=1:5.4.3-3~exp1/rccl_5.4.3.orig.tar.gz", "a" * 64, 983139)
    lockfile.save(replace(LOCK, archives={"source": source}), tmp_path)
    assert lockfile.read(tmp_path / lockfile.file_name(LOCK.channel, LOCK.target)).archives == {"source": source}


def test_a_set_of_wheels_is_one_line_a_file(tmp_path: Path) -> None:
    lockfile.save(WITH_WHEELS, tmp_path)
    path = tmp_path / "debian-gfx1151.toml"
    assert lockfile.read(path) == WITH_WHEELS
    (line,) = [line for line in path.read_text().splitlines() if "torch-2.13.0" in line]
    assert line == (
        f'  {{ name = "torch", version = "2.13.0+rocm10", sha256 = "{B}",'
        f' url = "{INDEX}/torch/torch-2.13.0%2Brocm10-cp313-cp313-linux_x86_64.whl" }},'
    )
    assert lockfile.read(path).wheels["torch"].wheels[0].size == 24780


def test_a_wheel_is_called_as_the_index_calls_it() -> None:
    rocm, torch = WHEELS.wheels
    assert torch.file == "torch-2.13.0+rocm10-cp313-cp313-linux_x86_64.whl"
    assert replace(torch, url=f"{rocm.url}#sha256={A}").file == "rocm-10.0.0.tar.gz"
    shuffled = replace(WHEELS, wheels=(torch, rocm))
    assert shuffled.text == f"rocm==10.0.0 --hash=sha256:{A}\ntorch==2.13.0+rocm10 --hash=sha256:{B}\n"
    assert requirements(shuffled.text) == [("rocm", "10.0.0", {A}), ("torch", "2.13.0+rocm10", {B})]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "torch", ', "", "wheels.torch.files.1.name is missing"),
        ('name = "torch"', 'name = "rocm"', "the set has 'rocm' twice"),
        ('name = "torch"', 'name = "triton"', "'torch-2.13.0+rocm10-cp313-cp313-linux_x86_64.whl' is not a file of"),
        ("/torch-2.13", "/..%2Ftorch-2.13", "is not the name of a wheel or a source distribution"),
        ("linux_x86_64.whl", "linux_x86_64.exe", "is not the name of a wheel or a source distribution"),
        (f"{INDEX}/torch/", "https://me:secret@example.org/", "wheels.torch.files.1.url has a value that cannot be"),
        (f"{INDEX}/torch/", "file:///", "wheels.torch.files.1.url has a value that cannot be"),
        ('"2.13.0+rocm10"', '"2.13.0; x"', "wheels.torch.files.1.version has a value that cannot be"),
        (
            ', url = "https://stable.example/whl/torch',
            ', size = 0, url = "https://stable.example/whl/torch',
            "at least",
        ),
        ('name = "torch"', 'nam = 1, name = "torch"', "unknown key 'wheels.torch.files.1.nam'"),
    ],
)
def test_every_fault_of_a_wheel_has_its_line(old: str, new: str, says: str) -> None:
    text = lockfile.write(WITH_WHEELS).decode()
    line = next(number for number, line in enumerate(text.split("\n"), 1) if "torch-2.13.0" in line)
    assert old in text
    with pytest.raises(LockError, match=re.escape(says)) as caught:
        lockfile.parse(text.replace(old, new, 1).encode(), Path("x.toml"), texts(WITH_WHEELS))
    assert {problem.place.line for problem in caught.value.problems if problem.place} == {line}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('index = "amd"\n', "", "wheels.torch.index is missing"),
        ('time = "2026-11-30T04', 'time = "2026-11-31T04', "'2026-11-31T04:00:00Z' is not a date"),
        ("files = [", "files = [ 1,", "wheels.torch.files must be a list of tables"),
        ("files = [", "file = [", "wheels.torch.files is missing"),
    ],
)
def test_faults_of_a_set_of_wheels(old: str, new: str, says: str) -> None:
    text = lockfile.write(WITH_WHEELS).decode()
    assert old in text
    with pytest.raises(LockError, match=re.escape(says)):
        lockfile.parse(text.replace(old, new, 1).encode(), Path("x.toml"), texts(WITH_WHEELS))


def test_two_wheels_that_would_be_one_file() -> None:
    first, second = WHEELS.wheels
    twice = replace(second, name="torch-2.13", url=f"https://other.example/{second.url.rsplit('/', 1)[1]}")
    text = lockfile.write(replace(LOCK, wheels={"torch": replace(WHEELS, wheels=(first, second, twice))}))
    with pytest.raises(LockError, match=r"'torch-2.13' and 'torch' would both be the file 'torch-2.13.0\+rocm10-cp313"):
        lockfile.parse(text, Path("x.toml"), texts(LOCK))
