"""The bill of the real image beside what dpkg and Python say inside of it; and what is signed about it."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from strix_finetune.engine.podman_conf import HostFacts, configuration
from tests.e2e.stranger import Stranger

TARGET = "cpu"
IMAGE = f"localhost/strix-finetune:{TARGET}"
WHICH = ("--target", TARGET, "--channel", "debian", "--engine", "podman")
DPKG = ("dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package} ${Version}\n")
# what `pip list` lists: the first of two of a name is the one that is imported, and both are installed
PYTHON = """
import importlib.metadata
for found in importlib.metadata.distributions():
    print(found.metadata["Name"], found.version, found.locate_file(""))
"""


@pytest.fixture(scope="module")
def podman_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the podman program needs on this host; the driver's own service finds it out by itself."""
    text = configuration(HostFacts.read(os.environ), root=os.geteuid() == 0)
    if not text or "CONTAINERS_CONF" in os.environ:
        return {}
    path = tmp_path_factory.mktemp("podman") / "containers.conf"
    path.write_text(text)
    return {"CONTAINERS_CONF": str(path)}


@pytest.fixture(scope="module")
def bill(stranger: Stranger) -> dict[str, Any]:
    """The bill as it was signed. The tests of Podman have built the image; alone this one builds it.

    Signing needs an extra, which these tests have and a stranger has not.
    """
    stranger.run("make", "image", "ENGINE=podman", f"TARGET={TARGET}", "CHANNEL=debian")
    signing = [sys.executable, "-m", "strix_finetune", "sign", *WHICH]
    env = stranger.environment({"PYTHONPATH": str(stranger.clone / "src")})
    done = subprocess.run(signing, cwd=stranger.clone, env=env, capture_output=True, text=True, check=False)
    if "run 'strix-finetune smoke" in done.stderr:
        # somebody else's run has built and tested it
        stranger.strix("smoke", "finetune", *WHICH)
        done = subprocess.run(signing, cwd=stranger.clone, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [file] = (stranger.home / ".local/state/strix-finetune/attestations").iterdir()
    envelopes = [json.loads(line) for line in file.read_text().splitlines()]
    statements = [json.loads(base64.b64decode(envelope["payload"])) for envelope in envelopes]
    assert [statement["predicateType"] for statement in statements] == [
        "https://cyclonedx.org/bom",
        "https://slsa.dev/provenance/v1",
    ]
    found: dict[str, Any] = statements[0]["predicate"]
    return found


def inside(stranger: Stranger, env: dict[str, str], *command: str) -> list[list[str]]:
    said = stranger.run("podman", "run", "--rm", "--network", "none", IMAGE, *command, env=env)
    return [line.split() for line in said.splitlines()]


def properties(component: dict[str, Any]) -> dict[str, str]:
    return {row["name"].removeprefix("strix-finetune:"): row["value"] for row in component.get("properties", ())}


def test_every_package_of_dpkg_is_in_the_bill(
    stranger: Stranger, bill: dict[str, Any], podman_env: dict[str, str]
) -> None:
    said = {(name, version) for state, name, version in inside(stranger, podman_env, *DPKG) if state == "installed"}
    assert len(said) > 150
    # what a layer builds as a package of its own is no package of Debian's, and dpkg lists it
    listed = {
        (item["name"], item["version"])
        for item in bill["components"]
        if item.get("purl", "").startswith("pkg:deb/") or item["name"].startswith("strix-finetune-")
    }
    assert listed == said


def test_every_distribution_of_python_is_in_the_bill(
    stranger: Stranger, bill: dict[str, Any], podman_env: dict[str, str]
) -> None:
    rows = inside(stranger, podman_env, "/opt/venv/bin/python", "-c", PYTHON)
    said = {(re.sub(r"[-_.]+", "-", name).lower(), version, place.rstrip("/")) for name, version, place in rows}
    assert len(said) > 90
    listed = {
        (item["name"], item["version"], properties(item)["place"])
        for item in bill["components"]
        if item.get("purl", "").startswith("pkg:pypi/")
    }
    assert listed == said


def test_the_bill_is_valid_and_tells_of_licences_patches_and_sources(bill: dict[str, Any]) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None
    image = properties(bill["metadata"]["component"])
    assert image["compared-with-lock"] == "yes"
    by_name = {item["name"]: item for item in bill["components"]}
    assert by_name["bash"]["licenses"]
    assert "patches" in by_name["unsloth-zoo"]["pedigree"]
    assert by_name["llama"]["hashes"]
    assert by_name["transformers"]["licenses"] == [{"expression": "Apache-2.0"}]
    affero = [row["location"] for row in by_name["unsloth"]["evidence"]["occurrences"]]
    assert any(path.endswith("/_cpu_init.py") for path in affero)
    # the layer removes them
    assert not any("/unsloth_cli/" in path or "/studio/" in path for path in affero)


def test_what_was_signed_holds(stranger: Stranger, bill: dict[str, Any]) -> None:
    """Checking needs no more than a user's driver has."""
    told = json.loads(stranger.strix("verify", *WHICH, "--json"))
    assert [(check["check"], check["holds"]) for check in told["checks"]] == [
        (name, True) for name in ("signature", "digest", "key", "contents", "provenance", "smoke")
    ]


def test_a_layer_has_a_bill_of_its_own(stranger: Stranger, bill: dict[str, Any]) -> None:
    said = stranger.strix("sbom", "base", *WHICH, "--format", "spdx", "--output", "base.spdx.json")
    assert re.match(r"\d+ Debian packages, 0 Python distributions; \d+ name no licence\n$", said)
    found = json.loads((stranger.clone / "base.spdx.json").read_text())
    assert found["spdxVersion"] == "SPDX-2.3"
    names = {package["name"] for package in found["packages"]}
    assert {"bash", "python3"} & names == {"bash"}
