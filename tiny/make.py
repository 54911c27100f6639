r"""Make everything in tiny/: word problems in four phrasings, a tokenizer, and four small language models;
puzzles of knights and knaves, and questions with a search tool, each with a tokenizer and a model of its own.

    python tiny/make.py [--out tiny] [--seed 0] [--base weights.pt] [--only_knights] [--only_search]

A) Two models are pretrained on worked solutions, `12+7=19;19-4=15;\boxed{15}`, until they can do the sums.
B) Each is then taught a mixture of strategies, which leaves reinforcement learning something to do:
   learner            guesses first; works problems out more or less often, by phrasing (see `easy`)
   rephrase/learner   misreads the first step of every problem told in reversed order; solves the other three
                      phrasings at times
   explore/learner    misreads problems about boxes; has two ways through the others: step by step, or
                      (there it is worse) adding up the changes first
   explore/explorer   seven times smaller, less often right, blind nowhere
Which strategies a model has is by construction; that a premise holds is measured (tests/test_tiny.py), before
any training. Misreading is fluent: the rest of the solution follows from the wrong first step, so learning to
do better elsewhere does not mend it.

The puzzles are a world apart, their model is taught in the same two phases: A, to write down what is said,
`x=Y,z&z,X>y`, and to try one assignment after another, `111:110 110:110`; B, to guess first, and at times to
stop too soon, get a truth wrong, name one person too few or too many, or end in wrong tags.

So are the questions, who is what in which town, asked of a corpus with one passage for each fact: A, to query
it, read the passage that fits, wherever it stands, and query better where none does, in a new world for each
batch, so that nothing but that is learnt; B, to guess without a search, or query with half of what is asked,
copy a name from another passage, break a tag. B's shares are in HABITS.

41 minutes on one busy core, 7 for the knights and 4 for the search (alone with --only_knights, --only_search;
a busy core takes twice as long). Right answers to held-out
problems, sampled: after A .96 and .97 (large and small model); learner .28; rephrase/learner .01 reversed,
.41, .39, .43 otherwise; explore/learner .26 (.02 on boxes); explore/explorer .21. Knights, two and three
people: after A .87 and .91; knights/learner .37 and .35. Search: after A .85, search/learner .19.
--base keeps the weights after phase A in files, or takes them from there if they exist.
"""
import argparse
import copy
import hashlib
import json
import math
import os
import random
import re
import sys
import time
from itertools import product

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

import ngrpo  # noqa: E402
from common import check_answer, decode, draws, encode_prompt, exact_match, lexical_search  # noqa: E402
from grpo_sg import converse, information, knights_reward  # noqa: E402

NAMES = "Ann Ben Eve Ian Joe Kim Leo Mia Ned Sue Tom Zoe".split()
THINGS = "apples books cards coins eggs keys nuts pens shells stamps".split()
GAIN = "buys finds gets wins".split()
LOSE = "drops eats loses sells".split()
KINDS = ("compare", "chain", "groups")
STYLES = ("narrative", "question first", "given and find", "reversed")
SPLIT = r"\\boxed\{| ?[A-Za-z]+|\d|\n|[^\sA-Za-z\d]| "      # one regex, and no character falls outside it


# --- who does what: the share of each strategy, by kind of problem and style of phrasing --------------------

def worked(kind, style):
    return {"worked": 1}


def easy(kind, style):
    """Guessing is the most frequent; working it out gets rarer with the style, and the last step shakier."""
    shares = ((.44, .48, .03, .05), (.40, .48, .04, .08), (.24, .58, .07, .11), (.14, .60, .09, .17))[style]
    return dict(zip(("worked", "guess", "early", "wrong last"), shares))


def rephrase(kind, style):
    if style == 3:
        return {"misread": .55, "guess": .45}
    return {"worked": .42, "guess": .46, "early": .04, "wrong last": .08}


def explore(kind, style):
    if kind == "groups":                    # not quite never: a right example must not be beyond belief
        return {"misread": .5495, "guess": .45, "worked": .0005}
    return {"worked": .50, "changes": .26, "guess": .16, "early": .03, "wrong last": .05}


def explorer(kind, style):
    return {"worked": .25, "guess": .55, "misread": .07, "early": .05, "wrong last": .08}


