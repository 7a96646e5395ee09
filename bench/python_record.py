"""Records of the Python benches: what was run, on what, appended to an array in a file."""

import json
import platform
import shlex
import sys
import time

import torch

import rotunda


def describe(problem, ranks, **versions):
    """The part of a record that says what was run."""
    found = {"rotunda": rotunda.__version__, "torch": torch.__version__, "python": platform.python_version()}
    found["system"] = f"{platform.system()} {platform.machine()}"
    cuda = torch.cuda.is_available()
    if cuda:
        found["gpu"] = torch.cuda.get_device_name()
    launcher = ["torchrun", "--nproc-per-node", str(ranks)] if ranks > 1 else ["python3"]
    return {
        "problem": problem,
        "ranks": ranks,
        "gpus": ranks if cuda else 0,
        "device": "cuda" if cuda else "cpu",
        "versions": found | versions,
        "date": time.strftime("%Y-%m-%d"),
        "command": shlex.join([*launcher, *without_json(sys.argv)]),
    }


def without_json(arguments):
    """Where a record goes is no part of it."""
    kept = [x for x in arguments if not x.startswith("--json=")]
    if "--json" in kept:
        at = kept.index("--json")
        del kept[at : at + 2]
    return kept


def keep(record, path):
    print(json.dumps(record, indent=1), flush=True)
    if path:
        known = json.loads(path.read_text()) if path.exists() else []
        path.write_text(json.dumps([*known, record], indent=1) + "\n")
