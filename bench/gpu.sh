#!/usr/bin/env bash
# Times attention on this machine's GPUs: appends the records of a topic to bench/results/TOPIC.json.
#   bench/gpu.sh TOPIC [--budget SECONDS] [--out FILE] [--rotunda PATH] [--tools DIR] [more arguments of `rotunda bench`]
#     cuda   the kernel cudnn: every schedule on two GPUs, beside PyTorch's context_parallel where python3 has torch; the
#            library alone; what the host spends; memory on more ranks
#     pairs  the kernel that auto takes: every schedule on two GPUs, and a ring forward with a head-parallel backward
#     mixed  that pair and the plain ring by turns on two GPUs, as CUDA graphs
#     auto   what auto chooses against every schedule, over a grid of problems on two GPUs
#     fa4    the kernels fa4 and cudnn on one GPU, by head dim
#     wide   head dims above 256 on one GPU and on two
# Those wanted most come first. What fails, needs more GPUs than there are, or doesn't fit into the budget (540), is named
# at the end, and the exit status is then 1: the records of all others are in the file. Programs of bench/ are looked for
# in DIR (build/cuda/bench).
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit  # so that the paths in the records are the project's own
topic=${1:?cuda, pairs, mixed, auto, fa4 or wide}
shift
budget=540 out=bench/results/$topic.json rotunda='' tools=build/cuda/bench extra=()
while (($#)); do
  case $1 in
    --budget) budget=$2 && shift ;;
    --out) out=$2 && shift ;;
    --rotunda) rotunda=$2 && shift ;;
    --tools) tools=$2 && shift ;;
    *) extra+=("$1") ;;
  esac
  shift
done
[[ $budget =~ ^[1-9][0-9]*$ ]] || { echo "bench/gpu.sh: --budget is '$budget', allowed are whole seconds" >&2; exit 2; }
: "${rotunda:=$(./dev which)}"
mkdir -p "$(dirname "$out")"

shortest=15 longest=150  # seconds: nothing is begun with less left, and nothing runs longer
SECONDS=0 failures=() gpus=$(nvidia-smi --list-gpus | wc -l)

# line COMMAND…: runs it within what is left of the budget.
line() {
  local left=$((budget - SECONDS)) begin=$SECONDS status=0
  if ((left < shortest)); then
    failures+=("left out: $*")
    return
  fi
  timeout --kill-after=5 $((left < longest ? left : longest)) "$@" < /dev/null || status=$?
  ((status == 0)) || failures+=("status $status: $*")
  echo "-- $((SECONDS - begin)) s, $((budget - SECONDS)) s left" >&2
}

# tool NAME ARGUMENTS…: a program of bench/, which prints.
tool() { line "$tools/$1" "${@:2}"; }
# bench PROBLEM [ARGUMENTS…]
bench() {
  line "$rotunda" bench --device cuda --problem "$1 grad=1" --repeat "${repeat:-20}" --json "$out" --timeout 20 "${@:2}" \
    "${extra[@]}"
}
on_one() { bench "$1" --ranks 1 --devices 0 "${@:2}"; }
on_two() {
  if ((gpus < 2)); then
    failures+=("needs two GPUs: $*")
    return
  fi
  bench "$1" --ranks 2 --devices 0,1 --baseline "${baselines:-ideal_same_kernel}" "${@:2}"
}

eight=0,1028,3100,7196,15696,18000,21096,27192,32768  # documents of 1,028 to 8,500 tokens
long=0,25316,26344,27372,28400,29428,30456,31484,32768  # one of 25,316 and seven short ones
dense=("s_q=32768 h_q=32 d=128 mask=causal" "s_q=32768 h_q=32 h_kv=8 d=128 mask=causal"
  "s_q=32768 h_q=32 d=192 d_v=128 mask=causal")
packed=("layout=thd cu_q=$eight h_q=32 d=128 mask=causal" "layout=thd cu_q=$long h_q=32 d=128 mask=causal")
mixed=(--schedule p2p --backward-schedule a2a)

