// All commands: the program as it is installed.
#include <span>

#include "apps/command_line/command_list.h"

namespace dsv4::apps {
namespace {

constexpr Register kAll[] = {RegisterRun,   RegisterServe,   RegisterBatch,   RegisterDiagnose,
                             RegisterEval,  RegisterLogits,  RegisterInspect, RegisterExperts,
                             RegisterSynth, RegisterConvert, RegisterBench,   RegisterText,
                             RegisterPull,  RegisterLaunch,  RegisterModels,  RegisterShell};

}  // namespace

std::span<const Register> RegisterFunctions() { return kAll; }

}  // namespace dsv4::apps
