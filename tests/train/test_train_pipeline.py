"""The pipeline of `python -m bench pipeline`, four processes on the loopback: it learns what one process learns."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack

from bench import pipeline, wires
from bench.wires import Ranks

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    # no multiple of the stages
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "tie_word_embeddings": False,
}


def test_a_pipeline_learns_what_one_process_learns() -> None:
    """Rows of any length, in microbatches with more and fewer learned tokens: any other average would show."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    ranks = pipeline.STAGES
    here = ["127.0.0.1"] * ranks
    with ExitStack() as stack:
        crowd = Ranks(wires.started(stack, sys.executable, pipeline.WORKER, here, port, ["lo"] * ranks))
        gaps = pipeline.prove(crowd, config=CONFIG, rows=8, length=24, steps=3)
    assert gaps.keys() == {"1f1b 4", "1f1b 8", "gpipe 4", "gpipe 8"}
    assert all(gap < 1e-4 for gap in gaps.values()), gaps
