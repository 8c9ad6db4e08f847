"""Archives as engines hand them out, made in memory."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping

Files = Mapping[str, bytes | tuple[str, str]]


def tar(members: Files) -> bytes:
    """Content, or ("sym" | "hard", where to)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                info.type = tarfile.SYMTYPE if content[0] == "sym" else tarfile.LNKTYPE
                info.linkname = content[1]
                archive.addfile(info)
                continue
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
