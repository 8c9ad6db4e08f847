"""An export from beginning to end: made beside its place, loaded again and compared, then given its name."""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strix_train import __version__, scorer
from strix_train.console import gigabytes
from strix_train.errors import InputError, Problem, TrainError
from strix_train.export import Kind, Quantization
from strix_train.export import probes as probing
from strix_train.export.probes import Comparison, Probe
from strix_train.generate import Source
from strix_train.runfolder import readable

Tell = Callable[[str], None]
# Bits a weight, blocks' scales included.
_BITS = {"f16": 16.0, "q8_0": 8.5, "q4_k_m": 4.9}


@dataclass(frozen=True, slots=True)
class Wish:
    """What to make. `target`: a folder that does not exist yet. `check`: whether it is compared with the model."""

    source: Source
    kind: Kind
    quantization: Quantization
    target: Path
    check: bool = True


@dataclass(frozen=True, slots=True)
class Made:
    """What was made: its folder, its files with their sizes in bytes, and how near it is to the model."""

    folder: Path
    files: dict[str, int]
    comparison: Comparison | None


def default_target(source: Source, kind: Kind, quantization: Quantization) -> Path:
    """Return where an export goes unless told otherwise: into the run, beside an adapter, or here."""
    name = f"gguf-{quantization}" if kind == "gguf" else kind
    if source.run:
        return source.run / "export" / (f"{source.part}-{name}" if source.part else name)
    return (source.adapter.parent if source.adapter else Path.cwd()) / f"export-{name}"


