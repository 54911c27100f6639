r"""TA-GRPO (arXiv 2601.22478 v5): a question and its rephrasings, answered as one group.

A prompt whose completions are all wrong, or all right, teaches GRPO nothing. TA-GRPO asks each question in N
more wordings, made beforehand, and takes all completions for completions of the question: their rewards are
normalised together, and the question stands in every condition of their ratios, whatever wording a row was
sampled from. So the model learns to answer the question as it answers a rephrasing. All else is plain GRPO.

For a question q_0, its rephrasings q_1..q_N and G rows o sampled from each (the numbers are ours):
    o_ni ~ pi_old( . | q_n),  n = 0..N,  i = 1..G                                                  (1)
    A_ni = (r_ni - mean r) / (std r + 1e-6),  mean and std over the M = (N+1) G rewards r          (2)
    R_t  = pi(o_t | q_0, o_<t) / pi_old(o_t | q_0, o_<t),  whichever q_n gave o                    (3)
    J    = 1 / sum |o| sum_nit [min(R A, clip(R, 1-eps, 1+eps) A) - beta KL], KL given q_0 too     (4)
pi_old(o | q_0) is computed anew, not sampled from, and that goes uncorrected. It is logged for each n: as
anchor_gap, log pi(o_t | q_0) - log pi(o_t | q_n), and anchor_ess, the effective share of rows by it.

Four right answers to a question, two right and two wrong ones to a rephrasing, as one pool and apart:
    >>> rewards = torch.tensor([1., 1., 1., 1., 1., 0., 0., 1.])
    >>> [round(x, 3) for x in pool_advantages(rewards, [8]).tolist()]
    [0.54, 0.54, 0.54, 0.54, 0.54, -1.62, -1.62, 0.54]
    >>> [round(x, 3) for x in pool_advantages(rewards, [4, 4]).tolist()]
    [0.0, 0.0, 0.0, 0.0, 0.866, -0.866, -0.866, 0.866]

We could not read the paper's body: only its abstract, summaries of it, and an author's code ("release"). So:
    D1 (3) is v5 by its summaries; v1 and the release have q_n on both sides (--anchor sampled); --anchor
       cross has the sampler's pi_old(o | q_n) below, a true ratio, which clips from the first update on
    D2 N is v1's, the release's seems about 6; the prompt of the paper's KL is unknown, ours is the ratio's
    D3 unbiased std, its 1e-6, k3 and the token mean are the release's, not its dual clip
    D4 the release's batches cut through pools, ours do not; where rephrasings lack a pool is smaller
    D5 GPT-4-Turbo rephrases there, by an unknown prompt, here bench/rephrase.py; the demo's are templates
    D6 --dynamic_sampling R (DAPO): up to R rollouts a step replace pools without spread; logs: of those kept
    D7 evaluation asks the question as it stands, by the template of training, which the release drops there
Left out: several GPUs, vLLM, LoRA, a value model, an entropy bonus.

    python ta_grpo.py                     a minute on a laptop CPU: held-out accuracy from .01 to .6
    python ta_grpo.py --matched True      as many rollouts by plain GRPO: it stays at .02
    python ta_grpo.py --preset one_gpu    a 1.7B model on one 80 GB GPU; its data: see bench/rephrase.py
"""
import copy
import math
import os
import time
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm
from transformers.hf_argparser import HfArg

from common import (
    batch_of, check_answer, decode, decode_mask, draws, encode_problems, export_model, learning_rate,
    load_model, load_problems, micro_batches, new_cache, open_run, parse_config, pass_table, peak_gib, refuse,
    report, save_checkpoint, stop_on_signal, write_line)

HERE = os.path.dirname(os.path.abspath(__file__))
# B prompts, G group, N = B*G rows, P prompt and T completion tokens, V ids to sample, D hidden


