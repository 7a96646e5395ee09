#!/usr/bin/env bash
# The Python package's tests on the GPUs of this machine, with the Python that is given, which has PyTorch and pytest (and
# transformers, for the models). Usage: python_gpu_tests.sh [--python PATH] [--site FOLDER] [arguments of pytest]
#   --site FOLDER   where the built package lies: `cmake --install build/cuda --component python --prefix FOLDER` puts it
#                   there. Default: build/python/site, else what the Python has installed.
# Needs no network and no compiler. Exit status: pytest's; 3 where nothing could run.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=python3 site=$root/build/python/site
while (($#)); do
  case $1 in
    --python) python=$2 && shift 2 ;;
    --site) site=$2 && shift 2 ;;
    *) break ;;
  esac
done
[[ ! -d $site/rotunda ]] || export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}

die() { echo "python_gpu_tests.sh: $1" >&2; exit 3; }

"$python" -c 'import pytest, torch' || die "$python needs PyTorch and pytest"
"$python" - <<'END' || die "the package does not work here"
import rotunda, sys, torch

print(f"rotunda {rotunda.__version__} in {rotunda.__path__[0]}; torch {torch.__version__}, Python {sys.version.split()[0]}")
for kind, name, available, text in rotunda.components():
    print(f"  {kind} {name}: {'' if available else 'not here: '}{text}")
sys.exit(rotunda._core.why_no_cuda() or 0)
END
cd "$root/python/tests"
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
exec "$python" -m pytest -p no:cacheprovider -ra --durations=15 gpu "$@"
