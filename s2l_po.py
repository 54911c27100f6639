r"""S2L-PO (arXiv 2605.30789): a small frozen model writes part of each group, less and less of it.

GRPO learns only where the completions of a prompt differ in reward, and a learner that is sure of a wrong way
samples little else. Hotter sampling is noise token by token; a smaller model of its family errs in ways of
its own, and consistently. S2L-PO lets such an explorer, which never changes, write part of each group: all of
it at first, ever less, nothing from step N on. The rewards of a group are normalised together, and the
learner is trained on all its rows. All else is plain GRPO.

At step i = 1, 2, .. with G rows a group and N annealing steps:
    alpha_i = 1 - (i - 1) / (N - 1) for i <= N, else 0      the explorer's share              (Algorithm 1)
    G_w = ceil(alpha_i G) rows of the explorer pi_w,  G - G_w of the learner pi               (Algorithm 1)
    A_i = (R_i - mean R) / (std R + 1e-6), R the rewards of all G rows of a prompt            (1)
    J   = mean over tokens of min(r A, clip(r, 1-eps, 1+eps) A) - beta KL, r = pi / pi_old    (2)
pi_old is the learner before the update, whoever wrote the row: D2. In a rollout's first, r = 1: right answers
that it finds next to impossible are imitated, wrong ones pushed away; over pi_w r would be near 0.

The paper's counts, and a group of which the explorer wrote the first four rows:
    >>> [explorer_count(step, 16, "linear", 8) for step in range(1, 10)]
    [16, 14, 12, 10, 7, 5, 3, 0, 0]
    >>> advantages(torch.tensor([[1, 0, 0, 0, 1, 1, 0, 1]]).double()).round(decimals=3).tolist()
    [[0.935, -0.935, -0.935, -0.935, 0.935, 0.935, -0.935, 0.935]]

Where paper and released code part or the paper is silent, and what this file does:
    D1 both sources in one group (Algorithm 1); the released scripts alternate groups of the one and of the
       other, of different prompts, each normalised alone: left out
    D2 pi_old on explorer rows is the learner, as in the release; --ratio behaviour has pi_w, as Eq. 2,
       --ratio tis weighs the loss by min(pi_old / pi_w, 2): the release has that and does not use it
    D3 a ratio per token and the mean over tokens; Eq. 2 has both by row, the release's mean is by micro-batch
    D4 minibatches are cut by prompts: all schedules make as many updates; the release's 2 to 5 x GRPO's
    D5 one reward for both, 1 or 0; the release grades one leniently 1 or 0, the other strictly 1 or -1
    D6 the explorer samples as the run goes; the release reads 32 rows a prompt from a file, cut to 4096
    D7 counts in integers: ceil of floats is one off in places (N 13, G 12); N = 1 is one step of explorer
    D8 a row ends at any EOS of either model, whoever writes it
    D9 --schedule step switches at N / 2 (paper: not given); --explorer_rows positive, without A < 0, is ours
Left out: several GPUs, vLLM, LoRA, an entropy bonus; of evaluation top-k 20, presence penalty, 38,912 tokens.

    python s2l_po.py                      a minute on a laptop CPU: held-out accuracy from .25 to .7 or more
    python s2l_po.py --schedule off       the same run by plain GRPO, which ends below .6
    python s2l_po.py --preset one_gpu     a 1.7B model on one 80 GB GPU (`pip install datasets` for its data)
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
    model: str = HfArg(default=f"{HERE}/tiny/explore/learner", help="folder or hub name of the learner")
    data: str = HfArg(default=f"{HERE}/tiny/explore/train.jsonl", help="file, or hub owner/name:config:split")
    eval_data: list[str] = HfArg(default_factory=list, help="held-out problems, a table for each")
    out: str = HfArg(default="", help="output folder; empty: out/s2l_po-TIME")
    resume: str = HfArg(default="", help="output folder of a run to go on with, its settings included")
    device: str = HfArg(default="", help="empty: cuda if there is one, else cpu")
    compute_dtype: Literal["", "float32", "bfloat16"] = HfArg(default="", help="empty: bfloat16 on cuda only")
    seed: int = HfArg(default=1, help="of the order of problems and sampling")
    prompt_format: str = HfArg(default="{question}", help="the user turn; literal braces are doubled")
    system: str = HfArg(default="", help="system turn, if any")
    chat_template: Literal["auto", "none"] = HfArg(default="auto", help="auto: the tokenizer's, if any")
    # rollout
    steps: int = HfArg(default=48, help="rollouts (paper 16); 0 only evaluates")
    prompts: int = HfArg(default=16, help="B, prompts per rollout (paper 1024)")
    group: int = HfArg(default=8, help="G, completions per prompt (release 16)")
    max_prompt_tokens: int = HfArg(default=512, help="longer prompts are dropped and counted (paper 512)")
    max_new_tokens: int = HfArg(default=48, help="T (paper 4096)")
    temperature: float = HfArg(default=1., help="of the learner, sampling and scoring (release 1)")
    max_rows: int = HfArg(default=1024, help="rows decoded at once: bounds the cache's memory")
    # the method
    explorer: str = HfArg(default=f"{HERE}/tiny/explore/explorer", help="frozen, of the learner's token ids")
    schedule: Literal["linear", "constant", "step", "off"] = HfArg(default="linear", help="off is plain GRPO")
    anneal_steps: int = HfArg(default=0, help="N of linear; step switches at N / 2; 0: steps // 2 (paper 8)")
    constant_count: int = HfArg(default=4, help="G_w of --schedule constant; G: explorer only")
    explorer_temperature: float = HfArg(default=1., help="of the explorer's sampling (release .7)")
    explorer_top_p: float = HfArg(default=1., help="nucleus of the explorer's sampling (release .95)")
    explorer_rows: Literal["all", "positive"] = HfArg(default="all", help="positive: without A < 0 (D9)")
    ratio: Literal["recompute", "tis", "behaviour"] = HfArg(default="recompute", help="of explorer rows (D2)")
    # update
    aggregation: Literal["sequence", "group", "token"] = HfArg(default="token", help="release token (D3)")
    clip_low: float = HfArg(default=.2, help="eps below 1 (release .2)")
    clip_high: float = HfArg(default=.2, help="eps above 1 (release .2)")
    dual_clip: float = HfArg(default=0., help="bound of the ratio where A < 0 (release 3); 0: none")
    kl_coef: float = HfArg(default=0., help="beta (paper .001); 0 keeps no reference model in memory")
    inner_epochs: int = HfArg(default=1, help="passes over a rollout (release 1)")
    minibatches: int = HfArg(default=1, help="optimizer steps per pass, cut by prompts (paper 64)")
    micro_tokens: int = HfArg(default=2048, help="tokens in one forward, padding included; no other effect")
    grad_checkpoint: bool = HfArg(default=False, help="recompute layers in backward: less memory, slower")
    lr: float = HfArg(default=3e-4, help="AdamW (release 1e-6; 3e-4 suits the tiny model)")
    warmup: int = HfArg(default=5, help="steps of linear warm-up (release 0)")
    lr_schedule: Literal["constant", "linear", "cosine"] = HfArg(default="constant", help="release constant")
    weight_decay: float = HfArg(default=0., help="of AdamW (release .01)")
    grad_clip: float = HfArg(default=1., help="largest gradient norm (release 1)")
    # evaluation and logs
    eval_every: int = HfArg(default=0, help="steps between evaluations; 0: before and after only")
    eval_problems: int = HfArg(default=300, help="the first so many problems of each file")
    eval_samples: int = HfArg(default=8, help="completions per problem (paper 16)")
    eval_temperature: float = HfArg(default=1., help="0 is greedy (release .7)")
    eval_top_p: float = HfArg(default=1., help="nucleus (release .8)")
    ks: list[int] = HfArg(default_factory=lambda: [1, 4, 8], help="pass@k to report, k <= eval_samples")
    save_every: int = HfArg(default=10, help="steps between checkpoints; 0: at the end only")


PAPER = dict(device="cuda",                         # section 4.1, appendix C; the rest: the release or ours
    model="Qwen/Qwen3-8B-Base", explorer="Qwen/Qwen3-1.7B-Base", data="haizhongzheng/DAPO-Math-17K-cleaned",
    eval_data=["math-ai/aime24::test", "math-ai/aime25::test", "HuggingFaceH4/MATH-500::test"], ks=[1, 16],
    prompt_format="{question}\nPlease reason step by step, and put your final answer within \\boxed{{}}.",
    steps=16, prompts=1024, group=16, max_new_tokens=4096, explorer_temperature=.7, explorer_top_p=.95,
    dual_clip=3., kl_coef=.001, minibatches=64, lr=1e-6, warmup=0, weight_decay=.01, micro_tokens=16384,
    grad_checkpoint=True, max_rows=256, save_every=1, eval_every=4, eval_problems=500, eval_samples=16,
    eval_temperature=.7, eval_top_p=.8)
PRESETS = dict(tiny=dict(eval_data=[f"{HERE}/tiny/explore/test.jsonl"]), paper=PAPER, one_gpu=PAPER | dict(
    model="Qwen/Qwen3-1.7B-Base", explorer="Qwen/Qwen3-0.6B-Base", steps=100, prompts=32, group=8,
    minibatches=2, max_new_tokens=2048, max_rows=64, save_every=10, eval_every=25, eval_samples=4, ks=[1, 4],
    eval_problems=100, eval_data=["HuggingFaceH4/MATH-500::test"]))    # sizes are ours, not yet measured


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


# --- the method ---------------------------------------------------------------------------------------------
def explorer_count(step, G, schedule, anneal, constant=0):
    """G_w, the explorer's rows in a group at step 1, 2, …; anneal is N.  (Algorithm 1)"""
    if schedule == "linear":                    # ceil(alpha_i G) in integers: D7
        return -(-max(0, anneal - step) * G // (anneal - 1)) if anneal > 1 else G * (step <= anneal)
    if schedule == "step":                      # D9
        return G * (2 * step <= anneal)
    return constant if schedule == "constant" else 0


def nucleus(logp, top_p):
    """Log-probs of the likeliest tokens that make up top_p, renormalised, the others -inf: both (n, V)."""
    if not 0 < top_p < 1:
        return logp
    ranked, order = logp.sort(dim=-1, descending=True)
    ranked = ranked.masked_fill(ranked.exp().cumsum(-1) - ranked.exp() >= top_p, -torch.inf)
    return logp.scatter(1, order, ranked).log_softmax(-1)


def join(parts, B):
    """Rollouts as one: each of B groups has the rows of the first, then of the next."""
    T = max(tokens.shape[1] for tokens, _, _ in parts)
    kinds = zip(*((*(F.pad(v, (0, T - v.shape[1])) for v in part[:2]), part[2]) for part in parts))
    return [torch.cat([v.view(B, -1, *v.shape[1:]) for v in kind], 1).flatten(0, 1) for kind in kinds]


def denominator(own, sampled, foreign, ratio):
    """log pi_old and the weight of the loss, (n, T) without gradient. own: the learner's log-probs before the
    update; sampled: those the tokens were drawn with; foreign (n, 1): the explorer's rows."""
    tis = (own - sampled).clamp(-20, 20).exp().clamp(max=2)
    weight = tis.where(foreign & (ratio == "tis"), 1)
    return sampled.where(foreign, own) if ratio == "behaviour" else own, weight                       # (2)


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
            logp = nucleus(vocab_logps(hidden, head, V, temperature), top_p)
            token = sample(logp, u[rows, t], float(top_p > 0))
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


def policy_loss(logp, old, advantage, mask, clip_low, clip_high, dual_clip=0.):
    """Clipped surrogate, negated: (n, T) log-probs, (n,) advantages -> loss, not masked, and clipped.  (2)"""
    ratio, A = (logp - old).clamp(-20, 20).exp(), advantage[:, None]
    plain, clipped = ratio * A, ratio.clamp(1 - clip_low, 1 + clip_high) * A
    gain = torch.min(plain, clipped)
    if dual_clip:                               # else a bad row's ratio has no bound
        gain = gain.max(dual_clip * A).where(A < 0, gain)
    return -gain, (gain != plain) & mask.bool()


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
    u = draws(0, 0, 2, (len(problems) * samples, max_new_tokens))
    tokens, _, lengths = rollout(
        model, prompts=[p["prompt"] for p in problems], u=u.to(how["eos_ids"].device),
        temperature=temperature or 1., top_p=top_p if temperature else 0., **how)
    texts = decode(tokenizer, tokens, lengths)
    right = [reward(text, problems[i // samples]["answer"]) > 0 for i, text in enumerate(texts)]
    return pass_table(torch.tensor(right).view(-1, samples), ks)


# --- training -----------------------------------------------------------------------------------------------
def update(cfg, model, reference, optimizer, sequences, lengths, sampled, foreign, A, V):
    """The optimizer steps of one rollout; returns what they met, token by token. A (N,) is on the CPU."""
    live = (A != 0) | (reference is not None)                   # a dead row has a KL at most
    A, old, ref = A.to(sampled), torch.zeros_like(sampled), torch.zeros_like(sampled)
    parts = list(torch.arange(len(A)).chunk(cfg.minibatches)) * cfg.inner_epochs         # of whole groups
    scoring = dict(V=V, temperature=cfg.temperature, bfloat16=cfg.compute_dtype == "bfloat16")
    with torch.no_grad():                                       # with one update, old is the new, detached
        for net, kept in [(model, old)] * (len(parts) > 1) + [(reference, ref)] * bool(cfg.kl_coef):
            for rows in micro_batches(live.nonzero()[:, 0], sequences, cfg.micro_tokens):
                kept[rows] = score(net, sequences, lengths, rows, **scoring)[0]
    met, norms = {k: [A[:0]] for k in ("logp_gap", "clip_frac", "entropy", "kl", "whose")}, []  # may stay so
    for part in parts:
        share = torch.zeros_like(A)
        share[part] = reduce(lengths[part], cfg.group, cfg.aggregation).to(A)
        for rows in micro_batches(part[live[part]], sequences, cfg.micro_tokens):
            logp, entropy, mask = score(model, sequences, lengths, rows, **scoring)
            own = old[rows] if len(parts) > 1 else logp.detach()
            was, weight = denominator(own, sampled[rows], foreign[rows, None], cfg.ratio)
            loss, clip = policy_loss(logp, was, A[rows], mask, cfg.clip_low, cfg.clip_high, cfg.dual_clip)
            kl = k3(logp, ref[rows]) * mask if reference is not None else torch.zeros_like(loss)
            ((loss * weight * mask + cfg.kl_coef * kl).sum(1) * share[rows]).sum().backward()
            whose = foreign[rows, None].expand_as(mask)
            for name, value in zip(met, ((own - sampled[rows]).abs(), clip, entropy, kl, whose)):
                met[name].append(value.detach()[mask])
        if live[part].any():                                    # else momentum alone would move the weights
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip).item())
            if 0 < norms[-1] < math.inf:
                optimizer.step()
            elif norms[-1] != 0:
                print(f"gradient norm {norms[-1]}: this update is skipped", flush=True)
            optimizer.zero_grad()
    met = {name: torch.cat(values) for name, values in met.items()}
    whose = met.pop("whose") > 0
    met |= {f"{source}_{k}": v[its] for source, its in (("explorer", whose), ("learner", ~whose))
            for k, v in met.items()}
    met["logp_gap"] = met["learner_logp_gap"]                   # there it is rounding alone
    return met | dict(logp_gap_max=met["logp_gap"].sort().values[-1:], grad_norm=torch.tensor(norms),
                      skipped=sum(not math.isfinite(norm) for norm in norms))


def train(cfg, model, tokenizer, eos_ids, V, problems, eval_sets, out, state, explorer=None):
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
    its_how = how | dict(temperature=cfg.explorer_temperature, top_p=cfg.explorer_top_p)
    if explorer:
        its_how["head"] = copy.deepcopy(explorer.get_output_embeddings())       # float32, as the learner's
        for p in explorer.parameters():
            p.data = p.data.bfloat16() if bfloat16 else p.data

    for done in range(start, cfg.steps + 1):                    # what follows `done` steps, then the next one
        model.eval()
        for p, q in zip(actor.parameters(), model.parameters()):
            p.data = q.data.bfloat16() if bfloat16 else q.data  # parameters only: RoPE's buffers stay float32
        if done and (stop or done == cfg.steps or cfg.save_every and done % cfg.save_every == 0):
            save_checkpoint(out, dict(step=done, config=vars(cfg), model=model.state_dict(),
                                      optimizer=optimizer.state_dict()))
        if not stop and (done in (0, cfg.steps) or cfg.eval_every and done % cfg.eval_every == 0):
            for name, rows in eval_sets:
                report(out, "eval", done, data=name, **evaluate(
                    actor, tokenizer, rows, cfg.eval_samples, cfg.ks, cfg.max_new_tokens,
                    cfg.eval_temperature, cfg.eval_top_p, **how))
        if stop or done == cfg.steps:
            break

        step, clock = done + 1, [time.time()]
        batch = [p for p in batch_of(problems, cfg.prompts, step, cfg.seed) for _ in range(G)]
        prompts = [p["prompt"] for p in batch[::G]]
        w = explorer_count(step, G, cfg.schedule, cfg.anneal_steps, cfg.constant_count)
        u, its_u = (draws(cfg.seed, step, stream, (len(batch), cfg.max_new_tokens)).to(device).view(
            cfg.prompts, G, -1) for stream in (0, 6))           # a row keeps its numbers, whatever the counts
        parts = [rollout(net, prompts=prompts, u=part.flatten(0, 1), **its) for net, part, its in (
            (explorer, its_u[:, :w], its_how), (actor, u[:, w:], how | dict(temperature=cfg.temperature)))
            if part.numel()]                                    # who has no row does not run
        tokens, sampled, lengths = join(parts, cfg.prompts)
        foreign = torch.arange(len(batch), device=device) % G < w
        clock.append(time.time())
        texts = decode(tokenizer, tokens, lengths)
        rewards = torch.tensor([reward(text, p["answer"]) for text, p in zip(texts, batch)])
        A = advantages(rewards.double().view(-1, G)).flatten()                                        # (1)
        if cfg.explorer_rows == "positive":                     # D9: the others keep denominators and KL
            A[foreign.cpu() & (A < 0)] = 0
        clock.append(time.time())
        model.train()                                           # for layer checkpointing; every dropout is 0
        sequences = [torch.cat([torch.tensor(p["prompt"], device=device), row[:n]])
                     for p, row, n in zip(batch, tokens, lengths.tolist())]
        optimizer.param_groups[0]["lr"] = learning_rate(step, cfg.steps, cfg.lr, cfg.warmup, cfg.lr_schedule)
        met = update(cfg, model, reference, optimizer, sequences, lengths, sampled, foreign, A, V)
        clock.append(time.time())

        for source, net, its in (("explorer", explorer, slice(w)), ("learner", model, slice(w, G))):
            r, read = rewards.view(-1, G)[:, its], lengths.view(-1, G)[:, its].sum().item()
            size = net.num_parameters() if read else 0
            met |= {f"{source}_reward": r, f"{source}_tokens": read,    # dead: no spread among its own rows
                    f"{source}_dead": (r == r[:, :1]).all(1)[:read],    # flops: each prompt is read once, and
                    f"{source}_flops": 2 * size * (read + sum(map(len, prompts)))}      # no attention counted
        count, ended = lengths.sum().item(), torch.isin(tokens.gather(1, lengths[:, None] - 1), eos_ids)
        report(out, "step", step, peak_gib=peak_gib(device), reward=rewards, dead=A.view(-1, G).eq(0).all(1),
               correct=rewards > 0, length=lengths, truncated=~ended, explorer_count=w, **met,
               tokens_per_s=count / (clock[-1] - clock[0]),
               **{f"seconds_{k}": b - a for k, a, b in zip(("rollout", "grade", "update"), clock, clock[1:])})
        for i in (0, -1):                                       # one of each source, where there are two
            write_line(out, "samples.jsonl", step=step, prompt=tokenizer.decode(batch[i]["prompt"]),
                       completion=texts[i], answer=batch[i]["answer"], reward=rewards[i].item(),
                       explorer=foreign[i].item())
        lost = lost + 1 if met["skipped"] else 0
        stop += ["no finite gradient"] * (lost == 3)
    if cfg.steps:
        export_model(model, tokenizer, out)
    if lost == 3:
        refuse(f"three steps in a row met a gradient that is not finite, which ends the run; from --model "
               f"{out}/model try a lower --lr, or --compute_dtype float32")


def main(argv=None):
    cfg, state = parse_config(Config, PRESETS, argv)
    cfg.anneal_steps = cfg.anneal_steps or max(1, cfg.steps // 2)       # now a number: resuming keeps N
    if not (cfg.explorer_temperature > 0 < cfg.explorer_top_p <= 1 and cfg.constant_count <= cfg.group
            and (cfg.dual_clip > 1 or cfg.dual_clip == 0)):
        refuse("--explorer_temperature must be above 0, --explorer_top_p in (0, 1], --constant_count at most "
               "--group, --dual_clip 0 or above 1")
    sets, explorer = [(name, load_problems(name)) for name in (cfg.data, *cfg.eval_data)], None
    model, tokenizer, eos_ids, V = load_model(cfg.model, cfg.device)
    if cfg.schedule != "off":
        explorer, its_tokenizer, its_eos, its_V = load_model(cfg.explorer, cfg.device)
        if its_tokenizer.get_vocab() != tokenizer.get_vocab() or its_V != V:
            refuse(f"--explorer {cfg.explorer}: its token ids are not those of --model {cfg.model}")
        explorer.requires_grad_(False)
        print(f"explorer: {explorer.num_parameters() / 1e9:.2f}e9 parameters beside the memory below")
        eos_ids = torch.cat([eos_ids, its_eos]).unique()                                        # D8
        sets[:1] = encode_problems(cfg, explorer, tokenizer, sets[:1])      # what fits its positions, too
    (_, problems), *eval_sets = encode_problems(cfg, model, tokenizer, sets)
    out = open_run(cfg, "s2l_po", model, tokenizer.decode(problems[0]["prompt"]), state)
    train(cfg, model, tokenizer, eos_ids, V, problems, eval_sets, out, state, explorer)


if __name__ == "__main__":
    main()