@dataclass
class Config:
    preset: str = HfArg(default="tiny", help="tiny (CPU demo), one_gpu or paper; any other flag overrides it")
    model: str = HfArg(default=f"{HERE}/tiny/rephrase/learner", help="folder or hub name of a causal LM")
    data: str = HfArg(default=f"{HERE}/tiny/rephrase/train.jsonl", help="rephrasings: by bench/rephrase.py")
    eval_data: list[str] = HfArg(default_factory=list, help="held-out problems, a table for each")
    out: str = HfArg(default="", help="output folder; empty: out/ta_grpo-TIME")
    resume: str = HfArg(default="", help="output folder of a run to go on with, its settings included")
    device: str = HfArg(default="", help="empty: cuda if there is one, else cpu")
    compute_dtype: Literal["", "float32", "bfloat16"] = HfArg(default="", help="empty: bfloat16 on cuda only")
    seed: int = HfArg(default=1, help="of the order of problems and sampling")
    prompt_format: str = HfArg(default="{question}", help="the user turn; literal braces are doubled")
    system: str = HfArg(default="", help="system turn, if any")
    chat_template: Literal["auto", "none"] = HfArg(default="auto", help="auto: the tokenizer's, if any")
    # rollout
    steps: int = HfArg(default=30, help="rollouts; 0 only evaluates")
    prompts: int = HfArg(default=8, help="B, questions per rollout, with all their phrasings (paper v1 128)")
    group: int = HfArg(default=8, help="G, completions per phrasing (paper 8)")
    max_prompt_tokens: int = HfArg(default=512, help="longer prompts are dropped and counted (release 512)")
    max_new_tokens: int = HfArg(default=48, help="T (release 3072)")
    temperature: float = HfArg(default=1., help="of sampling and scoring (release 1)")
    max_rows: int = HfArg(default=1024, help="rows decoded at once: bounds the cache's memory")
    # the method
    num_rephrasings: int = HfArg(default=3, help="N, most rephrasings of a question (paper v1 3); 0 is GRPO")
    anchor: Literal["original", "sampled", "cross"] = HfArg(default="original", help="of the ratio (D1)")
    pool: Literal["joint", "per_phrasing"] = HfArg(default="joint", help="of rewards (paper joint)")
    matched: bool = HfArg(default=False, help="control: the question in the place of each rephrasing")
    dynamic_sampling: int = HfArg(default=0, help="R, most rollouts a step; 0 keeps all (D6)")
    probe: int = HfArg(default=32, help="training questions to take diagnostics on at each evaluation")
    # update
    aggregation: Literal["sequence", "group", "token"] = HfArg(default="token", help="release token")
    clip_low: float = HfArg(default=.2, help="eps below 1 (paper .2)")
    clip_high: float = HfArg(default=.2, help="eps above 1 (paper .2)")
    kl_coef: float = HfArg(default=0., help="beta (paper v1 .01, release .001); 0 keeps no reference model")
    inner_epochs: int = HfArg(default=1, help="passes over a rollout (release 1)")
    minibatches: int = HfArg(default=1, help="optimizer steps per pass, cut by questions (release 2)")
    micro_tokens: int = HfArg(default=2048, help="tokens in one forward, padding included; no other effect")
    grad_checkpoint: bool = HfArg(default=False, help="recompute layers in backward: less memory, slower")
    lr: float = HfArg(default=1e-4, help="AdamW (paper 1e-6; 1e-4 suits the tiny model)")
    warmup: int = HfArg(default=5, help="steps of linear warm-up (release a tenth)")
    lr_schedule: Literal["constant", "linear", "cosine"] = HfArg(default="constant", help="release cosine")
    weight_decay: float = HfArg(default=0., help="of AdamW (release .01)")
    grad_clip: float = HfArg(default=1., help="largest gradient norm (release 1)")
    # evaluation and logs
    eval_every: int = HfArg(default=0, help="steps between evaluations; 0: before and after only")
    eval_problems: int = HfArg(default=300, help="the first so many problems of each file")
    eval_samples: int = HfArg(default=8, help="completions per problem (paper v1 32, release 128)")
    eval_temperature: float = HfArg(default=1., help="0 is greedy (release .6)")
    eval_top_p: float = HfArg(default=1., help="nucleus (release .95)")
    ks: list[int] = HfArg(default_factory=lambda: [1, 4, 8], help="pass@k to report, k <= eval_samples")
    save_every: int = HfArg(default=10, help="steps between checkpoints; 0: at the end only")


