// Tests of formulas as text: what is written, and what stays TeX.
#include "apps/terminal/formula_text.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace dsv4::apps {
namespace {

TEST(FormulaText, IsWrittenOnALine) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"E = mc^2", "E = mc²"},
      {R"(a_i^2 + \frac{1}{2})", "aᵢ² + 1/2"},
      {R"(x = \frac{-b \pm \sqrt{b^2-4ac}}{2a})", "x = (-b ± √(b² - 4ac))/(2a)"},
      {R"(\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2})", "∫₀^∞ e^(-x²) dx = √π/2"},
      {R"(\sum_{i=1}^{n} i = \frac{n(n+1)}{2})", "∑ᵢ₌₁ⁿ i = n(n + 1)/2"},
      {R"(\sum\limits_{k} k)", "∑ₖ k"},
      {R"(\lim_{n \to \infty} \left(1 + \frac{1}{n}\right)^n = \sum_k (k+1))",
       "lim_(n→∞) (1 + 1/n)ⁿ = ∑ₖ (k + 1)"},
      {R"(\frac{1}{2}x)", "(1/2)x"},
      {R"(2\frac{a}{b})", "2(a/b)"},
      {R"(\frac{1}{n}! + \frac{u}{v}' - \frac{a}{b} \div \frac{c}{d})", "(1/n)! + (u/v)′ - a/b ÷ (c/d)"},
      {R"(\sqrt{2}x + \sqrt{2}^3 + \sqrt{x+1}^2 + \sqrt[3]{a}b)", "√(2)x + (√2)³ + (√(x + 1))² + ∛(a)b"},
      {R"(\frac{1}{\sqrt{2}} + \sqrt{\sqrt{x}}y + \sqrt{n}! + \sqrt 2)", "1/√2 + √(√x)y + (√n)! + √2"},
      {R"(\frac{dy}{dx})", "dy/dx"},
      {R"(\frac{a+b}{c})", "(a + b)/c"},
      {R"(\left( \frac{a}{b} \right)^n)", "(a/b)ⁿ"},
      {R"({\frac{a}{b}}^2)", "(a/b)²"},
      {R"(x_{max})", "xₘₐₓ"},
      {R"(x_{i,j} \ne x_q)", "x_(i,j) ≠ x_(q)"},
      {R"(\sqrt[3]{x+1} \cdot \sqrt[5]{2})", "∛(x + 1) · ⁵√2"},
      {R"(-x - -y)", "-x - -y"},
      {R"(f'(x) \to \sin^2 x + \log_2(n))", "f′(x) → sin² x + log₂(n)"},
      {R"(90^\circ, 1,000)", "90°, 1,000"},
      {R"(x \in \mathbb{R}, \vec{v} \perp \hat n)", "x ∈ ℝ, v\u20d7 ⊥ n\u0302"},
      {R"(\boxed{42})", "[ 42 ]"},
      {R"(f(x) = \begin{cases} 1 & x>0 \\ 0 & \text{otherwise} \end{cases})",
       "f(x) = {1, x > 0; 0, otherwise}"},
      {R"(\begin{pmatrix} a & b \\ c & d \end{pmatrix}^T)", "(a, b; c, d)ᵀ"},
      {"\\begin{aligned} a &= b \\\\ &= c + 1 \\end{aligned}", "a = b\n= c + 1"},
      {R"(P(A \mid B) \le 5\%)", "P(A ∣ B) ≤ 5%"},
  };
  for (const auto& [tex, text] : cases) EXPECT_EQ(FormulaText(tex).value_or("none"), text) << tex;
}

TEST(FormulaText, IsNoneWhereAPartHasNoForm) {
  for (const char* tex : {R"(\binom{n}{k})", R"(\unknown{x})", R"(\frac{1})", R"(x^)", R"(^2)", R"({a)",
                          R"(a})", R"(\sqrt[n q{x})", R"(\begin{array}{cc} a & b \end{array})",
                          R"(1 + \begin{aligned} a \\ b \end{aligned})", R"(a & b)", R"(\vec{AB})",
                          R"(\text{a $x$})", "a % b", "a\x1b[2J", "", " "}) {
    EXPECT_EQ(FormulaText(tex), std::nullopt) << tex;
  }
  EXPECT_EQ(FormulaText(std::string(5000, 'x')), std::nullopt);
  std::string deep;
  for (int i = 0; i < 500; ++i) deep += "\\sqrt{";
  EXPECT_EQ(FormulaText(deep), std::nullopt);
}

}  // namespace
}  // namespace dsv4::apps
