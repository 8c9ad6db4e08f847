"""Programs of Debian's stable suite, unpacked into a folder: a host's own suite may have older ones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from strix_finetune import netconf

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def unpacked(folder: Path, *packages: str) -> Path:
    """Fetch `packages`, without what they depend on, by this host's apt and mirror; return the root that holds them."""
    settings = netconf.collect(os.environ)
    assert settings.debian_mirror, "this host's apt names no mirror of Debian; give STRIX_DEBIAN_MIRROR"
    for name in ("lists/partial", "archives/partial", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {settings.debian_mirror} stable main\n")
    options = {
        "Dir::Etc::sourcelist": f"{folder}/sources.list",
        "Dir::Etc::sourceparts": "/nonexistent",
        "Dir::State::lists": f"{folder}/lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": f"{folder}",
        "Acquire::Languages": "none",
        # as the caller: the folder is nobody else's
        "APT::Sandbox::User": "",
        **dict(settings.apt_options),
    }
    apt = ["apt-get", "-qq", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    env = {**os.environ, **settings.proxies}
    subprocess.run([*apt, "update"], check=True, env=env)
    subprocess.run([*apt, "download", *packages], check=True, env=env, cwd=folder)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, folder / "root"], check=True)
    return folder / "root"


def apt_conf() -> str:
    """What a container's own apt must be told so that it takes this host's mirror, which may be an old copy."""
    return "".join(f'{key} "{value}";\n' for key, value in netconf.collect(os.environ).apt_options)
