"""The agent as one file, which any Python runs: it is laid into the containers."""

from __future__ import annotations

import io
import pkgutil
import zipfile


def program() -> bytes:
    """The agent as one file that Python runs."""
    from strix_train import agent

    modules = ["__init__", *(found.name for found in pkgutil.iter_modules(agent.__path__))]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in modules:
            source = pkgutil.get_data("strix_train.agent", f"{name}.py")
            assert source
            archive.writestr(f"strix_agent/{name}.py", source)
        archive.writestr("__main__.py", "from strix_agent.__main__ import main\nmain()\n")
    return buffer.getvalue()