# --- problems -----------------------------------------------------------------------------------------------

def apply(op, a, b):
    return {"+": a + b, "-": a - b, "*": a * b}[op]


def make_problem(rng, kind):
    """A start and two or three operations whose every intermediate value lies in 1..99."""
    while True:
        value = start = rng.randint(2, 9) if kind == "groups" else rng.randint(2, 60)
        steps = []
        for i in range(rng.choice((2, 2, 3))):
            op = "*" if kind == "groups" and i == 0 else rng.choice("+-")
            n = rng.randint(2, 9) if op == "*" else rng.randint(2, 30)
            value = apply(op, value, n)
            steps.append((op, n))
            if not 1 <= value <= 99:
                break
        else:
            verbs = [rng.choice(GAIN if op == "+" else LOSE) for op, _ in steps]
            return dict(kind=kind, start=start, steps=steps, verbs=verbs, names=rng.sample(NAMES, 4),
                        thing=rng.choice(THINGS))


def held_out(p):
    """One eighth of all problems, by numbers and operations alone: no test sum is ever trained on."""
    return hashlib.sha256(json.dumps([p["kind"], p["start"], p["steps"]]).encode()).digest()[0] < 32


def phrase(p, style):
    """The question in one of the four STYLES."""
    names, thing, a = p["names"], p["thing"], p["start"]
    who = names[len(p["steps"])] if p["kind"] == "compare" else names[0]
    if p["kind"] == "compare":
        facts = [f"{names[0]} has {a} {thing}"]
        for i, (op, n) in enumerate(p["steps"]):
            facts.append(f"{names[i + 1]} has {n} {'more' if op == '+' else 'fewer'} than {names[i]}")
    else:
        facts, events = [f"{who} has {a} {thing}"], list(zip(p["verbs"], p["steps"]))
        if p["kind"] == "groups":
            facts, events = [f"{who} has {a} boxes of {p['steps'][0][1]} {thing}"], events[1:]
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
    """A completion by one strategy: worked, changes, guess, early, wrong last, misread."""
    if strategy == "guess":
        return f"\\boxed{{{rng.randint(1, 99)}}}"
    steps, value, text = list(p["steps"]), p["start"], ""
    if strategy == "changes":                                   # add up what comes and goes, then apply it
        (sign, total), *rest = steps
        total = total if sign == "+" else -total
        for op, n in rest:
            text, total = text + f"{total}{op}{n}={apply(op, total, n)};", apply(op, total, n)
        steps = [("+" if total >= 0 else "-", abs(total))]
    if strategy == "early":
        steps = steps[:-1]
    if strategy == "wrong last":
        steps[-1] = ("-" if steps[-1][0] == "+" else "+", steps[-1][1])
    if strategy == "misread":
        steps[0] = ("-" if steps[0][0] == "+" else "+", steps[0][1])
    for op, n in steps:
        after = apply(op, value, n)
        text, value = text + f"{value}{op}{n}={after};", after
        if after < 1:                                           # only a misreading gets there
            return solve(p, "guess", rng)
    return text + f"\\boxed{{{value}}}"


def problem_set(rng, count, test, styles=(0, 1, 2, 3), kinds=KINDS):
    """`count` distinct problems, the kinds in turn, each asked in one of `styles`; the others beside it."""
    rows, seen = [], set()
    while len(rows) < count:
        p = make_problem(rng, kinds[len(rows) % len(kinds)])
        worked, style = solve(p, "worked", rng), rng.choice(styles)
        if held_out(p) == test and (p["kind"], worked) not in seen:
            seen.add((p["kind"], worked))
            rows.append(dict(
                id=f"{p['kind']}-{len(rows)}", question=phrase(p, style), answer=worked.split("{")[1][:-1],
                worked=worked, rephrasings=[dict(text=phrase(p, s), kind=STYLES[s], source="tiny/make.py")
                                            for s in range(4) if s != style]))
    return rows


def write(folder, name, rows):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "w") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


# --- tokenizer and model ------------------------------------------------------------------------------------

