"""A whole training step of ngrpo.py, as plain GRPO (--mix_rate 0), against GRPOTrainer of huggingface/trl.

    trl_tiny    tiny/learner's first six steps: 16 prompts x 8, at most 48 new tokens; with all rows in one
                forward, then as each comes: TRL's 8 rows and recomputed layers, our 2,048 tokens, then in the
                micro-batches that were fastest: TRL's 32 rows, our 2,048 tokens
    trl_real    SmolLM2's first three: 4 GSM8K prompts x 8, exactly 64 new tokens; TRL's 8 rows, our 2,048
                tokens

The same weights, problems, order, prompt ids, reward function, temperature, lr and clipping; float32, no KL,
one update a rollout, one thread. A figure is TRL's seconds over ours, each the median of the steps after the
first; on a CPU in seconds of CPU time. Whole runs alternate. Tokens are those of completions, EOS included.
TRL logs and saves nothing and has, but in the second line of the tiny model, the fastest settings of those
tried on it: micro-batches of 8 to 128 rows, dynamic or static cache, continuous batching, fused AdamW or not,
activation checkpointing or not.
SmolLM2's EOS never comes, being -1 on both sides, so that lengths are equal. Every other completion of it
counts as right: really none is, and we leave out the update of groups without spread, while TRL does not.

    pip install trl datasets && python bench/against_trl.py                     three minutes
    python bench/against_trl.py --model FOLDER --only trl_real --repeats 1      ten minutes
"""
import importlib.metadata
import importlib.util
import itertools
import tempfile
import warnings
from statistics import median

import torch
import transformers

from speed import common, load, main, record, tell, timer, train

SETTINGS = dict(
    # the same work as ours
    learning_rate=2e-4, lr_scheduler_type="constant", warmup_steps=0, max_grad_norm=1., beta=0., bf16=False,
    loss_type="grpo", num_generations=8, temperature=1., top_p=1., top_k=0, shuffle_dataset=False,
    # and nothing else
    gradient_checkpointing=False, report_to="none", logging_strategy="no", save_strategy="no",
    disable_tqdm=True, dataloader_pin_memory=False)


def theirs(args, loaded, batches, T, rows, reward, seed, settings):
    """The steps of a GRPOTrainer on batches of problems, like those speed.train returns of ours."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    model, tokenizer, eos_ids, _, _ = loaded
    problems, now, marks, tokens, seen = sum(batches, []), timer(args), [], [], []
    texts = [tokenizer.decode(p["prompt"]) for p in problems]
    assert tokenizer(text=texts).input_ids == [p["prompt"] for p in problems]   # so TRL makes ids of them

    def graded(prompts, completions, completion_ids, answer, **_):
        seen.extend(prompts[::8])
        tokens.append(sum(map(len, completion_ids)))
        return [reward(text, gold) for text, gold in zip(completions, answer)]

    def mark(*_, **__):
        if args.device != "cpu":
            torch.cuda.synchronize()
        marks.append(now())
    marking = transformers.TrainerCallback()
    marking.on_train_begin = marking.on_step_end = mark
    N = 8 * len(batches[0])
    data = [dict(prompt=text, answer=p["answer"]) for text, p in zip(texts, problems)]
    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        config = GRPOConfig(
            out, seed=seed, use_cpu=args.device == "cpu", max_steps=len(batches), max_completion_length=T,
            per_device_train_batch_size=min(rows, N), gradient_accumulation_steps=-(-N // rows),
            generation_kwargs=dict(eos_token_id=eos_ids.tolist()), **SETTINGS | settings)
        trainer = GRPOTrainer(model, graded, config, Dataset.from_list(data), processing_class=tokenizer,
                              callbacks=[marking])
        trainer.eos_token_ids = eos_ids.tolist()                # by these it cuts what was generated
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    assert seen == texts and len(marks) - 1 == len(tokens) == len(batches)
    return [dict(seconds=b - a, tokens=n) for a, b, n in zip(marks, marks[1:], tokens)]


def compare(args, figure, B, T, steps, rows, micro_tokens, wanted, **settings):
    real, right, runs, ratios = figure == "trl_real", itertools.cycle((0., 1.)), dict(ours=[], trl=[]), []
    B, T, steps, args.threads = (2, 8, 2, 1) if args.quick else (B, T, steps, 1)

    def reward(text, gold):
        graded = float(common.check_answer(text, gold))
        return next(right) if real else graded
    for seed in range(1, 1 + args.repeats):
        flags = (f"--prompts {B} --max_new_tokens {T} --steps {steps} --micro_tokens {micro_tokens} "
                 f"--seed {seed} --mix_rate 0 --lr 2e-4 --warmup 0 --compute_dtype float32")
        runs["ours"].append(train(args, load(args, real), flags, reward=reward))
        loaded = load(args, real)                               # the shipped weights again
        batches = [common.batch_of(loaded[-1], B, step, seed) for step in range(1, 1 + steps)]
        runs["trl"].append(theirs(args, loaded, batches, T, rows, reward, seed, settings))
        a, b = (median(s["seconds"] for s in run[-1][1:]) for run in runs.values())
        ratios.append(b / a)
    fields = {}
    for name, done in runs.items():
        later = [s for run in done for s in run[1:]]
        fields[f"{name}_s"] = median(s["seconds"] for s in later)
        fields[f"{name}_first_s"] = median(run[0]["seconds"] for run in done)
        fields[f"{name}_tokens_per_s"] = sum(s["tokens"] for s in later) / sum(s["seconds"] for s in later)
    record(args, figure, median(ratios), "trl / ours", wanted, **fields, ratios=ratios, **runs,
           trl_version=importlib.metadata.version("trl"))
    for name in runs:
        tell(args, "    {:26} {:10.4g} s a step, the first {:.3g}, {:.0f} tokens/s".format(
            name, *(fields[f"{name}_{k}"] for k in ("s", "first_s", "tokens_per_s"))))


def trl_tiny(args):
    compare(args, "trl_tiny, one forward", 16, 48, 6, 128, 16384, ">= 2.5")
    compare(args, "trl_tiny, defaults", 16, 48, 6, 8, 2048, ">= 2.5", gradient_checkpointing=True)
    compare(args, "trl_tiny, fastest", 16, 48, 6, 32, 2048, ">= 2.5")


def trl_real(args):
    compare(args, "trl_real", 4, 64, 3, 8, 2048, ">= 1.5")


if __name__ == "__main__":
    if importlib.util.find_spec("trl") and importlib.util.find_spec("datasets"):
        main(__doc__, trl_tiny, trl_real)
    else:
        print("skipped: no TRL here, pip install trl datasets")
