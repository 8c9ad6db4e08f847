"""What a resolved set must not be, and uv's complaints in one sentence."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from strix_finetune.errors import FetchFailed, LockError, Place
from strix_finetune.indexes import Indexes
from strix_finetune.lockmodel import PipLock
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve.pip import check, explain, platform, resolve
from strix_finetune.schema import PipSet
from strix_finetune.wanted import declared_sha256

HASH = " \\\n    --hash=sha256:" + "a" * 64 + "\n"
PLACE = Place(Path("images/unsloth/layer.toml"), 12)


def faults(text: str, **wanted: object) -> list[str]:
    wanted.setdefault("requirements", ["trl<=1.15.0"])
    return [str(problem) for problem in check("unsloth", PipSet(**wanted), text, python="3.14", place=PLACE)]  # type: ignore[arg-type]


def test_a_good_set() -> None:
    text = f"trl==1.15.0{HASH}typing-extensions==4.16.0{HASH}"
    requirements = ["TRL<=1.15.0", "typing_extensions", "tomli; python_version < '3.11'", "pywin32; os_name == 'nt'"]
    assert faults(text, requirements=requirements) == []


@pytest.mark.parametrize(
    ("text", "wanted", "says"),
    [
        ("trl==1.15.0\n", {}, "do not resolve to locked files: 'trl' has no sha256"),
        (
            f"trl @ https://x.example/trl.whl{HASH}",
            {},
            "do not resolve to locked files: 'trl @ https://x.example/trl.whl",
        ),
        (f"trl==1.16.0{HASH}", {}, "'trl<=1.15.0' is not met by the resolution of 'unsloth', which has 1.16.0"),
        (f"peft==1.0{HASH}", {}, "'trl<=1.15.0' is not met by the resolution of 'unsloth', which lacks it"),
        (
            f"trl==1.15.0{HASH}nvidia_cublas==13.1{HASH}",
            {"forbid": ["nvidia-*"]},
            "'unsloth' forbids nvidia-*, but 'nvidia-cublas' gets in; exclude it, or what brings it in",
        ),
        (
            f"trl==1.15.0{HASH}torch==2.14{HASH}",
            {"exclude": ["torch"]},
            "'torch' is in 'unsloth' although it is excluded; report this fault of the resolver",
        ),
    ],
)
def test_what_a_set_must_not_be(text: str, wanted: dict[str, object], says: str) -> None:
    [fault] = faults(text, **wanted)
    assert fault.startswith("images/unsloth/layer.toml:12: ")
    assert says in fault


def test_what_is_excluded_need_not_be_met() -> None:
    assert faults(f"trl==1.15.0{HASH}", requirements=["trl", "torch>=2"], exclude=["torch"]) == []


OLD_STYLE = """\
  × No solution found when resolving dependencies:
  ╰─▶ Because unsloth==2026.10.9 depends on trl<=1.15.0 and you require unsloth==2026.10.9, we can conclude that you
      require trl<=1.15.0.
      And because you require trl>1.15.0, we can conclude that your requirements are unsatisfiable.

      hint: something long
"""
NEW_STYLE = """\
error: No solution found when resolving dependencies
  cause: Because unsloth>=2026.10.9 depends on one of:
             trl>=0.18.2,<0.19.0
             trl>0.19.0,<1.0
             trl>1.0,<=1.15.0
         and you require unsloth==2026.10.9, we can conclude that you require one of:
             trl>=0.18.2,<0.19.0
             trl>0.19.0,<=1.15.0

         And because you require trl>1.15.0, we can conclude that your requirements are unsatisfiable.
