"""Is an answer right? For rewards, so nothing here may hang, raise, or run what a model wrote.

    extract_answer(completion)        the final answer as text, or None
    answers_equal(pred, gold)         whether two bare answers mean the same
    check_answer(completion, gold)    both; gold may be a list of accepted answers; a lone letter is a choice
    exact_match(completion, gold)     for questions about facts: the last <answer>, word by word

A small parser computes while it reads: no expression tree, no algebra, no evaluated text. It reads one of

    Value      an expression, as what it is at five fixed points of its letters (at one if it has none):
               fractions, exact while they are small, else 60-digit floats. x + x and 2x agree at each point.
    Group      {1, 2}, "1 and 2", (1, 2], 2:3, a matrix: a kind and its items
    Relation   y = 2x + 3, 1 < x <= 4
    Reals      a set of reals: the points where membership may change, and the test of membership

and like is compared with like. What cannot be read to its end equals its own spelling alone. Each step is
bounded before it is taken (length, depth, size of a power), so time is too: no clock, alarm, thread, process.

Conventions: 50% is 1/2; a list has no order, a bracketed pair has; a unit on one side only is dropped; a
decimal equals an exact value if it has 13 right digits; log is base 10; words ignore case; (-8)^(1/3) is -2.
"""
import math
import operator
import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple
from zlib import crc32

import mpmath                                           # sympy's own numbers

mp = mpmath.mp.clone()                                  # a context of our own: nobody else sets its precision
mp.dps = 60
SAME = mp.mpf(10) ** -30                                # relative difference of equal floats
MOST_BITS, MOST_CHARS, MOST_DEPTH, MOST_ITEMS = 20_000, 1_000, 40, 60


# --- from a completion to its answer ------------------------------------------------------------------------
ANCHOR = re.compile(r"\b(?:answer|option|choice|result)\b[*_]{0,3}"
                    r"(?: {0,3}(?::|=|is\b|would be\b)|(?= ?(?:\$|\\[(\[]))|(?<=\*)\n)", re.I)
MATHS = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\(([^$]+?)\\\)|\\\[([^$]+?)\\\]")


