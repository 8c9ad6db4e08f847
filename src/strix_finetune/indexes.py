"""Where this host looks for Python packages: uv's and pip's variables and configuration files, read into one value.

uv wins over pip, a variable over a file. pip's files are read here because uv does not read them.
"""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from strix_finetune.errors import InputError, Place, Problem

_NAMED = re.compile(r"^[\w-]+=")  # uv's "name=URL"
_SECTIONS = ("global", "download", "install")
# uv has no variable for "no index", and with the usual one it believes a page in its cache more than a folder
_NOWHERE = "file:///no-index"


@dataclass(frozen=True, slots=True)
class Indexes:
    """Package indexes and folders of wheels. URLs may hold credentials: they are left out of repr.

    `extra` entries may be uv's "name=URL". `links`: local folders, or URLs of pages with links.
    `timeout` is in seconds, as written.
    """

    default: str = field(default="", repr=False)
    extra: tuple[str, ...] = field(default=(), repr=False)
    links: tuple[str, ...] = field(default=(), repr=False)
    strategy: str = ""
    trusted_hosts: tuple[str, ...] = ()
    timeout: str = ""
    no_index: bool = False
    cert: str = ""

    @property
    def folders(self) -> tuple[Path, ...]:
        """The links that are folders of this host."""
        return tuple(path for link in self.links if (path := _local(link)) is not None and path.is_dir())

    def variables(self, wheels: str) -> dict[str, str]:
        """uv's variables for these settings; `wheels` stands for all local folders ("" for none).

        An index that is a folder of this host is left out: a build step cannot reach it, and a lock made
        with it would name files that no build finds.
        """
        extra = () if self.no_index else self.extra
        found = {
            "UV_DEFAULT_INDEX": _NOWHERE if self.no_index else "" if _local(self.default) else self.default,
            "UV_INDEX": " ".join(entry for entry in extra if not _local(_NAMED.sub("", entry))),
            "UV_FIND_LINKS": ",".join([*(link for link in self.links if not _local(link)), *([wheels] * bool(wheels))]),
            "UV_INDEX_STRATEGY": self.strategy,
            "UV_INSECURE_HOST": " ".join(self.trusted_hosts),
            "UV_HTTP_TIMEOUT": self.timeout,
            # where all links are folders
            "UV_OFFLINE": "1" if self.no_index and all(_local(link) for link in self.links) else "",
        }
        if not found["UV_INDEX"]:
            found["UV_INDEX_STRATEGY"] = ""
        return {name: value for name, value in found.items() if value}


def collect(env: Mapping[str, str], home: Path, root: Path = Path("/")) -> Indexes:
    """Read the settings. `root` is where /etc lies. Raises InputError for a configuration file that cannot be read."""
    pip, uv = _pip_options(env, home, root), _uv_options(env, home, root)
    default = (
        env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or uv["default"] or " ".join(pip.get("index-url", []))
    )
    extra = _words(env, "UV_INDEX", "UV_EXTRA_INDEX_URL") or tuple(uv["extra"])
    strategy = env.get("UV_INDEX_STRATEGY", "") or uv["strategy"]
    if not extra and pip.get("extra-index-url"):
        extra = tuple(pip["extra-index-url"])
        # pip weighs all its indexes alike; uv's own rule would hide the default index behind the extra ones
        strategy = strategy or "unsafe-best-match"
    links = [link for link in env.get("UV_FIND_LINKS", "").split(",") if link] or uv["links"]
    return Indexes(
        default=default,
        extra=extra,
        links=tuple(dict.fromkeys(links or pip.get("find-links", []))),
        strategy=strategy,
        trusted_hosts=_words(env, "UV_INSECURE_HOST") or tuple(pip.get("trusted-host", [])),
        timeout=env.get("UV_HTTP_TIMEOUT") or " ".join(pip.get("timeout", [])),
        no_index=_is_on(env.get("UV_NO_INDEX", "")) or _is_on(" ".join(pip.get("no-index", []))),
        cert=" ".join(pip.get("cert", [])),
    )


def _pip_options(env: Mapping[str, str], home: Path, root: Path) -> dict[str, list[str]]:
    """pip's options by their long name, each as a list of words."""
    options: dict[str, list[str]] = {}
    for path in _pip_files(env, home, root):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text("utf-8"), source=str(path))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            raise InputError(_unreadable(path, error)) from None
        for section in _SECTIONS:
            if parser.has_section(section):
                options |= {name.replace("_", "-"): value.split() for name, value in parser.items(section)}
    for name, value in env.items():
        if name.startswith("PIP_") and value:
            options[name.removeprefix("PIP_").lower().replace("_", "-")] = value.split()
    if "default-timeout" in options:
        options.setdefault("timeout", options["default-timeout"])
    return options


def _pip_files(env: Mapping[str, str], home: Path, root: Path) -> Iterator[Path]:
    """pip's files, the weakest first."""
    chosen = env.get("PIP_CONFIG_FILE", "")
    if chosen == "/dev/null":
        return
    yield from (root / "etc/xdg/pip/pip.conf", root / "etc/pip.conf", home / ".pip/pip.conf")
    yield Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"
    if chosen:
        yield Path(chosen)


def _uv_options(env: Mapping[str, str], home: Path, root: Path) -> dict[str, Any]:
    options: dict[str, Any] = {"default": "", "extra": [], "links": [], "strategy": ""}
    if _is_on(env.get("UV_NO_CONFIG", "")):
        return options
    user = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "uv/uv.toml"
    paths = (root / "etc/xdg/uv/uv.toml", root / "etc/uv/uv.toml", user)
    for path in (Path(env["UV_CONFIG_FILE"]),) if env.get("UV_CONFIG_FILE") else paths:
        try:
            data = tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise InputError(_unreadable(path, error)) from None
        pip = data.get("pip", {})
        indexes = [entry for entry in data.get("index", []) if not entry.get("explicit")]
        defaults = [entry["url"] for entry in indexes if entry.get("default")]
        options["default"] = (
            next(iter([*defaults, *(pip.get("index-url"), data.get("index-url"))]), None) or options["default"]
        )
        options["extra"] = [
            *(entry["url"] for entry in indexes if not entry.get("default")),
            *(pip.get("extra-index-url") or data.get("extra-index-url") or []),
        ] or options["extra"]
        options["links"] = pip.get("find-links") or data.get("find-links") or options["links"]
        options["strategy"] = pip.get("index-strategy") or data.get("index-strategy") or options["strategy"]
    return options


def _unreadable(path: Path, error: Exception) -> Problem:
    line = getattr(error, "lineno", None)
    if line is None and (found := re.search(r"line:? +(\d+)", str(error))):
        line = int(found[1])
    reason = error.strerror if isinstance(error, OSError) else "its syntax is wrong"
    return Problem(f"the host's package configuration cannot be read ({reason})", Place(path, line), "correct it")


def _local(url: str) -> Path | None:
    """The path behind a file URL or a plain path; None for what is reached over a network, or for nothing."""
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(url).expanduser()


def _words(env: Mapping[str, str], *names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in env.get(name, "").split())


def _is_on(value: str) -> bool:
    return value.strip().lower() in ("1", "true", "yes", "on")
