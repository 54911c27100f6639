#!/usr/bin/env bash
# What only a GPU can show, in ten minutes: the tiny demo, sampler and trainer of each script in bfloat16, the
# whole neighbour table, speed. From the repository's root, with the requirements installed:
#     bash bench/gpu.sh [FOLDER OF A REAL MODEL]        writes $OUT (default out/gpu)
set -euo pipefail
out=${OUT:-out/gpu}
mkdir -p "$out"
python -c 'import torch; print(torch.cuda.get_device_name(), torch.__version__)' | tee "$out/device.txt"

echo "--- the tiny demo, bfloat16 rollout and update, float32 weights"
timeout 240 python ngrpo.py --device cuda --out "$out/demo" | tee "$out/demo.txt" | grep -E "^(eval|step +(1|50) )"

echo "--- sampler against trainer: |log-prob difference|; bounds: bfloat16 mean < .02, float32 max < 1e-3"
timeout 60 python ngrpo.py --device cuda --compute_dtype float32 --steps 3 --eval_problems 20 --out "$out/float32" \
    > "$out/float32.txt"
for script in grpo_sg s2l_po ta_grpo; do
    timeout 60 python $script.py --device cuda --steps 3 --eval_problems 20 --out "$out/$script" > "$out/$script.txt"
done
python - "$out" <<'PY' | tee "$out/parity.txt"
import json, sys
for name, key, bound in (("demo", "logp_gap", .02), ("float32", "logp_gap_max", 1e-3), ("grpo_sg", "logp_gap", .02),
                         ("s2l_po", "logp_gap", .02), ("ta_grpo", "logp_gap", .02)):
    with open(f"{sys.argv[1]}/{name}/metrics.jsonl") as f:
        gaps = [r[key] for r in map(json.loads, f) if r["kind"] == "step" and r[key] is not None]
    print(f"{name}: largest {key} {max(gaps):.2e}, bound {bound}", "ok" if max(gaps) < bound else "EXCEEDED")
PY

echo "--- neighbour table and speed"
timeout 280 python bench/speed.py --device cuda --repeats 3 --out "$out/results.jsonl" \
    --only neighbour_table rollout_tiny ${1:+rollout_real largest_tensor --model "$1"} | tee "$out/speed.txt"
