#!/usr/bin/env bash
# The tests of the Python package. Usage: python_tests.sh PRESET [--all | --gpu]     --gpu: those on GPUs alone
# Sets up build/python (a virtual environment of pinned wheels, the package as it would be installed), runs pytest, and
# leaves build/python/results.xml. Exit status 3: can't be run here; standard output says why, in a sentence.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
preset=$1 all=${2-} gpu=
[[ $all != --gpu ]] || { gpu=$all && all=; }
work=$root/build/python
venv=$work/venv
mkdir -p "$work"

skip() { echo "$1"; exit 3; }

# PyPI's PyTorch is for CUDA 13 and loads its libraries when it is imported; a toolkit has them. Without one they are
# another 2 GB from PyPI, fetched with --all only.
cuda_libraries() {
  local nvcc lib
  nvcc=$(command -v nvcc) || return 1
  lib=$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd)/lib64
  [[ -e $lib/libcublas.so.13 && -e $lib/libcudnn.so.9 && -e $lib/libnccl.so.2 ]] || return 1
  echo "$lib:$lib/../extras/CUPTI/lib64"
}

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null ||
  skip "the pinned wheels need Python 3.11 or later"
needs=$root/python/tests/requirements.txt
dependencies=--no-deps
if libraries=$(cuda_libraries); then
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
elif [[ $all != --all ]]; then
  skip "PyPI's torch needs CUDA 13's libraries, and there is no toolkit with cuBLAS, cuDNN and NCCL (--all fetches them)"
else
  dependencies=
fi

wanted=$(sha256sum < "$needs")
if [[ ! -f $work/installed || $(< "$work/installed") != "$wanted" ]]; then
  rm -f "$work/installed"
  [[ -x $venv/bin/pip ]] || python3 -m venv "$venv" >&2 || skip "python3 -m venv does not work here"
  # shellcheck disable=SC2086
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-input $dependencies \
    --requirement "$needs" >&2 || skip "pip can't install python/tests/requirements.txt (no network?)"
  echo "$wanted" > "$work/installed"
fi

cmake -D ROTUNDA_PYTHON=ON -D Python_EXECUTABLE="$venv/bin/python" "$root/build/$preset" > /dev/null
ninja -C "$root/build/$preset" --quiet rotunda_python >&2
cmake --install "$root/build/$preset" --component python --prefix "$work/site" > /dev/null

[[ -z $gpu ]] || exec "$root/tools/python_gpu_tests.sh" --python "$venv/bin/python" --site "$work/site" >&2
cd "$root/python/tests"
export PYTHONPATH=$work/site PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
exec "$venv/bin/python" -m pytest -q -p no:cacheprovider --junitxml="$work/results.xml" ${all:+--all} >&2
