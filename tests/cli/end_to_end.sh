#!/usr/bin/env bash
# The built command line, from outside: exit statuses, one sentence on standard error, files that appear whole.
#   end_to_end.sh ROTUNDA SOURCE_DIR
set -uo pipefail

rotunda=$1 data=$2/examples/data
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# expect STATUS TEXT ARGS…: the exit status; TEXT is in the output (status 0, 1) or in the one line of errors (others).
expect() {
  local wanted=$1 text=$2 status
  shift 2
  "$rotunda" "$@" > out.txt 2> err.txt
  status=$?
  [[ $status == "$wanted" ]] || fail "rotunda $*: status $status, not $wanted: $(cat err.txt)"
  if ((wanted <= 1)); then
    [[ -z $text ]] || grep -qF -- "$text" out.txt || fail "rotunda $*: no '$text' in its output: $(cat out.txt)"
    [[ ! -s err.txt ]] || fail "rotunda $*: errors in a pipe: $(cat err.txt)"
  else
    grep -qF -- "$text" err.txt || fail "rotunda $*: no '$text' in its errors: $(cat err.txt)"
    [[ $(wc -l < err.txt) == 1 ]] || fail "rotunda $*: not one line of errors: $(cat err.txt)"
  fi
}

# warned TEXT ARGS…: status 0, and TEXT in the one line of errors, a warning.
warned() {
  local text=$1
  shift
  "$rotunda" "$@" > out.txt 2> err.txt || fail "rotunda $*: status $?: $(cat err.txt)"
  grep -qF -- "rotunda: warning: $text" err.txt || fail "rotunda $*: no warning '$text': $(cat err.txt)"
  [[ $(wc -l < err.txt) == 1 ]] || fail "rotunda $*: not one line of errors: $(cat err.txt)"
}

small="s_q=37 h_q=4 h_kv=2 d=16 mask=causal grad=1"

expect 0 "rotunda 0." --version
expect 0 "Exit status" --help
for command in demo run verify bench explain plan info; do expect 0 "--" "$command" --help; done
expect 2 "no command given"
expect 2 "did you mean verify?" verfy
expect 2 "did you mean --ranks?" verify --rank 3
expect 2 "--problem is missing" verify
expect 2 "--in is missing" run
expect 2 "cannot read" run --in nowhere.safetensors
expect 2 "h_qq" verify --problem "s_q=4 h_qq=2 d=8"
expect 2 "--baseline names 'nobody'" bench --problem "$small" --baseline nobody
expect 3 "--baseline te" bench --problem "$small" --baseline te
expect 3 "cuda" verify --problem "$small" --device cuda
ROTUNDA_DISABLE=nccl expect 3 "nccl" verify --problem "$small" --transport nccl
expect 3 "cudnn" verify --problem "$small" --kernel cudnn
expect 2 "--kernel is empty" verify --problem "$small" --kernel ""
expect 3 "dropout" verify --problem "$small dropout=0.1"
expect 3 "GiB" verify --problem "s_q=100000000000 h_q=32 d=128"
ROTUNDA_TIMEOUT=never expect 2 "ROTUNDA_TIMEOUT is 'never'" verify --problem "$small"
ROTUNDA_TIMEOUT=never expect 0 "'never'" info

for schedule in p2p all_gather a2a a2a_p2p; do
  for ranks in 1 3; do
    expect 0 "passed" verify --problem "$small" --ranks $ranks --schedule $schedule
  done
done
expect 0 "passed" verify --problem "$small sink=learnable max_logit=1" --ranks 2 --backward-schedule a2a --schedule p2p
expect 0 "" verify --problem "$small" --quiet
[[ ! -s out.txt ]] || fail "--quiet printed $(cat out.txt)"

# run: the problem from the metadata, outputs whole, the same from one rank and from four.
expect 0 "forward" run --in "$data/minilm_packed.safetensors" --out four.safetensors --ranks 4 --trace t.json
expect 0 "forward" run --in "$data/minilm_packed.safetensors" --out one.safetensors --ranks 1
[[ $(wc -c < four.safetensors) == "$(wc -c < one.safetensors)" ]] || fail "outputs differ in size"
grep -q traceEvents t.json || fail "no trace"
head -c 1000 "$data/minilm_packed.safetensors" > cut.safetensors
expect 2 "cut short" run --in cut.safetensors
expect 2 "cannot write" run --in "$data/minilm_packed.safetensors" --out nowhere/x.safetensors
expect 2 "has shape" run --in "$data/minilm_packed.safetensors" --problem "layout=thd cu_q=0,400 h_q=12 d=32"
expect 0 "passed" verify --in "$data/minilm_packed.safetensors" --ranks 3 --json r.json
expect 0 "passed" verify --problem "$small" --json r.json
[[ $(grep -c '"err_ratio"' r.json) == 2 ]] || fail "--json did not append"

