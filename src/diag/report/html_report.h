// The report as one page that people would rather look at than read: verdicts on top, then every check with
// its figures drawn. It needs no network, no script and no other file, follows the reader's light or dark
// setting, prints, and fits a phone. All of it is in the text and JSON reports too, but for the drawings,
// whose numbers stand in tables below them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "diag/report/report.h"

namespace dsv4::diag {

struct PageHead {
  std::string title;  // "dsv4 diagnose all"
  // How the page came about, in this order: "command", "model", "backend", ... Texts, not HTML.
  std::vector<std::pair<std::string, std::string>> facts;
  bool stopped = false;  // The last report made those after it meaningless, and they were not run.
  // The outcome of a measurement ("perplexity 12.3"), instead of a list of verdicts. Without a bound it is
  // neither good nor bad.
  std::string result = {};
  bool bounded = false;
};

std::string ToHtml(const PageHead& head, const std::vector<CheckReport>& reports);

}  // namespace dsv4::diag