def extract_answer(text):
    """The final answer, or None. After the last </think>: the last box; else what follows the last ####; else
    <answer>…</answer>; else what follows the last "answer is" or "answer:". Never just the last number."""
    text = text[-20_000:].rsplit("</think>", 1)[-1]
    if boxes := [m.end() for m in re.finditer(r"\\(?:boxed|fbox)\s{0,9}\{", text)]:
        depth = 1
        for brace in re.finditer(r"\\.|[{}]", text[boxes[-1]:]):       # \{ is none
            depth += (brace[0] == "{") - (brace[0] == "}")
            if depth == 0:
                return text[boxes[-1]:][:brace.start()].strip() or None
        return None                                     # the last box was never closed
    if "####" in text:
        return text.rsplit("####", 1)[1].strip().partition("\n")[0].strip() or None
    if "<answer>" in text:
        return text.rsplit("<answer>", 1)[1].partition("</answer>")[0].strip() or None
    anchors = [m.end() for m in ANCHOR.finditer(text)]
    text = text[anchors[-1]:].lstrip(" \n\t:*_=")[:MOST_CHARS] if anchors else ""
    if found := MATHS.match(text):                      # $12$, or $12$ and $13$
        more = re.match(r"(?:\s*(?:,|and|or)\s*\$[^$]+\$)*", text[found.end():]).end()
        return text[:found.end() + more] if more else next(filter(None, found.groups())).strip()
    sentence = re.split(r"\.(?=\s|$)|\n|<\||\*\*", text, maxsplit=1)[0].strip()
    if re.match(r"[A-Z][a-z]+\s", sentence):            # The largest $n$ is 34; Jane started 3 hours ago
        sentence = re.split(r"\b(?:is|are|equals)\s", sentence)[-1].strip()
        if found := MATHS.match(sentence):
            return next(filter(None, found.groups())).strip()
        if len(numbers := re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?", sentence)) == 1:
            return numbers[0].rstrip(",")
    return re.split(r",?\s(?:because|since|as|which|so|but|it)\s", sentence)[0].strip(" *_") or None


def check_answer(completion, gold, rel_tol=0.):
    """Whether a completion's final answer is right; gold is a string or a list of accepted strings."""
    pred, golds = extract_answer(completion), [gold] if isinstance(gold, str) else gold
    return pred is not None and any(answers_equal(pred, g, rel_tol) for g in golds)


def exact_match(completion, gold):
    """1 if the last <answer> is the gold but for case, punctuation, articles and blanks, else -1."""
    def words(text):
        return re.sub(r"\b(a|an|the)\b", " ", re.sub(r"[!-/:-@[-`{-~]", "", text.lower())).split()
    found = [part.split("</answer>")[0] for part in completion.split("<answer>")[1:] if "</answer>" in part]
    return 1. if found and words(found[-1]) in map(words, [gold] if isinstance(gold, str) else gold) else -1.


def answers_equal(pred, gold, rel_tol=0.):
    """Whether two bare answers mean the same. rel_tol: how far a number may be off, for rounded golds."""
    a, b = plain(pred), plain(gold)
    if spelling(a) == spelling(b):
        return spelling(a) != ""
    if choice := re.fullmatch(r"\(?([A-J])\)?", b):
        return chosen(pred) == choice[1]
    return means_the_same(a, b, rel_tol)


def readable(gold):
    """Whether an answer can be given at all: it is not empty, and no brace of its LaTeX was cut off."""
    braces = re.sub(r"\\\\|\\[{}]", "", gold)
    return spelling(plain(gold)) != "" and braces.count("{") == braces.count("}")


def chosen(text):
    """The letter of the one option named, or "": C, (C), C) 14 m/s, for sure C; none: a rule; A, C; C + 1."""
    text = re.sub(r"\\[a-zA-Z]+\*?|[{}$*]", "", text[:MOST_CHARS]).strip()
    if option := re.fullmatch(r"(?:option |choice )?\(?([A-Z])\)?(?:[).:,] ?.*)?", text, re.S | re.I):
        several = len(text) < 12 and re.search(r"\b[B-HJ-Z]\b", text[option.end(1):])
        return "" if several else option[1].upper()
    found = set(re.findall(r"\b(?:[B-HJ-Z]\b|A(?=\)|,|$| or\b| and\b))", text))        # A is a word, too
    return found.pop() if len(found) == 1 and not re.search(r"[\d\\=+^_]", text) else ""


# --- spelling: many ways to write, one to read --------------------------------------------------------------
def table(text):
    """{name: meaning} of rows "meaning name name", set two spaces apart; ~ means nothing, ␣ a space."""
    rows = [row.split() for row in re.split(r"\s{2,}", text.strip())]
    said = {"~": "", "␣": " "}
    return {name: said.get(to, to + " " * to[-1].isalpha()) for to, *names in rows for name in names}


CHARACTERS = str.maketrans(table(r"""- − – — ‐ ‑  * × · ⋅ ∙ •  / ÷ ∕ ⁄  <= ≤ ⩽ ≦  >= ≥ ⩾ ≧  ° º ˚  ' ′ ’ ‘
    \sqrt √  \cbrt ∛  \infty ∞  \neq ≠  \cup ∪  \cap ∩  \setminus ∖  \in ∈  \emptyset ∅ ⌀  \pm ±  \mp ∓
    \ldots …  \lfloor ⌊  \rfloor ⌋  \lceil ⌈  \rceil ⌉  \langle ⟨  \rangle ⟩  \R ℝ  \Delta ∆  \angle ∠
    \text{euro} €  \text{pound} £  . 。  , ， 、"""))
COMMANDS = table(r"""~ left right big Big bigg Bigg bigl bigr Bigl Bigr displaystyle textstyle limits boxed
    ~ fbox  ␣ quad qquad  \frac dfrac tfrac cfrac  \binom dbinom tbinom  * cdot times ast  / div
    <= le leq leqslant  >= ge geq geqslant  != ne neq  < lt  > gt  ≈ approx simeq  : colon  , and  ' prime
    \text textbf textit textrm textnormal mbox hbox mathrm mathbf mathit mathsf boldsymbol bm operatorname rm
    \{ lbrace  \} rbrace  \infty infinity inf  \emptyset varnothing  \setminus backslash  \cup union  \lor or
    | mid vert lvert rvert  ° circ degree  \arcsin asin  \arccos acos  \arctan atan""")
UNITS = table("""cm centimeter centimetre  mm millimeter millimetre  in inch inche  km kilometer kilometre
    m meter metre  ft foot feet  yd yard  mi mile  s sec second  min minute  hr h hour  yr year  kg kilogram
    g gram  lb pound  l liter litre  ° deg degree  dollar usd  cent ¢""")
UNITS = {name: unit.strip() for name, unit in UNITS.items()}
UNITS |= {u: u for u in [*UNITS.values(), *"mph day week month unit euro yuan".split()] if len(u) > 1}
MULTIPLES = dict(hundred=100, thousand=1000, million=10 ** 6, billion=10 ** 9, trillion=10 ** 12, dozen=12)
MULTIPLES |= dict.fromkeys(("%", "percent", "percentage", "pct"), Fraction(1, 100))
GREEK = ("alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi "
         "rho sigma tau upsilon phi varphi chi psi omega").split()
FUNCTIONS = "arcsin arccos arctan sinh cosh tanh sin cos tan sec csc cot ln log lg exp sqrt cbrt".split()
KNOWN = re.compile("|".join(["infinity", "inf", "union", "asin", "acos", "atan", *FUNCTIONS, *GREEK]))
SAYS_MORE = re.compile(r"\b(or|and|not|no|if|for|is|are|than|more|less|least|most|when|where|all|any)\b")


def mixed(m):
    """3 \\frac{1}{2} and 3 1/2 are sums, 3 \\frac{4}{3} is not."""
    top, bottom = (m[2], m[3]) if m[2] else (m[4], m[5])
    return f"({m[1]}+\\frac{{{top}}}{{{bottom}}})" if int(top) < int(bottom) else m[0]


def repeating(m):
    """0.1\\overline{6}: (16 - 1) / 90"""
    head, cycle = "0" + m[1] + m[2], m[3] or m[4]
    bottom = 10 ** len(m[2]) * (10 ** len(cycle) - 1)
    return f"\\frac{{{int(head + cycle) - int(head)}}}{{{bottom}}}"


def quoted(m):
    """What \\text{…} holds: bare if it is no word (13, C, 2/3), else in double quotes."""
    text = m[1].strip()
    word = re.search(r"[^\W\d_]{2}", text) or re.match(r" \w/?", m[1])
    bare = not word or text[:1].isdigit() or text in ("and", "or", *FUNCTIONS)
    return f" {text} " if bare else f' "{text}" '


def words(m):
    """Plain words: text if one of them is a unit or no product of letters, else known names and letters."""
    if m[0][0] in '"\\_':
        return m[0]
    said = []
    for part in map(str.strip, re.split(r"\b(and|or)\b", m[0])):
        if part in ("and", "or"):
            said.append(COMMANDS[part])
        elif any(map(is_word, part.split())):
            said.append(f' "{part}" ')
        else:
            said.append(KNOWN.sub(lambda k: COMMANDS.get(k[0], f" \\{k[0]} "), part))
    return " ".join(said)


def is_word(word):
    """A unit, or four letters and more that are not in order (abcd) and hold no known name (xsinx)."""
    return bool({word.lower(), word.lower().rstrip("s")} & {*UNITS, *MULTIPLES}) or (
        len(word) > 3 and not KNOWN.search(word) and list(word) != sorted(word))


def in_words(m):
    return m[0] if KNOWN.search(m[0]) else f'"{m[1]}"'


def unit(m):
    """square meters, m^2 -> m^2; miles per hour -> mi/hr; unknown words stay."""
    text = re.sub(r"\b(?:square|sq\.?) (\w+)", r"\1^2", re.sub(r"\bcubic (\w+)", r"\1^3", m[1].lower()))
    text = re.sub(r"\s*\bper\b\s*", "/", text.strip(" ."))
    return '"' + re.sub(r"[a-z]+", lambda w: UNITS.get(w[0], UNITS.get(w[0].rstrip("s"), w[0])), text) + '"'


def without_commas(m):
    return re.sub(r"[, ]", "", m[0])


REWRITES = [(re.compile(pattern), new) for pattern, new in (
    ('"', " "), (r"\\\\ ?\[[^]]*\]", r"\\\\ "),
    (r"(?<=\d)\s?(?:\{\s?\\?,\s?\}|,\\!|\\,|\\ )\s?(?=\d{3}(?!\d))", ""),        # 14{,}916  10,\!080  1\,234
    (r"(?<![\d.,(\[_^])(?<!\\\{)\d{1,3}(?:,\d{3})+(?![\d,)\]]|\\\})", without_commas),
    (r"(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d/])", without_commas),
    (r"(?<!\\)\\[,;:!> ]|~", " "), (r"\\\$", r"\\text{dollar}"), (r"\$|(?<!\\)\\[()[\]]", " "),
    (r"\b(?:np|math)\.(?=[a-z])", ""), (r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))", "*"), (r"\*\*", "^"),
    (r"\\([a-zA-Z]+)\*? ?", lambda m: COMMANDS.get(m[1], f"\\{m[1]} ")),              # a space ends a command
    (r"\\text \s*\{([^{}]*)\}", quoted),
    (r"\\begin\s*\{(?:[pb]?matrix|array\}\s*\{[^{}]*)\}", r"\\matrix "), (r"\\end\s*\{\w*\}", r"\\end "),
    (r"\\mathbb (?:R|\{R\})", r"\\R "), (r"\\in \\R (?=\s*[|:])", ""),
    (r"\\frac\s*\{\s*d\s*\}", r"\\derivative "), (r"(?<!\\)\bin\b(?=\s*[\[({\\])", r"\\in "),
    (r"(?<=[\])}])\s*[uU]\s*(?=[\[({\\])", r"\\cup "),
    (r"^\s*([^\W\d_]{3,}(?: [^\W\d_'-]+)*|[nN]o|[^\W\d_]+(?: [^\W\d_'-]{3,})+)[\s.]*$", in_words),
    (r'"[^"]*"|\\[a-zA-Z]+|_\s?\{[^{}]*\}|[a-zA-Z]{2,}(?: [a-zA-Z]{2,})*', words),
    (r"\\?%", ' "%" '), (r"==", "="), (r"\\not\s*=|=/=", "!="),
    (r"(?:\^\s*)?(?:\{\s*°\s*\}|°)(?:\s*\"?([CFK])\"?(?!\w))?", r' "°\1" '),
    (r"\^\s*(?:\{((?:' ?)+)\}|('))", r"\1\2"),                                        # y^{\prime}
    (r"(?<=\d)\s?(?:\^\s?)?\{?\s?\"?(?:st|nd|rd|th) ?\"?\s?\}?(?![a-z])", ""),        # 12^{th}
    (r'(?<=")\s*/\s*(?:\{\s*)?([a-z]{1,3})(?![a-z(])(?:\s*\})?', r'/"\1"'),
    (r'"\s*\^\s*(?:\{\s*(\d)\s*\}|(\d))', r'^\1\2"'), (r'"\s*/\s*"', "/"), (r'"\s+"', " "),
    (r'"([^"]*)"', unit),
    (r'("(?:dollar|euro|lb)")\s*(-?[\d.,]*\d)', r"\2 \1"), (r'^\s*"[^"]*"\s*[=:]', ""),
    (r"\\p?mod \s*\{?(\w+)\}?", r' "mod \1" '), (r"\{([^{}]*)\\over ([^{}]*)\}", r"\\frac{\1}{\2}"),
    (r"\\(frac|binom)\s*(\d)", r"\\\1{\2}"), (r"(\\(?:frac|binom)\s*\{[^{}]*\})\s*(\d)", r"\1{\2}"),
    (r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot) \s*\{?\s?(\d+)\s?\}?|\((\d+)\)\s*$)", repeating),
    (r"(?<![\d.^_])(\d+)(?:\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}|\s(\d+)\s?/\s?(\d+))", mixed),
    (r"\\(overline|bar|vec|hat|dot|ddot|tilde) \s*(?:\{([A-Za-z0-9 ]+)\}|([A-Za-z]))", r"\2\3_{\1}"),
    (r"([a-zA-Z]) ?\^ ?(\{[^{}]*\}|\w) ?_ ?(\{[^{}]*\}|\w)", r"\1_\3^\2"),            # v^2_0
    (r"^\s*\(?(\d[0-9A-F]*)\)?\s?_\s?\{?\s?(\d+)\s?\}?\s*$", r"\1_\2"),               # 52_{8}
    (r"\s+", " "))]