case $topic in
  cuda)
    for schedule in a2a p2p all_gather; do
      for problem in "${dense[@]}" "${packed[0]}"; do on_two "$problem" --kernel cudnn --schedule $schedule; done
    done
    on_one "s_q=16384 h_q=16 d=128 mask=causal" --kernel cudnn
    tool attention_cuda cudnn "s_q=16384 h_q=16 d=128 mask=causal grad=1"
    for ranks in 1 2; do tool host_time $ranks cudnn; done
    for ranks in 2 4 8; do
      bench "s_q=16384 h_q=16 d=128 mask=causal" --kernel cudnn --schedule p2p --ranks $ranks --devices 0
    done
    for problem in "${dense[@]}"; do
      baselines=ideal_same_kernel,torch_cp on_two "$problem" --kernel cudnn --schedule a2a --python python3
    done
    ;;
  pairs)
    for problem in "${dense[@]}" "${packed[@]}"; do
      on_two "$problem" --schedule a2a
      on_two "$problem" "${mixed[@]}"
    done
    for schedule in p2p all_gather; do
      for problem in "${dense[@]}" "${packed[@]}"; do on_two "$problem" --schedule $schedule; done
    done
    ;;
  mixed)
    for problem in "${dense[2]}" "${dense[0]}"; do
      repeat=50 on_two "$problem" --graph --schedule p2p
      for _ in 1 2; do repeat=50 on_two "$problem" --graph "${mixed[@]}"; done
      repeat=50 on_two "$problem" --graph --schedule p2p
    done
    ;;
  auto)
    for size in "s_q=4096" "s_q=16384" "b=2 s_q=16384" "s_q=65536"; do
      for heads in "h_q=32" "h_q=32 h_kv=8" "h_q=64 h_kv=4"; do
        baselines=p2p,all_gather,a2a,p2p/a2a \
          on_two "$size $heads d=128 mask=causal" --schedule auto --backward-schedule auto
      done
    done
    ;;
  fa4)
    for mask in causal none; do
      for dims in d=128 d=64 "d=192 d_v=128" d=256; do
        for kernel in fa4 cudnn; do on_one "s_q=16384 h_q=16 $dims mask=$mask" --kernel $kernel; done
      done
    done
    for dims in d=128 d=64 "d=192 d_v=128" d=256; do
      on_one "s_q=16384 h_q=16 $dims mask=causal deterministic=1" --kernel fa4
    done
    ;;
  wide)
    two="s_q=32768 h_q=16 h_kv=8 d=512 mask=causal"
    whole=("s_q=16384 h_q=16 d=512 mask=none" "s_q=16384 h_q=16 d=512 mask=causal"
      "s_q=4096 h_q=16 d=512 mask=causal" "b=2 s_q=16384 h_q=8 h_kv=4 d=512 mask=causal")
    others=()
    for dim in 264 320 384 448 504; do others+=("s_q=16384 h_q=16 d=$dim mask=none"); done
    many=0 at=0  # 64 documents
    for i in {1..64}; do at=$((at + (i % 2 ? 768 : 256))) && many+=,$at; done
    tool attention_cuda sm90 "${whole[@]/%/ grad=1}" "${others[@]/%/ grad=1}"
    on_two "$two" --kernel sm90 --schedule a2a
    for problem in "${whole[@]}" "${others[@]}"; do on_one "$problem" --kernel sm90; done
    for offsets in $eight $many; do on_one "layout=thd cu_q=$offsets h_q=16 d=512 mask=causal" --kernel sm90; done
    on_one "${whole[1]}" --kernel sm90 --kernel-scratch 2048
    on_two "$two" --kernel sm90 "${mixed[@]}"
    tool attention_cuda mma "s_q=4096 h_q=16 d=512 mask=causal grad=1" "s_q=8192 h_q=16 d=128 mask=causal grad=1"
    ;;
  *)
    echo "bench/gpu.sh: topic '$topic', allowed are cuda, pairs, mixed, auto, fa4 and wide" >&2
    exit 2
    ;;
esac

((${#failures[@]} == 0)) && exit
printf 'bench/gpu.sh: %s\n' "${failures[@]}" >&2
exit 1
