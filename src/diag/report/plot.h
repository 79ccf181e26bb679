// Figures of a check as data, drawn by svg_plot.h. Numbers that are not finite are drawn at the edge, as are
// zeros on a logarithmic axis. Nothing that was measured is left out of a picture.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dsv4::diag {

enum class SeriesStyle : uint8_t { kLine, kDashedLine, kPoints, kBars };

// Points (x[i], y[i]); labels[i] says what point i is, empty where x says it.
struct Series {
  std::string name;
  SeriesStyle style = SeriesStyle::kLine;
  int color = 0;       // 0..7; series that belong together share one.
  bool judged = true;  // By the plot's bound.
  std::vector<double> x;
  std::vector<double> y;
  std::vector<std::string> labels;

  void Add(double at, double value) {
    x.push_back(at);
    y.push_back(value);
  }
  void Add(double at, double value, std::string label) {
    Add(at, value);
    labels.push_back(std::move(label));
  }
};

struct Plot {
  std::string title;
  std::string reading;  // How to read it, in a sentence.
  std::string x_label;
  std::string y_label;
  bool log_y = false;
  bool wide = false;  // As wide as the page, for hundreds of points.
  std::vector<Series> series;
  std::optional<double> bound;  // A line across; points beyond it are marked.
  std::string bound_name;
  struct XName {
    double x = 0;
    std::string name;
  };
  std::vector<XName> x_names;  // Ascending; empty: numbers.
};

// Which keys each query attended to, beside what the rule says.
enum class KeyState : uint8_t {
  kSeen,       // As the rule says.
  kNotChosen,  // Visible by its position; the indexer left it out.
  kMissing,    // The rule has it, the op did not see it.
  kExtra,      // The op saw it, the rule forbids it.
};

struct KeyRun {
  int64_t begin = 0;  // Keys [begin, end).
  int64_t end = 0;
  KeyState state = KeyState::kSeen;
};

struct KeyPanel {
  std::string name;  // "window position", "compressed entry"
  int64_t num_keys = 0;
  std::vector<std::vector<KeyRun>> rows;  // By query; runs ascend and do not overlap.
};

struct KeyMap {
  std::string title;
  std::string reading;
  std::vector<int64_t> positions;  // Positions of the queries, ascending: one a row of every panel.
  std::vector<KeyPanel> panels;
};

}  // namespace dsv4::diag
