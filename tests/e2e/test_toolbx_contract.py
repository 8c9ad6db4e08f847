"""The smoke test of the Toolbx contract passes on the final image, and finds each breach of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strix_finetune.engine.select import connect
from strix_finetune.smoke import HOME, image_facts
from tests.e2e.stranger import TRAINING, Stranger

IMAGE = "localhost/strix-finetune:gfx1151"
# what is done inside before the test runs → what it says
INSIDE = {
    "touch /home/somebody": "/home is not empty: somebody",
    "useradd --uid 1000 somebody": "uid 1000 is taken by somebody",
    "rm /usr/sbin/capsh /sbin/capsh": "capsh --caps= -- --login -c … does not work",
    "rm /etc/sudoers.d/90-strix-finetune": "a user of the group sudo does not become root without a password",
    "rm /usr/bin/passwd": "passwd is missing",
    "rm /usr/bin/mount": "mount is missing",
    "rm -r /usr/share/empty": "the folder /usr/share/empty is missing",
    "echo export PATH=/bin >> /etc/profile.d/strix-finetune.sh": "a login shell does not find /opt/venv/bin first",
    "echo export MORE=1 >> /etc/profile.d/strix-finetune.sh": "a login shell has another MORE than the image's ENV",
    "echo echo hello >> /etc/profile.d/strix-finetune.sh": "a login shell that is not interactive prints: hello",
}
# what the engine says of the image in place of what is so → what the test says
OUTSIDE = {
    ("labels", "other=1\n"): 'the label com.github.containers.toolbox="true" is missing',
    ("entrypoint", "/bin/sh\n"): "the image has an ENTRYPOINT, which Toolbx replaces: /bin/sh",
    ("cmd", ""): "the image has no CMD",
    ("env", "PATH=/usr/bin:/bin\n"): "PATH of the image does not begin with /opt/venv/bin but is /usr/bin:/bin",
    ("env", "LD_PRELOAD=/lib/x.so\n"): "the image sets LD_PRELOAD",
    ("env", "NEW=1\n"): "a login shell has another NEW than the image's ENV ('",
}


@pytest.fixture(scope="module")
def folder(stranger: Stranger, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a smoke test finds under $STRIX_SMOKE, for the image as it is; and the test."""
    stranger.run("make", "image", f"OVERRIDE={TRAINING}")
    made = tmp_path_factory.mktemp("smoke")
    engine = connect("docker", stranger.environment())
    try:
        for name, content in image_facts(engine, IMAGE).items():
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_bytes(content)
    finally:
        engine.close()
    shutil.copy2(stranger.clone / "images/base/smoke/toolbx.sh", made)
    return made


def contract(stranger: Stranger, folder: Path, before: str = "true") -> str:
    """What the test prints in a container in which something was done before."""
    inside = ("--network", "none", "-v", f"{folder}:{HOME}:ro", "--env", f"STRIX_SMOKE={HOME}")
    script = f"{{ {before}; }} > /dev/null 2>&1; {HOME}/toolbx.sh 2>&1; echo code $?"
    return stranger.run("docker", "run", "--rm", *inside, IMAGE, "sh", "-c", script)


def test_the_final_image_keeps_the_contract(stranger: Stranger, folder: Path) -> None:
    said = contract(stranger, folder)
    assert said.startswith("ready for Toolbx: label, no ENTRYPOINT, capsh, sudo without a password")
    assert said.endswith("code 0\n")


def test_what_is_broken_inside_is_found(stranger: Stranger, folder: Path) -> None:
    """Everything at once: a container for each would take as many seconds."""
    said = contract(stranger, folder, "; ".join(INSIDE))
    assert [sentence for sentence in INSIDE.values() if f"toolbx: {sentence}" not in said] == []
    assert said.endswith("code 1\n")


def test_what_the_image_says_of_itself_counts(stranger: Stranger, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "smoke")
    for name in ("labels", "entrypoint", "cmd", "env"):
        (tmp_path / "smoke/image" / name).write_text("".join(text for fact, text in OUTSIDE if fact == name))
    said = contract(stranger, tmp_path / "smoke")
    assert [sentence for sentence in OUTSIDE.values() if f"toolbx: {sentence}" not in said] == []
    assert said.endswith("code 1\n")