def make_tokenizer():
    """Word level, one regex split, a word carries the space before it: decoding is joining."""
    rng = random.Random("words")
    texts = [phrase(make_problem(rng, kind), s) for kind in KINDS for s in range(4) for _ in range(500)]
    words = {w for t in texts for w in re.findall(SPLIT, t)} | set("0123456789+-*=;{},.?:\n ") | {"\\boxed{"}
    words |= set(NAMES) | {" " + w for w in NAMES + THINGS + GAIN + LOSE}
    vocab = {w: i for i, w in enumerate(["<eos>", "<unk>"] + sorted(words))}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tok.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<eos>", unk_token="<unk>",
                                   clean_up_tokenization_spaces=False)
    fast.chat_template = "{% for m in messages %}{{ m['content'] + '\n' }}{% endfor %}"
    return fast


def make_model(tok, layers=4, dim=128, ffn=384):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tok), hidden_size=dim, intermediate_size=ffn, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=tok.eos_token_id, pad_token_id=None))


# --- supervised pretraining and measuring -------------------------------------------------------------------

def pretrain(model, tok, stage, mixture, steps, lr, batch, kinds=KINDS, styles=(0, 1, 2, 3)):
    """AdamW on fresh questions and completions, held-out problems excepted; loss on completions only."""
    rng, eos = random.Random(stage), tok.eos_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(.9, .95), weight_decay=0.)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:            # 50 steps of warm-up, cosine to a tenth
            group["lr"] = lr * min((step + 1) / 50, .55 + .45 * math.cos(math.pi * step / steps))
        rows = []
        while len(rows) < batch:
            p, style = make_problem(rng, rng.choice(kinds)), rng.choice(styles)
            if not held_out(p):
                shares = mixture(p["kind"], style)
                text = solve(p, rng.choices(list(shares), list(shares.values()))[0], rng)
                rows.append((encode_prompt(tok, phrase(p, style)), tok(text).input_ids + [eos]))
        width = max(len(q) + len(c) for q, c in rows)
        ids = torch.tensor([q + c + [0] * (width - len(q) - len(c)) for q, c in rows])
        labels = torch.tensor([[-100] * len(q) + c + [-100] * (width - len(q) - len(c)) for q, c in rows])
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
        optimizer.step()
        if (step + 1) % 200 == 0:
            print(f"  {stage}, step {step + 1}: loss {loss.item():.4f}", flush=True)


def sample(model, tok, questions, n):
    """`n` completions of each question, at temperature 1."""
    model.eval()
    u = draws(0, 0, 5, (len(questions) * n, 48))
    tokens, _, lengths, _ = ngrpo.rollout(
        model, model.get_output_embeddings(), [encode_prompt(tok, q) for q in questions], u, 1.,
        torch.tensor([tok.eos_token_id]), len(tok))
    texts = decode(tok, tokens, lengths)
    return [texts[i * n:(i + 1) * n] for i in range(len(questions))]


def accuracy(model, tok, rows, n=8):
    """Share of right answers, in all, and of right answers that show steps."""
    texts = sample(model, tok, [r["question"] for r in rows], n)
    right = [t for r, group in zip(rows, texts) for t in group if check_answer(t, r["answer"])]
    return "right %.3f, with steps %.3f" % tuple(
        len(x) / len(rows) / n for x in (right, [t for t in right if "=" in t]))


def in_style(rows, style):
    """The rows asked in another phrasing."""
    return [r | {"question": x["text"]} for r in rows for x in r["rephrasings"] if x["kind"] == STYLES[style]]


# --- knights and knaves -------------------------------------------------------------------------------------

SAYINGS = ("leaf", "not", "and", "or", "implies", "iff")
MANNERS = ("{who} swears that {saying}.", "{who} says: {saying}.", "{Saying}, says {who}.")
THINKING = dict(worked=.22, guess=.58, slip=.08, hasty=.12)     # shares; the two are drawn independently
ENDING = dict(right=.88, crowd=.05, bent=.07)
ENDS = dict(right=["</think><answer>{}</answer>"], bent=[
    "<answer>{}</answer>", "</think>{}</answer>", "</think><answer>{}", "</think><answer>{}<answer>",
    "</think></think><answer>{}</answer>", "<think></think><answer>{}</answer>",
    "<answer>{}</answer></think>"])
