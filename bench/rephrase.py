r"""Rephrasings for ta_grpo.py: a model says each question of IN in other words, filters keep what is safe.

    python bench/rephrase.py tiny/rephrase/test.jsonl out.jsonl --model HuggingFaceTB/SmolLM2-360M-Instruct
    python bench/rephrase.py DigitalLearningGmbH/MATH-lighteval math_rephrased.jsonl --model Qwen/Qwen3-4B \
        --max_new_tokens 2048        # it thinks aloud first

The paper uses GPT-4-Turbo and a prompt we do not know; prompt, kinds and filters are ours. A rephrasing keeps
the answer of its question, so a bad one teaches a wrong label: where in doubt the filters reject, by name:
    empty       nothing was said                     leak       the answer, which the question does not say
    cut         no end within max_new_tokens         worked     it calculates or concludes
    same        as the question, or as one kept      numbers    not the same numbers, in digits or words
    length      not .5 to 3 times as long            variables  not the same one-letter names, in maths any
    long        its prompt passes max_prompt_tokens  latex      braces or dollars do not match
    asks        nothing is asked, where the question has a question mark
They know nothing of meaning: "more than" for "less than" passes. Read a sample before training on it.

Each rephrasing carries its kind, the model, a hash of the prompt and the date. Those in IN stay.
OUT is written question by question; rejects are counted by reason at the end.
"""
import argparse
import hashlib
import json
import os
import re
import sys
import time
from collections import Counter

import torch
from tqdm import tqdm

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from common import decode, draws, encode_prompt, load_model, load_problems, refuse  # noqa: E402
from ta_grpo import rollout  # noqa: E402

PROMPT = ("Rewrite the following problem {how}. Keep its meaning, every number, every name and the units, so "
          "that its answer stays the same. Do not solve it. Reply with the rewritten problem alone.\n\n"
          "{question}")
KINDS = dict(wording="in other words", order="with its information in another order",
             format="in another format, for example as what is given and what is asked")
UNITS = dict(zip("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
                 "fifteen sixteen seventeen eighteen nineteen".split(), range(20)))
TENS = dict(zip("twenty thirty forty fifty sixty seventy eighty ninety".split(), range(20, 100, 10)))
OTHER = "hundred thousand million dozen half halves third thirds quarter quarters twice double triple".split()
NUMBER = re.compile(
    rf"(?<![\d.])\d+(?:\.\d+)?|\b(?:({'|'.join(TENS)})(?:[- ]({'|'.join(list(UNITS)[1:10])}))?"
    rf"|{'|'.join(UNITS)}|{'|'.join(OTHER)})\b")
MONEY = re.compile(r"\$(?=\d[\d,.]*(\s+[A-Za-z]{2}|[/-][A-Za-z]|[;:?!)'’]*(\s*$|\s+[A-Za-z])))")  # no maths
ASKED = re.compile(r"\?|\b(find|calculate|compute|determine|how|what|which|who|when|where)\b")
WORKED = re.compile(r"\\boxed|####|\b(therefore|step 1|solution:|(answer|result|solution) (is|would be))\b")


