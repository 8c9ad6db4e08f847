"""The image that Toolbx reads: streamed from Docker's store to Podman's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from strix_finetune import names
from strix_finetune.engine.base import BuildRequest
from strix_finetune.errors import WorkError
from strix_finetune.toolbx.store import copied, ensure
from tests.engine.conftest import LABEL, PREFIX, context

if TYPE_CHECKING:
    from tests.engine.conftest import Bench

pytestmark = pytest.mark.engine

REF = f"{PREFIX}/copied:1"


def build(bench: Bench, key: str) -> None:
    text = f"FROM {bench.base}\nRUN echo {key} >/tmp/key\n"
    image = bench.engine.build(BuildRequest(context(text), {LABEL: "copied", names.KEY: key}), lambda event: None)
    bench.engine.tag(image, REF)


def test_an_image_is_copied_and_a_newer_one_takes_its_name(docker_bench: Bench, podman_bench: Bench) -> None:
    assert podman_bench.engine.image(REF) is None
    arrived = []
    for key in ("one", "two"):
        build(docker_bench, key)
        theirs = docker_bench.engine.image(REF)
        assert theirs
        arrived.append(copied(docker_bench.engine, podman_bench.engine, theirs, REF))
        assert podman_bench.run("cat", "/tmp/key", image=REF)[1] == f"{key}\n"
    assert arrived[0].id != arrived[1].id
    assert podman_bench.engine.image(arrived[0].id) is None, "the one before fills the disk without a name"
    podman_bench.engine.untag(REF)


def test_what_is_there_is_taken_and_what_is_not_is_told(docker_bench: Bench, podman_bench: Bench) -> None:
    said: list[str] = []
    build(docker_bench, "three")
    ensure(REF, "cpu", os.environ, said.append)
    assert said == [f"copying {REF} from Docker to Podman, which Toolbx reads: 0.0 GB"]
    ensure(REF, "cpu", os.environ, said.append)
    ensure(REF, "cpu", os.environ, said.append, copy=True)
    assert len(said) == 1, "the same image is not copied again"
    podman_bench.engine.untag(REF)
    with pytest.raises(WorkError, match=r"neither Podman nor Docker has .*never:1; run 'strix-finetune build"):
        ensure(f"{PREFIX}/never:1", "cpu", os.environ, said.append)
