"""One JSON object a line; what each holds is said in docs/json.md."""

from __future__ import annotations

import json
from typing import TextIO

from strix_finetune.events import Event, as_json


class JsonView:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, event: Event) -> None:
        # ASCII: a path may hold bytes that are no text, and the reader's locale may be any
        self._stream.write(json.dumps(as_json(event)) + "\n")
        self._stream.flush()

    def close(self) -> None:
        pass