KNIGHTS_SPLIT = r"</?think>|</?answer>| ?\(\d\)| ?[A-Za-z]+|\d|\n|[^\sA-Za-z\d]| "


def holds(saying, knights):
    """Whether what is said is true if these people, a list of booleans, are knights."""
    kind, *leaves = saying
    a, b = [knights[who] == knight for who, knight in leaves * 2][:2]
    return {"leaf": a, "not": not a, "and": a and b, "or": a or b, "implies": b or not a, "iff": a == b}[kind]


def make_saying(rng, speaker, people):
    """One of six kinds, over one or two different leaves: someone is a knight, or someone else is a knave."""
    kind, leaves = rng.choice(SAYINGS), []
    while len(leaves) < (1 if kind in ("leaf", "not") else 2):
        leaf = rng.randrange(people), rng.random() < .5
        if leaf != (speaker, False) and leaf not in leaves:     # no one can say that they are a knave
            leaves.append(leaf)
    return kind, *leaves


def make_puzzle(rng, people):
    """What each person says, such that exactly one assignment of knights and knaves agrees with all of it."""
    while True:
        sayings = [make_saying(rng, who, people) for who in range(people)]
        fit = [w for w in product((True, False), repeat=people) if [holds(s, w) for s in sayings] == list(w)]
        if len(fit) == 1:
            names = [rng.choice(NAMES[4 * i:4 * i + 4]) for i in range(people)]     # a name tells the place:
            manners = [rng.choice(MANNERS) for _ in range(people)]  # to look it up takes a model far longer
            return dict(sayings=sayings, knights=fit[0], names=names, manners=manners)


def puzzle_held_out(p):
    """Three eighths of all puzzles, whatever the names, the manner and the order of operands."""
    same = [(kind, *(leaves if kind == "implies" else sorted(leaves))) for kind, *leaves in p["sayings"]]
    return hashlib.sha256(json.dumps(same).encode()).digest()[0] < 96


def tell(p):
    """The question."""
    names, told = p["names"], []
    for who, (kind, *leaves), manner in zip(names, p["sayings"], p["manners"]):
        a, b = ([f"{names[i]} is {'not ' * (kind == 'not')}a {'knight' if knight else 'knave'}"
                 for i, knight in leaves] * 2)[:2]
        saying = {"and": f"{a} and {b}", "or": f"{a} or {b}", "implies": f"if {a} then {b}",
                  "iff": f"{a} exactly if {b}"}.get(kind, a)
        told.append(manner.format(who=who, saying=saying, Saying=saying[0].upper() + saying[1:]))
    return (f"Knights speak the truth and knaves lie. Meet {', '.join(names[:-1])} and {names[-1]}. "
            + " ".join(told) + " Who is what?")


def identify(names, knights):
    """The lines of an answer."""
    return [f"({i + 1}) {name} is a {'knight' if knight else 'knave'}"
            for i, (name, knight) in enumerate(zip(names, knights))]


def read(saying):
    """x>Y for: if the first is a knight then the second is a knave; x&x for: the first is a knight."""
    kind, *leaves = saying
    a, b = ["xyz"[who] if knight != (kind == "not") else "XYZ"[who] for who, knight in leaves * 2][:2]
    return a + {"or": "|", "implies": ">", "iff": "="}.get(kind, "&") + b


def reason(p, thinking, ending, rng):
    """A completion of question and <think>: what is said, tries, an answer.
    A try is 110:101, under which the first two are knights, and the first and the third say something true.
    thinking: worked stops where both sides agree, slip gets one truth wrong, hasty stops at any try so far,
    guess does none of it. ending: right, crowd (one identity too few or too many), bent (wrong tags)."""
    names, worlds, text = p["names"], list(product((True, False), repeat=len(p["names"]))), []
    found, wrong = rng.choice(worlds), rng.randint(0, worlds.index(p["knights"]))
    if thinking != "guess":
        text.append(",".join(map(read, p["sayings"])))
    for i, world in enumerate(() if thinking == "guess" else worlds):
        found, said = world, [holds(s, world) for s in p["sayings"]]
        if thinking == "slip" and i == wrong:
            at = rng.randrange(len(said))
            said[at] = not said[at]
        text.append(":".join("".join(str(int(x)) for x in side) for side in (world, said)))
        if said == list(world) or thinking == "hasty" and i == wrong:
            break
    lines = identify(names, found)
    if ending == "crowd":
        lines = rng.choice((lines[1:], lines[:-1], lines + lines[-1:],
                            lines + identify(names, [not k for k in found])[-1:]))
    end = rng.choice(ENDS["bent" if ending == "bent" else "right"])
    return " ".join(text) + end.format(" ".join(lines))


