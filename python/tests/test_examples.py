"""The examples run, and learn."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


def run(name, ranks):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, str(EXAMPLES / name)], capture_output=True, text=True, timeout=300, env=environment
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def losses(text):
    found = [float(x) for x in re.findall(r"loss ([0-9.]+)", text)]
    assert found, text
    return found


def test_train():
    pytest.importorskip("transformers", reason="transformers is not installed")
    found = losses(run("train.py", 2))
    assert found[-1] < found[0] - 1


def test_packed():
    assert "balanced" in run("packed.py", 2)


@pytest.mark.long
def test_titan():
    found = losses(run("titan.py", 4))
    assert found[-1] < found[0] - 0.5
