"""Folders: where the definitions lie, and where a user's cache, state and data go."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

APP = "strix-finetune"


@dataclass(frozen=True, slots=True)
class Folders:
    """`images`, `recipes`: the definitions. The rest are the user's own folders (XDG)."""

    images: Path
    recipes: Path
    python: Path
    cache: Path
    state: Path
    data: Path

    @property
    def toolbox(self) -> Path:
        """Templates of definitions for other tools."""
        return self.recipes.parent / "toolbox"

    @property
    def in_checkout(self) -> bool:
        return not self.images.is_relative_to(Path(__file__).resolve().parent)


def find(env: Mapping[str, str] | None = None) -> Folders:
    """The folders of this installation: a checkout's own definitions, else the ones inside the wheel."""
    env = os.environ if env is None else env
    package = Path(__file__).resolve().parent
    checkout = package.parent.parent
    root = checkout if (checkout / "images" / "targets.toml").is_file() else package / "_data"
    return Folders(
        images=root / "images",
        recipes=root / "recipes",
        python=package.parent,
        cache=_user(env, "XDG_CACHE_HOME", ".cache"),
        state=_user(env, "XDG_STATE_HOME", ".local/state"),
        data=_user(env, "XDG_DATA_HOME", ".local/share"),
    )


def config(env: Mapping[str, str]) -> Path:
    """The user's own settings: keys to sign with, and keys that are trusted."""
    return _user(env, "XDG_CONFIG_HOME", ".config")


def _user(env: Mapping[str, str], variable: str, default: str) -> Path:
    value = env.get(variable, "")
    home = Path(env.get("HOME") or "~").expanduser()
    # the XDG specification tells readers to ignore relative paths
    return (Path(value) if value.startswith("/") else home / default) / APP
