r"""How different are a model's answers to one question? Diversity and pass@k of models, side by side.

S2L-PO's premise is a small model that is worse in one try, better in many, and more diverse (arXiv
2605.30789, Fig. 2, Table 3). The paper names its measures without formulas. Here, of K samples a question:

    pass@k      1 - C(K-c, k) / C(K, k), c of the K being right
    bleu_words  Self-BLEU, low is diverse: BLEU-4 of a sample against another, mean over ordered pairs, or by
                --refs all against all others; whitespace words, clipped counts, brevity penalty, .1 for 0
    bleu_ids    the same over token ids: a completion of the tiny models is one word
    edit        mean over pairs of Levenshtein distance of ids / longer length, both cut to 512 ids
    unique      distinct answers / K; without an answer the text counts, which flatters the weak
    unique_parsed   distinct / parsed, among the `parsed` share that has an answer
    embed       mean over pairs of the cosine distance of embeddings by --encoder

BLEU and edit distance move with length and with right answers, which are alike. So they come again for the
right samples alone, and at equal length: of the K, as many of each length (within a factor of 2^(1/4)) as all
models have. Standard errors are over questions, differences are paired, all models get the same draws. Ids
are without the EOS.

--coherence C: of C completions a question R(L) = E |sum_{t<=L} u_t|^2 / E sum_{t<=L} |u_t|^2, u_t being the
gradient of the FIRST model's log-prob of token t. The paper has it constant for noise in the tokens, growing
with L for another policy. Of samples of the very distribution scored it is 1 exactly: only being off-policy
can exceed that. So the first model at another temperature is scored at both. A backward a token: tiny models.

    python bench/diversity.py --coherence 4         the tiny pair, the learner at T=1.5 too: three minutes
    python bench/diversity.py --models FOLDER@0.7 FOLDER@1 --data FILE --n 6 --samples 8 \
        --max_new_tokens 160 --prompt_format '{question} Put the final answer in \boxed{{}}.'

--models: folders or hub names, @temperature behind (else 1). --out FILE gets a JSON line for each row.
"""
import argparse
import json
import math
import os
import re
import sys
import time
from collections import Counter
from itertools import combinations

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoTokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)
from common import (answers_equal, check_answer, decode, draws, encode_prompt, extract_answer,  # noqa: E402
                    load_model, load_problems, pass_at_k, provenance, refuse)
from ngrpo import rollout, vocab_logps  # noqa: E402

TINY = os.path.join(ROOT, "tiny", "explore")


# --- the samples of one question ----------------------------------------------------------------------------
def bleu(sample, references):
    """BLEU-4 of n-gram counts, [Counter of 1-grams, …, of 4-grams], against those of references."""
    size, log_p = sample[0].total(), 0.
    for n, own in enumerate(sample):
        most = Counter()
        for reference in references:
            most |= reference[n]                            # the largest count in any reference
        matched = (own & most).total()
        if n == 0 and matched == 0:
            return 0.
        log_p += math.log((matched or .1) / max(1, own.total())) / 4
    nearest = min((abs(r[0].total() - size), r[0].total()) for r in references)[1]      # of two the shorter
    return math.exp(log_p + min(0., 1 - nearest / size))    # brevity penalty


def self_bleu(samples, refs="pairs"):
    """Of lists of words or of ids."""
    grams = [[Counter(zip(*(s[i:] for i in range(n)))) for n in (1, 2, 3, 4)] for s in samples]
    if refs == "all":
        return float(np.mean([bleu(g, grams[:i] + grams[i + 1:]) for i, g in enumerate(grams)]))
    return float(np.mean([bleu(g, [h]) for g in grams for h in grams if g is not h]))


def edit_distances(a, others):
    """Levenshtein distances of a list of ids to each of others: (n,). All at once: an entry of the table
    depends on those to its left, never on the padding to its right."""
    j = np.arange(max(map(len, others)) + 1)
    b = np.array([list(o) + [-1] * (len(j) - 1 - len(o)) for o in others])
    row = np.tile(j, (len(others), 1))                      # row[n, j]: a[:i] to others[n][:j]
    for i, x in enumerate(a, 1):
        row[:, 1:] = np.minimum(row[:, :-1] + (b != x), row[:, 1:] + 1)         # replace or keep, delete
        row[:, 0] = i
        row = np.minimum.accumulate(row - j, axis=1) + j                        # insert, from any k < j
    return row[np.arange(len(others)), [len(o) for o in others]]


