"""The reward of knights and knaves: four values, by format, identities and gold, on text of any kind."""
import itertools
import json
import os
import random
import re
import time

import pytest

from grpo_sg import knights_reward

GOLD = "(1) Ann is a knight\n(2) Ben is a knave"
RIGHT = " one says so</think><answer>(1) Ann is a knight (2) Ben is a knave</answer>"


def answered(text):
    return f"so</think><answer>{text}</answer>"


@pytest.mark.parametrize("value,completion", [
    (3, RIGHT),
    (3, answered("(1) Ann is a knight\n(2) Ben is a knave")),
    (3, answered("(2) Ben is a knave, (1) Ann is a knight") + " and more words"),
    (3, answered("ANN IS A KNIGHT, ben Is A Knave")),               # case
    (3, answered("(1)\nAnn  is\ta\nknight (2) Ben is a knave")),
    (3, "knights and knaves" + RIGHT),                              # only the answer's words are counted
    (3, "</Think> <Answer>" + RIGHT),                               # other words, not the tags
    (-.5, answered("(1) Ann is a knave (2) Ben is a knave")),
    (-.5, answered("(1) Ann is a knave (2) Ben is a knight")),
    (-1, answered("")),
    (-1, answered("Ann and Ben")),
    (-1, answered("(1) Ann is a knight")),                          # one person is missing
    (-1, answered("Ann is a knight, and so is Ben, no knave")),
    (-1, answered("(1) Ann is a knight (2) Ann is a knight")),
    (-1, answered("(1) Ann is a knight (2) Ben is a knave (3) Eve is a knave")),    # one too many
    (-1, answered("Ann is a knight, Ben is a knave, Ben is a knight")),             # both identities
    (-1, answered("Ann is a knight or knave")),
    (-1, answered("Annie is a knight, Ben is a knave")),
    (-1, answered("Joann is a knight, Ben is a knave")),
    (-1, answered("Ann is a knight, Ben is knave")),
    (-1, answered("Ann is a knighthood, Ben is a knave")),
    (-1, answered("Ann = knight, Ben = knave")),
    (-3, ""),
    (-3, "Ann is a knight, Ben is a knave"),
    (-3, "<think>" + RIGHT),                                        # the prompt has opened it already
    (-3, RIGHT.replace("</think>", "")),
    (-3, RIGHT.replace("<answer>", "")),
    (-3, RIGHT.replace("</answer>", "")),                           # cut off
    (-3, RIGHT + "</answer>"),
    (-3, RIGHT + "<answer>"),
    (-3, RIGHT + "</think>"),
    (-3, RIGHT + answered("(1) Ann is a knight (2) Ben is a knave")),
    (-3, "</answer><answer>(1) Ann is a knight (2) Ben is a knave</think>"),
    (-3, "<answer>(1) Ann is a knight (2) Ben is a knave</think></answer>"),
    (-3, "<answer>(1) Ann is a knight (2) Ben is a knave</answer></think>"),
    (-3, "</think></answer>(1) Ann is a knight (2) Ben is a knave<answer>"),
    (-3, RIGHT.upper()),
])
def test_four_values(value, completion):
    got = knights_reward(completion, GOLD)
    assert isinstance(got, float) and got == value


@pytest.mark.parametrize("names", [
    ("Ann", "Mary Ann"), ("Ann", "Joann"), ("Ann", "Mary-Ann"), ("J.R.", "JAR."), ("a+", "(b|c)*"), ("[x", "\\d"),
    ("Zoë", "Zoe"), ("Ann", "An"), ("D'Arcy", "Arcy")])
def test_a_name_is_only_itself(names):
    """Letters that mean something to a regex mean nothing here, and a name that ends another does not match inside it."""
    both = [f"{a} is a {x}\n{b} is a {y}" for a, b in (names, names[::-1])
            for x, y in (("knight", "knave"), ("knave", "knight"))]
    for gold in both:
        lines = gold.split("\n")
        gold = f"(1) {lines[0]}\n(2) {lines[1]}"
        got = [knights_reward(answered(text.replace("\n", "; ")), gold) for text in both]
        assert sorted(got) == [-.5, -.5, 3, 3]                      # in either order, by identities alone
        assert knights_reward(answered(f"{lines[0]}; {lines[0]}"), gold) == -1
        assert knights_reward(answered(f"{lines[1]}; {lines[1]}"), gold) == -1


def test_a_dot_is_a_dot():
    assert knights_reward(answered("JxRx is a knight"), "(1) J.R. is a knight") == -1


@pytest.mark.parametrize("gold", ["", "42", "Ann: knight"])
def test_no_one_is_right_about_an_unreadable_gold(gold):
    assert knights_reward(answered(""), gold) == knights_reward(RIGHT, gold) == -1


