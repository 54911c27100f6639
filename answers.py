"""Is an answer right? For rewards, so nothing here may hang, raise, or run what a model wrote.

    extract_answer(completion)        the final answer as text, or None
    answers_equal(pred, gold)         whether two bare answers mean the same
    check_answer(completion, gold)    both; gold may be a list of accepted answers, a lone letter is a choice

One parser, written out below, computes while it reads; there is no expression tree, no algebra, no evaluated
text. What it reads is one of four things, and like is compared with like:

    Value      an expression, by what it is at five fixed points of its letters (one point if it has none):
               fractions, exact while they are small, else 60-digit floats. x + x and 2x agree at each point.
    Group      (1, 2], {1, 2}, "1 and 2", 2:3, a matrix, 52 in base 8: a kind and its items
    Relation   y = 2x + 3, 1 < x <= 4; where the left side is but a name, also what stands on the right
    Reals      a set of reals: the points where membership may change, and a test of membership

Text it cannot read to the end equals only its own spelling. Every step is bounded before it is taken (length,
depth, size of a power), so time is too, with no clock, alarm, thread or process. What the rules are:
50% = 1/2; a list has no order, a bracketed pair has; a unit on one side only is dropped; a decimal equals an
exact value from 13 right digits on; \\log is base 10; words ignore case; (-8)^(1/3) = -2.
"""
import math
import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple
from zlib import crc32

import mpmath

mp = mpmath.mp.clone()                                  # a context of our own: nobody else sets its precision
mp.dps = 60
SAME = mp.mpf(10) ** -30                                # relative difference of equal floats
MOST_BITS, MOST_CHARS, MOST_DEPTH, MOST_ITEMS = 20_000, 1_000, 25, 60


# --- from a completion to its answer ------------------------------------------------------------------------
def extract_answer(text):
    """The final answer, or None: after the last </think> the last box; else what follows the last ####; else
    <answer>…</answer>; else the sentence after the last "answer is". Never just the last number."""
    text = text[-20_000:].rsplit("</think>", 1)[-1]
    if boxes := [m.end() for m in re.finditer(r"\\(?:boxed|fbox)\s{0,9}\{", text)]:
        depth = 1
        for i in range(boxes[-1], len(text)):
            depth += (text[i] == "{") - (text[i] == "}")
            if depth == 0:
                return text[boxes[-1]:i].strip() or None
        return None                                     # the last box was never closed
    if "####" in text:
        return text.rsplit("####", 1)[1].strip().partition("\n")[0].strip() or None
    if "<answer>" in text:
        return text.rsplit("<answer>", 1)[1].partition("</answer>")[0].strip() or None
    said = [m.end() for m in re.finditer(ANCHOR, text)]
    return said_answer(text[said[-1]:].lstrip(" \n\t:*_=")) if said else None


ANCHOR = re.compile(r"\b(?:answer|option|choice|result)s?\b[*_]{0,3}(?:\s{0,3}(?::|=|is\b|are\b|would be\b|should be\b"
                    r"|(?=\s?(?:\$|\\\(|\\\[)))|(?<=\*)\n)", re.I)
MATHS = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.S)


def said_answer(text):
    """The answer in the sentence that `text` begins with."""
    sentence = re.split(r"\.(?=\s|$)|\n|<\||\*\*", text[:400] + "\n", maxsplit=1)[0].strip()
    if start := MATHS.match(text):                      # $12$, or $12$ and $13$
        end = re.match(r"(?:\s*(?:,|and|or)\s*\$[^$]+\$)*", text[start.end():]).end()
        return text[:start.end() + end] if end else next(filter(None, start.groups())).strip()
    if re.match(r"[A-Z][a-z]+\s", sentence):            # The largest n is 34
        sentence = re.split(r"\b(?:is|are|equals)\s", sentence)[-1].strip()
        if start := MATHS.match(sentence):
            return next(filter(None, start.groups())).strip()
        numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?", sentence)
        if len(numbers) == 1:
            return numbers[0].rstrip(",")
    return re.split(r",?\s(?:because|since|as|which|so|but|it)\s", sentence)[0].strip(" *_") or None


def check_answer(completion, gold, rel_tol=0.):
    """Whether a completion's final answer is right; gold is a string or a list of accepted strings."""
    pred, golds = extract_answer(completion), [gold] if isinstance(gold, str) else gold
    return pred is not None and any(answers_equal(pred, g, rel_tol) for g in golds)


def answers_equal(pred, gold, rel_tol=0.):
    """Whether two bare answers mean the same. rel_tol: how far numbers may be off, for golds that are rounded."""
    a, b = plain(pred), plain(gold)
    if spelling(a) == spelling(b):
        return spelling(a) != ""
    if choice := re.fullmatch(r"\(?([A-Za-z])\)?", b):
        return chosen(a) == choice[1].upper()
    a, b = read(a), read(b)
    return a is not None and b is not None and same(a, b, rel_tol)


def readable(gold):
    """Whether an answer can be given at all: it is not empty, and no bracket of its LaTeX was cut off."""
    return spelling(plain(gold)) != "" and gold.count("{") == gold.count("}")


def chosen(text):
    """The letter of the one option that is named, or "": C, (C), C) 14 m/s, for sure C; "a rule" names none."""
    text = text.replace('"', "")
    if whole := re.fullmatch(r"(?:option|choice)?\s?\(?([A-Za-z])\)?[.:]?", text, re.I):
        return whole[1].upper()
    start = re.match(r"\(([A-Z])\)|([A-Z])(?=[).:] )", text)
    found = {start[1] or start[2]} if start else set(re.findall(r"\b[B-HJ-Z]\b(?!['^_=+*/-])", text))
    return found.pop() if len(found) == 1 and not re.search(r"[\d\\=]", "" if start else text) else ""


# --- spelling: many ways to write, one to read --------------------------------------------------------------
def table(text):
    """{key: value} from 'value key key|value key|…'."""
    return {key: row.split()[0] for row in text.split("|") for key in row.split()}


