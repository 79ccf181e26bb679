# Writes OUTPUT, a source with the commit of the tree at SOURCE; only when it changed, so that nothing is compiled again.
cmake_policy(VERSION 3.25)
execute_process(COMMAND git rev-parse --short=10 HEAD WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[// Made by apps/command_line/commit.cmake.
#include "apps/command_line/commit.h"

const char* const dsv4::apps::kCommit = "@commit@";
]] @ONLY)
