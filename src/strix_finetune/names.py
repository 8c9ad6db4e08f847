"""Image names and labels: the one place that knows how they are spelled."""

from __future__ import annotations

PREFIX = "localhost/strix-finetune"
LABEL = "io.strix-finetune"
KEY = f"{LABEL}.key"
LAYER = f"{LABEL}.layer"
TARGET = f"{LABEL}.target"
CHANNEL = f"{LABEL}.channel"
PARTS = f"{LABEL}.parts"
NOTICE = f"{LABEL}.notice"
TESTS = f"{LABEL}.tests"
# on manifests and indexes only, in no image: what the key is made of, and what the tests that need a GPU said
INPUTS = f"{LABEL}.inputs"
DEVICE_TESTS = f"{LABEL}.device-tests"
VERSION = f"{LABEL}.version"
KEY_DIGITS = 12


def layer_ref(layer: str, target: str, key: str) -> str:
    """The immutable name of one layer: it exists only once the layer's static smoke tests have passed."""
    return f"{PREFIX}/{layer}:{target}-{key[:KEY_DIGITS]}"


def moving_ref(layer: str, target: str) -> str:
    """The name that follows the newest good build of a layer."""
    return f"{PREFIX}/{layer}:{target}"


def final_ref(target: str) -> str:
    """The name that people type."""
    return f"{PREFIX}:{target}"


def has_host(name: str) -> bool:
    """Whether the name of an image says its registry; each engine looks a short one up by its own settings."""
    host, slash, _ = name.partition("/")
    return bool(slash) and is_host(host)


def is_host(word: str) -> bool:
    """Whether the first word of an image's name is the host of a registry, and not a folder at an unnamed one."""
    return "." in word or ":" in word or word == "localhost"
