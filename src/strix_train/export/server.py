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
from strix_train.export.probes import LONGEST, Probe, Reply

_PATIENCE = 300.0
# What llama.cpp lists of a token's alternatives; a token that is not among them was out of the question.
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

    def reply(self, probe: Probe, *, max_new_tokens: int = LONGEST) -> Reply:
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


def _sureness(said: Any, probe: Probe) -> tuple[float | None, ...]:
    """Return how sure llama.cpp was of the model's tokens, up to the first where it says another.

    It lists no alternatives for a token that is but a part of a letter.
    """
    listed = list(said.get("completion_probabilities") or ())
    found: list[float | None] = []
    for ours, theirs in zip(probe.said, said.get("tokens") or (), strict=False):
        here = listed.pop(0) if listed and listed[0].get("id") == theirs else None
        if here is None:
            found.append(None if ours == theirs else _OUT_OF_THE_QUESTION)
        else:
            tops = {one.get("id"): float(one["logprob"]) for one in here.get("top_logprobs") or ()}
            found.append(tops.get(ours, _OUT_OF_THE_QUESTION))
        if ours != theirs:
            break
    return tuple(found)


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
