#!/usr/bin/env bash
# Times attention on this CPU against PyTorch's, in one run a problem, on the same cores: appends the records to
# bench/results/cpu.json. More arguments go to `rotunda bench`; --out FILE writes elsewhere.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."  # so that the paths in the records are the project's own
venv=.venv-bench
out=bench/results/cpu.json
torch=torch==2.11.0
# What torch imports when the CUDA libraries come from a toolkit that is here already.
torch_alone=(filelock typing-extensions sympy mpmath networkx jinja2 markupsafe fsspec numpy setuptools nvidia-cufile
  nvidia-nvshmem-cu13 nvidia-cusparselt-cu13 nvidia-cuda-cupti)

extra=()
while (($#)); do
  case $1 in
    --out) out=$2 && shift ;;
    *) extra+=("$1") ;;
  esac
  shift
done

cuda=${CUDA_HOME:-/usr/local/cuda}
with_toolkit=0
if compgen -G "$cuda/lib64/libcublas.so.13*" > /dev/null; then
  with_toolkit=1
  export LD_LIBRARY_PATH=$cuda/lib64:$cuda/extras/CUPTI/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

if ! "$venv/bin/python" -c 'import torch' 2> /dev/null; then
  echo "== installing $torch into $venv (2 GB, or 4 with the CUDA libraries that it insists on)" >&2
  python3 -m venv "$venv"
  if ((with_toolkit)); then
    "$venv/bin/pip" install -q --no-deps "$torch" "${torch_alone[@]}" >&2
  else
    "$venv/bin/pip" install -q "$torch" numpy >&2
  fi
fi

rotunda=$(./dev which)
mkdir -p "$(dirname "$out")"
for dtype in fp32 bf16; do
  for d in 64 128; do
    for shape in "s_q=2048 h_q=8" "s_q=8192 h_q=4"; do
      "$rotunda" bench --problem "dtype=$dtype $shape d=$d mask=causal grad=1" --ranks 1 --threads "$(nproc)" \
        --repeat 20 --baseline torch_cpu --python "$venv/bin/python" --json "$out" "${extra[@]}"
    done
  done
done