expect 0 "1 of 1 runs" demo --in "$data/minilm_packed.safetensors" --ranks 3 --schedule p2p --shard contiguous --svg d.svg
grep -q "3 ranks of" out.txt || fail "demo --ranks 3 ran on others: $(cat out.txt)"
grep -qE "^p2p +p2p +contiguous" out.txt || fail "demo --schedule, --shard: $(cat out.txt)"
expect 0 "4 of 4 runs" demo --in "$data/minilm_packed.safetensors" --backward-schedule a2a_p2p --inner 2
expect 2 "inner=2 is for schedule a2a_p2p" demo --in "$data/minilm_packed.safetensors" --schedule p2p --inner 2
expect 0 "who holds which tokens" explain --problem "$small" --ranks 2 --schedule p2p --svg e.svg
expect 0 "pairs a head" explain --problem "s_q=1000000000000 h_q=8 d=128 mask=causal" --ranks 4
expect 0 "predicted time line written" explain --problem "$small" --ranks 3 --threads 2 --json x.json --trace x.trace.json
grep -q '"not_chosen"' x.json && grep -q '"threads": 2' x.json || fail "explain --json: $(cat x.json)"
grep -q '"heads 0 to' x.trace.json || fail "explain --trace: $(cat x.trace.json)"
expect 0 "machine  h200_nvlink" explain --problem "$small" --cluster h200_nvlink
expect 3 "a picture follows every token" explain --problem "s_q=1000000000000 h_q=8 d=128" --svg big.svg
expect 2 "that is a folder" plan --problem "slices=@. s_q=4 h_q=2 d=8"
grep -q "</svg>" e.svg || fail "no picture"
expect 0 "not chosen" explain --problem "$small" --ranks 2 --json planned.json --trace planned.trace
grep -q '"name": "explain"' planned.json || fail "explain --json wrote no record"
grep -q '"dur"' planned.trace || fail "explain --trace wrote no steps"
expect 0 "balance" plan --problem "$small" --json p.json
expect 0 "predicted for machine h200_nvlink" plan --problem "$small" --cluster h200_nvlink --ranks 4
expect 2 "kernel 'nonsense' is unknown" plan --problem "$small" --kernel nonsense
expect 3 "mpi" plan --problem "$small" --transport mpi
expect 2 "inner=2 is for schedule a2a_p2p" plan --problem "$small" --schedule p2p --inner 2
expect 2 "--cluster is 'moon'" plan --problem "$small" --cluster moon
rates='"flops_per_second": 1e12, "bytes_per_second": 1e6'
echo "{$rates, \"seconds_per_message\": 1e-6}" > far.json
echo "{$rates, \"seconds_per_message\": 1e-6, \"seconds_per_call\": 0.25}" > slow.json
echo "{$rates, \"seconds_per_message\": 1e-6, \"second_per_call\": 0.25}" > slip.json
echo "{$rates, \"seconds_per_message\": 1e-6, \"overlaps\": 1}" > number.json
echo "{$rates}" > short.json
expect 0 "machine  ./slow.json" explain --problem "$small" --cluster ./slow.json --json slow.record.json
grep -q '"seconds_per_call": 0.25' slow.record.json || fail "explain --cluster: $(cat slow.record.json)"
expect 2 "unknown key second_per_call, allowed are name, flops_per_second" plan --problem "$small" --cluster ./slip.json
expect 2 "overlaps is 1, allowed are true and false" plan --problem "$small" --cluster ./number.json
expect 2 "seconds_per_message is missing" plan --problem "$small" --cluster ./short.json
expect 0 "p2p              a2a" plan --problem "s_q=8192 h_q=8 d=64 mask=causal grad=1" --ranks 4 --backward-schedule auto --cluster ./far.json
many="layout=thd h_q=8 d=64 mask=causal grad=1 cu_q=$(seq -s, 0 1000 500000)"
expect 0 "512" plan --problem "$many" --ranks 512

# Flags that a command can do nothing with say so; what promises a file and can't keep it is refused.
for command in explain plan; do
  warned "--seed changes nothing here" $command --problem "$small" --seed 3
  warned "--timeout changes nothing here" $command --problem "$small" --timeout 3