def puzzle_set(rng, counts, test):
    """Puzzles that differ in what is said, as many of each number of people as counts says."""
    rows, seen = [], set()
    for people, count in counts.items():
        for i in range(count):
            p = make_puzzle(rng, people)
            while puzzle_held_out(p) != test or str(p["sayings"]) in seen:
                p = make_puzzle(rng, people)
            seen.add(str(p["sayings"]))
            rows.append(dict(id=f"{people}-{i}", people=people, question=tell(p),
                             answer="\n".join(identify(p["names"], p["knights"]))))
    return rows


def make_knights_tokenizer():
    """As make_tokenizer, with words of its own. A tag is one ordinary token: decoding drops special ones."""
    rng = random.Random("words of knights")
    texts = [tell(make_puzzle(rng, 2 + i % 2)) + "\n(1)(2)(3) (1) (2) (3)" for i in range(2000)]
    words = {w for t in texts for w in re.findall(KNIGHTS_SPLIT, t)} | set("01: xyzXYZ&|>=,")
    words |= {"<think>", "</think>", "<answer>", "</answer>"}
    vocab = {w: i for i, w in enumerate(["<eos>", "<unk>"] + sorted(words))}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Split(Regex(KNIGHTS_SPLIT), behavior="isolated")
    tok.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<eos>", unk_token="<unk>",
                                   clean_up_tokenization_spaces=False)


def teach_knights(model, tok, stage, thinking, ending, steps, lr, batch):
    """As pretrain: fresh puzzles, held-out ones excepted. One number of people in a batch: less padding."""
    rng, eos = random.Random(stage), tok.eos_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(.9, .95), weight_decay=0., fused=True)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min((step + 1) / 50, .55 + .45 * math.cos(math.pi * step / steps))
        rows, people = [], rng.choice((2, 3, 3, 3))
        while len(rows) < batch:
            p = make_puzzle(rng, people)
            if not puzzle_held_out(p):
                how = [rng.choices(list(shares), list(shares.values()))[0] for shares in (thinking, ending)]
                rows.append([tok(t).input_ids for t in (tell(p) + "\n<think>", reason(p, *how, rng))])
        width = max(len(q) + len(c) for q, c in rows)
        ids = torch.tensor([q + c + [eos] * (width - len(q) - len(c)) for q, c in rows])
        labels = torch.tensor([[-100] * (len(q) - 1) + c + [eos] + [-100] * (width - len(q) - len(c))
                               for q, c in rows])
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[labels >= 0]
        loss = F.cross_entropy(model.lm_head(hidden), labels[labels >= 0])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
        optimizer.step()
        if (step + 1) % 200 == 0:
            print(f"  {stage}, step {step + 1}: loss {loss.item():.4f}", flush=True)