"""


@pytest.mark.parametrize(
    ("stderr", "premise"),
    [
        (OLD_STYLE, "unsloth==2026.10.9 depends on trl<=1.15.0"),
        (NEW_STYLE, "unsloth>=2026.10.9 depends on trl>=0.18.2,<0.19.0 … trl>1.0,<=1.15.0"),
    ],
)
def test_the_pair_that_contradicts_itself_is_named(stderr: str, premise: str) -> None:
    fault = explain(stderr, "unsloth", PLACE)
    assert isinstance(fault, LockError)
    assert str(fault) == (
        f"images/unsloth/layer.toml:12: the requirements of 'unsloth' cannot be met: {premise} and you require"
        " unsloth==2026.10.9 and you require trl>1.15.0; change one of them"
    )


def test_an_index_that_gives_no_answer() -> None:
    stderr = (
        "warning: something\nerror: Failed to fetch: `https://me:pw@index.example/simple/trl/`\n"
        "  cause: error sending request\n  cause: Connection refused (os error 111)\n"
    )
    fault = explain(stderr, "unsloth", PLACE)
    assert isinstance(fault, FetchFailed)
    assert str(fault) == (
        "images/unsloth/layer.toml:12: the package index gives no answer for 'unsloth': Failed to fetch:"
        " 'https://***@index.example/simple/trl/' (Connection refused (os error 111)); check the network, the proxy and"
        " the index settings"
    )


def test_another_complaint() -> None:
    fault = explain("error: Couldn't parse requirement in `-` at position 0\n  cause: Expected one of `@`\n", "x")
    assert str(fault) == "uv cannot resolve 'x': Couldn't parse requirement in '-' at position 0 (Expected one of `@`)"


def test_a_long_derivation_is_cut_in_the_middle() -> None:
    long = " and ".join(f"you require name{number}" for number in range(80))
    fault = str(explain(f"error: No solution found\n  cause: Because {long}.\n", "x"))
    assert len(fault) < 600
    assert "name0 " in fault
    assert "name79" in fault


@pytest.mark.parametrize(
    ("glibc", "expected"),
    [("2.43-7", "2_40"), ("2.36-9+deb12u9", "2_36"), ("2.30", "2_28"), ("2.12", "2_17"), ("", "2_17"), ("3.0", "2_17")],
)
def test_the_platform_is_one_that_the_image_can_run(glibc: str, expected: str) -> None:
    assert platform(glibc) == f"x86_64-manylinux_{expected}"


def test_what_is_asked_for_has_one_name() -> None:
    one = PipSet(requirements=["a", "b"], exclude=["c"])
    assert declared_sha256(one, "3.14") == declared_sha256(PipSet(requirements=["b", "a"], exclude=["c"]), "3.14")
    others = [
        PipSet(requirements=["a", "b"]),
        PipSet(requirements=["a"], exclude=["c"]),
        PipSet(requirements=["a", "b"], exclude=["c"], forbid=["d"]),
    ]
    names = {declared_sha256(other, "3.14") for other in others} | {declared_sha256(one, "3.13")}
    assert declared_sha256(one, "3.14") not in names
    assert len(names) == 4


def wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    """A wheel of metadata alone."""
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as made:
        requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
        made.writestr(
            f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        )
        made.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{stem}.dist-info/RECORD", "")


ROCM = {"torch": "2.13.0+rocm10.0.0", "pytorch-triton-rocm": "3.8.0+git4cff872c"}


@pytest.fixture
def solve(tmp_path: Path) -> Callable[..., PipLock]:
    """Resolves against a folder with a newer PyTorch, one that needs it, and one that does with any."""
    wheel(tmp_path, "torch", "2.14.0", "nvidia-cublas")
    wheel(tmp_path, "torch", "2.13.0", "nvidia-cublas")
    wheel(tmp_path, "nvidia-cublas", "13.1")
    wheel(tmp_path, "pytorch-triton-rocm", "3.9.0")
    wheel(tmp_path, "peft", "1.0", "torch>=2.4", "pytorch_triton_rocm", "idna")
    wheel(tmp_path, "newest", "1.0", "peft", "torch>2.13")
    wheel(tmp_path, "older", "1.0", "torch==2.13.0")
    wheel(tmp_path, "idna", "3.10")
    settings = NetSettings(indexes=Indexes(no_index=True), wheel_folders=(tmp_path,))

    def run(*requirements: str, provided: dict[str, str] | None = None, **wanted: list[str]) -> PipLock:
        asked = PipSet(requirements=list(requirements), **wanted)
        options = {"python": "3.13", "glibc": "2.41", "settings": settings, "place": PLACE}
        return resolve("unsloth", asked, provided=provided, **options)  # type: ignore[arg-type]

    return run


def test_what_sets_of_wheels_bring_is_neither_fetched_nor_replaced(solve: Callable[..., PipLock]) -> None:
    assert solve("peft").packages.keys() == {"peft", "idna", "torch", "nvidia-cublas", "pytorch-triton-rocm"}
    locked = solve("peft", "older", "torch", provided=ROCM)
    assert locked.packages == {"idna": "3.10", "older": "1.0", "peft": "1.0"}
    assert locked.declared not in (solve("peft", "older", "torch", exclude=["torch"]).declared, solve("peft").declared)


def test_a_set_that_needs_another_pytorch_does_not_resolve(solve: Callable[..., PipLock]) -> None:
    with pytest.raises(LockError) as caught:
        solve("newest", provided=ROCM)
    (problem,) = caught.value.problems
    assert problem.place == PLACE
    assert problem.message.startswith("the requirements of 'unsloth' cannot be met: ")
    assert "newest depend on torch>2.13 and torch==2.13.0+rocm10.0.0" in problem.message
    assert problem.cure == "change one of them; torch comes from a set of wheels"
    assert solve("newest", provided=ROCM, exclude=["torch"]).packages.keys() == {"idna", "newest", "peft"}


def test_a_text_with_what_a_set_of_wheels_brings_is_refused() -> None:
    wanted = PipSet(requirements=["trl", "torch>=2"])
    text = f"trl==1.15.0{HASH}torch==2.14{HASH}"
    [fault] = check("unsloth", wanted, text, python="3.13", provided=["torch"], place=PLACE)
    assert "'torch' is in 'unsloth' although a set of wheels brings it; " in str(fault)
    assert check("unsloth", wanted, f"trl==1.15.0{HASH}", python="3.13", provided=["torch"]) == []
