"""The files of deploy/ and the commands of docs/deploy.md: readable by what reads them, with options that exist."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_private_key, load_ssh_public_key

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def options_of(command):
    # By name: the packages export functions under the names of these modules.
    superlink = import_module("flwr.superlink.cli.flower_superlink")
    supernode = import_module("flwr.supernode.cli.flower_supernode")
    parser = (
        superlink._parse_args_run_superlink()
        if command == "flower-superlink"
        else supernode._parse_args_run_supernode()
    )
    return {option for action in parser._actions for option in action.option_strings}


def commands_in(text):
    """Calls of Flower's processes in a shell script, a unit or a document: name and options."""
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in joined.splitlines():
        found = re.search(r"(flower-superlink|flower-supernode)\s+(--.*)", line)
        if found:
            yield found[1], [part.split("=")[0] for part in shlex.split(found[2]) if part.startswith("--")]


@pytest.mark.parametrize(
    "path",
    [
        "deploy/systemd/fastpfrec-superlink.service",
        "deploy/systemd/fastpfrec-supernode@.service",
        "docs/deploy.md",
    ],
)
def test_options_exist(path):
    found = list(commands_in((ROOT / path).read_text()))
    assert found
    for command, options in found:
        assert set(options) <= options_of(command), f"{path}: {command}"


def test_compose():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"superlink", "alice", "bob"}
    for name, service in services.items():
        command, *options = service["command"]
        assert {option.split("=")[0] for option in options} <= options_of(command), name
        named = {volume.split(":")[0] for volume in service["volumes"] if not volume.startswith(".")}
        assert named <= set(compose["volumes"])
        assert all(volume.endswith(":ro") for volume in service["volumes"] if volume.startswith("."))
    assert services["superlink"]["build"] == {"context": "..", "dockerfile": "deploy/Dockerfile"}
    assert all(port.startswith("127.0.0.1:") for port in services["superlink"]["ports"]), (
        "the control API stays at home"
    )


def test_node_configs_are_what_a_supernode_takes():
    """`--node-config` of every template, as Flower parses it, is one that our app accepts."""
    from flwr.common.config import parse_config_args

    from fastpfrec_flwr.client.own_data import parse_node_config

    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    texts = [
        option.split("=", 1)[1]
        for service in compose["services"].values()
        for option in service["command"]
        if option.startswith("--node-config=")
    ]
    for path in (DEPLOY / "systemd" / "fastpfrec-supernode@.service", ROOT / "docs" / "deploy.md"):
        text = re.sub(r"\$\{\w+\}|\$PWD|%i", "/x", path.read_text())
        texts += re.findall(r'--node-config "([^"]+)"', text)
    assert len(texts) == 4
    for text in texts:
        own = parse_node_config(parse_config_args([text]), "x")
        assert own.data_path is not None


def test_the_dockerfile():
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith("FROM python:3.11")
    (user,) = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert f"--uid {user} " in "\n".join(lines)


def linted(program, *arguments):
    """Run a linter that came with the tests' tools, or stands on the path."""
    found = shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"no {program}: pip install '.[test]' brings it where it runs")
    return subprocess.run([found, *arguments], capture_output=True, text=True, check=False)


def test_a_linter_has_nothing_to_say_of_the_dockerfile(tmp_path):
    done = linted("hadolint", str(DEPLOY / "Dockerfile"))
    assert done.returncode == 0, done.stdout + done.stderr
    bad = tmp_path / "Dockerfile"
    bad.write_text((DEPLOY / "Dockerfile").read_text().replace("FROM python:3.11-slim-bookworm", "FROM python"))
    assert "DL3006" in linted("hadolint", str(bad)).stdout, "it reads what it is given"


def test_compose_follows_the_specification(tmp_path):
    """Against the schema of the Compose specification, which comes with the tool: nothing is fetched."""
    schema = ("--builtin-schema", "vendor.compose-spec")
    done = linted("check-jsonschema", *schema, str(DEPLOY / "compose.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    bad = tmp_path / "compose.yaml"
    bad.write_text((DEPLOY / "compose.yaml").read_text().replace("mem_limit", "memory"))
    assert linted("check-jsonschema", *schema, str(bad)).returncode == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize("name", ["fastpfrec-superlink.service", "fastpfrec-supernode@.service"])
def test_units(name, tmp_path):
    """With a command that exists in the place of the installed one, systemd has nothing to say."""
    text = (DEPLOY / "systemd" / name).read_text()
    unit = tmp_path / name.replace("@.", "@alice.")
    unit.write_text(re.sub(r"/opt/fastpfrec/bin/flower-\w+", sys.executable, text))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]
    assert not said, said


def make_keys(folder, *arguments):
    command = [sys.executable, str(DEPLOY / "make_keys.py"), "--out", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_keys(tmp_path):
    keys = tmp_path / "keys"
    done = make_keys(keys, "--host", "link.example.org", "--host", "10.0.0.5", "--node", "alice")
    assert done.returncode == 0, done.stderr
    authority = x509.load_pem_x509_certificate((keys / "ca.crt").read_bytes())
    certificate = x509.load_pem_x509_certificate((keys / "superlink.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["link.example.org"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.5"]
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    private = load_ssh_private_key((keys / "alice.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == load_ssh_public_key((keys / "alice.pub").read_bytes())
    for path in keys.iterdir():
        assert path.stat().st_mode & 0o077 == (0 if path.suffix == ".key" else 0o044), path.name


def test_keys_that_exist_are_left_alone_and_a_certificate_can_be_renewed(tmp_path):
    def contents():
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert make_keys(tmp_path, "--host", "a", "--node", "alice").returncode == 0
    first = contents()
    assert make_keys(tmp_path, "--host", "a", "--node", "alice", "--node", "bob").returncode == 0
    second = contents()
    assert {name: second[name] for name in first} == first
    assert set(second) - set(first) == {"bob.key", "bob.pub"}
    assert make_keys(tmp_path, "--host", "a", "--renew").returncode == 0
    third = contents()
    assert {name for name in second if third[name] != second[name]} == {"superlink.crt", "superlink.key"}
    x509.load_pem_x509_certificate(third["superlink.crt"]).verify_directly_issued_by(
        x509.load_pem_x509_certificate(first["ca.crt"])
    )


def test_a_name_cannot_leave_the_folder(tmp_path):
    done = make_keys(tmp_path / "keys", "--host", "a", "--node", "../alice")
    assert done.returncode == 2
    assert "--node takes letters" in done.stderr
