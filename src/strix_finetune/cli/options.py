"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from strix_finetune.netconf import Flags
from strix_finetune.workspace import Options

F = TypeVar("F", bound=Callable[..., Any])


def engine_option(text: str = "Container engine.") -> Callable[[F], F]:
    """--engine, as `engine`."""
    kinds = click.Choice(["auto", "docker", "podman"])
    return click.option("--engine", type=kinds, default="auto", show_default=True, help=text)


def image_options(command: F) -> F:
    """--target, --channel, --engine, --override, --images and the network flags, given on as one `options`."""

    @click.option(
        "--target",
        "-t",
        default="",
        metavar="GFX",
        help="GPU target, or cpu; plan, build: also several, as in gfx1151,cpu. Default: the GPU found, else gfx1151.",
    )
    @click.option(
        "--channel", "-c", default="", metavar="NAME", help="Set of sources. Default: amd with an AMD GPU, else debian."
    )
    @engine_option()
    @click.option(
        "--override",
        type=click.Path(path_type=Path),
        help="Folder with your changes: override.toml, templates/, layers/.",
    )
    @click.option(
        "--images",
        type=click.Path(path_type=Path),
        help="Folder of layer definitions. Default: the ones of this installation.",
    )
    @click.option(
        "--debian-mirror", default="", metavar="URL", help="Debian mirror for this build; in no image and no key."
    )
    @click.option(
        "--ca-bundle",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="CA certificates for this build.",
    )
    @click.option(
        "--wheels", type=click.Path(path_type=Path), multiple=True, help="Local folder of wheels for this build."
    )
    @click.option(
        "--index", multiple=True, metavar="NAME=URL", help="Where the channel's index NAME is; in no image and no key."
    )
    @functools.wraps(command)
    def wrapper(
        *arguments: Any,
        target: str,
        channel: str,
        engine: str,
        override: Path | None,
        images: Path | None,
        debian_mirror: str,
        ca_bundle: Path | None,
        wheels: tuple[Path, ...],
        index: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        flags = Flags(debian_mirror=debian_mirror, ca_bundle=ca_bundle, wheels=wheels, indexes=index)
        return command(*arguments, options=Options(target, channel, engine, override, images, flags), **rest)

    return wrapper  # type: ignore[return-value]


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON; see docs/json.md.")
