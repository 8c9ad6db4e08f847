"""Answers of a trained run, an adapter, or a plain model folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train import importing, scorer
from strix_train.console import Console
from strix_train.errors import InputError, Place, Problem, TrainError, at
from strix_train.names import ModelName, find_model
from strix_train.recipe import places


@dataclass(frozen=True, slots=True)
class Source:
    """What answers: a base model and, where there is one, the adapter folder on top of it. `run`: the run folder."""

    base: ModelName
    adapter: Path | None
    run: Path | None = None

    @property
    def part(self) -> str:
        """The name of what it is of its run where that is not the result: checkpoint-40, say; else nothing."""
        folder = self.adapter or Path(self.base.source)
        return "" if self.run is None or folder in (self.run / "adapter", self.run / "model") else folder.name


def find_source(word: str) -> Source:
    """Resolve a run folder, a checkpoint, an adapter folder, a model folder or a model's name. Raises InputError."""
    folder = Path(word).absolute()
    if _is_run(folder):
        if (folder / "adapter" / "adapter_config.json").is_file():
            return Source(base_of_run(folder), folder / "adapter", folder)
        if (folder / "model" / "config.json").is_file():
            return Source(ModelName(word, str(folder / "model"), True), None, folder)
        cure = "finish it with --resume" if (folder / "checkpoints").is_dir() else "train again"
        raise InputError(Problem(f"the run in {folder} has no adapter yet, nor a model", cure=cure))
    run = next((above for above in (folder.parent, folder.parent.parent) if _is_run(above)), None)
    if (folder / "adapter_config.json").is_file():
        if run:
            return Source(base_of_run(run), folder, run)
        base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8")).get("base_model_name_or_path")
        return Source(find_model(str(base), folder, at(folder / "adapter_config.json")), folder)
    return Source(find_model(word, Path.cwd(), Place("RUN")), None, run)


def _is_run(folder: Path) -> bool:
    return (folder / "recipe.resolved.yaml").is_file()


def base_of_run(folder: Path) -> ModelName:
    """Return the model that a run was trained from. Raises InputError where it is not there any more."""
    recipe = folder / "recipe.resolved.yaml"
    located = places.read(recipe)
    word = located.value.get("model") if isinstance(located.value, dict) else None
    if not isinstance(word, str):
        raise InputError(Problem("names no model", at(recipe)))
    try:
        return find_model(word, folder, located.place(("model",), at(recipe)))
    except InputError as error:
        raise InputError(
            Problem(
                f"{error.problems[0].message}, which the adapter was trained on", at(recipe), error.problems[0].cure
            )
        ) from None


def load(source: Source, *, on_cpu: bool = False, scores: bool = False) -> tuple[Any, Any]:
    """Return model and tokenizer, ready to answer: on this machine's device, or in main memory.

    `scores`: it is a reward model, which is refused otherwise. Raises InputError.
    """
    if not scores:
        scorer.refuse(source, "it cannot be asked")
    _has_tokenizer(source)
    from strix_train import device as devices
    from strix_train import ruling
    from strix_train.backends.hf import dtype_of

    device = devices.find(use_gpu=not on_cpu)
    importing.ensure(source.base, Console())
    facts = ruling.model_facts(source.base)
    rules = ruling.find(device, facts, 16)
    ruling.before_import(rules)
    try:
        from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
    except ImportError as error:
        raise TrainError(f"transformers does not import here: {error}") from error
    ruling.after_import(rules, device)
    kind: Any = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    model = kind.from_pretrained(
        source.base.source,
        dtype=dtype_of(devices.precision("auto", device, facts)),
        device_map={"": device.torch},
        local_files_only=source.base.local,
        **ruling.loading(rules),
        **({"num_labels": 1} if scores else {}),
    )
    words = source.adapter or Path(source.base.source)
    tokenizer = AutoTokenizer.from_pretrained(str(words), local_files_only=source.base.local)
    if source.adapter:
        model = with_adapter(model, source.adapter)
    return model.eval(), tokenizer


def _has_tokenizer(source: Source) -> None:
    """Raise InputError where a model's folder has none of the files that a tokenizer is made of."""
    folder = Path(source.base.source)
    if source.adapter is None and folder.is_dir():
        kinds = ("tokenizer*", "vocab*", "spiece.model", "tekken.json")
        if not any(any(folder.glob(kind)) for kind in kinds):
            what = f"the model in {folder} has no tokenizer"
            raise InputError(Problem(what, cure="add the tokenizer.json that it came with"))


def with_adapter(model: Any, adapter: Path) -> Any:
    """Return the model with an adapter. Raises TrainError where its weights have no place in the model.

    peft only warns then, and the model answers as if it had never been trained.
    """
    import torch
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors.torch import load_file

    made = PeftModel.from_pretrained(model, str(adapter))
    file = adapter / "adapter_model.safetensors"
    if file.is_file():
        written, taken = load_file(str(file)), get_peft_model_state_dict(made)
        lost = [name for name in written if name not in taken]
        if not lost:
            lost = [name for name, value in written.items() if not _equal(value, taken[name], torch)]
        if lost:
            raise TrainError(
                f"the adapter {adapter} does not fit the model: {len(lost)} of its {len(written)} weights have no "
                f"place in it, such as {lost[0]}",
                cure="take the model that it was trained on",
            )
    return made


def _equal(one: Any, other: Any, torch: Any) -> bool:
    # a head that learned whole is held in the model's own number format
    return one.shape == other.shape and bool(torch.equal(one.to(other.dtype), other.detach().cpu()))


def generate(
    source: Source, questions: Sequence[Any], *, max_new_tokens: int, temperature: float, seed: int
) -> list[Any]:
    """Return an Answer for each question."""
    from strix_train.answers import ask

    model, tokenizer = load(source)
    return list(ask(model, tokenizer, questions, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed))