done
warned "--threads changes nothing here" plan --problem "$small" --threads 2
warned "--seed changes nothing here" run --in "$data/minilm_packed.safetensors" --seed 3
warned "--seed changes nothing here" verify --in "$data/minilm_packed.safetensors" --ranks 2 --seed 3
for command in verify explain plan; do
  warned "--backward-schedule changes nothing here" $command --problem "s_q=8 h_q=2 d=8" --ranks 2 --backward-schedule a2a
  warned "--kernel-scratch changes nothing here" $command --problem "$small" --ranks 2 --kernel-scratch 8
done
warned "--kernel-scratch changes nothing here: it is for backward" bench --problem "s_q=8 h_q=2 d=8" --kernel-scratch 8
warned "--kernel-scratch changes nothing here: kernel cpu takes none" run --in "$data/minilm_packed.safetensors" --kernel-scratch 8
expect 3 "--trace: plan compares schedules" plan --problem "$small" --trace p.trace.json

# Calibration: measured when asked for, then used; without a folder there is none.
expect 2 "ROTUNDA_CACHE, which is not set" info --calibrate
ROTUNDA_CACHE=$PWD/cache expect 0 "a thread" info --calibrate
grep -q '"flops_per_second"' cache/calibration.json || fail "nothing was kept: $(ls cache)"
ROTUNDA_CACHE=$PWD/cache expect 0 "ms are predicted for machine" plan --problem "$small" --threads 2
ROTUNDA_CACHE=$PWD/cache expect 0 "passed" verify --problem "$small"
ROTUNDA_CACHE=$PWD/nowhere expect 0 "none: plans are made by round figures" info
echo "{" > cache/calibration.json
ROTUNDA_CACHE=$PWD/cache warned "the calibration in $PWD/cache/calibration.json is not used" verify --problem "$small"
touch plain
ROTUNDA_CACHE=$PWD/plain expect 2 "cannot write" info --calibrate
expect 0 "reference" info
ROTUNDA_LOG=loud "$rotunda" info > out.txt 2> err.txt || fail "a bad ROTUNDA_LOG stops the program"
grep -qF "warning: ROTUNDA_LOG is 'loud', allowed are error, warn, info, debug" err.txt || fail "ROTUNDA_LOG=loud is silent"
[[ $(wc -l < err.txt) == 1 ]] || fail "ROTUNDA_LOG=loud is told more than once: $(cat err.txt)"
ROTUNDA_DISABLE=cudnn,nosuch "$rotunda" verify --problem "$small" > out.txt 2> err.txt || fail "a bad ROTUNDA_DISABLE"
grep -qF "warning: ROTUNDA_DISABLE names 'nosuch', allowed are " err.txt || fail "ROTUNDA_DISABLE=nosuch is silent"
[[ $(wc -l < err.txt) == 1 ]] || fail "ROTUNDA_DISABLE=nosuch is told more than once: $(cat err.txt)"
ROTUNDA_DISABLE=cpu expect 3 "ROTUNDA_DISABLE" verify --problem "$small"
expect 0 "ideal's time / ours" bench --problem "s_q=64 h_q=2 d=16 mask=causal grad=1" --ranks 2 --baseline ideal --json b.json
grep -q '"ideal"' b.json || fail "no baseline in the record"
expect 0 "p2p/a2a's time / ours" bench --problem "s_q=64 h_q=2 d=16 mask=causal grad=1" --ranks 2 --baseline a2a,p2p/a2a --json c.json
grep -q '"p2p/a2a"' c.json || fail "no schedule among the baselines"
expect 2 "--baseline names 'p2p/nobody'" bench --problem "$small" --baseline p2p/nobody
expect 3 "--graph is for CUDA devices" bench --problem "$small" --device cpu --graph

# Outputs: links stay links, what is named through /proc is written in place, programs that append wait for each other.
ln -s target.json link.json
expect 0 "passed" verify --problem "$small" --json link.json
expect 0 "passed" verify --problem "$small" --json link.json
[[ -L link.json && $(grep -c '"err_ratio"' target.json) == 2 ]] || fail "--json did not follow a link"
ln -s /proc/self/fd/1 standard
"$rotunda" run --in "$data/minilm_packed.safetensors" --quiet --out standard > through.safetensors || fail "--out through /proc"
[[ -L standard ]] || fail "--out replaced a link to standard output"
cmp -s through.safetensors one.safetensors || [[ $(wc -c < through.safetensors) == "$(wc -c < one.safetensors)" ]] ||
  fail "--out through /proc wrote something else"
