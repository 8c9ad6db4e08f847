"""The agent as one file, which any Python runs: it is laid into the containers."""

from __future__ import annotations

import io
import pkgutil
import zipfile

_MODULES = ("__init__", "__main__", "collective", "facts", "mtu", "netlink", "probe", "rdma", "reduce", "serve")


def program() -> bytes:
    """The agent as one file that Python runs."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in _MODULES:
            source = pkgutil.get_data("strix_train.agent", f"{name}.py")
            assert source
            archive.writestr(f"strix_agent/{name}.py", source)
        archive.writestr("__main__.py", "from strix_agent.__main__ import main\nmain()\n")
    return buffer.getvalue()
