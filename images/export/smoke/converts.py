#!/opt/venv/bin/python
"""A tiny model becomes a GGUF file in each number format, and llama.cpp answers from it as PyTorch does."""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(os.environ["STRIX_SMOKE"], "lib")))
import guard

if stub := guard.stand_in(guard.installed(Path(sysconfig.get_path("purelib")))):
    print(f"not shown: {stub} is a stub that computes nothing")
    sys.exit(77)
os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", OMP_WAIT_POLICY="PASSIVE")
import sentencepiece
import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONVERTER = Path("/opt/llama.cpp/convert_hf_to_gguf.py")
FORMATS = ("f16", "q8_0", "q4_k_m")
ASKED = "the river follows the stone"


def program(name: str) -> str:
    found = shutil.which(name) or f"/opt/llama.cpp/bin/{name}"
    if not os.access(found, os.X_OK):
        sys.exit(f"there is no {name}")
    return found


def run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{Path(str(command[0])).name} ends with {done.returncode}:\n{done.stdout}{done.stderr}")


def make(folder: Path) -> tuple[torch.nn.Module, list[int]]:
    """A model of two layers with a tokenizer of pieces; rows of 256, which blocks of four bits need."""
    words = ("river", "stone", "glass", "north", "seven", "follows", "the", "of", "and")
    text = io.StringIO("".join(f"{a} {b} {c}\n" for a in words for b in words for c in words))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",  # what llama.cpp takes pieces with scores for
        vocab_size=300,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=pieces.vocab_size(),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=256,
        initializer_range=0.2,
        bos_token_id=pieces.bos_id(),
        eos_token_id=pieces.eos_id(),
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    words_of = {"add_bos_token": True, "add_eos_token": False, "tokenizer_class": "LlamaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(words_of))
    return model, [pieces.bos_id(), *pieces.encode(ASKED)]


def ask(gguf: Path, tokens: list[int]) -> tuple[list[int], int]:
    """What llama.cpp makes of the text, and the token that it says follows."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = f"http://127.0.0.1:{port}"

    def call(path: str, value: object = None) -> dict:
        data = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(where + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    command = [program("llama-server"), "--model", gguf, "--host", "127.0.0.1", "--port", port, "--ctx-size", 128]
    with (gguf.parent / "server.log").open("w+") as log:
        server = subprocess.Popen([str(word) for word in [*command, "--threads", 1]], stdout=log, stderr=log)
        try:
            for _ in range(600):
                if server.poll() is not None:
                    log.seek(0)
                    sys.exit(f"llama-server does not load {gguf.name}:\n{log.read()}")
                try:
                    call("/health")
                    break
                except OSError:
                    time.sleep(0.1)
            read = call("/tokenize", {"content": ASKED, "add_special": True})["tokens"]
            wish = {"prompt": tokens, "n_predict": 1, "temperature": 0.0, "return_tokens": True}
            return read, call("/completion", wish)["tokens"][0]
        finally:
            server.terminate()
            server.wait()


with tempfile.TemporaryDirectory(prefix="strix-gguf-") as name:
    work = Path(name)
    model, tokens = make(work)
    with torch.no_grad():
        scores = model(torch.tensor([tokens])).logits[0, -1]
    best = scores.topk(3).indices.tolist()
    found = []
    for kind in FORMATS:
        gguf = work / f"{kind}.gguf"
        if kind == "q4_k_m":
            run(program("llama-quantize"), work / "f16.gguf", gguf, "Q4_K_M")
        else:
            run("/opt/venv/bin/python", CONVERTER, work, "--outfile", gguf, "--outtype", kind)
        read, said = ask(gguf, tokens)
        if read != tokens:
            sys.exit(f"{gguf.name}: llama.cpp reads the tokens {read} where the tokenizer has {tokens}")
        if said not in (best if kind == "q4_k_m" else best[:1]):
            sys.exit(f"{gguf.name}: llama.cpp goes on with token {said} where PyTorch has {best}")
        found.append(f"{kind} {gguf.stat().st_size / 1e6:.1f} MB")
print(f"a tiny model as {', '.join(found)}: llama.cpp reads the same tokens and goes on with the same one")