def edit_diversity(samples, limit=512):
    """Of lists of ids."""
    samples, shares = [s[:limit] for s in samples], []
    for i, a in enumerate(samples[:-1]):
        longer = [max(len(a), len(b), 1) for b in samples[i + 1:]]
        shares += list(edit_distances(a, samples[i + 1:]) / longer)
    return float(np.mean(shares))


def distinct(answers):
    found = []
    for a in answers:
        if not any(a == b or answers_equal(a, b) for b in found):
            found.append(a)
    return len(found)


def embedding_distance(vectors):
    """Of vectors (K, D)."""
    v = F.normalize(vectors.double(), dim=1)
    return float(np.mean([1 - v[i] @ v[j] for i, j in combinations(range(len(v)), 2)]))


def match_lengths(sets):
    """Places to keep in each list of lengths, so that all have as many in a bin of length: the first ones."""
    bins = [[round(4 * math.log2(n + 1)) for n in lengths] for lengths in sets]
    most = {b: min(own.count(b) for own in bins) for b in set().union(*bins)}
    return [[i for i, b in enumerate(own) if own[:i].count(b) < most[b]] for own in bins]


def describe(samples, ks, refs="pairs"):
    """All figures of one question; what needs a pair is missing of fewer than two samples."""
    K, ids, texts = len(samples), [s["ids"] for s in samples], [s["text"] for s in samples]
    row = {f"pass@{k}": pass_at_k(K, sum(s["right"] for s in samples), k) for k in ks if k <= K}
    if K < 2:
        return row
    found = [extract_answer(text) for text in texts]
    parsed = [a for a in found if a is not None]
    row |= dict(length=sum(map(len, ids)) / K, parsed=len(parsed) / K, edit=edit_diversity(ids),
                bleu_words=self_bleu([t.split() for t in texts], refs), bleu_ids=self_bleu(ids, refs),
                unique=distinct([t if a is None else a for a, t in zip(found, texts)]) / K)
    if parsed:
        row["unique_parsed"] = distinct(parsed) / len(parsed)
    if "vector" in samples[0]:
        row["embed"] = embedding_distance(torch.stack([s["vector"] for s in samples]))
    return row


# --- coherence of the gradient along a completion -----------------------------------------------------------
def score_norms(model, prompt, tokens, V, temperature):
    """|u_1 + … + u_t|^2, |u_t|^2 and log-prob at each t, three tensors (T,), of lists of ids."""
    weights, ids = list(model.parameters()), torch.tensor([prompt + tokens], device=model.device)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, len(prompt) - 1:-1]
    logp = vocab_logps(hidden, model.get_output_embeddings(), V, temperature)
    logp = logp.gather(1, ids[0, len(prompt):, None])[:, 0]
    total, sums, singles = [torch.zeros_like(w) for w in weights], [], []
    for t in range(len(tokens)):
        u = torch.autograd.grad(logp[t], weights, retain_graph=True)
        total = [a + b for a, b in zip(total, u)]
        sums.append(sum(a.square().sum() for a in total))
        singles.append(sum(b.square().sum() for b in u))
    return torch.stack(sums), torch.stack(singles), logp.detach()


def coherence(sums, singles, L):
    """R(L) and its standard error, jackknifed over questions, of score_norms' [question][completion].
    A row that has ended keeps its sum: leaving it out would condition on the future, and R would not be 1."""
    top = torch.stack([sum(s[:L][-1] for s in question) for question in sums]).double()
    bottom = torch.stack([sum(s[:L].sum() for s in question) for question in singles]).double()
    without, n = (top.sum() - top) / (bottom.sum() - bottom), len(top)
    se = ((n - 1) / n * (without - without.mean()).square().sum()).sqrt()
    return (top.sum() / bottom.sum()).item(), se.item()


