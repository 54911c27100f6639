"""bench/diversity.py: every measure against a slow version written from its definition, and what must not change it."""
import ast
import itertools
import json
import math
import os
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, TINY, random_model

sys.path.insert(0, os.path.join(ROOT, "bench"))
import diversity  # noqa: E402
from diversity import (coherence, describe, distinct, edit_distances, edit_diversity, embedding_distance,  # noqa: E402
                       match_lengths, score_norms, self_bleu)


def texts(seed, K=6, longest=14, words=5):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, words, rng.integers(0, longest)).tolist() for _ in range(K)]


def slow_bleu(sample, references):
    """Papineni et al., with .1 in place of no match (nltk's method1): by lists, without a Counter."""
    precisions = []
    for n in (1, 2, 3, 4):
        own = [tuple(sample[i:i + n]) for i in range(len(sample) - n + 1)]
        others = [[tuple(r[i:i + n]) for i in range(len(r) - n + 1)] for r in references]
        matched = sum(min(own.count(g), max(o.count(g) for o in others)) for g in set(own))
        if n == 1 and matched == 0:
            return 0.
        precisions.append((matched or .1) / max(1, len(own)))
    nearest = sorted((abs(len(r) - len(sample)), len(r)) for r in references)[0][1]
    brevity = 1 if len(sample) > nearest else math.exp(1 - nearest / len(sample))
    return brevity * np.prod(precisions) ** .25


def slow_distance(a, b):
    if not a or not b:
        return len(a) + len(b)
    return min(slow_distance(a[1:], b) + 1, slow_distance(a, b[1:]) + 1, slow_distance(a[1:], b[1:]) + (a[0] != b[0]))


@pytest.mark.parametrize("seed", range(8))
def test_self_bleu_by_its_definition(seed):
    s = texts(seed)
    pairs = [slow_bleu(a, [b]) for a, b in itertools.permutations(s, 2)]
    assert self_bleu(s) == pytest.approx(np.mean(pairs), abs=1e-12)
    alls = [slow_bleu(a, s[:i] + s[i + 1:]) for i, a in enumerate(s)]
    assert self_bleu(s, "all") == pytest.approx(np.mean(alls), abs=1e-12)
    assert self_bleu([[str(x) for x in a] for a in s]) == self_bleu(s)          # words or ids


def test_bleu_by_hand():
    """a b c d e against a b c d f g: 4/5, 3/4, 2/3, 1/2; brevity exp(1 - 6/5) one way only."""
    there, back = (.8 * .75 * 2 / 3 * .5) ** .25 * math.exp(-.2), (4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** .25
    assert self_bleu(["abcde", "abcdfg"]) == pytest.approx((there + back) / 2)
    assert self_bleu(["ab", "ab"]) == pytest.approx((1 * 1 * .1 * .1) ** .25)   # no 3-grams: .1 / 1


@pytest.mark.parametrize("seed", range(4))
def test_edit_distance_by_its_recursion(seed):
    s = texts(seed, K=7, longest=7, words=3)
    for i, a in enumerate(s):
        assert edit_distances(a, s).tolist() == [slow_distance(a, b) for b in s]
    shares = [slow_distance(a, b) / max(len(a), len(b), 1) for a, b in itertools.combinations(s, 2)]
    assert edit_diversity(s) == pytest.approx(np.mean(shares), abs=1e-12)
    cut = [slow_distance(a[:3], b[:3]) / max(len(a[:3]), len(b[:3]), 1) for a, b in itertools.combinations(s, 2)]
    assert edit_diversity(s, limit=3) == pytest.approx(np.mean(cut), abs=1e-12)


def test_edit_distances_are_a_metric_on_long_lists():
    s = texts(0, K=5, longest=300, words=9)
    d = np.array([edit_distances(a, s) for a in s])
    assert (d == d.T).all() and (np.diag(d) == 0).all()
    assert all(d[i, j] <= d[i, k] + d[k, j] for i, j, k in itertools.product(range(5), repeat=3))
    assert all(abs(len(s[i]) - len(s[j])) <= d[i, j] <= max(len(s[i]), len(s[j])) for i in range(5) for j in range(5))


def test_distinct_answers():
    """As numbers where they are numbers; an order or a repetition changes nothing."""
    answers = ["1/2", "0.5", "$\\frac12$", "x", "x ", "7", "7.0", "1,000", "1000", "$"]
    classes = [{"1/2", "0.5", "$\\frac12$"}, {"x", "x "}, {"7", "7.0"}, {"1,000", "1000"}, {"$"}]
    for order in itertools.islice(itertools.permutations(answers), 0, 3000, 97):
        assert distinct(order) == distinct(order * 2) == len(classes)
    for kind in classes:
        assert distinct(list(kind)) == 1
    assert distinct([]) == 0


def test_embedding_distance_by_its_definition():
    v = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    x = v.double().numpy()
    pairs = [1 - x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j]) for i in range(5) for j in range(i)]
    assert embedding_distance(v) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert embedding_distance(v[:1].repeat(3, 1)) == pytest.approx(0, abs=1e-12)
    assert embedding_distance(torch.eye(4)) == pytest.approx(1)


