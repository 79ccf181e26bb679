// Picture of the keys that each query attends to, as SVG.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "base/check.h"
#include "diag/report/html_figure.h"
#include "diag/report/html_text.h"
#include "diag/report/svg_axis.h"
#include "diag/report/svg_plot.h"

namespace dsv4::diag {
namespace {

struct StateStyle {
  KeyState state;
  const char* css;
  const char* name;
};
constexpr StateStyle kStates[] = {{KeyState::kSeen, "seen", "attended, as the rule says"},
                                  {KeyState::kNotChosen, "notchosen", "visible, not chosen by the indexer"},
                                  {KeyState::kMissing, "missing", "not attended, against the rule"},
                                  {KeyState::kExtra, "extra", "attended, against the rule"}};

std::set<KeyState> StatesOf(const KeyMap& map) {
  std::set<KeyState> states;
  for (const KeyPanel& panel : map.panels) {
    for (const auto& row : panel.rows) {
      for (const KeyRun& run : row) states.insert(run.state);
    }
  }
  return states;
}

std::string KeyMapSvg(const KeyMap& map, std::string_view id) {
  std::string svg;
  const auto put = [&](auto format, auto&&... args) {
    fmt::format_to(std::back_inserter(svg), fmt::runtime(format), std::forward<decltype(args)>(args)...);
  };
  put("<svg class=\"plot\" viewBox=\"0 0 {:g} {:g}\" role=\"img\" aria-labelledby=\"{}-t {}-d\">\n", kNarrow,
      kHeight, id, id);
  put("<title id=\"{}-t\">{}</title>\n<desc id=\"{}-d\">{}</desc>\n", id, EscapeHtml(map.title), id,
      EscapeHtml(map.reading));
  put("<text class=\"ylabel\" x=\"4\" y=\"14\">query position</text>\n");
  // A query's band reaches to the next one's: where only some are drawn there are no gaps.
  const int64_t first = map.positions.empty() ? 0 : map.positions.front();
  const int64_t last = map.positions.empty() ? 1 : map.positions.back() + 1;
  const double scale_y = (kHeight - kTop - kBottom) / static_cast<double>(last - first);
  const Axis queries = Axis::Linear(std::vector{static_cast<double>(first), static_cast<double>(last)}, 6);
  for (const Tick& tick : queries.ticks()) {
    put("<text class=\"ytick\" x=\"{:g}\" y=\"{:.1f}\">{}</text>\n", kLeft - 5,
        kTop + tick.place * (kHeight - kTop - kBottom) + 4, tick.label);
  }
  const double gap = 18;
  const auto count = static_cast<double>(map.panels.size());
  const double panel_width = (kNarrow - kLeft - kRight - gap * (count - 1)) / count;
  for (size_t p = 0; p < map.panels.size(); ++p) {
    const KeyPanel& panel = map.panels[p];
    DSV4_CHECK(panel.rows.size() == map.positions.size()) << panel.name;
    const double left = kLeft + static_cast<double>(p) * (panel_width + gap);
    const double scale_x = panel_width / static_cast<double>(std::max<int64_t>(1, panel.num_keys));
    put("<rect class=\"panel\" x=\"{:.1f}\" y=\"{:g}\" width=\"{:.1f}\" height=\"{:g}\"/>\n", left, kTop,
        panel_width, kHeight - kTop - kBottom);
    put("<g transform=\"translate({:.2f} {:g}) scale({:.6f} {:.6f})\">\n", left, kTop, scale_x, scale_y);
    for (const StateStyle& style : kStates) {
      std::string path;
      for (size_t row = 0; row < panel.rows.size(); ++row) {
        const int64_t y = map.positions[row] - first;
        const int64_t next = row + 1 < map.positions.size() ? map.positions[row + 1] - first : last - first;
        for (const KeyRun& run : panel.rows[row]) {
          if (run.state != style.state) continue;
          path += fmt::format("M{} {}h{}v{}h{}z", run.begin, y, run.end - run.begin, next - y,
                              run.begin - run.end);
        }
      }
      if (!path.empty()) put("<path class=\"{}\" d=\"{}\"/>\n", style.css, path);
    }
    put("</g>\n");
    const auto keys = static_cast<double>(panel.num_keys);
    const Axis axis = Axis::Linear(std::vector{0.0, std::max(1.0, keys)}, count > 1 ? 4 : 7);
    for (const Tick& tick : axis.ticks()) {
      put("<path class=\"tick\" d=\"M{:.1f} {:g}v4\"/><text class=\"xtick\" x=\"{:.1f}\" "
          "y=\"{:g}\">{}</text>\n",
          left + tick.place * panel_width, kHeight - kBottom, left + tick.place * panel_width,
          kHeight - kBottom + 17, tick.label);
    }
    put("<text class=\"xlabel\" x=\"{:.1f}\" y=\"{:g}\">{}</text>\n", left + panel_width / 2, kHeight - 6,
        EscapeHtml(panel.name));
  }
  svg += "</svg>\n";
  return svg;
}

// "0..3 7" of the keys in one state.
std::string Keys(const std::vector<KeyRun>& row, KeyState state) {
  std::string text;
  for (const KeyRun& run : row) {
    if (run.state != state) continue;
    if (!text.empty()) text += " ";
    text +=
        run.end - run.begin == 1 ? std::to_string(run.begin) : fmt::format("{}..{}", run.begin, run.end - 1);
  }
  return text;
}

std::string KeyMapRows(const KeyMap& map, const std::set<KeyState>& states) {
  std::vector<std::string> head = {"query position"};
  for (const KeyPanel& panel : map.panels) {
    for (const StateStyle& style : kStates) {
      if (states.contains(style.state)) head.push_back(fmt::format("{}: {}", panel.name, style.name));
    }
  }
  std::string html = TableRow(head, "th");
  for (size_t row = 0; row < map.positions.size(); ++row) {
    std::vector<std::string> cells = {std::to_string(map.positions[row])};
    for (const KeyPanel& panel : map.panels) {
      for (const StateStyle& style : kStates) {
        if (states.contains(style.state)) cells.push_back(Keys(panel.rows[row], style.state));
      }
    }
    html += TableRow(cells, "td");
  }
  return html;
}

}  // namespace

std::string KeyMapFigure(const KeyMap& map, std::string_view id) {
  const std::set<KeyState> states = StatesOf(map);
  std::string legend = "<ul class=\"legend\">\n";
  for (const StateStyle& style : kStates) {
    if (!states.contains(style.state)) continue;
    legend += fmt::format(
        "<li><svg class=\"swatch\" viewBox=\"0 0 22 12\" aria-hidden=\"true\"><rect class=\"{}\" x=\"4\" "
        "y=\"1\" "
        "width=\"14\" height=\"10\"/></svg>{}</li>\n",
        style.css, style.name);
  }
  return HtmlFigure({.title = map.title,
                     .reading = map.reading,
                     .svg = KeyMapSvg(map, id),
                     .legend = legend + "</ul>\n",
                     .rows = KeyMapRows(map, states)});
}

}  // namespace dsv4::diag
