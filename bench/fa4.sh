#!/usr/bin/env bash
# Times the kernels fa4 and cudnn on one GPU, each head dim, causal and full: appends the records to
# bench/results/fa4.json.
#   bench/fa4.sh [--out FILE] [--rotunda PATH] [more arguments of `rotunda bench`]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."  # so that the paths in the records are the project's own
out=bench/results/fa4.json
rotunda=
extra=()
while (($#)); do
  case $1 in
    --out) out=$2 && shift ;;
    --rotunda) rotunda=$2 && shift ;;
    *) extra+=("$1") ;;
  esac
  shift
done
: "${rotunda:=$(./dev which)}"
mkdir -p "$(dirname "$out")"

for dims in "d=64" "d=128" "d=192 d_v=128" "d=256"; do
  for mask in causal none; do
    for kernel in fa4 cudnn; do
      "$rotunda" bench --device cuda --devices 0 --ranks 1 --kernel "$kernel" --problem \
        "s_q=16384 h_q=16 $dims mask=$mask grad=1" --repeat 20 --json "$out" "${extra[@]}"
    done
  done
done
