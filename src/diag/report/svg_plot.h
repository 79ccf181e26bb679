// Plots as HTML figures: a heading, an inline SVG that needs only the page's style (html_style.h), a legend,
// and how to read it. A table has every number, for readers that cannot or will not look. No script, nothing
// to load.
#pragma once

#include <string>
#include <string_view>

#include "diag/report/plot.h"

namespace dsv4::diag {

// `id` is unique in the page: letters, digits and hyphens. x and y of a series are equally long.
std::string PlotFigure(const Plot& plot, std::string_view id);
std::string KeyMapFigure(const KeyMap& map, std::string_view id);

}  // namespace dsv4::diag
