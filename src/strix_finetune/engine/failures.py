"""What went wrong between us and an engine, said in one sentence with a cure.

The docker SDK, requests, urllib3 and http.client wrap one another's exceptions, so the cause is looked for
through the whole chain. Nothing of them is imported before one of them has raised.
"""

from __future__ import annotations

import errno
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from strix_finetune.errors import EngineError, EngineUnavailable, Problem, StrixError

T = TypeVar("T")

_PLAIN = "HTTP request to an HTTPS server"
_NOT_HTTP = ("BadStatusLine", "LineTooLong", "UnknownProtocol")
_CUT_OFF = ("ProtocolError", "IncompleteRead", "ChunkedEncodingError", "RemoteDisconnected")
# what the kernel calls ENOSPC and EDQUOT, in the words of the C library and of Go's
_FULL = ("no space left on device", "disk quota exceeded")


def causes(error: BaseException) -> list[BaseException]:
    """The error and everything that it wraps (cause, context, arguments), outermost first, each once."""
    found: list[BaseException] = []
    queue: list[object] = [error]
    while queue and len(found) < 64:
        item = queue.pop(0)
        if not isinstance(item, BaseException) or any(item is seen for seen in found):
            continue
        found.append(item)
        queue += [item.__cause__, item.__context__, getattr(item, "reason", None), *item.args]
    return found


def unreachable(url: str, error: BaseException, *, source: str = "") -> EngineUnavailable | None:
    """The sentence for an engine that did not answer at `url`, or None when this is another kind of fault.

    `source` names the setting that the address came from ("DOCKER_HOST"), empty for a default.
    """
    where = f"{url} (from {source})" if source else url
    named = source or "DOCKER_HOST"
    for cause in causes(error):
        text = str(cause)
        if isinstance(cause, PermissionError) or getattr(cause, "errno", None) in (errno.EACCES, errno.EPERM):
            return EngineUnavailable(
                Problem(f"no permission to use the container engine at {where}", cure=_permission_cure(url))
            )
        if type(cause).__name__ == "TLSParameterError" or isinstance(cause, ssl_error()) or _PLAIN in text:
            return EngineUnavailable(
                Problem(
                    f"the TLS connection to {where} failed",
                    cure="check DOCKER_TLS_VERIFY and DOCKER_CERT_PATH against the engine",
                )
            )
        if isinstance(cause, socket.gaierror) or type(cause).__name__ == "NameResolutionError":
            return EngineUnavailable(
                Problem(f"the host name in the engine's address {where} is not known", cure=f"correct {named}")
            )
        if isinstance(cause, FileNotFoundError) or getattr(cause, "errno", None) in (errno.ENOENT, errno.ENOTDIR):
            if source:
                return EngineUnavailable(
                    Problem(f"there is no engine socket at {where}", cure=f"correct or unset {named}")
                )
            return EngineUnavailable(Problem(f"no container engine is running at {where}", cure=START_CURE))
        refused = isinstance(cause, ConnectionRefusedError) or getattr(cause, "errno", None) == errno.ECONNREFUSED
        if refused and url.startswith("unix://") and not Path(url.removeprefix("unix://")).is_socket():
            return EngineUnavailable(Problem(f"{where} is no socket", cure=f"correct {named}"))
        if refused:
            cure = f"{START_CURE}, or correct {named}" if source else START_CURE
            return EngineUnavailable(Problem(f"no container engine is running at {where}", cure=cure))
        answered = getattr(cause, "response", None) is not None  # but not as an engine does
        if (
            answered
            or type(cause).__name__ in _NOT_HTTP
            or getattr(cause, "errno", None) in (errno.ENOTSOCK, errno.EPROTOTYPE)
        ):
            return EngineUnavailable(
                Problem(f"what answers at {where} is not a container engine", cure=f"correct {named}")
            )
        if "timed out" in text or getattr(cause, "errno", None) in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return EngineUnavailable(
                Problem(
                    f"the container engine at {where} does not answer", cure=f"check the network, or correct {named}"
                )
            )
    return None


START_CURE = "start it (`systemctl start docker`, or `systemctl --user start podman.socket`)"


def wrong_url(url: str, source: str, detail: str = "") -> EngineUnavailable:
    """The sentence for an address that cannot be one."""
    reason = f" ({detail})" if detail else ""
    return EngineUnavailable(
        Problem(
            f"{source or 'the engine address'} is '{url}', which is no engine address{reason}",
            cure="use unix:///path/to/socket or tcp://host:port",
        )
    )


