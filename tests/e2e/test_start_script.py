"""`scripts/start`, run as it stands in a copy of the project.

With the pretended Python of `start_harness`, so that each rule of the script is checked in a second
and without network; `tests/install` has it install in earnest.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

from start_harness import (
    PYTHON,
    VERSION,
    Project,
    file_of,
    kill,
    pretended_python,
    project_with,
    report,
    wait_for_line,
    write_program,
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A fresh copy, with the pretended Python and a torch of 201 MB."""
    project = project_with(tmp_path, pretended_python(tmp_path / "pretended"))
    project.env["REPORT"] = report(torch=file_of(tmp_path / "torch.whl", 201_000_000))
    return project


def test_torch_comes_first_and_alone_then_everything_else(project: Project) -> None:
    result = project.run("serve")
    assert result.returncode == 0, result.stderr
    made, upgraded, previewed, torch, everything = project.calls()
    assert made == ["venv"]
    assert upgraded == ["install", "--quiet", "pip>=25.3"]
    assert previewed[:3] == ["install", "--quiet", "--dry-run"]
    assert torch == ["install", "--quiet", "torch", "-c", "constraints.txt"]
    assert everything == ["install", "--quiet", "-c", "constraints.txt", "-e", "."]


def test_serve_starts_the_server_with_its_arguments(project: Project) -> None:
    result = project.run("serve", "--served-model-name", "two words")
    assert result.stderr.endswith("<headway><serve><--served-model-name><two words>")


def test_test_installs_its_extra_fetches_the_model_and_runs_pytest(project: Project) -> None:
    result = project.run("test", "-k", "a or b")
    assert project.calls()[-1][-1] == ".[test]"
    assert "<headway><pull>" in result.stderr
    assert result.stdout == f"<pytest><-k><a or b><{project.root}>\n"


def test_other_peoples_clients_go_into_an_environment_of_their_own(project: Project) -> None:
    project.run("test")
    before = (project.root / ".venv" / ".headway-installed").read_text()
    project.calls()
    result = project.run("compat", "-k", "a or b")
    made, *_, torch, everything = project.calls()
    assert made == ["venv"]
    constraints = ["-c", "tests/compat/constraints.txt"]
    assert torch == ["install", "--quiet", "torch", *constraints]
    assert everything[:4] == ["install", "--quiet", *constraints]
    assert everything[4:] == ["-e", ".", "-r", "tests/compat/requirements.txt"]
    asked = "<pytest><-W><default><tests/compat><-k><a or b>"
    assert result.stdout == f"{asked}<{project.root}>\n", result.stderr
    assert (project.root / ".venv" / ".headway-installed").read_text() == before
    project.run("compat")
    assert project.calls() == []


@pytest.mark.parametrize("name", ["requirements.txt", "constraints.txt"])
def test_changed_clients_are_installed_into_the_same_environment(
    project: Project, name: str
) -> None:
    project.run("compat")
    project.calls()
    with (project.root / "tests" / "compat" / name).open("a") as file:
        file.write("# changed\n")
    project.run("compat")
    calls = project.calls()
    assert ["venv"] not in calls
    assert calls[-1][-2:] == ["-r", "tests/compat/requirements.txt"]


def test_the_index_is_named_for_torch_alone(project: Project) -> None:
    project.run("serve", TORCH_INDEX_URL="https://index.example/cpu")
    named = [call for call in project.calls() if "--index-url=https://index.example/cpu" in call]
    assert len(named) == 2
    assert all("torch" in call for call in named)


def test_the_build_and_its_size_are_told(project: Project) -> None:
    result = project.run("serve")
    assert "installing torch 2.13.0+cpu (201 MB to download)" in result.stderr
    assert "README" not in result.stderr


