// The commands that a program has: each folder of commands registers its own.
#pragma once

#include <span>

namespace dsv4::apps {

class Commands;
using Register = void (*)(Commands& commands);

// The commands of this program, in the order of the help text: all (all_commands.cc), or `run` alone
// (run_alone.cc).
std::span<const Register> RegisterFunctions();

// One for each folder of commands.
void RegisterRun(Commands& commands);       // apps/run
void RegisterServe(Commands& commands);     // apps/serve
void RegisterBatch(Commands& commands);     // apps/batch
void RegisterDiagnose(Commands& commands);  // apps/diagnose
void RegisterEval(Commands& commands);      // apps/eval
void RegisterLogits(Commands& commands);    // apps/tools
void RegisterInspect(Commands& commands);   // apps/inspect
void RegisterExperts(Commands& commands);   // apps/experts
void RegisterSynth(Commands& commands);     // apps/tools
void RegisterConvert(Commands& commands);   // apps/tools
void RegisterBench(Commands& commands);     // apps/bench
void RegisterText(Commands& commands);      // apps/tools: encode, parse, tokenize
void RegisterPull(Commands& commands);      // apps/pull
void RegisterLaunch(Commands& commands);    // apps/launch
void RegisterModels(Commands& commands);    // apps/pull: list, show, rm, ps
void RegisterShell(Commands& commands);     // apps/command_line: completion, man

}  // namespace dsv4::apps
