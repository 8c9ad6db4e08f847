"""When a run is no longer worth its electricity: numbers that are not finite, and a loss that has run away. Pure.

A single high loss is a hard batch; a run that has diverged stays high. So a spike is a number of steps in a row, all
far above what the steps before them had.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

# Before this many steps nobody knows what is usual.
_FEW = 10
# In nats: of a loss near zero a multiple means nothing, and of a high one a multiple is never reached.
_LEAST, _MOST = 1.0, 4.0
# fp16 looks for a scale of the loss by overflowing now and then, and leaves those steps out.
_OVERFLOWS = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why the run must stop: at `step`, `what` happened. `good`: the last step before anything was wrong."""

    step: int
    what: str
    good: int


@dataclass(slots=True)
class Guard:
    """Looks at each optimizer step. `factor` 0 looks for numbers that are not finite only.

    A spike: `patience` losses in a row above `factor` times the median of the `window` usual losses before them (at
    least 1 and at most 4 above it).
    """

    factor: float = 2.0
    patience: int = 5
    window: int = 20
    _usual: list[float] = field(default_factory=list)
    _high: list[int] = field(default_factory=list)
    _overflows: int = 0

    def remember(self, rows: Iterable[tuple[int, float]]) -> None:
        """Take (step, loss) of a run that goes on, so that it stops where the undisturbed run would have stopped."""
        for step, loss in rows:
            if math.isfinite(loss):
                self._spike(step, loss)

    def look(self, step: int, loss: float, norm: float, *, left_out: bool = False) -> Verdict | None:
        """Return a verdict where the run must stop. `left_out`: the optimizer did not take this step (fp16)."""
        if not math.isfinite(loss):
            return Verdict(step, f"the loss became {loss} at step {step}", self._before(step))
        self._overflows = self._overflows + 1 if left_out else 0
        if self._overflows >= _OVERFLOWS:
            what = f"the gradient did not fit into fp16 for {_OVERFLOWS} steps up to step {step}"
            return Verdict(step, what, step - _OVERFLOWS)
        if not math.isfinite(norm) and not left_out:
            return Verdict(step, f"the gradient became {norm} at step {step}", self._before(step))
        return self._spike(step, loss)

    @property
    def suspicious_since(self) -> int | None:
        """The first step of what may become a spike."""
        return self._high[0] if self._high else None

    def _before(self, step: int) -> int:
        return (self._high[0] if self._high else step) - 1

    def _spike(self, step: int, loss: float) -> Verdict | None:
        if not self.factor:
            return None
        if len(self._usual) >= _FEW:
            usual = median(self._usual[-self.window :])
            limit = usual + min(max((self.factor - 1) * usual, _LEAST), _MOST)
            if loss > limit:
                self._high.append(step)
                if len(self._high) < self.patience:
                    return None
                what = (
                    f"the loss has been above {limit:.2f} since step {self._high[0]}: it is {loss:.4g} at step {step}, "
                    f"and {usual:.4g} was usual before"
                )
                return Verdict(step, what, self._high[0] - 1)
        self._high.clear()
        self._usual.append(loss)
        del self._usual[: -self.window]
        return None
