"""sign, verify, scan: who says what of an image, whether it holds, and what is known to be wrong with what is in it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strix_finetune.cli.options import image_options, json_option
from strix_finetune.cli.supply import made, opened, rendered
from strix_finetune.workspace import Options

if TYPE_CHECKING:
    from strix_finetune.engine.base import Engine
    from strix_finetune.registry.client import Registry
    from strix_finetune.supply.attached import Place
    from strix_finetune.supply.envelope import Signer
    from strix_finetune.supply.subject import Subject

_file = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("image", default="", metavar="[IMAGE|TARGET]")
@click.option(
    "--cosign", "cosign_key", type=_file, metavar="KEY", help="Sign with cosign and this key (KEY.pub beside it)."
)
@click.option("--output", "-o", type=_file, help="Write the statements here instead of into the state folder.")
@click.option(
    "--to", "address", default="", metavar="REGISTRY", help="Sign the pushed image of this key, and attach it there."
)
@click.option(
    "--parents", is_flag=True, help="Sign the layers that it stands on, too: 'build --from' takes them one by one."
)
@image_options
def sign(
    image: str, cosign_key: Path | None, output: Path | None, address: str, parents: bool, options: Options
) -> int:
    """Say what an image is made of and how, and sign that: a bill of materials and SLSA provenance, for 'verify'.

    Signs with cosign where it is installed and cosign.key lies in the config folder, else with a key of your own, which
    is made at the first time.
    """
    from strix_finetune.errors import InputError
    from strix_finetune.paths import find
    from strix_finetune.supply import attached, attest, pushed

    if output and parents:
        raise InputError("--output is for one image", cure="leave --parents out, or --output")
    with opened(image, options) as (engine, subject):
        signer = attest.signer(os.environ, cosign_key)
        subjects = [subject, *(subject.parents(engine) if parents else ())]
        if not address:
            for one in subjects:
                _sign(engine, one, signer, None, None, output)
            return 0
        registry = registry_of(address, options)
        places = [attached.find(registry, one.image) for one in subjects]
        if subject.known:
            cache = find(os.environ).cache
            pushed.check(engine, registry, subjects, places, cache, lambda text: print(text, file=sys.stderr))
        for one, place in zip(subjects, places, strict=True):
            _sign(engine, one, signer, registry, place, output)
    return 0


def _sign(
    engine: Engine,
    subject: Subject,
    signer: Signer,
    registry: Registry | None,
    where: Place | None,
    output: Path | None,
) -> None:
    from strix_finetune.paths import find
    from strix_finetune.supply import attached, attest

    made = attest.statements(engine, subject, where.subjects if where else attest.local(subject))
    lines = attest.envelopes(made, signer)
    said = f"{subject.ref}: {len(lines)} statements by key {signer.public_key.keyid[:12]}"
    if registry and where:
        kinds = [one.kind for one in made]
        attached.attach(registry, where.offer.manifest, zip(kinds, lines, strict=True))
        click.echo(f"{said} at {where.name}")
    if output or not where:
        file = output or attest.path(find(os.environ).state, subject.image.id)
        attest.save(lines, file)
        click.echo(f"{said} in {file}")


def registry_of(address: str, options: Options) -> Registry:
    """A repository, with this host's network settings and its engine's logins."""
    from strix_finetune import netconf
    from strix_finetune.registry import client, repository

    settings = netconf.collect(os.environ, options.network)
    where = repository.parse(address)
    return client.connect(where, settings, os.environ, say=lambda text: print(text, file=sys.stderr))


@click.command()
@click.argument("image", default="", metavar="[IMAGE|TARGET]")
@click.option("--key", "keys", type=_file, multiple=True, help="Trust this public key and no other; may be repeated.")
@click.option("--statements", type=_file, help="What was signed. Default: as 'sign' left it.")
@click.option(
    "--from", "address", default="", metavar="REGISTRY", help="Take what is attached to the image of this key there."
)
@json_option
@image_options
def verify(
    image: str, keys: tuple[Path, ...], statements: Path | None, address: str, as_json: bool, options: Options
) -> int:
    """Check an image: signature, digest, key, contents, provenance, smoke tests. Exit 1 where one does not hold."""
    from strix_finetune import paths
    from strix_finetune.supply import attached, attest, keyring
    from strix_finetune.supply import verify as checks

    trusted = keyring.trusted(paths.config(os.environ), keys)
    with opened(image, options) as (engine, subject):
        digests: list[str] = []
        if address:
            registry = registry_of(address, options)
            where = attached.find(registry, subject.image)
            lines, digests = attached.fetch(registry, where.offer.manifest.digest), [where.offer.manifest.digest]
        else:
            file = statements or attest.path(paths.find(os.environ).state, subject.image.id)
            lines = attest.load(file)
        found = checks.verify(engine, subject, lines, trusted, digests)
    bad = [check for check in found if not check.holds]
    if as_json:
        rows = [{"check": check.name, "holds": check.holds, "said": check.said} for check in found]
        click.echo(json.dumps({"image": subject.ref, "id": subject.image.id, "checks": rows}, indent=1))
    else:
        width = max(len(check.name) for check in found)
        for check in found:
            click.echo(f"{'ok    ' if check.holds else 'FAILED'}  {check.name.ljust(width)}  {check.said}")
    if bad:
        sys.stdout.flush()
        print(f"error: {subject.ref} does not hold: {', '.join(check.name for check in bad)}", file=sys.stderr)
    return 1 if bad else 0


@click.command()
@click.argument("image", default="", metavar="[IMAGE|TARGET]")
@click.option(
    "--with", "tool", default="", metavar="TOOL", help="grype, trivy or osv-scanner. Default: the first one found."
)
@image_options
def scan(image: str, tool: str, options: Options) -> int:
    """Look for known vulnerabilities in an image, by a scanner that you have, from the bill of materials alone."""
    from strix_finetune.supply import scanner

    command = scanner.find(tool)
    with opened(image, options) as (engine, subject):
        bill = rendered(made(engine, subject), "cyclonedx")
    return scanner.run(command, bill)
