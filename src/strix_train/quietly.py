"""What libraries print: while a short command works, kept in a file that stays only when it fails; in a run, less."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from strix_train.errors import TrainError


@contextmanager
def quietly() -> Iterator[Callable[[str], None]]:
    """Send file descriptors 1 and 2 aside. An exception that is not ours becomes one sentence that names the file.

    Yields a function that writes a line to the real standard error: how far the command is.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    handle, name = tempfile.mkstemp(prefix="train-", suffix=".log")
    log = Path(name)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    keep = False

    def tell(text: str) -> None:
        os.write(kept[1], f"{text}\n".encode())

    try:
        yield tell
    except TrainError:
        raise
    except Exception as error:
        keep = True
        with log.open("a", encoding="utf-8") as stream:
            traceback.print_exc(file=stream)
        text = " ".join(str(error).split())[:300]
        raise TrainError(f"{type(error).__name__}: {text}", cure=f"the traceback is in {log}") from error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for number in (*kept, handle):
            os.close(number)
        if not keep:
            log.unlink(missing_ok=True)


def libraries() -> None:
    """Keep the libraries' warnings in the log, and their progress bars out of it."""
    import logging

    logging.captureWarnings(True)
    try:
        from datasets.utils.logging import disable_progress_bar
        from transformers.utils import logging as hf

        hf.disable_progress_bar()
        disable_progress_bar()
    except ImportError:
        pass
