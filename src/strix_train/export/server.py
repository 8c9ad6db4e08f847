"""A GGUF file loaded by llama.cpp's own server, to ask it what the model was asked."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strix_train.errors import TrainError
from strix_train.export.probes import Probe, Reply

_PATIENCE = 300.0
# What llama.cpp lists of the first token's alternatives; a token that is not among them was out of the question.
_LISTED = 100
_OUT_OF_THE_QUESTION = -20.0


class Server:
    """A running llama-server on this machine."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        # a proxy of the environment must not be asked for this machine's own port
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, path: str, value: Any = None, *, timeout: float = _PATIENCE) -> Any:
        """Return the JSON answer. Raises TrainError."""
        data = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=timeout) as answer:
                return json.loads(answer.read())
        except (OSError, ValueError) as error:
            said = error.read().decode(errors="replace")[:300] if isinstance(error, urllib.error.HTTPError) else ""
            raise TrainError(f"llama-server does not answer {path}: {error} {said}".strip()) from error

    def tokens(self, text: str) -> list[int]:
        """Return the file's tokens of a text that holds its special tokens as words."""
        wish = {"content": text, "add_special": False, "parse_special": True}
        return [int(token) for token in self.call("/tokenize", wish)["tokens"]]

    def rendered(self, messages: Sequence[dict[str, str]]) -> str:
        """Return a conversation in the chat template that the file carries."""
        return str(self.call("/apply-template", {"messages": list(messages)})["prompt"])

    def reply(self, probe: Probe, *, max_new_tokens: int = 24) -> Reply:
        """Return what the file answers to a probe's tokens, greedily."""
        wish = {
            "prompt": list(probe.tokens),
            "n_predict": max_new_tokens,
            "temperature": 0.0,
            "n_probs": _LISTED,
            "return_tokens": True,
            "cache_prompt": False,
        }
        said = self.call("/completion", wish)
        return Reply(_sureness(said, probe), str(said["content"]).strip())


def _sureness(said: Any, probe: Probe) -> float:
    """Return how sure llama.cpp was of the model's first token.

    It lists no alternatives for a token that is but a part of a letter; then the same token counts as as sure.
    """
    first = (said.get("tokens") or [None])[0]
    listed = (said.get("completion_probabilities") or [{}])[0]
    if listed.get("id") != first:
        return probe.sureness if first == probe.first else _OUT_OF_THE_QUESTION
    found = [float(one["logprob"]) for one in listed.get("top_logprobs") or () if one.get("id") == probe.first]
    return found[0] if found else _OUT_OF_THE_QUESTION


@contextmanager
def serving(program: Path, gguf: Path, *, context: int = 1024) -> Iterator[Server]:
    """Run llama-server with a file for as long as this lasts. `context` in tokens. Raises TrainError."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    threads = os.environ.get("OMP_NUM_THREADS") or str(len(os.sched_getaffinity(0)))
    command = [str(program), "--model", str(gguf), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--ctx-size", str(context), "--threads", threads, "--parallel", "1", "--jinja"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            server = Server(port)
            _wait(server, process, log, gguf)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(server: Server, process: subprocess.Popen[bytes], log: Any, gguf: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            log.seek(0)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            reasons = [line for line in lines if "error" in line.lower() or "failed" in line.lower()]
            reason = (reasons or lines or ["it said nothing"])[-1][:300]
            raise TrainError(f"llama.cpp does not load {gguf.name}: {reason}")
        try:
            server.call("/health", timeout=5)
            return
        except TrainError:
            time.sleep(0.2)
    raise TrainError(f"llama.cpp did not load {gguf.name} within {_PATIENCE:.0f} s")
