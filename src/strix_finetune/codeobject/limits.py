"""How much one reading may cost, and the running account of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from .faults import LimitExceeded
from .model import CodeObject, Container

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one reading; sizes in bytes.

    The defaults are far above what ROCm's libraries need, and bound a hostile file to minutes and about 300 MB.
    `work`: bytes read or decompressed. `metadata`: bytes of tables and notes in all, `one_table` of each; a table is
    held in memory. `window_log`: 2^27 is what zstd itself accepts by default and what compilers write; the window
    is memory too.
    """

    work: int = 64 * GIB
    window_log: int = 27
    metadata: int = 256 * MIB
    one_table: int = 32 * MIB
    entries: int = 4096
    objects: int = 200_000
    section_headers: int = 100_000


@dataclass(slots=True)
class Ledger:
    """What was found so far in one file, and what it cost."""

    limits: Limits
    objects: list[CodeObject] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    work: int = 0
    metadata: int = 0

    def spend(self, size: int) -> None:
        """Count bytes that were read or decompressed."""
        self.work += size
        if self.work > self.limits.work:
            raise LimitExceeded(f"it takes more than {self.limits.work // MIB} MiB of reading and decompression")

    def spend_metadata(self, size: int) -> None:
        """Count tables and notes, which are walked value by value and so cost far more a byte."""
        self.metadata += size
        if self.metadata > self.limits.metadata:
            raise LimitExceeded(f"it holds more than {self.limits.metadata // MIB} MiB of tables and notes")

    def add(self, item: CodeObject) -> None:
        if len(self.objects) >= self.limits.objects:
            raise LimitExceeded(f"holds more than {self.limits.objects} code objects")
        self.objects.append(item)

    def add_container(self, item: Container) -> None:
        if len(self.containers) >= self.limits.objects:
            raise LimitExceeded(f"holds more than {self.limits.objects} bundles")
        self.containers.append(item)

    def warn(self, message: str) -> None:
        """Keep a remark; a file that gives cause for thousands of them keeps the first hundred."""
        if len(self.warnings) < 100:
            self.warnings.append(message)
