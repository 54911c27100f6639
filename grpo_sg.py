r"""GRPO-SG (arXiv 2511.00066 v4): ratios weighted by how sure the model is of each token.

The gradient of a token is the larger the less probable the token was, and a few rare ones can make an update
sharp. GRPO-SG multiplies the ratio of each token, before the clip, by a weight without gradient that grows
with the token's own logit under the current policy: doubtful tokens count a tenth less, sure ones up to 1.4
times as much. Beside that it is GRPO with a wider upper clip and a token mean in each group.

For token t of row i, with the raw logits z of the current policy, before any temperature:
    h_t  = z[o_t]                                  selected logit, float32, no gradient
    w_t  = clip(alpha (sigmoid(h_t / tau) - mu), L, U)                                             (20)
    R_t  = w_t pi(o_t | h) / pi_old(o_t | h)       the shaped ratio                                (13)
    A_i  = (r_i - mean r) / (std r + 1e-6) over the G rows of a prompt                             (4)
    J    = mean over prompts of 1 / sum_i |o_i| sum_it min(R A, clip(R, 1-eps_l, 1+eps_h) A) - beta KL    (13)
With respect to z its gradient is w r A I (onehot(o_t) - softmax z), I = 1 where the clip does not bind (16):
w (1 - pi) is what the paper's bounds are made of, and what this file logs.
In a rollout's first update r = 1, so a sure token of a good answer, w > 1 + eps_h, is clipped before anything
has moved and gets no gradient, while one of a bad answer gets w times the usual. The paper does not discuss
it; `gated` counts it, --weight_place surrogate takes it away.

Four tokens, of selected logits 5, 9 ln 3, 20 and 30, in a good answer (A = 1), on the first pass:
    >>> w = sharpness_weight(torch.tensor([[5., 9.8875, 20., 30.]]))
    >>> [round(x, 3) for x in w[0].tolist()]
    [0.9, 1.0, 1.304, 1.4]
    >>> logp = torch.zeros(1, 4, requires_grad=True)
    >>> loss, clipped = policy_loss(logp, logp.detach(), torch.ones(1), w > 0, .2, .24, w)
    >>> loss.sum().backward()
    >>> [round(x, 3) for x in logp.grad[0].tolist()]
    [-0.9, -1.0, 0.0, 0.0]

There is no official code. Where the paper is silent or divided, and what this file does:
    D1 the weight stands on the ratio, inside the clip (four places of the paper), not on the surrogate
    D2 h is the logit before the temperature; code that divides logits in place would see z / temperature
    D3 the KL (k3) is unweighted as in Eq. 13; the gradient of Lemma 3.4 has a weight on it
    D4 w follows the policy through the updates of a rollout, it is not frozen with pi_old
    D5 std is unbiased, as in the code the experiments start from; the proofs take the population's
    D6 baselines take their authors' constants, .2 for top entropy and AR, .4 for Lopti, and count all tokens
    D7 top_entropy ranks the tokens of an update, by a forward before it; its authors rank micro-batches
    D8 a learning rate without warm-up and steps of 64 prompts are that code's; the paper names neither
    D9 in a search task what the model writes is trained, queries too; what it reads is context and no more
Left out: several GPUs, vLLM, LoRA, a value model, dual clip, entropy bonus.

    python grpo_sg.py                     a minute on a laptop CPU: held-out accuracy from .3 to .9
    python grpo_sg.py --weighting none    the same run by plain GRPO
    python grpo_sg.py --preset knights    puzzles of knights and knaves: in two minutes from .35 to .8
    python grpo_sg.py --preset search     questions and a search tool: in two minutes from .2 to .8
    python grpo_sg.py --preset one_gpu    a 1.5B model on one 80 GB GPU (`pip install datasets` for its data)
"""
import copy
import math
import os
import re
import time
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm
from transformers.hf_argparser import HfArg