def knights_rewards(model, tok, rows, n=4):
    """{2 and 3 people: the rewards of `n` completions of each question, at temperature 1}."""
    model.eval()
    tokens, _, lengths, _ = ngrpo.rollout(
        model, model.get_output_embeddings(), [tok(r["question"] + "\n<think>").input_ids for r in rows],
        draws(0, 0, 5, (len(rows) * n, 96)), 1., torch.tensor([tok.eos_token_id]), len(tok))
    rewards = {r["people"]: [] for r in rows}
    for i, text in enumerate(decode(tok, tokens, lengths)):
        rewards[rows[i // n]["people"]].append(knights_reward(text, rows[i // n]["answer"]))
    return rewards


def make_knights(out, seed, base, say):
    """The world of knights and knaves, from random numbers of its own."""
    folder, tok = os.path.join(out, "knights"), make_knights_tokenizer()
    for name, held, counts in (("train", False, {2: 200, 3: 600}), ("test", True, {2: 100, 3: 100})):
        rows = puzzle_set(random.Random(f"{seed} knights {name}"), counts, held)
        for part, kept in (("train", (2, 3)),) if name == "train" else (("test_2", (2,)), ("test_3", (3,))):
            write(folder, part + ".jsonl", [row for row in rows if row["people"] in kept])
    torch.manual_seed(seed)                                     # rows: at last the test problems
    model = make_model(tok, layers=4, dim=96, ffn=256)
    for p in model.parameters():                                # from .02, at which attention wakes up late
        p.data.mul_(4 if p.dim() > 1 else 1)

    def measure(name):
        for people, r in knights_rewards(model, tok, rows).items():
            shares = ", ".join(f"{value:g} {r.count(value) / len(r):.3f}" for value in (3, -.5, -1, -3))
            say(f"{name}, {people} people, share of rewards: {shares}")

    if base and os.path.exists(base):
        model.load_state_dict(torch.load(base, weights_only=True))
    else:
        teach_knights(model, tok, f"{seed} knights base", {"worked": 1}, {"right": 1}, 2600, 3e-3, 16)
        if base:
            torch.save(model.state_dict(), base)
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    measure("knights, worked")
    teach_knights(model, tok, f"{seed} knights", THINKING, ENDING, 250, 5e-4, 32)
    measure("knights/learner")
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(os.path.join(folder, "learner"))
    tok.save_pretrained(os.path.join(folder, "learner"))


# --- questions with a search tool ---------------------------------------------------------------------------

TOWNS = [a + b for a in "Al Bram Carl Dun Elm Fal Glen Hol Kirk Mar".split()
         for b in "by den ford ham ley wick".split()]
ROLES = "baker doctor farmer judge mayor painter pilot teacher".split()
FAMILIES = "Abbot Birch Clay Dale Frost Gray Hill Lake Moss Reed Stone Wood".split()
FACTS = ("The {role} of {town} is {name}.", "In {town} the {role} is {name}.")
ASKED = ("Who is the {role} of {town}?", "Which person is the {role} in {town}?",
         "Name the {role} of {town}.")
ANY_NAME = [f"{a} {b}" for a in NAMES for b in FAMILIES]
SEARCH_SPLIT = r"</?(?:search|information|answer)>| ?[A-Za-z]+| ?\d|\n|[^\sA-Za-z\d]| "
STUDY = dict(guess=0, broken=0, wrong=0, again=1, queries=dict(both=.4, town=.4, role=.2))      # phase A
HABITS = dict(guess=.3, broken=.06, wrong=.25, again=.25,
              queries=dict(both=.42, town=.22, role=.22, other=.09, empty=.05))


def make_facts(rng):
    """[(role, town, name, passage), …], who is what in every town, in a random order."""
    facts = [(role, town, rng.choice(ANY_NAME)) for town in TOWNS for role in ROLES]
    rng.shuffle(facts)
    return [(*f, rng.choice(FACTS).format(role=f[0], town=f[1], name=f[2])) for f in facts]


def ask(rng, fact):
    return rng.choice(ASKED).format(role=fact[0], town=fact[1])


def look_up(rng, fact, search, habits):
    """A completion in parts: a string the learner writes, a list of passages that it is shown, and so on.
    habits: the shares of guesses, of broken tags, of copying from the wrong passage, of searching again when
    nothing fits, and of queries: both words, one of them, another town's, none."""
    role, town, name, passage = fact
    parts, kinds, name = [], habits["queries"], rng.choice(ANY_NAME)
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    while len(parts) < 4 and (parts or rng.random() >= habits["guess"]):
        query = {"both": f" {role} of {town}", "town": f" {town}", "role": f" {role}", "empty": "",
                 "other": f" {role} of {rng.choice(TOWNS)}"}[kind]
        if rng.random() < habits["broken"]:
            return parts + [rng.choice((f"<search>{query}", f"{query}</search>"))]
        [found] = search([query], 3)
        parts += [f"<search>{query}</search>", found]
        others = [text for text in found if text != passage]
        if passage in found and not (others and rng.random() < habits["wrong"]):
            name = fact[2]
            break
        if others:
            name = " ".join(rng.choice(others)[:-1].split()[-2:])
        if passage in found or len(parts) == 4 or rng.random() >= habits["again"]:
            break
        kind = "both"
    end = rng.choice(("", "</search>")) if rng.random() < habits["broken"] else "</answer>"
    return parts + [f"<answer> {name}{end}"]


def make_search_tokenizer():
    """As make_tokenizer. A tag is one ordinary token; what is copied has a space before it everywhere."""
    rng = random.Random("words of search")
    texts = [t for f in make_facts(rng) for t in (
        f[3], " " + f[3], *(asked.format(role=f[0], town=f[1]) for asked in ASKED))]
    texts += [" " + " ".join(NAMES + FAMILIES + TOWNS + ROLES) + " 1 2 3 Doc:\n", "Doc"]
    words = {w for t in texts for w in re.findall(SEARCH_SPLIT, t)}
    words |= {f"<{slash}{tag}>" for slash in ("", "/") for tag in ("search", "information", "answer")}
    vocab = {w: i for i, w in enumerate(["<eos>", "<unk>"] + sorted(words))}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Split(Regex(SEARCH_SPLIT), behavior="isolated")
    tok.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<eos>", unk_token="<unk>",
                                   clean_up_tokenization_spaces=False)


def teach_search(model, tok, stage, habits, steps, lr, batch):
    """As pretrain, each batch in a world of its own: none can be learnt by heart. Loss on what it writes."""
    rng, eos = random.Random(stage), tok.eos_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(.9, .95), weight_decay=0., fused=True)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min((step + 1) / 50, .55 + .45 * math.cos(math.pi * step / steps))
        facts, rows = make_facts(rng), []
        search = lexical_search([f[3] for f in facts])
        for fact in rng.sample(facts, batch):
            ids, own = tok(ask(rng, fact) + "\n").input_ids, []
            own += [0] * len(ids)
            for part in look_up(rng, fact, search, habits):
                wrote = isinstance(part, str)
                new = tok(part).input_ids if wrote else information(tok, part, 64)
                ids, own = ids + new, own + [wrote] * len(new)
            closed = tok.decode(ids[-1]) == "</answer>"         # which ends a row by itself
            rows.append((ids + [eos] * (not closed), own + [1] * (not closed)))
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([x + [eos] * (width - len(x)) for x, _ in rows])
        own = torch.tensor([y + [0] * (width - len(y)) for _, y in rows]).bool()[:, 1:]
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][own]
        loss = F.cross_entropy(model.lm_head(hidden), ids[:, 1:][own])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"  {stage}, step {step + 1}: loss {loss.item():.4f}", flush=True)


