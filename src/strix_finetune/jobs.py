"""What a cluster's scheduler runs, where Slurm and Kubernetes have it in common: pure but for the recipe's files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from strix_finetune.errors import InputError
from strix_finetune.recipefacts import RecipeFacts

# ports between nodes: the first is the rendezvous
PORT = 29400
_VARIABLE = re.compile(r"[A-Za-z_]\w*=[\w.,:=/+@-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Work:
    """The words that each node runs, and what they need of the host that they are said on.

    `trains`: it is a run by a recipe, whose folder `train` gets with --run-dir; `run`: that folder where the words
    name one, else `output`, the folder of the runs; `models`: with bare names, which lie in the folder of models.
    """

    words: tuple[str, ...]
    facts: RecipeFacts = field(default_factory=RecipeFacts)
    trains: bool = False
    run: str = ""
    output: str = ""
    models: tuple[str, ...] = ()


def work(words: Sequence[str], project: Path, recipes: Path, models: Path) -> Work:
    """Look at a command. Raises InputError where there is none, and for what its recipe names and is not there."""
    from strix_finetune import recipefacts

    if not words:
        raise InputError("what the job runs is not said", cure="write it last, behind --: -- train recipe.yaml")
    for word in words:
        if re.search(r"[\x00-\x1f\x7f]", word):
            raise InputError(f"the word {word!r} has a control character", cure="put the command into a script")
    rest = list(words[1:])
    if words[0] != "train" or not rest or rest[0].startswith("-"):
        return Work(tuple(words), recipefacts.of_words(words, project))
    from strix_train.cli import cli

    if rest[0] == "run":
        rest = rest[1:]
    elif rest[0] in cli.commands:
        return Work(tuple(words), recipefacts.of_words(words, project))
    if not rest:
        raise InputError("'train run' names no recipe", cure="name one behind it")
    facts = recipefacts.find(rest[0], rest[1:], project, recipes, models)
    # what has a bare name lies in a folder that is mounted as a whole
    bare = tuple(path for path in facts.reads if path.is_relative_to(models))
    facts = replace(facts, reads=tuple(path for path in facts.reads if path not in bare))
    run, kept = _without(rest[1:], "--run-dir")
    where = str(facts.writes[0])
    return Work(
        ("train", "run", facts.argument, *kept),
        facts,
        True,
        where if run else "",
        "" if run else where,
        tuple(path.name for path in bare),
    )


def network(target: str, *, gpu: bool, rdma: bool) -> Mapping[str, str]:
    """What RCCL is told of the network between nodes, for whoever has not said it himself."""
    from strix_finetune.cluster.environment import UNIFIED

    if not gpu:
        return {}
    # one adapter is for whoever starts it to name: several by a prefix end in an error
    told = {"NCCL_IB_TIMEOUT": "23", "NCCL_IB_RETRY_CNT": "7"} if rdma else {"NCCL_IB_DISABLE": "1"}
    # its GPU's memory is the host's: there is nothing that an adapter could reach past the processor
    return told | ({"NCCL_NET_GDR_LEVEL": "0"} if target in UNIFIED else {})


def variables(words: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE words. Raises InputError for what not every definition could hold."""
    for word in words:
        if not _VARIABLE.fullmatch(word):
            raise InputError(
                f"--env cannot be '{word}'", cure="write NAME=VALUE, of letters, digits and _.,:=/+@-, without blanks"
            )
    return dict(word.split("=", 1) for word in words)


def _without(words: Sequence[str], option: str) -> tuple[str, list[str]]:
    """The option's value, and the words without both."""
    value, kept = "", []
    rest = iter(words)
    for word in rest:
        name, equals, inline = word.partition("=")
        if name == option:
            value = inline if equals else next(rest, "")
        else:
            kept.append(word)
    return value, kept