def samples_of(rows):
    """From (words, answer or None): what diversity.answer makes of completions; right where the answer is 5."""
    vocab = {w: i for i, w in enumerate(sorted({w for words, _ in rows for w in words.split()}))}
    return [dict(text=words + (f" \\boxed{{{a}}}" if a else ""), ids=[vocab[w] for w in words.split()], right=a == "5")
            for words, a in rows]


def test_one_question_by_hand():
    row = describe(samples_of([("a b c d", "5"), ("a b c d", "5.0"), ("e f g h", None), ("i j k l m n", "7")]), [1, 2, 4])
    assert row["unique"] == 3 / 4 and row["unique_parsed"] == 2 / 3 and row["parsed"] == 3 / 4
    assert row["edit"] == pytest.approx(5 / 6) and row["bleu_ids"] == pytest.approx(2 / 12) and row["length"] == 18 / 4
    assert [row[f"pass@{k}"] for k in (1, 2, 4)] == [1 / 4, 1 / 2, 1]


def test_identical_and_disjoint_samples():
    K = 5
    same = describe(samples_of([("a b c d e", "5")] * K), [1, K])
    assert same["bleu_ids"] == same["bleu_words"] == pytest.approx(1) and same["edit"] == 0
    assert same["unique"] == same["unique_parsed"] == 1 / K and same["pass@1"] == same[f"pass@{K}"] == 1
    none = describe(samples_of([(" ".join(f"w{i}{j}" for j in range(5)), None) for i in range(K)]), [1, K])
    assert none["bleu_ids"] == none["bleu_words"] == 0 and none["edit"] == none["unique"] == 1
    assert none["parsed"] == 0 and "unique_parsed" not in none and none["pass@1"] == none[f"pass@{K}"] == 0


def test_order_of_samples_is_nothing():
    rows = samples_of([("a b a c", "5"), ("b a c", "7"), ("a b c c d", None), ("d a", "5"), ("a b a c", "6"), ("q", None)])
    ks = [1, 2, 3, 6]
    for refs in ("pairs", "all"):
        first = describe(rows, ks, refs)
        for order in itertools.islice(itertools.permutations(rows), 0, 720, 61):
            assert describe(list(order), ks, refs) == pytest.approx(first, abs=1e-12)


@pytest.mark.parametrize("n, c", [(6, 0), (6, 1), (6, 3), (6, 6), (4, 2)])
def test_pass_at_k_over_all_subsets(n, c):
    rows = samples_of([("a", "5" if i < c else "6") for i in range(n)])
    row = describe(rows, range(1, n + 3))
    for k in range(1, n + 1):
        assert row[f"pass@{k}"] == pytest.approx(np.mean([any(s["right"] for s in part)
                                                          for part in itertools.combinations(rows, k)]))
    assert row["pass@1"] == pytest.approx(c / n) and row[f"pass@{n}"] == (c > 0) and f"pass@{n + 1}" not in row


