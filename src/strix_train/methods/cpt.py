"""Continued pretraining: plain text, of which every token is learned."""

from __future__ import annotations

from collections.abc import Iterator

from strix_train.data.mix import Rows
from strix_train.data.rows import Document
from strix_train.methods import Job, Outcome, ready
from strix_train.methods.sft import learn
from strix_train.tokens import Column, blocks


def train(job: Job) -> Outcome:
    """Train, save the adapter, and ask the questions before and after. Raises TrainError and InputError."""
    made = ready.load(job)
    rows = _blocks(job, made, job.plan.train, "text")
    evaluation = _blocks(job, made, job.plan.evaluation, "eval text") if job.plan.evaluation else None
    return learn(job, made, rows, evaluation, responses_only=False)


def _blocks(job: Job, made: ready.Ready, rows: Rows, what: str) -> dict[str, Column]:
    """Return the text as rows of max_length tokens, each its own label."""
    recipe = job.plan.loaded.recipe
    column = Column()
    joined = recipe.data.packing is not False
    for row in blocks(_documents(rows), made.text, recipe.schedule.max_length, joined=joined):
        # a single token predicts nothing
        if len(row) > 1:
            column.append(row)
    job.console.fact(what, f"{len(column.values):,} tokens in {len(column)} rows, all of which count in the loss")
    return {"input_ids": column, "labels": column}


def _documents(rows: Rows) -> Iterator[Document]:
    for row in rows:
        assert isinstance(row, Document)  # the formats of a method decide that
        yield row
