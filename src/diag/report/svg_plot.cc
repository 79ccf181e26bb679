// Line and bar plots as inline SVG, with bounds, legend and a table for readers.
#include "diag/report/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "base/check.h"
#include "diag/report/html_figure.h"
#include "diag/report/html_text.h"
#include "diag/report/svg_axis.h"

namespace dsv4::diag {
namespace {

bool IsPast(const Plot& plot, const Series& series, size_t i) {
  return plot.bound && series.judged && !(series.y[i] <= *plot.bound);
}

std::string XName(const Plot& plot, double x) {
  for (const Plot::XName& name : plot.x_names) {
    if (name.x == x) return name.name;
  }
  return FigureText(x);
}

class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot), width_(plot.wide ? kWide : kNarrow) {
    std::vector<double> xs;
    std::vector<double> ys;
    for (const Series& series : plot.series) {
      DSV4_CHECK(series.x.size() == series.y.size()) << series.name;
      DSV4_CHECK(series.labels.empty() || series.labels.size() == series.x.size()) << series.name;
      xs.insert(xs.end(), series.x.begin(), series.x.end());
      ys.insert(ys.end(), series.y.begin(), series.y.end());
      if (series.style != SeriesStyle::kBars) continue;
      ys.push_back(0);                   // Bars stand on it,
      for (const double x : series.x) {  // and are one wide.
        xs.push_back(x - 0.5);
        xs.push_back(x + 0.5);
      }
    }
    if (plot.bound) ys.push_back(*plot.bound);
    x_ = Axis::Linear(xs, plot.wide ? 14 : 7);
    y_ = plot.log_y ? Axis::Log(ys, 7) : Axis::Linear(ys, 6);
  }

  std::string Svg(std::string_view id) {
    Put("<svg class=\"{}\" viewBox=\"0 0 {:g} {:g}\" role=\"img\" aria-labelledby=\"{}-t {}-d\">\n",
        plot_.wide ? "plot wide" : "plot", width_, kHeight, id, id);
    Put("<title id=\"{}-t\">{}</title>\n<desc id=\"{}-d\">{}</desc>\n", id, EscapeHtml(plot_.title), id,
        EscapeHtml(plot_.reading));
    Axes();
    if (plot_.bound) Bound();
    for (size_t i = 0; i < plot_.series.size(); ++i) Draw(i);
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  template <typename... Args>
  void Put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
  }
  double X(double value) const { return kLeft + x_.At(value) * (width_ - kLeft - kRight); }
  double YAt(double place) const { return kHeight - kBottom - place * (kHeight - kTop - kBottom); }
  double Y(double value) const { return YAt(y_.At(value)); }

  void Axes() {
    for (const Tick& tick : y_.ticks()) {
      const double y = YAt(tick.place);
      Put("<path class=\"grid\" d=\"M{:g} {:.1f}H{:g}\"/>", kLeft, y, width_ - kRight);
      Put("<text class=\"ytick\" x=\"{:g}\" y=\"{:.1f}\">{}</text>\n", kLeft - 5, y + 4, tick.label);
    }
    double free_from = 0;  // Names that would run into the one before are left out.
    const auto x_tick = [&](double x, const std::string& name) {
      const double half = static_cast<double>(name.size()) * kCharacter / 2;
      if (x - half < free_from) return;
      free_from = x + half + kCharacter / 2;
      Put("<path class=\"tick\" d=\"M{:.1f} {:g}v4\"/>", x, kHeight - kBottom);
      Put("<text class=\"xtick\" x=\"{:.1f}\" y=\"{:g}\">{}</text>\n", std::min(x, width_ - half),
          kHeight - kBottom + 17, EscapeHtml(name));
    };
    if (plot_.x_names.empty()) {
      for (const Tick& tick : x_.ticks()) x_tick(kLeft + tick.place * (width_ - kLeft - kRight), tick.label);
    }
    for (const Plot::XName& name : plot_.x_names) x_tick(X(name.x), name.name);
    Put("<path class=\"axis\" d=\"M{:g} {:g}V{:g}H{:g}\"/>\n", kLeft, kTop, kHeight - kBottom,
        width_ - kRight);
    Put("<text class=\"ylabel\" x=\"4\" y=\"14\">{}</text>", EscapeHtml(plot_.y_label));
    Put("<text class=\"xlabel\" x=\"{:g}\" y=\"{:g}\">{}</text>\n", (width_ + kLeft - kRight) / 2,
        kHeight - 6, EscapeHtml(plot_.x_label));
  }

  void Bound() {
    Put("<path class=\"bound\" d=\"M{:g} {:.1f}H{:g}\"/>\n", kLeft, Y(*plot_.bound), width_ - kRight);
    // Beside the axis' name, where no point can be.
    Put("<text class=\"boundname\" x=\"{:g}\" y=\"14\">– – {}</text>\n", width_ - kRight,
        EscapeHtml(plot_.bound_name));
  }