def test_a_large_build_is_counted_with_its_dependencies(project: Project, tmp_path: Path) -> None:
    torch = file_of(tmp_path / "torch.whl", 900_000_000)
    cudnn = file_of(tmp_path / "cudnn.whl", 700_000_000)
    result = project.run("serve", REPORT=report(torch=torch, cudnn=cudnn))
    assert "(900 MB, with its dependencies 1,600 MB to download)" in result.stderr
    assert "README.md says how to get the much smaller CPU build" in result.stderr


def test_a_size_that_cannot_be_told_does_not_stop_the_installation(project: Project) -> None:
    result = project.run("serve", REPORT=report(torch="http://127.0.0.1:1/torch.whl"))
    assert "installing torch 2.13.0+cpu (download size unknown)" in result.stderr
    assert result.returncode == 0


def test_a_second_start_asks_nothing_of_pip(project: Project) -> None:
    project.run("test")
    project.calls()
    for command in ("test", "serve"):
        result = project.run(command)
        assert (result.returncode, project.calls()) == (0, [])
        assert "installing" not in result.stderr


def test_the_tests_need_more_than_the_server(project: Project) -> None:
    project.run("serve")
    project.calls()
    project.run("test")
    assert [call[-1] for call in project.calls() if "-e" in call] == [".[test]"]


@pytest.mark.parametrize(
    "name", ["constraints.txt", "pyproject.toml", "CMakeLists.txt", "csrc/kernels.cpp"]
)
def test_a_changed_requirement_or_source_is_installed_into_the_same_environment(
    project: Project, name: str
) -> None:
    project.run("serve")
    project.calls()
    with (project.root / name).open("a") as file:
        file.write("# changed\n")
    project.run("serve")
    calls = project.calls()
    assert ["venv"] not in calls
    assert calls[-1][-2:] == ["-e", "."]


def test_kernels_that_could_not_be_built_are_named_with_the_reason(project: Project) -> None:
    log = project.root / "src" / "headway" / "runtime" / "_kernels.cpython-399.log"
    log.write_text("no working C++ compiler\n\nCMake Error\n")
    result = project.run("serve")
    assert f"without the C++ kernels: no working C++ compiler; the whole log: {log}\n" in (
        result.stderr
    )
    assert "CMake Error" not in result.stderr
    assert "without" not in project.run("serve").stderr


def test_kernels_are_built_again_in_an_environment_for_serving(project: Project) -> None:
    (project.root / "scripts" / "build_kernels.py").write_text("print('built')\n")
    result = project.run("kernels")
    assert (result.returncode, result.stdout) == (0, "built\n"), result.stderr
    assert project.calls()[-1][-1] == "."


def test_a_moved_project_is_installed_anew(project: Project) -> None:
    project.run("serve")
    project.root = project.root.rename(project.root.with_name("moved"))
    project.calls()
    project.run("serve")
    assert project.calls()[-1][-2:] == ["-e", "."]


@pytest.mark.parametrize("step", ["--report", "torch", "-e"])
def test_after_a_failed_step_the_next_start_goes_on(project: Project, step: str) -> None:
    failed = project.run("serve", FAIL_AT=step)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.endswith("no such package\n")
    project.calls()
    again = project.run("serve")
    assert again.returncode == 0, again.stderr
    assert ["venv"] not in project.calls()


def test_an_old_pip_that_stays_old_is_no_obstacle(project: Project) -> None:
    result = project.run("serve", FAIL_AT="pip>=25.3")
    assert (result.returncode, "size unknown" in result.stderr) == (0, True)
    assert not [call for call in project.calls() if "--dry-run" in call]


@pytest.mark.parametrize("step", ["torch", "-e"])
def test_after_a_kill_amid_a_package_the_environment_is_made_anew(
    project: Project, step: str
) -> None:
    process = project.start("serve", HANG_AT=step)
    wait_for_line(process, "hanging")
    kill(process)
    project.calls()
    result = project.run("serve")
    assert result.returncode == 0, result.stderr
    assert ["venv"] in project.calls()
    assert not (project.site_packages / "half-1.dist-info").exists()