PAPER = dict(device="cuda",                         # v1 where known; the rest: the release or ours
    model="Qwen/Qwen3-1.7B", data="math_rephrased.jsonl",       # of MATH, by bench/rephrase.py
    eval_data=["math-ai/aime24::test", "math-ai/aime25::test", "math-ai/amc23::test"], ks=[1, 4, 16, 32],
    prompt_format="Reason step by step, put the final answer in \\boxed{{}} and stop there.\n{question}",
    steps=176, prompts=128, group=8, num_rephrasings=3, max_new_tokens=3072, kl_coef=.01, minibatches=2,
    lr=1e-6, warmup=18, lr_schedule="cosine", weight_decay=.01, micro_tokens=16384, grad_checkpoint=True,
    max_rows=256, eval_every=50, eval_problems=500, eval_samples=32, eval_temperature=.6, eval_top_p=.95)
PRESETS = dict(tiny=dict(eval_data=[f"{HERE}/tiny/rephrase/test.jsonl"]), paper=PAPER, one_gpu=PAPER | dict(
    steps=100, prompts=16, warmup=10, kl_coef=.001, max_rows=64, probe=16, eval_samples=8, ks=[1, 4, 8],
    eval_data=["math-ai/amc23::test"]))             # sizes are ours, not yet measured


# --- sampling and scoring: temperature and log-softmax stand in vocab_logps alone ---------------------------
def vocab_logps(hidden, head, V, temperature):
    """Log-probs of the next token over the ids that may be sampled: (n, D) -> (n, V).
    In the head's own precision, outside autocast: a bfloat16 head is wrong by several hundredths."""
    with torch.autocast(hidden.device.type, enabled=False):
        logits = F.linear(hidden.to(head.weight.dtype), head.weight, head.bias)[..., :V]
        return (logits / temperature).log_softmax(-1)


def sample(logp, u, top_p=1.):
    """Token by inverse CDF: log-probs (n, V), uniforms (n,) -> ids (n,). top_p 0 is greedy."""
    if top_p == 0:
        return logp.argmax(-1)
    p = logp.exp()
    if top_p < 1:                               # never the learner's in training: it scores what it samples
        ranked, order = p.sort(dim=-1, descending=True)
        ranked = ranked.masked_fill(ranked.cumsum(-1) - ranked >= top_p, 0)
        p = torch.zeros_like(p).scatter_(1, order, ranked)
    cdf = p.double().cumsum_(-1)                # float64: u < 1 can never point past the last id
    token = torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)[:, 0]
    return token.clamp(max=p.shape[1] - 1)      # only NaNs point past the end; the update will meet them too