def test_too_few_samples_have_no_pairs():
    assert describe([], [1]) == {} and describe(samples_of([("a b", "5")]), [1]) == {"pass@1": 1}


def test_matched_lengths():
    rng = np.random.default_rng(0)
    sets = [rng.integers(1, 9, 40).tolist(), rng.integers(3, 40, 50).tolist(), rng.integers(1, 20, 30).tolist()]
    kept = [[lengths[i] for i in places] for lengths, places in zip(sets, match_lengths(sets))]
    bins = [sorted(round(4 * math.log2(n + 1)) for n in lengths) for lengths in kept]
    assert bins[0] == bins[1] == bins[2] and len(bins[0]) > 3
    assert all(a <= 2 ** .25 * b + .2 for a, b in itertools.product(*map(sorted, kept[:2])) if
               round(4 * math.log2(a + 1)) == round(4 * math.log2(b + 1)))
    counts = [min(sum(round(4 * math.log2(n + 1)) == b for n in lengths) for lengths in sets) for b in range(30)]
    assert len(kept[0]) == sum(counts)                          # none is left out that has its like everywhere
    assert match_lengths([[4, 4, 9], [9, 4]]) == [[0, 2], [0, 1]] and match_lengths([[2], [30]]) == [[], []]
    assert match_lengths([[5, 1, 7]] * 3) == [[0, 1, 2]] * 3    # of itself a model loses none


# --- coherence ----------------------------------------------------------------------------------------------
def enumerate_texts(V, T, eos):
    """All completions of at most T tokens that end with eos, or have T."""
    for tokens in itertools.product(range(V), repeat=T):
        if eos not in tokens[:-1]:
            yield list(tokens)
    for n in range(1, T):
        for tokens in itertools.product([v for v in range(V) if v != eos], repeat=n - 1):
            yield [*tokens, eos]


def probability(model, prompt, tokens, V, temperature):
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1:-1, :V].double() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None]).sum().exp().item()


@pytest.mark.parametrize("temperature", [1., 1.5])
def test_score_identity_by_enumeration(temperature):
    """Of all completions, weighted by the probability under the policy scored, E|sum u|^2 = E sum |u|^2 at every L,
    also where some have ended. Weighted by another policy, or scored at another temperature, it does not hold."""
    V, T, eos, prompt = 3, 3, 2, [1, 0]
    model, other = (random_model("gpt2", seed, V, torch.float64) for seed in (0, 1))
    all_texts = list(enumerate_texts(V, T, eos))
    norms = [score_norms(model, prompt, tokens, V, temperature) for tokens in all_texts]

    def R(policy, heat, L):
        p = np.array([probability(policy, prompt, tokens, V, heat) for tokens in all_texts])
        assert p.sum() == pytest.approx(1)
        top = sum(w * sums[:L][-1].item() for w, (sums, _, _) in zip(p, norms))
        return top / sum(w * singles[:L].sum().item() for w, (_, singles, _) in zip(p, norms))
    assert [R(model, temperature, L) for L in (1, 2, 3)] == pytest.approx([1, 1, 1], abs=1e-12)
    assert abs(R(other, 1., 3) - 1) > .02 and abs(R(model, 2.5 - temperature, 3) - 1) > 1e-3


