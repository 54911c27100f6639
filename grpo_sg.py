import re


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
