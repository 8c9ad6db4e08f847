"""What outlives a container: folders of the user's, where they lie on a host, and where the image looks for them.

The launcher and every emitted definition mount these and no others. So what one of them fetched or compiled is there
for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# inside the image
MODELS = "/models"
HUB = "/hub"
COMPILED = "/cache"
TOKEN = "/run/strix-finetune/hf-token"

# where the image looks; each compiler has a name of its own for where it keeps what it made
ENVIRONMENT: Mapping[str, str] = {
    "STRIX_MODELS": MODELS,
    "HF_HOME": HUB,
    "XDG_CACHE_HOME": COMPILED,
    "TRITON_CACHE_DIR": f"{COMPILED}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{COMPILED}/inductor",
    "TORCH_HOME": f"{COMPILED}/torch",
    "MIOPEN_USER_DB_PATH": f"{COMPILED}/miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": f"{COMPILED}/miopen-cache",
    "MPLCONFIGDIR": f"{COMPILED}/matplotlib",
}


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of the user's that is mounted at `target`.

    `name`: what scripts call it; `folder`: below the user's cache folder; `variable`: of the host, which names another
    folder instead.
    """

    name: str
    target: str
    folder: str
    variable: str = ""
    read_only: bool = False

    def place(self, env: Mapping[str, str]) -> Path:
        """Where it lies for the user with this environment, by the rules of the programs that use it themselves."""
        if self.variable and env.get(self.variable):
            return Path(env[self.variable]).expanduser().absolute()
        return _base(env) / self.folder


CACHES = (
    Cache("models", MODELS, "strix-finetune/models", "STRIX_MODELS", read_only=True),
    Cache("hub", HUB, "huggingface", "HF_HOME"),
    Cache("compiled", COMPILED, "strix-finetune/compiled"),
)


def moved(env: Mapping[str, str]) -> dict[str, str]:
    """The caches that are not where they are by default, by their names: for what is said once and used later."""
    home = {"HOME": env.get("HOME", "")}
    places = {cache.name: (cache.place(env), cache.place(home)) for cache in CACHES}
    return {name: str(place) for name, (place, usual) in places.items() if place != usual}


def _base(env: Mapping[str, str]) -> Path:
    named = env.get("XDG_CACHE_HOME", "")
    # the XDG specification tells readers to ignore relative paths
    return Path(named) if named.startswith("/") else Path(env.get("HOME") or "~").expanduser() / ".cache"
