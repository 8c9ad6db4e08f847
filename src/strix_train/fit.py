"""Whether the rows fit the model: its chat template takes them, answers are found in it, and max_length keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train import localtext, template
from strix_train.data.rows import Conversation, Document, Preference, Prompt, Rated, Row
from strix_train.encode import Encoded, encoder
from strix_train.errors import InputError, Problem
from strix_train.names import ModelName
from strix_train.recipe.load import Loaded
from strix_train.recipe.rows import Question
from strix_train.recipe.watching import Sample
from strix_train.sources import Set

# How many kinds of conversations, by the order of their roles, are put to the template.
SHAPES = 200
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "chat_template.jinja")
# Share of the rows that may lose their whole answer before a run is refused.
LOST = 0.5


@dataclass(frozen=True, slots=True)
class Template:
    """How rows become text. `mode`: auto, chat or plain; `source`: a template in place of the model's own."""

    mode: str
    source: str | None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Rows in tokens. Of `sampled` rows: median, 95th percentile and longest. `cut` and `lost` of `long` rows.

    `cut`: rows longer than max_length; `lost`: those that keep nothing of their answer. Where `exact` is false, the
    two are estimated from a sample.
    """

    sampled: int
    median: int
    high: int
    longest: int
    cut: int
    lost: int
    exact: bool


def template_of(loaded: Loaded) -> Template:
    """Return the template that the recipe names. Raises InputError where it is not there, or is not Jinja."""
    word = loaded.recipe.data.template
    if word in ("auto", "chat", "plain"):
        return Template(word, None)
    if word == "simple":
        return Template("chat", template.SIMPLE)
    place = loaded.place("data", "template")
    path = loaded.beside(word)
    if not path.is_file():
        cure = "it may be auto, chat, plain, simple, or a .jinja file"
        raise InputError(Problem(f"there is no template '{word}'", place, cure))
    try:
        source = path.read_text(encoding="utf-8")
        template.compiled(source)
    except (OSError, ValueError) as error:
        raise InputError(Problem(f"{path} is not a Jinja template: {error}", place, "look at that line")) from None
    return Template("chat", source)


def check(
    loaded: Loaded, model: ModelName, wish: Template, sets: Sequence[Set], questions: Sequence[Question]
) -> dict[int, Lengths]:
    """Check the rows against the model's files, where they are on this machine; return lengths by set.

    Raises InputError for what the template refuses, and where most answers would be cut away.
    """
    folder = localtext.folder_of(model)
    if folder is None or not any((folder / name).is_file() for name in _TOKENIZER):
        return {}
    try:
        own = wish.source or template.of_folder(folder)
        if own is not None:
            template.compiled(own)
    except ValueError as error:
        what = f"the chat template of {folder} is broken: {error}"
        raise InputError(Problem(what, loaded.place("model"), "name another one with data.template")) from None
    _has_template(loaded, wish, own, sets, folder)
    if own is not None:
        chat = template.ChatTemplate(own, template.special_tokens(folder))
        if wish.mode != "plain":
            _shapes(chat, sets)
        _asked(chat, loaded, questions)
    try:
        text = localtext.of_folder(folder, own)
    except ValueError as error:
        raise InputError(Problem(str(error), loaded.place("model"), "fetch the model again")) from None
    if text is None:
        return {}
    recipe = loaded.recipe
    encode = encoder(text, template=wish.mode, responses_only=recipe.responses_only, max_length=1 << 30)
    lengths = {index: _lengths(each, encode, recipe.schedule.max_length) for index, each in enumerate(sets)}
    _too_long(loaded, sets, lengths)
    return lengths


def _has_template(loaded: Loaded, wish: Template, own: str | None, sets: Sequence[Set], folder: Path) -> None:
    """Refuse conversations for a model without a template, by their first row."""
    if own is not None:
        return
    cure = "write data.template: simple, take an instruction-tuned model, or write prompt/completion rows"
    if wish.mode == "chat":
        place = loaded.place("data", "template")
        raise InputError(
            Problem(f"the model in {folder} has no chat template", place, "write template: simple, or plain")
        )
    talks = [row for each in sets for row in list(each.look.shapes.values())[:1]]
    if talks:
        what = "the rows are conversations and the model has no chat template"
        raise InputError([Problem(what, row.place, cure) for row in talks[:1]])


def _shapes(model: template.ChatTemplate, sets: Sequence[Set]) -> None:
    """Put one conversation of each order of roles to the template. Raises InputError with those it refuses."""
    problems: list[Problem] = []
    for each in sets:
        for row in list(each.look.shapes.values())[:SHAPES]:
            messages = [{"role": turn.role, "content": turn.content, **(turn.extra or {})} for turn in row.turns]
            try:
                model.render(messages, answer_next=False, tools=list(row.tools) if row.tools else None)
            except ValueError as error:
                what = f"the model's chat template refuses this conversation: {error}"
                problems.append(Problem(what, row.place, _cure_refused(row, str(error))))
    if problems:
        raise InputError(problems[:20])


def _asked(model: template.ChatTemplate, loaded: Loaded, questions: Sequence[Question]) -> None:
    """Put what is asked before, while and after training to the template. Raises InputError with what it refuses."""
    samples = loaded.recipe.samples
    asked: list[tuple[tuple[str | int, ...], Question | Sample]] = [(("questions",), each) for each in questions]
    asked += [(("samples", "ask", index), each) for index, each in enumerate((samples and samples.ask) or ())]
    problems = []
    for keys, each in asked:
        system = [{"role": "system", "content": each.system}] if each.system else []
        try:
            model.render([*system, {"role": "user", "content": each.prompt}], answer_next=True)
        except ValueError as error:
            what = f"the model's chat template refuses the question '{each.prompt[:40]}': {error}"
            cure = "leave its 'system' out" if each.system else "name another data.template"
            problems.append(Problem(what, loaded.place(*keys), cure))
    if problems:
        raise InputError(problems[:20])


def _cure_refused(row: Conversation, said: str) -> str:
    if row.turns[0].role in ("system", "developer"):
        return "write data.merge_system: true to put the system message in front of the first question"
    if any(turn.role == "tool" for turn in row.turns):
        return "this model's template knows no tools: leave such rows out, or name another data.template"
    return "mend the row, or name another data.template"


def _lengths(each: Set, encode: Any, most: int) -> Lengths:
    """Tokenise the samples of a set: an even one of all rows, and one of those that may be too long.

    Raises InputError for a row of which nothing would be learned although it is whole.
    """
    counts: list[int] = []
    for row in each.look.some.items:
        for one in _encoded(row, encode):
            if not one.learned:
                what = "no token of this row's answer is found in what the model's template makes of it"
                raise InputError(Problem(what, row.place, "write responses_only: false, or name another data.template"))
            counts.append(len(one.ids))
    counts.sort()
    long = [one for row in each.look.long.items for one in _encoded(row, encode)]
    over = [one for one in long if len(one.ids) > most]
    lost = [one for one in over if one.learned and not any(label >= 0 for label in one.labels[:most])]
    share = each.look.long.seen / max(1, len(each.look.long.items))
    if not counts:
        return Lengths(0, 0, 0, 0, 0, 0, True)
    longest = max(counts[-1], max((len(one.ids) for one in long), default=0))
    return Lengths(
        sampled=len(counts),
        median=counts[len(counts) // 2],
        high=counts[min(len(counts) - 1, len(counts) * 95 // 100)],
        longest=longest,
        cut=round(len(over) * share),
        lost=round(len(lost) * share),
        exact=share == 1,
    )


def _encoded(row: Row, encode: Any) -> list[Encoded]:
    """Return the token rows that a row becomes; none for what has no length of its own."""
    if isinstance(row, (Document, Prompt)):
        return []
    if isinstance(row, Preference):
        return [encode(row.chosen), encode(row.rejected)]
    return [encode(row.row if isinstance(row, Rated) else row)]


def _too_long(loaded: Loaded, sets: Sequence[Set], lengths: dict[int, Lengths]) -> None:
    """Refuse a run in which most rows teach nothing."""
    rows = sum(each.look.rows for each in sets if each.role == "train")
    lost = sum(found.lost for index, found in lengths.items() if sets[index].role == "train")
    if lost <= LOST * rows:
        return
    longest = max(found.longest for found in lengths.values())
    about = "" if all(found.exact for found in lengths.values()) else "about "
    most = loaded.recipe.schedule.max_length
    what = f"{about}{lost} of {rows} rows lose their whole answer to max_length ({most} tokens): all labels are masked"
    cure = f"the longest row has {longest} tokens: raise schedule.max_length"
    raise InputError(Problem(what, loaded.place("schedule", "max_length"), cure))