from common import (
    batch_of, check_answer, decode, decode_mask, draws, encode_problems, exact_match, export_model,
    learning_rate, lexical_search, load_corpus, load_model, load_problems, micro_batches, new_cache, open_run,
    parse_config, pass_table, peak_gib, refuse, report, save_checkpoint, stop_on_signal, write_line)

HERE = os.path.dirname(os.path.abspath(__file__))
LOGGED = ("logp_gap", "clip_frac", "entropy", "kl", "weight", "at_low", "at_high", "gated", "logit",
          "rare", "weighted_rare")              # rare: 1 - pi
# B prompts, G group, N = B*G rows, P prompt and T completion tokens, V ids to sample, D hidden


@dataclass
class Config:
    preset: str = HfArg(default="tiny", help="tiny, knights, search; one_gpu, paper, paper_knights")
    model: str = HfArg(default=f"{HERE}/tiny/learner", help="folder or hub name of a causal language model")
    data: str = HfArg(default=f"{HERE}/tiny/easy_train.jsonl", help="file, or hub owner/name:config:split")
    eval_data: list[str] = HfArg(default_factory=list, help="held-out problems, a table for each")
    out: str = HfArg(default="", help="output folder; empty: out/grpo_sg-TIME")
    resume: str = HfArg(default="", help="output folder of a run to go on with, its settings included")
    device: str = HfArg(default="", help="empty: cuda if there is one, else cpu")
    compute_dtype: Literal["", "float32", "bfloat16"] = HfArg(default="", help="empty: bfloat16 on cuda only")
    seed: int = HfArg(default=1, help="of the order of problems and sampling")
    prompt_format: str = HfArg(default="{question}", help="the user turn; literal braces are doubled")
    system: str = HfArg(default="", help="system turn, if any")
    chat_template: Literal["auto", "none"] = HfArg(default="auto", help="auto: the tokenizer's, if any")
    task: Literal["math", "knights", "search"] = HfArg(default="math", help="what is asked and how graded")
    corpus: str = HfArg(default=f"{HERE}/tiny/search/corpus.jsonl", help="search: {\"text\"} a line")
    searches: int = HfArg(default=2, help="search: most per completion (paper 2); T is for each turn")
    passages: int = HfArg(default=3, help="search: how many a query finds (paper 3)")
    info_tokens: int = HfArg(default=1024, help="search: room for what a query finds (authors' tool 1024)")
    # rollout
    steps: int = HfArg(default=50, help="rollouts; 0 only evaluates")
    prompts: int = HfArg(default=16, help="B, prompts per rollout (paper 128, knights 64)")
    group: int = HfArg(default=8, help="G, completions per prompt (paper 8)")
    max_prompt_tokens: int = HfArg(default=512, help="longer prompts are dropped and counted")
    max_new_tokens: int = HfArg(default=48, help="T (paper 4096)")
    temperature: float = HfArg(default=1., help="of sampling and scoring (paper 1, knights .7)")
    max_rows: int = HfArg(default=1024, help="rows decoded at once: bounds the cache's memory")
    # the method
    weighting: Literal["sg", "none", "reverse", "top_entropy", "ar", "lopti"] = HfArg(
        default="sg", help="none is plain GRPO, reverse 2 - w, the others the paper's baselines")
    weight_place: Literal["ratio", "surrogate"] = HfArg(default="ratio", help="where sg and reverse act (D1)")
    alpha: float = HfArg(default=2., help="slope of the weight (paper 2)")
    mu: float = HfArg(default=.25, help="offset of the sigmoid (paper .25)")
    tau: float = HfArg(default=9., help="scale of the selected logit (paper 9)")
    weight_low: float = HfArg(default=.9, help="L, least weight (paper .9); L = U is a constant")
    weight_high: float = HfArg(default=1.4, help="U, largest weight (paper 1.4)")
    top_share: float = HfArg(default=.2, help="top_entropy: share of an update's tokens that is trained")
    ar_alpha: float = HfArg(default=.2, help="ar: advantages times ar_alpha pi_old + 1 - ar_alpha")
    lopti_eta: float = HfArg(default=.4, help="lopti: tokens of pi_old below it first, then the rest")
    # update
    aggregation: Literal["sequence", "group", "token"] = HfArg(default="group", help="paper group")
    clip_low: float = HfArg(default=.2, help="eps below 1 (paper .2)")
    clip_high: float = HfArg(default=.24, help="eps above 1 (paper .24)")
    kl_coef: float = HfArg(default=0., help="beta (paper .001); 0 keeps no reference model in memory")
    inner_epochs: int = HfArg(default=1, help="passes over a rollout (paper 1)")
    minibatches: int = HfArg(default=1, help="optimizer steps per pass, cut by prompts (paper 2)")
    micro_tokens: int = HfArg(default=2048, help="tokens in one forward, padding included; no other effect")
    grad_checkpoint: bool = HfArg(default=False, help="recompute layers in backward: less memory, slower")
    lr: float = HfArg(default=2e-4, help="AdamW (paper 1e-6; 2e-4 suits the tiny model)")
    warmup: int = HfArg(default=5, help="steps of linear warm-up (base code 0)")
    lr_schedule: Literal["constant", "linear", "cosine"] = HfArg(default="constant", help="of lr")
    weight_decay: float = HfArg(default=0., help="of AdamW")
    grad_clip: float = HfArg(default=1., help="largest gradient norm (base code 1)")
    # evaluation and logs
    eval_every: int = HfArg(default=0, help="steps between evaluations; 0: before and after only")
    eval_problems: int = HfArg(default=300, help="the first so many problems of each file")
    eval_samples: int = HfArg(default=8, help="completions per problem (paper 1 or 16)")
    eval_temperature: float = HfArg(default=1., help="0 is greedy (paper, some sets)")
    eval_top_p: float = HfArg(default=1., help="nucleus (base code 1)")
    ks: list[int] = HfArg(default_factory=lambda: [1, 4, 8], help="pass@k to report, k <= eval_samples")
    save_every: int = HfArg(default=10, help="steps between checkpoints; 0: at the end only")