SIGNS = {sign: name + " " for sign, name in table(
    r"- − – — ‐ ‑|\times ×|\cdot · ⋅ ∙ •|/ ÷ ∕ ⁄|\sqrt √|\sqrt[3] ∛|\infty ∞|<= ≤ ⩽ ≦|>= ≥ ⩾ ≧|\neq ≠|\approx ≈"
    r"|^\circ ° º ˚|\cup ∪|\cap ∩|\setminus ∖|\in ∈|\emptyset ∅ ⌀|\pm ±|\mp ∓|\angle ∠|\triangle △|\ldots …|, ， 、"
    r"|. 。|\lfloor ⌊|\rfloor ⌋|\lceil ⌈|\rceil ⌉|\langle ⟨|\rangle ⟩|\mathbb{R} ℝ|\text{euro} €|\text{pound} £"
    r"|\text{yen} ¥|\text{cent} ¢|' ′ ’ ‘|\Delta ∆").items() if sign not in name}
SIGNS = str.maketrans(SIGNS | {"−": "-", "–": "-", "—": "-", ",": ",", "’": "'", "′": "'"})
FUNCTIONS = ("arcsin arccos arctan arcsec arccsc arccot sinh cosh tanh coth sin cos tan sec csc cot ln log lg exp "
             "sqrt cbrt max min gcd lcm det arg").split()
GREEK = ("alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi omicron pi rho "
         "sigma tau upsilon phi varphi chi psi omega").split()
UNITS = table("cm centimeter centimetre|mm millimeter millimetre|km kilometer kilometre|m meter metre|in inch inche"
              "|ft foot feet|yd yard|mi mile|min minute|hr hour|s sec second|ms millisecond|day|week|month|year yr"
              "|kg kilogram|g gram|mg milligram|lb pound|oz ounce|ml milliliter|l liter litre|mph|kph|° degree deg"
              "|rad radian|dollar usd buck|cent|euro|yen|yuan|rupee|hz hertz|pa pascal|kpa|unit|gallon gal|ton|am|pm")
SAID = dict(inf="infty", infinity="infty", union="cup", asin="arcsin", acos="arccos", atan="arctan")
KNOWN = re.compile("|".join([*SAID, *FUNCTIONS, *GREEK]))
NAMES = re.compile(f"({KNOWN.pattern}|.)")
MULTIPLES = dict(hundred=100, thousand=1000, million=10 ** 6, billion=10 ** 9, trillion=10 ** 12, dozen=12)

REWRITES = [(re.compile(pattern), new) for pattern, new in (
    (r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|hspace\{[^{}]*\})(?![a-zA-Z])\.?", ""),
    (r"\\(?:d|t|c)(frac|binom)(?![a-zA-Z])", r"\\\1"),
    (r"(?<=\d)\s?(?:\{\s?,\s?\}|,\\!|\\,|\{\\,\})\s?(?=\d{3}(?!\d))", ""),     # 14{,}916, 10,\!080, 1\,234
    (r"(?<![\\])\\[,;:!> ]|~|\\q?quad(?![a-zA-Z])", " "),
    (r"\\\$", r"\\text{dollar}"), (r"\$|\\[()\[\]](?![a-z])", " "),
    (r"\\(?:mathbf|boldsymbol|mathit|mathsf|mathcal|bm|mathop|ensuremath)(?![a-zA-Z])", ""),
    (r"\^\s*\{?\s*\\?(?:circ|degree)(?![a-zA-Z])\s*\}?|\\degree(?![a-zA-Z])", r"\\circ "),
    (r"\^\s*(?:\\prime|\{((?:\\prime\s*)+)\})", "'"),
    (r"\^?\s*\{?\\?(?:text|mathrm|textsuperscript)?\{?(?<![a-z])(?<=[\d^{])(?:st|nd|rd|th)\b\}{0,2}", ""),
    (r"\\operatorname\*?\s*\{\s*([a-zA-Z]+)\s*\}", r"\\\1 "),
    (r"\\p?mod(?![a-z])\s*\{?(\w+)\}?|\(\s*mod (\w+)\s*\)", r"\\text{mod \1\2}"),
    (r"\\(?:leq|leqslant|le)(?![a-z])", "<="), (r"\\(?:geq|geqslant|ge)(?![a-z])", ">="),
    (r"\\lt(?![a-z])", "<"), (r"\\gt(?![a-z])", ">"), (r"\\(?:neq|ne)(?![a-z])|=/=|\\not\s*=", "!="), (r"==", "="),
    (r"\\(?:approx|simeq|thickapprox)(?![a-z])", "≈"), (r"\\colon(?![a-z])", ":"), (r"\\(?:mid|vert|lvert|rvert)(?![a-z])", "|"),
    (r"\\%|\\?\btext(?:bf)?\{\s*(?:percent(?:age)?|pct)\s*\}|\b(?:percent(?:age)?|pct)\b", "%"),
    (r"\\(?:lbrace|\{)", r"\\{"), (r"\\(?:rbrace)", r"\\}"), (r"\\(?:varnothing)(?![a-z])", r"\\emptyset "),
    (r"\\backslash(?![a-z])", r"\\setminus "), (r"(?<=[\])}])\s*[uU]\s*(?=[\[({\\])", r"\\cup "),
    (r"\b(?:np|numpy|math|sympy)\.(?=[a-z])", ""), (r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))", r"\\times "),
    (r"(?<=\d) (?=\d{3}(?:[ .]|$)(?!\d))", ""),                                 # 1 000
    (r"([a-zA-Z])\s?\^\s?(\{[^{}]*\}|\w)\s?_\s?(\{[^{}]*\}|\w)", r"\1_\3^\2"),
    (r"\s+", " "))]


def plain(text):
    """One spelling of many: Unicode to LaTeX, spacing and sizes gone, text in double quotes, no full stop."""
    if len(text) > 4 * MOST_CHARS:
        return text
    text = text.replace('"', " ")
    text = re.sub("[⁰¹²³⁴-⁹⁺⁻ⁿ]+", lambda m: "^{%s}" % unicodedata.normalize("NFKC", m[0]), text)
    text = re.sub("[₀-₉]+", lambda m: "_{%s}" % unicodedata.normalize("NFKC", m[0]), text)
    text = re.sub("[¼-¾⅐-⅞]", lambda m: "\\frac{%s}{%s}" % tuple(unicodedata.normalize("NFKC", m[0]).split("⁄")), text)
    text = unicodedata.normalize("NFKC", text.translate(SIGNS)).translate(SIGNS)
    text = re.sub("[Α-Ωα-ω]", greek, "".join(c for c in text if c.isspace() or unicodedata.category(c)[0] != "C"))
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    text = re.sub(r"(?<![\d.,(\[_^])(?<!\\\{)\d{1,3}(?:,\d{3})+(?![\d,)\]]|\\\})", lambda m: m[0].replace(",", ""), text)
    text = re.sub(r"\\(?:text|textbf|textit|textrm|textnormal|mbox|mathrm|rm|hbox)(?![a-zA-Z])\s*\{([^{}]*)\}", quoted, text)
    return text.strip(" *").rstrip(".,;: ")


