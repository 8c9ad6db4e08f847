"""Offload bundles of every version and method, side by side, damaged, and made to mislead."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from strix_finetune.codeobject import (
    CodeObjectError,
    LimitExceeded,
    Limits,
    Malformed,
    Report,
    Unsupported,
    inspect,
)
from strix_finetune.codeobject.codec import zstd_module
from tests.unit.codeobject_forge import HOST, MAGIC, blob, bundle, ccob, gfx942, gfx1030, host_elf, two_targets

LABEL = "hipv4-amdgcn-amd-amdhsa--gfx942"


def read(tmp_path: Path, content: bytes, limits: Limits | None = None) -> Report:
    path = tmp_path / "file"
    path.write_bytes(content)
    return inspect(path, limits) if limits else inspect(path)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("method", ["zlib", "zstd"])
def test_every_version_and_method(version: int, method: str, tmp_path: Path) -> None:
    report = read(tmp_path, ccob(two_targets(), version, method))
    assert report.targets == ("gfx942", "gfx1030")
    assert [item.size for item in report.code_objects] == [4584, 3600]
    assert [part.encoding for part in report.containers] == [f"ccob v{version} {method}"]


def test_bundles_of_every_kind_in_one_section(tmp_path: Path) -> None:
    """As a linker lays them: each on a page of its own, zeros between; version 1 does not even say where it ends."""
    one = bundle({HOST: b"", LABEL: gfx942()})
    parts = [one, ccob(one, 1, "zlib"), ccob(one, 1, "zstd"), ccob(one, 2, "zstd"), ccob(one, 3, "zlib"), gfx942()]
    section = b"".join(part.ljust(-(-len(part) // 4096) * 4096, b"\0") for part in parts)
    report = read(tmp_path, host_elf({".text": b"\xc3" * 100, ".hip_fatbin": section, ".data": b"x" * 10}))
    assert [item.target for item in report.code_objects] == ["gfx942"] * 6
    assert [item.label for item in report.code_objects] == [LABEL] * 5 + [""]
    assert [part.encoding for part in report.containers] == [
        "plain",
        "ccob v1 zlib",
        "ccob v1 zstd",
        "ccob v2 zstd",
        "ccob v3 zlib",
    ]
    assert all(part.offset % 4096 == 0 for part in report.containers)
    assert report.warnings == ()


def test_an_entry_of_size_zero_is_no_code(tmp_path: Path) -> None:
    empty = "hipv4-amdgcn-amd-amdhsa--gfx1151"
    report = read(tmp_path, bundle({HOST: b"", empty: b"", LABEL: gfx942()}))
    assert report.targets == ("gfx942",)


def test_the_flags_win_over_a_lying_label(tmp_path: Path) -> None:
    report = read(tmp_path, bundle({"hipv4-amdgcn-amd-amdhsa--gfx1151": gfx942()}))
    assert report.targets == ("gfx942",)
    assert report.warnings == ("offset 0: code for gfx942 is labelled gfx1151",)


def test_an_entry_that_is_no_code_object_is_not_counted(tmp_path: Path) -> None:
    report = read(tmp_path, bundle({LABEL: b"anything at all"}))
    assert report.targets == ()
    assert report.code_objects[0].kind == "unknown"
    assert f"entry {LABEL} is no AMD code object" in report.warnings[0]


def test_machine_that_nobody_knows_yet(tmp_path: Path) -> None:
    code = bytearray(gfx942())
    code[48] = 0xFE
    report = read(tmp_path, bundle({"hipv4-amdgcn-amd-amdhsa--gfx1999": bytes(code)}))
    assert report.code_objects[0].target == "gfx1999"
    assert "name no known target" in report.warnings[0]


def test_letters_between_bundles_are_passed_over_with_a_note(tmp_path: Path) -> None:
    """The magic of a compressed bundle alone is four letters: by chance it is anywhere."""
    section = bundle({LABEL: gfx942()}) + b"junk CCOB junk \x7fELF junk" * 400 + b"\0" * 5000 + two_targets()
    report = read(tmp_path, host_elf({".hip_fatbin": section}))
    assert [item.target for item in report.code_objects] == ["gfx942", "gfx942", "gfx1030"]
    assert [warning.partition(": ")[2] for warning in report.warnings] == ["14600 bytes are no offload bundle"]


def test_a_zeroed_section_is_empty(tmp_path: Path) -> None:
    report = read(tmp_path, host_elf({".hip_fatbin": bytes(3 << 20)}))
    assert (report.code_objects, report.warnings) == ((), ())


@pytest.mark.parametrize(
    ("content", "fault", "says"),
    [
        (ccob(two_targets(), version=3, number=7), Unsupported, r"compressed by method 7"),
        (b"CCOB\x09\x00\x01\x00" + bytes(40), Unsupported, r"of version 9"),
        (b"CCOB\x03", Malformed, r"header of a compressed bundle is cut off"),
        (b"CCOB\x03\x00\x01\x00" + bytes(10), Malformed, r"the bundle is cut off"),
        (ccob(two_targets(), size=10**15), Malformed, r"states a size of 1000000000000000 bytes"),
        (ccob(two_targets(), size=3), Malformed, r"states a size of 3 bytes"),
        (ccob(two_targets(), raw_size=10**18), Malformed, r"cut off after \d+ of 1000000000000000000 bytes"),
        (ccob(two_targets(), raw_size=9000), Malformed, r"is longer than the 9000 bytes"),
        (ccob(two_targets(), raw_size=10), Malformed, r"is longer than the 10 bytes"),
        (ccob(two_targets() + b"more", raw_size=len(two_targets())), Malformed, r"is longer than"),
        (ccob(b"no bundle at all" * 9), Malformed, r"holds something that is no offload bundle"),
        (ccob(b""), Malformed, r"holds something that is no offload bundle"),
        (ccob(two_targets(), payload=b"\x28\xb5\x2f\xfd" + b"x" * 99), Malformed, r"does not decompress"),
        (ccob(two_targets(), method="zlib", payload=b"x" * 99), Malformed, r"does not decompress"),
        (MAGIC, Malformed, r"is cut off"),
        (MAGIC + (10**12).to_bytes(8, "little"), Malformed, r"names 1000000000000 entries"),
        (MAGIC + (2).to_bytes(8, "little") + b"\xff" * 48, Malformed, r"in \d+ bytes"),
        (bundle({LABEL: gfx942()})[:-1], Malformed, r"gfx942 ends at byte \d+ of \d+"),
        (bundle({LABEL: gfx942()[:40]}), Malformed, r"gfx942: an ELF header takes 64 bytes, 40 are there"),
        (bundle({LABEL: gfx942()[:2000]}), Malformed, r"gfx942: .*is cut off"),
        (gfx942()[:-1], Malformed, r"section table is cut off"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_is_one_sentence(content: bytes, fault: type[CodeObjectError], says: str, tmp_path: Path) -> None:
    with pytest.raises(fault, match=says) as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "file"))


@pytest.mark.parametrize("name", ["two-zstd.so", "v2.hsaco", "plain.so", "bare-gfx942.hsaco", "features-v3.hsaco"])
def test_no_shortened_file_passes(name: str, tmp_path: Path) -> None:
    """Wherever a download ends, it is an error: never an answer that names fewer targets."""
    whole = blob(name)
    for size in range(0, len(whole), 397):
        with pytest.raises(CodeObjectError) as caught:
            read(tmp_path, whole[:size])
        assert "\n" not in str(caught.value)


def test_names_of_a_file_cannot_reach_the_terminal(tmp_path: Path) -> None:
    report = read(tmp_path, bundle({"hip-\x1b[31m\n-gfx": gfx1030()}))
    assert report.code_objects[0].label == "hip-?[31m?-gfx"


def test_a_host_file_names_a_section_behind_its_end(tmp_path: Path) -> None:
    content = bytearray(host_elf({".hip_fatbin": two_targets()}))
    shoff = int.from_bytes(content[40:48], "little")
    content[shoff + 64 + 32 : shoff + 64 + 40] = (10**12).to_bytes(8, "little")
    with pytest.raises(Malformed, match=r"section \.hip_fatbin is cut off"):
        read(tmp_path, bytes(content))


def test_a_32_bit_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="32-bit or big-endian"):
        read(tmp_path, b"\x7fELF\x01\x01\x01" + bytes(100))


def test_a_window_past_the_limit_is_refused(tmp_path: Path) -> None:
    zstd = zstd_module()
    options = {zstd.CompressionParameter.window_log: 28, zstd.CompressionParameter.compression_level: 1}
    compressor = zstd.ZstdCompressor(options=options)
    # Without the size in the header the frame states the window that was asked for.
    payload = compressor.compress(two_targets()) + compressor.flush()
    with pytest.raises(Malformed, match="too much memory"):
        read(tmp_path, ccob(two_targets(), payload=payload))
    assert read(tmp_path, ccob(two_targets(), payload=payload), Limits(window_log=28)).targets == ("gfx942", "gfx1030")


def test_limits_end_the_work(tmp_path: Path) -> None:
    content = ccob(two_targets())
    with pytest.raises(LimitExceeded, match="MiB of reading and decompression"):
        read(tmp_path, content, Limits(work=10_000))
    with pytest.raises(LimitExceeded, match="more than 1 code objects"):
        read(tmp_path, content, Limits(objects=1))
    with pytest.raises(LimitExceeded, match="tables and notes"):
        read(tmp_path, content, Limits(metadata=500))
    with pytest.raises(LimitExceeded, match="notes take"):
        read(tmp_path, content, Limits(one_table=100))


@pytest.mark.parametrize("method", ["zstd", "zlib"])
def test_memory_does_not_grow_with_what_comes_out(method: str, tmp_path: Path) -> None:
    """600 MB from a file of some kilobytes: read to the end, held nowhere."""
    size = 600 << 20
    head = bundle({LABEL: gfx942()})
    block = bytes(1 << 20)
    engine = zstd_module().ZstdCompressor(level=1) if method == "zstd" else zlib.compressobj(1)
    parts = [engine.compress(head)]
    parts += [engine.compress(block) for _ in range((size - len(head)) // len(block))]
    rest = (size - len(head)) % len(block)
    parts += [engine.compress(block[:rest]), engine.flush()]
    path = tmp_path / "bomb"
    path.write_bytes(ccob(b"", method=method, payload=b"".join(parts), raw_size=size))
    assert path.stat().st_size < 4 << 20
    # VmHWM and not ru_maxrss, which a new process inherits from the one that started it.
    script = """
import sys
from strix_finetune.codeobject import inspect
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
before = peak()
report = inspect(sys.argv[1])
print(*report.targets, report.containers[0].raw_size, peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    target, raw, kilobytes = done.stdout.split()
    assert (target, int(raw)) == ("gfx942", size)
    assert int(kilobytes) < 40_000
