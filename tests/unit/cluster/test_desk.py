"""What the tests of several machines find out about this host."""

from __future__ import annotations

from pathlib import Path

from tests.machines.desk import stores_of

WARNING = 'time="2026-11-30" level=warning msg="no {systemd} here"\n'


def test_stores_are_found_between_warnings() -> None:
    info = '{\n  "store": {"graphRoot": "/a", "graphOptions": {"overlay.imagestore": "/b,/c"}}\n}\n'
    assert stores_of(WARNING + info + WARNING) == [Path("/a"), Path("/b"), Path("/c")]
    assert stores_of('{"store": {"graphRoot": "/a", "graphOptions": {}}}') == [Path("/a")]
