// A formula of TeX as a text of Unicode, for a terminal: "x = (-b ± √(b² - 4ac))/(2a)".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsv4::apps {

// Rows of aligned formulas are lines. None where a part has no such form, an unknown command for one: a formula that has lost something is
// worse than its source.
std::optional<std::string> FormulaText(std::string_view tex);

}  // namespace dsv4::apps