  void Draw(size_t index) {
    const Series& series = plot_.series[index];
    if (series.style == SeriesStyle::kBars) return Bars(index);
    if (series.style != SeriesStyle::kPoints && series.x.size() > 1) {
      Put("<path class=\"line s{}{}\" d=\"", series.color,
          series.style == SeriesStyle::kDashedLine ? " dashed" : "");
      for (size_t i = 0; i < series.x.size(); ++i)
        Put("{}{:.1f} {:.1f}", i == 0 ? 'M' : 'L', X(series.x[i]), Y(series.y[i]));
      svg_ += "\"/>\n";
    }
    const double radius = series.x.size() > 120 ? 1.3 : 2.4;
    for (size_t i = 0; i < series.x.size(); ++i) {
      const bool past = IsPast(plot_, series, i);
      Put("<circle class=\"p s{}{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\"><title>{}</title></circle>\n",
          series.color, past ? " past" : "", X(series.x[i]), Y(series.y[i]), past ? 3.4 : radius,
          EscapeHtml(Name(series, i)));
    }
  }

  void Bars(size_t index) {
    // All series of bars share the width of one.
    size_t count = 0;
    size_t before = 0;
    for (size_t i = 0; i < plot_.series.size(); ++i) {
      if (plot_.series[i].style != SeriesStyle::kBars) continue;
      before += i < index ? 1 : 0;
      ++count;
    }
    const Series& series = plot_.series[index];
    const double width = 0.8 / static_cast<double>(count);
    for (size_t i = 0; i < series.x.size(); ++i) {
      const double left = series.x[i] - 0.4 + width * static_cast<double>(before);
      const double top = std::min(Y(series.y[i]), Y(0));
      Put("<rect class=\"bar s{}{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
          "height=\"{:.1f}\"><title>{}</title></rect>\n",
          series.color, IsPast(plot_, series, i) ? " past" : "", X(left), top, X(left + width) - X(left),
          std::abs(Y(series.y[i]) - Y(0)), EscapeHtml(Name(series, i)));
    }
  }

  std::string Name(const Series& series, size_t i) const {
    return fmt::format("{}{}: {}{}", plot_.series.size() > 1 ? series.name + ", " : "",
                       series.labels.empty() ? XName(plot_, series.x[i]) : series.labels[i],
                       FigureText(series.y[i]), IsPast(plot_, series, i) ? ", past the bound" : "");
  }

  const Plot& plot_;
  const double width_;
  Axis x_;
  Axis y_;
  std::string svg_;
};

// The plot's numbers: a line a point where points have names, else a line for every x.
std::string FigureRows(const Plot& plot) {
  const bool named = std::any_of(plot.series.begin(), plot.series.end(),
                                 [](const Series& series) { return !series.labels.empty(); });
  if (named) {
    std::string html = TableRow({"series", "point", plot.y_label}, "th");
    for (const Series& series : plot.series) {
      for (size_t i = 0; i < series.x.size(); ++i) {
        html += TableRow({series.name, series.labels.empty() ? XName(plot, series.x[i]) : series.labels[i],
                          FigureText(series.y[i]) + (IsPast(plot, series, i) ? ", past the bound" : "")},
                         "td");
      }
    }
    return html;
  }
  std::vector<std::string> head = {plot.x_label};
  std::map<double, std::vector<std::string>> rows;
  for (size_t s = 0; s < plot.series.size(); ++s) {
    head.push_back(plot.series[s].name);
    for (size_t i = 0; i < plot.series[s].x.size(); ++i) {
      std::vector<std::string>& row = rows[plot.series[s].x[i]];
      row.resize(plot.series.size());
      row[s] = FigureText(plot.series[s].y[i]);
    }
  }
  std::string html = TableRow(head, "th");
  for (auto& [x, cells] : rows) {
    cells.insert(cells.begin(), XName(plot, x));
    html += TableRow(cells, "td");
  }
  return html;
}

std::string Legend(const Plot& plot) {
  if (plot.series.size() < 2) return {};
  std::string html = "<ul class=\"legend\">\n";
  for (const Series& series : plot.series) {
    const char* swatch =
        series.style == SeriesStyle::kBars
            ? "<rect class=\"bar s{}\" x=\"4\" y=\"1\" width=\"14\" height=\"10\"/>"
        : series.style == SeriesStyle::kPoints ? "<circle class=\"p s{}\" cx=\"11\" cy=\"6\" r=\"3\"/>"
        : series.style == SeriesStyle::kLine   ? "<path class=\"line s{}\" d=\"M0 6H22\"/>"
                                               : "<path class=\"line dashed s{}\" d=\"M0 6H22\"/>";
    html +=
        fmt::format("<li><svg class=\"swatch\" viewBox=\"0 0 22 12\" aria-hidden=\"true\">{}</svg>{}</li>\n",
                    fmt::format(fmt::runtime(swatch), series.color), EscapeHtml(series.name));
  }
  return html + "</ul>\n";
}

}  // namespace

std::string PlotFigure(const Plot& plot, std::string_view id) {
  return HtmlFigure({.title = plot.title,
                     .reading = plot.reading,
                     .svg = Drawing(plot).Svg(id),
                     .legend = Legend(plot),
                     .rows = FigureRows(plot),
                     .wide = plot.wide});
}

}  // namespace dsv4::diag
