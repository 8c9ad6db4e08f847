"""FSDP2 by torch's own fully_shard: pieces indeed, results of one process, checkpoints for any number of processes."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
from several import Crowd, apart, weights
from workshop import Workshop, metrics, report

from strix_train.distributed import spool

FSDP = ["--set", "strategy=fsdp"]


@pytest.fixture(scope="module")
def recipe(workshop: Workshop) -> Path:
    schedule = {"steps": 4, "batch": 2, "accumulation": 2, "learning_rate": 5e-3, "max_length": 128, "seed": 3}
    questions = {"ask": [{"prompt": "What follows red?", "expect": "green"}], "max_new_tokens": 6}
    return workshop.recipe(
        "pieces", backend="hf", precision="fp32", schedule=schedule, questions=questions, adapter__dropout=0.0
    )


def halved(wide: Path, path: Path) -> Path:
    """Write a model's folder anew, with files of 16 bits."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(str(wide), dtype=torch.bfloat16).save_pretrained(str(path))
    AutoTokenizer.from_pretrained(str(wide)).save_pretrained(str(path))
    return path


@pytest.fixture(scope="module")
def narrow(workshop: Workshop) -> Path:
    return halved(workshop.path / "models/llama", workshop.path / "models/llama-bf16")


def test_lora_in_pieces_is_lora(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    """However much stays gathered, and with activations computed again: as one process with the same rows."""
    alone = tmp_path / "alone"
    assert crowd.train(1, recipe, "--run-dir", alone, "--set", "schedule.batch=4")["codes"] == [0]
    for keep in ("nothing", "step", "frozen"):
        run = tmp_path / keep
        words = [*FSDP, "--set", f"strategy.keep={keep}", "--set", "recompute=on"]
        frozen = {} if keep == "frozen" else {"all": {"STRIX_TEST_WHOLE": "1"}}
        done = crowd.train(2, recipe, "--run-dir", run, *FSDP, *words[2:], env=frozen)
        assert done["codes"] == [0, 0], done
        assert "strategy  fsdp (asked for): " in done["ranks"][0]["out"]
        assert apart(alone, run) < 1e-4, keep
        norms = [[row["grad_norm"] for row in metrics(each)] for each in (alone, run)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-4)
        assert report(run)["questions"] == report(alone)["questions"]
        assert report(run)["same_weights"] is None


def test_what_the_questions_gathered_is_in_pieces_again(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    """Also where nothing moves the model to its device behind them, as with quantized weights."""
    alone = tmp_path / "alone"
    assert crowd.train(1, recipe, "--run-dir", alone, "--set", "schedule.batch=4")["codes"] == [0]
    for keep in ("step", "frozen"):
        run = tmp_path / keep
        words = [*FSDP, "--set", f"strategy.keep={keep}"]
        done = crowd.train(2, recipe, "--run-dir", run, *words, env={"all": {"STRIX_TEST_STILL": "1"}})
        assert done["codes"] == [0, 0], done
        assert apart(alone, run) < 1e-4, keep


def test_a_whole_model_in_pieces_goes_on_with_others(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    """Two processes with FSDP, then one alone, then two with DDP: one checkpoint is as good as the other."""
    words = [recipe, "--set", "adapter=full", "--set", "schedule.steps=8", "--set", "schedule.learning_rate=1e-3"]
    alone, run = tmp_path / "alone", tmp_path / "run"
    assert crowd.train(1, *words, "--run-dir", alone, "--set", "schedule.batch=4")["codes"] == [0]
    kill = {"rank": 1, "signal": signal.SIGTERM, "metrics": str(run / "metrics.jsonl"), "step": 2}
    done = crowd.train(2, *words, *FSDP, "--run-dir", run, kill=kill)
    assert done["codes"] == [130, 130], done
    kill = {"rank": 0, "signal": signal.SIGTERM, "metrics": str(run / "metrics.jsonl"), "step": 5}
    done = crowd.train(2, *words, "--set", "strategy=ddp", "--run-dir", run, "--resume", kill=kill)
    assert done["codes"] == [130, 130], done
    done = crowd.train(4, *words, *FSDP, "--run-dir", run, "--resume")
    assert done["codes"] == [0] * 4, done
    assert apart(alone, run) < 1e-4
    assert weights(alone).keys() == weights(run).keys()


def test_a_model_of_16_bits_learns_in_32_and_uneven_pieces(
    crowd: Crowd, workshop: Workshop, recipe: Path, narrow: Path, tmp_path: Path
) -> None:
    """Three processes, for which most weights do not come out even; all that is gathered lies on the disk."""
    words = [recipe, "--set", f"model={narrow}", "--set", "adapter=full", "--set", "schedule.learning_rate=1e-3"]
    alone, run = tmp_path / "alone", tmp_path / "run"
    assert crowd.train(1, *words, "--run-dir", alone, "--set", "schedule.batch=6")["codes"] == [0]
    kill = {"rank": 1, "signal": signal.SIGTERM, "metrics": str(run / "metrics.jsonl"), "step": 2}
    disk = {"all": {"STRIX_TEST_SPOOL": "1", "STRIX_TEST_WHOLE": "1"}}
    done = crowd.train(3, *words, *FSDP, "--run-dir", run, kill=kill, env=disk)
    assert done["codes"] == [130] * 3, done
    done = crowd.train(3, *words, *FSDP, "--run-dir", run, "--resume", env=disk)
    assert done["codes"] == [0] * 3, done
    assert apart(alone, run) < 1e-4
    configs = [json.loads((each / "model/config.json").read_text()) for each in (alone, run)]
    assert configs[0] == configs[1]
    assert configs[1]["dtype"] == "float32"


def test_what_cannot_be_shared_is_refused_with_its_cure(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    done = crowd.train(2, recipe, *FSDP, "--set", "backend=unsloth", "--run-dir", tmp_path / "run")
    assert done["codes"] == [2, 2]
    assert "Unsloth has whole weights here, which strategy fsdp shares; write backend: hf" in done["said"][0]
    done = crowd.train(2, recipe, "--set", "strategy=none", "--run-dir", tmp_path / "run")
    assert done["codes"] == [2, 2]
    assert "strategy none is for one process, and 2 were started" in done["said"][0]


def loaded(folder: Path) -> Any:
    """A model as it is before it is cut, to learn whole in 32 bits."""
    from strix_train import device
    from strix_train.backends.base import Load
    from strix_train.backends.hf import PlainBackend
    from strix_train.names import ModelName
    from strix_train.recipe.adapter import Full

    name, cpu = ModelName("narrow", str(folder), local=True), device.find(use_gpu=False)
    return PlainBackend().load(Load(name, cpu, "fp32", 64, False, 0, adapter=Full(kind="full"), stored=True))[0]


def mapped(tensor: Any, ends: str) -> bool:
    """Whether a tensor's first number lies in a mapped file whose name ends so, by the kernel's own list."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return line.endswith(ends)
    raise AssertionError("the tensor lies nowhere")


def test_weights_stay_in_their_files_until_they_are_cut(narrow: Path) -> None:
    """What fits on no single machine is never in its memory: pages of a file come and go as there is room."""
    import torch

    from strix_train.distributed.typed import Typed

    # what config.json says of them is not what counts
    config = narrow / "config.json"
    config.write_text(config.read_text().replace('"bfloat16"', '"float16"'))
    model = loaded(narrow)
    weights = dict(model.named_parameters())
    assert all(mapped(weight, ".safetensors") for weight in weights.values())
    # one layer gets its type, and no other
    Typed.of(model, torch.float32).give(model.model.layers[0])
    for path, weight in weights.items():
        inside = path.startswith("model.layers.0.")
        assert weight.dtype == (torch.float32 if inside else torch.bfloat16), path
        assert mapped(weight, ".safetensors") != inside, path


def test_what_is_gathered_lies_on_the_disk(tmp_path: Path) -> None:
    import torch

    value = torch.arange(3 * 2**18, dtype=torch.float32).view(3, -1)
    found = spool.kept(value, tmp_path / "new")
    assert torch.equal(found, value)
    assert found.data_ptr() != value.data_ptr()
    assert mapped(found, "(deleted)")
    assert list((tmp_path / "new").iterdir()) == []
    assert not mapped(spool.kept(torch.ones(3), tmp_path), "(deleted)")


def test_where_no_file_can_be_mapped_memory_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def no(*words: Any, **more: Any) -> Any:
        raise RuntimeError("unable to mmap 4194304 bytes from file: No such device (19)")

    monkeypatch.setattr(torch, "from_file", no)
    value = torch.ones(2**20)
    assert torch.equal(spool.kept(value, tmp_path), value)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_and_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def full(file: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        spool.kept(torch.ones(2**20), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_modules_that_need_32_bits_keep_them(narrow: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from strix_train.distributed.typed import Typed

    model = AutoModelForCausalLM.from_pretrained(str(narrow), dtype=torch.float32)
    model._keep_in_fp32_modules_strict = {"input_layernorm", "proj"}
    Typed.of(model, torch.bfloat16).give(model)
    wide = {name for name, weight in model.named_parameters() if weight.dtype == torch.float32}
    assert wide
    # the name of a module, not any part of it
    assert wide == {name for name, _ in model.named_parameters() if "input_layernorm" in name}


def test_numbers_that_are_in_no_file_are_not_rounded(tmp_path: Path) -> None:
    """Gemma's scale of embeddings is made in the type that the model is loaded in."""
    folder = halved(tiny.make("gemma3", tmp_path / "wide", hidden_size=80), tmp_path / "narrow")
    assert float(loaded(folder).get_input_embeddings().embed_scale) == pytest.approx(80**0.5, rel=1e-6)


def test_files_of_several_types_have_none(narrow: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from strix_train.backends import storedtype
    from strix_train.names import ModelName

    assert storedtype.of_files(ModelName("narrow", str(narrow), local=True)) == torch.bfloat16
    mixed = ModelName("mixed", str(tmp_path), local=True)
    assert storedtype.of_files(mixed) is None
    save_file({"a": torch.ones(2)}, str(tmp_path / "one.safetensors"))
    assert storedtype.of_files(mixed) == torch.float32
    save_file({"b": torch.ones(2, dtype=torch.uint8)}, str(tmp_path / "two.safetensors"))
    assert storedtype.of_files(mixed) is None


@pytest.mark.parametrize("shards", [1, 2])
def test_files_of_the_hub_are_asked_as_well(tmp_path: Path, shards: int) -> None:
    """One file, or several with an index, as they lie in the hub's cache; a file beside them that is not loaded."""
    import torch
    from safetensors.torch import save_file

    folder = tmp_path / "hub/models--some--model"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("0" * 40)
    names = ["model.safetensors"] if shards == 1 else [f"model-{n}.safetensors" for n in range(shards)]
    for number, name in enumerate(names):
        save_file({f"w{number}": torch.ones(2, dtype=torch.float16)}, str(snapshot / name))
    if shards > 1:
        index = {"weight_map": {f"w{number}": name for number, name in enumerate(names)}}
        (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"w": torch.ones(2)}, str(snapshot / "consolidated.safetensors"))
    code = (
        "from strix_train.backends import storedtype\nfrom strix_train.names import ModelName\n"
        "print(storedtype.of_files(ModelName('some/model', 'some/model', local=False)))"
    )
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "torch.float16", done.stderr


def test_an_optimizer_that_goes_on_lets_go_of_its_file(tmp_path: Path) -> None:
    """A file that is mapped keeps its place on the disk when the checkpoint is removed."""
    import torch
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    from strix_train.distributed.sharded import gathered_states, shared_states

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = fully_shard(torch.nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        torch.save(gathered_states(optimizer, tmp_path), tmp_path / "optimizer.pt")
        read = torch.load(tmp_path / "optimizer.pt", mmap=True, weights_only=True)
        optimizer.load_state_dict(shared_states(optimizer, read))
        del read
        assert "optimizer.pt" not in Path("/proc/self/maps").read_text()
    finally:
        distributed.destroy_process_group()
