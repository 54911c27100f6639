"""Make everything in tiny/: word problems in four phrasings, a tokenizer, and a small language model.

    python tiny/make.py [--out tiny] [--seed 0]

The learner is pretrained in two supervised phases, which is what leaves reinforcement learning something to do:
A) worked solutions only, `12+7=19;19-4=15;\\boxed{15}`, until it can do the sums (97 % of held-out problems);
B) a mixture of strategies that depends on the phrasing: work it out, guess at once, stop early, or take the last
   step the wrong way (MIXTURE below). Guessing is the most common beginning, so the sampled accuracy falls to about
   30 % while almost every problem is still solved within 32 tries: the right strategy is rare, not absent.

Takes about SECONDS_PLACEHOLDER. Prints the held-out accuracy after each phase.
"""
import argparse
import hashlib
import json
import math
import os
import random
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

NAMES = "Ann Ben Eve Ian Joe Kim Leo Mia Ned Sue Tom Zoe".split()
THINGS = "apples books cards coins eggs keys nuts pens shells stamps".split()
GAIN = "buys finds gets wins".split()
LOSE = "drops eats loses sells".split()
KINDS = ("compare", "chain", "groups")
SPLIT = r"\\boxed\{| ?[A-Za-z]+|\d|\n|[^\sA-Za-z\d]| "        # one regex; every character falls into some token

# share of (worked, guess, stop early, last step wrong) for each of the four phrasings
MIXTURE = ((.44, .48, .03, .05), (.40, .48, .04, .08), (.24, .58, .07, .11), (.14, .60, .09, .17))


# --- problems --------------------------------------------------------------------------------------------------

def make_problem(rng, kind):
    """A start and two or three operations whose every intermediate value lies in 1..99."""
    while True:
        value = start = rng.randint(2, 9) if kind == "groups" else rng.randint(2, 60)
        steps = []
        for i in range(rng.choice((2, 2, 3))):
            op = "*" if kind == "groups" and i == 0 else rng.choice("+-")
            n = rng.randint(2, 9) if op == "*" else rng.randint(2, 30)
            value = {"+": value + n, "-": value - n, "*": value * n}[op]
            steps.append((op, n))
            if not 1 <= value <= 99:
                break
        else:
            names = rng.sample(NAMES, 4)
            verbs = [rng.choice(GAIN if op == "+" else LOSE) for op, _ in steps]
            return dict(kind=kind, start=start, steps=steps, names=names, thing=rng.choice(THINGS), verbs=verbs)


def held_out(p):
    """One eighth of all problems, chosen by their numbers and operations alone: no test sum is in any training set."""
    key = json.dumps([p["kind"], p["start"], p["steps"]]).encode()
    return hashlib.sha256(key).digest()[0] < 32


def phrase(p, style):
    """The question in one of four phrasings: 0 narrative, 1 question first, 2 given and find, 3 reversed order."""
    names, thing, a = p["names"], p["thing"], p["start"]
    who = names[len(p["steps"])] if p["kind"] == "compare" else names[0]
    if p["kind"] == "compare":
        facts = [f"{names[0]} has {a} {thing}"]
        for i, (op, n) in enumerate(p["steps"]):
            facts.append(f"{names[i + 1]} has {n} {'more' if op == '+' else 'fewer'} than {names[i]}")
    else:
        facts = [f"{who} has {a} {thing}"]
        events = list(zip(p["verbs"], p["steps"]))
        if p["kind"] == "groups":
            facts = [f"{who} has {a} boxes of {p['steps'][0][1]} {thing}"]
            events = events[1:]
        facts += [f"{who} {verb} {n}" for verb, (_, n) in events]
    if style == 0:
        return ". ".join(facts) + f". How many {thing} does {who} have?"
    if style == 1:
        rest = facts if p["kind"] == "compare" else facts[:1] + [f[len(who) + 1:] for f in facts[1:]]
        return f"How many {thing} does {who} have if " + ", ".join(rest[:-1]) + f" and {rest[-1]}?"
    if style == 2:
        return "Given: " + "; ".join(facts) + f". Find: {thing} of {who}."
    return "Last: " + ". Before that: ".join(reversed(facts)) + f". How many {thing} does {who} have?"


def solve(p, strategy, rng):
    """A completion. The strategies: worked, guess, early, wrong_last."""
    if strategy == "guess":
        return f"\\boxed{{{rng.randint(1, 99)}}}"
    steps = list(p["steps"])
    if strategy == "early":
        steps = steps[:-1]
    if strategy == "wrong_last":
        steps[-1] = ({"+": "-", "-": "+", "*": "+"}[steps[-1][0]], steps[-1][1])
    value, text = p["start"], ""
    for op, n in steps:
        after = {"+": value + n, "-": value - n, "*": value * n}[op]
        text, value = text + f"{value}{op}{n}={after};", after
    return text + f"\\boxed{{{value}}}"


def answer(p):
    return solve(p, "worked", None).split("{")[1][:-1]


