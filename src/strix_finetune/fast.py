"""Nothing changed: say so within the time that Python needs to start.

A build that found every layer up to date (or made it so) leaves a memo: the state of every file that it read, the
names that it found and what it printed. The same command then only looks at those files and asks the engine for its
images, in one plain HTTP request over its socket. Anything unexpected returns None, and the whole driver runs.

This module and what it imports must stay small: no click, jinja2, pydantic, dataclasses, docker or http.client.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False  # the typing module is not imported for it
if TYPE_CHECKING:
    from typing import TextIO

FORMAT = 3
LABEL = "io.strix-finetune.key"
# whatever else is in the environment changes no key and chooses no engine
_VARIABLES = (
    "HOME",
    "DOCKER_HOST",
    "CONTAINER_HOST",
    "XDG_CACHE_HOME",
    "XDG_STATE_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "CONTAINERS_CONF",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
)
# files here have no times of their own, so their content is compared
_VIRTUAL = "/sys/"
# this module is imported first: whatever the driver reads, it reads later
_STARTED = time.time_ns()
# coarser file systems count whole seconds, some two of them
_COARSE = 2 * 10**9
# seconds for the engine's whole answer; then the driver asks it in its own way
_PATIENCE = 5.0
_ANSWER_LIMIT = 64 << 20

Signature = tuple[str, int, int, int, int]


def repeat(arguments: list[str]) -> int | None:
    """Answer `build` from its memo; None when there is none or anything differs."""
    if not arguments or arguments[0] != "build":
        return None
    began = time.monotonic()
    try:
        with open(_memo_path(arguments), "rb") as stream:  # noqa: PTH123 (pathlib costs 8 ms)
            memo = json.load(stream)
        if memo["format"] != FORMAT or not memo["tags"]:
            return None
        for path, *state in memo["files"]:
            if list(signature(path))[1:] != state:
                return None
        held = _tags(memo["socket"])
        if any(held.get(tag) != image for tag, image in memo["tags"].items()):
            return None
        seconds = time.monotonic() - began
        text = memo["output"].replace("@seconds@", f"{seconds:.3f}" if memo["json"] else f"{seconds:.2f}")
        stream_out = sys.stdout if memo["json"] else sys.stderr
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None
    try:
        stream_out.write(text)
        stream_out.flush()
    except BrokenPipeError:
        silence(stream_out)
        return 1
    except ValueError:
        # a letter that this locale cannot write; nothing was written
        return None
    return 0


def remember(
    arguments: list[str], roots: list[str], socket_path: str, tags: dict[str, str], output: str, *, as_json: bool
) -> None:
    """Leave a memo. `roots`: files and folders that the outcome depends on; `output` holds @seconds@ for the time.

    No memo when a file changed since this process began: the outcome may be that of the old file. Nor when one changed
    shortly before, because it could change again without its time moving. A memo that cannot be written is no fault.
    """
    try:
        files = [entry for root in (*roots, _docker_config()) for entry in _walk(root)]
        # the time of the last change of any kind, which nobody can set back
        newest = max((entry[2] for entry in files), default=0)
        if newest >= _STARTED - _COARSE:
            return
        path = _memo_path(arguments)
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103,PTH120
    except OSError:
        return
    memo = {"format": FORMAT, "files": files, "socket": socket_path, "tags": tags, "output": output, "json": as_json}
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as stream:  # noqa: PTH123
            json.dump(memo, stream)
        os.replace(temporary, path)  # noqa: PTH105
    except OSError:
        try:
            os.unlink(temporary)  # noqa: PTH108
        except OSError:
            return


def silence(stream: TextIO) -> None:
    """Whoever read `stream` has gone: what is left of it must not be written at the end of the process either."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        return


def signature(path: str) -> Signature:
    """What tells that a file or folder is still the same; a missing one has a signature too.

    Path, time of its content, time of its last change, size, inode.
    """
    if path.startswith(_VIRTUAL):
        return path, 0, 0, *_content(path)
    try:
        state = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return path, 0, 0, 0, 0
    return path, state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino


def _content(path: str) -> tuple[int, int]:
    """Size and checksum of a small file, or of the names in a folder."""
    import zlib

    try:
        names = sorted(os.listdir(path))  # noqa: PTH208
        content = "\0".join(names).encode("utf-8", "surrogateescape")
    except NotADirectoryError:
        try:
            with open(path, "rb") as stream:  # noqa: PTH123
                content = stream.read(1 << 16)
        except OSError:
            content = b""
    except OSError:
        return 0, 0
    return len(content), zlib.crc32(content)


def _walk(root: str) -> list[Signature]:
    found = [signature(root)]
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name != "__pycache__"]
        found += [signature(os.path.join(folder, name)) for name in (*names, *files)]  # noqa: PTH118
    return found


def _docker_config() -> str:
    """The file that names the docker CLI's current context, and so the engine."""
    folder = os.environ.get("DOCKER_CONFIG") or os.path.join(os.path.expanduser("~"), ".docker")  # noqa: PTH111,PTH118
    return os.path.join(folder, "config.json")  # noqa: PTH118


def _memo_path(arguments: list[str]) -> str:
    import hashlib

    env = os.environ
    parts = [*arguments, "\0", os.getcwd(), __file__, *(f"{name}={env.get(name, '')}" for name in _VARIABLES)]  # noqa: PTH109
    name = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    cache = env.get("XDG_CACHE_HOME", "")
    root = cache if cache.startswith("/") else os.path.join(os.path.expanduser("~"), ".cache")  # noqa: PTH111,PTH118
    return os.path.join(root, "strix-finetune", "noop", name + ".json")  # noqa: PTH118


def _tags(socket_path: str) -> dict[str, str]:
    """Every name in the engine's store that carries our label → image id. Raises OSError or ValueError."""
    import socket

    # {"label":["io.strix-finetune.key"]}, percent-encoded
    query = "%7B%22label%22%3A%5B%22" + LABEL + "%22%5D%7D"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        until = time.monotonic() + _PATIENCE
        connection.settimeout(_PATIENCE)
        connection.connect(socket_path)
        connection.sendall(f"GET /images/json?filters={query} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        answer = bytearray()
        while piece := connection.recv(1 << 16):
            answer += piece
            connection.settimeout(max(0.001, until - time.monotonic()))
            if len(answer) > _ANSWER_LIMIT:
                raise ValueError("the answer is too long")
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise ValueError("the engine refused")
    return {tag: image["Id"] for image in json.loads(body) for tag in image["RepoTags"] or ()}
