"""Kinds of answers, our own examples: what each kind must take for equal, and what for different."""
EQUAL = {
    "integer": r"""
        12 | +12
        -7 | −7
        1024 | 2^{10}
        033 | 33
        27.0 | 27
        5 | 5.
        5 | $5$
        5 | \(5\)
        6 | 2 \cdot 3
        120 | 5!
        -3 | -{3}
        15 | 3 \times 5
        2^{100} | 1267650600228229401496703205376
        8 | \textbf{8}
        9 | \mathbf{9}
        13 | \boxed{13}""",
    "thousands": r"""
        12345 | 12,345
        1234567 | 1,234,567
        10080 | 10,\!080
        14916 | 14{,}916
        14916 | 14 {, }916
        1000000 | 1\,000\,000
        11111111100 | 11,\! 111,\! 111,\! 100
        98765 | 98 765
        -12345.5 | -12,345.5
        \frac{1000}{3} | \frac{1,000}{3}
        2016532 | 2{,}016{,}532
        250000 | 250{\,}000
        32348 | \$32,\!348
        5200 | 5,200 dollars
        (1000,2) | (1{,}000, 2)
        1234 | 1,234.00
        2000,3000 | 3000, 2000""",
    "decimal": r"""
        .25 | 0.25
        0.5 | .50
        -0.75 | -\frac{3}{4}
        3. | 3
        1.20 | \frac{6}{5}
        12.5 | \frac{25}{2}""",
    "approx": r"""
        \frac{2}{3} | 0.6666666666666666
        \sqrt{5} | 2.23606797749979
        \pi | 3.141592653589793
        \frac{1}{7} | 0.142857142857143
        0.3 | 0.30000000000000004""",
    "fraction": r"""
        3/4 | \frac34
        3/4 | \frac{3}4
        3/4 | \frac3{4}
        3/4 | \dfrac 3 4
        3/4 | \tfrac{6}{8}
        -3/4 | \frac{-3}{4}
        -3/4 | \frac{3}{-4}
        -3/4 | -\cfrac{3}{4}
        3/4 | 3 / 4
        3/4 | 3 \div 4
        3/4 | ¾
        3/4 | {3 \over 4}
        13/72 | \frac{1}{9}+\frac{5}{72}
        7/3 | \left(\frac{7}{3}\right)
        7/3 | (7)/(3)
        \frac{1}{x+1} | 1/(x+1)
        \frac{22}{7} | \displaystyle\frac{22}{7}
        \frac{-1}{1997} | -\frac{1}{1997}
        \frac{1}{2/3} | 3/2
        \frac{\frac{1}{2}}{3} | 1/6""",
    "mixed_number": r"""
        7/2 | 3\frac{1}{2}
        7/2 | 3\frac12
        7/2 | 3 1/2
        -7/2 | -3\frac{1}{2}
        9/5 | 1 \dfrac{4}{5}
        137.5 | 137 \tfrac{1}{2}
        3/2 | 1½
        8.75 | 8\,\frac{3}{4}
        2\frac{1}{3} | 7/3""",
    "percent": r"""
        45\% | 0.45
        45\% | 45%
        45\% | 45 percent
        45\% | 45\text{ percent}
        45\% | \frac{9}{20}
        12.5\% | 1/8
        33\frac{1}{3}\% | 1/3
        0.5\% | 0.005
        150\% | 1.5
        45\% | $45\%$
        7.25\% | 7.25 \%""",
    "currency": r"""
        \$5 | 5
        \$5.50 | 5.5
        \$1,234.50 | 1234.5
        29 | $29.00
        13 | $13
        -\$4 | -4
        €20 | 20
        \$36 | 36 dollars
        £3.20 | 3.2
        40 | 40 USD
        15 cents | 15
        \$0.75 | 75/100""",
    "degrees": r"""
        30^\circ | 30
        30^\circ | 30^{\circ}
        30^\circ | 30°
        30^\circ | 30\text{ degrees}
        30^\circ | 30 degrees
        45 | 45^{\circ}
        \frac{270}{7}\text{ degrees} | 270/7
        22.5^\circ | \frac{45}{2}^\circ
        \angle ABC = 60^\circ | 60
        m\angle A = 60^\circ | 60^\circ
        100 | 100^\circ \text{C}
        20^\circ C | 20""",
    "units": r"""
        5\text{ cm} | 5
        5 | 5 cm
        5 cm | 5\,\mathrm{cm}
        5\text{ meters} | 5\text{ m}
        15\text{ cm}^2 | 15 \mathrm{~cm}^{2}
        15 | 15\text{ square units}
        15\text{ square inches} | 15\text{ in}^2
        480+480\sqrt{3}\text{ feet} | 480 + 480\sqrt 3
        3 | 3 apples
        80\pi | 80 \pi\text{ mi}/\text{min}
        60 | 60 miles per hour
        60 mph | 60
        240\text{ ways} | 240
        \text{12 apples} | 12
        3 \text{ h} | 3 hours
        5000000 | 5 million
        3.5\text{ million} | 3500000
        1.5\text{ hours} | \frac{3}{2}\text{ hours}
        36\sqrt{7}cm^{3} | 36\sqrt{7}
        12\text{th} | 12
        6 | 6 \text{ kg}
        9.8 \mathrm{~m} / \mathrm{s}^{2} | 9.8
        10 | 10 \text{ m/s}""",
    "sci_notation": r"""
        4.5e33 | 4.5 \times 10^{33}
        1.6e-19 | 1.6 \times 10^{-19}
        3.2e-4 | 0.00032
        3e8 | 3 \times 10^8
        3e8 | 300000000
        3e8 | 3 \cdot 10^{8}
        3e8 | 3*10^8
        6.02\times10^{23} | 6.02E23
        1.5×10³ | 1500
        2.5 x 10^3 | 2500
        10^{-3} | 0.001
        3e8 | 3.00 \times 10^{8}""",
    "sqrt": r"""
        \sqrt{12} | 2\sqrt{3}
        \sqrt2 | \sqrt{2}
        \sqrt 2 | √2
        \sqrt{2} | sqrt(2)
        \sqrt{2} | 2^{1/2}
        \sqrt{2} | 2**0.5
        \sqrt{2} | \frac{2}{\sqrt{2}}
        \frac{1}{\sqrt{2}} | \frac{\sqrt{2}}{2}
        \sqrt[3]{8} | 2
        \sqrt[3]{-27} | -3
        \sqrt[3]{16} | 2\sqrt[3]{2}
        3\sqrt{5} | 3*sqrt(5)
        3\sqrt{5} | \sqrt{45}
        \sqrt{3+2\sqrt{2}} | 1+\sqrt{2}
        (1+\sqrt{2})^2 | 3+2\sqrt2
        \sqrt{x^2+1} | (1+x^2)^{1/2}
        5\sqrt{3}/2 | \frac{5}{2}\sqrt{3}
        4^{1/3} | \sqrt[3]{4}
        2\sqrt{3} | 2 sqrt 3
        2\sqrt{ab} | 2\sqrt{a}\sqrt{b}
        \sqrt[4]{2} | \sqrt{\sqrt{2}}""",
    "pi": r"""
        2\pi | 2pi
        2\pi | 2*pi
        2\pi | 2π
        2\pi | \pi \cdot 2
        \frac{\pi}{6} | pi/6
        \frac{3\pi}{4} | 3/4 \pi
        \frac{3}{4}\pi | 3\pi/4
        9 + \frac{9\pi}{2} | \frac{18+9\pi}{2}
        \pi^2 | pi^2
        10+\frac{15}{2}\pi | 10 + 7.5pi
        \frac{1}{2\pi} | 1/(2\pi)""",
    "trig": r"""
        \sin 30^\circ | 1/2
        \sin(30^\circ) | 0.5
        \cos\frac{\pi}{3} | \frac12
        \tan 45^{\circ} | 1
        2\sin x\cos x | \sin 2x
        \sin^2 x + \cos^2 x | 1
        \sin^{-1}(1) | \frac{\pi}{2}
        \arcsin(1/2) | \pi/6
        np.arcsin(10/13) | \arcsin\left(\frac{10}{13}\right)
        \sec x | \frac{1}{\cos x}
        \cot x | \cos x/\sin x
        \cos(2x) | 1-2\sin^2(x)
        \log_2 8 | 3
        \log_{10} 1000 | 3
        \log 100 | 2
        \ln(e^2) | 2
        \log_3 5 | \frac{\ln 5}{\ln 3}
        \log_{4}(8) | \frac{3}{2}
        \ln 8 | 3 \ln 2
        e^{x+1} | e \cdot e^x
        \exp(2) | e^2
        \frac{1}{2}\ln 3 | \ln\sqrt{3}
        \sin(\pi) | 0
        \sin x | sin(x)
        \arctan 2 | \tan^{-1} 2""",
    "complex": r"""
        1+2i | 2i+1
        2i | (1+i)^2
        \frac{3}{4}i | \frac{3i}{4}
        -8-8\sqrt{3}i | -8 - 8i\sqrt{3}
        \frac{1}{1+i} | \frac{1-i}{2}
        i^2 | -1
        e^{i\pi} | -1
        3-4\mathrm{i} | 3-4i
        \frac{70+49 i}{149} | \frac{7(10+7i)}{149}""",
    "repeating": r"""
        1/3 | 0.\overline{3}
        1/6 | 0.1\overline{6}
        0.\overline{142857} | 1/7
        0.\bar{3} | 1/3
        0.\dot{3} | 1/3
        0.\overline{27} | 3/11
        2.\overline{45} | 27/11
        0.(3) | 1/3
        0.\overline3 | \frac13""",
    "base": r"""
        52_8 | 52_{8}
        1011_2 | 1011_{2}
        204_5 | (204)_5
        204_5 | 204_{\text{5}}
        2516_8 | $2516_8$""",
    "ratio": r"""
        3:4 | 3 : 4
        3:4 | 6:8
        3:4 | $3:4$
        1:2:3 | 1 : 2 : 3
        AB:CD=3:4 | 3:4
        7:32 | 7\colon 32""",
    "time": r"""
        10:30 | 10:30
        8:15 | $8:15$
        12:00 | 12:00""",
    "tuple": r"""
        (1,2) | (1, 2)
        (1,2) | \left(1,2\right)
        (1,2) | \langle 1, 2 \rangle
        (\frac{1}{2},3) | (0.5,3)
        (x,y)=(1,2) | (1,2)
        (3,\frac{\pi}{2}) | (3, pi/2)
        (1,2,-3) | ( 1, 2, -3 )
        (\sqrt{2},0) | (sqrt(2), 0)
        \left(-\frac{4\sqrt{5}}{5}, \frac{2\sqrt{5}}{5}\right) | (-4/\sqrt5, 2/\sqrt5)
        (1, 2), (3, 4) | (3,4),(1,2)
        (1,2)\text{ and }(3,4) | (1,2),(3,4)
        (10, 100) | (10,100)
        P = (1,2) | (1,2)
        (e^{-5}, \pm\sqrt{7}) | (e^{-5},\sqrt{7}),(e^{-5},-\sqrt{7})""",
    "set": r"""
        1,2,3 | 3,2,1
        1, 2 | \{1,2\}
        \{1,2\} | \{2,1\}
        \{1,2\} | {2, 1}
        1\text{ and }2 | 1, 2
        1\text{ or }2 | 2,1
        1, 2,\text{ and }3 | 1,2,3
        x=1, x=2 | x=1 or x=2
        x=1, 2 | 1, 2
        x = 1 \text{ or } x = -2 | -2, 1
        $69$,$84$ | 69, 84
        \{0.5, 1\} | \{\frac12, 1\}
        \sqrt{2}, -\sqrt{2} | -\sqrt{2},\sqrt{2}
        \{x, y\} | \{y, x\}
        1;2;3 | 1, 2, 3
        \emptyset | \varnothing
        \{1,2\} \cup \{3\} | \{1,2,3\}
        \{1,2,3\} \cap \{2,3,4\} | \{2,3\}
        \{1,2,3\} \setminus \{2\} | \{1,3\}
        D, E | E, D
        {1, 2} ∪ {3} | \{1,2,3\}
        \{1\} | \{1\}
        -1,0,1 | 0, \pm 1
        $\frac{1}{6} \pi, \frac{5}{6} \pi$ | 5\pi/6, \pi/6""",
    "plusminus": r"""
        \pm 3 | 3, -3
        \pm 3 | \{-3, 3\}
        \pm 3 | x = \pm 3
        1\pm\sqrt{2} | 1+\sqrt{2}, 1-\sqrt{2}
        1\pm\sqrt{2} | 1 \mp \sqrt{2}
        \frac{-1\pm\sqrt{13}}{4} | \frac{-1+\sqrt{13}}{4}, \frac{-1-\sqrt{13}}{4}
        \pm\sqrt{5} | x=\sqrt5 \text{ or } x=-\sqrt5
        \pm 1, \pm 2 | -2,-1,1,2
        ±4 | 4,-4
        \pm i | i, -i
        2 \pm 3i | 2-3i, 2+3i""",
    "interval": r"""
        (0,1) | \left( 0, 1 \right)
        [0,1) | [0, 1.0)
        [0,\infty) | [0, +\infty)
        (-\infty, 3] | (-∞,3]
        (-\infty,\infty) | \mathbb{R}
        [\frac12, 2] | [0.5,2]
        x \in (0,1) | (0,1)
        (-\sqrt{3},\sqrt{3}) | (-sqrt(3), sqrt(3))
        [0,5] \cap [3,8] | [3,5]
        \left[-\frac{3}{2}, \frac{2}{5}\right] | [-1.5, 0.4]
        (1,\infty) | (1,infinity)""",
    "union": r"""
        (-\infty,1)\cup(2,\infty) | (2,\infty)\cup(-\infty,1)
        (-\infty,1)\cup(2,\infty) | x \in (-\infty,1) \cup (2,\infty)
        (-\infty,1)\cup(2,\infty) | (-∞,1)∪(2,∞)
        (-\infty,1)\cup(2,\infty) | (-\infty,1) U (2,\infty)
        [0,2] \cup [1,3] | [0,3]
        [0,1)\cup(1,2] | [0,2] \setminus \{1\}
        (-\infty,0)\cup(0,\infty) | \mathbb{R} \setminus \{0\}
        x<1 \text{ or } x>2 | (-\infty,1)\cup(2,\infty)
        (0,1)\cup\{2\} | \{2\}\cup(0,1)
        (-\infty, 1) \text{ or } (2,\infty) | (-\infty,1)\cup(2,\infty)
        (0, 3] \cup [\tfrac72, \infty) | (0,3] \cup [3.5,\infty)""",
    "inequality": r"""
        x>3 | 3<x
        x \ge 3 | x>=3
        x \geqslant 3 | x≥3
        x \leq 3 | x \le 3
        x<-1 | -x > 1
        2x < 6 | x < 3
        1<x<4 | 4>x>1
        1<x<4 | (1,4)
        1<x<4 | x \in (1,4)
        1<x\text{ and }x<4 | 1<x<4
        -2\le x<5 | [-2,5)
        x>0 | (0,\infty)
        x\ne 3 | x \neq 3
        x\ne 3 | x≠3
        x \neq 3 | (-\infty,3)\cup(3,\infty)
        \{x\in\mathbb{R} : x > 2\} | (2,\infty)
        x > \frac12 | x > 0.5
        a<b<c | c>b>a
        x+y<3 | 3>y+x
        x<1 \text{ or } x>2 | x>2 or x<1
        m > 4 | 4 < m
        \{x \mid -1/3<x<1/3\} | (-1/3, 1/3)
        \{x : x > 2\} | (2, \infty)
        x \leqslant -\sqrt{3} | x <= -sqrt(3)""",
    "matrix": r"""
        \begin{pmatrix}1&2\\3&4\end{pmatrix} | \begin{bmatrix}1&2\\3&4\end{bmatrix}
        \begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix} 1 \\ 2 \\ \end{pmatrix}
        \begin{pmatrix}1/2\\2\end{pmatrix} | \begin{pmatrix} 0.5 \\[4pt] 2 \end{pmatrix}
        \begin{pmatrix}1&2\\3&4\end{pmatrix} | \left[\begin{array}{rr}1 & 2 \\ 3 & 4\end{array}\right]
        \begin{pmatrix}\frac12&1\\1&0\end{pmatrix} | \frac{1}{2}\begin{pmatrix}1&2\\2&0\end{pmatrix}
        \begin{pmatrix} -7 \\ 16 \\ 5 \end{pmatrix} | \begin{bmatrix}-7\\16\\5\end{bmatrix}
        A = \begin{pmatrix}1&0\\0&1\end{pmatrix} | \begin{pmatrix}1&0\\0&1\end{pmatrix}
        \begin{pmatrix}x&x^2\end{pmatrix} | \begin{pmatrix}x&x\cdot x\end{pmatrix}""",
    "assignment": r"""
        x=5 | 5
        5 | x = 5
        5 = x | 5
        x=5 | x = 5.0
        f(x)=2x+1 | 2x+1
        a_n = n^2 | n^2
        |AB| = 3 | 3
        \frac{AB}{CD} = \frac12 | 1/2
        y = 3 | 3
        N=5 | 5
        m_{\max}=n^2-n-1 | n^{2}-n-1
        S = \frac{1}{2} | 0.5
        x \approx 2.5 | 2.5
        x = \frac{1}{3} \approx 0.333 | \frac{1}{3}
        f^{-1}(x)=-\frac{4x}{3} | -\frac{4x}{3}
        Area = 12 | 12
        \theta = \frac{\pi}{4} | \pi/4
        v_{\text{max}} = 3 | 3
        AB = 2\sqrt{5} | 2\sqrt{5}""",
    "equation": r"""
        y=2x+3 | 2x-y+3=0
        y=2x+3 | y = 3+2x
        2x+4y=6 | x+2y=3
        x^2+y^2=25 | y^2 = 25 - x^2
        \frac{x^2}{4}+\frac{y^2}{9}=1 | 9x^2+4y^2=36
        (x-1)^2+y^2=4 | x^2-2x+1+y^2=4
        f(x)=x, f(x)=-x | f(x)=-x,f(x)=x
        a=1, b=2 | b=2, a=1
        \frac{dx}{dt}=kx-a | \frac{d x}{d t} = k x - a
        f(x)=x^2 | f(x)=x\cdot x
        y'' + y = 0 | y + y'' = 0
        y=-2x | y + 2x = 0
        x^2 + y^2 - 4 = 0 | x^2+y^2=4""",
    "expression": r"""
        (x+1)^2 | x^2+2x+1
        2x+3y | 3y+2x
        \frac{x^2-1}{x-1} | x+1
        \frac{a+b}{2} | (a+b)/2
        5r^5 | 5 r^{5}
        x(x+1) | x^2+x
        2(x+y) | 2x+2y
        ab | ba
        x^{-1} | \frac{1}{x}
        \frac{n(n+1)}{2} | \frac{n^2+n}{2}
        2^{n+1} | 2 \cdot 2^n
        (-1)^{n+1} | -(-1)^n
        x_1+x_2 | x_2+x_1
        a_{10} | a_{ 10 }
        |x-1| | |1-x|
        \lfloor n/2 \rfloor | \left\lfloor \frac{n}{2} \right\rfloor
        \lceil 2.5 \rceil | 3
        \alpha+\beta | \beta+\alpha
        k\left(4 k^{2}+k-1\right) / 2 | \frac{4k^3+k^2-k}{2}
        x^2y | yx^2
        e^{-x^2} | \frac{1}{e^{x^2}}
        \frac{x^{\frac{4}{3}}}{y^{\frac{10}{3}}} | x^{4/3} y^{-10/3}
        \frac{e^{t}} {3}+c e^{-2 t} | e^t/3 + ce^{-2t}
        \frac{1}{3} E_{1}+\frac{2}{3} E_{2} | \frac{E_1+2E_2}{3}
        \ln|t| | \ln |t|
        I(0) | I(0)
        \hbar\omega | \omega \hbar
        x**2 | x^2
        \frac{K-1}{L} | (K-1)/L
        v_0^2 | v^2_0
        2xy | 2 x y
        3a^2b | 3 b a^{2}""",
    "factorial": r"""
        10! | 3628800
        \binom{5}{2} | 10
        \dbinom{n}{2} | \frac{n(n-1)}{2}
        n! | n (n-1)!
        \frac{10!}{8!} | 90
        \binom{n}{k} | \frac{n!}{k!(n-k)!}""",
    "huge": r"""
        2^{1000} | 4^{500}
        10^{100} | 10^{99} \cdot 10
        2024^{4046} | (2024^{2})^{2023}
        3^{2025} | 3\cdot 3^{2024}
        10^{1/100} | \sqrt[100]{10}""",
    "text": r"""
        \text{even} | Even
        \text{Yes} | yes
        No solution | no solution
        \text{east} | East.
        \mathrm{ellipse} | ellipse
        \text{a circle} | A circle
        \text{Navin} | Navin
        2,4,\ldots,2n | 2, 4, \ldots, 2n""",
    "choice": r"""
        C | (C)
        C | \text{(C)}
        \text{(C)} | C
        C | C.
        C | c
        C | \textbf{C}
        C | \textbf{(C)}
        C | C) 14 m/s
        C | (C) 14
        C | C. 14 m/s
        C | C: 14
        \text{(C)} | \mathrm{C}
        C | option C
        C | $C$""",
    "unicode": r"""
        x^2+1 | x²+1
        \sqrt{2} | √2
        \frac{1}{2} | ½
        \frac{1}{2} | １/２
        12 | １２
        2\pi | 2π
        \infty | ∞
        \{1,2\} | ｛1，2｝
        \alpha | α
        30^\circ | 30º
        x \ge 2 | x ⩾ 2
        -5 | –5
        3 \times 4 | 3×4
        (1,2) | （1，2）
        a_1 | a₁
        10^{-3} | 10⁻³
        5\theta | 5θ
        \emptyset | ∅""",
}