def greek(match):
    case, *_, name = unicodedata.name(match[0]).split()[1:]
    name = name.lower().replace("lamda", "lambda")
    return "\\" + (name if case == "SMALL" else name.capitalize()) + " "


def quoted(match):
    """What \\text{…} holds: bare if it is no word (13, C, 2/3), else in double quotes."""
    text = match[1].strip()
    if text.lower() in ("and", "or", *FUNCTIONS):
        return f" {text.lower()} "
    return f' "{text}" ' if re.search(r"[^\W\d_]{2}", text) else match[1]


def spelling(text):
    """Equal spellings are equal answers: no spaces but between digits; words, but not formulae, in lower case."""
    text = re.sub(r"(?<!\d) | (?!\d)", "", text.replace('"', " ").strip().rstrip(".,"))
    words = re.fullmatch(r"[^\W\d_][^\d_\\^=+*<>/]*", text) and re.search(r"[^\W\d_]{3}|^no$", text, re.I)
    return text.lower() if words else text


TOKEN = re.compile(r"""\s*("[^"]*"|\\begin\{\w*\*?\}(?:\{[clr|]*\})?|\\end\{\w*\*?\}|\\\\(?:\[[^]]*\])?|\\[a-zA-Z]+|\\.
    |(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3}(?!\d))?|<=|>=|!=|\*\*|[a-zA-Z]{2,}(?:\ [a-zA-Z]{2,})*|\S)""", re.X)


def tokens_of(text):
    """Numbers, commands, letters, operators and "text"; plain words turn into one of these."""
    tokens = []
    for token in TOKEN.findall(text):
        for part in re.split(r" ?\b(and|or)\b ?", token) if token[0].isalpha() else [token]:
            if not part[:1].isalpha() or len(part) == 1:
                tokens += [part] if part else []
            elif part in ("and", "or"):
                tokens.append("," if part == "and" else "\\lor")
            elif any(map(is_word, part.split())):
                tokens.append(f'"{part}"')
            else:                                       # xy, npi, sinx, cm
                names = [n for n in NAMES.split(part.replace(" ", "")) if n]
                tokens += [n if len(n) == 1 else "\\" + SAID.get(n, n) for n in names]
        if len(tokens) > 1 and tokens[-1][0] == tokens[-2][0] == '"':
            tokens[-2:] = [tokens[-2][:-1] + " " + tokens[-1][1:]]
    return tokens


def is_word(word):
    """A unit, or four letters and more that are neither in order (abcd) nor hold a known name (xsinx)."""
    return word in UNITS or unit_of(word) in UNITS and len(word) > 2 or (
        len(word) > 3 and not KNOWN.search(word) and list(word) != sorted(word))


def unit_of(text):
    """meters, metres, m -> m; square feet, sq ft -> ft^2; miles per hour -> mi/hr; words it does not know stay."""
    text = re.sub(r"\b(?:square|sq\.?) (\w+)", r"\1^2", re.sub(r"\bcubic (\w+)", r"\1^3", text.lower()))
    text = re.sub(r"\s*\bper\b\s*|\s*/\s*", "/", text.strip(" .~"))
    return re.sub(r"[a-z]+", lambda m: UNITS.get(m[0], UNITS.get(m[0].rstrip("s"), m[0])), text)


# --- values: what an expression is at five points -------------------------------------------------------------
class Unreadable(ValueError):
    """Not an answer we know how to read: unknown words, text left over, a bound passed, no finite value."""


class Value(NamedTuple):
    """An expression by its values at five points, or one if it has no letters."""
    points: tuple                                       # of Fraction, mpf, mpc
    letters: frozenset = frozenset()
    unit: str = ""
    slack: Fraction = 0                                 # of a decimal with 13 digits or more: its last digit


def demand(fine):
    if not fine:
        raise Unreadable


def sample(i, name):
    """The i-th value of a letter: 0.6 to 2.6; negative at point 2, and at one of 3 and 4."""
    sign = -1 if i == 2 or i > 2 and crc32(name.encode()) >> 9 & 1 == i % 2 else 1
    return Fraction(sign * (crc32(f"{i}{name}".encode()) % 9973 + 3001), 4999)


def letter(name):
    return Value(tuple(sample(i, name) for i in range(5)), frozenset([name]))


def combine(f, *values):
    """A function of values, point by point."""
    demand(all(isinstance(v, Value) for v in values))
    units = {v.unit for v in values} - {""}
    n = max(len(v.points) for v in values)
    demand(len(units) < 2)
    points = tuple(f(*(v.points[i % len(v.points)] for v in values)) for i in range(n))
    return Value(points, frozenset().union(*(v.letters for v in values)), "".join(units))


def floating(x):
    return mp.mpf(x.numerator) / x.denominator if isinstance(x, Fraction) else x


def checked(x):
    """A number to go on with: a large fraction becomes a float; what is not finite has no value."""
    if isinstance(x, Fraction):
        return x if x.numerator.bit_length() + x.denominator.bit_length() <= MOST_BITS else floating(x)
    demand(mp.isfinite(x))
    return x


def exact(*numbers):
    return all(isinstance(x, Fraction) for x in numbers)


def plus(x, y):
    if exact(x, y):
        return checked(x + y)
    x, y = floating(x), floating(y)
    total, most = checked(x + y), max(abs(x), abs(y))
    demand(not x or not y or min(abs(x), abs(y)) > most * 1e-25)        # else lost in the other's rounding
    return total if abs(total) > most * SAME else Fraction(0)


def times(x, y):
    return checked(x * y if exact(x, y) else floating(x) * floating(y))


def over(x, y):
    demand(y)
    return checked(x / y if exact(x, y) else floating(x) / floating(y))


