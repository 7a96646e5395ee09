"""`pip install .`, and the same from a source distribution, give a package that works and carries what it needs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch, rotunda
assert rotunda.__file__.startswith({folder!r}), rotunda.__file__
q = torch.randn(1, 8, 2, 16, requires_grad=True)
rotunda.attention(q, q, q, mask="causal").sum().backward()
assert q.grad.isfinite().all()
"""
# Every Linux that runs Python has these; C++'s come with PyTorch's own needs.
SYSTEM = r"linux-vdso|ld-linux|libc\.|libm\.|libdl\.|librt\.|libpthread\.|libstdc\+\+\.|libgcc_s\."


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *map(str, arguments)]
    subprocess.run(command, check=True, timeout=3000)


def make_sdist(folder):
    requirement = re.search(r'"(scikit-build-core==[^"]+)"', (ROOT / "pyproject.toml").read_text())[1]
    pip("--target", folder / "tools", requirement, "pathspec", "packaging")
    program = f"from scikit_build_core import build; print(build.build_sdist({str(folder)!r}))"
    environment = os.environ | {"PYTHONPATH": str(folder / "tools")}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env=environment)
    (made,) = folder.glob("*.tar.gz")
    return made


@pytest.mark.long
@pytest.mark.parametrize("source", ("root", "sdist"))
def test_install(tmp_path, source):
    package = tmp_path / "site"
    pip("--target", package, make_sdist(tmp_path) if source == "sdist" else ROOT)
    (module,) = (package / "rotunda").glob("_core*.so")
    for line in subprocess.run(["ldd", module], check=True, capture_output=True, text=True).stdout.splitlines():
        assert re.search(SYSTEM, line) or f"=> {package}" in line, line
    environment = os.environ | {"PYTHONPATH": str(package)}
    subprocess.run([sys.executable, "-c", PROGRAM.format(folder=str(package))], check=True, env=environment)
