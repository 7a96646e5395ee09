#!/usr/bin/env bash
# Times attention on this machine's GPUs: appends the records of a topic to bench/results/TOPIC.json.
#   bench/gpu.sh cuda|fa4|pairs|wide [--out FILE] [--rotunda PATH] [more arguments of `rotunda bench`]
#     cuda   every schedule on two GPUs with the kernel cudnn, beside PyTorch's context_parallel (needs python3 with torch)
#     pairs  the same with the kernel that auto takes, and a ring forward with a head-parallel backward
#     fa4    the kernels fa4 and cudnn on one GPU, by head dim
#     wide   head dims above 256 on one GPU
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."  # so that the paths in the records are the project's own
topic=${1:?cuda, fa4, pairs or wide}
shift
out=bench/results/$topic.json
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

# bench PROBLEM [ARGUMENTS…]
bench() {
  "$rotunda" bench --device cuda --problem "$1 grad=1" --repeat 20 --json "$out" "${@:2}" "${extra[@]}"
}
on_one() { bench "$1" --ranks 1 --devices 0 "${@:2}"; }
on_two() { bench "$1" --ranks 2 --devices 0,1 --baseline "${baselines:-ideal_same_kernel}" "${@:2}"; }

eight=0,1028,3100,7196,15696,18000,21096,27192,32768  # documents of 1,028 to 8,500 tokens
long=0,25316,26344,27372,28400,29428,30456,31484,32768  # one of 25,316 and seven short ones
dense=("s_q=32768 h_q=32 d=128 mask=causal" "s_q=32768 h_q=32 h_kv=8 d=128 mask=causal"
  "s_q=32768 h_q=32 d=192 d_v=128 mask=causal")
packed=("layout=thd cu_q=$eight h_q=32 d=128 mask=causal" "layout=thd cu_q=$long h_q=32 d=128 mask=causal")

case $topic in
  cuda)
    for problem in "${dense[@]}" "${packed[0]}"; do
      for schedule in p2p all_gather; do on_two "$problem" --kernel cudnn --schedule $schedule; done
    done
    for problem in "${dense[@]}"; do
      baselines=ideal_same_kernel,torch_cp on_two "$problem" --kernel cudnn --schedule a2a --python python3
    done
    on_two "${packed[0]}" --kernel cudnn --schedule a2a
    ;;
  pairs)
    for problem in "${dense[@]}" "${packed[@]}"; do
      for schedule in p2p all_gather a2a; do on_two "$problem" --schedule $schedule; done
      on_two "$problem" --schedule p2p --backward-schedule a2a
    done
    ;;
  fa4)
    for dims in d=64 d=128 "d=192 d_v=128" d=256; do
      for mask in causal none; do
        for kernel in fa4 cudnn; do on_one "s_q=16384 h_q=16 $dims mask=$mask" --kernel $kernel; done
      done
    done
    ;;
  wide)
    for problem in "s_q=16384 h_q=16 d=512 mask=none" "s_q=16384 h_q=16 d=512 mask=causal" \
      "s_q=4096 h_q=16 d=512 mask=causal" "b=2 s_q=16384 h_q=8 h_kv=4 d=512 mask=causal" \
      "layout=thd cu_q=$eight h_q=16 d=512 mask=causal"; do
      on_one "$problem" --kernel sm90
    done
    for dim in 264 320 384 448 504; do on_one "s_q=16384 h_q=16 d=$dim mask=causal" --kernel sm90; done
    on_two "s_q=32768 h_q=16 h_kv=8 d=512 mask=causal" --kernel sm90 --schedule a2a
    ;;
  *)
    echo "bench/gpu.sh: topic '$topic', allowed are cuda, fa4, pairs and wide" >&2
    exit 2
    ;;
esac