def token_logps(hidden, targets, head, V, temperature, chunk_logits=2 ** 25):
    """Log-probs and entropies (no gradient) of targets: (M, D), (M,) -> (M,), (M,).
    In chunks that backward recomputes: never more than chunk_logits logits at once."""
    def chunk(hidden, targets):
        logp = vocab_logps(hidden, head, V, temperature)
        picked = logp.gather(1, targets[:, None])[:, 0]         # first: recomputation for backward ends here
        with torch.no_grad():
            return picked, -(logp.exp() * logp).sum(-1)
    parts = zip(hidden.split(max(1, chunk_logits // V)), targets.split(max(1, chunk_logits // V)))
    return [torch.cat(v) for v in zip(*(checkpoint(chunk, h, y, use_reentrant=False) for h, y in parts))]


# --- rollout ------------------------------------------------------------------------------------------------
@torch.no_grad()
def rollout(model, head, prompts, u, temperature, eos_ids, V, top_p=1., max_rows=1024):
    """One completion a row of the uniforms u (N, T); each prompt, a list of ids, serves N/B consecutive rows.
    Returns tokens, 0 past the end, and log-probs, both (N, longest), and lengths (N,) with the EOS."""
    (N, T), device, body, embed = u.shape, u.device, model.base_model, model.get_input_embeddings()
    tokens, G = torch.zeros(N, T, dtype=torch.long, device=device), N // len(prompts)
    lengths, logps = tokens.new_zeros(N), torch.zeros(N, T, dtype=head.weight.dtype, device=device)
    for first in range(0, N, max_rows):
        rows = torch.arange(first, min(first + max_rows, N), device=device)
        batch = prompts[first // G:(min(first + max_rows, N) - 1) // G + 1]
        P = max(map(len, batch))
        ids = torch.tensor([[0] * (P - len(p)) + p for p in batch], device=device)  # 0: masked by place
        mask = torch.tensor([[0] * (P - len(p)) + [1] * len(p) for p in batch], device=device)
        position, cache = (mask.cumsum(1) - 1).clamp(min=0), new_cache(P + T)
        hidden = body(inputs_embeds=embed(ids), attention_mask=mask, position_ids=position, cache=cache,
                      use_cache=True).last_hidden_state[:, -1]
        parent = rows // G - first // G
        cache.batch_select_indices(parent)                      # a prompt is read once, for all its rows
        hidden, position, done = hidden[parent], mask.sum(1)[parent], parent < 0      # none yet
        mask = torch.cat([mask[parent], mask.new_ones(len(rows), T)], 1).bool()
        for t in tqdm(range(T), desc="rollout", disable=None, leave=False):
            logp = vocab_logps(hidden, head, V, temperature)
            token = sample(logp, u[rows, t], top_p)
            tokens[rows, t] = token.where(~done, 0)
            logps[rows, t] = logp.gather(1, token[:, None])[:, 0].where(~done, 0)
            lengths[rows] += ~done
            done |= torch.isin(token, eos_ids)
            finished = int(done.sum()) if t % 16 == 0 or not u.is_cuda else 0   # on CUDA it waits for the GPU
            if finished == len(rows) or t == T - 1:
                break
            x = embed(token)
            if 8 * finished >= len(rows):                       # finished rows leave the batch and its cache
                keep = (~done).nonzero()[:, 0]
                cache.batch_select_indices(keep)
                rows, x, mask, position, done = (v[keep] for v in (rows, x, mask, position, done))
            seen = decode_mask(model.config, mask[:, :P + t + 1])
            hidden = body(inputs_embeds=x[:, None], attention_mask=seen, position_ids=(position + t)[:, None],
                          cache=cache, use_cache=True).last_hidden_state[:, -1]
    longest = int(lengths.max())
    return tokens[:, :longest], logps[:, :longest], lengths


# --- reward, advantage, loss --------------------------------------------------------------------------------
def reward(completion, gold):
    """1 if the final answer is right, else 0; a truncated completion is graded like any other."""
    return float(check_answer(completion, gold))


def advantages(rewards):
    """(B, G) -> (B, G), normalised in each group; exactly 0 in a dead group, one without spread."""
    dead = rewards.amin(1, True) == rewards.amax(1, True)       # the float mean of equal rewards may differ
    normed = (rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-6)
    return normed.masked_fill(dead, 0)


# --- the method ---------------------------------------------------------------------------------------------
def roll_pools(model, tokenizer, questions, group, purpose, max_new_tokens, **how):
    """Each question's pool, a list of rows, each a dict: `group` from every phrasing, its own first.  (1)"""
    rows = [p | dict(asked=q) for p in questions for q in p["phrasings"] for _ in range(group)]
    u = draws(*purpose, (len(rows), max_new_tokens)).to(how["eos_ids"].device)
    tokens, logps, lengths = rollout(model, prompts=[row["asked"] for row in rows[::group]], u=u, **how)
    texts, rest = decode(tokenizer, tokens, lengths), iter(rows)
    for row, text, ids, logp, n in zip(rows, texts, tokens, logps, lengths.tolist()):
        row |= dict(text=text, tokens=ids[:n], logps=logp[:n], reward=reward(text, row["answer"]))
    return [[next(rest) for _ in range(group * len(p["phrasings"]))] for p in questions]


def pool_advantages(rewards, sizes):
    """(N,) -> (N,), one normalisation over each pool, so many consecutive rows.  (2)"""
    return torch.cat([advantages(pool[None])[0] for pool in rewards.split(sizes)])


def anchored(rows, anchor):
    """What the update scores: each row's prompt and completion, its length, the sampler's log-probs (N, T),
    and whether that prompt is another than the row was sampled from.  (3)"""
    given, device = "asked" if anchor == "sampled" else "prompt", rows[0]["tokens"].device
    sequences = [torch.cat([torch.tensor(row[given], device=device), row["tokens"]]) for row in rows]
    lengths = torch.tensor([len(row["tokens"]) for row in rows], device=device)
    moved = torch.tensor([row[given] != row["asked"] for row in rows], device=device)
    return sequences, lengths, pad_sequence([row["logps"] for row in rows], batch_first=True), moved


def score(model, sequences, lengths, rows, V, temperature, bfloat16=False):
    """Log-probs, entropies and mask, each (n, longest), of the completions that end sequences[r], r in rows.
    One forward without cache. Padding is on the right, where causal attention never looks: no mask."""
    T, lengths = int(lengths.max()), lengths[rows]
    ids = pad_sequence([sequences[r] for r in rows], batch_first=True)
    start = torch.tensor([len(sequences[r]) for r in rows], device=ids.device) - lengths
    with torch.autocast(ids.device.type, torch.bfloat16, bfloat16, cache_enabled=False):
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    mask = torch.arange(T, device=ids.device) < lengths[:, None]
    i, t = mask.nonzero(as_tuple=True)
    h, y = hidden[i, start[i] + t - 1], ids[i, start[i] + t]    # the state before a token predicts it
    flat = token_logps(h, y, model.get_output_embeddings(), V, temperature)
    logp, entropy = (v.new_zeros(mask.shape).index_put((i, t), v) for v in flat)
    return logp, entropy, mask


def policy_loss(logp, old, advantage, mask, clip_low, clip_high):
    """Clipped surrogate, negated: (n, T) log-probs, (n,) advantages -> loss, not masked, and clipped.  (4)"""
    ratio, A = (logp - old).clamp(-20, 20).exp(), advantage[:, None]
    plain, clipped = ratio * A, ratio.clamp(1 - clip_low, 1 + clip_high) * A
    return -torch.min(plain, clipped), (clipped < plain) & mask.bool()


def k3(logp, ref):
    """KL(pi || ref) of each token, estimated by exp(d) - d - 1 >= 0, d = log ref - log pi."""
    d = (ref - logp).clamp(-20, 20)             # clamped before exp: one improbable token must not overflow
    return d.exp() - d - 1                      # as a loss, on policy, it pulls as KL(ref || pi) does


def reduce(lengths, group, aggregation):
    """What a token's loss weighs in the update, by row: (N,) -> (N,). Dead rows stay in the denominators."""
    if aggregation == "sequence":               # mean of row means: a token of a long row counts less
        return 1 / (len(lengths) * lengths.double())
    if aggregation == "group":                  # token mean in each group, then mean of groups
        return (group / len(lengths) / lengths.double().view(-1, group).sum(1)).repeat_interleave(group)
    return (1 / lengths.double().sum()).expand(len(lengths))    # token mean of the update


# --- evaluation ---------------------------------------------------------------------------------------------
def evaluate(model, tokenizer, problems, samples, ks, max_new_tokens, temperature, top_p, **how):
    """pass@1, its standard error and pass@k of sampled completions; temperature 0 is greedy, `how` rollout's.
    The draws are the same at every call: evaluations are paired, and their number changes no training."""
    asked = [p | dict(phrasings=[p["prompt"]]) for p in problems]
    pools = roll_pools(model, tokenizer, asked, samples, (0, 0, 2), max_new_tokens,
                       temperature=temperature or 1., top_p=top_p if temperature else 0., **how)
    return pass_table(torch.tensor([[row["reward"] > 0 for row in pool] for pool in pools]), ks)


def lexical_distance(rows, n=3):
    """Mean over pairs of rows of 1 - Jaccard of their sets of token n-grams: wording, not meaning."""
    grams = [set(zip(*(row[i:] for i in range(n)))) or {tuple(row)} for row in rows]
    return torch.tensor([1 - len(a & b) / len(a | b) for i, a in enumerate(grams) for b in grams[:i]]).mean()


@torch.no_grad()
def probe(cfg, actor, model, tokenizer, questions, V, **how):
    """Shares of groups all wrong (zero@) and all right (one@): the question's own G rows, the pool, and
    as many of its own (matched, since size alone revives groups). Lists: question, then rephrasings."""
    more = [p | dict(phrasings=p["phrasings"] + [p["prompt"]] * (len(p["phrasings"]) - 1)) for p in questions]
    pools = roll_pools(actor, tokenizer, more, cfg.group, (0, 0, 2), cfg.max_new_tokens, V=V,
                       temperature=cfg.temperature, **how)
    rows, words, shares = [], 0, {}
    for p, pool in zip(questions, pools):
        r, n = [row["reward"] for row in pool], cfg.group * len(p["phrasings"])
        for name, part in dict(own=r[:cfg.group], pool=r[:n], matched=r[:cfg.group] + r[n:]).items():
            for key, value in ((f"zero@{name}", 0), (f"one@{name}", 1)):
                shares[key] = shares.get(key, 0) + (set(part) == {value}) / len(pools)
        words += lexical_distance([row["tokens"].tolist() for row in pool[:cfg.group]]) / len(pools)
        rows += [row | dict(nth=i // cfg.group) for i, row in enumerate(pool[:n])]
    nth, (sequences, lengths, gap, _) = torch.tensor([row["nth"] for row in rows]), anchored(rows, "original")
    mask = torch.arange(gap.shape[1], device=gap.device) < lengths[:, None]
    for some in micro_batches(torch.arange(len(rows)), sequences, cfg.micro_tokens):
        logp = score(model, sequences, lengths, some, V, cfg.temperature, cfg.compute_dtype == "bfloat16")[0]
        gap[some] = logp - gap[some]                            # given q_0, less given q_n
    audit = [(gap[nth == k][mask[nth == k]], gap[nth == k].double().sum(1).softmax(0)) for k in nth.unique()]
    return shares | dict(
        problems=len(questions), lexical_distance=words, anchor_gap=[g.mean().item() for g, _ in audit],
        anchor_gap_95=[g.abs().quantile(.95).item() for g, _ in audit],
        anchor_ess=[1 / (len(w) * w.square().sum().item()) for _, w in audit])


# --- training -----------------------------------------------------------------------------------------------
def update(cfg, model, reference, optimizer, sequences, lengths, sampled, moved, sizes, A, V):
    """The optimizer steps of one rollout; returns what they met, token by token. A (N,) is on the CPU.
    moved (N,): rows given another prompt here than they were sampled from; sizes: rows of each question."""
    live = (A != 0) | (reference is not None)                   # a dead row has a KL at most
    A, old, ref = A.to(sampled), torch.zeros_like(sampled), torch.zeros_like(sampled)
    pools = torch.arange(len(A)).split(sizes)
    parts = [torch.cat([pools[q] for q in part])                # of whole pools
             for part in torch.arange(len(sizes)).chunk(cfg.minibatches)] * cfg.inner_epochs
    scoring = dict(V=V, temperature=cfg.temperature, bfloat16=cfg.compute_dtype == "bfloat16")
    with torch.no_grad():                                       # with one update, old is the new, detached
        for net, kept in [(model, old)] * (len(parts) > 1) + [(reference, ref)] * bool(cfg.kl_coef):
            for rows in micro_batches(live.nonzero()[:, 0], sequences, cfg.micro_tokens):
                kept[rows] = score(net, sequences, lengths, rows, **scoring)[0]
    met, norms = {k: [A[:0]] for k in ("logp_gap", "clip_frac", "entropy", "kl")}, []     # no row may be live
    for part in parts:
        share = torch.zeros_like(A)
        share[part] = reduce(lengths[part], cfg.group, cfg.aggregation).to(A)
        for rows in micro_batches(part[live[part]], sequences, cfg.micro_tokens):
            logp, entropy, mask = score(model, sequences, lengths, rows, **scoring)
            was, away = old[rows] if len(parts) > 1 else logp.detach(), moved[rows, None]
            gap = (was - sampled[rows]).abs()                   # rounding, but in rows that moved
            if cfg.anchor == "cross":
                was = sampled[rows].where(away, was)            # D1
            loss, clip = policy_loss(logp, was, A[rows], mask, cfg.clip_low, cfg.clip_high)
            kl = k3(logp, ref[rows]) * mask if reference is not None else torch.zeros_like(loss)
            ((loss * mask + cfg.kl_coef * kl).sum(1) * share[rows]).sum().backward()
            for name, value, at in zip(met, (gap, clip, entropy, kl), (mask & ~away, mask, mask, mask)):
                met[name].append(value.detach()[at])
        if live[part].any():                                    # else momentum alone would move the weights
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip).item())
            if 0 < norms[-1] < math.inf:
                optimizer.step()
            elif norms[-1] != 0:
                print(f"gradient norm {norms[-1]}: this update is skipped", flush=True)
            optimizer.zero_grad()
    met = {name: torch.cat(values) for name, values in met.items()}
    return met | dict(logp_gap_max=met["logp_gap"].sort().values[-1:], grad_norm=torch.tensor(norms),
                      skipped=sum(not math.isfinite(norm) for norm in norms))


def train(cfg, model, tokenizer, eos_ids, V, problems, eval_sets, out, state):
    """The loop. Leaves metrics.jsonl, samples.jsonl, state.pt and model/ in the folder `out`."""
    device, bfloat16, G = eos_ids.device, cfg.compute_dtype == "bfloat16", cfg.group
    reference = copy.deepcopy(model).requires_grad_(False) if cfg.kl_coef else None     # never changes
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, fused=True)
    start, lost, stop = state["step"] if state else 0, 0, stop_on_signal()
    if state:
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
    actor = copy.deepcopy(model) if bfloat16 else model                                 # what rolls out
    if cfg.grad_checkpoint:
        model.activation_checkpointing_enable()
    how = dict(head=model.get_output_embeddings(), eos_ids=eos_ids, V=V, max_rows=cfg.max_rows)
    tries = max(1, cfg.dynamic_sampling)

    for done in range(start, cfg.steps + 1):                    # what follows `done` steps, then the next one
        model.eval()
        for p, q in zip(actor.parameters(), model.parameters()):
            p.data = q.data.bfloat16() if bfloat16 else q.data  # parameters only: RoPE's buffers stay float32
        if done and (stop or done == cfg.steps or cfg.save_every and done % cfg.save_every == 0):
            save_checkpoint(out, dict(step=done, config=vars(cfg), model=model.state_dict(),
                                      optimizer=optimizer.state_dict()))
        if not stop and (done in (0, cfg.steps) or cfg.eval_every and done % cfg.eval_every == 0):
            if some := problems[:cfg.probe]:
                report(out, "eval", done, data="probe", **probe(cfg, actor, model, tokenizer, some, **how))
            for name, rows in eval_sets:
                report(out, "eval", done, data=name, **evaluate(
                    actor, tokenizer, rows, cfg.eval_samples, cfg.ks, cfg.max_new_tokens,
                    cfg.eval_temperature, cfg.eval_top_p, **how))
        if stop or done == cfg.steps:
            break

        step, clock, pools, place = done + 1, [time.time()], [], done * tries
        while len(pools) < cfg.prompts and place < step * tries:        # once, but for dynamic sampling  (D6)
            place += 1
            fresh = roll_pools(actor, tokenizer, batch_of(problems, cfg.prompts, place, cfg.seed), G,
                               (cfg.seed, place, 0), cfg.max_new_tokens, temperature=cfg.temperature, **how)
            pools += [x for x in fresh if not cfg.dynamic_sampling or len({row["reward"] for row in x}) > 1]
        pools = pools[:cfg.prompts] or fresh                    # no spread anywhere: nothing will be learned
        clock.append(time.time())
        batch, sizes = [row for pool in pools for row in pool], list(map(len, pools))
        rewards = torch.tensor([row["reward"] for row in batch])
        units = sizes if cfg.pool == "joint" else G             # what is normalised together
        A = pool_advantages(rewards.double(), units)
        model.train()                                           # for layer checkpointing; every dropout is 0
        sequences, lengths, sampled, moved = anchored(batch, cfg.anchor)
        optimizer.param_groups[0]["lr"] = learning_rate(step, cfg.steps, cfg.lr, cfg.warmup, cfg.lr_schedule)
        met = update(cfg, model, reference, optimizer, sequences, lengths, sampled, moved, sizes, A, V)
        clock.append(time.time())

        report(out, "step", step, peak_gib=peak_gib(device), reward=rewards, length=lengths, **met,
               dead=torch.stack([a.eq(0).all() for a in A.split(units)]),
               truncated=~torch.isin(torch.stack([s[-1] for s in sequences]), eos_ids),
               reward_own=torch.cat([r[:G] for r in rewards.split(sizes)]), phrasings=len(A) / G / len(sizes),
               rollouts=place - done * tries, tokens_per_s=lengths.sum().item() / (clock[-1] - clock[0]),
               **{f"seconds_{k}": b - a for k, a, b in zip(("rollout", "update"), clock, clock[1:])})
        for i in (0, -1):
            write_line(out, "samples.jsonl", step=step, prompt=tokenizer.decode(batch[i]["asked"]),
                       completion=batch[i]["text"], answer=batch[i]["answer"], reward=rewards[i].item())
        lost = lost + 1 if met["skipped"] else 0
        stop += ["no finite gradient"] * (lost == 3)
    if cfg.steps:
        export_model(model, tokenizer, out)
    if lost == 3:
        refuse(f"three steps in a row met a gradient that is not finite, which ends the run; from --model "
               f"{out}/model try a lower --lr, or --compute_dtype float32")


def add_phrasings(cfg, model, tokenizer, problems):
    """problem["phrasings"]: the prompts of its pool, its own first, then those of at most N rephrasings."""
    for p in problems:
        p["phrasings"] = [p["prompt"]]
    found = [dict(question=r["text"], of=p["phrasings"]) for p in problems for r in p["rephrasings"]
             if cfg.num_rephrasings]
    for r in encode_problems(cfg, model, tokenizer, [("rephrasings", found)])[0][1] if found else []:
        if len(r["of"]) <= cfg.num_rephrasings:
            r["of"].append(r["of"][0] if cfg.matched else r["prompt"])
    counts = [len(p["phrasings"]) for p in problems]
    print("questions by number of phrasings:", {n: counts.count(n) for n in sorted(set(counts))})


def main(argv=None):
    cfg, state = parse_config(Config, PRESETS, argv)
    sets = [(name, load_problems(name)) for name in (cfg.data, *cfg.eval_data)]
    if cfg.num_rephrasings and not any(p["rephrasings"] for p in sets[0][1]):
        refuse(f"{cfg.data}: no question has rephrasings; make them with bench/rephrase.py")
    model, tokenizer, eos_ids, V = load_model(cfg.model, cfg.device)
    (_, problems), *eval_sets = encode_problems(cfg, model, tokenizer, sets)
    add_phrasings(cfg, model, tokenizer, problems)
    out = open_run(cfg, "ta_grpo", model, tokenizer.decode(problems[0]["prompt"]), state)
    train(cfg, model, tokenizer, eos_ids, V, problems, eval_sets, out, state)


if __name__ == "__main__":
    main()
