// The subcommands of dsv4. Each stands in its own folder and registers itself: its options, and what runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/command_line/command_list.h"
#include "apps/shared/model_flags.h"

namespace dsv4::apps {

// Context of a command that runs, beside its own options.
struct Invocation {
  ModelFlags model;
  std::vector<std::string> words;  // The command line as typed, the program's name first.
};

class Commands {
 public:
  using Run = std::function<int(const Invocation&)>;  // Returns the process exit code.
  using Predicate = std::function<bool()>;

  // `app` and `model`, which AddModelFlags has tied to it, must outlive the commands.
  Commands(CLI::App& app, ModelFlags& model) : app_(app), model_(model) {}

  // A new subcommand. Its options belong into a shared_ptr that `run` keeps.
  CLI::App& Add(const std::string& name, const std::string& help, Run run);
  // The same for one that plans a model and loads none: options of a GPU's memory stand for a GPU.
  CLI::App& AddPlan(const std::string& name, const std::string& help, Run run);
  // The same for one that runs no model: of the options of every model it takes those in `takes` ("threads"),
  // others are errors.
  CLI::App& AddWithoutModel(const std::string& name, const std::string& help, Run run,
                            std::vector<std::string> takes = {});
  // The same for a command that runs a model over ranks. It takes their options too, and enters their group
  // first where `over_ranks` says so after parsing; empty: always.
  CLI::App& AddOverRanks(const std::string& name, const std::string& help, Run run,
                         Predicate over_ranks = {});

  // Options of every model are errors in `command`, which was added, where `asks_server` says so after parsing: the model is a server's.
  void RefuseModelOptions(const CLI::App& command, Predicate asks_server);

  // Whether `option` of the program does something in `command`.
  bool Takes(const CLI::App& command, const CLI::Option& option) const;

  // Runs the command that was parsed, or this rank's part of it.
  int Dispatch(int argc, char** argv) const;

  CLI::App& app() const { return app_; }
  ModelFlags& model() { return model_; }

 private:
  struct Command {
    CLI::App* flags;
    Run run;
    bool ranks = false;
    Predicate over_ranks = {};
    bool plans = false;
    std::optional<std::vector<std::string>> takes = {};  // Among the options of every model; nullopt: all.
    Predicate asks_server = {};
  };

  CLI::App& app_;
  ModelFlags& model_;
  std::vector<Command> commands_;
};

}  // namespace dsv4::apps
