r"""How far does one perturbed input push the model? The paper's motivating figure, for each way of mixing.

A plain continuation of T tokens is decoded for each of n prompts. Then positions are drawn where the token
that came is also the argmax, so that the anchor is what was really read. At each, one at a time, its input is
replaced by what a mixer would feed, all else is kept, and the rest of the continuation is scored again:

    none        the embedding itself: cosine 1, and no change but rounding
    neighbour   the paper's: the anchor and its K-1 nearest words, weighted by the policy
    gaussian    the anchor plus noise a third its size
    soft        the K likeliest tokens, weighted by the policy; also with K = 10
    random      any word, drawn uniformly: what a real disturbance looks like

Columns: cosine of blend and anchor, mean and least; the anchor's weight, and the share of positions where it
is >= .95; share where the next step's argmax changes; change of the log-prob of the unmixed continuation, of
its next token and per token over the next 16 (or to its end); KL(unmixed || mixed) of the next token. All are
means over prompts of a prompt's mean, with the standard error over prompts. A token drawn is more often the
argmax where the model is sure, so positions lean to such steps; with --greedy every step qualifies.

    python bench/drift.py --model tiny/learner --data tiny/easy_test.jsonl --prompt_format {question}
    python bench/drift.py --model HuggingFaceTB/SmolLM2-135M-Instruct --data openai/gsm8k:main:test

Seconds and two minutes on one CPU core. A JSON line for each mixer is added to --out.
"""
import argparse
import json
import os
import sys
import time
from copy import deepcopy

import torch
import torch.nn.functional as F
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from common import (batch_of, draws, encode_prompt, has_sliding_layers, load_model,  # noqa: E402
                    load_problems, new_cache, refuse)
from ngrpo import mix, nearest, rollout, vocab_logps  # noqa: E402

BOXED = "{question}\nLet's think step by step and output the final answer within \\boxed{{}}."
COLUMNS = ("cosine", "anchor_weight", "anchor_95", "flips", "logp_next", "logp_span", "kl")


def recipe(embed, table, logp, mixer, k):
    """What rollout mixes at steps with log-probs (n, V): candidates and weights, both (n, K), and noise."""
    anchor, noise = logp.argmax(-1), 0.
    candidates = anchor[:, None]
    if mixer == "neighbour":
        candidates = nearest(table, anchor, k)
    elif mixer == "soft":
        candidates = logp.topk(k).indices
    elif mixer == "random":
        candidates = torch.randint_like(candidates, logp.shape[1])
    elif mixer == "gaussian":
        e = embed(anchor)
        noise = .33 * e.square().mean(1, True).sqrt() * torch.randn_like(e)
    return candidates, logp.gather(1, candidates).softmax(-1), noise


def follow(model, ids, cache, at, inputs, span):
    """States (n, span, D) after each of span inputs from at (n,) on, the first replaced by inputs (n, D).
    A full forward for every row would give the same; here what lies before `at` is read from the cache."""
    rows, n = deepcopy(cache), len(at)
    rows.batch_select_indices(torch.zeros_like(at))
    steps = (at[:, None] + torch.arange(span, device=at.device)).clamp(max=len(ids) - 1)    # beyond: unused
    x = model.get_input_embeddings()(ids[steps])
    x[:, 0] = inputs
    past = (torch.arange(len(ids), device=at.device) < at[:, None])[:, None].expand(n, span, len(ids))
    seen = torch.cat([past, past.new_ones(span, span).tril().expand(n, span, span)], 2)[:, None]
    return model.base_model(inputs_embeds=x, attention_mask=seen, position_ids=steps, cache=rows,
                            use_cache=True).last_hidden_state


