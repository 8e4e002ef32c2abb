"""What is in deploy/ names files and options that are there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headway.cli.parser import build_parser

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def options(argv: list[str]) -> dict[str, object]:
    """Of a command line that is `headway …`; anything else is a usage error."""
    return vars(build_parser().parse_args(argv))


def test_the_service_starts_the_server_with_options_that_it_has(tmp_path: Path) -> None:
    text = (DEPLOY / "headway.service").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ExecStart=/opt/headway/bin/headway (.*)$", text, re.MULTILINE)
    config = tmp_path / "headway.yaml"
    config.write_text("port: 8000\n", encoding="utf-8")
    found = options(command.replace("/etc/headway/headway.yaml", str(config)).split())
    assert found["command"] == "serve"
    assert found["config"] == {"port": 8000}
    assert found["api_key_file"] == "${CREDENTIALS_DIRECTORY}/keys"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_service(tmp_path: Path) -> None:
    text = (DEPLOY / "headway.service").read_text(encoding="utf-8")
    unit = tmp_path / "headway.service"
    unit.write_text(text.replace("/opt/headway/bin/headway", "/bin/true"), encoding="utf-8")
    result = subprocess.run(
        ["systemd-analyze", "verify", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_image_is_made_of_what_is_there_and_has_all_that_a_wheel_needs() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    kept = set(re.findall(r"^!(.*)$", ignored, re.MULTILINE))
    assert not [name for name in kept if not (ROOT / name).exists()]
    assert kept >= {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "csrc", "src"}
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (\S+) /", text, re.MULTILINE)
    assert set(copied) <= kept


def test_the_image_starts_the_server_with_options_that_it_has() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    program, *argv = json.loads(command)
    assert program == "headway"
    assert options(argv)["host"] == "0.0.0.0"