PAPER = dict(device="cuda",                         # Table 6; the rest: the base code or ours
    model="Qwen/Qwen2.5-7B", data="agentica-org/DeepScaleR-Preview-Dataset", chat_template="none",
    eval_data=["HuggingFaceH4/MATH-500::test", "math-ai/amc23::test", "math-ai/aime24::test"],
    prompt_format="{question} Let's think step by step and output the final answer within \\boxed{{}}.",
    steps=500, prompts=128, group=8, max_prompt_tokens=1024, max_new_tokens=4096, kl_coef=.001, minibatches=2,
    lr=1e-6, warmup=0, micro_tokens=16384, grad_checkpoint=True, max_rows=256, eval_every=50,
    eval_problems=500, eval_samples=16, ks=[1, 16])     # the paper's ORZ run: another --data, nothing else
KNIGHTS = dict(task="knights", model=f"{HERE}/tiny/knights/learner", data=f"{HERE}/tiny/knights/train.jsonl",
               eval_data=[f"{HERE}/tiny/knights/test_{n}.jsonl" for n in (2, 3)],
               prompt_format="{question}\n<think>", max_new_tokens=96, steps=40)
SEARCH = dict(task="search", model=f"{HERE}/tiny/search/learner", data=f"{HERE}/tiny/search/train.jsonl",
              eval_data=[f"{HERE}/tiny/search/test.jsonl"], prompt_format="{question}\n", max_new_tokens=16,
              info_tokens=64, steps=40)
TURNS = ("<|im_start|>system\nReason inside <think> </think>, then answer inside <answer> </answer>: who "
         "each person is, a line each, like (1) Zoey is a knight<|im_end|>\n<|im_start|>user\n{question}"
         "<|im_end|>\n<|im_start|>assistant\n<think>")                 # our words