def power(x, y):
    """x^y; a negative real number has a real root of odd degree, as in (-8)^(1/3) = -2."""
    if not x:
        demand(exact(y) and y > 0)
        return Fraction(0)
    if exact(y) and y.denominator == 1 and abs(y) < MOST_BITS:
        if exact(x) and abs(y) * max(x.numerator.bit_length(), x.denominator.bit_length()) <= MOST_BITS:
            return x ** int(y)
    size = floating(y) * mp.ln(floating(x))
    demand(abs(size) < 1e12)
    if exact(y) and y.denominator == 1:
        return checked(floating(x) ** int(y))
    if exact(y) and y.denominator % 2 and not isinstance(x, mp.mpc) and x < 0:
        return checked((-1) ** y.numerator * mp.exp(floating(y) * mp.ln(-floating(x))))
    return checked(mp.sqrt(floating(x)) if y == Fraction(1, 2) else mp.exp(size))


def moderate(f):
    """f of a float that is neither huge nor tiny, so that f takes no time; what rounding left of a zero is 0."""
    def of(*xs):
        xs = [floating(x) for x in xs]
        demand(all(not x or 1e-30 < abs(x) < 1e12 for x in xs))
        y = checked(f(*xs))
        return y if abs(y) > 1e-40 else Fraction(0)
    return of


def factorial(x):
    if exact(x) and x.denominator == 1 and 0 <= x <= 2000:
        return checked(Fraction(math.factorial(int(x))))
    demand(not (exact(x) and x.denominator == 1 and x < 0))
    return moderate(lambda x: mp.gamma(x + 1))(x)


def choose(n, k):
    if exact(n, k) and n.denominator == k.denominator == 1 and 0 <= k <= n <= 1000:
        return Fraction(math.comb(int(n), int(k)))
    return over(factorial(n), times(factorial(k), factorial(n - k if exact(n, k) else plus(n, -k))))


def logarithm(x):
    demand(x)
    return mp.ln(x)


def rounded(f):
    def of(x):
        demand(exact(x) or not isinstance(x, mp.mpc) and abs(x) < 1e25)
        return Fraction(int(f(x)))
    return of


def inverse(f):
    return lambda x: over(Fraction(1), f(x))


def unknown(name):
    """A function nobody told us about, like f(x): some number that depends on name and arguments only."""
    def of(*xs):
        return Fraction(crc32((name + ",".join(mp.nstr(x, 25) for x in xs)).encode()) % 9973 + 3001, 4999)
    return lambda *xs: moderate(lambda *ys: floating(of(*ys)))(*xs)


SIN, COS, TAN = moderate(mp.sin), moderate(mp.cos), lambda x: over(SIN(x), COS(x))
LN = moderate(logarithm)
KNOWN_FUNCTIONS = dict(
    sin=SIN, cos=COS, tan=TAN, sec=inverse(COS), csc=inverse(SIN), cot=inverse(TAN), arcsin=moderate(mp.asin),
    arccos=moderate(mp.acos), arctan=moderate(mp.atan), sinh=moderate(mp.sinh), cosh=moderate(mp.cosh),
    tanh=moderate(mp.tanh), ln=LN, exp=lambda x: power(mp.e + 0, x), log=lambda x: over(LN(x), mp.ln(10)),
    lg=lambda x: over(LN(x), mp.ln(10)), sqrt=lambda x: power(x, Fraction(1, 2)),
    cbrt=lambda x: power(x, Fraction(1, 3)), gamma=lambda x: factorial(plus(x, Fraction(-1))))
mp.gamma(mp.mpf(1) / 3), mp.gamma(30.5), mp.gamma(1e9), mp.pi + 0       # fills mpmath's tables before threads come


# --- groups, relations, sets of reals -------------------------------------------------------------------------
class Group(NamedTuple):
    """kind: "()" "[]" "(]" "[)" a tuple or an interval; "{}" a set; "," a list; ":" a ratio; "matrix", "row"; "base 8"."""
    kind: str
    items: tuple


class Relation(NamedTuple):
    parts: tuple                                        # (operator, left, right), …: a chain has several
    name: str                                           # the left side, where it is but a name, or ""
    value: object                                       # then: what stands on the right


class Reals(NamedTuple):
    points: tuple
    member: object


INFINITY = Value((mp.inf,))
MINUS_INFINITY = Value((-mp.inf,))


def interval(low, high, has_low, has_high):
    def member(t):
        return (has_low if close(t, low) else low < t) and (has_high if close(t, high) else t < high)
    return Reals((low, high), member)


def as_reals(x):
    """The set of reals that x says, or None."""
    if isinstance(x, Reals):
        return x
    if isinstance(x, Relation) and x.parts and len(set().union(*(p[i].letters for p in x.parts for i in (1, 2)
                                               if isinstance(p[i], Value)))) == 1:
        sets = [half_line(*part) for part in x.parts]
        if all(sets):
            return Reals(sum((s.points for s in sets), ()), lambda t: all(s.member(t) for s in sets))
    if isinstance(x, Group) and x.kind in ("()", "[]", "(]", "[)") and len(x.items) == 2 and all(
            isinstance(v, Value) and not v.letters and not isinstance(v.points[0], mp.mpc) for v in x.items):
        low, high = (floating(v.points[0]) for v in x.items)
        return interval(low, high, x.kind[0] == "[", x.kind[1] == "]")
    if isinstance(x, Group) and x.kind == "{}" and all(
            isinstance(v, Value) and not v.letters and not isinstance(v.points[0], mp.mpc) for v in x.items):
        ends = tuple(floating(v.points[0]) for v in x.items)
        return Reals(ends, lambda t: any(close(t, e) for e in ends))
    if isinstance(x, Group) and x.kind == "," and x.items:
        sets = [as_reals(item) for item in x.items if not isinstance(item, Value)]
        if len(sets) == len(x.items) and all(sets):
            return union(*sets)
    return None


def union(*sets):
    return Reals(sum((s.points for s in sets), ()), lambda t: any(s.member(t) for s in sets))


def half_line(op, left, right):
    """Where a linear inequality in one letter holds."""
    if op not in ("<", ">", "<=", ">=", "!=") or not (isinstance(left, Value) and isinstance(right, Value)):
        return None
    if mp.inf in map(abs, left.points + right.points):
        return Reals((), lambda t: True)
    d = combine(lambda x, y: plus(x, -y), left, right)
    if len(d.letters) != 1 or any(isinstance(x, mp.mpc) for x in d.points):
        return None
    at = letter(*d.letters).points
    slope = over(plus(d.points[1], -d.points[0]), at[1] - at[0])
    if not slope or any(not close(plus(d.points[0], times(slope, at[i] - at[0])), d.points[i]) for i in (2, 3, 4)):
        return None
    root = floating(plus(at[0], -over(d.points[0], slope)))
    below = interval(-mp.inf, root, False, "=" in op and op != "!=")
    above = interval(root, mp.inf, "=" in op and op != "!=", False)
    return union(below, above) if op == "!=" else below if (op[0] == "<") == (slope > 0) else above


