#!/usr/bin/env python3
"""The quick start configures a new build folder for the GPUs that nvidia-smi lists, and reports it.

    quickstart_build_test.py SCRIPTS

Runs a copy of the scripts with stand-ins for cmake, nvidia-smi and the installation of packages.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def stand_in(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def configured(folder, nvidia_smi, built_before=False):
    """cmake's arguments, and what the quick start reports, where nvidia-smi is the given shell command."""
    scripts, tools, release = folder / "scripts", folder / "tools", folder / "build/release"
    shutil.rmtree(folder / "build", ignore_errors=True)
    if built_before:
        release.mkdir(parents=True)
        (release / "CMakeCache.txt").touch()
    stand_in(scripts / "install-dependencies.sh", "exit 0")
    stand_in(tools / "nvidia-smi", nvidia_smi)
    stand_in(tools / "cmake", f'echo "$*" >"{folder}/arguments"; exit 1')
    run = subprocess.run([scripts / "quickstart.sh"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env=dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}"))
    assert run.returncode == 1, run
    return (folder / "arguments").read_text().split(), run.stderr


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(sys.argv[1], folder / "scripts")
        for command, option, report in (
                ("exit 127", "-DMC_ENABLE_CUDA=OFF", "without CUDA"),
                ("echo No devices were found; exit 6", "-DMC_ENABLE_CUDA=OFF", "without CUDA"),
                ("echo 9.0; echo 9.0", "-DCMAKE_CUDA_ARCHITECTURES=90a-real", "(90a-real)"),
                ("echo 8.6; echo 12.0", "-DCMAKE_CUDA_ARCHITECTURES=120-real;86-real", "(120-real;86-real)")):
            arguments, said = configured(folder, command)
            assert option in arguments and report in said, (command, arguments, said)
        arguments, said = configured(folder, "echo 9.0", built_before=True)
        assert arguments == ["--preset", "release"] and "configuring" not in said, (arguments, said)
    print("ok")


if __name__ == "__main__":
    main()