@pytest.mark.parametrize("trace", ["~orch", "half-1.dist-info"])
def test_a_package_left_half_replaced_is_noticed_at_the_next_start(
    project: Project, trace: str
) -> None:
    project.run("serve")
    (project.site_packages / trace).mkdir()
    result = project.run("serve")
    assert result.returncode == 0, result.stderr
    assert not (project.site_packages / trace).exists()


def test_an_environment_that_merely_lacks_pip_keeps_its_packages(project: Project) -> None:
    project.run("serve")
    (project.site_packages / "mine.py").touch()
    shutil.rmtree(project.site_packages / "pip-99.dist-info")
    result = project.run("serve")
    assert result.returncode == 0, result.stderr
    assert (project.site_packages / "mine.py").exists()


def test_a_half_made_environment_is_completed(project: Project) -> None:
    (project.root / ".venv" / "bin").mkdir(parents=True)
    (project.root / ".venv" / "bin" / "python").symlink_to("/nowhere/python")
    result = project.run("serve")
    assert result.returncode == 0, result.stderr


def test_an_environment_without_pyvenv_cfg_never_reaches_the_system(project: Project) -> None:
    project.run("serve")
    (project.root / ".venv" / "pyvenv.cfg").unlink()
    project.calls()
    project.run("serve")
    assert project.calls()[0] == ["venv"]
    assert (project.root / ".venv" / "pyvenv.cfg").exists()


def test_starts_at_once_install_once(project: Project) -> None:
    processes = [project.start("serve") for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert len([call for call in project.calls() if "-e" in call]) == 1


def test_a_start_waits_for_an_installation_that_goes_on(project: Project) -> None:
    with (project.root / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = project.start("serve")
        wait_for_line(process, "waiting for another installation")
        assert project.calls() == []
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "<serve>" in errors) == (0, True), errors


@pytest.mark.parametrize("python", ["exit 1", None])
def test_without_a_new_enough_python_it_says_what_to_install(
    project: Project, tmp_path: Path, python: str | None
) -> None:
    (tmp_path / "tools" / "python3").unlink()
    if python:
        write_program(tmp_path / "tools" / "python3", python)
    result = project.run("serve")
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert "no Python 3.11 or newer" in line
    assert "apt install python3 python3-venv" in line


@pytest.fixture
def incomplete_python(tmp_path: Path) -> Path:
    """A Python without ensurepip, as Debian ships it before its venv package is installed."""
    home = tmp_path / "incomplete"
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", home], check=True, timeout=60)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "incomplete.pth").write_text("import sys; sys.modules['ensurepip'] = None\n")
    return home / "bin" / "python"


def test_without_ensurepip_it_names_the_missing_package(
    project: Project, tmp_path: Path, incomplete_python: Path
) -> None:
    write_program(tmp_path / "tools" / "python3", f'exec "{incomplete_python}" "$@"')
    result = project.run("serve")
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert f"apt install python{VERSION}-venv" in line
    assert f"dnf install python{VERSION}" in line
    assert f"brew install python@{VERSION}" in line
    assert not (project.root / ".venv").exists()


def test_the_python_that_is_named_comes_first(project: Project, tmp_path: Path) -> None:
    named = tmp_path / "my python"
    shutil.copy(tmp_path / "tools" / "python3", named)
    assert f"with {named} " in project.run("serve", PYTHON=str(named)).stderr


def test_an_unsuitable_python_is_passed_over(project: Project, incomplete_python: Path) -> None:
    result = project.run("serve", PYTHON=str(incomplete_python))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("arguments", [(), ("sevre",)])
def test_an_unknown_command_gets_the_usage(project: Project, arguments: tuple[str, ...]) -> None:
    result = project.run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("usage: sh scripts/start serve|test|compat|lint|kernels")
    assert project.calls() == []
