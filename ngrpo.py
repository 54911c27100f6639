r"""N-GRPO (arXiv 2606.10768; NGRPO is another paper): rollouts that now and then read a blend of words.

GRPO learns only where the completions of a prompt differ in reward, and sampling is their only difference.
N-GRPO perturbs what the model reads as well: at a random tenth of the steps the token is the argmax, and what
is read next is not its embedding but a mixture of it and its nearest neighbours in the embedding table,
weighted by the policy's own logits. That stays near a real word, so the text makes sense. The update scores
the same completions under the same mixed inputs. All else is plain GRPO.

At step t of a row, with logits z, temperature tau and the input embedding table E:
    m_t ~ Bernoulli(rho)                           the gate, from its own random numbers   (section 3.3)
    v*  = argmax z                                 the anchor; where m_t = 1 it is the token o_t   (6)
    C   = v* and the K-1 tokens with the largest cos(E[u], E[v*])                                  (5, 7, 8)
    a_c = exp(z_c / tau) / sum_{u in C} exp(z_u / tau)                                             (9)
    next input: sum_{c in C} a_c E[c] where m_t = 1, else E[o_t], o_t ~ softmax(z / tau)           (10, 11)
    A_i = (R_i - mean R) / (std R + 1e-6), R the rewards of a prompt's G rows                       (12)
    J   = 1/G sum_i 1/|o_i| sum_t [min(r A, clip(r, 1-eps, 1+eps) A) - beta KL],                   (13)
          r = pi(o_t | h) / pi_old(o_t | h), h being the history with its mixed inputs rebuilt

Three words in two dimensions. The argmax is word 0, its neighbour by cosine word 1; they blend like this:
    >>> E, z = torch.tensor([[1., 0.], [.8, .6], [0., 1.]]), torch.tensor([[2., 1., 0.]])
    >>> candidates = nearest(E, z.argmax(-1), 2)
    >>> weight = z.gather(1, candidates).softmax(-1)
    >>> candidates.tolist(), [round(w, 3) for w in weight[0].tolist()]
    ([[0, 1]], [0.731, 0.269])
    >>> [round(x, 3) for x in mix(torch.nn.Embedding.from_pretrained(E), candidates, weight)[0].tolist()]
    [0.946, 0.161]

Where paper and released code part or the paper is silent, and what this file does:
    D1 the token of a mixed step is the anchor (Eq. 6); the release emits a sampled one (--mix_label sampled)
    D2 weights by Eq. 9; the release's second softmax, of probabilities, holds the anchor at .58 or less (K 3)
    D3 one temperature samples, mixes and scores: .7 in the paper's table, 1 in the release
    D4 neighbours in the input table, as the text has it; the release searches the output matrix
    D5 neighbours are ids that may be sampled; the weights are constants, the gradient reaches the rows E[c]
    D6 mixed steps stay in the loss (Eq. 13), though their token was not drawn: no true likelihood ratio there
    D7 mean of row means (Eq. 13); the release averages over tokens (--aggregation token)
    D8 clip .2, k3 KL, unbiased std and its 1e-6 are the release's, the paper gives none; no dual clip
    D9 mixing goes on after </think>; answers are compared by answers.py, not by Math-Verify; no GPQA
    D10 pass@k is unbiased (Eq. 15), of the last weights; the paper's resamples, of the best by AIME24
Left out: several GPUs, vLLM, LoRA, a value model, an entropy bonus.

    python ngrpo.py                       a minute on a laptop CPU: held-out accuracy from .3 to .9
    python ngrpo.py --mix_rate 0          the same run by plain GRPO
    python ngrpo.py --preset one_gpu      a 1.5B model on one 80 GB GPU (`pip install datasets` for its data)
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
    model: str = HfArg(default=f"{HERE}/tiny/learner", help="folder or hub name of a causal language model")
    data: str = HfArg(default=f"{HERE}/tiny/easy_train.jsonl", help="file, or hub owner/name:config:split")
    eval_data: list[str] = HfArg(default_factory=list, help="held-out problems, a table for each")
    out: str = HfArg(default="", help="output folder; empty: out/ngrpo-TIME")
    resume: str = HfArg(default="", help="output folder of a run to go on with, its settings included")
    device: str = HfArg(default="", help="empty: cuda if there is one, else cpu")
    compute_dtype: Literal["", "float32", "bfloat16"] = HfArg(default="", help="empty: bfloat16 on cuda only")
    seed: int = HfArg(default=1, help="of the order of problems, sampling and gates")
    prompt_format: str = HfArg(default="{question}", help="the user turn; literal braces are doubled")
    system: str = HfArg(default="", help="system turn, if any")
    chat_template: Literal["auto", "none"] = HfArg(default="auto", help="auto: the tokenizer's, if any")
    # rollout
    steps: int = HfArg(default=50, help="rollouts; 0 only evaluates")
    prompts: int = HfArg(default=16, help="B, prompts per rollout (paper 64)")
    group: int = HfArg(default=8, help="G, completions per prompt (paper 4)")
    max_prompt_tokens: int = HfArg(default=512, help="longer prompts are dropped and counted (paper 4096)")
    max_new_tokens: int = HfArg(default=48, help="T (paper 8192)")
    temperature: float = HfArg(default=1., help="tau of sampling, mixing and scoring (paper .7)")
    max_rows: int = HfArg(default=1024, help="rows decoded at once: bounds the cache's memory")
    # the method
    mix_rate: float = HfArg(default=.1, help="rho, share of steps that mix (paper .1); 0 is plain GRPO")
    mix_k: int = HfArg(default=3, help="K, candidates in a mixture, the anchor included (paper 3)")
    mix_metric: Literal["cosine", "l2", "l1"] = HfArg(default="cosine", help="of nearness (paper cosine)")
    mixer: Literal["neighbour", "soft", "gaussian"] = HfArg(default="neighbour", help="others: baselines")
    mix_label: Literal["anchor", "sampled"] = HfArg(default="anchor", help="token of a mixed step (D1)")
    mix_at_eval: bool = HfArg(default=False, help="mix in evaluation too (the paper's ablation)")
    # update
    objective: Literal["grpo", "gspo"] = HfArg(default="grpo", help="a ratio per token, or per row (N-GSPO)")
    aggregation: Literal["sequence", "group", "token"] = HfArg(default="sequence", help="paper sequence")
    clip_low: float = HfArg(default=.2, help="eps below 1 (release .2)")
    clip_high: float = HfArg(default=.2, help="eps above 1 (release .2)")
    kl_coef: float = HfArg(default=0., help="beta (paper .001); 0 keeps no reference model in memory")
    inner_epochs: int = HfArg(default=1, help="passes over a rollout (release 1)")
    minibatches: int = HfArg(default=1, help="optimizer steps per pass, cut by prompts (release 4)")
    micro_tokens: int = HfArg(default=2048, help="tokens in one forward, padding included; no other effect")
    grad_checkpoint: bool = HfArg(default=False, help="recompute layers in backward: less memory, slower")
    lr: float = HfArg(default=2e-4, help="AdamW (paper 1e-6; 2e-4 suits the tiny model)")
    warmup: int = HfArg(default=5, help="steps of linear warm-up (release 0)")
    lr_schedule: Literal["constant", "linear", "cosine"] = HfArg(default="constant", help="release constant")
    weight_decay: float = HfArg(default=0., help="of AdamW (release .01)")
    grad_clip: float = HfArg(default=1., help="largest gradient norm (release 1)")
    # evaluation and logs
    eval_every: int = HfArg(default=0, help="steps between evaluations; 0: before and after only")
    eval_problems: int = HfArg(default=300, help="the first so many problems of each file")
    eval_samples: int = HfArg(default=8, help="completions per problem (paper 32)")
    eval_temperature: float = HfArg(default=1., help="0 is greedy (paper .6)")
    eval_top_p: float = HfArg(default=1., help="nucleus (paper .95)")
    ks: list[int] = HfArg(default_factory=lambda: [1, 4, 8], help="pass@k to report, k <= eval_samples")
    save_every: int = HfArg(default=10, help="steps between checkpoints; 0: at the end only")


PAPER = dict(device="cuda",                         # Table 6, appendix A; the rest: the release or ours
    model="deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", data="agentica-org/DeepScaleR-Preview-Dataset",
    eval_data=["math-ai/aime25::test", "math-ai/amc23::test", "HuggingFaceH4/MATH-500::test"], ks=[1, 16, 32],
    prompt_format="{question} Let's think step by step and output the final answer within \\boxed{{}}.",
    steps=629, prompts=64, group=4, max_prompt_tokens=4096, max_new_tokens=8192, temperature=.7, kl_coef=.001,
    minibatches=4, lr=1e-6, warmup=0, weight_decay=.01, micro_tokens=16384, grad_checkpoint=True,
    max_rows=256, eval_every=50, eval_problems=500, eval_samples=32, eval_temperature=.6, eval_top_p=.95)
PRESETS = dict(tiny=dict(eval_data=[f"{HERE}/tiny/easy_test.jsonl"]), paper=PAPER, one_gpu=PAPER | dict(
    steps=200, prompts=32, minibatches=2, max_prompt_tokens=1024, max_new_tokens=3072, max_rows=128,
    eval_data=["math-ai/amc23::test"], eval_samples=8, ks=[1, 4, 8]))   # sizes are ours, not yet measured


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
def nearest(table, ids, k, metric="cosine"):
    """Candidates of ids, (n,) -> (n, k): the anchor, then the k-1 nearest rows of table (V, D).  (5, 7, 8)
    For cosine its rows must have unit length. In chunks of 2^26 values. Ties in topk's order."""
    found = []
    for part in ids.split(max(1, 2 ** 26 // len(table))):
        if metric == "cosine":
            closeness = table[part] @ table.T
        else:
            closeness = -torch.cdist(table[part], table, p=2 if metric == "l2" else 1)
        found.append(closeness.scatter_(1, part[:, None], torch.inf).topk(k).indices)
    return torch.cat(found)


def mixture(logp, embed, near, table, mixer, k, metric, rng):
    """The anchor (m,) and what is read in its place, as mix takes it, at steps with log-probs (m, V).
    near (V, K): the candidates of each id; a row of -1 is searched for in the table and filled in."""
    anchor, noise = logp.argmax(-1), logp.new_zeros(len(logp), 1)                                     # (6)
    if mixer == "neighbour":                    # no table: all ids are there, and nothing waits for the GPU
        if table is not None and len(missing := anchor[near[anchor, 0] < 0].unique()):
            near[missing] = nearest(table, missing, k, metric)
        candidates = near[anchor]                                                                     # (7, 8)
    elif mixer == "soft":                       # Soft Thinking: the likeliest tokens
        candidates = logp.topk(k).indices
    else:                                       # Soft Tokens, Hard Truths: noise a third as large
        candidates, e = anchor[:, None], embed(anchor)
        noise = torch.empty_like(e).normal_(0, .33, generator=rng) * e.pow(2).mean(1, True).sqrt()
    return anchor, candidates, logp.gather(1, candidates).softmax(-1), noise    # p by its sum in C: D2   (9)


def mix(embed, candidates, weight, noise=0.):
    """Mixed inputs sum_c a_c E[c]: (m, K), (m, K) -> (m, D), for rollout and update alike.  (10)"""
    rows = embed(candidates)                    # by the module, not its weight: Gemma scales what it looks up
    return ((weight[..., None] * rows).sum(-2) + noise).to(rows.dtype)


# --- rollout ------------------------------------------------------------------------------------------------
@torch.no_grad()
def rollout(model, head, prompts, u, temperature, eos_ids, V, top_p=1., max_rows=1024, gate=None, near=None,
            table=None, mixer="neighbour", mix_k=3, mix_metric="cosine", mix_label="anchor"):
    """One completion a row of the uniforms u (N, T); each prompt, a list of ids, serves N/B consecutive rows.
    gate (N, T), on the CPU, says which steps mix; near, table: see mixture. Returns tokens, 0 past the end,
    log-probs, both (N, longest), lengths (N,) with the EOS, and the mixtures: after token `step` of row
    `row` the model read mix(embed, candidates, weight, noise), with that cosine to the anchor's embedding."""
    (N, T), device, body, embed = u.shape, u.device, model.base_model, model.get_input_embeddings()
    tokens, G, mixed = torch.zeros(N, T, dtype=torch.long, device=device), N // len(prompts), []
    lengths, logps = tokens.new_zeros(N), torch.zeros(N, T, dtype=head.weight.dtype, device=device)
    rng = torch.Generator(device).manual_seed(int(u[0, 0] * 2 ** 31))     # of gaussian's noise alone
    for first in range(0, N, max_rows):
        on_cpu = torch.arange(first, min(first + max_rows, N))  # gate is there too: no sync to index it
        batch = prompts[first // G:on_cpu[-1] // G + 1]
        P = max(map(len, batch))
        ids = torch.tensor([[0] * (P - len(p)) + p for p in batch], device=device)  # 0: masked by place
        mask = torch.tensor([[0] * (P - len(p)) + [1] * len(p) for p in batch], device=device)
        position, cache = (mask.cumsum(1) - 1).clamp(min=0), new_cache(P + T)
        hidden = body(inputs_embeds=embed(ids), attention_mask=mask, position_ids=position, cache=cache,
                      use_cache=True).last_hidden_state[:, -1]
        rows, parent = on_cpu.to(device), (on_cpu // G - first // G).to(device)
        cache.batch_select_indices(parent)                      # a prompt is read once, for all its rows
        hidden, position, done = hidden[parent], mask.sum(1)[parent], parent < 0      # none yet
        mask = torch.cat([mask[parent], mask.new_ones(len(rows), T)], 1).bool()
        for t in tqdm(range(T), desc="rollout", disable=None, leave=False):
            logp = vocab_logps(hidden, head, V, temperature)
            token = sample(logp, u[rows, t], top_p)
            m = gate[on_cpu, t].nonzero()[:, 0].to(device, non_blocking=True) if gate is not None else ()
            if len(m):                                              # m_t = 1
                anchor, *recipe = mixture(logp[m], embed, near, table, mixer, mix_k, mix_metric, rng)
                blend = mix(embed, *recipe)                                                           # (10)
                cosine = F.cosine_similarity(blend.float(), embed(anchor).float(), dim=1)
                mixed.append((rows[m], torch.full_like(anchor, t), *recipe, cosine))
                token[m] = anchor if mix_label == "anchor" else token[m]                              # D1
            tokens[rows, t] = token.where(~done, 0)
            logps[rows, t] = logp.gather(1, token[:, None])[:, 0].where(~done, 0)
            lengths[rows] += ~done
            done |= torch.isin(token, eos_ids)
            finished = int(done.sum()) if t % 16 == 0 or not u.is_cuda else 0   # on CUDA it waits for the GPU
            if finished == len(rows) or t == T - 1:
                break
            x = embed(token)                                                                          # (11)
            if len(m):
                x[m] = blend
            if 8 * finished >= len(rows):                       # finished rows leave the batch and its cache
                keep = (~done).nonzero()[:, 0]
                cache.batch_select_indices(keep)
                on_cpu, rows, x, mask, position, done = (
                    v[keep.to(v.device)] for v in (on_cpu, rows, x, mask, position, done))
            seen = decode_mask(model.config, mask[:, :P + t + 1])
            hidden = body(inputs_embeds=x[:, None], attention_mask=seen, position_ids=(position + t)[:, None],
                          cache=cache, use_cache=True).last_hidden_state[:, -1]
    longest, mixed = int(lengths.max()), [torch.cat(v) for v in zip(*mixed)] or [lengths.new_zeros(0)] * 6
    alive = (mixed[1] < lengths[mixed[0]] - 1).nonzero()[:, 0]  # nothing was read after the last token
    mixed = dict(zip(("row", "step", "candidates", "weight", "noise", "cosine"), (v[alive] for v in mixed)))
    return tokens[:, :longest], logps[:, :longest], lengths, mixed


# --- reward, advantage, loss --------------------------------------------------------------------------------
def reward(completion, gold):
    """1 if the final answer is right, else 0; a truncated completion is graded like any other."""
    return float(check_answer(completion, gold))


def advantages(rewards):
    """(B, G) -> (B, G), normalised in each group; exactly 0 in a dead group, one without spread."""
    dead = rewards.amin(1, True) == rewards.amax(1, True)       # the float mean of equal rewards may differ
    normed = (rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-6)
    return normed.masked_fill(dead, 0)


def score(model, sequences, lengths, rows, mixed, V, temperature, bfloat16=False):
    """Log-probs, entropies and mask, each (n, longest), of the completions that end sequences[r], r in rows.
    One forward without cache. Padding is on the right, where causal attention never looks: it needs no mask.
    Mixed inputs are rebuilt from the current table with the recorded weights (D5)."""
    embed, T, lengths = model.get_input_embeddings(), int(lengths.max()), lengths[rows]
    ids = pad_sequence([sequences[r] for r in rows], batch_first=True)
    x, start = embed(ids), torch.tensor([len(sequences[r]) for r in rows], device=ids.device) - lengths
    i, j = (torch.tensor(rows, device=ids.device)[:, None] == mixed["row"]).nonzero(as_tuple=True)
    if len(j):
        step, *recipe = (mixed[k][j] for k in ("step", "candidates", "weight", "noise"))
        x = x.index_put((i, start[i] + step), mix(embed, *recipe))
    with torch.autocast(x.device.type, torch.bfloat16, bfloat16, cache_enabled=False):  # a cache keeps casts
        hidden = model.base_model(inputs_embeds=x, use_cache=False).last_hidden_state
    mask = torch.arange(T, device=ids.device) < lengths[:, None]
    i, t = mask.nonzero(as_tuple=True)
    h, y = hidden[i, start[i] + t - 1], ids[i, start[i] + t]    # the state before a token predicts it
    flat = token_logps(h, y, model.get_output_embeddings(), V, temperature)
    logp, entropy = (v.new_zeros(mask.shape).index_put((i, t), v) for v in flat)
    return logp, entropy, mask


def policy_loss(logp, old, advantage, mask, clip_low, clip_high, objective="grpo"):
    """Clipped surrogate, negated: (n, T) log-probs, (n,) advantages -> loss, not masked, and clipped.  (13)
    On a rollout's first update every ratio is 1 and a group's advantages sum to 0: a mean of row means is 0,
    but not its gradient. Watch reward, gradient norm and clipped share, not the loss."""
    log_ratio = (logp - old).clamp(-20, 20)
    if objective == "gspo":                     # the geometric mean of a row's ratios, at each of its tokens
        log_ratio = ((log_ratio * mask).sum(1, True) / mask.sum(1, True)).expand_as(logp)
    ratio, A = log_ratio.exp(), advantage[:, None]
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
def evaluate(model, tokenizer, problems, samples, ks, max_new_tokens, temperature, top_p, mix_rate=0., **how):
    """pass@1, its standard error and pass@k of sampled completions; temperature 0 is greedy, `how` rollout's.
    The draws are the same at every call: evaluations are paired, and their number changes no training."""
    u, gate = (draws(0, 0, stream, (len(problems) * samples, max_new_tokens)) for stream in (2, 3))
    tokens, _, lengths, _ = rollout(
        model, prompts=[p["prompt"] for p in problems], u=u.to(how["eos_ids"].device),
        gate=gate < mix_rate, temperature=temperature or 1., top_p=top_p if temperature else 0., **how)
    texts = decode(tokenizer, tokens, lengths)
    right = [reward(text, problems[i // samples]["answer"]) > 0 for i, text in enumerate(texts)]
    return pass_table(torch.tensor(right).view(-1, samples), ks)


# --- training -----------------------------------------------------------------------------------------------
def update(cfg, model, reference, optimizer, sequences, lengths, sampled, mixed, A, V):
    """The optimizer steps of one rollout; returns what they met, token by token. A (N,) is on the CPU."""
    live = (A != 0) | (reference is not None)                   # a dead row has a KL at most
    A, old, ref = A.to(sampled), torch.zeros_like(sampled), torch.zeros_like(sampled)
    parts = list(torch.arange(len(A)).chunk(cfg.minibatches)) * cfg.inner_epochs         # of whole groups
    scoring = dict(V=V, temperature=cfg.temperature, bfloat16=cfg.compute_dtype == "bfloat16")
    with torch.no_grad():                                       # with one update, old is the new, detached
        for net, kept in [(model, old)] * (len(parts) > 1) + [(reference, ref)] * bool(cfg.kl_coef):
            for rows in micro_batches(live.nonzero()[:, 0], sequences, cfg.micro_tokens):
                kept[rows] = score(net, sequences, lengths, rows, mixed, **scoring)[0]
    met, norms = {k: [A[:0]] for k in ("logp_gap", "clip_frac", "entropy", "kl")}, []     # no row may be live
    for part in parts:
        share = torch.zeros_like(A)
        share[part] = reduce(lengths[part], cfg.group, cfg.aggregation).to(A)
        for rows in micro_batches(part[live[part]], sequences, cfg.micro_tokens):
            logp, entropy, mask = score(model, sequences, lengths, rows, mixed, **scoring)
            was = old[rows] if len(parts) > 1 else logp.detach()
            loss, clip = policy_loss(logp, was, A[rows], mask, cfg.clip_low, cfg.clip_high, cfg.objective)
            kl = k3(logp, ref[rows]) * mask if reference is not None else torch.zeros_like(loss)
            ((loss * mask + cfg.kl_coef * kl).sum(1) * share[rows]).sum().backward()
            for name, value in zip(met, ((was - sampled[rows]).abs(), clip, entropy, kl)):
                met[name].append(value.detach()[mask])
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
    anchors = torch.arange(V if device.type == "cuda" else 0, device=device)    # to search ahead: on CUDA all
    start, lost, stop = state["step"] if state else 0, 0, stop_on_signal()
    if state:
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
        anchors = state["anchors"].to(device)
    actor = copy.deepcopy(model) if bfloat16 else model                                 # what rolls out
    if cfg.grad_checkpoint:
        model.activation_checkpointing_enable()
    how = dict(head=model.get_output_embeddings(), eos_ids=eos_ids, V=V, max_rows=cfg.max_rows,
               mixer=cfg.mixer, mix_k=cfg.mix_k, mix_metric=cfg.mix_metric, mix_label=cfg.mix_label)

    for done in range(start, cfg.steps + 1):                    # what follows `done` steps, then the next one
        model.eval()
        for p, q in zip(actor.parameters(), model.parameters()):
            p.data = q.data.bfloat16() if bfloat16 else q.data  # parameters only: RoPE's buffers stay float32
        if cfg.mix_rate and cfg.mixer == "neighbour":
            table = model.get_input_embeddings().weight.data[:V]                                # D4, D5
            table = F.normalize(table, dim=1) if cfg.mix_metric == "cosine" else table
            how["near"] = torch.full((V, cfg.mix_k), -1, device=device)
            how["near"][anchors] = nearest(table, anchors, cfg.mix_k, cfg.mix_metric)           # in one go
            table = how["table"] = table if len(anchors) < V else None      # on CUDA it is not kept
        if done and (stop or done == cfg.steps or cfg.save_every and done % cfg.save_every == 0):
            save_checkpoint(out, dict(step=done, config=vars(cfg), anchors=anchors, model=model.state_dict(),
                                      optimizer=optimizer.state_dict()))
        if not stop and (done in (0, cfg.steps) or cfg.eval_every and done % cfg.eval_every == 0):
            for name, rows in eval_sets:
                report(out, "eval", done, data=name, **evaluate(
                    actor, tokenizer, rows, cfg.eval_samples, cfg.ks, cfg.max_new_tokens,
                    cfg.eval_temperature, cfg.eval_top_p, cfg.mix_rate * cfg.mix_at_eval, **how))
        if stop or done == cfg.steps:
            break

        step, clock = done + 1, [time.time()]
        batch = [p for p in batch_of(problems, cfg.prompts, step, cfg.seed) for _ in range(G)]
        u, gate = (draws(cfg.seed, step, stream, (len(batch), cfg.max_new_tokens)) for stream in (0, 1))
        tokens, sampled, lengths, mixed = rollout(
            actor, prompts=[p["prompt"] for p in batch[::G]], u=u.to(device), gate=gate < cfg.mix_rate,
            temperature=cfg.temperature, **how)
        clock.append(time.time())
        texts = decode(tokenizer, tokens, lengths)
        rewards = torch.tensor([reward(text, p["answer"]) for text, p in zip(texts, batch)])
        A = advantages(rewards.double().view(-1, G)).flatten()                                        # (12)
        clock.append(time.time())
        model.train()                                           # for layer checkpointing; every dropout is 0
        sequences = [torch.cat([torch.tensor(p["prompt"], device=device), row[:n]])
                     for p, row, n in zip(batch, tokens, lengths.tolist())]
        optimizer.param_groups[0]["lr"] = learning_rate(step, cfg.steps, cfg.lr, cfg.warmup, cfg.lr_schedule)
        met = update(cfg, model, reference, optimizer, sequences, lengths, sampled, mixed, A, V)
        anchors = anchors if device.type == "cuda" else mixed["candidates"][..., :1].unique()  # come again
        clock.append(time.time())

        count, ended = lengths.sum().item(), torch.isin(tokens.gather(1, lengths[:, None] - 1), eos_ids)
        report(out, "step", step, peak_gib=peak_gib(device), reward=rewards, dead=A.view(-1, G).eq(0).all(1),
               correct=rewards > 0, length=lengths, truncated=~ended, mixed_share=len(mixed["row"]) / count,
               **met, mix_cosine=mixed["cosine"], mix_cosine_min=mixed["cosine"].sort().values[:1],
               anchor_weight=mixed["weight"][..., :1], tokens_per_s=count / (clock[-1] - clock[0]),
               **{f"seconds_{k}": b - a for k, a, b in zip(("rollout", "grade", "update"), clock, clock[1:])})
        for i in (0, -1):
            write_line(out, "samples.jsonl", step=step, prompt=tokenizer.decode(batch[i]["prompt"]),
                       completion=texts[i], answer=batch[i]["answer"], reward=rewards[i].item())
        lost = lost + 1 if met["skipped"] else 0
        stop += ["no finite gradient"] * (lost == 3)
    if cfg.steps:
        export_model(model, tokenizer, out)
    if lost == 3:
        refuse(f"three steps in a row met a gradient that is not finite, which ends the run; from --model "
               f"{out}/model try a lower --lr, or --compute_dtype float32")


def main(argv=None):
    cfg, state = parse_config(Config, PRESETS, argv)
    if not 1 <= cfg.mix_k <= 64 or not 0 <= cfg.mix_rate <= 1:      # 64: V is not known before the model
        refuse("--mix_k must lie in 1..64, and --mix_rate in 0..1")
    sets = [(name, load_problems(name)) for name in (cfg.data, *cfg.eval_data)]
    model, tokenizer, eos_ids, V = load_model(cfg.model, cfg.device)
    (_, problems), *eval_sets = encode_problems(cfg, model, tokenizer, sets)
    out = open_run(cfg, "ngrpo", model, tokenizer.decode(problems[0]["prompt"]), state)
    train(cfg, model, tokenizer, eos_ids, V, problems, eval_sets, out, state)


if __name__ == "__main__":
    main()
