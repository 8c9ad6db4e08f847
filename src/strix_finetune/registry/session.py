"""A session that follows redirects to safe places alone. Imported when something is asked, because of `requests`."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urljoin

import requests

from strix_finetune import web
from strix_finetune.netconf import NetSettings


class Session(requests.Session):
    """`safe`: whether we may be sent to an address. It holds nothing that holds it: connections end with their user."""

    def __init__(self, safe: Callable[[str], bool], settings: NetSettings) -> None:
        super().__init__()
        self._safe = safe
        # neither .netrc nor variables: what this host says was read already
        self.trust_env = False
        self.headers["User-Agent"] = web.AGENT
        if settings.ca_bundle:
            self.verify = str(settings.ca_bundle)

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        target = super().get_redirect_target(resp)
        if target and not self._safe(urljoin(resp.url, target)):
            raise web.UnsafeRedirect
        return target
