"""Programs of the user's: cosign, which signs, and scanners, which read a bill of materials."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from strix_finetune.errors import InputError, WorkError
from strix_finetune.supply import attest, cosign, keyring, scanner
from strix_finetune.supply.envelope import read, sign
from strix_finetune.supply.statement import BILL, Statement

STATEMENT = Statement({"x": "sha256:" + "1" * 64}, BILL, {"bomFormat": "CycloneDX"})
# signs for real with the key that it is given, and writes down how it was called
COSIGN = """#!{python}
import base64, json, sys
from pathlib import Path
arguments = sys.argv[1:]
if arguments == ["sign-blob", "--help"]:
    print("{options}")
    sys.exit()
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
Path(__file__).with_name("called").write_text(json.dumps(arguments))
named = dict(zip(arguments, arguments[1:]))
key = load_pem_private_key(Path(named["--key"]).read_bytes(), None)
made = base64.b64encode(key.sign(Path(arguments[-1]).read_bytes(), ECDSA(SHA256()))).decode()
Path(named["--bundle"]).write_text(json.dumps({bundle}))
"""
NEW = '{"messageSignature": {"signature": made}}'
OLD = '{"base64Signature": made, "cert": ""}'


def program(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = folder / "bin" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(file.parent))
    return file


def write_key(folder: Path) -> Path:
    private = generate_private_key(SECP256R1())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cosign.key"
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


@pytest.mark.parametrize(
    ("options", "offline", "bundle"),
    [
        ("--key --tlog-upload", ["--tlog-upload=false"], OLD),
        ("--key --tlog-upload --use-signing-config", ["--use-signing-config=false", "--tlog-upload=false"], NEW),
        ("--key --offline", ["--offline"], NEW),
    ],
)
def test_cosign_signs_offline_whatever_its_version(
    options: str, offline: list[str], bundle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = COSIGN.replace("{python}", sys.executable).replace("{options}", options).replace("{bundle}", bundle)
    file = program(tmp_path, "cosign", text, monkeypatch)
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    home = tmp_path / "strix-finetune"
    key = write_key(home)
    signer = attest.signer({"XDG_CONFIG_HOME": str(tmp_path)}, None)
    assert isinstance(signer, cosign.CosignSigner)
    line = sign(STATEMENT, signer)
    called = json.loads(file.with_name("called").read_text())
    assert called[: 2 + len(offline)] == ["sign-blob", "--yes", *offline]
    assert called[called.index("--key") + 1] == str(key)
    # its public key lies beside it, so it is trusted without a word
    found = read(line, keyring.trusted(home))
    assert [trusted.path.name for trusted in found.by] == ["cosign.pub"]
    envelope = json.loads(line)
    envelope["payload"] = base64.b64encode(base64.b64decode(envelope["payload"]) + b" ").decode()
    assert not read(json.dumps(envelope).encode(), keyring.trusted(home)).by
    assert not list(tmp_path.glob("strix-finetune-*"))


def test_cosign_that_fails_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = '#!/bin/sh\n[ "$2" != --help ] || {{ echo {}; exit 0; }}\necho "Error: wrong password" >&2\nexit 1\n'
    program(tmp_path, "cosign", script.format("--offline"), monkeypatch)
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    signer = attest.signer({"XDG_CONFIG_HOME": str(tmp_path)}, write_key(tmp_path / "keys"))
    with pytest.raises(WorkError, match="cosign did not sign: Error: wrong password"):
        sign(STATEMENT, signer)
    program(tmp_path, "cosign", script.format("--key"), monkeypatch)
    with pytest.raises(InputError, match="cannot sign offline"):
        sign(STATEMENT, signer)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="cosign is not installed"):
        sign(STATEMENT, signer)


def test_without_cosign_or_its_key_the_own_key_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    monkeypatch.setenv("PATH", str(tmp_path))
    write_key(tmp_path / "strix-finetune")
    assert not isinstance(attest.signer(env, None), cosign.CosignSigner)
    program(tmp_path, "cosign", "", monkeypatch)
    assert isinstance(attest.signer(env, None), cosign.CosignSigner)
    (tmp_path / "strix-finetune/cosign.pub").unlink()
    with pytest.raises(InputError, match="the public key of this key is missing"):
        attest.signer(env, None)
    (tmp_path / "strix-finetune/cosign.key").unlink()
    assert not isinstance(attest.signer(env, None), cosign.CosignSigner)
    with pytest.raises(InputError, match="there is no such key"):
        attest.signer(env, tmp_path / "missing.key")


@pytest.mark.parametrize("bundle", [b"", b"[]", b"{}", b'{"base64Signature": 3}', b'{"base64Signature": "?"}'])
def test_a_bundle_without_a_signature(bundle: bytes) -> None:
    with pytest.raises(WorkError, match="holds no signature"):
        cosign.signature_in(bundle)


SCANNER = (
    '#!/bin/sh\nfor word; do case "$word" in *image.cdx.json) file=${word#sbom:};; esac; done\n/bin/cat "$file"; exit '
)


@pytest.mark.parametrize("name", ["grype", "trivy", "osv-scanner"])
def test_a_scanner_reads_the_bill(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = program(tmp_path, name, SCANNER + "0\n", monkeypatch)
    assert scanner.find("") == scanner.find(name) == str(file)
    assert scanner.run(str(file), '{"bomFormat": "CycloneDX"}') == 0
    assert capfd.readouterr().out == '{"bomFormat": "CycloneDX"}'
    program(tmp_path, name, SCANNER + "3\n", monkeypatch)
    with pytest.raises(WorkError, match=f"{name} failed"):
        scanner.run(str(file), "{}")
    program(tmp_path, name, SCANNER + "1\n", monkeypatch)
    if name == "osv-scanner":
        assert scanner.run(str(file), "{}") == 1
    else:
        with pytest.raises(WorkError, match=f"{name} failed"):
            scanner.run(str(file), "{}")


def test_no_scanner_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        InputError, match="no vulnerability scanner is installed; install grype or trivy or osv-scanner"
    ):
        scanner.find("")
    with pytest.raises(InputError, match="trivy is not installed"):
        scanner.find("trivy")
    with pytest.raises(InputError, match="there is no scanner 'gripe'; did you mean 'grype'"):
        scanner.find("gripe")
