"""What loads a model and builds its trainer: one module each, chosen before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from strix_train.backends.base import Backend
from strix_train.errors import InputError, Problem

NAMES = ("unsloth", "hf")
_INSTALL = "install the packages of the extra: pip install 'strix-finetune[train]'"


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend's name and why it was taken. `firm`: asked for, so that there is no other way."""

    name: str
    reason: str
    firm: bool


def choose(wanted: str, method: str = "sft", adapter: str = "lora", strategy: str = "auto") -> Choice:
    """Choose a backend by what is installed and can do it; imports none. Raises InputError when nothing fits."""
    if adapter in ("qlora", "lora8bit") and find_spec("bitsandbytes") is None:
        raise InputError(Problem(f"adapter {adapter} needs bitsandbytes, which is not here", cure=_INSTALL))
    cannot = unable(method, adapter, strategy)
    if adapter == "lora8bit" and not any(Path(device).exists() for device in _GPUS):
        cannot = "holds no model in 8 bits on a CPU"
    if wanted == "unsloth" and cannot:
        raise InputError(Problem(f"Unsloth {cannot}", cure="write backend: hf, or auto"))
    if wanted == "auto" and cannot and find_spec("transformers") and find_spec("peft"):
        return Choice("hf", f"auto: Unsloth {cannot}", True)
    if wanted != "auto":
        if find_spec(_PACKAGE[wanted]) is None:
            raise InputError(Problem(f"backend {wanted} needs {_PACKAGE[wanted]}, which is not here", cure=_INSTALL))
        return Choice(wanted, "asked for", True)
    if find_spec("unsloth") is not None:
        return Choice("unsloth", "auto: Unsloth is installed", False)
    if find_spec("transformers") is not None and find_spec("peft") is not None:
        return Choice("hf", "auto: Unsloth is not installed", False)
    raise InputError(Problem("neither Unsloth nor transformers with peft is installed here", cure=_INSTALL))


def unable(method: str, adapter: str, strategy: str = "auto") -> str:
    """Return why Unsloth cannot train this, on no device; empty where it can."""
    return _NOT_BY_UNSLOTH.get(method) or _NOT_BY_UNSLOTH.get(adapter) or _NOT_BY_UNSLOTH.get(strategy, "")


def start(choice: Choice) -> tuple[Backend, Choice]:
    """Import the chosen backend. With `auto`, one that does not import gives way to hf, and the reason says why."""
    from strix_train.backends.hf import PlainBackend
    from strix_train.backends.unsloth import UnslothBackend
    from strix_train.errors import TrainError

    if choice.name == "hf":
        return PlainBackend(), choice
    try:
        return UnslothBackend(), choice
    except Exception as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        if choice.firm:
            raise TrainError(
                f"Unsloth does not import here: {why}", cure="write backend: hf to do without it"
            ) from error
        return PlainBackend(), Choice("hf", f"auto: Unsloth does not import here: {why}", False)


_PACKAGE = {"unsloth": "unsloth", "hf": "transformers"}
_GPUS = ("/dev/kfd", "/dev/nvidiactl")
_NOT_BY_UNSLOTH = {
    "reward": "trains no reward models",
    "dora": "has no kernels for adapter dora",
    "fsdp": "has whole weights here, which strategy fsdp shares",
    "deepspeed": "has whole weights here, which strategy deepspeed shares",
}