PRESETS = dict(tiny=dict(eval_data=[f"{HERE}/tiny/easy_test.jsonl"]), knights=KNIGHTS, search=SEARCH,
               paper=PAPER, paper_knights=PAPER | dict(
    task="knights", model="Qwen/Qwen2.5-3B-Instruct", prompt_format=TURNS, temperature=.7, prompts=64,
    data="K-and-K/knights-and-knaves:train:3ppl+4ppl+5ppl+6ppl+7ppl", steps=390, max_prompt_tokens=400,
    eval_data=[f"K-and-K/knights-and-knaves:test:{n}ppl" for n in (3, 4, 5, 6, 7)], eval_samples=1, ks=[1],
    eval_problems=100, eval_temperature=0.), one_gpu=PAPER | dict(
    model="Qwen/Qwen2.5-1.5B", steps=200, prompts=32, max_new_tokens=3072, max_rows=128, eval_samples=8,
    eval_data=["math-ai/amc23::test"], ks=[1, 8]))                      # sizes are ours, not yet measured


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
def selected_logit(hidden, targets, head):
    """h, the raw logit of each target, in the head's precision: (M, D), (M,) -> (M,), without gradient."""
    row = head.weight[targets].detach()
    h = (hidden.detach().to(row.dtype) * row).sum(-1)
    return h + head.bias[targets].detach() if head.bias is not None else h


def sharpness_weight(h, alpha=2., mu=.25, tau=9., low=.9, high=1.4):
    """w of selected logits, any shape. Given probabilities or log-probs it is low everywhere.  (20)"""
    return (alpha * ((h.detach() / tau).sigmoid() - mu)).clamp(low, high)


def token_weights(weighting, h, old, entropy, sg, ar_alpha=.2, eta=.4, late=False, least_entropy=0.):
    """The weight of each token, (n, T) without gradient. sg: the constants of sharpness_weight. Baselines use
    old log-probs (AR, Lopti, which trains doubtful tokens first and the others `late`) or entropies."""
    if weighting in ("sg", "reverse"):
        w = sharpness_weight(h, *sg)
        return w if weighting == "sg" else 2 - w
    if weighting == "ar":
        return ar_alpha * old.exp() + 1 - ar_alpha
    if weighting == "lopti":
        return ((old.exp() >= eta) == late).to(h)
    if weighting == "top_entropy":
        return (entropy >= least_entropy).to(h)
    return torch.ones_like(h)


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


# --- the search tool ----------------------------------------------------------------------------------------
def information(tokenizer, texts, info_tokens):
    """Passages as ids to be read. Too many of them lose their end, but not the closing tag."""
    text = "\n\n<information>" + "\n".join(f"Doc {i}: {text}" for i, text in enumerate(texts or (), 1))
    head, tail = tokenizer([text, "</information>\n\n"], add_special_tokens=False).input_ids
    return head[:max(0, info_tokens - len(tail))] + tail