def close(x, y):
    if exact(x, y):
        return x == y
    x, y = floating(x), floating(y)
    return x == y or abs(x - y) <= SAME * max(abs(x), abs(y)) < mp.inf


# --- the parser -----------------------------------------------------------------------------------------------
OPENERS = {"(": ")", "[": "]", "\\{": "\\}", "\\langle": "\\rangle", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
ACCENTS = {"\\overline", "\\bar", "\\vec", "\\hat", "\\tilde", "\\dot", "\\ddot", "\\overrightarrow", "\\widehat"}
NOT_NAMES = {"\\in", "\\cup", "\\cap", "\\setminus", "\\lor", "\\pm", "\\mp", "\\infty", "\\times", "\\cdot", "\\div", "\\ast",
             "\\emptyset", "\\begin", "\\end", "\\to", "\\sum", "\\prod", "\\int", "\\lim", "\\ldots", "\\cdots", "\\dots",
             "\\Rightarrow", "\\rightarrow", "\\implies", "\\iff", "\\land", "\\neg", "\\forall", "\\exists", "\\subset",
             "\\mapsto", "\\dotsc", "\\equiv", "\\cong", "\\sim", "\\propto", "\\parallel", "\\perp", "\\partial",
             "\\boxed", "\\fbox", "\\frac", "\\binom", "\\rangle", "\\rfloor", "\\rceil", "\\choose", "\\mathbb"}
RELATIONS = {"=", "<", ">", "<=", ">=", "!=", "≈"}
NAME = re.compile(r"(?:\\Delta|m?\\angle|\\triangle)?(?:[^\W\d_]|\\[a-zA-Z]+)'*(?:\([^()=<>]*\))?|[A-Z]{2,4}|\|[A-Z]{2}\||"
                  r"(?:m?\\angle|\\triangle)[A-Z]+|\"[^\"]*\"|\\frac\{[A-Z]+\}\{[A-Z]+\}|[A-Z]+[/:][A-Z]+|"
                  r"\([^\W\d_](?:,[^\W\d_])+\)|[^\W\d_]\^\{-1\}\([a-z]\)")


def read(text):
    """What a text says, or None if it cannot be read to its end."""
    try:
        demand(len(text) <= MOST_CHARS)
        demand(not re.fullmatch(r"[^\W\d_ ]{3,}(?: [^\W\d_]+)*", text) or KNOWN.search(text))      # words
        tokens = tokens_of(text)
        answer = Parser(tokens, 1).answer()
        if "\\pm" not in tokens and "\\mp" not in tokens:
            return answer
        first, second = (x.items if isinstance(x, Group) and x.kind in (",", "{}") else (x,)
                         for x in (answer, Parser(tokens, -1).answer()))
        return Group(",", first + tuple(x for x in second if not any(same(x, y, 0.) for y in first)))
    except Unreadable:
        return None


class Parser:
    """Recursive descent. A method reads one kind of phrase and returns what it says."""

    def __init__(self, tokens, sign):
        self.tokens, self.at, self.sign, self.depth, self.bar = [*tokens, ""], 0, sign, 0, False

    @property
    def next(self):
        return self.tokens[self.at]

    def take(self, *wanted):
        """The next token, if it is one of those wanted, else ""."""
        if self.next in wanted:
            self.at += 1
            return self.tokens[self.at - 1]
        return ""

    def answer(self):
        answer = self.list()
        demand(self.next == "")
        return answer

    def list(self):
        """item, item and item"""
        self.depth += 1
        demand(self.depth <= MOST_DEPTH)
        items, marks = [self.item()], set()
        while mark := self.take(",", ";", "\\lor"):
            while more := self.take(",", "\\lor"):
                mark = more
            marks.add(mark)
            items.append(self.item())
            demand(len(items) <= MOST_ITEMS)
        self.depth -= 1
        demand(not {",", ";"} <= marks)
        if len(items) == 1:
            return items[0]
        sets = [as_reals(x) for x in items if isinstance(x, (Relation, Reals))]
        if len(sets) == len(items) and all(sets):
            return union(*sets) if "\\lor" in marks else Reals(
                sum((s.points for s in sets), ()), lambda t: all(s.member(t) for s in sets))
        return Group(",", tuple(items))

    def item(self):
        """a = b, a < b <= c, x in S, or an expression"""
        starts, sides, ops = [self.at], [self.ratio()], []
        while op := self.take("\\in", *RELATIONS):
            starts.append(self.at)
            sides.append(self.ratio())
            ops.append(op)
        if not ops:
            return sides[0]
        left = self.name(starts[0], starts[1] - 1)
        if ops == ["\\in"]:
            demand(left)
            return sides[1]
        demand("\\in" not in ops)
        value = None
        if set(ops) <= {"=", "≈"}:
            cut = ops.index("≈", 1) if "≈" in ops[1:] else len(ops)
            if left:
                value = sides[cut]
            elif len(ops) == 1 and (left := self.name(starts[1], self.at)):
                value = sides[0]
            elif "≈" in ops:
                return sides[ops.index("≈")]
        return Relation(tuple(zip(ops, sides, sides[1:])), left if value is not None else "", value)

    def name(self, start, end):
        text = re.sub(r"_(?:\{[^{}]*\}|\\?\w)", "", "".join(self.tokens[start:end]))
        return "".join(self.tokens[start:end]) if NAME.fullmatch(text) else ""

    def ratio(self):
        items = [self.sets()]
        while self.take(":"):
            items.append(self.sets())
        clock = len(items) > 1 and len(self.tokens[self.at - 1]) == 2 and len(self.tokens[self.at - 3]) < 3
        return Group("clock" if clock else ":", tuple(items)) if len(items) > 1 else items[0]

    def sets(self):
        left = self.sum()
        while op := self.take("\\cup", "\\cap", "\\setminus"):
            right = self.sum()
            if isinstance(left, Group) and left.kind == "{}" and isinstance(right, Group) and right.kind == "{}":
                def among(x, items):
                    return any(same(x, y, 0.) for y in items)
                a, b = left.items, right.items
                new = [x for x in b if not among(x, a)] if op == "\\cup" else []
                left = Group("{}", (*(x for x in a if op == "\\cup" or among(x, b) == (op == "\\cap")), *new))
                continue
            a, b = as_reals(left), as_reals(right)
            demand(a and b)
            left = Reals(a.points + b.points, dict(
                [("\\cup", lambda t, a=a, b=b: a.member(t) or b.member(t)),
                 ("\\cap", lambda t, a=a, b=b: a.member(t) and b.member(t)),
                 ("\\setminus", lambda t, a=a, b=b: a.member(t) and not b.member(t))])[op])
        return left

    def sum(self):
        total = None
        while True:
            sign = self.take("+", "-", "\\pm", "\\mp")
            if total is not None and not sign:
                return total
            term = self.product()
            if sign == "-" or sign == "\\pm" and self.sign < 0 or sign == "\\mp" and self.sign > 0:
                demand(isinstance(term, Value))
                term = term._replace(points=tuple(-x for x in term.points))
            total = term if total is None else combine(plus, total, term)

    def product(self):
        total = self.factor()
        while True:
            if self.take("*", "\\cdot", "\\times", "\\ast"):
                total = self.times(total, self.factor())
            elif self.take("/", "\\div"):
                unit = self.next[0] == '"' and isinstance(total, Value) and total.unit
                total = self.unit(total, "/") if unit else combine(over, total, self.factor())
            elif self.next[:1] == '"':
                total = self.unit(total)
            elif self.starts():
                mixed = self.is_mixed()
                factor = self.factor()
                if mixed and self.take("/"):
                    factor = combine(over, factor, self.factor())
                total = combine(plus, total, factor) if mixed else self.times(total, factor)
            else:
                return total

    def times(self, a, b):
        if isinstance(b, Group) and b.kind == "matrix" and isinstance(a, Value):
            return Group("matrix", tuple(Group("row", tuple(combine(times, a, x) for x in row.items)) for row in b.items))
        demand(isinstance(a, Value) and isinstance(b, Value) and not (a.unit and b.unit))
        return combine(times, a, b)

    def starts(self):
        """Does a factor begin here? Then it is multiplied by what stands before it."""
        token = self.next
        if token == "|":
            return not self.bar
        return bool(token) and (token[0].isalpha() or token in OPENERS or token == "{" or token[0].isdigit() and
                                self.is_mixed() or token[0] == "\\" and token[1:].isalpha() and token not in NOT_NAMES
                                or token in ("\\frac", "\\binom", "\\infty", "\\mathbb", "\\boxed", "\\fbox")
                                or token.startswith("\\begin"))

    def is_mixed(self):
        """3 \\frac{1}{2} and 3 1/2: a whole number, then a fraction below 1."""
        rest = "".join(t for t in self.tokens[self.at:self.at + 8] if t not in "{}")
        if not self.tokens[self.at - 1].isdigit():
            return False
        if self.next == "\\frac":
            flat = re.match(r"\\frac\{?(\d+)\}?\{?(\d+)\}?", "".join(self.tokens[self.at:self.at + 7]))
            if flat and self.tokens[self.at + 1] not in "{" and len(flat[1]) == 2 and len(self.tokens[self.at + 1]) == 2:
                return flat[1][0] < flat[1][1]
            return bool(flat) and int(flat[1]) < int(flat[2])
        a, slash, b = (self.tokens[self.at:self.at + 3] + ["", ""])[:3]
        return a.isdigit() and slash == "/" and b.isdigit() and int(a) < int(b) and rest != ""

    def unit(self, value, mark=""):
        """5 "cm"^2, 80 "mi"/"hr", 3 "million dollars", 5 "apples": words after a constant, of which nothing follows."""
        demand(isinstance(value, Value))
        words = self.tokens[self.at][1:-1].lower().split()
        self.at += 1
        while words and words[0].rstrip("s") in MULTIPLES:
            value = combine(times, value, Value((Fraction(MULTIPLES[words.pop(0).rstrip("s")]),)))
        text = unit_of(" ".join(words))
        demand(not re.search(r"\b(or|and|not|no|if|for|is|are|than|more|less|least|most|when|where|all|any|every)\b", text))
        demand(not value.letters or text in UNITS.values())
        if text and self.take("^", "**"):
            text += "^" + str(self.small())
        return value._replace(unit=value.unit + mark + text if mark or not value.unit else value.unit + " " + text)

    def small(self):
        power = self.group()
        demand(isinstance(power, Value) and exact(*power.points) and abs(power.points[0]) < 100)
        return int(power.points[0])

    def factor(self):
        """-x, x^y, n!, 50%, 30°"""
        if self.take("-"):
            return combine(lambda x: -x, self.factor())
        if self.take("+"):
            return self.factor()
        value = self.primary()
        while True:
            if self.next in ("^", "**") and self.tokens[self.at + 1] == "\\circ":
                self.at += 2
                scale = self.take("C", "F", "K")
                demand(isinstance(value, Value) and not value.unit)
                value = value._replace(unit="°" + scale)
            elif self.next == "\\circ":
                self.tokens.insert(self.at, "^")
            elif self.take("^", "**"):
                value = combine(power, value, self.exponent())
            elif self.take("!"):
                demand(self.next != "!")
                value = combine(factorial, value)
            elif self.take("%"):
                value = combine(over, value, Value((Fraction(100),)))
            else:
                return value

    def exponent(self):
        if self.take("-"):
            return combine(lambda x: -x, self.exponent())
        self.take("+")
        base = self.group()
        return combine(power, base, self.exponent()) if self.take("^", "**") else base

    def group(self, one_digit=False):
        """The argument of a command or of ^: {…}, or a single thing; \\frac takes one digit of 12."""
        if one_digit and self.next.isdigit() and len(self.next) > 1:
            digits = self.tokens[self.at]
            self.tokens[self.at:self.at + 1] = [digits[0], digits[1:]]
        return self.primary()

    def inside(self, *closers):
        """A list up to its closing bracket, and that."""
        bar, self.bar = self.bar, False
        items = self.list()
        self.bar = bar
        close = self.take(*closers)
        demand(close)
        return items, close

    def primary(self):
        self.depth += 1
        demand(self.depth <= 4 * MOST_DEPTH)
        token = self.next
        demand(token)
        self.at += 1
        if token[0].isdigit() or token[0] == "." and len(token) > 1:
            value = self.number(token)
        elif token[0] == '"':
            demand(unit_of(token[1:-1]) in ("dollar", "euro", "lb", "yen", "cent"))
            unit = unit_of(token[1:-1])
            value = self.factor()
            demand(isinstance(value, Value))
            value = value._replace(unit=unit)
        elif token == "{":
            value, _ = self.inside("}")
            if isinstance(value, Group) and value.kind == ",":
                value = Group("{}", value.items)
        elif token == "|":
            bar, self.bar = self.bar, True
            value = self.sum()
            self.bar = bar
            demand(self.take("|"))
            value = combine(abs, value)
        elif token in OPENERS:
            value = self.bracket(token)
        elif token[0] == "\\" and token[1:2].isalpha():
            value = self.command(token[1:])
        else:
            demand(token.isalpha() and len(token) == 1)
            value = self.letter(token)
        self.depth -= 1
        return value

    def number(self, token):
        if self.next == "_":                            # 52_8
            self.at += 1
            base = self.small()
            demand(token.isdigit() and 2 <= base <= 36 and all(int(c) < base for c in token))
            return Group(f"base {base}", (Value((Fraction(int(token, base)),)),))
        digits, _, exponent = token.lower().partition("e")
        whole, _, part = digits.partition(".")
        if self.next in ("\\overline", "\\bar", "\\dot", "(") and "." in token and not exponent:
            at, opener = self.at, self.next
            cycle = self.tokens[at + 1] if opener == "(" else "".join(self.tokens[at + 1:at + 4])
            cycle = cycle.strip("{}")[:40] if opener != "(" or self.tokens[at + 2] == ")" else ""
            if cycle.isdigit():
                self.at += 3 if opener == "(" or self.tokens[at + 1] == "{" else 2
                nines = 10 ** len(cycle) - 1
                return Value(((Fraction(digits if digits.strip(".") else "0") + Fraction(int(cycle), nines * 10 ** len(part))),))
            demand(opener == "(")
        value = Fraction(digits + "0" if digits[-1] == "." else digits) * Fraction(10) ** int(exponent or 0)
        count = len((whole + part).lstrip("0"))
        slack = Fraction(10) ** (int(exponent or 0) - len(part)) if part and count >= 13 else Fraction(0)
        return Value((value,), slack=max(slack, value * Fraction(2, 10 ** 15)) if count >= 16 and part else slack)

    def bracket(self, opener):
        if opener == "\\{" and self.take("\\}"):
            return Group("{}", ())
        if opener == "\\{" and self.tokens[self.at + 1] in ("|", ":"):              # {x | x > 3}
            self.at += 2
            value = as_reals(self.inside("\\}")[0])
            demand(value)
            return value
        closers = (")", "]") if opener in "([" else (OPENERS[opener],)
        value, closer = self.inside(*closers)
        if opener == "\\{":
            return Group("{}", value.items if isinstance(value, Group) and value.kind == "," else (value,))
        if opener in ("\\lfloor", "\\lceil"):
            return combine(rounded(math.floor if opener == "\\lfloor" else math.ceil), value)
        if isinstance(value, Group) and value.kind == ",":
            return Group(dict(zip(["("], ["("])).get(opener, "[" if opener == "[" else "(") + closer.replace("\\rangle", ")"),
                         value.items)
        demand(closer == OPENERS[opener] and not isinstance(value, (Relation, Reals)))
        return value

    def letter(self, token):
        name = token + self.subscript()
        if name in ("e", "i"):
            return Value((mp.e + 0,)) if name == "e" else Value((mp.mpc(0, 1),))
        if self.next == "(" and (token in "fghFGHPuvy" or self.tokens[self.at + 1].isdigit() and self.tokens[self.at + 2] == ")"):
            self.at += 1
            return self.call(name, self.inside(")")[0])
        return letter(name)

    def subscript(self):
        name = ""
        while self.next in ("_", "'"):
            if self.take("'"):
                name += "'"
                continue
            self.at += 1
            start = self.at
            if self.take("{"):
                while self.next not in ("}", ""):
                    self.at += 1
            demand(self.next)
            self.at += 1
            name += "_" + re.sub(r"[{}\"\\ ]", "", "".join(self.tokens[start:self.at]))
        return name

    def call(self, name, argument):
        items = argument.items if isinstance(argument, Group) else (argument,)
        return combine(unknown(name), *items)

    def command(self, name):
        if name in ("boxed", "fbox", "mathbb"):
            if name == "mathbb":
                demand("".join(self.tokens[self.at:self.at + 3]).strip("{}") == "R" or self.next == "R")
                self.at += 3 if self.next == "{" else 1
                return Reals((), lambda t: True)
            return self.group()
        if name in ("frac", "binom"):
            top = self.group(one_digit=True)
            return combine(over if name == "frac" else choose, top, self.group(one_digit=True))
        if name == "infty":
            return INFINITY
        if name == "pi":
            return Value((mp.pi + 0,))
        if name == "emptyset":
            return Group("{}", ())
        if name in ("Gamma",) and self.next == "(":
            return combine(KNOWN_FUNCTIONS["gamma"], self.group())
        if "\\" + name in ACCENTS:
            start = self.at
            if self.take("{"):
                while self.next not in ("}", ""):
                    self.at += 1
            demand(self.next)
            self.at += 1
            return letter(name + "".join(self.tokens[start:self.at]).strip("{}") + self.subscript())
        if name == "sqrt" and self.take("["):
            degree, _ = self.inside("]")
            return combine(lambda x, n: power(x, over(Fraction(1), n)), self.group(), degree)
        if name in ("sqrt", "cbrt"):
            return combine(KNOWN_FUNCTIONS[name], self.group())
        if name in KNOWN_FUNCTIONS and name != "gamma":
            return self.function(name)
        if name in FUNCTIONS:
            return self.call(name, self.inside_of_call())
        if name.startswith("begin"):
            return self.matrix(name)
        demand("\\" + name not in NOT_NAMES and not name.startswith("end"))
        if name in ("angle", "triangle", "Delta"):
            return letter(name + "".join(self.take(self.next) for _ in range(1) if self.next[:1].isalpha()))
        name = name + self.subscript()
        if name in ("phi", "Phi", "psi", "Psi") and self.next == "(":
            self.at += 1
            return self.call(name, self.inside(")")[0])
        return letter(name)

    def inside_of_call(self):
        demand(self.take("("))
        return self.inside(")")[0]

    def function(self, name):
        """sin 2x, sin(x) y, sin^2 x, sin^{-1} x, log_2 x"""
        base, index = None, None
        if self.take("_"):
            demand(name == "log")
            base = self.group()
        if self.take("^"):
            index = self.exponent()
        if self.next in ("(", "[", "{"):
            argument = self.group()
        else:
            argument = self.factor()
            while self.starts() and self.next[1:] not in KNOWN_FUNCTIONS:
                argument = self.times(argument, self.factor())
        demand(isinstance(argument, Value))
        if argument.unit == "°":
            argument = combine(lambda x: times(x, mp.pi / 180), argument._replace(unit=""))
        demand(not argument.unit)
        if index and index.points == (-1,):
            demand("arc" + name in KNOWN_FUNCTIONS)
            return combine(KNOWN_FUNCTIONS["arc" + name], argument)
        value = combine(KNOWN_FUNCTIONS[name], argument)
        if base:
            value = combine(over, combine(LN, argument), combine(LN, base))
        return combine(power, value, index) if index else value

    def matrix(self, name):
        demand(re.fullmatch(r"begin\{([pb]?matrix|array)\}.*", name))
        rows = [[]]
        while not self.next.startswith("\\end"):
            rows[-1].append(self.sum())
            demand(len(rows) * len(rows[0]) <= MOST_ITEMS)
            if self.next.startswith("\\\\"):
                self.at += 1
                rows.append([])
            elif not self.take("&"):
                demand(self.next.startswith("\\end"))
        self.at += 1
        return Group("matrix", tuple(Group("row", tuple(row)) for row in rows if row))


# --- the comparison -------------------------------------------------------------------------------------------
def same(a, b, tol):
    """Whether two things that were read mean the same."""
    if isinstance(a, Relation) and isinstance(b, Relation):
        return same_relation(a, b, tol)
    if any(isinstance(x, (Reals, Relation)) and as_reals(x) for x in (a, b)):
        a, b = as_reals(a), as_reals(b)
        return a is not None and b is not None and same_reals(a, b)
    if isinstance(a, Relation) or isinstance(b, Relation):
        a, b = (x.value if isinstance(x, Relation) else x for x in (a, b))
        return a is not None and b is not None and same(a, b, tol)
    if isinstance(a, Group) and isinstance(b, Group):
        if {a.kind, b.kind} <= {",", "{}"}:
            return same_items(a, b, tol)
        if ":" in (a.kind, b.kind) and {a.kind, b.kind} <= {":", "clock"} and len(a.items) == len(b.items) == 2:
            return same(combine(times, a.items[0], b.items[1]), combine(times, a.items[1], b.items[0]), tol)
        return a.kind == b.kind and len(a.items) == len(b.items) and all(
            same(x, y, tol) for x, y in zip(a.items, b.items))
    if isinstance(a, Value) and isinstance(b, Value):
        return same_value(a, b, tol)
    one, other = (a, b) if isinstance(a, Group) else (b, a)
    return isinstance(one, Group) and one.kind == "{}" and len(one.items) == 1 and same(one.items[0], other, tol)


def same_items(a, b, tol):
    """Sets and lists: each item of one has its own in the other; sets may repeat theirs."""
    a, b, sets = list(a.items), list(b.items), a.kind == b.kind == "{}"
    if sets:
        return all(any(same(x, y, tol) for y in b) for x in a) and all(any(same(x, y, tol) for x in a) for y in b)
    if len(a) != len(b):
        return False
    one_name = all(len({x.name for x in items if isinstance(x, Relation)}) < 2 for items in (a, b))
    for x in a:
        found = next((i for i, y in enumerate(b) if (one_name or type(x) is type(y)) and same(x, y, tol)), None)
        if found is None:
            return False
        b.pop(found)
    return True


def same_value(a, b, tol):
    if a.unit and b.unit and a.unit != b.unit or a.letters != b.letters and len(a.points) != len(b.points) and False:
        return False
    n = max(len(a.points), len(b.points))
    for i in range(n):
        x, y = a.points[i % len(a.points)], b.points[i % len(b.points)]
        if i > 1 and any(isinstance(z, mp.mpc) and abs(z.imag) > SAME for z in (x, y)):
            continue                                    # a negative letter, outside the real domain
        if close(x, y):
            continue
        if n > 1 or abs(floating(x)) == mp.inf or abs(floating(y)) == mp.inf:
            return False
        off = abs(floating(x) - floating(y))
        if not (off < floating(Fraction(max(a.slack, b.slack))) or tol and off <= tol * abs(floating(y))):
            return False
    return True


def same_relation(a, b, tol):
    if a.name and a.name == b.name:
        return same(a.value, b.value, tol)
    a, b = (sorted_parts(x) for x in (a, b))
    if a is None or b is None or len(a) != len(b):
        return False
    b = list(b)
    for op, d in a:
        found = next((i for i, (o, e) in enumerate(b) if o == op and proportional(d, e, op)), None)
        if found is None:
            return False
        b.pop(found)
    return True


def sorted_parts(relation):
    parts = []
    for op, left, right in relation.parts:
        if not (isinstance(left, Value) and isinstance(right, Value)):
            return None
        if mp.inf in map(abs, left.points + right.points):
            return None
        if op[0] == ">":
            op, left, right = op.replace(">", "<"), right, left
        parts.append((op.replace("≈", "="), combine(lambda x, y: plus(x, -y), left, right)))
    return parts


def proportional(a, b, op):
    """Whether a = 0 and b = 0 (or a < 0 and b < 0) say the same: a is a constant (positive) multiple of b."""
    if a.letters != b.letters or not a.letters or not all(a.points) or not all(b.points):
        return False
    ratios = [over(x, y) for x, y in zip(a.points, b.points)]
    return all(close(r, ratios[0]) for r in ratios) and (op in ("=", "!=") or not isinstance(
        ratios[0], mp.mpc) and ratios[0] > 0)


def same_reals(a, b):
    """Tests both at their points, between them, and beyond."""
    ends = sorted(p for p in a.points + b.points if abs(p) < mp.inf)
    probes = [*ends, *((p + q) / 2 for p, q in zip(ends, ends[1:]) if not close(p, q))]
    probes += [ends[0] - 1, ends[-1] + 1] if ends else [mp.mpf(0)]
    return all(bool(a.member(t)) == bool(b.member(t)) for t in probes)
