"""HTTP with one registry: tokens, patience with networks, and no patience with anything else.

The token flow: https://distribution.github.io/distribution/spec/auth/token/.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from strix_finetune import web
from strix_finetune.errors import Problem
from strix_finetune.netconf import NetSettings, redact
from strix_finetune.registry.faults import Denied, RegistryError, Unreachable, words_of
from strix_finetune.registry.login import Login
from strix_finetune.registry.repository import Repository

if TYPE_CHECKING:
    import requests

_TIMEOUT = 60.0
# attempts in a row that bring nothing: where the registry has answered before, and where it never has
_ATTEMPTS, _FIRST_ATTEMPTS = 6, 2
# times that we wait because the registry asks us to, and the longest such wait in seconds
_POLITE, _LONGEST = 20, 300.0
_LATER = (408, 429, 502, 503, 504)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
# seconds that a token lives where nobody says it, and before whose end it is not used any more
_LIFE, _MARGIN = 60.0, 10.0
_LARGEST_WORDS = 1 << 16


@dataclass(frozen=True)
class Body:
    """What is sent: `size` bytes, opened anew at each attempt."""

    size: int
    blocks: Callable[[], Iterable[bytes]] = field(repr=False)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.blocks())


class Http:
    """Requests to one repository's registry; several threads may make them at once.

    `sleep` waits; `say` hears a sentence about a longer wait.
    """

    def __init__(
        self,
        repository: Repository,
        settings: NetSettings,
        login: Login | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.repository = repository
        self.sleep, self.say = sleep, say
        self._settings, self._login = settings, login
        self._local, self._lock = threading.local(), threading.Lock()
        self._tokens: dict[str, tuple[str, float]] = {}
        self._basic = False
        self._answered = False

    def ask(
        self,
        method: str,
        url: str,
        *,
        doing: str,
        ok: Collection[int] = (200,),
        headers: Mapping[str, str] | None = None,
        body: Body | bytes | None = None,
        write: bool = False,
        stream: bool = False,
        again: bool = True,
        scopes: tuple[str, ...] = (),
    ) -> requests.Response:
        """Ask until there is an answer with a status of `ok`; without `again`, the first fault of a network is raised.

        `write`: the token must allow to push; `scopes`: what else it must allow. `doing` ("push to x") is for
        the sentence. Raises Unreachable, Denied, or RegistryError with the registry's own words.
        """
        import requests

        fruitless = polite = 0
        while True:
            wait: float | None = None
            try:
                answer = self._authorized(method, url, headers or {}, body, write, stream, scopes)
                self._answered = True
                if answer.status_code in ok:
                    return answer
                if answer.status_code not in _LATER:
                    raise self._refused(answer, doing)
                wait, reason = web.retry_after(answer.headers), f"HTTP {answer.status_code}"
                answer.close()
            except requests.exceptions.SSLError as error:
                raise self._untrusted(doing) from error
            except (requests.RequestException, web.UnsafeRedirect) as error:
                reason = _why(error)
                if isinstance(error, web.UnsafeRedirect | requests.exceptions.InvalidURL):
                    raise RegistryError(Problem(f"could not {doing}: {reason}")) from error
            if wait is not None and polite < _POLITE and wait <= _LONGEST:
                polite += 1
                if wait >= 5:
                    self.say(f"the registry {self.repository.host} asks to wait {wait:.0f} s")
            else:
                fruitless += 1
                if not again or fruitless >= (_ATTEMPTS if self._answered else _FIRST_ATTEMPTS):
                    raise self._dead(doing, reason)
            self.sleep(wait if wait is not None and wait <= _LONGEST else web.pause(fruitless, None))

    def _authorized(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body | bytes | None,
        write: bool,
        stream: bool,
        scopes: tuple[str, ...],
    ) -> requests.Response:
        """One request, and a second one with a token where the registry itself wants that."""
        scope = " ".join((f"repository:{self.repository.path}:pull{',push' if write else ''}", *scopes))
        answer = self._send(method, url, headers, body, stream, scope)
        challenge = answer.headers.get("WWW-Authenticate", "")
        # a storage that we were sent on to may ask for a login as well, and gets none
        if answer.status_code != 401 or not ours(self.repository, answer.url):
            return answer
        if challenge.lower().startswith("bearer "):
            answer.close()
            self._fetch_token(dict(_CHALLENGE.findall(challenge)), scope)
        elif challenge.lower().startswith("basic") and self._login and self._login.user and not self._basic:
            answer.close()
            self._basic = True
        else:
            return answer
        return self._send(method, url, headers, body, stream, scope)

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: Body | bytes | None, stream: bool, scope: str
    ) -> requests.Response:
        own = {"Accept-Encoding": "identity", **headers}
        auth = None
        if ours(self.repository, url):
            token = self._token(scope)
            if token:
                own["Authorization"] = f"Bearer {token}"
            elif self._basic and self._login:
                auth = (self._login.user, self._login.password)
        return self._session().request(
            method, url, headers=own, data=body, auth=auth, stream=stream, timeout=_TIMEOUT, proxies=self._proxies(url)
        )

    def _token(self, scope: str) -> str:
        with self._lock:
            token, until = self._tokens.get(scope, ("", 0.0))
        return token if time.monotonic() < until else ""

    def _fetch_token(self, told: Mapping[str, str], scope: str) -> None:
        """Get an access token from the place that the registry names. Raises Denied where there is none to be had."""
        realm = urljoin(self.repository.root, told.get("realm", ""))
        if not safe(self.repository, realm):
            raise Denied(f"the registry {self.repository.host} sends us for a token to a place that is not safe")
        login = self._login
        query = {"service": told.get("service", ""), "scope": scope}
        if login and login.token:
            form = {**query, "grant_type": "refresh_token", "refresh_token": login.token, "client_id": web.AGENT}
            # not sent on: a redirect that keeps the method takes the form, and the token in it, to any place
            answer = self._session().post(
                realm, data=form, timeout=_TIMEOUT, proxies=self._proxies(realm), allow_redirects=False
            )
        else:
            # one parameter for each scope, as registries want it
            pairs = [("service", query["service"]), *(("scope", word) for word in scope.split(" "))]
            auth = (login.user, login.password) if login else None
            answer = self._session().get(realm, params=pairs, auth=auth, timeout=_TIMEOUT, proxies=self._proxies(realm))
        if answer.status_code in _LATER:
            import requests

            raise requests.ConnectionError(f"HTTP {answer.status_code}")
        try:
            given: Any = answer.json() if answer.status_code == 200 else {}
            token = given.get("token") or given.get("access_token")
            life = float(given.get("expires_in") or _LIFE)
        except (ValueError, TypeError, AttributeError, RecursionError):
            token, life = None, 0.0
        if not isinstance(token, str) or not token:
            raise self._denied(words_of(answer.content, answer.status_code), f"log in to {self.repository.host}")
        with self._lock:
            self._tokens[scope] = (token, time.monotonic() + max(life - _MARGIN, _MARGIN))

    def _session(self) -> requests.Session:
        """A session for each thread: they are not made to be shared."""
        from strix_finetune.registry.session import Session

        held: Session | None = getattr(self._local, "session", None)
        if held is None:
            held = self._local.session = Session(partial(safe, self.repository), self._settings)
        return held

    def _proxies(self, url: str) -> dict[str, str]:
        from requests.utils import should_bypass_proxies

        set_here = dict(self._settings.proxies)
        direct = set_here.pop("no_proxy", "")
        # an empty list would be looked up in the environment
        if not set_here or self.repository.loopback or should_bypass_proxies(url, direct or "localhost"):
            return {}
        return {name.removesuffix("_proxy"): value for name, value in set_here.items()}

    def _refused(self, answer: requests.Response, doing: str) -> RegistryError:
        try:
            body = next(answer.iter_content(_LARGEST_WORDS), b"")
        except Exception:  # noqa: BLE001 (only words that would have explained a refusal are lost)
            body = b""
        finally:
            answer.close()
        words = words_of(body, answer.status_code)
        if answer.status_code in (401, 403):
            return self._denied(words, doing)
        return RegistryError(Problem(f"could not {doing}: {words}"))

    def _denied(self, words: str, doing: str) -> Denied:
        host = self.repository.host
        cure = f"check what this login may do at {host}" if self._login else f"log in: podman login {host}"
        return Denied(Problem(f"could not {doing}: {words}", cure=cure))

    def _untrusted(self, doing: str) -> Unreachable:
        host = self.repository.host
        return Unreachable(
            Problem(
                f"could not {doing}: the certificate of {host} is not trusted",
                cure="name the certificate of its authority with --ca-bundle",
            )
        )

    def _dead(self, doing: str, reason: str) -> Unreachable:
        cure = "try again: what is whole is not sent twice" if self._answered else "check its address and the network"
        words = f"the registry {self.repository.host} does not answer: {reason}"
        return Unreachable(Problem(f"could not {doing}: {words}", cure=cure))


def ours(repository: Repository, url: str) -> bool:
    """Whether an address is the registry's own: a storage that it sends us to gets no login of ours."""
    return urlsplit(url).netloc == urlsplit(repository.root).netloc


def safe(repository: Repository, url: str) -> bool:
    """Whether we may be sent there: encrypted, or to where plain HTTP was asked for."""
    return web.is_safe(url) or (repository.plain and ours(repository, url))


def _why(error: BaseException) -> str:
    """The last cause of a fault in a few words, without addresses of objects or passwords."""
    if isinstance(error, web.UnsafeRedirect):
        return "it redirects to a place that is not safe"
    seen: list[BaseException] = []
    inner: BaseException | None = error
    while inner is not None and inner not in seen:
        seen.append(inner)
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror.lower()
        reason = getattr(inner, "reason", None)
        nested = [found for found in inner.args if isinstance(found, BaseException)]
        inner = reason if isinstance(reason, BaseException) else nested[0] if nested else inner.__cause__
    name = type(seen[-1]).__name__
    words = {"ReadTimeoutError": "nothing came for a minute", "ConnectTimeoutError": "it could not be reached in time"}
    words |= {"NameResolutionError": "its name is not known here", "RemoteDisconnected": "the connection was cut"}
    words |= {"IncompleteRead": "the connection was cut", "ProtocolError": "the connection was cut"}
    return words.get(name) or redact(str(seen[-1]) or name).split("\n")[0][:200]
