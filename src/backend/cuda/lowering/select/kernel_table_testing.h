// All rules of all ops, for people: docs/cuda/kernels.md is made of it (select_test.cc fails when it is stale).
#pragma once

#include <string>
#include <vector>

#include "backend/cuda/lowering/rule.h"

namespace dsv4::backend::cuda {

struct KernelRow {
  const char* op;
  const char* file;  // Below kernels/, without its suffix.
  const char* when;
  RuleKind kind;
};

// In the order in which rules are tried, op by op.
std::vector<KernelRow> KernelTable();

// The same as a table in Markdown.
std::string KernelTableMarkdown();

}  // namespace dsv4::backend::cuda
