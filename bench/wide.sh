#!/usr/bin/env bash
# Times head dims above 256 on one GPU: appends the records to bench/results/wide.json.
#   bench/wide.sh [--out FILE] [--rotunda PATH] [more arguments of `rotunda bench`, such as --baseline frost]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."  # so that the paths in the records are the project's own
out=bench/results/wide.json
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

eight=0,1028,3100,7196,15696,18000,21096,27192,32768  # documents of 1,028 to 8,500 tokens
problems=(
  "s_q=16384 h_q=16 d=512 mask=none"
  "s_q=16384 h_q=16 d=512 mask=causal"
  "s_q=4096 h_q=16 d=512 mask=causal"
  "b=2 s_q=16384 h_q=8 h_kv=4 d=512 mask=causal"
  "s_q=16384 h_q=16 d=448 mask=causal"
  "s_q=16384 h_q=16 d=384 mask=causal"
  "s_q=16384 h_q=16 d=320 mask=causal"
  "s_q=16384 h_q=16 d=264 mask=causal"
  "s_q=16384 h_q=16 d=504 mask=causal"
  "layout=thd cu_q=$eight h_q=16 d=512 mask=causal"
)
for problem in "${problems[@]}"; do
  "$rotunda" bench --device cuda --kernel sm90 --problem "$problem" --repeat 20 --json "$out" "${extra[@]}"
done
