"""How this program itself speaks HTTP: with the host's proxies and CA bundle, encrypted, and never to a file."""

from __future__ import annotations

import random
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from email.message import Message
from http.client import HTTPMessage
from typing import IO

from strix_finetune.netconf import NetSettings, is_loopback, redact

AGENT = "strix-finetune"
_LONGEST_WAIT = 60.0


def is_safe(url: str) -> bool:
    """Whether a URL may be asked: https anywhere, plain http on this host alone; no user name or password in it."""
    try:
        parts = urllib.parse.urlsplit(url)
        if not parts.hostname or "@" in parts.netloc:
            return False
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url))


class UnsafeRedirect(Exception):
    """A server sends us to a place that `is_safe` refuses."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows only to safe places, and takes no token to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if not is_safe(newurl):
            raise UnsafeRedirect
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and made.host != req.host:
            made.headers.pop("Authorization", None)
        return made


def opener(settings: NetSettings) -> urllib.request.OpenerDirector:
    """An opener for http and https alone: no file, ftp or data URL gets anywhere through it."""
    context = ssl.create_default_context(cafile=str(settings.ca_bundle) if settings.ca_bundle else None)
    proxies = {name.removesuffix("_proxy"): value for name, value in settings.proxies.items() if name != "no_proxy"}
    if "all" in proxies:
        rest = proxies.pop("all")
        proxies = {"http": rest, "https": rest} | proxies
    director = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(proxies),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirects(),
        urllib.request.HTTPErrorProcessor(),
    ):
        director.add_handler(handler)
    director.addheaders = [("User-Agent", AGENT)]
    return director


def pause(fruitless: int, wait: float | None) -> float:
    """Seconds until the next attempt, after so many that brought nothing; `wait` is what the server asks for."""
    # the random part keeps many machines from coming back at the same moment
    return min(_LONGEST_WAIT, wait if wait is not None else 2.0**fruitless * random.uniform(0.25, 0.5))


def retry_after(headers: Message | Mapping[str, str]) -> float | None:
    """Seconds that the server wants us to wait; it says a number or a date."""
    text = headers.get("Retry-After", "").strip()
    if text.isdigit():
        return float(text)
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, ((date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds())


def place(url: str) -> str:
    """The URL without what may be secret in it."""
    return redact(url).partition("?")[0].partition("#")[0]


def file_name(url: str) -> str:
    """The last part of the URL, for a sentence."""
    return place(url).rsplit("/", 1)[-1] or place(url)