def needs_paramiko(url: str, source: str) -> EngineUnavailable:
    """The sentence for an ssh:// address where the SDK cannot speak it."""
    message = f"{source or 'the engine address'} is '{url}', and ssh needs a Python package that is not installed"
    return EngineUnavailable(Problem(message, cure="pip install paramiko, or forward the socket with `ssh -L`"))


def ssl_error() -> type[Exception]:
    import ssl

    return ssl.SSLError


def _permission_cure(url: str) -> str:
    path = url.removeprefix("unix://")
    try:
        import grp

        group = grp.getgrgid(Path(path).stat().st_gid).gr_name
    except (OSError, KeyError):
        group = "docker"
    if group in ("root", "nogroup"):
        return "run as the user that owns the socket, or use rootless Podman"
    return f"add yourself to its group (`sudo usermod -aG {group} $USER`, then log in again), or use rootless Podman"


def engine_words(error: BaseException) -> str:
    """What the engine itself said, without the SDK's "500 Server Error for http+docker://…" around it."""
    explanation = getattr(error, "explanation", None)
    text = explanation.decode("utf-8", "replace") if isinstance(explanation, bytes) else str(explanation or error)
    return one_line(text)


def message_of(body: bytes) -> str:
    """The message of an error answer: engines send JSON {"message": …}, proxies and old ones plain text."""
    try:
        data = json.loads(body)
    except ValueError:
        data = None
    if isinstance(data, dict):
        text = data.get("message") or data.get("cause") or data.get("error") or ""
        if text:
            return one_line(str(text))
    return one_line(body[:2000].decode("utf-8", "replace"))


def one_line(text: str) -> str:
    """Squeeze an engine's message into one line of at most 600 characters."""
    line = re.sub(r"\s+", " ", text).strip().rstrip(".;")
    return line if len(line) <= 600 else line[:597] + "..."


def cure_of(said: str) -> str:
    """What helps against what an engine, or a step in it, said. Empty where nothing is known."""
    if any(words in said.lower() for words in _FULL):
        return "make room where the engine keeps images (strix-finetune doctor says where; prune removes old ones)"
    return ""


class Callback(Generic[T]):
    """A caller's function as it is handed to an engine. Its own error is kept, so that a full disk on our side is
    not mistaken for a fault of the engine."""

    def __init__(self, function: Callable[[T], None]) -> None:
        self._function = function
        self.error: BaseException | None = None

    def __call__(self, value: T) -> None:
        try:
            self._function(value)
        except BaseException as error:
            self.error = error
            raise


@contextmanager
def engine_errors(doing: str, url: str, callback: Callback[Any] | None = None) -> Iterator[None]:
    """Turn whatever the SDK raises inside into one EngineError: "could not <doing>: <the engine's words>".

    What `callback` raised passes through untouched.
    """
    try:
        yield
    except StrixError:
        raise
    except Exception as error:
        if callback is not None and callback.error is error:
            raise
        if not is_transport(error):
            raise
        raise explain(error, doing, url) from error


def is_transport(error: BaseException) -> bool:
    """Whether this comes from the way to the engine (and is not a mistake of ours)."""
    module = type(error).__module__.partition(".")[0]
    return module in ("docker", "requests", "urllib3", "http") or isinstance(error, OSError)


def _is_local(error: BaseException) -> bool:
    """A file of ours that could not be read is no fault of the connection."""
    return type(error).__module__ == "builtins" and not isinstance(error, ConnectionError | TimeoutError)


def explain(error: BaseException, doing: str, url: str) -> EngineError:
    """The sentence for a request that failed."""
    if getattr(error, "response", None) is not None:
        return _refused(error, doing)
    if _is_local(error):
        return EngineError(Problem(f"could not {doing}: {one_line(str(error))}"))
    gone = unreachable(url, error)
    if gone is not None:
        return EngineUnavailable(
            tuple(Problem(f"could not {doing}: {p.message}", p.place, p.cure) for p in gone.problems)
        )
    chain = causes(error)
    if any(isinstance(cause, ConnectionError | EOFError) or type(cause).__name__ in _CUT_OFF for cause in chain):
        return EngineError(
            Problem(
                f"the container engine at {url} went away while we tried to {doing}",
                cure="check that it runs, then repeat",
            )
        )
    return _refused(error, doing)


def _refused(error: BaseException, doing: str) -> EngineError:
    words = engine_words(error)
    return EngineError(Problem(f"could not {doing}: {words}", cure=cure_of(words)))