def converse(model, tokenizer, prompts, u, eos_ids, search, searches, passages, info_tokens, **how):
    """Completions, N rows: of one rollout, or with a search of up to 1 + searches, u (N, T) cut in parts: who
    writes <search>query</search> reads <information> and goes on, anything else ends a row. Returns
    rollout's three, `own` (N, longest), true where the model wrote, the text of that, and what to log."""
    if search is None:
        tokens, logps, lengths = rollout(model, prompts=prompts, u=u, eos_ids=eos_ids, **how)
        own = torch.arange(tokens.shape[1], device=u.device) < lengths[:, None]
        return tokens, logps, lengths, own, decode(tokenizer, tokens, lengths), {}
    rows, contexts, trails, log = list(range(len(u))), prompts, [[] for _ in u], dict(searches=0, failed=0)
    tags = tokenizer(["</search>", "</answer>"], add_special_tokens=False).input_ids
    stops = torch.cat([eos_ids, eos_ids.new_tensor([tag[0] for tag in tags if len(tag) == 1])])
    for left, part in zip(range(searches, -1, -1), u.chunk(1 + searches, 1)):
        rolled, queries = rollout(model, prompts=contexts, u=part[rows], eos_ids=stops, **how), {}
        for row, ids, logp, n in zip(rows, *(x.tolist() for x in rolled)):
            n = bisect_left(range(n), True, key=lambda n: bool(         # a tag may be many tokens, or end
                re.search("</(search|answer)>", tokenizer.decode(ids[:n]))))    # in one: ids are cut
            trails[row] += [(i, p, True) for i, p in zip(ids[:n], logp)]
            text, closed, _ = tokenizer.decode(ids[:n]).partition("</search>")
            if left and closed and "<search>" in text:
                queries[row] = text.rpartition("<search>")[2].strip()
        if not queries:
            break
        rows, log["searches"] = list(queries), log["searches"] + len(queries) / len(u)
        try:
            found = dict(zip(rows, search(list(queries.values()), passages) or (), strict=True))
        except (OSError, ValueError, LookupError, RuntimeError) as error:   # a server's, not a programmer's
            found, log["failed"] = dict.fromkeys(rows), log["failed"] + len(rows)
            print(f"warning: {len(rows)} searches failed and find nothing ({error!r})", flush=True)
        for row, texts in found.items():
            trails[row] += [(i, 0, False) for i in information(tokenizer, texts, info_tokens)]
        contexts = [prompts[row * len(prompts) // len(u)] + [i for i, _, _ in trails[row]] for row in rows]
    lengths = torch.tensor([len(trail) for trail in trails], device=u.device)
    table = pad_sequence([torch.tensor(trail, dtype=torch.float64) for trail in trails], batch_first=True)
    tokens, logps, own = (table[..., i].to(like) for i, like in enumerate((lengths, rolled[1], lengths > 0)))
    mine = [[i for i, _, wrote in trail if wrote] for trail in trails]
    return tokens, logps, lengths, own, tokenizer.batch_decode(mine, skip_special_tokens=True), log


# --- reward, advantage, loss --------------------------------------------------------------------------------
def reward(completion, gold):
    """1 if the final answer is right, else 0; a truncated completion is graded like any other."""
    return float(check_answer(completion, gold))


def knights_reward(completion, gold):
    r"""Of a puzzle of knights and knaves: 3 right, -.5 wrong, -1 not one identity a person, -3 wrong format.
    gold is like "(1) Zoey is a knight\n(2) Ann is a knave"; the prompt has opened <think>. Linear time."""
    text, tags = "<think>" + completion, ("<think>", "</think>", "<answer>", "</answer>")
    places = [text.find(tag) for tag in tags]
    if any(text.count(tag) != 1 for tag in tags) or places != sorted(places):
        return -3.
    answer = text[places[2]:places[3]].lower()
    people = dict(re.findall(r"^\(\d+\) (.+) is a (knight|knave)$", gold.lower(), re.MULTILINE))
    names = "|".join(map(re.escape, people))                   # one search: Ann is not found in Mary Ann
    found = dict(re.findall(rf"(?<!\w)({names})\s+is\s+a\s+(knight|knave)\b", answer))
    words = answer.count("knight") + answer.count("knave")      # one for each person, so no one has two
    if not people or found.keys() != people.keys() or words != len(people):
        return -1.
    return 3. if found == people else -.5


def advantages(rewards):
    """(B, G) -> (B, G), normalised in each group; exactly 0 in a dead group, one without spread."""
    dead = rewards.amin(1, True) == rewards.amax(1, True)       # the float mean of equal rewards may differ
    normed = (rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-6)
    return normed.masked_fill(dead, 0)


def score(model, sequences, lengths, rows, V, temperature, bfloat16=False, own=None):
    """Log-probs, entropies, selected logits and mask, each (n, longest), of the last lengths[r] tokens of
    sequences[r], r in rows; of own (N, longest) ones, if given. One forward without cache. Padding is on the
    right, where causal attention never looks: it needs no mask."""
    head, T, lengths = model.get_output_embeddings(), int(lengths.max()), lengths[rows]
    ids = pad_sequence([sequences[r] for r in rows], batch_first=True)
    start = torch.tensor([len(sequences[r]) for r in rows], device=ids.device) - lengths
    with torch.autocast(ids.device.type, torch.bfloat16, bfloat16, cache_enabled=False):
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    mask = torch.arange(T, device=ids.device) < lengths[:, None] if own is None else own[rows]
    i, t = mask.nonzero(as_tuple=True)
    h, y = hidden[i, start[i] + t - 1], ids[i, start[i] + t]    # the state before a token predicts it
    flat = *token_logps(h, y, head, V, temperature), selected_logit(h, y, head)
    logp, entropy, logit = (v.new_zeros(mask.shape).index_put((i, t), v) for v in flat)
    return logp, entropy, logit, mask


def policy_loss(logp, old, advantage, mask, clip_low, clip_high, weight, place="ratio"):
    """Clipped surrogate of weighted ratios, negated: (n, T) log-probs and weights, (n,) advantages -> loss
    (n, T), clipped (n, T).  (13) On a rollout's first update every ratio is 1: watch reward, gradient norm
    and clipped share, not the loss."""
    ratio, A = (logp - old).clamp(-20, 20).exp(), advantage[:, None]
    inside, outside = (weight, 1.) if place == "ratio" else (1., weight)
    plain, clipped = inside * ratio * A, (inside * ratio).clamp(1 - clip_low, 1 + clip_high) * A
    return -torch.min(plain, clipped) * outside, (clipped < plain) & mask.bool()


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
def evaluate(model, tokenizer, problems, samples, ks, max_new_tokens, temperature, top_p, grade, **how):
    """pass@1, its standard error and pass@k of sampled completions; temperature 0: greedy, `how` converse's.
    The draws are the same at every call: evaluations are paired, and their number changes no training."""
    u = draws(0, 0, 2, (len(problems) * samples, max_new_tokens))
    *_, texts, _ = converse(
        model, tokenizer, [p["prompt"] for p in problems], u=u.to(how["eos_ids"].device),
        temperature=temperature or 1., top_p=top_p if temperature else 0., **how)
    right = [grade(text, problems[i // samples]["answer"]) > 0 for i, text in enumerate(texts)]
    return pass_table(torch.tensor(right).view(-1, samples), ks)


# --- training -----------------------------------------------------------------------------------------------
def update(cfg, model, reference, optimizer, sequences, lengths, sampled, A, V, own):
    """The optimizer steps of one rollout; returns what they met, token by token. A (N,) is on the CPU."""
    live = (A != 0) | (reference is not None)                   # a dead row has a KL at most
    A, old, ref, weights = A.to(sampled), *(torch.zeros_like(sampled) for _ in range(3))
    parts = list(torch.arange(len(A)).chunk(cfg.minibatches))                           # of whole groups
    phases = (False, True) if cfg.weighting == "lopti" else (False,)                    # for the same old
    passes = [(part, late) for _ in range(cfg.inner_epochs) for late in phases for part in parts]
    scoring = dict(V=V, temperature=cfg.temperature, bfloat16=cfg.compute_dtype == "bfloat16", own=own)
    sg = cfg.alpha, cfg.mu, cfg.tau, cfg.weight_low, cfg.weight_high
    place = cfg.weight_place if cfg.weighting in ("sg", "reverse") else "surrogate"
    with torch.no_grad():                                       # with one update, old is the new, detached
        for net, kept in [(model, old)] * (len(passes) > 1) + [(reference, ref)] * bool(cfg.kl_coef):
            for rows in micro_batches(live.nonzero()[:, 0], sequences, cfg.micro_tokens):
                kept[rows] = score(net, sequences, lengths, rows, **scoring)[0]
    met, norms, least = {k: [A[:0]] for k in LOGGED}, [], 0.      # no row may be live
    for part, late in passes:
        share = torch.zeros_like(A)
        share[part] = reduce(own[part].sum(1), cfg.group, cfg.aggregation).to(A)
        if cfg.weighting == "top_entropy":                      # D7
            with torch.no_grad():
                scored = [score(model, sequences, lengths, rows, **scoring)
                          for rows in micro_batches(part, sequences, cfg.micro_tokens)]
            all_of_them = torch.cat([entropy[mask] for _, entropy, _, mask in scored])
            least = all_of_them.topk(math.ceil(cfg.top_share * len(all_of_them))).values[-1]
        for rows in micro_batches(part[live[part]], sequences, cfg.micro_tokens):
            logp, entropy, h, mask = score(model, sequences, lengths, rows, **scoring)
            was = old[rows] if len(passes) > 1 else logp.detach()
            w = token_weights(cfg.weighting, h, was, entropy, sg, cfg.ar_alpha, cfg.lopti_eta, late, least)
            loss, clip = policy_loss(logp, was, A[rows], mask, cfg.clip_low, cfg.clip_high, w, place)
            kl = k3(logp, ref[rows]) * mask if reference is not None else torch.zeros_like(loss)
            kl = kl * w if cfg.weighting == "lopti" else kl                             # D3
            ((loss * mask + cfg.kl_coef * kl).sum(1) * share[rows]).sum().backward()
            rare, gated = 1 - logp.exp(), (w > 1 + cfg.clip_high) & (A[rows, None] > 0) & (place == "ratio")
            for name, value in zip(LOGGED, (
                    (was - sampled[rows]).abs(), clip, entropy, kl, w, w <= cfg.weight_low,
                    w >= cfg.weight_high, gated, h, rare, w * rare)):
                met[name].append(value.detach()[mask])
            weights[rows] = w
        if live[part].any():                                    # else momentum alone would move the weights
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip).item())
            if 0 < norms[-1] < math.inf:
                optimizer.step()
            elif norms[-1] != 0:
                print(f"gradient norm {norms[-1]}: this update is skipped", flush=True)
            optimizer.zero_grad()
    met = {name: torch.cat(values) for name, values in met.items()}
    ranked = {name: met[name].sort().values for name in ("logp_gap", "weight", "rare", "weighted_rare")}
    met |= {name + "_95": v[int(.95 * len(v)):][:1] for name, v in ranked.items() if "rare" in name}
    return weights, met | dict(
        logp_gap_max=ranked["logp_gap"][-1:],
        weight_min=ranked["weight"][:1], weight_max=ranked["weight"][-1:],
        grad_norm=torch.tensor(norms), skipped=sum(not math.isfinite(norm) for norm in norms))


def train(cfg, model, tokenizer, eos_ids, V, problems, eval_sets, out, state, search=None):
    """The loop. Leaves metrics.jsonl, samples.jsonl, state.pt and model/ in the folder `out`."""
    device, bfloat16, G = eos_ids.device, cfg.compute_dtype == "bfloat16", cfg.group
    reference = copy.deepcopy(model).requires_grad_(False) if cfg.kl_coef else None     # never changes
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, fused=True)
    grade = dict(math=reward, knights=knights_reward, search=exact_match)[cfg.task]
    T = cfg.max_new_tokens * (1 + cfg.searches if search else 1)                        # of all turns
    start, lost, stop = state["step"] if state else 0, 0, stop_on_signal()
    if state:
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
    actor = copy.deepcopy(model) if bfloat16 else model                                 # what rolls out
    if cfg.grad_checkpoint:
        model.activation_checkpointing_enable()
    how = dict(head=model.get_output_embeddings(), eos_ids=eos_ids, V=V, max_rows=cfg.max_rows, search=search,
               searches=cfg.searches, passages=cfg.passages, info_tokens=cfg.info_tokens)

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
                    actor, tokenizer, rows, cfg.eval_samples, cfg.ks, T, cfg.eval_temperature, cfg.eval_top_p,
                    grade, **how))
        if stop or done == cfg.steps:
            break

        step, clock = done + 1, [time.time()]
        batch = [p for p in batch_of(problems, cfg.prompts, step, cfg.seed) for _ in range(G)]
        u = draws(cfg.seed, step, 0, (len(batch), T)).to(device)
        tokens, sampled, lengths, own, texts, log = converse(
            actor, tokenizer, [p["prompt"] for p in batch[::G]], u, temperature=cfg.temperature, **how)
        clock.append(time.time())
        rewards = torch.tensor([grade(text, p["answer"]) for text, p in zip(texts, batch)])
        A = advantages(rewards.double().view(-1, G)).flatten()                                        # (4)
        clock.append(time.time())
        model.train()                                           # for layer checkpointing; every dropout is 0
        sequences = [torch.cat([torch.tensor(p["prompt"], device=device), row[:n]])
                     for p, row, n in zip(batch, tokens, lengths.tolist())]
        optimizer.param_groups[0]["lr"] = learning_rate(step, cfg.steps, cfg.lr, cfg.warmup, cfg.lr_schedule)
        weights, met = update(cfg, model, reference, optimizer, sequences, lengths, sampled, A, V, own)
        clock.append(time.time())

        count, ended = own.sum().item(), torch.isin(tokens.gather(1, lengths[:, None] - 1), eos_ids)
        ended |= torch.tensor([[bool(search) and "</answer>" in text] for text in texts], device=device)
        report(out, "step", step, peak_gib=peak_gib(device), reward=rewards, dead=A.view(-1, G).eq(0).all(1),
               correct=rewards > 0, length=own.sum(1), truncated=~ended, **met, **log,
               tokens_per_s=count / (clock[-1] - clock[0]),
               **{f"seconds_{k}": b - a for k, a, b in zip(("rollout", "grade", "update"), clock, clock[1:])})
        for i in (0, -1):                                       # weights of rows not trained on are 0
            places = own[i].nonzero()[:, 0]
            order = places[weights[i, places].argsort()].tolist()
            low, high = ([[tokenizer.decode(tokens[i, t]), round(weights[i, t].item(), 3)] for t in some]
                         for some in (order[:5], order[:-6:-1]))
            write_line(out, "samples.jsonl", step=step, prompt=tokenizer.decode(batch[i]["prompt"]),
                       completion=decode(tokenizer, tokens[[i]], lengths[[i]])[0], answer=batch[i]["answer"],
                       reward=rewards[i].item(), lowest=low, highest=high)
        lost = lost + 1 if met["skipped"] else 0
        stop += ["no finite gradient"] * (lost == 3)
    if cfg.steps:
        export_model(model, tokenizer, out)
    if lost == 3:
        refuse(f"three steps in a row met a gradient that is not finite, which ends the run; from --model "
               f"{out}/model try a lower --lr, or --compute_dtype float32")


def main(argv=None, search=None):                       # search: what lexical_search makes, or any like it
    cfg, state = parse_config(Config, PRESETS, argv)
    if cfg.weight_low > cfg.weight_high or cfg.tau <= 0 or not 0 < cfg.top_share <= 1:
        refuse("--weight_low must not pass --weight_high, --tau be above 0, --top_share lie in (0, 1]")
    sets = [(name, load_problems(name)) for name in (cfg.data, *cfg.eval_data)]
    search = (search or lexical_search(load_corpus(cfg.corpus))) if cfg.task == "search" else None
    room = cfg.max_new_tokens + bool(search) * cfg.searches * (cfg.max_new_tokens + cfg.info_tokens)
    model, tokenizer, eos_ids, V = load_model(cfg.model, cfg.device)
    (_, problems), *eval_sets = encode_problems(replace(cfg, max_new_tokens=room), model, tokenizer, sets)
    out = open_run(cfg, "grpo_sg", model, tokenizer.decode(problems[0]["prompt"]), state)
    train(cfg, model, tokenizer, eos_ids, V, problems, eval_sets, out, state, search)


if __name__ == "__main__":
    main()
