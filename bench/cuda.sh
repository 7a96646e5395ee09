#!/usr/bin/env bash
# Times attention on this machine's GPUs, every schedule on two of them: appends the records to bench/results/cuda.json.
#   bench/cuda.sh [--out FILE] [--rotunda PATH] [more arguments of `rotunda bench`]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."  # so that the paths in the records are the project's own
out=bench/results/cuda.json
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

packed=0,1028,3100,7196,15696,18000,21096,27192,32768  # eight documents of 1,028 to 8,500 tokens
problems=(
  "s_q=32768 h_q=32 d=128 mask=causal grad=1"
  "s_q=32768 h_q=32 h_kv=8 d=128 mask=causal grad=1"
  "s_q=32768 h_q=32 d=192 d_v=128 mask=causal grad=1"
  "layout=thd cu_q=$packed h_q=32 d=128 mask=causal grad=1"
)
for problem in "${problems[@]}"; do
  for schedule in p2p all_gather a2a; do
    "$rotunda" bench --device cuda --ranks 2 --devices 0,1 --problem "$problem" --schedule "$schedule" --repeat 20 \
      --baseline ideal_same_kernel --json "$out" "${extra[@]}"
  done
done