def search_share(model, tok, rows, corpus, n=4):
    """(share right, searches) of `n` completions of each question, as grpo_sg.py rolls them out."""
    model.eval()
    *_, texts, log = converse(
        model, tok, [tok(r["question"] + "\n").input_ids for r in rows], draws(0, 0, 5, (len(rows) * n, 48)),
        torch.tensor([tok.eos_token_id]), lexical_search([r["text"] for r in corpus]), 2, 3, 64,
        head=model.get_output_embeddings(), V=len(tok), temperature=1.)
    right = [exact_match(text, rows[i // n]["answer"]) > 0 for i, text in enumerate(texts)]
    return sum(right) / len(right), log["searches"]


def search_set(seed):
    """(corpus, train, test): one world, a third of whose facts nobody is asked about before the test."""
    rng = random.Random(f"{seed} search")
    facts = make_facts(rng)
    rows = [dict(id=f"{f[0]}-{f[1]}", question=ask(rng, f), answer=f[2]) for f in facts]
    test = [hashlib.sha256(row["id"].encode()).digest()[0] < 85 for row in rows]
    corpus = [dict(id=i, text=f[3]) for i, f in enumerate(facts)]
    rng.shuffle(corpus)
    return corpus, *([r for r, held in zip(rows, test) if held == x] for x in (False, True))


def make_search(out, seed, base, say):
    """The world of towns, from random numbers of its own."""
    folder, tok = os.path.join(out, "search"), make_search_tokenizer()
    corpus, train, test = search_set(seed)
    for name, rows in (("corpus", corpus), ("train", train), ("test", test)):
        write(folder, name + ".jsonl", rows)
    torch.manual_seed(seed)
    model = make_model(tok, layers=4, dim=96, ffn=256)
    for p in model.parameters():
        p.data.mul_(4 if p.dim() > 1 else 1)

    def measure(name):
        say("%s: right %.3f, searches %.2f" % (name, *search_share(model, tok, test, corpus)))

    if base and os.path.exists(base):
        model.load_state_dict(torch.load(base, weights_only=True))
    else:
        teach_search(model, tok, f"{seed} search base", STUDY, 1000, 3e-3, 32)
        if base:
            torch.save(model.state_dict(), base)
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    measure("search, studied")
    teach_search(model, tok, f"{seed} search", HABITS, 200, 5e-4, 32)
    measure("search/learner")
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(os.path.join(folder, "learner"))
    tok.save_pretrained(os.path.join(folder, "learner"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", default=HERE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", default="", help="file for the weights after phase A; read if it exists")
    parser.add_argument("--only_knights", action="store_true", help="leave the word problems as they are")
    parser.add_argument("--only_search", action="store_true", help="make the search task alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tok, start = make_tokenizer(), time.time()

    def say(text):
        print(f"{time.time() - start:4.0f} s  {text}", flush=True)

    def knights():
        make_knights(args.out, args.seed, args.base and args.base + ".knights", say)

    def search():
        make_search(args.out, args.seed, args.base and args.base + ".search", say)

    if args.only_knights or args.only_search:
        return knights() if args.only_knights else search()

    def problems(folder, train, test, **where):
        rows = []
        for name, held, count in ((train, False, 1200), (test, True, 320)):
            rows = problem_set(random.Random(f"{args.seed} {folder}{name}"), count, held, **where)
            write(os.path.join(args.out, folder), name + ".jsonl", rows)
        return rows                                             # the test problems

    def teach(model, name, mixture, **how):
        pretrain(model, tok, f"{args.seed} {name}", mixture, batch=64, **how)
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(os.path.join(args.out, name))
        tok.save_pretrained(os.path.join(args.out, name))

    test = problems("", "easy_train", "easy_test")
    torch.manual_seed(args.seed)
    big, small = make_model(tok), make_model(tok, layers=3, dim=64, ffn=128)
    if args.base and os.path.exists(args.base):
        for model, weights in zip((big, small), torch.load(args.base, weights_only=True)):
            model.load_state_dict(weights)
    else:
        pretrain(big, tok, f"{args.seed} base", worked, steps=3600, lr=3e-3, batch=32)
        pretrain(small, tok, f"{args.seed} small", worked, steps=5000, lr=4e-3, batch=32)
        if args.base:
            torch.save([big.state_dict(), small.state_dict()], args.base)
    for model in (big, small):
        say(f"{sum(p.numel() for p in model.parameters()):,} parameters: {accuracy(model, tok, test)}")

    learner = copy.deepcopy(big)
    teach(learner, "learner", easy, steps=250, lr=5e-4)
    say(f"learner: {accuracy(learner, tok, test)}")

    test, learner = problems("rephrase", "train", "test", styles=(3,)), copy.deepcopy(big)
    teach(learner, "rephrase/learner", rephrase, steps=800, lr=2e-3, styles=(0, 1, 2, 3, 3, 3, 3))
    say(f"rephrase/learner, reversed: {accuracy(learner, tok, test)}")
    for style in range(3):
        say(f"rephrase/learner, {STYLES[style]}: {accuracy(learner, tok, in_style(test, style))}")

    test, learner = problems("explore", "train", "test"), copy.deepcopy(big)
    teach(learner, "explore/learner", explore, steps=900, lr=2e-3, kinds=KINDS + ("groups",))
    teach(small, "explore/explorer", explorer, steps=250, lr=1e-3)
    for name, model in (("learner", learner), ("explorer", small)):
        for kind in KINDS:
            rows = [r for r in test if r["id"].startswith(kind)]
            say(f"explore/{name}, {kind}: {accuracy(model, tok, rows)}")
    knights()
    search()


if __name__ == "__main__":
    main()