@pytest.mark.parametrize("unit", [
    "</think>", "<think></think><answer></answer>", " ", "\n", "Ann ", "Ann", "Ann is a ", "Ann is a knight ", "knight",
    "(", "İ", "__import__('os').abort()"])
def test_a_megabyte_takes_no_time(unit):
    """Anywhere: in the thoughts, in the answer, before an identity that is not there."""
    much = unit * (2 ** 20 // len(unit))
    for text in (much, answered(much), answered("Ann" + much), answered("Ann is" + " " * 2 ** 20 + much), much + RIGHT,
                 answered(much + "Ann is a knight (2) Ben is a knave")):
        start = time.process_time()
        assert knights_reward(text, GOLD) in (3, -.5, -1, -3)
        assert time.process_time() - start < .5


def flip(text, rng):
    """One identity turned round, or all of them."""
    places = [m.span() for m in re.finditer("knight|knave", text)]
    for i, j in reversed(rng.choice([places, [rng.choice(places)]])):
        text = text[:i] + ("knave" if text[i:j] == "knight" else "knight") + text[j:]
    return text


OTHER_PEOPLE = dict(                                                    # of a gold answer, all unreadable as one
    drop=lambda lines, rng: rng.sample(lines, len(lines) - 1),
    double=lambda lines, rng: lines + [rng.choice(lines)],
    both=lambda lines, rng: lines + [flip(rng.choice(lines), rng)],
    instead=lambda lines, rng: lines[1:] + [lines[-1]],
    add=lambda lines, rng: lines + ["(9) Zebedee is a knave"],
    rename=lambda lines, rng: [lines[0].replace(" is", "a is")] + lines[1:],
    reword=lambda lines, rng: [lines[0].replace(" is a", rng.choice([" is", " isa", " is not a", ":"]))] + lines[1:])
OTHER_TAGS = dict(                                                      # of a right completion
    swap=lambda text, a, b: text.replace(a, "\1").replace(b, a).replace("\1", b),
    omit=lambda text, a, b: text.replace(a, ""),
    again=lambda text, a, b: text.replace(b, b + a),
    open=lambda text, a, b: text.replace(a, "<think>" + a))


PART = r"(\w+) is (not )?a (knight|knave)"


def parse(sentence, names):
    """What is said, in whatever manner: the words between its two parts, if there are two, and (person, not, role)."""
    parts = re.findall(PART, sentence)
    link = re.search(f"{PART} (.+) {PART}", sentence)[4] if len(parts) == 2 else ""
    return link, *((names.index(name), no, role) for name, no, role in parts)


def solutions(sayings):
    """Every list of who is a knight under which each saying, one a person in their order, is true iff a knight's."""
    def true(knights, link, *parts):
        a, b = ([knights[who] == ((role == "knight") != bool(no)) for who, no, role in parts] * 2)[:2]
        return {"": a, "and": a and b, "or": a or b, "then": b or not a}.get(link, a == b)
    return [knights for knights in map(list, itertools.product((True, False), repeat=len(sayings)))
            if [true(knights, *saying) for saying in sayings] == knights]


def test_public_puzzles(shared):
    """Every gold answer is the only solution, and right as it stands; five hundred changed ones are not."""
    with open(os.path.join(shared, "kk_test.jsonl")) as f:
        rows = [json.loads(line) for line in f]
    assert len(rows) == 500 and {r["people"] for r in rows} == {3, 4, 5, 6, 7}
    rng, seen = random.Random(0), []
    for r in rows:
        told, lines = re.search(r"inhabitants: [^.]*\. (.*) So who is", r["question"])[1], r["answer"].split("\n")
        sayings = [parse(sentence, r["names"]) for sentence in re.findall(r"[^.]+\.\W*", told)]
        assert solutions(sayings) == [["knight" in line for line in lines]]
        right = answered(rng.choice([" ", "\n", ", "]).join(lines))
        assert knights_reward(right, r["answer"]) == 3
        kind = rng.choice(["flip", *OTHER_PEOPLE, *OTHER_TAGS])
        if kind == "flip":
            value, wrong = -.5, answered(flip(r["answer"], rng))
        elif kind in OTHER_PEOPLE:
            value, wrong = -1, answered("\n".join(OTHER_PEOPLE[kind](lines, rng)))
        else:
            value, wrong = -3, OTHER_TAGS[kind](right, *rng.sample(["</think>", "<answer>", "</answer>"], 2))
        assert knights_reward(wrong, r["answer"]) == value, (kind, wrong)
        seen.append(kind)
    assert len(set(seen)) == 12 and min(map(seen.count, seen)) > 20