def test_score_norms_by_finite_differences():
    model, prompt, tokens, step = random_model("gpt2", vocab=7, dtype=torch.float64), [1, 3], [4, 0, 2], 1e-5
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    jacobian = torch.zeros(len(tokens), len(weights), dtype=torch.float64)

    def logps(w):
        torch.nn.utils.vector_to_parameters(w, model.parameters())
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1:-1, :6] / 1.5
        return logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].detach()
    for i in range(0, len(weights), 97):                # a part of all directions, for time
        e = torch.zeros_like(weights)
        e[i] = step
        jacobian[:, i] = (logps(weights + e) - logps(weights - e)) / (2 * step)
    base = logps(weights)
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    sums, singles, logp = score_norms(model, prompt, tokens, 6, 1.5)
    u = torch.stack([torch.nn.utils.parameters_to_vector(torch.autograd.grad(x, list(model.parameters())))
                     for x in all_logps(model, prompt, tokens)])
    torch.testing.assert_close(u[:, ::97], jacobian[:, ::97], atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(singles, u.square().sum(1))
    torch.testing.assert_close(sums, u.cumsum(0).square().sum(1))
    torch.testing.assert_close(logp, base)


def all_logps(model, prompt, tokens):
    for t, token in enumerate(tokens):                  # a forward of its own for each
        yield (model(torch.tensor([prompt + tokens[:t]])).logits[0, -1, :6] / 1.5).log_softmax(-1)[token]


def test_coherence_of_given_norms():
    """Two questions of two completions, the second of them ended after one token; the jackknife leaves a question out."""
    sums = [[torch.tensor([1., 4., 9.]), torch.tensor([2.])], [torch.tensor([1., 2.]), torch.tensor([3., 1., 1.])]]
    singles = [[torch.tensor([1., 1., 1.]), torch.tensor([2.])], [torch.tensor([1., 1.]), torch.tensor([3., 2., 1.])]]
    assert coherence(sums, singles, 1) == pytest.approx((1, 0))
    R, se = coherence(sums, singles, 3)
    assert R == pytest.approx((9 + 2 + 2 + 1) / (3 + 2 + 2 + 6))
    parts = np.array([(2 + 1) / (2 + 6), (9 + 2) / (3 + 2)])
    assert se == pytest.approx(math.sqrt(1 / 2 * ((parts - parts.mean()) ** 2).sum()))
    R, se = coherence([[torch.tensor([x])] for x in (1., 2., 6.)], [[torch.ones(1)]] * 3, 1)     # of a plain mean
    assert (R, se) == pytest.approx((3, math.sqrt(7 / 3)))                  # the jackknife is s / sqrt(n)
    same = [[torch.full((4,), 1.).cumsum(0).square()] * 2] * 3              # all gradients alike: R grows as L
    assert [coherence(same, [[torch.ones(4)] * 2] * 3, L)[0] for L in (1, 2, 4)] == pytest.approx([1, 2, 4])


# --- the command --------------------------------------------------------------------------------------------
def test_embeddings_do_not_depend_on_their_batch():
    """And are a text's own mean, last and first state; an empty text has one too."""
    from transformers import AutoModel, AutoTokenizer
    folder = os.path.join(TINY, "learner")
    model, tokenizer = AutoModel.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder)
    some = ["12+7=19;\\boxed{19}", "\\boxed{3}", "", "1+1=2;2+2=4;4+4=8;\\boxed{8}"]
    with torch.no_grad():
        states = [model(torch.tensor([tokenizer(t or " ").input_ids])).last_hidden_state[0] for t in some]
    for pooling, wanted in dict(mean=[s.mean(0) for s in states], last=[s[-1] for s in states],
                                first=[s[0] for s in states]).items():
        for batch in (1, 3, 9):
            got = diversity.embed(some, model, tokenizer, pooling, batch)
            torch.testing.assert_close(got, torch.stack(wanted), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    """The learner beside itself does not differ; hotter, it does; the samples are those of a plain count."""
    out, learner = tmp_path / "d.jsonl", os.path.join(TINY, "explore", "learner")
    diversity.main(["--models", learner, learner, f"{learner}@1.5", "--n=4", "--samples=6", "--device=cpu",
                    "--coherence=1", "--encoder", os.path.join(TINY, "learner"), "--out", str(out)])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    tables = {}
    for line in lines:
        tables.setdefault(line["table"], []).append(line)
    assert set(tables) == {"pass@k", "all samples", "right samples", "at equal length", "coherence"}
    assert set(tables["pass@k"][0]["mean"]) == {"pass@1", "pass@2", "pass@4", "pass@6"}
    for name in ("all samples", "at equal length"):
        assert {"bleu_words", "bleu_ids", "edit", "embed", "unique", "unique_parsed"} <= set(tables[name][0]["mean"])
    names = [line["row"] for line in tables["all samples"]]
    assert names[:3] == ["learner@1", "learner@1", "learner@1.5"] and len(tables["all samples"]) == 5
    same, hot = tables["all samples"][3:]
    assert all(v == 0 for v in same["mean"].values()) and hot["mean"]["edit"] != 0
    assert [(line["row"], line["scored_at"]) for line in tables["coherence"]] == [
        ("learner@1", 1), ("learner@1", 1), ("learner@1.5", 1), ("learner@1.5", 1.5)]
    assert all(line["R"][0] == [pytest.approx(1), pytest.approx(0, abs=1e-6)] for line in tables["coherence"])
    assert lines[0]["samples"] == 6 and lines[0]["git"] is not None and os.sep + "tiny" not in json.dumps(lines)
    right, every = tables["right samples"][0], tables["pass@k"][0]
    assert 0 < right["questions"]["edit"] < 4 and every["questions"]["pass@1"] == 4
    assert "learner@1.5 - learner@1" in capsys.readouterr().out


def test_answers_are_those_of_rollout():
    """Question by question, right by that question's answer; ids lose the EOS and nothing else."""
    from types import SimpleNamespace
    cfg = SimpleNamespace(seed=1, samples=8, max_new_tokens=22, device="cpu")
    model, tokenizer, eos_ids, V = diversity.load_model(os.path.join(TINY, "explore", "explorer"))
    problems = diversity.load_problems(os.path.join(TINY, "explore", "test.jsonl"))[:6]
    prompts = [diversity.encode_prompt(tokenizer, p["question"]) for p in problems]
    found = diversity.answer(cfg, model, tokenizer, eos_ids, V, problems, prompts, 1.)
    assert [len(q) for q in found] == [8] * 6
    for q, p in zip(found, problems):
        for s in q:
            assert s["right"] == diversity.check_answer(s["text"], p["answer"])
            assert s["ids"] == [i for i in s["tokens"] if i not in eos_ids.tolist()]
            assert s["text"] == tokenizer.decode(s["ids"])
    every = [s for q in found for s in q]
    assert 0 < sum(s["right"] for s in every) < 48 and {len(s["tokens"]) - len(s["ids"]) for s in every} == {0, 1}


def test_table_by_hand(capsys):
    from types import SimpleNamespace
    one, two = [dict(x=1.), dict(x=2.), dict(x=6.), {}], [dict(x=2.), dict(x=2.), dict(x=8.), dict(x=9.)]
    diversity.show(SimpleNamespace(out=""), "title", ["a", "b"], [one, two], ["x", "y"])
    rows = [line.split() for line in capsys.readouterr().out.strip().split("\n")]
    assert rows == [["title", "x", "y"], ["questions", "3", "0"], ["a", "3.000", "(1.528)", "-"],
                    ["b", "4.000", "(2.000)", "-"], ["b", "-", "a", "1.000", "(0.577)", "-"]]


@pytest.mark.parametrize("argv", [["--models", "x@0"], ["--models", "x@hot"], ["--samples=1"], ["--n=1"],
                                  ["--samples=4", "--coherence=5"], ["--encoder=/nowhere", "--n=2"]])
def test_refused_in_a_sentence(argv, capsys):
    with pytest.raises(SystemExit):
        diversity.main(argv)
    error = capsys.readouterr().err
    assert error.startswith("error: --") and ("temperature" in error) == ("x@" in argv[-1])


def test_width():
    with open(os.path.join(ROOT, "bench", "diversity.py")) as f:
        code = f.read()
    assert max(map(len, code.split("\n"))) <= 110 and ast.parse(code)
