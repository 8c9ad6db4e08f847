"""The system's zstd, for images whose Python has none: the same reports, the same limits, the same faults."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from strix_finetune.codeobject import CodeObjectError, Limits, inspect, libzstd
from strix_finetune.codeobject.codec import zstd_module
from tests.unit.codeobject_forge import DATA, ccob, two_targets

NAMES = ("compression", "compression.zstd", "backports", "backports.zstd")


@pytest.mark.parametrize("name", ["two-zstd.so", "v2.hsaco"])
def test_the_report_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = inspect(DATA / name)
    for module in NAMES:
        monkeypatch.setitem(sys.modules, module, None)
    assert zstd_module() is libzstd
    assert inspect(DATA / name) == wanted


def test_a_frame_comes_out_in_steps_however_it_goes_in() -> None:
    raw = bytes(range(256)) * 4096
    packed = zstd_module().compress(raw) + b"behind"
    for piece in (1, 7, len(packed)):
        engine, out = libzstd.ZstdDecompressor(options={100: 27}), b""
        for at in range(0, len(packed), piece):
            if engine.eof:
                break
            out += engine.decompress(packed[at : at + piece], 1000)
            while (more := engine.decompress(b"", 1000) if not engine.eof else b"") != b"":
                assert len(more) <= 1000
                out += more
        assert engine.eof
        assert out == raw
        if piece == len(packed):
            assert engine.unused_data == b"behind"
        with pytest.raises(EOFError):
            engine.decompress(b"more", 1)


@pytest.mark.parametrize("at", [40, -40])
def test_damage_is_a_sentence(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytearray(ccob(two_targets()))
    content[at] ^= 0x55
    (tmp_path / "file").write_bytes(content)
    for name in NAMES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CodeObjectError, match=r"does not decompress|cut off|is said to"):
        inspect(tmp_path / "file")


def test_a_window_past_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zstd = zstd_module()
    options = {zstd.CompressionParameter.window_log: 28, zstd.CompressionParameter.compression_level: 1}
    compressor = zstd.ZstdCompressor(options=options)
    path = tmp_path / "wide"
    path.write_bytes(ccob(two_targets(), payload=compressor.compress(two_targets()) + compressor.flush()))
    for name in NAMES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CodeObjectError, match="does not decompress"):
        inspect(path)
    assert inspect(path, Limits(window_log=28)).targets == ("gfx942", "gfx1030")
