#!/opt/venv/bin/python
"""The example notebooks are whole and hold no output; the first one, which trains nothing, runs to its last cell."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat

NOTEBOOKS = sorted(Path("/opt/strix-finetune/notebooks").glob("*.ipynb"))
STRANGER = 12345
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<end>' }}{% endfor %}"


def make_model(folder: Path) -> None:
    """What `train check` reads of a model: its shape, its words and its template, and no weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    folder.mkdir(parents=True)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(["the bell tower"], trainers.BpeTrainer(special_tokens=["<end>"], initial_alphabet=alphabet))
    made.save(str(folder / "tokenizer.json"))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    shape = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 512}
    shape |= {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": made.get_vocab_size()}
    (folder / "config.json").write_text(json.dumps(shape))


for path in NOTEBOOKS:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    if any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells):
        sys.exit(f"{path.name} is shipped with outputs; clear them")
    if notebook.metadata.kernelspec.name != "python3":
        sys.exit(f"{path.name} wants another kernel than the image's")

from nbclient import NotebookClient

from strix_train.environment import settle

began = time.monotonic()
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(STRANGER)
    os.setuid(STRANGER)
with tempfile.TemporaryDirectory(prefix="strix-notebooks-") as work:
    make_model(Path(work, "models/demo"))
    os.environ |= {"STRIX_MODELS": f"{work}/models", "HOME": "/nonexistent"}
    settle()
    first = nbformat.read(NOTEBOOKS[0], as_version=4)
    NotebookClient(first, timeout=120, kernel_name="python3").execute(cwd=work)
said = json.dumps([cell.get("outputs") for cell in first.cells])
for wanted in ("64 rows of the format", "assistent", "image/png"):
    if wanted not in said:
        sys.exit(f"{NOTEBOOKS[0].name} does not show {wanted!r}")
print(f"{len(NOTEBOOKS)} notebooks are whole; {NOTEBOOKS[0].stem} runs in {time.monotonic() - began:.1f} s")
