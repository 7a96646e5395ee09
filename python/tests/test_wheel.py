"""`pip install .` from the root gives a package that works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch, rotunda
assert rotunda.__file__.startswith({folder!r}), rotunda.__file__
q = torch.randn(1, 8, 2, 16, requires_grad=True)
rotunda.attention(q, q, q, mask="causal").sum().backward()
assert q.grad.isfinite().all()
"""


@pytest.mark.long
def test_install(tmp_path):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), str(root)]
    subprocess.run(command, check=True, timeout=3000)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", PROGRAM.format(folder=str(tmp_path))], check=True, env=environment)