for i in 1 2 3 4 5 6; do "$rotunda" verify --problem "s_q=8 h_q=2 d=8" --ranks 2 --quiet --json many.json & done
wait
[[ $(grep -c '"err_ratio"' many.json) == 6 ]] || fail "programs that append at once lose records"
ln -s loop loop
expect 2 "cannot write loop: Too many levels of symbolic links" run --in "$data/minilm_packed.safetensors" --out loop
expect 2 "both name ./same.json" run --in "$data/minilm_packed.safetensors" --out same.json --trace ./same.json
mkdir real && ln -s real folder && ln "$work/target.json" hard.json && ln -s gone.json dangling.json
expect 2 "both name folder/new.json" run --in "$data/minilm_packed.safetensors" --out real/new.json --trace folder/new.json
expect 2 "both name target.json" verify --problem "$small" --trace target.json --json hard.json
expect 2 "both name dangling.json" verify --problem "$small" --trace dangling.json --json gone.json
# What is read is never written over.
cp "$data/minilm_packed.safetensors" in.safetensors
ln -s in.safetensors in.link
for output in --out --trace --json; do
  expect 2 "--in and $output both name in.link, which would be written over" run --in ./in.safetensors $output in.link
done
echo '{"s_q": 8, "h_q": 2, "d": 8}' > problem.json
expect 2 "--problem and --svg both name ./problem.json" explain --problem @problem.json --svg ./problem.json
expect 2 "--cluster and --json both name slow.json" plan --problem "$small" --cluster ./slow.json --json slow.json
cmp -s in.safetensors "$data/minilm_packed.safetensors" || fail "an input was written over"
[[ -e /dev/full ]] && { "$rotunda" --help > /dev/full 2> err.txt; [[ $? == 2 ]] || fail "--help to a full disk: status $?"; }

# Who has read enough closes the pipe: no error, and the status is the work's.
closed() {
  local wanted=$1 status
  shift
  exec 3> >(:)
  wait $!
  "$rotunda" "$@" >&3 2> err.txt
  status=$?
  exec 3>&-
  [[ $status == "$wanted" && ! -s err.txt ]] || fail "rotunda $* into a closed pipe: status $status: $(cat err.txt)"
}
closed 0 --help
closed 0 explain --problem "$small"
closed 0 verify --problem "$small" --json closed.json
[[ -s closed.json ]] || fail "a closed pipe kept the record from its file"
[[ -e /dev/full ]] && { "$rotunda" info > /dev/full 2> err.txt; [[ $? == 2 ]] || fail "info to a full disk: status $?"; }

# Control characters of an argument reach no terminal.
expect 2 "--ranks is '\x1b[31m4\n', allowed" verify --problem "$small" --ranks $'\e[31m4\n'
expect 2 "cannot read no\x07where" run --in $'no\awhere'

# One of something is one.
expect 0 "on 1 rank, against float64" verify --problem "$small" --ranks 1
expect 0 "local, 1 thread a rank, hash" explain --problem "$small" --ranks 1 --threads 1
expect 0 "on 1 rank of 2 threads" bench --problem "s_q=8 h_q=2 d=8" --ranks 1 --threads 2
expect 2 "inner=2 does not divide 1 rank;" verify --problem "$small" --ranks 1 --schedule a2a_p2p --inner 2

# What a signal or a limit ends leaves no file behind, whole or in part.
"$rotunda" demo --svg nowhere/demo.svg > out.txt 2> err.txt
[[ $? == 2 && ! -s out.txt ]] || fail "demo that can't write: $(cat out.txt err.txt)"
(ulimit -f 1 && "$rotunda" run --in "$data/smollm2_layer29.safetensors" --out big.st --ranks 2 > out.txt 2> err.txt)
[[ $? == 2 ]] || fail "a file that may not grow: status $?, $(cat err.txt)"
compgen -G "big.st*" > /dev/null && fail "a file that may not grow is there: $(ls big.st*)"

"$rotunda" verify 2> /dev/full
(($? == 2)) || fail "an error that can't be told changes the exit status"
ROTUNDA_LOG=info "$rotunda" verify --problem "$small" > out.txt 2>&- || fail "a log line that can't be told stops the run"
expect 2 "both name same.json" run --in "$data/minilm_packed.safetensors" --out same.json --trace same.json

[[ -z $(find . -name '*.tmp') ]] || fail "temporary files were left: $(find . -name '*.tmp')"
((failures == 0)) && echo "all passed"
exit $((failures > 0))
