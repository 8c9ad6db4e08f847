"""The rules for devices, gathered from a machine and applied: with a stand-in for torch."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from strix_train import ruling
from strix_train.device import Device
from strix_train.devicerules import Rules
from strix_train.errors import InputError
from strix_train.modelfacts import ModelFacts
from strix_train.names import ModelName

CPU = Device("cpu", "cpu", "x", "y", 1, True, False)
HALO = Device("cuda:0", "rocm", "Radeon 8060S (gfx1151)", "ROCm 7.2", 2**50, True, True, "gfx1151", True)


class Calls(list[Any]):
    """Remembers what was called, and with what."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.append((name, *args))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = ModuleType("torch")
    made.version = SimpleNamespace(hip="7.2.53211")
    made.__version__ = "2.13.0+rocm7.2"
    made.calls = Calls()
    made.backends = SimpleNamespace(cuda=made.calls)
    made.cuda = made.calls
    made.device = lambda name: name
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def test_what_the_firmware_gave_to_the_gpu(tmp_path: Path) -> None:
    assert ruling.carved_out(tmp_path) == 0
    for card, text in (("card0", "536870912\n"), ("card1", "103079215104\n"), ("card2", "?")):
        folder = tmp_path / card / "device"
        folder.mkdir(parents=True)
        (folder / "mem_info_vram_total").write_text(text)
    assert ruling.carved_out(tmp_path) == 96 * 2**30


def test_the_rules_of_this_machine(torch: Any) -> None:
    gemma = ModelFacts(("gemma3",), 256)
    found = ruling.find(HALO, gemma, 16)
    assert (found.attention, found.compile) == ("eager", "partial")
    # a GPU of a petabyte, so that this machine's memory is always the less
    assert found.memory is not None
    assert len(found.reasons) == 2
    torch.version.hip = "6.4.1"
    with pytest.raises(InputError, match=r"4-bit weights are wrong on gfx1151 with ROCm 6\.4"):
        ruling.find(HALO, gemma, 4)
    torch.version.hip = None
    assert ruling.find(CPU, gemma, 4).plain_4bit
    assert ruling.find(CPU, gemma, 16) == Rules()


def test_before_the_libraries_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    names = ("UNSLOTH_COMPILE_DISABLE", "DISABLE_ADDMM_HIP_LT", "TORCH_BLAS_PREFER_HIPBLASLT")
    for name in names:
        monkeypatch.setenv(name, "x")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_BLAS_PREFER_HIPBLASLT", "1")
    environment = {"DISABLE_ADDMM_HIP_LT": "1", "TORCH_BLAS_PREFER_HIPBLASLT": "0"}
    ruling.before_import(Rules(compile="partial", environment=environment))
    assert [os.environ[name] for name in names] == ["partial", "1", "1"]
    monkeypatch.delenv("UNSLOTH_COMPILE_DISABLE")
    ruling.before_import(Rules())
    assert "UNSLOTH_COMPILE_DISABLE" not in os.environ
    ruling.before_import(Rules(compile="off"))
    assert os.environ["UNSLOTH_COMPILE_DISABLE"] == "1"


def test_torchs_own_switches(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ruling.after_import(Rules(flash=False, memory=0.8), CPU)
    assert torch.calls == []
    monkeypatch.setenv("TORCH_BLAS_PREFER_HIPBLASLT", "0")
    rules = Rules(flash=False, memory=0.8, environment={"TORCH_BLAS_PREFER_HIPBLASLT": "0"})
    ruling.after_import(rules, HALO)
    assert torch.calls == [
        ("enable_flash_sdp", False),
        ("enable_mem_efficient_sdp", False),
        ("enable_math_sdp", True),
        ("preferred_blas_library", "cublas"),
        ("set_per_process_memory_fraction", 0.8, "cuda:0"),
    ]
    torch.calls.clear()
    monkeypatch.setenv("TORCH_BLAS_PREFER_HIPBLASLT", "1")  # the user's own wish
    ruling.after_import(Rules(environment={"TORCH_BLAS_PREFER_HIPBLASLT": "0"}), HALO)
    assert torch.calls == []


def test_a_models_modules_and_how_it_is_loaded() -> None:
    packing, plain = SimpleNamespace(support_avx512bf16_for_cpu=True), SimpleNamespace()
    model = SimpleNamespace(modules=lambda: [packing, plain])
    ruling.on_model(Rules(), model)
    assert packing.support_avx512bf16_for_cpu
    ruling.on_model(Rules(plain_4bit=True), model)
    assert not packing.support_avx512bf16_for_cpu
    assert not hasattr(plain, "support_avx512bf16_for_cpu")
    assert ruling.loading(Rules()) == {}
    told = {"attn_implementation": "eager", "experts_implementation": "eager"}
    assert ruling.loading(Rules(attention="eager", experts="eager")) == told


def test_a_models_facts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma4", "head_dim": 256}')
    assert ruling.model_facts(ModelName("m", str(tmp_path), True)).head_width == 512
    # neither a hub nor its library is here
    assert ruling.model_facts(ModelName("owner/none", "owner/none", False)) == ModelFacts()