# --- sampling and printing ----------------------------------------------------------------------------------
@torch.no_grad()
def embed(texts, model, tokenizer, pooling, batch=32):
    """Vectors (n, D), on the CPU. Padding is on the right and masked by place, so no pad id is needed."""
    vectors = []
    for part in (texts[i:i + batch] for i in range(0, len(texts), batch)):
        ids = [tokenizer(t or " ", truncation=True).input_ids for t in part]
        ids = [torch.tensor(row, device=model.device) for row in ids]
        mask = pad_sequence([torch.ones_like(x) for x in ids], batch_first=True)
        ids = pad_sequence(ids, batch_first=True)
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state.float().cpu()
        if pooling == "mean":
            vectors += [h[:n].mean(0) for h, n in zip(hidden, mask.sum(1))]
        else:
            vectors += [h[n - 1 if pooling == "last" else 0] for h, n in zip(hidden, mask.sum(1))]
    return torch.stack(vectors)


def answer(cfg, model, tokenizer, eos_ids, V, problems, prompts, temperature):
    """[question][sample] of a model: text, tokens, ids (tokens without EOS), right."""
    u = draws(cfg.seed, 0, 5, (len(prompts) * cfg.samples, cfg.max_new_tokens)).to(cfg.device)
    tokens, _, lengths, _ = rollout(model, model.get_output_embeddings(), prompts, u, temperature, eos_ids, V)
    rows = [row[:n] for row, n in zip(tokens.tolist(), lengths.tolist())]
    texts, ends = decode(tokenizer, tokens, lengths), eos_ids.tolist()
    flat = [dict(text=text, tokens=row, ids=row[:-1] if row[-1] in ends else row,
                 right=check_answer(text, problems[i // cfg.samples]["answer"]))
            for i, (text, row) in enumerate(zip(texts, rows))]
    return [flat[i:i + cfg.samples] for i in range(0, len(flat), cfg.samples)]


def write(cfg, **fields):
    if cfg.out:
        with open(cfg.out, "a") as f:
            f.write(json.dumps(dict(bench="diversity", **fields, **cfg.about)) + "\n")


def cell(mean, se):
    return "-" if mean is None else f"{mean:.3f}" + (f" ({se:.3f})" if se is not None else "")


def show(cfg, title, names, tables, columns):
    """Means and standard errors over the questions where every model has a figure, then the differences."""
    labels = names + [f"{name} - {names[0]}" for name in names[1:]]
    rows = [{} for _ in labels]
    for c in columns:
        x = np.array([v for v in zip(*([q.get(c) for q in table] for table in tables)) if None not in v])
        x = x.reshape(-1, len(names)).T                         # no question may have it
        for row, v in zip(rows, [*x, *(x[1:] - x[0])]):
            row[c] = v
    print(f"\n{title:26}" + "".join(f"{c:>15}" for c in columns))
    print(f"{'questions':26}" + "".join(f"{len(v):>15}" for v in rows[0].values()))
    for name, row in zip(labels, rows):
        mean = {c: v.mean() if len(v) else None for c, v in row.items()}
        se = {c: v.std(ddof=1) / len(v) ** .5 if len(v) > 1 else None for c, v in row.items()}
        print(f"{name:26}" + "".join(f"{cell(mean[c], se[c]):>15}" for c in columns), flush=True)
        write(cfg, table=title, row=name, questions={c: len(v) for c, v in row.items()}, mean=mean, se=se,
              quantiles={c: np.quantile(v, (.1, .5, .9)).tolist() for c, v in row.items() if len(v)})


def show_coherence(cfg, names, sources, answers, model, V, prompts):
    Ls = [2 ** i for i in range(cfg.max_new_tokens.bit_length())]
    print(f"\n{'R(L), gradients of ' + names[0]:26}" + "".join(f"{'L=' + str(L):>15}" for L in Ls)
          + "  log-log slope  -log p")
    for (folder, temperature), name, questions in zip(sources, names, answers):
        for scored in sorted({sources[0][1], temperature} if folder == sources[0][0] else {sources[0][1]}):
            rows = [[score_norms(model, prompt, s["tokens"], V, scored) for s in q[:cfg.coherence]]
                    for prompt, q in zip(prompts, questions)]
            sums, singles, logps = ([[row[i] for row in q] for q in rows] for i in range(3))
            R = [coherence(sums, singles, L) for L in Ls]
            slope = np.polyfit(np.log(Ls), np.log([r for r, _ in R]), 1)[0]
            nll = -torch.cat([row for q in logps for row in q]).mean().item()
            print(f"{f'{name} scored @{scored:g}':26}" + "".join(f"{cell(*r):>15}" for r in R)
                  + f"{slope:15.3f}{nll:8.3f}", flush=True)
            write(cfg, table="coherence", row=name, scored_at=scored, L=Ls, R=R, slope=slope, nll=nll)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[
        f"{TINY}/{name}" for name in ("learner", "explorer", "learner@1.5")])
    for name, default in dict(data=f"{TINY}/test.jsonl", prompt_format="{question}", encoder="", out="",
                              device="", n=64, samples=32, max_new_tokens=48, seed=1, coherence=0).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--refs", choices=("pairs", "all"), default="pairs")
    parser.add_argument("--pooling", choices=("mean", "last", "first"), default="mean",
                        help="of the encoder's hidden states, as it was trained to be read")
    cfg, began = parser.parse_args(argv), time.time()
    cfg.device = cfg.device or ("cuda" if torch.cuda.is_available() else "cpu")
    problems, sources = load_problems(cfg.data)[:cfg.n], []
    if len(problems) < 2 or cfg.samples < 2 or not 0 <= cfg.coherence <= cfg.samples:
        refuse("--n and --samples must be at least 2, and --coherence at most --samples")
    for name in cfg.models:
        folder, _, temperature = name.partition("@")
        if not re.fullmatch(r"(\d+(\.\d*)?)?", temperature) or float(temperature or 1) == 0:
            refuse(f"--models {name}: a temperature above 0 was expected behind the @")
        sources.append((folder, float(temperature or 1)))
    names = [f"{os.path.basename(os.path.normpath(folder))}@{t:g}" for folder, t in sources]
    cfg.about = {k: v for k, v in vars(cfg).items() if k != "out"} | provenance(cfg.device) | dict(
        models=names, data=os.path.basename(cfg.data), encoder=os.path.basename(cfg.encoder),
        date=time.strftime("%Y-%m-%d"))
    if cfg.encoder:
        try:
            encoder = AutoModel.from_pretrained(cfg.encoder, dtype=torch.float32).to(cfg.device).eval()
            encoder = encoder, AutoTokenizer.from_pretrained(cfg.encoder)
        except (OSError, ValueError) as error:
            refuse(f"--encoder {cfg.encoder}: cannot be loaded", error)

    answers, first = [], None                                   # answers[model][question][sample]
    for folder, temperature in sources:
        model, tokenizer, eos_ids, V = load_model(folder, cfg.device)
        prompts = [encode_prompt(tokenizer, p["question"], cfg.prompt_format) for p in problems]
        first = first or (model, tokenizer, V, prompts)
        if cfg.coherence and tokenizer.get_vocab() != first[1].get_vocab():
            refuse(f"--coherence: {folder} has other token ids than {sources[0][0]}")
        answers.append(answer(cfg, model, tokenizer, eos_ids, V, problems, prompts, temperature))
        if cfg.encoder:
            flat = [s for question in answers[-1] for s in question]
            for s, vector in zip(flat, embed([s["text"] for s in flat], *encoder, cfg.pooling)):
                s["vector"] = vector
    print(f"{len(problems)} questions of {os.path.basename(cfg.data)}, {cfg.samples} samples each")

    right = [[[s for s in question if s["right"]] for question in model] for model in answers]
    even = [[] for _ in answers]
    for across in zip(*answers):                                # a question's samples, by model
        kept = match_lengths([[len(s["ids"]) for s in samples] for samples in across])
        for own, samples, places in zip(even, across, kept):
            own.append([samples[i] for i in places])
    ks = sorted({min(2 ** i, cfg.samples) for i in range(cfg.samples.bit_length() + 1)})
    columns = ["length", "bleu_words", "bleu_ids", "edit"] + ["embed"] * bool(cfg.encoder)
    counts = ["parsed", "unique", "unique_parsed"]              # of right samples they say nothing
    for title, chosen, more in (("all samples", answers, counts), ("right samples", right, []),
                                ("at equal length", even, counts)):
        table = [[describe(question, ks, cfg.refs) for question in model] for model in chosen]
        if chosen is answers:
            show(cfg, "pass@k", names, table, [f"pass@{k}" for k in ks])
        show(cfg, title, names, table, columns + more)
    if cfg.coherence:
        model, _, V, prompts = first
        show_coherence(cfg, names, sources, answers, model, V, prompts)
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
