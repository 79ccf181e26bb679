// The reference backend with every op counted and, on demand, one call made to fail.
#pragma once

#include <map>
#include <string>

#include "ops/op_table.h"

namespace dsv4::test {

struct Injection {
  std::map<std::string, int> calls;  // By op, since the last Reset.
  int num_calls = 0;
  int fail_at = -1;       // The call that fails, counted from 0; negative: none.
  std::string failed_op;  // Which op that was.

  void Reset(int fail_at_call = -1) { *this = Injection{.fail_at = fail_at_call}; }
};

// There is one: op tables hold plain functions.
Injection& TheInjection();
const ops::Backend& InjectedBackend();

}  // namespace dsv4::test