def numbers(text):
    """The multiset of a text's numbers, digits or words: "1,200 pens, twenty-one" -> [21, 1200]. Words for
    multiples and parts stand for themselves: 200 is not "two hundred", which costs a rephrasing, no label."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text.lower())
    found = []
    for m in NUMBER.finditer(text):
        word = m.group()
        if m.group(1):
            found.append(TENS[m.group(1)] + UNITS.get(m.group(2), 0))
        else:
            found.append(UNITS[word] if word in UNITS else word if word in OTHER else float(word))
    return sorted(found, key=str)


def variables(text):
    """The letters that stand alone, "a" and "I" excepted, and all between dollars but those of commands."""
    text = MONEY.sub("", text)
    maths = re.sub(r"\\[A-Za-z]+", " ", " ".join(re.findall(r"\$(.+?)\$", text)))
    alone = re.findall(r"(?<![A-Za-z\\'’])[A-Za-z](?![A-Za-z'’])", re.sub(r"\$.+?\$", " ", text))
    return set(re.findall("[A-Za-z]", maths)) | set(alone) - {"a", "A", "I"}


def plain(text):
    return re.sub(r"\W+", " ", text.lower()).strip()


def balanced(text):
    depth = 0
    for c in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if c == "{" else -1
        if depth < 0:
            return False
    return depth == 0 and len(re.findall(r"(?<!\\)\$", MONEY.sub("", text))) % 2 == 0


def verdict(question, text, answer, kept=()):
    """Why text cannot stand for question, or "". answer: a string or several; kept: those before it."""
    def says(where, what):                      # as a word of its own: 6 is not in 16 or 6.5
        where = re.sub(r"(?<=\d),(?=\d)", "", where.lower())
        return re.search(rf"(?<![\w.]){re.escape(what.lower())}(?!\w|\.\d)", where) is not None
    golds = [re.sub(r"(?<=\d),(?=\d)", "", str(a)) for a in ([answer] if isinstance(answer, str) else answer)]
    ratio = len(plain(text)) / max(1, len(plain(question)))
    checks = dict(
        empty=not plain(text), same=plain(text) in {plain(question), *map(plain, kept)},
        leak=any(says(text, a) and not says(question, a) for a in golds),
        worked=bool(WORKED.search(text.lower())) or text.count("=") > question.count("="),
        numbers=numbers(text) != numbers(question), latex=not balanced(text),
        variables=variables(text) != variables(question),
        asks="?" in question and not ASKED.search(text.lower()), length=not .5 <= ratio <= 3)
    return next((reason for reason, bad in checks.items() if bad), "")


def main(argv=None):
    ap = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.split("\n")[0])
    ap.add_argument("source", metavar="IN", help="problems, as --data of ta_grpo.py")
    ap.add_argument("target", metavar="OUT", help="JSON lines, the same with rephrasings; must not exist")
    ap.add_argument("--model", required=True, help="folder or hub name of who rephrases")
    ap.add_argument("--number", type=int, default=3, help="rephrasings wanted of a question")
    ap.add_argument("--tries", type=int, default=4, help="completions of each of the three kinds")
    ap.add_argument("--temperature", type=float, default=.8)
    ap.add_argument("--top_p", type=float, default=.95)
    ap.add_argument("--max_new_tokens", type=int, default=256)
    ap.add_argument("--max_prompt_tokens", type=int, default=512, help="of a rephrasing in ta_grpo.py")
    ap.add_argument("--prompt_format", default="{question}", help="that of ta_grpo.py, for max_prompt_tokens")
    ap.add_argument("--questions", type=int, default=0, help="the first so many; 0: all")
    ap.add_argument("--chunk", type=int, default=8, help="questions at once")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = ap.parse_args(argv)
    if os.path.exists(args.target):
        refuse(f"{args.target}: exists; name another file")
    if not os.path.isdir(os.path.dirname(args.target) or "."):
        refuse(f"{args.target}: there is no such folder")
    problems = load_problems(args.source)
    problems = problems[:args.questions or len(problems)]
    dtype = torch.bfloat16 if args.device.startswith("cuda") else torch.float32
    model, tokenizer, eos_ids, V = load_model(args.model, args.device, dtype)
    how = dict(temperature=args.temperature, eos_ids=eos_ids, V=V, top_p=args.top_p)
    made = dict(source=f"model {args.model}", date=time.strftime("%Y-%m-%d"),
                prompt=hashlib.sha256(PROMPT.encode()).hexdigest()[:12])
    reasons, rows = Counter(), len(KINDS) * args.tries
    with open(args.target, "w", encoding="utf-8") as f, tqdm(total=len(problems), desc="questions") as bar:
        for first in range(0, len(problems), args.chunk):
            chunk = problems[first:first + args.chunk]
            asked = [encode_prompt(tokenizer, PROMPT.format(how=k, question=p["question"]))
                     for p in chunk for k in KINDS.values()]
            u = draws(args.seed, first, 5, (len(chunk) * rows, args.max_new_tokens)).to(args.device)
            tokens, _, lengths = rollout(model, model.get_output_embeddings(), asked, u, **how)
            ended = torch.isin(tokens.gather(1, lengths[:, None] - 1), eos_ids)[:, 0].tolist()
            texts = decode(tokenizer, tokens, lengths)
            for i, p in enumerate(chunk):
                found = list(p["rephrasings"])
                for j in range(rows):                           # the kinds in turn
                    kind, attempt = j % len(KINDS), j // len(KINDS)
                    at = i * rows + kind * args.tries + attempt
                    if len(found) >= args.number:
                        break
                    text = texts[at].rsplit("</think>", 1)[-1].strip().strip('"').strip()
                    why = "" if ended[at] else "cut"
                    why = why or verdict(p["question"], text, p["answer"], [r["text"] for r in found])
                    size = len(encode_prompt(tokenizer, text, args.prompt_format))
                    why = why or "long" * (size > args.max_prompt_tokens)
                    reasons[why or "kept"] += 1
                    found += [] if why else [dict(text=text, kind=list(KINDS)[kind], **made)]
                f.write(json.dumps(p | dict(rephrasings=found), ensure_ascii=False) + "\n")
                bar.update()
            f.flush()
    print("rephrasings:", dict(reasons.most_common()), f"in {args.target}")
    return reasons


if __name__ == "__main__":
    main()
