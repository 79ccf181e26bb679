// Finding: a line of `dsv4 doctor`.
#pragma once

#include <string>

namespace dsv4::apps {

enum class Verdict { kOk, kNote, kMissing };

struct Finding {
  std::string subject;
  Verdict verdict = Verdict::kOk;
  std::string text;
};

}  // namespace dsv4::apps