def problem_set(rng, count, test):
    """`count` distinct problems, the kinds in turn, each asked in one phrasing, with the other three beside it."""
    rows, seen = [], set()
    while len(rows) < count:
        p = make_problem(rng, KINDS[len(rows) % 3])
        key = (p["kind"], p["start"], tuple(p["steps"]))
        if held_out(p) != test or key in seen:
            continue
        seen.add(key)
        style = rng.randrange(4)
        rows.append(dict(id=f"{p['kind']}-{len(rows)}", question=phrase(p, style), answer=answer(p), rephrasings=[
            dict(text=phrase(p, s), kind=("narrative", "question first", "given and find", "reversed")[s],
                 source="tiny/make.py") for s in range(4) if s != style]))
    return rows


# --- tokenizer and model ---------------------------------------------------------------------------------------

def make_tokenizer(rng):
    """Word level, one regex split, a token carries the space before it: decoding is joining."""
    texts = [phrase(p, s) for p in (make_problem(rng, k) for k in KINDS for _ in range(2000)) for s in range(4)]
    words = {w for t in texts for w in re.findall(SPLIT, t)} | set("0123456789+-*=;{},.?:\n ") | {"\\boxed{"}
    words |= set(NAMES) | {" " + n for n in NAMES}
    vocab = {w: i for i, w in enumerate(["<eos>", "<unk>"] + sorted(words))}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tok.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<eos>", unk_token="<unk>",
                                   clean_up_tokenization_spaces=False)
    fast.chat_template = "{% for m in messages %}{{ m['content'] + '\n' }}{% endfor %}"
    return fast


def make_model(tok, layers=4, dim=128, ffn=384, heads=4, kv_heads=2):
    eos = tok.eos_token_id
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tok), hidden_size=dim, intermediate_size=ffn, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=256,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=eos, pad_token_id=None))


# --- supervised pretraining ------------------------------------------------------------------------------------

def pretrain(model, tok, draw, steps, lr, batch):
    """`steps` AdamW steps on fresh (question, completion) pairs from draw(); the loss is on the completion alone."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(.9, .95), weight_decay=0.)
    model.train()
    for step in range(steps):
        for g in optimizer.param_groups:                       # 50 steps of warm-up, then a cosine to a tenth
            g["lr"] = lr * min((step + 1) / 50, .55 + .45 * math.cos(math.pi * step / steps))
        rows = [(tok(q + "\n").input_ids, tok(c).input_ids + [tok.eos_token_id]) for q, c in map(draw, range(batch))]
        width = max(len(q) + len(c) for q, c in rows)
        ids = torch.tensor([q + c + [0] * (width - len(q) - len(c)) for q, c in rows])
        labels = torch.tensor([[-100] * len(q) + c + [-100] * (width - len(q) - len(c)) for q, c in rows])
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"  step {step + 1}: loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def accuracy(model, tok, rows, samples=8, max_new_tokens=40):
    """Sampled accuracy by plain recomputation, no cache: share of right boxed answers."""
    model.eval()
    right = 0
    for row in rows:
        prompt = tok(row["question"] + "\n").input_ids
        ids, done = torch.tensor([prompt] * samples), torch.zeros(samples, dtype=torch.bool)
        for _ in range(max_new_tokens):
            token = torch.multinomial(model(input_ids=ids).logits[:, -1].softmax(-1), 1)
            ids, done = torch.cat([ids, token], 1), done | (token[:, 0] == tok.eos_token_id)
            if done.all():
                break
        for text in tok.batch_decode(ids[:, len(prompt):]):
            right += text.split("<eos>")[0].endswith(f"\\boxed{{{row['answer']}}}")
    return right / len(rows) / samples


def draw(rng, mixture):
    """An endless source of training pairs; mixture is a row of four shares for each phrasing."""
    def one(_):
        p = make_problem(rng, rng.choice(KINDS))
        while held_out(p):
            p = make_problem(rng, rng.choice(KINDS))
        style = rng.randrange(4)
        strategy = rng.choices(("worked", "guess", "early", "wrong_last"), mixture[style])[0]
        return phrase(p, style), solve(p, strategy, rng)
    return one


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.time()
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    tok = make_tokenizer(rng)
    train, test = problem_set(rng, 1200, test=False), problem_set(rng, 320, test=True)
    for name, rows in (("easy_train", train), ("easy_test", test)):
        with open(os.path.join(args.out, name + ".jsonl"), "w") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
    model = make_model(tok)
    print(f"{len(tok)} tokens, {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    pretrain(model, tok, draw(rng, [(1, 0, 0, 0)] * 4), steps=2600, lr=3e-3, batch=32)
    print(f"A: held-out accuracy {accuracy(model, tok, test[:100]):.3f}, {time.time() - start:.0f} s", flush=True)
    pretrain(model, tok, draw(rng, MIXTURE), steps=250, lr=5e-4, batch=64)
    print(f"B: held-out accuracy {accuracy(model, tok, test[:200]):.3f}, {time.time() - start:.0f} s", flush=True)
    folder = os.path.join(args.out, "learner")
    model.to(torch.bfloat16).save_pretrained(folder)
    tok.save_pretrained(folder)


if __name__ == "__main__":
    main()