@torch.no_grad()
def measure(model, eos_ids, V, prompts, mixers, T, seed=1, temperature=1., greedy=False, share=.1, span=16):
    """{(mixer, K): a tensor (positions, COLUMNS) per prompt}, and which of all tokens were the argmax."""
    head, embed, device = model.get_output_embeddings(), model.get_input_embeddings(), eos_ids.device
    table, results, likeliest = F.normalize(embed.weight[:V], dim=1), {key: [] for key in mixers}, []
    u = draws(seed, 1, 0, (len(prompts), T)).to(device)
    tokens, _, lengths, _ = rollout(model, head, prompts, u, temperature, eos_ids, V, 0. if greedy else 1.)
    torch.manual_seed(seed)                                             # of the noise and the random words
    for i, (prompt, n) in enumerate(zip(prompts, lengths.tolist())):
        ids, P = torch.cat([torch.tensor(prompt, device=device), tokens[i, :n]]), len(prompt)
        x, cache = embed(ids)[None], new_cache(len(ids) + span)
        hidden = model.base_model(inputs_embeds=x, cache=cache, use_cache=True).last_hidden_state[0]
        plain = vocab_logps(hidden[P - 1:-1], head, V, temperature)     # row t: what token t was drawn from
        likeliest.append(plain.argmax(-1) == ids[P:])
        fit = likeliest[-1][:-1].nonzero()[:, 0]                        # nothing follows the last token
        step = fit[draws(seed, i, 5, len(fit)).argsort()[:max(1, round(share * len(fit)))].to(device)]
        if not len(step):
            continue
        window = step[:, None] + 1 + torch.arange(span, device=device)
        exists, window = window < n, window.clamp(max=n - 1)
        anchor, target, base = ids[P + step], ids[P + window], plain[step + 1]
        for (mixer, k), found in results.items():
            candidates, weight, noise = recipe(embed, table, plain[step], mixer, k)
            own = (weight * (candidates == anchor[:, None])).sum(1)
            blend = mix(embed, candidates, weight, noise)
            logp = vocab_logps(follow(model, ids, cache, P + step, blend, span), head, V, temperature)
            change = (logp.gather(2, target[..., None])[..., 0] - plain[window, target]) * exists
            found.append(torch.stack([
                F.cosine_similarity(blend, embed(anchor), dim=1), own, own >= .95,
                logp[:, 0].argmax(-1) != base.argmax(-1), change[:, 0], change.sum(1) / exists.sum(1),
                (base.exp() * (base - logp[:, 0])).sum(1)], 1).double().cpu())
    return results, torch.cat(likeliest).double().cpu()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in dict(model=None, data=None, prompt_format="", out=f"{HERE}/results.jsonl", device="",
                              n=16, T=96, k=3, seed=1, share=.1, temperature=1.).items():
        parser.add_argument(f"--{name}", type=type(default or ""), default=default, required=default is None)
    parser.add_argument("--greedy", action="store_true", help="decode the unmixed continuation greedily")
    cfg, began = parser.parse_args(argv), time.time()
    cfg.device = cfg.device or ("cuda" if torch.cuda.is_available() else "cpu")
    problems, (model, tokenizer, eos_ids, V) = load_problems(cfg.data), load_model(cfg.model, cfg.device)
    if has_sliding_layers(model.config):
        refuse(f"--model {cfg.model}: has sliding-window layers, which the mask written here would hide")
    cfg.prompt_format = cfg.prompt_format or (BOXED if tokenizer.chat_template else "{question}")
    prompts = [encode_prompt(tokenizer, p["question"], cfg.prompt_format)
               for p in batch_of(problems, min(cfg.n, len(problems)), 1, cfg.seed)]
    mixers = ("none", 1), ("neighbour", cfg.k), ("gaussian", 1), ("soft", cfg.k), ("soft", 10), ("random", 1)
    results, likeliest = measure(model, eos_ids, V, prompts, mixers, cfg.T, cfg.seed, cfg.temperature,
                                 cfg.greedy, cfg.share)
    m = len(results["none", 1])
    if m < 2:
        refuse("fewer than two prompts have a position to measure: raise --n or --T")
    where, positions = vars(cfg).pop("out"), sum(map(len, results["none", 1]))
    cfg.model, cfg.data = os.path.basename(os.path.normpath(cfg.model)), os.path.basename(cfg.data)
    about = dict(vars(cfg), tokens=len(likeliest), argmax_share=likeliest.mean().item(), positions=positions,
                 prompts=m, seconds=round(time.time() - began), date=time.strftime("%Y-%m-%d"),
                 torch=torch.__version__, transformers=transformers.__version__)
    print("{model}, {data}: {tokens} tokens, {argmax_share:.3f} of them the argmax. {positions} positions in "
          "{prompts} prompts, {seconds} s".format(**about))
    print(f"{'':10} K{'cosine':>15} least" + "".join(f"{c:>15}" for c in COLUMNS[1:]))
    for (mixer, k), found in results.items():
        means, least = torch.stack([f.mean(0) for f in found]), torch.cat(found)[:, 0].min().item()
        mean, se = means.mean(0).tolist(), (means.std(0) / m ** .5).tolist()
        cells = [f"{a:.3f} ({b:.3f})" for a, b in zip(mean, se)]
        print(f"{mixer:10}{k:2}{cells[0]:>15} {least:5.2f}" + "".join(f"{c:>15}" for c in cells[1:]))
        line = about | dict(bench="drift", mixer=mixer, k=k, cosine_min=least) | dict(zip(COLUMNS, mean))
        with open(where, "a") as f:
            f.write(json.dumps(line | {f"{c}_se": v for c, v in zip(COLUMNS, se)}) + "\n")


if __name__ == "__main__":
    main()
