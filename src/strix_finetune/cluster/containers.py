"""The container of one node: made, attached to, started, followed to its end, and removed, whatever happens.

Its input stays open as long as we are there: `strix_train.joining` ends the training in order when it closes.
"""

from __future__ import annotations

import io
import tarfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from strix_finetune.caches import TOKEN
from strix_finetune.cluster.agents import LABEL, limits
from strix_finetune.cluster.reach import Reached
from strix_finetune.engine.base import RunRequest
from strix_finetune.errors import StrixError

if TYPE_CHECKING:
    from strix_finetune.engine.client import SdkEngine

# seconds that Python may take to begin over there
_BIRTH = 4.0


class Container:
    """A container on a node. `on_output` gets what it prints, `on_end` its exit code and whether memory ran out, or
    why nobody knows; both are called in threads of their own."""

    def __init__(
        self,
        reached: Reached,
        request: RunRequest,
        *,
        token: str,
        on_output: Callable[[bytes], None],
        on_end: Callable[[int | None, bool, str], None],
    ) -> None:
        self.reached = reached
        self.name = f"strix-finetune-cluster-{uuid.uuid4().hex}"
        self._request = request
        self._token = token
        self._on_output = on_output
        self._on_end = on_end
        self._open = ExitStack()
        self._spoke = threading.Event()

    @property
    def _engine(self) -> SdkEngine:
        return self.reached.engine  # type: ignore[return-value]  # the one implementation that is connected

    def create(self) -> None:
        """Make it and attach to it, so that nothing it says is missed. Raises EngineError."""
        from strix_finetune.engine import running, tty
        from strix_finetune.engine.failures import engine_errors

        api, info, request = self._engine.api, self._engine.info, self._request
        doing = f"start the training on node {self.reached.node.name}"
        # the limits that are there are that machine's, not ours
        locks = limits(self.reached) if request.memlock is not None else []
        with engine_errors(doing, info.url):
            # what is started handles signals, as process 1 as well
            running.create(api, request, self.name, info, doing, init=None, labels={LABEL: "train"}, limits=locks)
            if self._token:
                over = self.reached.over
                owner = (over.uid, over.gid) if over and not info.rootless else (0, 0)
                api.put_archive(self.name, "/", _secret(self._token, *owner))
            attach = {"stdout": 1, "stderr": 1, "stream": 1, "stdin": 1}
            self._link = self._open.enter_context(tty.attached(api, self.name, attach))

    def start(self) -> None:
        """Start it; from now on it is followed. Raises EngineError."""
        from strix_finetune.engine.failures import engine_errors

        with engine_errors(f"start the training on node {self.reached.node.name}", self._engine.info.url):
            self._engine.api.start(self.name)
        threading.Thread(target=self._follow, daemon=True, name=f"training on {self.reached.node.name}").start()

    def signal(self, name: str) -> None:
        """Have its training get a signal; one that has ended, or whose node is lost, gets none."""
        from docker.errors import APIError
        from requests import RequestException

        if name != "SIGKILL":
            # process 1 does not hear what it does not handle yet; when it does, it says which node it is
            self._spoke.wait(_BIRTH)
        with suppress(APIError, RequestException, StrixError, OSError):
            self._engine.api.kill(self.name, name)

    def remove(self) -> None:
        """Remove it, running or not, as far as its node can be reached."""
        from docker.errors import APIError
        from requests import RequestException

        from strix_finetune.engine import running

        with suppress(APIError, RequestException, StrixError, OSError):
            running.remove(self._engine.api, self.name, self._engine.info)
        with suppress(Exception):
            self._open.close()

    def _hear(self, data: bytes) -> None:
        self._spoke.set()
        self._on_output(data)

    def _follow(self) -> None:
        """Hand on what it prints. The end of that is its own, and then the engine answers at once.

        Podman, asked before that by Docker's API, looks for the end without a pause, on half a core of that node.
        """
        from strix_finetune.engine.running import FrameReader

        api: Any = self._engine.api
        try:
            with suppress(OSError, ValueError):
                self._link.drain(FrameReader(self._hear).feed, None)
            code = int(api.wait(self.name, timeout=None)["StatusCode"])
            state = api.inspect_container(self.name)["State"]
        except Exception:  # noqa: BLE001 (whatever it is, who supervises waits for a word)
            self._on_end(None, False, self.reached.lost())
            return
        self._on_end(code, bool(state.get("OOMKilled")), "")


def _secret(token: str, uid: int, gid: int) -> bytes:
    """An archive with the hub's token where the image looks for it, for the user of the container alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(TOKEN.lstrip("/"))
        info.size, info.mode, info.mtime = len(token.encode()), 0o400, int(time.time())
        info.uid, info.gid = uid, gid
        tar.addfile(info, io.BytesIO(token.encode()))
    return buffer.getvalue()