def plain(text):
    """One spelling of many: LaTeX for Unicode, no sizes and spaces, text in double quotes, no full stop."""
    if len(text) > 4 * MOST_CHARS:
        return text

    def folded(m):
        return unicodedata.normalize("NFKC", m[0])
    text = re.sub("[⁰¹²³⁴-⁹⁺⁻ⁿ]+", lambda m: "^{%s}" % folded(m), text)
    text = re.sub("[₀-₉]+", lambda m: "_{%s}" % folded(m), text)
    text = re.sub("[¼-¾⅐-⅞]", lambda m: " \\frac{%s}{%s}" % tuple(folded(m).split("⁄")), text)
    text = unicodedata.normalize("NFKC", text.translate(CHARACTERS)).translate(CHARACTERS)
    text = re.sub("[Α-Ωα-ω]", greek, text)
    text = "".join(c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    return text.strip(" *").rstrip(".,: ")


def greek(m):
    _, case, *_, name = unicodedata.name(m[0]).replace("LAMDA", "LAMBDA").split()
    return f"\\{name.lower() if case == 'SMALL' else name.capitalize()} "


def spelling(text):
    """What equal spellings share: no spaces but between digits, words in lower case."""
    text = re.sub(r'"([^"]*)"', lambda m: m[1].lower().rstrip("."), text)
    return re.sub(r"(?<!\d) | (?!\d)", "", text)


# --- values: what an expression is at five points -----------------------------------------------------------
class Unreadable(ValueError):
    """Unknown words, text left over, a bound passed, no finite value: not an answer we can read."""


class Value(NamedTuple):
    points: tuple                                       # Fraction, mpf or mpc: at five points, or one for all
    letters: frozenset = frozenset()
    unit: str = ""
    slack: Fraction = Fraction(0)                       # of a decimal with 13 digits and more: its last digit


def demand(fine):
    if not fine:
        raise Unreadable


def letter(name):
    """A letter's values: 0.6 to 2.6, negative at the third point and at one of the last two."""
    signs = (1, 1, -1, 1, -1) if crc32(name.encode()) >> 9 & 1 else (1, 1, -1, -1, 1)
    points = (Fraction(s * (crc32(f"{i}{name}".encode()) % 9973 + 3001), 4999) for i, s in enumerate(signs))
    return Value(tuple(points), frozenset([name]))


def combine(f, *values):
    """f of values, point by point."""
    demand(all(isinstance(v, Value) for v in values))
    n, units = max(len(v.points) for v in values), {v.unit for v in values} - {""}
    demand(len(units) < 2)
    points = tuple(checked(f(*(v.points[i % len(v.points)] for v in values))) for i in range(n))
    return Value(points, frozenset().union(*(v.letters for v in values)), "".join(units))


def checked(x):
    """A number to go on with: a long fraction becomes a float."""
    if exact(x) and x.numerator.bit_length() + x.denominator.bit_length() <= MOST_BITS:
        return x
    x = mp.convert(x)
    demand(not mp.isnan(x))
    return x


def exact(x):
    return isinstance(x, Fraction)


def whole(x):
    return exact(x) and x.denominator == 1


def real(*numbers):
    return not any(isinstance(x, mp.mpc) for x in numbers)


def plus(x, y):
    total = checked(x + y)
    if exact(total):
        return total
    less, most = sorted(mp.convert(abs(z)) for z in (x, y))
    demand(not less or less > most * 1e-25)             # else rounding would swallow it
    return total if abs(total) > most * SAME else Fraction(0)           # what rounding left of a zero


def minus(x, y):
    return plus(x, -y)


def over(x, y):
    demand(y)
    return x / y if exact(y) else mp.convert(x) / y


def power(x, y):
    """x^y. A negative number has a real root where the degree is odd."""
    if not x:
        demand(exact(y) and y > 0)
        return Fraction(0)
    if exact(x) and whole(y):
        if abs(y) * max(x.numerator.bit_length(), x.denominator.bit_length()) <= MOST_BITS:
            return x ** int(y)
    x, sign = mp.convert(x), 1
    if exact(y) and y.denominator % 2 and real(x) and x < 0:
        x, sign = -x, (-1) ** (y.numerator % 2)
    size = y * mp.ln(x)
    demand(abs(size) < 1e12)
    return sign * (x ** int(y) if whole(y) else mp.sqrt(x) if y == Fraction(1, 2) else mp.exp(size))


def moderate(f):
    """f of a number neither huge nor tiny, so that it takes no time; what rounding left of a zero is zero."""
    def of(x):
        demand(not x or 1e-30 < abs(mp.convert(x)) < 1e12)
        y = checked(f(x))
        return y if abs(mp.convert(y)) > 1e-40 else Fraction(0)
    return of


def factorial(x):
    if whole(x) and 0 <= x <= 2000:
        return Fraction(math.factorial(int(x)))
    demand(real(x) and (x > 0 or x != mp.floor(x)))
    return moderate(mp.factorial)(x)


def choose(n, k):
    return over(factorial(n), checked(factorial(k)) * checked(factorial(minus(n, k))))


def rounding(f):
    def of(x):
        demand(real(x) and abs(x) < 10 ** 25)
        return Fraction(int(f(x)))
    return of


SIN, COS, LN = map(moderate, (mp.sin, mp.cos, mp.ln))
MEANING = {f.__name__: moderate(f) for f in (mp.sinh, mp.cosh, mp.tanh)} | dict(
    sin=SIN, cos=COS, tan=lambda x: over(SIN(x), COS(x)), cot=lambda x: over(COS(x), SIN(x)), ln=LN,
    sec=lambda x: over(1, COS(x)), csc=lambda x: over(1, SIN(x)), log=lambda x: LN(x) / mp.ln(10),
    lg=lambda x: LN(x) / mp.ln(10), exp=lambda x: power(+mp.e, x), arcsin=moderate(mp.asin),
    arccos=moderate(mp.acos), arctan=moderate(mp.atan))
CONSTANTS = {"e": Value((+mp.e,)), "pi": Value((+mp.pi,)), "i": Value((mp.mpc(0, 1),))}
for x in (.3, 30.5, 1e9):                               # fills mpmath's tables before there are threads
    mp.factorial(x), mp.sin(1e12 * x), mp.ln(x)


def number(token):
    """An exact fraction; slack for a decimal of 13 digits and more, and for what floats leave in the 16th."""
    digits, _, exponent = token.lower().partition("e")
    part, count = digits.partition(".")[2], len(digits.replace(".", "").lstrip("0"))
    ten = Fraction(10) ** int(exponent or 0)
    x, last = Fraction(digits.rstrip(".")) * ten, ten / 10 ** len(part)
    noise = x * Fraction(2, 10 ** 15) if count >= 16 else 0
    return Value((x,), slack=max(last, noise) if count >= 13 and last < 1 else Fraction(0))


def close(x, y):
    if exact(x) and exact(y):
        return x == y
    x, y = mp.convert(x), mp.convert(y)
    return x == y or abs(x - y) <= SAME * max(abs(x), abs(y)) < math.inf


# --- groups, relations, sets of reals -----------------------------------------------------------------------
class Group(NamedTuple):
    kind: str                                           # "," "{}" "()" "[)" … ":" "clock" "2 x 2 matrix"
    items: tuple


class Relation(NamedTuple):
    parts: tuple                                        # (operator, left, right), several in a chain
    name: str                                           # the left side, if it is but a name
    value: object                                       # then: what it is said to be


class Reals(NamedTuple):
    points: tuple                                       # where membership may change
    member: object                                      # of a number: is it in?
    letters: frozenset = frozenset()                    # of the inequality that said so


def interval(low, high, kind, letters=frozenset()):
    return Reals((low, high), lambda t: (kind[0] == "[" if close(t, low) else low < t) and (
        kind[1] == "]" if close(t, high) else t < high), letters)


def merge(how, *sets):
    """how: any is the union, all the intersection. None if one is None, or if they speak of two letters."""
    letters = frozenset().union(*(s.letters for s in sets if s))
    if None in sets or len(letters) > 1:
        return None
    return Reals(sum((s.points for s in sets), ()), lambda t: how(s.member(t) for s in sets), letters)


def as_reals(x):
    """The set of reals that x stands for, or None."""
    if isinstance(x, Relation):
        return merge(all, *(half_line(*part) for part in x.parts))
    if isinstance(x, Group):
        numbers = [v for v in x.items if isinstance(v, Value) and not v.letters and not v.unit]
        ends = [mp.convert(v.points[0]) for v in numbers]
        plain_ends = len(ends) == len(x.items) and real(*ends)
        if x.kind in ("()", "(]", "[)", "[]"):
            return interval(*ends, x.kind) if plain_ends and len(ends) == 2 else None
        if x.kind in (",", "{}"):
            sets = [interval(t, t, "[]") for t in ends] if plain_ends else map(as_reals, x.items)
            return merge(any, *sets)
    return x if isinstance(x, Reals) else None


def half_line(op, left, right):
    """Where a linear inequality in one letter holds; None if it is another."""
    if op[0] not in "<>!" or not isinstance(left, Value) or not isinstance(right, Value):
        return None
    if math.inf in (abs(left.points[0]), abs(right.points[0])):
        return Reals((), lambda t: True)
    d = combine(minus, left, right)
    if len(d.letters) != 1 or not real(*d.points):
        return None
    at = letter(*d.letters).points
    slopes = [over(minus(y, d.points[0]), x - at[0]) for x, y in zip(at[1:], d.points[1:])]
    if not slopes[0] or not all(close(s, slopes[0]) for s in slopes):
        return None
    root, closed = mp.convert(minus(at[0], over(d.points[0], slopes[0]))), op in ("<=", ">=")
    below = interval(-mp.inf, root, "(]" if closed else "()", d.letters)
    above = interval(root, mp.inf, "[)" if closed else "()", d.letters)
    if op == "!=":
        return merge(any, below, above)
    return below if (op[0] == "<") == (slopes[0] > 0) else above


# --- the parser ---------------------------------------------------------------------------------------------
SUBSCRIPT = r"(?:\s?_\s?(?:\{[^{}]*\}|\\[a-zA-Z]+|\w))?"
COMMAND_LETTERS = "|".join([*GREEK, *map(str.capitalize, GREEK), "hbar", "ell", "angle", "triangle"])
LETTER = rf"(?:[^\W\d_]|\\(?:{COMMAND_LETTERS})(?![a-zA-Z])\s?)"
TOKEN = re.compile(rf"""\s*( "[^"]*" | (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{{1,3}}(?!\d))?
    | (?:[fghFGHP]|\\(?:[pP][hs]i)\s){SUBSCRIPT}(?:'*|\^\{{-1\}})\s?\(\s?\\?\w+\s?(?:,\s?\\?\w+\s?)*\)
    | [a-zA-Z]{SUBSCRIPT}'*\(\d+\) | {LETTER}{SUBSCRIPT}'* | \\[a-zA-Z]+ | \\. | <= | >= | != | \S )""", re.X)
NAMES = re.compile(r"(?:\\frac|m?angle|triangle|Delta\w*|[A-Z](?:_\w+)?'*|[|:{}])+"
                   r"|\((?:[a-z]\w*,)+[a-z]\w*\)")
CLOSERS = {"(": ")]", "[": ")]", "{": "}", "\\{": ["\\}"], "\\langle": ["\\rangle"], "\\lfloor": ["\\rfloor"],
           "\\lceil": ["\\rceil"]}
RELATIONS = ("=", "≈", "<", ">", "<=", ">=", "!=", "\\in")
ENDS = {*RELATIONS, *") ] } , ; : + - & \\\\ \\end \\lor \\pm \\mp \\cup \\cap \\setminus".split(), "",
        "\\}", "\\rangle", "\\rfloor", "\\rceil"}


def read(text):
    """What a text says. With a plus-minus it says two things."""
    demand(len(text) <= MOST_CHARS)
    tokens = [re.sub(r"[\\{} \"]", "", t) if re.match(LETTER, t) else t for t in TOKEN.findall(text)]
    answers = [Parser(tokens, sign).answer() for sign in ((1, -1) if {"\\pm", "\\mp"} & {*tokens} else (1,))]
    one, *other = (x.items if isinstance(x, Group) and x.kind in (",", "{}") else (x,) for x in answers)
    return Group(",", one + tuple(x for x in other[0] if x not in one)) if other else answers[0]


class Parser:
    """Recursive descent: a method reads one kind of phrase and returns what it says."""

    def __init__(self, tokens, sign):
        self.tokens, self.at, self.depth, self.bars, self.sign = [*tokens, "", ""], 0, 0, False, sign

    @property
    def next(self):
        return self.tokens[self.at]

    def take(self, *wanted):
        """The next token if it is wanted, else an empty one."""
        if self.next not in wanted:
            return ""
        self.at += 1
        return self.tokens[self.at - 1]

    def answer(self):
        answer = self.list()
        demand(not self.next)
        return answer

    def list(self):
        """1, 2 and 3; x < 1 or x > 2"""
        items, marks = [self.item()], set()
        while mark := self.take(",", ";", "\\lor"):
            while more := self.take(",", "\\lor"):                      # 1, 2, and 3
                mark = more
            marks.add(mark)
            items.append(self.item())
            demand(len(items) <= MOST_ITEMS and not {",", ";"} <= marks)
        if len(items) > 1 and all(isinstance(x, (Relation, Reals)) for x in items):
            if merged := merge(any if "\\lor" in marks else all, *map(as_reals, items)):
                return merged
        return Group(",", tuple(items)) if len(items) > 1 else items[0]

    def item(self):
        """An expression, x in S, or a chain of relations: a = b, a < b <= c"""
        starts, sides, ops = [self.at], [self.ratio()], []
        while op := self.take(*RELATIONS):
            starts, ops = starts + [self.at], ops + [op]
            sides.append(self.ratio())
        name = ops and self.name(starts[0], starts[1] - 1)
        if not ops or ops == ["≈"] and not name:
            return sides[0]
        if "\\in" in ops:
            demand(name and len(ops) == 1)
            return sides[1]
        value = None
        if name and {*ops} <= {"=", "≈"}:                               # of x = 1/3 ≈ 0.33 it is 1/3
            value = sides[ops.index("≈", 1) if "≈" in ops[1:] else -1]
        elif ops == ["="] and (name := self.name(starts[1], self.at)):
            value = sides[0]
        return Relation(tuple(zip(ops, sides, sides[1:])), name if value is not None else "", value)

    def name(self, start, end):
        """The tokens from start on, if they only name something: x, f(x), AB/CD, (x, y); else ""."""
        text = "".join(self.tokens[start:end])
        return text if NAMES.fullmatch(text) or end == start + 1 and text[0].isalpha() else ""

    def ratio(self):
        start, items = self.at, [self.sets()]
        while self.take(":"):
            items.append(self.sets())
        clock = re.fullmatch(r"\d\d?(:\d\d)+", "".join(self.tokens[start:self.at]))
        return Group("clock" if clock else ":", tuple(items)) if len(items) > 1 else items[0]

    def sets(self):
        left = self.sum()
        while op := self.take("\\cup", "\\cap", "\\setminus"):
            how = {"\\cup": any, "\\cap": all, "\\setminus": lambda two: next(two) and not next(two)}[op]
            left = merge(how, *(as_reals(Group("{}", (x,)) if isinstance(x, Value) else x)
                                for x in (left, self.sum())))
            demand(left)
        return left

    def sum(self):
        total = None
        while total is None or self.next in ("+", "-", "\\pm", "\\mp"):
            sign = self.take("+", "-", "\\pm", "\\mp")
            term = self.product()
            if sign == "-" or sign == ("\\mp" if self.sign > 0 else "\\pm"):
                term = combine(operator.neg, term)
            total = term if total is None else combine(plus, total, term)
        return total

    def product(self, argument=False):
        """Factors, a sign between them or none. argument: of a function without brackets, sin 2x cos x."""
        total = self.factor()
        while self.next not in ENDS and not (self.bars and self.next == "|") and not (
                argument and (self.next in "*/" or self.next[1:] in FUNCTIONS)):
            f = over if self.take("/") else operator.mul
            demand(f is over or self.take("*") or not self.next[0].isdigit())
            factor = self.factor()
            if isinstance(factor, Group) and "matrix" in factor.kind:
                total = Group(factor.kind, tuple(combine(operator.mul, total, x) for x in factor.items))
                demand(f is operator.mul)
            else:
                product = combine(f, total, factor)
                demand(not (total.unit and factor.unit))
                total = product
        return total

    def factor(self):
        """-x, x^y, n!, 5 "cm" """
        minuses = 0
        while sign := self.take("-", "+"):
            minuses += sign == "-"
        value = self.primary()
        while self.next in ("^", "!") or self.next[:1] == '"':
            if self.take("^"):
                value = combine(power, value, self.exponent())
            elif self.take("!"):
                demand(self.next != "!")
                value = combine(factorial, value)
            else:
                value = self.with_unit(value)
        return combine(operator.neg, value) if minuses % 2 else value

    def exponent(self):
        self.depth += 1
        negative, value = self.take("-"), self.primary()
        if self.take("^"):
            value = combine(power, value, self.exponent())
        self.depth -= 1
        return combine(operator.neg, value) if negative else value

    def with_unit(self, value):
        """5 "million dollar": words after a constant scale it or are its unit."""
        unit = self.take(self.next)[1:-1]
        while scale := MULTIPLES.get(unit.partition(" ")[0].rstrip("s")):
            value, unit = combine(operator.mul, value, Value((Fraction(scale),))), unit.partition(" ")[2]
        demand(isinstance(value, Value) and not (unit and value.unit) and not SAYS_MORE.search(unit))
        demand(not value.letters or not unit or unit in UNITS.values())
        return value._replace(unit=value.unit or unit)

    def primary(self):
        self.depth, token = self.depth + 1, self.take(self.next)
        demand(token and self.depth <= MOST_DEPTH)
        if token[-1].isdigit() and token[0] in ".0123456789" or token[:-1].isdigit() and token[-1] == ".":
            value = number(token)
        elif token == "|":
            bars, self.bars = self.bars, True
            value, self.bars = combine(abs, self.sum()), bars
            demand(self.take("|"))
        elif token in CLOSERS:
            value = self.bracket(token)
        elif token[0] == "\\":
            value = self.command(token[1:])
        else:
            demand(token[0].isalpha())
            value = CONSTANTS[token] if token in CONSTANTS else letter(token)
        self.depth -= 1
        return value

    def bracket(self, opener):
        if opener == "\\{" and self.take("\\}"):
            return Group("{}", ())
        builder = opener == "\\{" and self.tokens[self.at + 1] in ("|", ":")            # {x | x > 3}
        self.at += 2 * builder
        bars, self.bars = self.bars, False
        value, self.bars = self.list(), bars
        closer = self.take(*CLOSERS[opener])
        demand(closer)
        several = isinstance(value, Group) and value.kind == ","
        if builder:
            value = as_reals(value)
            demand(value)
        elif opener == "\\{" or opener == "{" and several:
            value = Group("{}", value.items if several else (value,))
        elif opener in ("\\lfloor", "\\lceil"):
            value = combine(rounding(math.floor if opener == "\\lfloor" else math.ceil), value)
        elif several:
            value = Group("()" if opener == "\\langle" else opener + closer, value.items)
        else:
            demand(opener + closer in ("()", "[]", "{}"))
            demand(opener == "{" or isinstance(value, (Value, Group)))
        return value

    def command(self, name):
        if name in ("infty", "emptyset", "R"):
            return dict(infty=Value((mp.inf,)), emptyset=Group("{}", ()), R=Reals((), lambda t: True))[name]
        if name in ("frac", "binom"):
            return combine(over if name == "frac" else choose, self.primary(), self.primary())
        if name in ("sqrt", "cbrt"):
            degree = Value((Fraction(3 if name == "cbrt" else 2),))
            if self.take("["):
                degree = self.sum()
                demand(self.take("]"))
            return combine(lambda x, n: power(x, over(Fraction(1), n)), self.primary(), degree)
        return self.matrix() if name == "matrix" else self.function(name)

    def function(self, name):
        """sin 2x, sin(x) y, sin^2 x, sin^{-1} x, log_2 x"""
        demand(name in MEANING and (name == "log" or self.next != "_"))
        base = self.primary() if self.take("_") else None
        index = self.exponent() if self.take("^") else None
        if isinstance(index, Value) and index.points == (-1,):
            name, index = "arc" + name, None
            demand(name in MEANING)
        x = self.primary() if self.next in ("(", "[", "{") else self.product(argument=True)
        demand(isinstance(x, Value) and x.unit in ("", "°"))
        x = combine(lambda x: x * mp.pi / 180, x._replace(unit="")) if x.unit else x
        y = combine(over, combine(LN, x), combine(LN, base)) if base else combine(MEANING[name], x)
        return combine(power, y, index) if index else y

    def matrix(self):
        rows = [[]]
        while not self.take("\\end"):
            rows[-1].append(self.sum())
            demand(len(rows) * len(rows[0]) <= MOST_ITEMS)
            if self.take("\\\\"):
                rows.append([])
            else:
                demand(self.take("&") or self.next == "\\end")
        rows = [row for row in rows if row]
        demand(len({len(row) for row in rows}) == 1)
        return Group(f"{len(rows)} x {len(rows[0])} matrix", tuple(x for row in rows for x in row))


# --- the comparison -----------------------------------------------------------------------------------------
def means_the_same(a, b, tol):
    """Whether two texts can be read to their ends and mean the same."""
    try:
        return same(read(a), read(b), tol)
    except Unreadable:
        return False


def same(a, b, tol):
    """Whether two things that were read mean the same."""
    if isinstance(a, Value) and isinstance(b, Value):
        return same_value(a, b, tol)
    if isinstance(a, Relation) and isinstance(b, Relation) and same_relation(a, b, tol):
        return True
    if isinstance(a, (Relation, Reals)) or isinstance(b, (Relation, Reals)):
        if (x := as_reals(a)) and (y := as_reals(b)):
            return len(x.letters | y.letters) < 2 and same_reals(x, y)
        if isinstance(a, Relation) == isinstance(b, Relation):
            return False
        a, b = (x.value if isinstance(x, Relation) else x for x in (a, b))
        return a is not None and b is not None and same(a, b, tol)
    if not isinstance(a, Group) or not isinstance(b, Group):            # {1} and 1
        one, other = (a, b) if isinstance(a, Group) else (b, a)
        return one.kind == "{}" and len(one.items) == 1 and same(one.items[0], other, tol)
    if {a.kind, b.kind} <= {",", "{}"}:
        return same_items(a, b, tol)
    if {a.kind, b.kind} in ({":"}, {":", "clock"}) and len(a.items) == len(b.items) == 2:
        return same(*(combine(operator.mul, x, y) for x, y in zip(a.items, b.items[::-1])), tol)
    return a.kind == b.kind and len(a.items) == len(b.items) and all(
        same(x, y, tol) for x, y in zip(a.items, b.items))


def same_value(a, b, tol):
    if a.unit and b.unit and a.unit != b.unit:
        return False
    n = max(len(a.points), len(b.points))
    for i in range(n):
        x, y = (mp.convert(v.points[i]) if n == 1 else v.points[i % len(v.points)] for v in (a, b))
        if i > 1 and not real(x, y):
            continue                                    # outside the real domain, as ln x where x is negative
        if not close(a.points[i % len(a.points)], b.points[i % len(b.points)]):
            slack = mp.convert(max(a.slack, b.slack)) if n == 1 else 0
            if n > 1 or not (abs(x - y) < slack or abs(x - y) <= tol * abs(y) < math.inf):
                return False
    return True


def paired(xs, ys, alike):
    """Whether each of xs has a partner of its own in ys, and none is left over."""
    rest = list(ys)
    for x in xs:
        found = [i for i, y in enumerate(rest) if alike(x, y)]
        if not found:
            return False
        rest.pop(found[0])
    return not rest


def same_items(a, b, tol):
    """Sets may repeat an item, lists may not. A bare value is not taken for one of several named ones."""
    if a.kind == b.kind == "{}":
        return all(any(same(x, y, tol) for y in q.items) for p, q in ((a, b), (b, a)) for x in p.items)
    bare = all(len({x.name for x in group.items if isinstance(x, Relation)}) < 2 for group in (a, b))
    return paired(a.items, b.items, lambda x, y: (bare or type(x) is type(y)) and same(x, y, tol))


def same_relation(a, b, tol):
    """Named values, or the same equations and inequalities: left - right up to a (positive) factor."""
    if a.name and a.name == b.name:
        return same(a.value, b.value, tol)

    def alike(x, y):
        (op, d), (other, e) = x, y
        if op != other or d.letters != e.letters or not d.letters or not all(d.points + e.points):
            return False
        factors = [over(p, q) for p, q in zip(d.points, e.points)]
        return all(close(f, factors[0]) for f in factors) and (
            op in ("=", "!=") or real(factors[0]) and factors[0] > 0)
    return paired(*([(op.replace(">", "<").replace("≈", "="),
                      combine(minus, x, y) if op[0] != ">" else combine(minus, y, x)) for op, x, y in r.parts]
                    for r in (a, b)), alike)


def same_reals(a, b):
    """At all points, between them, and beyond: in both or in neither."""
    ends = sorted(p for p in a.points + b.points if abs(p) < math.inf) or [mp.mpf(0)]
    between = [(p + q) / 2 for p, q in zip(ends, ends[1:]) if not close(p, q)]
    return all(bool(a.member(t)) == bool(b.member(t)) for t in (ends[0] - 1, *ends, *between, ends[-1] + 1))
