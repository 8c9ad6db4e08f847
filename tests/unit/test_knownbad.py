"""The known-bad list: what the shipped one says of real versions, and what is wrong with a list."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune import knownbad, lockfile
from strix_finetune.errors import DefinitionError, InputError, Problem
from strix_finetune.lockmodel import AptLock, Lock, PipLock, Release, WheelLock, WheelSetLock
from tests.conftest import Images

problems: list[Problem] = []
SHIPPED = knownbad.read(Path(__file__).parents[2] / "images", problems)


def held(target: str, *wheels: str, pip: str = "", accepted: dict[str, str] | None = None) -> Lock:
    """A lock of these wheels ("torch 2.13.0+rocm10.0.0") and of one distribution of the index of Python packages."""
    files = tuple(
        WheelLock(name, version, f"https://x.example/{name}", "a" * 64)
        for name, version in (word.split() for word in wheels)
    )
    text = f"{pip} --hash=sha256:{'b' * 64}\n"
    return Lock(
        "amd",
        target,
        AptLock("trixie", {"trixie": Release("2026-10-30T08:08:01Z", "c" * 64)}),
        pip={"unsloth": PipLock("3.13", text, "d" * 64)} if pip else {},
        wheels={"torch": WheelSetLock("3.13", "amd", "2026-10-30T08:08:01Z", "d" * 64, files)} if wheels else {},
        accepted=accepted or {},
    )


def ids(lock: Lock) -> list[str]:
    return [hit.entry.id for hit in knownbad.check(SHIPPED, lock)]


def test_the_shipped_list_is_in_order() -> None:
    assert problems == []
    assert len(SHIPPED) >= 8


@pytest.mark.parametrize(
    ("target", "wheels", "pip", "found"),
    [
        ("gfx1151", ["torch 2.13.0+rocm10.0.0", "rocm 10.0.0"], "bitsandbytes==0.50.2", []),
        ("gfx1151", ["torch 2.11.0+rocm7.14.0", "rocm 7.14.0"], "bitsandbytes==0.50.2", []),
        ("gfx1151", ["torch 2.14.0+rocm10.1.0", "rocm 10.1.0"], "", []),
        ("gfx1151", ["torch 2.11.0+rocm7.2"], "", []),
        ("gfx1151", ["torch 2.11.0+rocm7.14.1"], "", ["rocm-7.14.1-attention"]),
        ("gfx1100", ["torch 2.11.0+rocm7.14.1"], "", []),
        ("gfx1151", ["torch 2.13.0a0+rocm7.14.0a20260608"], "", []),
        ("gfx1151", ["torch 2.13.0a0+rocm7.14.0a20260609"], "", ["nightlies-2026-06-hip-init"]),
        ("gfx1150", ["rocm-sdk-core 7.14.0a20260612"], "", ["nightlies-2026-06-hip-init"]),
        ("gfx1151", ["torch 2.13.0a0+rocm7.14.0a20260613"], "", []),
        ("gfx1201", ["torch 2.13.0a0+rocm7.14.0a20260610"], "", []),
        ("gfx1201", ["torch 2.10.0+rocm7.2"], "", ["torch-2.10-grouped-mm"]),
        ("gfx1152", ["torch 2.10.0+rocm7.12.0"], "", ["torch-2.10-grouped-mm"]),
        ("gfx1100", ["torch 2.10.0+rocm7.2"], "", []),
        ("gfx1151", ["torch 2.8.0+rocm6.4"], "", []),
        ("gfx1100", ["torch 2.8.0+rocm6.4"], "bitsandbytes==0.50.2", ["rocm-6.4-4bit"]),
        ("gfx1151", ["torch 2.8.0+rocm6.4"], "bitsandbytes==0.50.2", ["rocm-6.4-4bit"]),
        ("gfx1201", ["torch 2.8.0+rocm6.4"], "bitsandbytes==0.50.2", []),
        ("gfx1151", ["torch 2.11.0+rocm7.13.0", "rocm 7.13.0"], "", ["rocm-7.13-rccl"]),
        ("gfx1151", ["torch 2.13.0+rocm10.1.0a20260816"], "", ["rocm-10.1-nightlies-attention"]),
        ("gfx1151", ["torch 2.13.0+rocm10.1.0"], "", []),
        ("gfx1151", ["torch 2.14.0a0+rocm7.15.0a20260713"], "", ["torch-2.14-nightlies-attention"]),
        ("gfx1151", ["torch 2.12.0+rocm7.15.0a20260626"], "", []),
        ("gfx1100", ["torch 2.12.0+rocm7.14.0"], "", ["torch-2.12-attention-pack"]),
        ("gfx1100", ["torch 2.12.0+rocm7.14.0", "amd-torch-device-gfx11 2.12.0+rocm7.14.0"], "", []),
        ("cpu", [], "torch==2.10.0", []),
    ],
)
def test_what_the_shipped_list_says(target: str, wheels: list[str], pip: str, found: list[str]) -> None:
    assert ids(held(target, *wheels, pip=pip)) == found


def test_a_refusal_names_version_reason_source_and_way_out() -> None:
    [problem] = knownbad.refused(SHIPPED, held("gfx1151", "torch 2.13.0a0+rocm7.14.0a20260610"))
    assert str(problem) == (
        "known to be bad on gfx1151: ROCm 7.14.0a20260610: HIP crashes when it starts, with exit status 139 and no"
        " message (nightlies-2026-06-hip-init, 2026-06-13, https://github.com/ROCm/TheRock/issues/5763); lock another"
        " version, or accept it with 'strix-finetune lock --accept-known-bad nightlies-2026-06-hip-init'"
    )
    [problem] = knownbad.refused(SHIPPED, held("gfx1200", "torch 2.10.0+rocm7.2"))
    assert "known to be bad on gfx1200: torch 2.10.0+rocm7.2: torch._grouped_mm has no kernel" in str(problem)


def test_what_was_accepted_stays_so_while_it_applies() -> None:
    bad, good = held("gfx1151", "torch 2.11.0+rocm7.14.1"), held("gfx1151", "torch 2.13.0+rocm10.0.0")
    accepted = knownbad.accepted(SHIPPED, bad, {}, ["rocm-7.14.1-attention"])
    assert list(accepted) == ["rocm-7.14.1-attention"]
    again = {"rocm-7.14.1-attention": "2026-10-27", "other": "2026-10-27"}
    assert knownbad.accepted(SHIPPED, bad, again, []) == {"rocm-7.14.1-attention": "2026-10-27"}
    assert knownbad.accepted(SHIPPED, good, again, ["rocm-7.14.1-attention"]) == {}
    assert list(knownbad.refused(SHIPPED, held("gfx1151", "torch 2.11.0+rocm7.14.1", accepted=accepted))) == []


def test_the_lock_keeps_what_was_accepted(tmp_path: Path) -> None:
    lock = held("gfx1151", accepted={"rocm-7.14.1-attention": "2026-10-27"})
    lockfile.save(lock, tmp_path)
    path = tmp_path / "amd-gfx1151.toml"
    assert '[accepted]\n"rocm-7.14.1-attention" = "2026-10-27"\n' in path.read_text()
    assert lockfile.read(path) == lock


def test_an_unknown_id() -> None:
    with pytest.raises(InputError, match=r"has no 'rocm-7.14.1'; did you mean 'rocm-7.14.1-attention'\?"):
        knownbad.find(SHIPPED, ["rocm-7.14.1"])
    assert [entry.id for entry in knownbad.find(SHIPPED, ["rocm-7.13-rccl"])] == ["rocm-7.13-rccl"]


def test_every_fault_of_a_list_with_its_line(chain: Images) -> None:
    head = '[[bad]]\nreason = "r"\nlink = "https://x.example/1"\n'
    chain.write(
        "images/known-bad.toml",
        f'{head}id = "one"\ntargets = ["gfx1151"]\nversions = "<2"\nrocm = "=>7"\ndate = "2026-02-31"\n'
        f'{head}id = "one"\ntargets = ["*"]\ndate = "2026-01-01"\n'
        f'{head}id = "two"\ntargets = ["*"]\ndate = "2026-01-01"\nnightlies = ["20260612", "20260609"]\n',
    )
    with pytest.raises(DefinitionError) as caught:
        chain.load()
    assert [fault.removeprefix("images/known-bad.toml:") for fault in chain.faults(caught.value)] == [
        "6: versions are those of a distribution, and the entry names none",
        "7: '=>7' is no range of versions",
        "8: '2026-02-31' is not a date",
        "12: two entries have the id 'one'",
        "12: 'one' applies to everything: it has no versions, no rocm and no nightlies",
        '21: nightlies are a first and a last day, such as ["20260609", "20260612"]',
    ]
    chain.write("images/known-bad.toml", '[[bad]]\nid = "x"\ntargets = []\nlinks = "http://x"\nunless = "A B"\n')
    with pytest.raises(DefinitionError) as caught:
        chain.load()
    said = "\n".join(chain.faults(caught.value))
    assert "images/known-bad.toml:3: 'bad.0.targets' must not be empty" in said
    assert "images/known-bad.toml:4: unknown key 'bad.0.links'; did you mean 'link'?" in said
    assert "images/known-bad.toml:5: 'bad.0.unless'" in said


def test_no_list_is_an_empty_one(chain: Images) -> None:
    assert chain.load().known_bad == ()


@given(st.integers(0, 99), st.sampled_from(["a{}", ".dev{}", "rc1", ""]), st.integers(20260601, 20260620))
def test_only_the_days_between_first_and_last_count(minor: int, form: str, day: int) -> None:
    entry = knownbad.KnownBad(
        id="x",
        targets=["gfx*"],
        nightlies=["20260609", "20260612"],
        reason="r",
        link="https://x.example",
        date="2026-06-13",
    )
    lock = held("gfx1151", f"rocm 7.{minor}.0{form.format(day)}")
    assert bool(knownbad.check([entry], lock)) == (20260609 <= day <= 20260612 and "{}" in form)
