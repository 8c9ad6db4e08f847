"""Remove what may go from an engine's store, and measure what that gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strix_finetune.engine import stored
from strix_finetune.engine.base import Engine
from strix_finetune.errors import EngineError
from strix_finetune.prune import Policy, Verdict, decide, freed
from strix_finetune.supply import attest


@dataclass(frozen=True, slots=True)
class Plan:
    """Every image of this project with its verdict, and the bytes that only images have which go."""

    verdicts: tuple[Verdict, ...]
    size: int

    @property
    def going(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if not verdict.keep)


@dataclass(frozen=True, slots=True)
class Done:
    """What was removed, what could not be and why, and the bytes in use before and after (None: not to be seen)."""

    removed: tuple[Verdict, ...]
    left: tuple[tuple[Verdict, str], ...]
    before: int | None
    after: int | None


def plan(engine: Engine, policy: Policy, now: float) -> Plan:
    """Look, and touch nothing. Raises EngineError."""
    images = stored.images(engine)
    verdicts = decide(images, stored.uses(engine), policy, now)
    return Plan(tuple(verdicts), freed(images, verdicts, lambda image: stored.layer_sizes(engine, image)))


def carry_out(engine: Engine, going: Sequence[Verdict], state: Path) -> Done:
    """Remove images, those that stand on others first; and what was signed about them."""
    before = stored.used(engine)
    removed: list[Verdict] = []
    left: list[tuple[Verdict, str]] = []
    for verdict in sorted(going, key=lambda verdict: -len(verdict.image.layers)):
        try:
            for tag in verdict.image.tags:
                engine.untag(tag)
            engine.remove(verdict.image.id)
            if engine.image(verdict.image.id) is None:
                attest.path(state, verdict.image.id).unlink(missing_ok=True)
                removed.append(verdict)
            else:
                left.append((verdict, "something has begun to use it"))
        except EngineError as error:
            left.append((verdict, str(error.problems[0].message)))
    return Done(tuple(removed), tuple(left), before, stored.used(engine))