def export(wish: Wish, tell: Tell) -> Made:
    """Make an export. Raises InputError and TrainError; nothing is left behind then."""
    if wish.kind != "adapter" or wish.source.adapter is None:
        scorer.refuse(wish.source, f"there is no export of it as {wish.kind}")
    target = wish.target.absolute()
    if target.exists():
        raise InputError(Problem(f"{target} exists", cure="remove it, or name another folder with --to"))
    if wish.kind == "adapter" and wish.source.adapter is None:
        what = "every weight of this model was trained, so there is no adapter"
        raise InputError(Problem(what, cure="write --as merged"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _room(wish, target.parent)
        aside = target.with_name(f".{target.name}.partial")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
    except OSError as error:
        raise InputError(Problem(f"{target.parent} cannot be written: {error.strerror}", cure="give --to")) from None
    try:
        comparison = {"adapter": _adapter, "merged": _merged, "gguf": _gguf}[wish.kind](wish, aside, tell)
        facts = _facts(wish, aside, comparison)
        (aside / "export.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        readable(aside)
        aside.replace(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return Made(target, {name: entry["size"] for name, entry in facts["files"].items()}, comparison)


def _room(wish: Wish, folder: Path) -> None:
    from strix_train.export.merge import size_of

    weights, whole = size_of(wish.source)
    # a file of few bits is made of one of 16, beside the merged model
    file = int(weights * (_BITS[wish.quantization] + (16 if wish.quantization == "q4_k_m" else 0)) / 8)
    needed = {"adapter": 0, "merged": whole, "gguf": whole + file}[wish.kind]
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise TrainError(
            f"the disk of {folder} has {gigabytes(free)} left and the export needs about {gigabytes(needed)} while it "
            "is made",
            cure="make room, or name another disk with --to",
        )


def _facts(wish: Wish, folder: Path, comparison: Comparison | None) -> dict[str, Any]:
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            files[str(path.relative_to(folder))] = {"size": path.stat().st_size, "sha256": digest}
    return {
        "kind": wish.kind,
        "quantization": wish.quantization if wish.kind == "gguf" else None,
        "model": wish.source.base.word,
        "adapter": str(wish.source.adapter) if wish.source.adapter else None,
        "comparison": asdict(comparison) if comparison else None,
        "strix_train": __version__,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "files": files,
    }


def _adapter(wish: Wish, aside: Path, tell: Tell) -> None:
    """Copy the adapter so that it can be sent away: its model is named as the recipe names it, by no path of ours."""
    assert wish.source.adapter is not None
    kept = ("adapter_", "tokenizer", "special_tokens", "chat_template", "vocab", "merges", "added_tokens")
    for path in sorted(wish.source.adapter.iterdir()):
        if path.is_file() and path.name.startswith(kept):
            shutil.copyfile(path, aside / path.name)
    config = json.loads((aside / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = wish.source.base.word
    (aside / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _merged(wish: Wish, aside: Path, tell: Tell) -> Comparison | None:
    from strix_train.export import merge

    probes = _merge_into(wish, aside, tell)
    if not probes:
        return None
    tell("loading it again …")
    model, tokenizer = merge.reload(aside)
    found = probing.compare(probes, probing.replies(model, tokenizer, probes))
    probing.check("the merged model", "merged", found)
    return found


def _merge_into(wish: Wish, folder: Path, tell: Tell) -> list[Probe]:
    """Write the merged model, and return what it answered before, with its adapter."""
    from strix_train.export import merge

    tell("loading the model …")
    model, tokenizer = merge.load_for_merging(wish.source)
    probes: list[Probe] = []
    if wish.check:
        folder_of = wish.source.adapter or Path(wish.source.base.source)
        probes = probing.take(model, tokenizer, probing.questions_of(wish.source.run, folder_of))
    tell("merging …")
    merge.merge(model, tokenizer, folder)
    merge.copy_processor(wish.source.base, folder)
    del model
    gc.collect()
    return probes


def _gguf(wish: Wish, aside: Path, tell: Tell) -> Comparison | None:
    from strix_train.export import tools as finding

    tools = finding.find(wish.quantization)
    merged = aside / "merged"
    merged.mkdir()
    probes = _merge_into(wish, merged, tell)
    name = f"{_stem(wish)}-{wish.quantization}.gguf"
    tell(f"converting to {wish.quantization} …")
    if wish.quantization == "q4_k_m":
        whole = aside / "whole.gguf"
        finding.convert(tools, merged, whole, "f16")
        finding.quantize(tools, whole, aside / name, wish.quantization)
        whole.unlink()
    else:
        finding.convert(tools, merged, aside / name, wish.quantization)
    (aside / "Modelfile").write_text(_modelfile(merged, name), encoding="utf-8")
    found = _ask_llama(tools.server, aside / name, merged, probes, wish, tell) if probes else None
    shutil.rmtree(merged)
    return found


def _stem(wish: Wish) -> str:
    """Return a file name that says which model and run this is."""
    from strix_train.recipe import places

    name = Path(wish.source.base.word).name
    if wish.source.run:
        recipe = places.read(wish.source.run / "recipe.resolved.yaml").value
        name = Path(str(recipe.get("model", name))).name if isinstance(recipe, dict) else name
        run = wish.source.run.name
        name = run if run.startswith(name) else f"{name}-{run}"
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)


def _ask_llama(
    program: Path | None, gguf: Path, merged: Path, probes: list[Probe], wish: Wish, tell: Tell
) -> Comparison | None:
    """Ask llama.cpp what the model was asked. Raises TrainError where it reads other tokens or answers otherwise."""
    from strix_train.export.server import serving

    if program is None:
        tell("not compared with the model: there is no llama-server here")
        return None
    tell("asking llama.cpp …")
    longest = max(len(probe.tokens) for probe in probes)
    with serving(program, gguf, context=max(512, longest + 64)) as server:
        for probe in probes:
            if server.tokens(probe.text) != list(probe.tokens):
                raise TrainError(
                    f"llama.cpp reads other tokens from {gguf.name} than the model's tokenizer, so it was not kept",
                    cure="report it with the model's name",
                )
        found = probing.compare(probes, [server.reply(probe) for probe in probes])
    probing.check(gguf.name, wish.quantization, found)
    return found


def _modelfile(merged: Path, gguf: str) -> str:
    from transformers import AutoTokenizer, GenerationConfig

    from strix_train.export.modelfile import find_turns, modelfile
    from strix_train.tokenizer import Adapted

    tokenizer = AutoTokenizer.from_pretrained(str(merged), local_files_only=True)
    text = Adapted(tokenizer)
    turns = (
        find_turns(lambda messages: text.render(messages, answer_next=True), text.bos) if text.has_template else None
    )
    stops = [tokenizer.eos_token] if tokenizer.eos_token else []
    settings: dict[str, float] = {}
    try:
        config = GenerationConfig.from_pretrained(str(merged), local_files_only=True)
    except OSError:
        config = None
    if config is not None:
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        stops += [str(tokenizer.convert_ids_to_tokens(end)) for end in ends if end is not None]
        wanted = {"temperature": config.temperature, "top_p": config.top_p, "top_k": config.top_k}
        if config.do_sample:
            settings = {name: float(value) for name, value in wanted.items() if value is not None}
    return modelfile(gguf, turns, stops, settings)