DIFFERENT = {
    "integer": r"""
        12 | 13
        5 | -5
        15 | 5
        5 | 15
        0 | 
        12 | 1 2
        12 | 21
        100 | 1000
        123456789012345678901 | 123456789012345678900
        6 | 6 or 7
        12345678901234567890 | 1.2345678901234567e19
        6 | 6, 7""",
    "thousands": r"""
        1234 | 12,34
        1234 | 1,2,3,4
        1234 | (1,234)
        1234 | 1.234
        1000 | 000
        8000 | 8
        32349 | \{32, 349\}""",
    "decimal": r"""
        0.5 | 0.05
        1.25 | 1.26
        0.333 | 1/3
        2.5 | 25
        0.1 | 0.10000001""",
    "approx": r"""
        \frac{2}{3} | 0.67
        \pi | 3.14
        \sqrt{2} | 1.4142
        1e-16 | 2e-16
        10^{-20} | 0
        1 | 0.99999999
        0.1234567890123 | 0.1234567890124""",
    "fraction": r"""
        3/4 | 4/3
        \frac{3}{4} | 3
        \frac{3}{4} | 4
        \frac{11}{2} | \frac{1}{12}
        \frac12 | 12
        1/3 | 0.33
        \frac{a}{b} | \frac{b}{a}
        \frac{x+1}{2} | x+\frac{1}{2}
        \frac{1}{23} | \frac{12}{3}
        1/0 | 1
        0/0 | 0""",
    "mixed_number": r"""
        7/2 | 3/2
        3\frac{1}{2} | 1/2
        3\frac{1}{2} | 3
        3\frac{1}{2} | 31/2
        5 | 2 5/2""",
    "percent": r"""
        45\% | 0.045
        45\% | 4.5\%
        0.45 | 45
        50\% | 5\%""",
    "currency": r"""
        \$5 | 6
        \$5 | 5 cents
        €5 | £5
        \$1,234 | 1,235""",
    "degrees": r"""
        30^\circ | 60^\circ
        30^\circ | 3
        20^\circ C | 20^\circ F
        30^\circ | 30 cm""",
    "units": r"""
        5 cm | 5 m
        3\text{ hours} | 3\text{ minutes}
        5\text{ cm} | 5\text{ cm}^2
        5 | 5 million
        5\text{ cm} | 6
        5 | \text{at least }5
        5 | 5 \text{ or more}
        2k | 2
        3n | 3
        240\text{ ways} | 24
        1\text{ km} | 1\text{ kg}""",
    "sci_notation": r"""
        4.5e33 | 4.5e32
        1.6e-19 | 1.7e-19
        1.6e-19 | 0
        3e8 | 3 \times 8
        3 \times 10^8 | 3 \times 10^{-8}""",
    "sqrt": r"""
        \sqrt{2} | 2
        \sqrt{3} | -\sqrt{3}
        2\sqrt{3} | 3\sqrt{2}
        \sqrt[3]{2} | \sqrt{2}
        \sqrt[3]{2} | 3\sqrt{2}
        \sqrt{x^2} | x
        \frac{\sqrt3}{3} | \frac13
        1+\sqrt{2} | 1-\sqrt{2}""",
    "pi": r"""
        2\pi | 2
        2\pi | \pi
        2\pi | 2\pi^2
        \frac{\pi}{6} | \frac{6}{\pi}
        \pi | p i""",
    "trig": r"""
        \sin x | \cos x
        \sin 30^\circ | \sin 30
        \sin 2x | 2\sin x
        \sin^2 x | \sin x^2
        \sin^{-1} x | \frac{1}{\sin x}
        \ln 2 | \log 2
        \log_2 3 | \log_3 2""",
    "complex": r"""
        1+2i | 1-2i
        1+2i | 1
        2i | 2
        3+4i | 4+3i
        i | -i""",
    "repeating": r"""
        0.\overline{3} | 0.3
        0.\overline{12} | 0.1\overline{2}
        0.\overline{3} | 3""",
    "base": r"""
        52_8 | 52_9
        52_8 | 42
        52_8 | 53_8
        -37_8 | -37
        63_7 | 63_8""",
    "ratio": r"""
        3:4 | 4:3
        3:4 | 3
        3:4 | 34
        1:2:3 | 1:2
        1:2:3 | 3:2:1""",
    "time": r"""
        12:00 | 1:00
        10:30 | 10:31
        10:30 | 1030
        3:20 | 6:40
        3:05 pm | 3:05 am""",
    "tuple": r"""
        (1,2) | (2,1)
        (1,2) | (1,2,3)
        (1,2) | [1,2]
        (1,2) | \{1,2\}
        (1,2) | 12
        (1,2) | 1
        (1,2),(3,4) | (1,2)
        (1,2),(3,4) | (1,4),(3,2)
        (a,b) | (b,a)""",
    "set": r"""
        1,2,3 | 1,2
        1,2 | 1,3
        1,2 | 12
        1,-2 | 1
        1,-2 | 1,-3
        0,1 | 01
        \{1,2\} | (1,2)
        \emptyset | 0
        \emptyset | \{0\}
        \{1,2\} | \{1,2,3\}
        x=1,y=2 | x=2,y=1
        1,1,2 | 1,2,2""",
    "plusminus": r"""
        \pm 3 | 3
        \pm 3 | -3
        1\pm\sqrt{2} | 1+\sqrt{2}
        1\pm\sqrt{2} | \pm\sqrt{2}
        \pm 3 | \pm 4""",
    "interval": r"""
        (0,1) | [0,1]
        (0,1) | (0,1]
        (0,1) | (0,2)
        [0,\infty) | (0,\infty)
        [0,\infty) | (-\infty,0]
        [0,1] | 0
        [0,1] | \{0,1\}
        (1, 2] | 2""",
    "union": r"""
        (-\infty,1)\cup(2,\infty) | (-\infty,1]\cup(2,\infty)
        (-\infty,1)\cup(2,\infty) | (-\infty,1)
        (-\infty,1)\cup(2,\infty) | (1,2)
        [0,2]\setminus\{1\} | [0,2]
        (0,1)\cup(1,2) | (0,2)""",
    "inequality": r"""
        x>3 | x<3
        x>3 | x \ge 3
        x>3 | 3
        x>3 | x>4
        1<x<4 | 1<x
        1<x<4 | 1 \le x<4
        x>3 | y>3
        x<1 \text{ or } x>2 | 1<x<2
        x\ne 3 | x=3
        x+y<3 | x-y<3
        a<b<c | a<c<b
        \{x \mid x=3k\} | 3""",
    "matrix": r"""
        \begin{pmatrix}1&2\\3&4\end{pmatrix} | \begin{pmatrix}1&3\\2&4\end{pmatrix}
        \begin{pmatrix}1&2\\3&4\end{pmatrix} | \begin{vmatrix}1&2\\3&4\end{vmatrix}
        \begin{pmatrix}1&2\end{pmatrix} | \begin{pmatrix}1\\2\end{pmatrix}
        \begin{pmatrix}1\\2\end{pmatrix} | 1
        \begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}1\\2\\3\end{pmatrix}
        \begin{pmatrix}1&2&3&4\end{pmatrix} | \begin{pmatrix}1&2\\3&4\end{pmatrix}""",
    "assignment": r"""
        x=5 | 6
        x=5 | y=5
        x=5 | -5
        2x=5 | 5
        x+y=5 | 5
        f(x)=2x | 2
        x-3=5 | 5
        x = 3 = 4 | 3""",
    "equation": r"""
        y=2x+3 | y=2x-3
        y=2x+3 | y=3x+2
        x^2+y^2=25 | 25
        x^2+y^2=25 | x^2-y^2=25
        x+y=1 | x+y=2
        \frac{x^2}{2}-\frac{y^2}{2}=1 | 1
        a=1, b=2 | a=2, b=1
        0=0 | 1=1
        xy=1 | 1""",
    "expression": r"""
        x+1 | x-1
        2x | x
        x^2 | 2x
        x^2 | x^3
        x | y
        x | X
        |x| | x
        x_1 | x_2
        f(x) | f(y)
        f(1) | f(2)
        f(2)+f(3) | f(5)
        I(0) | 0
        I(0) | I(1)
        a+b | ab
        2^n | n^2
        x+2n+1 | x+1
        3R^2 | 3r^2
        \frac{1}{x+1} | \frac{1}{x}+1
        \frac{d}{dx} x | 1
        e^x | e^{-x}
        \alpha | a
        n! | n
        \sqrt{x} | x""",
    "factorial": r"""
        10! | 10
        \binom{5}{2} | \frac{5}{2}
        n! | (n+1)!
        \binom{n}{2} | \frac{n(n+1)}{2}""",
    "huge": r"""
        2^{1000} | 2^{1001}
        2^{100000} | 2^{100000}+1
        10^{10^{10}} | 10^{10}
        10^{100} | 10^{101}
        2024^{4046} | 2024^{4047}
        1000! | 1001!
        2^{2^{100}} | 2^{2^{101}}""",
    "text": r"""
        \text{even} | odd
        \text{Yes} | No
        \text{Ian} | Ina
        \text{east} | seat
        \text{a circle} | an ellipse
        \text{no} | on
        2,4,\ldots,2n | 1,3,\ldots,2n-1
        F_n=\sum_{k=0}^{n-1}F_k | F_n=\sum_{k=0}^{n-2}F_k""",
    "choice": r"""
        A | a necessary condition
        A | B
        S | Answer seems
        C | A, C
        C | C or D
        B | A or B
        B | B or A
        C | 3
        C | C + 1
        B | AB
        D | (A) not D
        B | Because""",
    "unicode": r"""
        x^2 | x²³
        23 | 2³
        1/2 | 1½
        \alpha | a
        2 | ²""",
}


def pairs(lines):
    """[(gold, pred), …]"""
    return [tuple(side.strip() for side in (line + " ").split(" | ")) for line in lines.strip("\n").split("\n") if line]
