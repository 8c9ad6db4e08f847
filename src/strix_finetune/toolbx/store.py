"""The image in Podman's store, the only one that Toolbx reads: built there, or streamed from Docker's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from strix_finetune import names
from strix_finetune.engine.base import Engine, Image
from strix_finetune.engine.select import connect
from strix_finetune.errors import EngineUnavailable, Problem, WorkError

Say = Callable[[str], None]


def ensure(ref: str, target: str, env: Mapping[str, str], say: Say, *, copy: bool = False) -> Image:
    """The image in Podman's store. With `copy` Docker's is taken even where Podman has one."""
    podman = connect("podman", env)
    try:
        held = podman.image(ref)
        if held is not None and not copy:
            return held
        try:
            docker = connect("docker", env)
        except EngineUnavailable:
            docker = None
        try:
            theirs = docker.image(ref) if docker is not None else None
            if docker is None or theirs is None:
                cure = f"run 'strix-finetune build --engine podman --target {target}', or pull it"
                raise WorkError(Problem(f"neither Podman nor Docker has {ref}", cure=cure))
            if held is not None and held.labels.get(names.KEY) == theirs.labels.get(names.KEY):
                return held
            say(f"copying {ref} from Docker to Podman, which Toolbx reads: {theirs.size / 1e9:.1f} GB")
            return copied(docker, podman, theirs, ref)
        finally:
            if docker is not None:
                docker.close()
    finally:
        podman.close()


def copied(source: Engine, sink: Engine, image: Image, ref: str) -> Image:
    """Stream an image from one engine to the other, and point `ref` at what arrived there.

    Names that the sink has already and that belong to another image go to the new one.
    """
    held = sink.image(ref)

    def archive() -> Iterator[bytes]:
        return source.export(ref)

    sink.load(archive)
    arrived = sink.image(ref)
    if arrived is None or arrived.labels.get(names.KEY) != image.labels.get(names.KEY):
        raise WorkError(Problem(f"{ref} did not arrive in {sink.info.kind}'s store", cure="copy it again"))
    if held is not None and held.id != arrived.id:
        sink.remove(held.id)
    return arrived
